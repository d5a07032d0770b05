"""A chunk: a block of raw samples, what the recipe makes of it, and the chunks that are kept."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from functools import cached_property
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import bucketed, stable, streams
from shoal.train.data.columns import Columns, Ragged
from shoal.train.data.data import Data
from shoal.train.data.items import ItemForm, as_column
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.rng import Rng

Order = np.ndarray[Any, Any]  # numbers of samples
# What is drawn: the order within a shard, or the order of one pass.
ORDER = 1
EACH = 2
BUCKETS = 5
ONCE = "once"
DRAWS = "drawn:"  # begins an order that the data draws for one pass
# Ends an order, before the number of the only pass that has these samples: see `Data.of_pass`.
OF_PASS = "@"
BATCHES = 4  # of the recipe's batch size, to a group of samples of similar lengths
USUAL = 32  # samples to a batch, where the recipe's batch size is to be found out
PIECE = 256  # samples at once


def kept_name(part: ShardId, order: str) -> ShardId:
    """The name in a cache of what is made of the part's blocks in that order."""
    if order == ONCE:
        return part
    return ShardId(f"{part}/{order}")


def lasting(shuffle: str) -> str:
    """The order in which the chunks of such passes are kept."""
    kind, *turn = shuffle.split(OF_PASS)
    return OF_PASS.join([ONCE if kind == "each" else kind, *turn])


def mixes(shuffle: str) -> bool:
    """Whether each pass of this order has the samples in an order of its own."""
    return shuffle.partition(OF_PASS)[0] == "each"


class UnreadError(Exception):
    """A block was not read yet, and only the thread that trains may read the data."""


