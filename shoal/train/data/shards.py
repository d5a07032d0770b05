"""Shards out of other data: rows shuffled once over buckets on disk, divided, placed, written."""

from __future__ import annotations

import platform
import shutil
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, proportional
from shoal.train.data import columns as cols
from shoal.train.data.catalogue import Catalogue, of_this_machine
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.formats import Reading, RowBatches, row_batches
from shoal.train.data.npz import NpzWriter
from shoal.train.data.parts import is_fraction, part_names

SCATTER, SHUFFLE = 11, 12  # tell the two kinds of draws apart
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
            speeds = self.speeds
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

    def sizes(self, rows: int, table: str) -> tuple[int, ...]:
        """Rows of each shard: equal, or as the mean speed of its holders.

        Raises:
            DataError: more shards than rows.
        """
        if rows < self.shards:
            raise DataError(f"{self.shards} {table} shards need as many rows; got {rows}")
        weights = [1.0] * self.shards
        if self.speeds is not None:
            holders = [self.holders(number) for number in range(self.shards)]
            weights = [sum(self.speeds[node] for node in nodes) / len(nodes) for nodes in holders]
        return proportional(rows, weights)


def make_shards(source: Any, folder: Path, plan: ShardPlan, how: Reading) -> dict[str, Any]:
    """Write shards and their catalogue; returns what `Data.make_shards` does."""
    most = int(plan.memory_gb * 2**30) // PIECES
    rows = row_batches(source, how, most)
    valid_rows = None
    if plan.validation is not None and not is_fraction(plan.validation):
        valid_rows = row_batches(plan.validation, how, most)
    with _work_folder(folder) as work:
        maker = ShardMaker(folder, plan, most)
        train = maker.scattered(rows, work / "train", 0)
        aside = 0  # rows of these that become validation parts
        if valid_rows is not None:
            valid = maker.scattered(valid_rows, work / "valid", 1)
            if valid.form != train.form:
                raise DataError("validation files must hold the same columns as the others")
            maker.write("valid", valid, 0, valid.rows)
        elif plan.validation is not None:
            aside = round(train.rows * plan.validation)
            maker.write("valid", train, 0, aside)
        maker.write("train", train, aside, train.rows)
        return maker.catalogued()


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


class ShardMaker:
    """Writes shards and their catalogue. `most`: bytes of a bucket."""

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
        buckets = RowBuckets(work, 2 * self._plan.seed + number, count)
        buckets.scatter(rows)
        if not buckets.rows:
            raise DataError("data needs at least one row; got none")
        return buckets

    def write(self, table: str, rows: RowBuckets, start: int, stop: int) -> None:
        """Write these rows of the random order as shards, each once for each of its holders."""
        sizes = self._plan.sizes(stop - start, table)
        folder = self._folder.resolve()
        for number, name in enumerate(part_names(LETTERS[table], len(sizes))):
            end = start + sizes[number]
            nodes = self._plan.holders(number)
            # with nodes, each has a folder
            folders = {node: folder / node if self._plan.nodes else folder for node in nodes}
            paths = {node: str(path / f"{name}.npz") for node, path in folders.items()}
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

    def catalogued(self) -> dict[str, Any]:
        """Write the catalogue, last of all; returns what `Data.make_shards` does."""
        path = self._folder / CATALOGUE
        catalogue = Catalogue(self._places["train"], self._places["valid"])
        path.write_text(catalogue.text(), encoding="utf-8")
        return {"catalogue": str(path), "rows": self._rows, "bytes": self._bytes}


@dataclass(slots=True)
class RowBuckets:
    """Rows in `count` buckets on disk, below `folder`. `cached`: columns that stay in memory."""

    folder: Path
    seed: int
    count: int
    cached: int = 2
    form: RowForm | None = None
    counts: Array = field(init=False)  # rows of each bucket
    _read: OrderedDict[tuple[int, int], Array] = field(default_factory=OrderedDict, init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.count, np.int64)

    @property
    def rows(self) -> int:
        """Rows in all buckets."""
        return int(self.counts.sum())

    def scatter(self, batches: Iterable[Columns]) -> None:
        """Add all rows of the batches.

        Raises:
            DataError: the batches hold unlike columns, or no numbers.
        """
        rng = np.random.default_rng([SCATTER, self.seed])
        for batch in batches:
            form = RowForm.of(batch)
            self.form = self.form or form
            if form != self.form:
                raise DataError(
                    f"all rows must hold the same columns; got {self.form} and later {form}"
                )
            buckets = rng.integers(self.count, size=cols.rows(batch))
            order = np.argsort(buckets, kind="stable")
            counts = np.bincount(buckets, minlength=self.count)
            for place, column in enumerate(cols.parts(batch)):
                begin = 0
                for bucket in np.flatnonzero(counts).tolist():
                    rows = order[begin : begin + counts[bucket]]
                    begin += counts[bucket]
                    with self._file(bucket, place).open("ab") as file:
                        file.write(
                            np.ascontiguousarray(column[rows]).reshape(-1).view(np.uint8).data
                        )
            self.counts += counts

    def _file(self, bucket: int, place: int) -> Path:
        """The file with a bucket's rows of one column."""
        return self.folder / f"{bucket}-{place}"

    def column(self, place: int, start: int, stop: int) -> Iterator[Array]:
        """Rows start … stop of a column, in the random order, in pieces."""
        begin = 0
        for bucket, count in enumerate(self.counts.tolist()):
            end = begin + count
            if begin < stop and start < end:
                yield self._shuffled(bucket, place)[max(start - begin, 0) : stop - begin]
            begin = end

    def _shuffled(self, bucket: int, place: int) -> Array:
        """A bucket's column in its random order. The last few stay in memory."""
        key = (bucket, place)
        if key not in self._read:
            while len(self._read) >= self.cached:
                self._read.popitem(last=False)
            assert self.form is not None, "there are rows"
            flat = np.fromfile(self._file(bucket, place), self.form.dtypes[place])
            column = flat.reshape(int(self.counts[bucket]), *self.form.shapes[place])
            rng = np.random.default_rng([SHUFFLE, self.seed, bucket])
            self._read[key] = column[rng.permutation(len(column))]
        self._read.move_to_end(key)
        return self._read[key]


@dataclass(frozen=True, slots=True)
class RowForm:
    """What a row holds: by column its name (None: columns have places), type and shape."""

    names: tuple[str, ...] | None
    dtypes: tuple[np.dtype[Any], ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, columns: Columns) -> RowForm:
        """The form of these rows.

        Raises:
            DataError: a column holds no numbers of one shape.
        """
        names = tuple(columns) if isinstance(columns, dict) else None
        arrays = cols.parts(columns)
        for place, column in enumerate(arrays):
            if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
                name = names[place] if names else place
                raise DataError(
                    f"shards hold columns of numbers of one shape; column {name} holds others: "
                    "encode or pad it first, or leave it out"
                )
        dtypes = tuple(column.dtype for column in arrays)
        return cls(names, dtypes, tuple(column.shape[1:] for column in arrays))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return sum(
            dtype.itemsize * int(np.prod(shape))
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The columns' names in a file, as numpy.savez gives them."""
        if self.names is not None:
            return self.names
        return tuple(f"arr_{place}" for place in range(len(self.dtypes)))
