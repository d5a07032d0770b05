"""A slot's data, pass by pass: chunks in their order, made ahead and kept, and cut into batches."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch

from shoal.core.cluster import ShardId, own_name
from shoal.core.trial import Samples, Seconds
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import stable, streams
from shoal.train.data.collate import Collator, as_lot
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.private import writes
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.settings import FOLD, PART, DataKey, seen_by
from shoal.train.stream.chunks import (
    ChunkCache,
    Features,
    LengthBuckets,
    Order,
    as_numpy,
    copy_column,
    hook_columns,
    join_columns,
    locked,
    on_device,
    take_rows,
)

# A chunk in its stream: shard, number, turn (None: it is the same in all passes), shuffle.
Key = tuple[ShardId, int, int | None, str]
ChunkKey = tuple[DataKey, Key]  # a chunk of one of a slot's streams
# What is drawn: the order within a shard, or the order of one pass.
ORDER = 1
EACH = 2
BUCKETS = 5
ONCE = "once"
DRAWS = "drawn:"  # begins an order that the data draws for one pass
# Ends an order, before the number of the only pass that has these samples: see `Data.of_pass`.
OF_PASS = "@"
TIMED = 16  # chunks by which the time that training takes is estimated
READING = 2  # parts whose blocks are kept at hand
Chunks = Generator[Columns, None, None]
Batch = tuple[Columns, int]  # with its number of samples


class Stream:
    """Chunks of one recipe's data, on the device.

    The samples of a shard are put in a random order once, a function of (seed, shard). Its chunks
    are consecutive blocks in that order. shuffle="each" draws for every pass, from (seed, shard,
    turn), an order of the chunks and of the samples inside each.

    `augment` draws from `default_rng([seed, stable(shard), turn, number of the chunk])`. Steps see
    what `features` makes of the result. `memory_gb`: for the chunks that are kept, or where to keep
    them. `feed`: where chunks are asked for that take work to make.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        *,
        seed: int,
        device: torch.device,
        memory_gb: float | ChunkCache,
        feed: Feed | None = None,
    ) -> None:
        if not isinstance(memory_gb, ChunkCache):
            memory_gb = ChunkCache(memory_gb * 2**30)
        self._data = data
        # gives a part's name in the data of its recipe
        self._name_of = own_name if recipe.recipe_name else ShardId
        self._seed = seed
        self._cache = memory_gb
        self._feed = FeedClient(feed, data)
        self._maker = ChunkMaker(recipe, data, seed, device)
        self._orders = PassOrders(data, seed)
        self._lots = Lots(data, seed, device)
        self._early: EarlyPass | None = None
        self.augments = self._maker.augments
        # whether passes in one order may see unlike batches
        self.varies = self.augments or self._lots.varies or self._orders.drawn
        # to read and prepare a block
        self._takes_work = self._maker.prepares or not data.in_memory

    def chunks(
        self,
        shard: ShardId,
        turn: int,
        shuffle: str = "once",
        skip: int = 0,
        then: tuple[ShardId, int] | None = None,
    ) -> Chunks:
        """One pass over a training shard, without its first `skip` samples.

        The next chunk is made while the one before is in use. `then`: the shard and the turn of the
        pass that probably follows; its first chunks are begun before this pass is over.

        Raises:
            DataError: the shard cannot be read.
        """
        begin = skip
        shard = self._name_of(shard)
        name = self._orders.name(shuffle, turn)
        early = self._early
        self._early = None
        if skip or early is None or not early.fits(shard, turn, name):
            early = EarlyPass(self._orders.of(shard, turn, name), None)
        order = early.order
        if then is not None:
            next_name = self._orders.name(shuffle, then[1])
            next_order = self._orders.of(self._name_of(then[0]), then[1], next_name)
            order = replace(order, then=next_order)
        numbers = list(order.numbers)
        while skip and skip >= order.blocks.rows(numbers[0]):
            skip -= order.blocks.rows(numbers.pop(0))

        order = replace(order, numbers=numbers)
        chunks = self._ahead(order, partial(self._chunk, order, turn), early.first)
        if skip:
            chunks = without(chunks, skip)
        return self._lots.of(chunks, shard, turn, begin)

    def array_chunk(
        self,
        shard: ShardId,
        number: int,
        turn: int | None,
        shuffle: str,
        block: Columns | None = None,
    ) -> Columns:
        """One chunk as NumPy arrays, prepared; for the feeds of other streams.

        With a turn the chunk is also in the order of that pass, and augmented. `block`: the chunk
        as it was prepared elsewhere, to be kept here.

        Raises:
            DataError: the shard cannot be read.
        """
        blocks = self._orders.blocks(self._name_of(shard), lasting(shuffle))
        if block is not None:
            self._keep(blocks, number, block)
        make = partial(self._maker.prepared, blocks, number)
        if turn is not None:
            make = partial(self._varied, blocks, number, turn, shuffle, block)
        try:
            chunk = make()
        except UnreadError:
            blocks.bring(number)
            chunk = make()
        return cols.apply(chunk, as_numpy)

    def validation(self, order: str = ONCE) -> Chunks:
        """All validation samples, prepared, never augmented.

        They are in the order of the data, or in parallel streams: see `Blocks`.

        Raises:
            DataError: a part cannot be read.
        """
        for part in self._data.validation:
            yield from self.validation_part(part, order)

    def validation_part(self, part: ShardId, shuffle: str = ONCE) -> Chunks:
        """The samples of one validation part; see `validation`."""
        part = self._name_of(part)
        order = self._orders.scored(part, shuffle)
        chunks = self._ahead(order, partial(self._plain, order))
        return self._lots.of(chunks, part, 0, 0)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        """The thread beside training in which chunks are made; torch may use as many there."""
        count = torch.get_num_threads()
        return ThreadPoolExecutor(1, "shoal-chunks", torch.set_num_threads, (count,))

    # -- a pass --------------------------------------------------------------------------------

    def _ahead(
        self, order: PassOrder, make: Callable[[int], Columns], first: Future[Columns] | None = None
    ) -> Chunks:
        """The chunks of a pass. The next one is begun when a chunk is handed out.

        `make` makes a chunk. `first`: the first one, if it was begun early.
        """
        blocks, numbers = order.blocks, order.numbers
        # To make a chunk of a training pass takes time even if it is in the cache.
        varies = self.augments and order.turn is not None
        may_be_fed = self._takes_work or varies
        pending: list[Future[Columns]] = []  # the last two that were begun

        def begin(number: int) -> Callable[[], Columns]:
            """Begin to make a chunk; returns what waits for it and gives it."""
            nonlocal pending
            is_cached = not varies and self._is_cached(blocks.name, number)
            if len(numbers) == 1 or is_cached or not self._maker.is_ready:
                return partial(make, number)  # when it is asked for, in the thread that trains
            # What a chunk is made of may have to be read in the thread that trains.
            is_fed = may_be_fed and self._feed.answered
            if self._data.serial and not is_fed and not self._is_cached(blocks.name, number):
                blocks.bring(number)
            future = self._thread.submit(make, number)
            pending = [*pending[-1:], future]
            return future.result

        def finished(result: Callable[[], Columns], number: int) -> Columns:
            """The chunk. If it could not be made for want of the data, that is read here."""
            try:
                return result()
            except UnreadError:
                wait(pending)  # one chunk is prepared at a time
                blocks.bring(number)
                return make(number)

        try:
            next_result = begin(numbers[0]) if first is None else first.result
            for number, following in zip_longest(numbers, numbers[1:]):
                this_result = next_result
                if following is not None:
                    next_result = begin(following)
                chunk = finished(this_result, number)
                if following is None:
                    self._begin_early(order.then)
                yield from self._guarded(blocks.name, chunk)
        finally:
            # If the caller stops early, nothing may go on beside what comes next.
            wait(pending)

    def _is_cached(self, part: ShardId, number: int) -> bool:
        """Whether the prepared chunk is in the cache."""
        return self._cache.get(part, number) is not None

    def _begin_early(self, order: PassOrder | None) -> None:
        """Begin the first chunk of the pass that follows, beside training."""
        if order is None or self._data.serial or not self._maker.is_ready:
            return
        number = order.numbers[0]
        if self.augments or not self._is_cached(order.blocks.name, number):
            make = partial(self._chunk, order, order.turn or 0)
            self._early = EarlyPass(order, self._thread.submit(make, number))

    def _guarded(self, part: ShardId, chunk: Columns) -> Iterator[Columns]:
        """Yield the chunk, and make sure after its use that no step wrote to it.

        It may be in the cache, and other trials may use it, too.

        Raises:
            ValueError: a step wrote to it.
        """
        versions_before = versions(chunk)
        begin = perf_counter()
        try:
            yield chunk
            self._feed.trained(perf_counter() - begin, cols.rows(chunk))
        finally:
            is_changed = versions(chunk) != versions_before
            if is_changed:
                self._cache.drop(part)
        if is_changed:
            raise ValueError(
                "a step wrote into its batch, which trials share: "
                "make a new tensor (x = x / 255, not x /= 255)"
            )

    # -- a chunk -------------------------------------------------------------------------------

    def _chunk(self, order: PassOrder, turn: int, number: int) -> Columns:
        """A chunk of a training pass, as it is trained on."""
        blocks = order.blocks
        if self.augments:
            make = partial(self._varied, blocks, number, turn, order.shuffle)
            return self._maker.finished(self._feed.chunk(order, number, make))
        chunk = self._plain(order.plain(self._is_cached), number)
        if mixes(order.shuffle):
            return self._maker.mixed(chunk, blocks, turn, number)
        return chunk

    def _plain(self, order: PassOrder, number: int) -> Columns:
        """The prepared chunk on the device, out of the cache or kept there."""
        blocks = order.blocks
        chunk = self._cache.get(blocks.name, number)
        if chunk is not None:
            return chunk
        if self._takes_work:
            make = partial(self._maker.prepared, blocks, number)
            chunk = self._feed.chunk(order, number, make)
        else:
            chunk = self._maker.prepared(blocks, number)
        chunk = self._maker.finished(chunk)
        self._keep(blocks, number, chunk)
        return chunk

    def _keep(self, blocks: Blocks, number: int, chunk: Columns) -> None:
        """Keep the prepared chunk, if other passes see it, too."""
        if blocks.lasts:
            self._cache.put(blocks.name, number, chunk)

    def _varied(
        self, blocks: Blocks, number: int, turn: int, shuffle: str, block: Columns | None = None
    ) -> Columns:
        """The chunk in the order of a pass, augmented. What it is made of is kept."""
        chunk = block
        if chunk is None:
            chunk = self._cache.get(blocks.name, number)
        if chunk is None:
            chunk = self._maker.prepared(blocks, number)
            self._keep(blocks, number, chunk)
        if mixes(shuffle):
            chunk = self._maker.mixed(chunk, blocks, turn, number)
        return self._maker.augmented(chunk, blocks, turn, number)