class Blocks:
    """The raw blocks of one part.

    Of data that can be read by rows a block is read alone, and not kept. Of other data the whole
    part is read when its first block is asked for. `seed`: of the random order of the samples;
    None: they are in the order of the data. `order`: "once", "sequential", "streams:N" (each row
    of a batch of N samples continues that row of the batch before), or "drawn:TURN" (as the data
    draws them for that pass). With "@TURN" at its end the part has the samples that the data gives
    to that pass.

    `name`: of what is made of these blocks, in a cache. `lasts`: they are the same in all passes.
    `trained`: they are of a training shard.
    """

    def __init__(self, data: Data, part: ShardId, seed: int | None, order: str = ONCE) -> None:
        self._kind, _, turn = order.partition(OF_PASS)
        if turn:
            assert seed is not None, "training shards have passes"
            data = data.of_pass(seed, int(turn))
        self._data = data
        self._seed = seed
        self._size = data.size(part)  # samples in the part
        self._chunk = data.chunk  # samples in a block
        self._raw: Columns | None = None  # the whole part
        self._brought: dict[int, Columns] = {}  # blocks that were read and not yet taken
        self._took: dict[int, Seconds] = {}  # for bringing blocks
        self.part = part
        self.order = order
        self.name = kept_name(part, order)
        self.trained = seed is not None
        self.lasts = not (order.startswith(DRAWS) or (turn and data.anew))
        self.count = -(-self._size // self._chunk)
        self.missed: set[int] = set()  # blocks that the feed did not have

    @cached_property
    def _order(self) -> Order:
        """The samples in the order of the blocks."""
        kind, _, number = self._kind.partition(":")
        if kind == "streams":
            return streams(self._size, min(int(number), self._size))
        if kind == "drawn":
            draws = self._data.arrangement.draws
            assert draws is not None and self._seed is not None, "the data draws"
            return draws.order(self.part, self._seed, int(number))
        if self._seed is None or kind == "sequential":
            return np.arange(self._size)
        return draw(ORDER, self._seed, self.part).permutation(self._size)

    def lacks(self, number: int) -> bool:
        """Whether the block has still to be read."""
        return self._raw is None and number not in self._brought

    def bring(self, number: int) -> None:
        """Read what the block is made of, in this thread.

        Raises:
            DataError: the part cannot be read.
        """
        if not self.lacks(number):
            return
        begin = perf_counter()
        if self._data.by_rows:
            self._brought[number] = self._read(number)
        else:
            self._raw = self._data.read(self.part)
        self._took[number] = perf_counter() - begin

    def forget(self, number: int) -> Seconds:
        """Drop what was brought for the block; returns the seconds that bringing it took."""
        self._brought.pop(number, None)
        return self._took.pop(number, 0.0)

    def _read(self, number: int) -> Columns:
        return self._data.rows(self.part, self._chosen(number))

    def _chosen(self, number: int) -> Order:
        """The samples of a block, by their places in the part."""
        start = number * self._chunk
        return self._order[start : start + self._chunk]

    def rows(self, number: int) -> int:
        """Samples in a block: the last may have fewer."""
        return min(self._chunk, self._size - number * self._chunk)

    def block(self, number: int) -> Columns:
        """The samples of a block.

        Raises:
            DataError: the part cannot be read.
            UnreadError: it was not read yet, and may only be read by `bring`.
        """
        if self._data.serial and self.lacks(number):
            raise UnreadError
        if number in self._brought:
            return self._brought.pop(number)
        if self._data.by_rows:
            return self._read(number)
        self.bring(number)
        chosen = self._chosen(number)
        raw = self._raw
        assert raw is not None, "it was just brought"
        return cols.apply(raw, lambda column: column[chosen])


def draw(what: int, seed: int, shard: ShardId, *more: int) -> np.random.Generator:
    """A generator for one of the draws (`ORDER`, `EACH`) of a shard."""
    return np.random.default_rng([what, seed, stable(shard), *more])


class ChunkMaker:
    """Makes chunks of blocks: prepares, mixes and augments them, and moves them to the device.

    `prepares`, `augments`: whether the recipe does so.
    """

    def __init__(self, recipe: Recipe, data: Data, seed: int, device: torch.device) -> None:
        self._recipe = recipe
        self._whole = data.collates
        self._buckets: LengthBuckets | None = None
        if data.arrangement.buckets is not None:
            self._buckets = LengthBuckets(data, recipe.batch_size)
        self._seed = seed
        self._device = device
        self._features = Features(recipe, seed, device)
        self._copies: Any = None  # the CUDA stream on which chunks are copied
        if device.type == "cuda":
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.prepares = overrides(recipe, "prepare")
        self.augments = overrides(recipe, "augment")

    @property
    def is_ready(self) -> bool:
        """Whether chunks may be finished in another thread: see `Features`."""
        return self._features.ready

    def prepared(self, blocks: Blocks, number: int) -> Columns:
        """The block as the recipe prepares it.

        Raises:
            ValueError: `prepare` gave another number of samples.
        """
        chunk = blocks.block(number)
        if self.prepares:
            made = self._recipe.prepare(chunk)
            chunk = checked(made, cols.rows(chunk), "prepare", self._whole)
        if self._buckets is None or not blocks.trained:
            return chunk
        return self._buckets.sorted(chunk, draw(BUCKETS, self._seed, blocks.part, number))

    def mixed(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk's samples in the random order of one pass."""
        drawn = draw(EACH, self._seed, blocks.part, turn, number + 1)
        mixed = taken(chunk, drawn.permutation(cols.rows(chunk)))
        if self._buckets is None:
            return mixed
        return self._buckets.sorted(mixed, drawn)

    def augmented(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk as the recipe augments it in one pass.

        Raises:
            ValueError: `augment` gave another number of samples.
        """
        rng = np.random.default_rng([self._seed, stable(blocks.part), turn, number])
        given = cols.apply(chunk, locked)
        made = self._recipe.augment(given, rng)
        return checked(made, cols.rows(chunk), "augment", self._whole)

    def finished(self, chunk: Columns) -> Columns:
        """The chunk on the device, as steps see it; items that collate puts together stay here."""
        if self._whole:
            return cols.apply(chunk, as_numpy)
        moved = on_device(chunk, self._device, self._copies)
        if self._features.there:
            return self._features.of(moved)
        return moved


class LengthBuckets:
    """Sorts chunks by the lengths of their samples."""

    def __init__(self, data: Data, batch_size: int | str) -> None:
        size = batch_size if isinstance(batch_size, int) else USUAL
        self._group = BATCHES * size
        self._by = data.arrangement.buckets
        self._form = data.form or ItemForm()

    def sorted(self, chunk: Columns, drawn: np.random.Generator) -> Columns:
        """The chunk in groups of similar lengths, which come in a random order."""
        return taken(chunk, bucketed(self._lengths(chunk), self._group, drawn))

    def _lengths(self, chunk: Columns) -> Any:
        """The length of each sample.

        Raises:
            ValueError: there is no such column, or its values have no lengths.
        """
        named = cols.named(chunk)
        if callable(self._by):
            kept = cols.apply(chunk, as_numpy)
            form = self._form.of(kept)
            of_parts = dict(zip(named, cols.parts(kept), strict=True))
            return np.array([self._by(item) for item in form.items(of_parts)])
        if self._by not in named:
            raise ValueError(
                f"buckets={self._by!r} must name a column; there are {', '.join(map(str, named))}"
            )
        column = as_numpy(named[self._by])
        if isinstance(column, Ragged):
            return column.lengths
        if column.ndim == 1:
            return column
        return np.full(len(column), column.shape[1])


class Features:
    """`Recipe.features` over whole chunks, in pieces, without gradients.

    `there`: whether the recipe has a featurizer. `ready`: whether chunks may be made in another
    thread. They may only after the first one: that call may build a model and draw random numbers,
    which it does under the study's seed.
    """

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.there = overrides(recipe, "features")
        self.ready = not self.there
        self._recipe = recipe
        self._seed = seed
        self._device = device

    def of(self, chunk: Columns) -> Columns:
        """The columns that steps see, on the device.

        Raises:
            ValueError: there are more or fewer samples than before. Or the same samples gave two
                results, which is noticed at the first chunk.
        """
        if not self.ready:
            self._begin(cols.cut(chunk, 0, PIECE))
        pieces = []
        for start in range(0, cols.rows(chunk), PIECE):
            piece = cols.cut(chunk, start, start + PIECE)
            pieces.append(self._piece(piece))
        if len(pieces) == 1:
            return pieces[0]
        return cols.combine(pieces, torch.cat)

    def _begin(self, piece: Columns) -> None:
        """Make the first piece twice, and compare the results."""
        with Rng(self._seed, self._device):
            one = self._piece(piece)
            before = torch.get_rng_state()
            other = self._piece(piece)
            drew = not torch.equal(before, torch.get_rng_state())
        same = all(map(torch.equal, cols.parts(one), cols.parts(other)))
        if drew or not same:
            raise ValueError(
                "features must give the same for the same samples: "
                "put its model into evaluation mode, draw nothing"
            )
        self.ready = True

    def _piece(self, piece: Columns) -> Columns:
        """What the featurizer makes of some samples."""
        rows = cols.rows(piece)
        with torch.no_grad():
            made = cols.form(self._recipe.features(piece))
            made = cols.apply(made, self._placed)
        got = {len(column) for column in cols.parts(made)}
        if got != {rows}:
            raise ValueError(
                "features must return columns with as many samples as it got, "
                f"{rows}; got {sorted(got)}"
            )
        return made

    def _placed(self, column: object) -> Tensor:
        """The column as a tensor on the device, without gradients."""
        return torch.as_tensor(column).detach().to(self._device)


class ChunkCache:
    """Prepared chunks by shard, within a limit of bytes.

    Room is made by dropping the shard used longest ago. Several streams can share a cache: each
    has a view of it, made by `of`.
    """

    def __init__(self, limit: float) -> None:
        self._limit = [limit]  # a list, so that all views share it
        self._key = ""  # begins the names of this view's shards
        self._held: OrderedDict[str, dict[int, Columns]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = Lock()

    def of(self, key: object) -> ChunkCache:
        """A view of the same cache, for data that is prepared in another way."""
        other = copy(self)
        other._key = repr(key)
        return other

    @property
    def total(self) -> int:
        """Bytes of all chunks."""
        return sum(self._sizes.values())

    def get(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk, if it is here."""
        name = self._key + shard
        with self._lock:
            if name not in self._held:
                return None
            self._held.move_to_end(name)
            return self._held[name].get(number)

    def pop(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk, if it is here; it is kept no longer."""
        name = self._key + shard
        with self._lock:
            chunk = self._held.get(name, {}).pop(number, None)
            if chunk is not None:
                self._sizes[name] -= cols.nbytes(chunk)
        return chunk

    def shrink(self) -> bool:
        """Drop all chunks, and keep half as much from now on; returns whether there were any."""
        with self._lock:
            if not self.total:
                return False
            self._limit[0] = self.total / 2
            self._held.clear()
            self._sizes.clear()
        return True

    def share(self, parts: int) -> None:
        """Keep to such a part of the limit from now on; what is beyond is dropped."""
        with self._lock:
            self._limit[0] /= parts
            while not self._fits(0):
                oldest, _ = self._held.popitem(last=False)
                self._sizes.pop(oldest, None)

    def drop(self, shard: ShardId) -> None:
        """Drop the shard's chunks."""
        name = self._key + shard
        with self._lock:
            self._held.pop(name, None)
            self._sizes.pop(name, None)

    def put(self, shard: ShardId, number: int, chunk: Columns) -> None:
        """Keep the chunk if there is room, or other shards can make room.

        A shard that is larger than the limit is kept in part.
        """
        size = cols.nbytes(chunk)
        name = self._key + shard
        with self._lock:
            held = self._held.setdefault(name, {})
            self._held.move_to_end(name)
            if number in held:
                return
            while not self._fits(size) and len(self._held) > 1:
                oldest, _ = self._held.popitem(last=False)
                self._sizes.pop(oldest, None)
            if self._fits(size):
                held[number] = chunk
                self._sizes[name] = self._sizes.get(name, 0) + size

    def _fits(self, size: int) -> bool:
        """Whether there is room for so many bytes."""
        return self.total + size <= self._limit[0]


# -- columns of chunks -------------------------------------------------------------------------


def taken(chunk: Columns, order: Order) -> Columns:
    """The chunk's samples in another order."""
    index = torch.from_numpy(order)

    def reordered(column: Any) -> Any:
        if isinstance(column, Tensor):
            return column[index.to(column.device)]
        return column[order]

    return cols.apply(chunk, reordered)


def locked(column: Any) -> Any:
    """The column as an array that cannot be written to, so that a kept chunk stays as it was."""
    if isinstance(column, Ragged):
        return column.locked()
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def copied(column: Any) -> Any:
    """The column in memory of its own."""
    if isinstance(column, Tensor):
        return column.clone()
    return column.copy()


def joined(columns: list[Any]) -> Any:
    """The pieces of one column, one after the other."""
    if isinstance(columns[0], Tensor):
        return torch.cat(columns)
    if any(isinstance(column, Ragged) for column in columns):
        return Ragged.joined(columns)
    return np.concatenate(columns)


def as_numpy(column: Any) -> Any:
    """The column in main memory, as an array or a `Ragged`."""
    if isinstance(column, Ragged):
        return column
    return np.asarray(column)


def tensor(column: Any) -> Tensor:
    """The column as a tensor: a tensor stays where it is, an array becomes one in main memory."""
    if isinstance(column, Tensor):
        return column
    array = np.asarray(column)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def _kept(column: Any, name: Any) -> Any:
    """A column of items: an array or a `Ragged`."""
    return as_numpy(as_column(column, name))


def checked(made: Any, rows: int, hook: str, whole: bool = False) -> Columns:
    """What a recipe's hook returned, as columns. `whole`: of items that collate puts together.

    Raises:
        ValueError: they do not have so many samples.
    """
    columns = cols.form(made)
    if whole:
        made = {name: _kept(column, name) for name, column in cols.named(columns).items()}
        columns = made if isinstance(columns, dict) else tuple(made.values())
    got = {len(column) for column in cols.parts(columns)}
    if got != {rows}:
        raise ValueError(
            f"{hook} must return columns with as many samples as it got, {rows}; got {sorted(got)}"
        )
    return columns


def on_device(chunk: Columns, device: torch.device, copies: Any) -> Columns:
    """The chunk as tensors on the device. `copies`: the CUDA stream for copies; else None."""
    chunk = cols.apply(chunk, tensor)
    if copies is None:
        if device.type == "cpu":
            return chunk
        return cols.apply(chunk, lambda column: column.to(device))
    with torch.cuda.stream(copies):
        chunk = cols.apply(chunk, lambda column: column.pin_memory().to(device, non_blocking=True))
    copies.synchronize()
    # The memory may be used again only when training, on the main stream, is done with it.
    training = torch.cuda.default_stream(device)
    for column in cols.parts(chunk):
        column.record_stream(training)
    return chunk
