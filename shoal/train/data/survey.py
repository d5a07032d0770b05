"""What the holders of placed data find in their files, and whether that fits together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from shoal.core.cluster import ShardId
from shoal.train.data.catalogue import EVERYWHERE, Catalogue, here, is_url
from shoal.train.data.columns import DataError
from shoal.train.data.files import check_ends
from shoal.train.data.formats import PartForm, Read, form_of
from shoal.train.data.url_cache import UrlCache

WHOLE = 64 * 2**20  # bytes up to which a checksum is of the whole file
# Of a larger file, the checksum is of pieces of so many bytes at so many places.
PIECE = 2**20
PLACES = 64
SHOWN = 6  # problems that an error lists
# Bytes, when the newest file was written, and when one was last changed or replaced, both in ns.
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Content:
    """What identifies a file's or folder's content: its size, and a checksum."""

    size: int  # bytes
    digest: str

    def __str__(self) -> str:
        return f"{self.size:,} bytes with checksum {self.digest[:8]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a node found out about a part. `why`: why it cannot be read; empty if it can.

    `form`: what is in it, if the node was asked for that.
    """

    part: ShardId
    node: str
    path: str
    content: Content | None = None
    stamp: Stamp = (0, 0, 0)
    form: PartForm | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a node is to look at. `forms`: the parts of which it tells the form, too."""

    node: str
    paths: Mapping[ShardId, str]
    forms: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class SurveyRequest:
    """What the holders are to look at. `recipe`: whose own reader they use; None: no such one."""

    catalogue: Catalogue
    cache: UrlCache
    recipe: Any = None

    @property
    def read(self) -> Read | None:
        """The recipe's own reader."""
        return getattr(self.recipe, "read", None)


Surveyor = Callable[[SurveyRequest], Sequence[Finding]]  # has the holders look


def local_file(path: str, node: str, cache: UrlCache) -> Path:
    """The local file of a place.

    Raises:
        DataError, OSError: a URL cannot be fetched, or it is no file.
    """
    if is_url(path):
        return cache.fetched(path, node)
    check_ends(Path(path))
    return Path(path)


def stamp_of(file: Path, path: str) -> Stamp:
    """What changes when the local file of the place `path` is written to or replaced.

    A copy may come with the old time of writing. The time of the change tells of that. It is not
    looked at for a file of the cache, since the cache changes it to mark its use.

    Raises:
        OSError: it is not there.
    """
    stats = [each.stat() for each in _files(file)]
    size = sum(stat.st_size for stat in stats)
    changed = 0 if is_url(path) else max(stat.st_ctime_ns for stat in stats)
    return size, max(stat.st_mtime_ns for stat in stats), changed


def content_of(path: Path) -> Content:
    """The size and the checksum of a file, or of all files of a folder.

    Raises:
        OSError: it cannot be read.
    """
    hashed = blake2b(digest_size=16)
    total = 0
    for file in _files(path):
        if file != path:
            hashed.update(file.relative_to(path).as_posix().encode())
        total += _hash_file(hashed, file)
    return Content(total, hashed.hexdigest())


def _files(path: Path) -> list[Path]:
    """The file, or all files of the folder."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not files:
        raise FileNotFoundError(f"{path} is an empty folder")
    return files


def _hash_file(hashed: Any, file: Path) -> int:
    """Add the file's content, of a large one some of it; returns its bytes."""
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        hashed.update(f" {size} ".encode())
        if size <= WHOLE:
            while piece := opened.read(PIECE):
                hashed.update(piece)
            return size
        for number in range(PLACES):
            opened.seek((size - PIECE) * number // (PLACES - 1))
            hashed.update(opened.read(PIECE))
    return size


# -- at a holder ---------------------------------------------------------------------------------


def look(task: Inspection, cache: UrlCache, read: Read | None) -> list[Finding]:
    """This node's finding of each of its parts; an error becomes a finding, too."""
    findings = []
    for part, path in task.paths.items():
        try:
            findings.append(_inspect(task, part, path, cache, read))
        except Exception as error:  # noqa: BLE001 - whatever it is, the finding says it
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, DataError):
                why = str(error)
            findings.append(Finding(part, task.node, path, why=why))
    return findings


def _absent(path: str) -> str:
    """Why nothing was found at the place."""
    if is_url(path):
        return "there is no such file, or its server does not answer"
    if Path(path).is_dir():
        return "the folder is empty"
    return "there is no such file"


