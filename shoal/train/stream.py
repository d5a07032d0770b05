"""A slot's data: prepared once, kept in memory up to a limit, offered as chunks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from functools import partial
from hashlib import blake2b
from threading import Lock
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.core.trial import Samples, Seconds
from shoal.train import columns as cols
from shoal.train.columns import Columns
from shoal.train.data import Data
from shoal.train.features import Features
from shoal.train.recipe import DataKey, Recipe, overrides, seen_by

READING = 2  # shards that `made` keeps at hand
Key = tuple[ShardId, int, int | None, str]  # of a chunk: shard, number, turn (None: of no account), shuffle
_ORDER, _EACH = 1, 2  # which draw: the order within a shard, the order of one pass


def stable(shard: ShardId) -> int:
    """A number for the shard, the same on every machine."""
    return int.from_bytes(blake2b(shard.encode(), digest_size=8).digest(), "big")


class Shelf:
    """Prepared chunks by shard, within a limit of bytes. Room is made by dropping the shard used longest ago."""

    def __init__(self, limit: float) -> None:
        self._limit, self._key = [limit], ""  # the limit of all shelves that share their chunks
        self._held: OrderedDict[str, dict[int, Columns]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = Lock()

    def of(self, key: object) -> Shelf:
        """The same shelf, for what is prepared otherwise."""
        other = copy(self)
        other._key = repr(key)
        return other

    @property
    def total(self) -> int:
        return sum(self._sizes.values())

    def get(self, shard: ShardId, number: int) -> Columns | None:
        name = self._key + shard
        with self._lock:
            if name not in self._held:
                return None
            self._held.move_to_end(name)
            return self._held[name].get(number)

    def shrink(self) -> bool:
        """Drop everything, and keep half as much from now on; whether there was anything."""
        with self._lock:
            if not self.total:
                return False
            self._limit[0] = self.total / 2
            self._held.clear()
            self._sizes.clear()
        return True

    def drop(self, shard: ShardId) -> None:
        with self._lock:
            self._held.pop(self._key + shard, None)
            self._sizes.pop(self._key + shard, None)

    def put(self, shard: ShardId, number: int, chunk: Columns) -> None:
        """Keep the chunk if there is room, or other shards can make room. A shard larger than the limit is kept in part."""
        size, name = cols.nbytes(chunk), self._key + shard
        with self._lock:
            self._held.setdefault(name, {})
            self._held.move_to_end(name)
            while self.total + size > self._limit[0] and len(self._held) > 1:
                self._sizes.pop(self._held.popitem(last=False)[0], None)
            if self.total + size <= self._limit[0]:
                self._held[name][number] = chunk
                self._sizes[name] = self._sizes.get(name, 0) + size


class _UnreadError(Exception):
    """The feed does not have the chunk after all, and only the thread that trains may read the data."""


class _Blocks:
    """The raw blocks of one part; it is read when the first is asked for. No seed: in the order of the data."""

    def __init__(self, data: Data, part: ShardId, seed: int | None) -> None:
        self._data, self.part, self._seed = data, part, seed
        self._raw: Columns | None = None
        self._order: np.ndarray[Any, Any] | None = None
        self.missed: set[int] = set()  # blocks that the feed did not have
        self.count = -(-data.size(part) // data.chunk)

    @property
    def unread(self) -> bool:
        return self._raw is None

    def load(self) -> Columns:
        if self._raw is None:
            if self._seed is not None:
                self._order = _draw(_ORDER, self._seed, self.part).permutation(self._data.size(self.part))
            self._raw = self._data.read(self.part)
        return self._raw

    def rows(self, number: int) -> int:
        """Samples in a block: the last may have fewer."""
        return min(self._data.chunk, self._data.size(self.part) - number * self._data.chunk)

    def block(self, number: int) -> Columns:
        raw = self.load()
        chosen: Any = slice(number * self._data.chunk, (number + 1) * self._data.chunk)
        if self._order is not None:
            chosen = self._order[chosen]
        return cols.apply(raw, lambda column: column[chosen])


class Feed(Protocol):
    """Where a stream gets chunks that others have use for, too."""

    ahead: Samples  # that are to be prepared beyond the chunk asked for

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """What `Stream.made` gives for the first key; None: make it yourself. The others are wanted next, in this order.

        `trained`: seconds per sample of what the slot did with the chunks before; None: nothing yet.
        """
        ...

    def made(self, seconds: Seconds) -> None:
        """The slot made a chunk itself, in so many seconds per sample."""
        ...


class Stream:
    """Chunks of one recipe's data, on the device.

    The samples of a shard are put in a random order once, a function of (seed, shard); its chunks are consecutive blocks
    of that. shuffle="each" draws for every pass, from (seed, shard, turn), an order of the chunks and of the samples inside each.
    `augment` draws from `default_rng([seed, stable(shard), turn, number of the chunk])`; what steps see of it is what `features`
    makes of it. `feed`: where chunks are asked for that
    take work to make.
    """

    def __init__(
        self, recipe: Recipe, data: Data, *, seed: int, device: torch.device, memory_gb: float | Shelf, feed: Feed | None = None
    ) -> None:
        self._feed, self._blocks = feed, OrderedDict[ShardId, _Blocks]()
        self._fed = feed is not None  # whether it had the chunk that it was asked for last
        self._recipe, self._data, self._seed, self._device = recipe, data, seed, device
        self._prepares, self.augments = overrides(recipe, "prepare"), overrides(recipe, "augment")
        self._features = Features(recipe, seed, device)
        self._shelf = memory_gb if isinstance(memory_gb, Shelf) else Shelf(memory_gb * 2**30)
        self._trained: deque[tuple[Seconds, int]] = deque(maxlen=16)  # what was done with each of the last chunks took so long
        self._aside: ThreadPoolExecutor | None = None
        self._copies: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def chunks(self, shard: ShardId, turn: int, shuffle: str = "once", skip: int = 0) -> Generator[Columns, None, None]:
        """One pass over a training shard, less its first `skip` samples. The next chunk is made while the one before is in use.

        Raises:
            DataError: the shard cannot be read.
        """
        blocks = _Blocks(self._data, shard, self._seed)
        order = list(range(blocks.count))
        if shuffle == "each":
            order = _draw(_EACH, self._seed, shard, turn).permutation(blocks.count).tolist()
        while skip and skip >= blocks.rows(order[0]):
            skip -= blocks.rows(order.pop(0))

        def make(number: int) -> Columns:
            if self.augments:
                varied = self._asked(blocks, order, number, turn, shuffle, lambda: self._varied(blocks, number, turn, shuffle))
                return self._featured(self._moved(varied))
            chunk = self._prepared(blocks, order, number)
            return chunk if shuffle == "once" else self._mixed(chunk, shard, turn, number)

        chunks = self._ahead(blocks, order, make, self.augments)
        return _without(chunks, skip) if skip else chunks

    def made(self, shard: ShardId, number: int, turn: int | None, shuffle: str) -> Columns:
        """One chunk as NumPy arrays, prepared; with a turn also in that pass's order and augmented. For other streams' `feed`.

        Raises:
            DataError: the shard cannot be read.
        """
        if shard not in self._blocks:
            seed = self._seed if shard in self._data.shards else None
            self._blocks[shard] = _Blocks(self._data, shard, seed)
            while len(self._blocks) > READING:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(shard)
        blocks = self._blocks[shard]
        chunk = self._plain_chunk(blocks, number) if turn is None else self._varied(blocks, number, turn, shuffle)
        return cols.apply(chunk, np.asarray)

    def validation(self) -> Generator[Columns, None, None]:
        """All validation samples, in the order of the data, prepared, never augmented.

        Raises:
            DataError: a part cannot be read.
        """
        for part in self._data.validation:
            yield from self._plain(_Blocks(self._data, part, None))

    def _plain(self, blocks: _Blocks) -> Iterator[Columns]:
        order = list(range(blocks.count))
        return self._ahead(blocks, order, lambda k: self._prepared(blocks, order, k), False)

    def _ahead(
        self, blocks: _Blocks, order: list[int], make: Callable[[int], Columns], always: bool
    ) -> Generator[Columns, None, None]:
        """Chunks in order, each begun when the one before is handed out; `always`: even what is on the shelf takes time."""
        pending: list[Future[Columns]] = []
        asks = self._prepares or always

        def finish(begun: Callable[[], Columns], number: int) -> Columns:
            try:
                return begun()
            except _UnreadError:
                wait(pending)  # one chunk is prepared at a time
                blocks.load()
                return make(number)

        def begin(number: int) -> Callable[[], Columns]:
            at_hand = not always and self._shelf.get(blocks.part, number) is not None
            if len(order) == 1 or at_hand or not self._features.ready:
                return partial(finish, partial(make, number), number)
            if self._data.serial and not (asks and self._fed):
                blocks.load()
            pending[:] = [*pending[-1:], self._beside(make, number)]
            return partial(finish, pending[-1].result, number)

        try:
            coming = begin(order[0])
            for following in order[1:]:
                ready, coming = coming, begin(following)
                yield from self._guarded(blocks.part, ready())
            yield from self._guarded(blocks.part, coming())
        finally:  # left early: what was begun must not go on beside what comes next
            wait(pending)

    def _guarded(self, part: ShardId, chunk: Columns) -> Iterator[Columns]:
        """The chunk; once it was used, make sure that it is still what it was: it may be on the shelf, and others' too."""
        before = [column._version for column in cols.parts(chunk)]
        begin = perf_counter()
        try:
            yield chunk
            self._trained.append((perf_counter() - begin, cols.rows(chunk)))
        finally:
            written = [column._version for column in cols.parts(chunk)] != before
            if written:
                self._shelf.drop(part)
        if written:
            raise ValueError("a step wrote into its batch, which trials share: make a new tensor (x = x / 255, not x /= 255)")

    def _beside(self, make: Callable[[int], Columns], number: int) -> Future[Columns]:
        if self._aside is None:
            self._aside = ThreadPoolExecutor(1, "shoal-chunks", torch.set_num_threads, (torch.get_num_threads(),))
        return self._aside.submit(make, number)

    def _asked(
        self, blocks: _Blocks, order: Sequence[int], number: int, turn: int | None, shuffle: str, make: Callable[[], Columns]
    ) -> Columns:
        """The chunk from the feed, where there is one and it has it; else it is made here."""
        if self._feed is None:
            return make()
        if number not in blocks.missed:
            at = order.index(number)
            coming = order[at : at + 1 + int(-(-self._feed.ahead // self._data.chunk))]
            took, count = (sum(each) for each in zip(*tuple(self._trained), strict=True)) if self._trained else (0.0, 0)
            fed = self._feed.chunk([(blocks.part, each, turn, shuffle) for each in coming], took / count if count else None)
            self._fed = fed is not None
            if fed is not None:
                return fed
            if self._data.serial and blocks.unread:
                blocks.missed.add(number)
                raise _UnreadError
        begin = perf_counter()
        chunk = make()
        self._feed.made((perf_counter() - begin) / blocks.rows(number))
        return chunk

    def _prepared(self, blocks: _Blocks, order: Sequence[int], number: int) -> Columns:
        """The chunk as it is trained on where nothing is augmented, on the device."""
        chunk = self._shelf.get(blocks.part, number)
        if chunk is None:
            chunk = (
                self._plain_chunk(blocks, number)
                if not self._prepares
                else self._asked(blocks, order, number, None, "once", lambda: self._plain_chunk(blocks, number))
            )
            chunk = self._featured(self._moved(chunk))
            self._shelf.put(blocks.part, number, chunk)
        return chunk

    def _varied(self, blocks: _Blocks, number: int, turn: int, shuffle: str) -> Columns:
        """The chunk in a pass's order, augmented; what it is made of is kept."""
        chunk = self._shelf.get(blocks.part, number)
        if chunk is None:
            chunk = self._plain_chunk(blocks, number)
            self._shelf.put(blocks.part, number, chunk)
        if shuffle == "each":
            chunk = self._mixed(chunk, blocks.part, turn, number)
        return self._augmented(chunk, blocks.part, turn, number)

    def _mixed(self, chunk: Columns, shard: ShardId, turn: int, number: int) -> Columns:
        return _taken(chunk, _draw(_EACH, self._seed, shard, turn, number + 1).permutation(cols.rows(chunk)))

    def _plain_chunk(self, blocks: _Blocks, number: int) -> Columns:
        chunk = blocks.block(number)
        return _checked(self._recipe.prepare(chunk), cols.rows(chunk), "prepare") if self._prepares else chunk

    def _augmented(self, chunk: Columns, shard: ShardId, turn: int, number: int) -> Columns:
        rng = np.random.default_rng([self._seed, stable(shard), turn, number])
        given = cols.apply(chunk, _locked)
        return _checked(self._recipe.augment(given, rng), cols.rows(chunk), "augment")

    def _featured(self, chunk: Columns) -> Columns:
        return self._features.of(chunk) if self._features.there else chunk

    def _moved(self, chunk: Columns) -> Columns:
        chunk = cols.apply(chunk, _tensor)
        if self._copies is None:
            return chunk if self._device.type == "cpu" else cols.apply(chunk, lambda column: column.to(self._device))
        with torch.cuda.stream(self._copies):
            chunk = cols.apply(chunk, lambda column: column.pin_memory().to(self._device, non_blocking=True))
        self._copies.synchronize()
        for column in cols.parts(chunk):  # its memory is free again only when training, on the main stream, is through with it
            column.record_stream(torch.cuda.default_stream(self._device))
        return chunk


class Streams:
    """A slot's streams, one for each way in which its trials' data is prepared; they share a shelf. See `Stream`.

    `feed`: asked by trials without `data_keys` only.
    """

    def __init__(
        self, recipe: Recipe, data: Data, *, seed: int, device: torch.device, memory_gb: float, feed: Feed | None = None
    ) -> None:
        shelf = self._shelf = Shelf(memory_gb * 2**30)

        def make(key: DataKey) -> Stream:
            mine = shelf.of(key)
            return Stream(seen_by(recipe, key), data, seed=seed, device=device, memory_gb=mine, feed=None if key else feed)

        self._make = make
        self._made: dict[DataKey, Stream] = {}

    def shrink(self) -> bool:
        """Memory ran out: drop the chunks that are kept, and keep fewer from now on; whether there were any."""
        return self._shelf.shrink()

    def of(self, key: DataKey = ()) -> Stream:
        """The stream of trials with this key."""
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]


def _without(chunks: Generator[Columns, None, None], skip: int) -> Generator[Columns, None, None]:
    """The chunks, of the first one without that many samples."""
    try:
        for chunk in chunks:
            yield cols.cut(chunk, skip, cols.rows(chunk))
            skip = 0
    finally:
        chunks.close()


def feeding(recipe: Recipe, data: Data, seed: int, memory_gb: float) -> Stream:
    """A stream that makes chunks for others, on one core, in main memory.

    `memory_gb`: for what `prepare` made of the data, where it is augmented in each pass; it keeps no finished chunks.
    """
    torch.set_num_threads(1)
    kept = memory_gb if overrides(recipe, "prepare") else 0.0
    return Stream(recipe, data, seed=seed, device=torch.device("cpu"), memory_gb=kept)


def _draw(what: int, seed: int, shard: ShardId, *more: int) -> np.random.Generator:
    return np.random.default_rng([what, seed, stable(shard), *more])


def _taken(chunk: Columns, order: np.ndarray[Any, Any]) -> Columns:
    index = torch.from_numpy(order)
    return cols.apply(chunk, lambda column: column[index.to(column.device)] if isinstance(column, Tensor) else column[order])


def _locked(column: Any) -> Any:
    """The column as an array that cannot be written to, so that what is kept stays as it was prepared."""
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def _tensor(column: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column
    array = np.asarray(column)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _checked(made: Any, rows: int, hook: str) -> Columns:
    columns = cols.form(made)
    got = {len(column) for column in cols.parts(columns)}
    if got != {rows}:
        raise ValueError(f"{hook} must return columns with as many samples as it got, {rows}; got {sorted(got)}")
    return columns
