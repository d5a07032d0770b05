"""Files of URLs, fetched once to each node: a folder that keeps to a limit."""

from __future__ import annotations

import getpass
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import isnan
from pathlib import Path

import fsspec

from shoal.core.cluster import GiB
from shoal.engine.files import PARTIAL, replaced
from shoal.engine.ownership import lock_file, make_folder, own_folder
from shoal.train.data.columns import DataError


@dataclass(frozen=True, slots=True)
class UrlCache:
    """Where a node keeps the files that it fetched.

    `folder`: of all nodes; each has a folder of its own in it. None: in the temporary folder.
    `limit_gb`: what each node keeps; files not used for longest make room.

    Raises:
        DataError: the limit is not above 0.
    """

    limit_gb: GiB
    folder: str | None = None

    def __post_init__(self) -> None:
        if isnan(self.limit_gb) or not self.limit_gb > 0:
            raise DataError(f"cache_gb must be > 0; got {self.limit_gb!r}")

    def fetched(self, url: str, node: str) -> Path:
        """The file of the URL on this node; it is fetched if it is not there.

        Raises:
            DataError: a library is missing, or the file is larger than the limit.
            OSError: it cannot be fetched.
        """
        place = self._place(url, node)
        make_folder(place.parent)
        with lock_file(place.with_name(f"{place.name}.lock")):
            if not place.exists():
                self._fetch(url, place)
        stat = place.stat()
        os.utime(place, ns=(time.time_ns(), stat.st_mtime_ns))
        return place

    def forget(self, url: str, node: str) -> None:
        """Let the file be fetched anew when it is needed again."""
        with suppress(OSError):
            self._place(url, node).unlink()

    def _place(self, url: str, node: str) -> Path:
        """Where the file of the URL lies on this node, or will."""
        if self.folder is not None:
            folder = Path(self.folder)
        else:
            folder = Path(tempfile.gettempdir()) / f"shoal-shards-{getpass.getuser()}"
            own_folder(folder)
        name = blake2b(url.encode(), digest_size=12).hexdigest()
        # of a.npz in zip://a.npz::b.zip
        file = url.partition("?")[0].partition("::")[0]
        ending = "".join(Path(file).suffixes[-2:])
        of_node = "".join(sign if sign.isalnum() or sign in "-." else "_" for sign in node)
        return folder / of_node / f"{name}{ending}"

    def _fetch(self, url: str, place: Path) -> None:
        """Fetch the file, whole or not at all, and make room for it."""
        try:
            files, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise DataError(f"{url} needs another library: {error}") from error
        except ValueError as error:
            raise DataError(f"{url}: {error}") from error
        size = files.info(path).get("size")
        if size is not None:
            self._check(url, size)
        with replaced(place) as part:
            files.get_file(path, str(part))
            self._check(url, part.stat().st_size)
        self._make_room(place)

    def _check(self, url: str, size: int) -> None:
        """Raise DataError if the file is larger than the limit."""
        if size > self.limit_gb * 2**30:
            raise DataError(
                f"{url} has {size / 2**30:.3g} GiB, more than cache_gb={self.limit_gb:g}: give "
                "Data.shards a larger cache_gb, or make smaller shards"
            )

    def _make_room(self, newest: Path) -> None:
        """Remove the files that were not used for longest, until the limit is kept."""
        files = []
        for file in newest.parent.iterdir():
            with suppress(OSError):  # another process removed it
                if file.suffix not in (".lock", PARTIAL):
                    files.append((file == newest, file.stat().st_atime_ns, file))
        total = sum(_size(file) for *_, file in files)
        for _, _, file in sorted(files):
            if total <= self.limit_gb * 2**30:
                return
            total -= _size(file)
            with suppress(OSError):  # Windows keeps a file that is being read
                file.unlink()


def _size(file: Path) -> int:
    """The file's bytes; 0 if it is gone."""
    with suppress(OSError):
        return file.stat().st_size
    return 0