def _inspect(
    task: Inspection, part: ShardId, path: str, cache: UrlCache, read: Read | None
) -> Finding:
    """The finding of one part. Raises DataError, or whatever reading raises."""
    try:
        file = local_file(path, task.node, cache)
        stamp = stamp_of(file, path)
    except FileNotFoundError as error:
        raise DataError(_absent(path)) from error
    form = None
    if part in task.forms:
        form = form_of(file, read, part)
    return Finding(part, task.node, path, content_of(file), stamp, form)


# -- where the study runs ------------------------------------------------------------------------


def tasks_of(catalogue: Catalogue, nodes: Sequence[str], anywhere: str) -> list[Inspection]:
    """What each of these nodes is to look at; the first holder of a part tells its form.

    `anywhere`: the node that looks at what lies everywhere.
    """
    paths: dict[str, dict[ShardId, str]] = {node: {} for node in [*nodes, anywhere]}
    forms: dict[str, set[ShardId]] = {node: set() for node in paths}
    for part, places in catalogue.parts.items():
        first = True
        for name, path in places.items():
            node = anywhere if name == EVERYWHERE else name
            if node not in paths:
                continue
            paths[node][part] = path
            if first:
                forms[node].add(part)
            first = False
    return [Inspection(node, paths[node], frozenset(forms[node])) for node in paths if paths[node]]


def survey_here(request: SurveyRequest) -> list[Finding]:
    """Look at what this machine holds, which must be all of the data.

    Raises:
        DataError: a part lies elsewhere only.
    """
    names = here()
    places = request.catalogue.at(names)
    for part, holders in request.catalogue.parts.items():
        if part not in places:
            raise DataError(
                f"{part} lies at {', '.join(holders)}, and this process is on the node "
                f'"{names[0]}" alias "{names[1]}": only holders read a shard. Give its path at '
                f'"{names[0]}" in the catalogue, or name the cluster of these nodes: address= '
                '(--address), to train on them with backend="ray"'
            )
    paths = {part: place.path for part, place in places.items()}
    task = Inspection(names[0], paths, frozenset(paths))
    return look(task, request.cache, request.read)


def check(request: SurveyRequest, findings: Sequence[Finding]) -> dict[ShardId, Finding]:
    """One good finding for each part, with its form.

    Raises:
        DataError: a part cannot be read somewhere, replicas differ, or columns do. It lists all.
    """
    by_part: dict[ShardId, list[Finding]] = {}
    for finding in findings:
        by_part.setdefault(finding.part, []).append(finding)
    problems = [*_problems(request.catalogue, by_part)]
    good: dict[ShardId, Finding] = {}
    for finding in findings:
        if finding.form is not None:
            good.setdefault(finding.part, finding)
    problems += _unlike(good)
    if problems:
        listed = "; ".join(problems[:SHOWN])
        more = len(problems) - SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        raise DataError(
            f"the catalogue does not fit what holders have: {listed}{rest}. Put the files "
            "right, or take these lines out of the catalogue: one copy of each part is enough"
        )
    return {part: good[part] for part in request.catalogue.parts}


def _problems(catalogue: Catalogue, by_part: Mapping[ShardId, Sequence[Finding]]) -> Iterator[str]:
    """What is wrong with single parts."""
    for part in catalogue.parts:
        findings = by_part.get(part, ())
        if not findings:
            yield f"{part} has no holder that is there"
        for finding in findings:
            if finding.why:
                yield f"{part} at {finding.node}: {finding.path}: {finding.why}"
            elif finding.form is not None and finding.form.rows < 1:
                yield f"{part} at {finding.node}: {finding.path} has no samples"
        contents = {finding.content: finding for finding in findings if finding.content is not None}
        if len(contents) > 1:
            copies = contents.values()
            listed = " and ".join(f"{copy.content} at {copy.node} ({copy.path})" for copy in copies)
            yield f"the copies of {part} differ: {listed}"


def _unlike(good: Mapping[ShardId, Finding]) -> Iterator[str]:
    """Which parts have other columns than the first one."""
    first: Finding | None = None
    for part, finding in good.items():
        first = first or finding
        assert first.form is not None and finding.form is not None, "a good finding has one"
        if finding.form.columns != first.form.columns:
            yield f"{first.part} has the columns {first.form}, {part} has {finding.form}"