class Streams:
    """A slot's streams, one for each way in which its trials' data is prepared.

    They share the memory for chunks; for the arguments see `Stream`.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        *,
        seed: int,
        device: torch.device,
        memory_gb: float,
        feed: Feed | None = None,
    ) -> None:
        self._recipe = recipe
        self._cache = ChunkCache(memory_gb * 2**30)
        self._takes_work = overrides(recipe, "prepare") or not data.in_memory
        self._feed = feed
        self._data = data
        self._stream = partial(Stream, seed=seed, device=device)
        self._streams: dict[DataKey, Stream] = {}

    def share(self, parts: int) -> None:
        """Divide the memory for chunks by `parts`, and drop what is beyond."""
        self._cache.share(parts)

    def pop_block(self, chunk_key: ChunkKey) -> Columns | None:
        """The cached block of which this chunk is made, for a feed that keeps it from now on."""
        key, (part, number, turn, shuffle) = chunk_key
        if turn is None or not self._takes_work:
            return None
        return self._cache.of(key).pop(cache_name(part, lasting(shuffle)), number)

    def shrink(self) -> bool:
        """Drop the kept chunks because memory ran out, and keep fewer from now on.

        Returns whether there were any.
        """
        return self._cache.shrink()

    def of(self, key: DataKey = ()) -> Stream:
        """The stream of trials with this key."""
        if key not in self._streams:
            feed = self._feed
            if feed is not None:
                feed = feed.of(key)
            cache = self._cache.of(key)
            data = self._data.of_recipe(str(dict(key).get(PART)))
            if data.arrangement.folds is not None:
                data = data.of_fold(dict(key)[FOLD])
            recipe = seen_by(self._recipe, key)
            self._streams[key] = self._stream(recipe, data, memory_gb=cache, feed=feed)
        return self._streams[key]


def feeding(recipe: Recipe, data: Data, seed: int, memory_gb: float) -> Stream:
    """The stream of `feeding_streams` for trials without a data key."""
    return feeding_streams(recipe, data, seed, memory_gb).of()


def feeding_streams(recipe: Recipe, data: Data, seed: int, memory_gb: float) -> Streams:
    """Streams that make chunks for others, on one core, in main memory.

    `memory_gb`: for blocks that were read and prepared, if the data is augmented in each pass. The
    streams keep no finished chunks, and no copies of what is in memory.
    """
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if data.in_memory and not overrides(recipe, "prepare"):
        memory_gb = 0.0
    return Streams(recipe, data, seed=seed, device=device, memory_gb=memory_gb)


# -- a block, and what the recipe makes of it -------------------------------------------------


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
        self._blocks: dict[int, Columns] = {}  # that were read and not yet taken
        self._seconds: dict[int, Seconds] = {}  # that reading each of them took
        self.part = part
        self.order = order
        self.name = cache_name(part, order)
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
        return self._raw is None and number not in self._blocks

    def bring(self, number: int) -> None:
        """Read what the block is made of, in this thread.

        Raises:
            DataError: the part cannot be read.
        """
        if not self.lacks(number):
            return
        begin = perf_counter()
        if self._data.by_rows:
            self._blocks[number] = self._read(number)
        else:
            self._raw = self._data.read(self.part)
        self._seconds[number] = perf_counter() - begin

    def forget(self, number: int) -> Seconds:
        """Drop what was read for the block; returns the seconds that reading it took."""
        self._blocks.pop(number, None)
        return self._seconds.pop(number, 0.0)

    def _read(self, number: int) -> Columns:
        """Read one block."""
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
        if number in self._blocks:
            return self._blocks.pop(number)
        if self._data.by_rows:
            return self._read(number)
        self.bring(number)
        chosen = self._chosen(number)
        assert self._raw is not None, "it was just brought"
        return cols.apply(self._raw, lambda column: column[chosen])


def draw(kind: int, seed: int, shard: ShardId, *more: int) -> np.random.Generator:
    """A generator for one of the draws (`ORDER`, `EACH`) of a shard."""
    return np.random.default_rng([kind, seed, stable(shard), *more])


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
            prepared = self._recipe.prepare(chunk)
            chunk = hook_columns(prepared, cols.rows(chunk), "prepare", self._whole)
        if self._buckets is None or not blocks.trained:
            return chunk
        return self._buckets.sorted(chunk, draw(BUCKETS, self._seed, blocks.part, number))

    def mixed(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk's samples in the random order of one pass."""
        rng = draw(EACH, self._seed, blocks.part, turn, number + 1)
        mixed = take_rows(chunk, rng.permutation(cols.rows(chunk)))
        if self._buckets is None:
            return mixed
        return self._buckets.sorted(mixed, rng)

    def augmented(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk as the recipe augments it in one pass.

        Raises:
            ValueError: `augment` gave another number of samples.
        """
        rng = np.random.default_rng([self._seed, stable(blocks.part), turn, number])
        augmented = self._recipe.augment(cols.apply(chunk, locked), rng)
        return hook_columns(augmented, cols.rows(chunk), "augment", self._whole)

    def finished(self, chunk: Columns) -> Columns:
        """The chunk on the device, as steps see it; items that collate puts together stay here."""
        if self._whole:
            return cols.apply(chunk, as_numpy)
        moved = on_device(chunk, self._device, self._copies)
        if self._features.exists:
            return self._features.of(moved)
        return moved


def cache_name(part: ShardId, order: str) -> ShardId:
    """The name in a cache of what is made of the part's blocks in that order."""
    if order == ONCE:
        return part
    return ShardId(f"{part}/{order}")


def lasting(shuffle: str) -> str:
    """The order of chunks in a cache, for passes in this order."""
    kind, *turn = shuffle.split(OF_PASS)
    return OF_PASS.join([ONCE if kind == "each" else kind, *turn])


def mixes(shuffle: str) -> bool:
    """Whether each pass of this order has the samples in an order of its own."""
    return shuffle.partition(OF_PASS)[0] == "each"


class UnreadError(Exception):
    """A block was not read yet, and only the thread that trains may read the data."""


# -- the order of a pass ------------------------------------------------------------------


class PassOrders:
    """The order of the chunks of each pass of one stream.

    `drawn`: each pass has samples, or an order of them, of its own.
    """

    def __init__(self, data: Data, seed: int) -> None:
        self._data = data
        self._seed = seed
        self._blocks: OrderedDict[tuple[ShardId, str], Blocks] = OrderedDict()
        self._dealt = data.arrangement.reshuffles
        self._drawn = data.arrangement.draws is not None
        self.drawn = self._dealt or self._drawn or data.anew

    def name(self, shuffle: str, turn: int) -> str:
        """The order of a pass: `shuffle`, unless each pass has an order or samples of its own."""
        order = f"{DRAWS}{turn}" if self._drawn else shuffle
        if self._data.anew or (self._dealt and turn):
            order += f"{OF_PASS}{turn}"
        return order

    def of(self, shard: ShardId, turn: int, shuffle: str) -> PassOrder:
        """The chunks of a training pass."""
        blocks = Blocks(self._data, shard, self._seed, lasting(shuffle))
        numbers = list(range(blocks.count))
        if mixes(shuffle):
            rng = draw(EACH, self._seed, shard, turn)
            numbers = rng.permutation(blocks.count).tolist()
        return PassOrder(blocks, numbers, turn, shuffle)

    def scored(self, part: ShardId, order: str) -> PassOrder:
        """The chunks of a validation part."""
        blocks = Blocks(self._data, part, None, order)
        return PassOrder(blocks, range(blocks.count), None, order)

    def blocks(self, part: ShardId, order: str) -> Blocks:
        """The blocks of the part; those of the last few parts stay."""
        key = (part, order)
        if key not in self._blocks:
            seed = None
            if part in self._data.shards:
                seed = self._seed
            self._blocks[key] = Blocks(self._data, part, seed, order)
            while len(self._blocks) > READING:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]


