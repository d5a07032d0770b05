"""Samples that hold their numbers, as a file of each format that Shoal reads."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from shoal.train.data.data import Data


def jpeg(shade: int, size: tuple[int, int] = (6, 4), kind: str = "PNG") -> bytes:
    """A picture of one colour."""
    image = pytest.importorskip("PIL.Image", reason="pip install pillow")
    content = io.BytesIO()
    image.new("RGB", size, (shade, 0, 255 - shade)).save(content, kind)
    return content.getvalue()


def table(rows: int = 20) -> Any:
    """Lists of three numbers, numbers, and bytes."""
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 3.0)), 3)
    raw = pa.array([bytes([n, n]) for n in range(rows)])
    return pa.table({"x": lists, "y": np.arange(rows), "raw": raw})


def arrow_file(path: Path, of: Any = None) -> Path:
    """The table in Arrow's format for files, in several batches."""
    import pyarrow as pa

    of = table() if of is None else of
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, of.schema) as out:
        out.write_table(of, max_chunksize=7)
    return path


def tar(path: Path, count: int, start: int = 0, **more: Any) -> Path:
    """Samples of a picture, an array, a class and a JSON list each. `more`: other members."""
    with tarfile.open(path, "w") as out:
        for n in range(start, start + count):
            npy = io.BytesIO()
            np.save(npy, np.full(3, n, "f4"))
            members = {"png": jpeg(n), "npy": npy.getvalue(), "cls": str(n).encode()}
            members |= {"json": json.dumps([n, n]).encode(), **more}
            for ending, content in members.items():
                info = tarfile.TarInfo(f"some/{n:04}.{ending}")
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def _csv(path: Path, count: int) -> None:
    path.write_text("n,x\n" + "".join(f"{n},{n / 2}\n" for n in range(count)))


def _parquet(path: Path, count: int) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"n": np.arange(count), "x": np.arange(count) / 2}), path)


def _pictures(path: Path, count: int) -> None:
    """One picture of each class."""
    for n in range(count):
        (path / f"class{n:03}").mkdir(parents=True)
        (path / f"class{n:03}" / "0.png").write_bytes(jpeg(n))


class Format(NamedTuple):
    """How so many samples are written to a path, what reads that, and the column of numbers."""

    ending: str
    write: Callable[[Path, int], Any]
    read: Callable[[Path], Data]
    column: Any
    in_memory: bool = False
    by_rows: bool = True  # of `Data.shards`


def _folder(path: Path) -> Data:
    return Data.folder(path.parent, path.name)


FORMATS = {
    "csv": Format(".csv", _csv, lambda at: Data.csv(at, validation=None), "n", True, False),
    "parquet": Format(
        ".parquet", _parquet, lambda at: Data.parquet(at, validation=None), "n", True, False
    ),
    "arrow": Format(
        ".arrow",
        lambda at, count: arrow_file(at, table(count).drop(["raw"])),
        lambda at: Data.arrow(at, validation=None),
        "y",
    ),
    "pictures": Format("", _pictures, lambda at: Data.images(at, validation=None), 1),
    "tar": Format(".tar", tar, Data.tar, "cls"),
    "npz": Format(".npz", lambda at, count: np.savez(at, n=np.arange(count)), _folder, "n"),
    "packed npz": Format(
        ".npz",
        lambda at, count: np.savez_compressed(at, n=np.arange(count)),
        _folder,
        "n",
        by_rows=False,
    ),
    "npy": Format(
        ".npy",
        lambda at, count: np.save(at, np.arange(count)),
        lambda at: Data.arrays(np.load(at, mmap_mode="r"), validation=None),
        0,
        True,
    ),
}
