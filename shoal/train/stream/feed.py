"""Chunks that another process makes: where a stream asks for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from shoal.core.cluster import ShardId
from shoal.core.trial import Samples, Seconds
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.recipe.settings import DataKey
from shoal.train.stream.blocks import Blocks, UnreadError, lasting

# Of a chunk: shard, number, turn (None: it is the same in all passes), shuffle.
Key = tuple[ShardId, int, int | None, str]
Asked = tuple[DataKey, Key]  # the chunk of which stream
TIMED = 16  # chunks by which the time that training takes is estimated


class Feed(Protocol):
    """Where a stream gets chunks that other streams use, too."""

    ahead: Samples  # that are to be prepared beyond the chunk asked for

    def of(self, key: DataKey) -> Feed | None:
        """Where a stream of trials with this data key asks; None: it makes its chunks itself."""
        ...

    def chunk(self, keys: Sequence[Key], trained: Seconds | None) -> Columns | None:
        """What `Stream.made` gives for the first key; None: the caller has to make it.

        The chunks of the other keys are wanted next, in this order. `trained`: seconds per sample
        of the training on the chunks before; None: there was none yet.
        """
        ...

    def made(self, seconds: Seconds) -> None:
        """The slot made a chunk itself, in so many seconds per sample."""
        ...


def _none_kept(_part: ShardId, _number: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class PassOrder:
    """The chunks of a pass, by number, in their order."""

    blocks: Blocks
    numbers: Sequence[int]
    turn: int | None  # None: the chunks are the same in all passes
    shuffle: str
    then: PassOrder | None = None  # the pass that probably follows
    kept: Callable[[ShardId, int], bool] = _none_kept  # whether a chunk is at hand

    def keys(self, number: int, more: int) -> list[Key]:
        """The key of a chunk, and of at most so many that will be wanted after it."""
        at = self.numbers.index(number)
        first = self._key(number)
        return [first, *self._wanted(self.numbers[at + 1 :], more)]

    def _wanted(self, numbers: Sequence[int], most: int) -> list[Key]:
        """At most so many of these chunks, and of the pass that follows."""
        name = self.blocks.name
        coming = [n for n in numbers[:most] if not self.kept(name, n)]
        keys = [self._key(number) for number in coming]
        left = most - len(numbers)
        if self.then is not None and left > 0:
            keys += self.then._wanted(self.then.numbers, left)
        return keys

    def _key(self, number: int) -> Key:
        return (self.blocks.part, number, self.turn, self.shuffle)

    def plain(self, kept: Callable[[ShardId, int], bool]) -> PassOrder:
        """The same chunks as they are in all passes."""
        then = self.then
        if then is not None:
            then = then.plain(kept)
        shuffle = lasting(self.shuffle)
        return replace(self, turn=None, shuffle=shuffle, then=then, kept=kept)


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
            fed = self._ask(self._feed, order, number)
            if fed is not None:
                blocks.forget(number)
                return fed
            if self._data.serial and blocks.lacks(number):
                blocks.missed.add(number)
                raise UnreadError
        begin = perf_counter()
        chunk = make()
        seconds = perf_counter() - begin + blocks.forget(number)
        self._feed.made(seconds / blocks.rows(number))
        return chunk

    def _ask(self, feed: Feed, order: PassOrder, number: int) -> Columns | None:
        """Ask for the chunk, and say which are wanted after it."""
        more = int(-(-feed.ahead // self._data.chunk))
        fed = feed.chunk(order.keys(number, more), self._seconds())
        self.answered = fed is not None
        return fed

    def _seconds(self) -> Seconds | None:
        """Seconds per sample of the training on the last chunks; None if there was none."""
        took = tuple(self._trained)  # at once, for two threads use it
        samples = sum(count for _, count in took)
        if not samples:
            return None
        return sum(seconds for seconds, _ in took) / samples