@dataclass(frozen=True, slots=True)
class PassOrder:
    """The chunks of a pass, by number, in their order."""

    blocks: Blocks
    numbers: Sequence[int]
    turn: int | None  # None: the chunks are the same in all passes
    shuffle: str
    then: PassOrder | None = None  # the pass that probably follows
    # whether a chunk is in the cache; None: none is
    is_cached: Callable[[ShardId, int], bool] | None = None

    def keys(self, number: int, more: int) -> list[Key]:
        """The key of a chunk, and of at most so many that will be wanted after it."""
        place = self.numbers.index(number)
        first = self._key(number)
        return [first, *self._wanted(self.numbers[place + 1 :], more)]

    def _wanted(self, numbers: Sequence[int], most: int) -> list[Key]:
        """The keys of at most so many of these chunks, and of those of the pass that follows."""
        name = self.blocks.name
        keys = [
            self._key(number)
            for number in numbers[:most]
            if self.is_cached is None or not self.is_cached(name, number)
        ]
        left = most - len(numbers)
        if self.then is not None and left > 0:
            keys += self.then._wanted(self.then.numbers, left)
        return keys

    def _key(self, number: int) -> Key:
        return (self.blocks.part, number, self.turn, self.shuffle)

    def plain(self, is_cached: Callable[[ShardId, int], bool]) -> PassOrder:
        """The chunks in this order, but as they are in all passes."""
        then = None if self.then is None else self.then.plain(is_cached)
        shuffle = lasting(self.shuffle)
        return replace(self, turn=None, shuffle=shuffle, then=then, is_cached=is_cached)


