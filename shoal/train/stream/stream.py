"""A slot's data: prepared once, kept in memory up to a limit, offered as chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter

import torch

from shoal.core.cluster import ShardId, own_name
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.settings import FOLD, PART, DataKey, seen_by
from shoal.train.stream.ahead import EarlyPass, PassChunks, SideThread
from shoal.train.stream.blocks import (
    ONCE,
    Blocks,
    UnreadError,
    as_numpy,
    kept_name,
    lasting,
    mixes,
)
from shoal.train.stream.cache import ChunkCache
from shoal.train.stream.feed import Asked, Feed, FeedClient, PassOrder
from shoal.train.stream.making import ChunkMaker
from shoal.train.stream.orders import Chunks, Lots, PassOrders, versions, without


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
        self._own = own_name if recipe.recipe_name else ShardId
        self._seed = seed
        self._cache = memory_gb
        self._feed = FeedClient(feed, data)
        self._maker = ChunkMaker(recipe, data, seed, device)
        self._orders = PassOrders(data, seed)
        self._lots = Lots(data, seed, device)
        self._thread = SideThread()
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
        at = skip
        shard = self._own(shard)
        name = self._orders.name(shuffle, turn)
        early = self._early
        self._early = None
        if skip or early is None or not early.fits(shard, turn, name):
            early = EarlyPass(self._orders.of(shard, turn, name), None)
        order = early.order
        if then is not None:
            following = self._orders.name(shuffle, then[1])
            after = self._orders.of(self._own(then[0]), then[1], following)
            order = replace(order, then=after)
        numbers = list(order.numbers)
        while skip and skip >= order.blocks.rows(numbers[0]):
            skip -= order.blocks.rows(numbers.pop(0))

        order = replace(order, numbers=numbers)
        chunks = self._ahead(order, partial(self._chunk, order, turn), early.first)
        if skip:
            chunks = without(chunks, skip)
        return self._lots.of(chunks, shard, turn, at)

    def made(
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
        blocks = self._orders.blocks(self._own(shard), lasting(shuffle))
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
        part = self._own(part)
        order = self._orders.scored(part, shuffle)
        chunks = self._ahead(order, partial(self._plain, order))
        return self._lots.of(chunks, part, 0, 0)

    # -- a pass --------------------------------------------------------------------------------

    def _ahead(
        self,
        order: PassOrder,
        make: Callable[[int], Columns],
        first: Future[Columns] | None = None,
    ) -> Chunks:
        """The chunks of a pass. `first`: the first one, if it was begun early."""
        blocks = order.blocks
        # To make a chunk of a training pass takes time even if it is in the cache.
        always = self.augments and order.turn is not None
        may_be_fed = self._takes_work or always

        def at_once(number: int) -> bool:
            at_hand = not always and self._is_kept(blocks.name, number)
            return at_hand or not self._maker.is_ready

        def reads_here(number: int) -> bool:
            if not self._data.serial or self._is_kept(blocks.name, number):
                return False
            return not (may_be_fed and self._feed.answered)

        coming = PassChunks(
            blocks,
            order.numbers,
            make,
            self._thread,
            at_once=at_once,
            reads_here=reads_here,
            begun=first,
            go_on=partial(self._begin_early, order.then),
        )
        with closing(coming.chunks()) as chunks:
            for chunk in chunks:
                yield from self._guarded(blocks.name, chunk)

    def _is_kept(self, part: ShardId, number: int) -> bool:
        """Whether the prepared chunk is in the cache."""
        return self._cache.get(part, number) is not None

    def _begin_early(self, order: PassOrder | None) -> None:
        """Begin the first chunk of the pass that follows, beside training."""
        if order is None or self._data.serial or not self._maker.is_ready:
            return
        number = order.numbers[0]
        if self.augments or not self._is_kept(order.blocks.name, number):
            make = partial(self._chunk, order, order.turn or 0)
            self._early = EarlyPass(order, self._thread.submit(make, number))

    def _guarded(self, part: ShardId, chunk: Columns) -> Iterator[Columns]:
        """The chunk. Once it was used, make sure that no step wrote to it.

        It may be in the cache, and other trials may use it, too.

        Raises:
            ValueError: a step wrote to it.
        """
        before = versions(chunk)
        begin = perf_counter()
        try:
            yield chunk
            self._feed.trained(perf_counter() - begin, cols.rows(chunk))
        finally:
            is_changed = versions(chunk) != before
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
        chunk = self._plain(order.plain(self._is_kept), number)
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
        self,
        blocks: Blocks,
        number: int,
        turn: int,
        shuffle: str,
        block: Columns | None = None,
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
        self._made: dict[DataKey, Stream] = {}

    def share(self, parts: int) -> None:
        """Keep no more chunks than such a part of the memory for them holds."""
        self._cache.share(parts)

    def handed(self, asked: Asked) -> Columns | None:
        """What is kept to augment this chunk in each pass, for a feed that will keep it instead."""
        key, (part, number, turn, shuffle) = asked
        if turn is None or not self._takes_work:
            return None
        return self._cache.of(key).pop(kept_name(part, lasting(shuffle)), number)

    def shrink(self) -> bool:
        """Drop the kept chunks because memory ran out, and keep fewer from now on.

        Returns whether there were any.
        """
        return self._cache.shrink()

    def of(self, key: DataKey = ()) -> Stream:
        """The stream of trials with this key."""
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def _make(self, key: DataKey) -> Stream:
        """A new stream, of the recipe as trials with this key see it."""
        feed = self._feed
        if feed is not None:
            feed = feed.of(key)
        cache = self._cache.of(key)
        data = self._data.of_recipe(str(dict(key).get(PART)))
        if data.arrangement.folds is not None:
            data = data.of_fold(dict(key)[FOLD])
        recipe = seen_by(self._recipe, key)
        return self._stream(recipe, data, memory_gb=cache, feed=feed)


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
