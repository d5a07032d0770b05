"""Shards out of other data: shuffled once, divided, placed at nodes, and written down."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, proportional
from shoal.train.data.columns import DataError
from shoal.train.data.make.buckets import RowBuckets
from shoal.train.data.make.files import NpzWriter
from shoal.train.data.make.sources import Reading, RowBatches, row_batches
from shoal.train.data.parts import is_fraction, part_names
from shoal.train.data.placed.catalogue import Catalogue, of_this_machine

CATALOGUE = "shards.toml"
LETTERS = {"train": "s", "valid": "v"}  # begin the names of parts, by table
LEAST_MEMORY = 32 * 2**20  # bytes
BUCKETS = 4096  # at most
PIECES = 8  # parts of the memory: a batch, a bucket and their copies each take one


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """How rows become shards.

    Raises:
        DataError: a number is out of its range, or they do not go together.
    """

    shards: int
    seed: int = 0
    replicas: int = 1
    nodes: Sequence[str] = ()  # none: this machine
    speeds: Mapping[str, float] | None = None  # of nodes; None: shards of one size
    validation: Any = None  # a fraction, other files, or None
    memory_gb: float = 1.0

    def __post_init__(self) -> None:
        for name in ("shards", "replicas"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise DataError(f"{name} must be a whole number >= 1; got {value!r}")
        nodes = self.places
        if len(set(nodes)) < len(nodes) or not all(nodes):
            raise DataError(f"nodes must be names, each once; got {', '.join(nodes)}")
        same = of_this_machine(nodes)
        if len(same) > 1:
            raise DataError(
                f"{' and '.join(same)} are one machine, this one: copies of a shard would lie on "
                "one disk, and be lost together: name each machine once in nodes"
            )
        if self.replicas > len(nodes):
            raise DataError(
                f"replicas lie on different nodes: at most {len(nodes)} of {', '.join(nodes)}; got "
                f"{self.replicas}: name more with nodes, or make fewer"
            )
        if self.memory_gb * 2**30 < LEAST_MEMORY:
            raise DataError(
                f"memory_gb must be >= {LEAST_MEMORY / 2**30:g}; got {self.memory_gb!r}"
            )
        if is_fraction(self.validation) and not 0 < self.validation < 1:
            raise DataError(
                "validation must be a fraction between 0 and 1, other files, or None; "
                f"got {self.validation!r}"
            )
        if self.speeds is not None:
            self._check_speeds(self.speeds)

    def _check_speeds(self, speeds: Mapping[str, float]) -> None:
        if set(speeds) != set(self.places) or not all(0 < s < np.inf for s in speeds.values()):
            raise DataError(
                "proportional shards need a speed > 0 for each node, "
                f"{', '.join(self.places)}; got {dict(speeds)}"
            )

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes that hold shards."""
        return tuple(self.nodes) or (platform.node(),)

    def holders(self, number: int) -> tuple[str, ...]:
        """The nodes that hold a shard: copies go round."""
        nodes = self.places
        return tuple(nodes[(number + copy) % len(nodes)] for copy in range(self.replicas))

    def sizes(self, rows: int, what: str) -> tuple[int, ...]:
        """Rows of each shard: equal, or as the mean speed of its holders.

        Raises:
            DataError: more shards than rows.
        """
        if rows < self.shards:
            raise DataError(f"{self.shards} {what} shards need as many rows; got {rows}")
        weights = [1.0] * self.shards
        if self.speeds is not None:
            held = [self.holders(number) for number in range(self.shards)]
            weights = [sum(self.speeds[node] for node in some) / len(some) for some in held]
        return proportional(rows, weights)


def make_shards(source: Any, folder: Path, plan: ShardPlan, how: Reading) -> dict[str, Any]:
    """Write shards and their catalogue; returns what was made. See `Data.make_shards`."""
    most = int(plan.memory_gb * 2**30) // PIECES
    rows = row_batches(source, how, most)
    other = None
    if plan.validation is not None and not is_fraction(plan.validation):
        other = row_batches(plan.validation, how, most)
    with _work_folder(folder) as work:
        making = ShardMaking(folder, plan, most)
        train = making.scattered(rows, work / "train", 0)
        aside = 0  # rows of these that become validation parts
        if other is not None:
            valid = making.scattered(other, work / "valid", 1)
            if valid.form != train.form:
                raise DataError("validation files must hold the same columns as the others")
            making.write("valid", valid, 0, valid.rows)
        elif plan.validation is not None:
            aside = round(train.rows * plan.validation)
            making.write("valid", train, 0, aside)
        making.write("train", train, aside, train.rows)
        return making.catalogued()


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A folder for the buckets, which is removed at the end.

    Raises:
        DataError: there are files where shards are to be written.
    """
    work = folder / ".buckets"
    if folder.exists() and any(file for file in folder.iterdir() if file != work):
        raise DataError(f"{folder} must be a new or an empty folder, and holds files")
    shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


class ShardMaking:
    """Shards under way. `most`: bytes of a bucket."""

    def __init__(self, folder: Path, plan: ShardPlan, most: int) -> None:
        self._folder = folder
        self._plan = plan
        self._most = most
        self._places: dict[str, dict[ShardId, dict[str, str]]] = {table: {} for table in LETTERS}
        self._rows: dict[ShardId, int] = {}
        self._bytes = 0

    def scattered(self, rows: RowBatches, work: Path, number: int) -> RowBuckets:
        """The rows in buckets below this folder."""
        work.mkdir()
        count = min(BUCKETS, max(1, ceil(rows.nbytes / self._most)))
        made = RowBuckets(work, 2 * self._plan.seed + number, count)
        made.scatter(rows)
        if not made.rows:
            raise DataError("data needs at least one row; got none")
        return made

    def write(self, table: str, rows: RowBuckets, start: int, stop: int) -> None:
        """Write these rows of the random order as shards, each once for each of its holders."""
        sizes = self._plan.sizes(stop - start, table)
        for number, name in enumerate(part_names(LETTERS[table], len(sizes))):
            end = start + sizes[number]
            nodes = self._plan.holders(number)
            paths = {node: str(self._path(node, name)) for node in nodes}
            self._write_shard([*paths.values()], rows, start, end)
            self._places[table][name] = paths
            self._rows[name] = sizes[number]
            start = end

    def _write_shard(self, paths: Sequence[str], rows: RowBuckets, start: int, stop: int) -> None:
        """Write one shard to the first of these paths, and copy it to the others."""
        first, *copies = map(Path, paths)
        for path in (first, *copies):
            path.parent.mkdir(parents=True, exist_ok=True)
        form = rows.form
        assert form is not None, "there are rows"
        with NpzWriter(first) as file:
            for place, column in enumerate(form.files):
                pieces = rows.column(place, start, stop)
                shape = (stop - start, *form.shapes[place])
                file.write(column, form.dtypes[place], shape, pieces)
        for path in copies:
            shutil.copyfile(first, path)
        self._bytes += first.stat().st_size * len(paths)

    def _path(self, node: str, name: str) -> Path:
        """Where a node's copy lies: in a folder of the node's, if nodes were named."""
        folder = self._folder.resolve()
        if self._plan.nodes:
            folder /= node
        return folder / f"{name}.npz"

    def catalogued(self) -> dict[str, Any]:
        """Write the catalogue, last of all; returns what was made."""
        path = self._folder / CATALOGUE
        catalogue = Catalogue(self._places["train"], self._places["valid"])
        path.write_text(catalogue.text(), encoding="utf-8")
        return {"catalogue": str(path), "rows": self._rows, "bytes": self._bytes}