@dataclass(frozen=True, slots=True)
class EarlyPass:
    """A pass that was begun before the pass before it was over."""

    order: PassOrder
    first: Future[Columns] | None  # its first chunk, if that was begun

    def fits(self, shard: ShardId, turn: int, shuffle: str) -> bool:
        """Whether this is the pass over that shard, with that number and order."""
        order = self.order
        return (order.blocks.part, order.turn, order.shuffle) == (shard, turn, shuffle)


def without(chunks: Chunks, skip: int) -> Chunks:
    """The chunks; the first one without so many samples."""
    with closing(chunks):
        for chunk in chunks:
            yield cols.cut(chunk, skip, cols.rows(chunk))
            skip = 0


def versions(chunk: Columns) -> list[int]:
    """How often each column's tensor was written to."""
    tensors = [column for column in cols.parts(chunk) if isinstance(column, torch.Tensor)]
    return [writes(tensor) for tensor in tensors]


# -- chunks that another process makes ----------------------------------------------------


class Feed(Protocol):
    """Where a stream gets chunks that other streams use, too."""

    ahead: Samples  # that are to be prepared beyond the chunk asked for

    def of(self, key: DataKey) -> Feed | None:
        """Where a stream of trials with this data key asks; None: it makes its chunks itself."""
        ...

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """The chunk of the first key, as `Stream.array_chunk` gives it; None: the caller makes it.

        The chunks of the other keys are wanted next, in this order. `trained`: seconds per sample
        of the training on the chunks before; None: there was none yet.
        """
        ...

    def made(self, key: Key, seconds: Seconds) -> None:
        """The slot made this chunk itself, in so many seconds per sample."""
        ...


class FeedClient:
    """Asks a feed for chunks, and makes what the feed does not have. Without a feed it makes all.

    `answered`: whether there is a feed that had the chunk it was asked for last.
    """

    def __init__(self, feed: Feed | None, data: Data) -> None:
        self._feed = feed
        self._data = data
        self.answered = feed is not None
        # seconds that training on each of the last chunks took, and their samples
        self._trained: deque[tuple[Seconds, int]] = deque(maxlen=TIMED)

    def trained(self, seconds: Seconds, samples: int) -> None:
        """A chunk of so many samples was in use for so long."""
        self._trained.append((seconds, samples))

    def chunk(self, order: PassOrder, number: int, make: Callable[[], Columns]) -> Columns:
        """The chunk from the feed, if that has it; otherwise `make` makes it.

        Raises:
            UnreadError: the feed does not have it, and this thread may not read the data.
        """
        if self._feed is None:
            return make()
        blocks = order.blocks
        if number not in blocks.missed:
            more = int(-(-self._feed.ahead // self._data.chunk))
            from_feed = self._feed.chunk(order.keys(number, more), self._seconds())
            self.answered = from_feed is not None
            if from_feed is not None:
                blocks.forget(number)
                return from_feed
            if self._data.serial and blocks.lacks(number):
                blocks.missed.add(number)
                raise UnreadError
        begin = perf_counter()
        chunk = make()
        seconds = perf_counter() - begin + blocks.forget(number)
        self._feed.made(order.keys(number, 0)[0], seconds / blocks.rows(number))
        return chunk

    def _seconds(self) -> Seconds | None:
        """Seconds per sample of the training on the last chunks; None if there was none."""
        trained = tuple(self._trained)  # at once, for two threads use it
        samples = sum(count for _, count in trained)
        if not samples:
            return None
        return sum(seconds for seconds, _ in trained) / samples


# -- batches ------------------------------------------------------------------------------


class Lots:
    """Makes lots of the chunks of data whose batches are made by collate.

    `varies`: two passes in one order may see unlike batches.
    """

    def __init__(self, data: Data, seed: int, device: torch.device) -> None:
        self._collator: Collator | None = None
        self._scored: Collator | None = None
        self._validation = data.validation
        if data.collates:
            scored = data.scored_collate or data.collate
            self._collator = Collator(data.form, data.collate, seed, device)
            form = data.scored_form or data.form
            self._scored = Collator(form, scored, seed, device)
        self.varies = self._collator is not None and self._collator.may_draw

    def of(self, chunks: Chunks, part: ShardId, turn: int, start: int) -> Chunks:
        """The chunks, of which the first begins at that sample of the pass; as lots if need be."""
        collator = self._collator
        if part in self._validation:
            collator = self._scored
        if collator is None:
            return chunks
        return _lots(chunks, collator, (stable(part), turn), start)


def _lots(chunks: Chunks, collator: Collator, place: tuple[int, int], start: int) -> Chunks:
    """The chunks as lots, the first of which begins at that sample of the pass."""
    with closing(chunks):
        for chunk in chunks:
            yield as_lot(chunk, collator, place, start)
            start += cols.rows(chunk)


class Batches:
    """Batches of one size, as views of the chunks.

    Samples at the end of a chunk that make no whole batch wait for the next chunk.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._rest: Columns | None = None  # samples that wait

    def of(self, chunk: Columns) -> Iterator[Batch]:
        """The batches that end in this chunk."""
        size = self._size
        count = cols.rows(chunk)
        start = 0
        if self._rest is not None:
            missing = size - cols.rows(self._rest)
            start = min(missing, count)
            head = cols.cut(chunk, 0, start)
            self._rest = cols.combine([self._rest, head], join_columns)
            if cols.rows(self._rest) < size:
                return
            batch = self._rest
            self._rest = None
            yield batch, size

        end = count - (count - start) % size
        for begin in range(start, end, size):
            yield cols.cut(chunk, begin, begin + size), size
        if end < count:
            self._rest = cols.apply(cols.cut(chunk, end, count), copy_column)

    def end(self) -> Batch | None:
        """The smaller batch that is left at the end of the pass; None if there is none."""
        rest = self._rest
        if rest is None:
            return None
        self._rest = None
        return rest, cols.rows(rest)
