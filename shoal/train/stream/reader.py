"""A pass over a shard from any sample on, in batches of any size; and over several together.

A lane needs this if several processes train it: each reads what it needs for its part of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heapreplace
from math import ceil

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.recipe.seat import share
from shoal.train.stream.chunks import join_columns
from shoal.train.stream.stream import Batch

Chunks = Generator[Columns, None, None]
Open = Callable[[int], Chunks]  # the pass without its first so many samples
# A process's own rows of a batch (None: it has none), their number, and that of all rows.
Part = tuple[Columns | None, int, int]


class Reader:
    """The samples of a pass in order.

    Batches that were taken since the last `keep` stay here, so that a step can be made again.
    """

    def __init__(self, chunks: Open, samples: int) -> None:
        self.samples = samples
        self.at = 0  # samples taken
        self._open = chunks
        self._stream: Chunks | None = None
        self._ahead: list[Columns] = []  # pieces that were read and not taken
        self._taken: list[Columns] = []  # batches since `keep`
        self._kept_at = 0  # the sample at which `_taken` begins
        self._rank, self._width = 0, 1

    def sit(self, rank: int, width: int) -> None:
        """From now on `part` gives the rows of this rank, of so many."""
        self._rank, self._width = rank, width

    def part(self, size: int) -> Part | None:
        """This process's part of the next batch; None at the end of the pass."""
        batch = self.take(size)
        if batch is None:
            return None
        columns, count = batch
        start, stop = share(count, self._width, self._rank)
        if start == stop:
            return None, 0, count
        if stop - start < count:
            columns = cols.cut(columns, start, stop)
        return columns, stop - start, count

    def take(self, size: int) -> Batch | None:
        """The next batch, smaller at the end of the pass; None at its end."""
        size = min(size, self.samples - self.at)
        if size == 0:
            return None
        pieces: list[Columns] = []
        missing = size
        while missing:
            piece = self._piece(missing)
            pieces.append(piece)
            missing -= cols.rows(piece)
        batch = pieces[0]
        if len(pieces) > 1:
            batch = cols.combine(pieces, join_columns)
        self.at += size
        self._taken.append(batch)
        return batch, size

    def _piece(self, most: int) -> Columns:
        """The next samples that lie together, at most so many."""
        if self._ahead:
            piece = self._ahead.pop(0)
        else:
            if self._stream is None:
                self._stream = self._open(self.at)
            piece = next(self._stream)
        rows = cols.rows(piece)
        if rows <= most:
            return piece
        rest = cols.cut(piece, most, rows)
        self._ahead.insert(0, rest)
        return cols.cut(piece, 0, most)

    def keep(self) -> None:
        """Note that the batches so far were trained on for good."""
        self._taken = []
        self._kept_at = self.at

    def seek(self, position: int) -> None:
        """Go on from that sample.

        Nothing is read again if that is the present sample, or the one at the last `keep`.
        """
        if position == self._kept_at:
            self._ahead = self._taken + self._ahead
            self._taken = []
        elif position != self.at:
            self.close()
        self.at = position
        self.keep()

    def end(self) -> None:
        """End the pass.

        Raises:
            ValueError: a step wrote into its batch.
        """
        if self._stream is not None and not self._ahead:
            next(self._stream, None)  # checks that the last chunk was not written to
        self.close()

    def close(self) -> None:
        """Drop what was read. The next batch is read from the present sample on."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._ahead = []
        self._taken = []


class JointReader:
    """The samples of a pass over several shards together.

    Every batch has rows of each shard, in proportion to their sizes: the samples of all shards are
    in the order of how far they are in their own. Rows of a batch are in the order of the shards.

    `passes`: opens the pass over each shard. `sizes`: the samples of each. `reads`: the shard that
    each rank reads; ranks that name the same share its rows. A process alone reads all of them. The
    methods are those of `Reader`.
    """

    def __init__(
        self,
        passes: Mapping[ShardId, Open],
        sizes: Mapping[ShardId, int],
        reads: Sequence[ShardId] = (),
    ) -> None:
        self.samples = sum(sizes.values())
        self.at = 0
        self._sizes = sizes
        self._readers = {
            shard: Reader(open_pass, sizes[shard]) for shard, open_pass in passes.items()
        }
        self._reads = reads
        self._own_shards = tuple(passes)
        self._counts = dict.fromkeys(passes, 0)  # samples of each shard up to `at`

    def sit(self, rank: int, width: int) -> None:
        """From now on `part` gives the rows of this rank; alone, all rows."""
        if width == 1:
            self._own_shards = tuple(self._readers)
            return
        shard = self._reads[rank]
        ranks = [number for number, name in enumerate(self._reads) if name == shard]
        self._own_shards = (shard,)
        self._readers[shard].sit(ranks.index(rank), len(ranks))

    def part(self, size: int) -> Part | None:
        """This process's part of the next batch; None at the end of the pass."""
        count = min(size, self.samples - self.at)
        if count == 0:
            return None
        counts = taken_of(self._sizes, self.at + count)
        pieces: list[Columns] = []
        rows = 0
        for shard in self._own_shards:
            part = self._readers[shard].part(counts[shard] - self._counts[shard])
            if part is not None and part[0] is not None:
                pieces.append(part[0])
                rows += part[1]
        self.at += count
        self._counts = counts
        if not pieces:
            return None, 0, count
        columns = pieces[0]
        if len(pieces) > 1:
            columns = cols.combine(pieces, join_columns)
        return columns, rows, count

    def keep(self) -> None:
        """See `Reader`."""
        for shard in self._own_shards:
            self._readers[shard].keep()

    def seek(self, position: int) -> None:
        """See `Reader`."""
        self.at = position
        self._counts = taken_of(self._sizes, position)
        for shard in self._own_shards:
            self._readers[shard].seek(self._counts[shard])

    def end(self) -> None:
        """See `Reader`."""
        for shard in self._own_shards:
            self._readers[shard].end()

    def close(self) -> None:
        """See `Reader`."""
        for shard in self._own_shards:
            self._readers[shard].close()


def taken_of(sizes: Mapping[ShardId, int], count: int) -> dict[ShardId, int]:
    """How many samples of each shard are among the first `count` of all.

    Sample i of a shard of n comes at (2 i + 1) / 2 n; of those that come at once, that of the first
    shard. So the answer depends on the arguments alone, and no shard's count ever goes back.
    """
    total = sum(sizes.values())
    taken: dict[ShardId, int] = {}
    for shard, size in sizes.items():
        # those that come well before `count` of all are gone by
        before = Fraction(size * (count - len(sizes)), total) - Fraction(1, 2)
        taken[shard] = max(0, ceil(before))
    names = list(sizes)
    queue = [
        (Fraction(2 * taken[shard] + 1, 2 * sizes[shard]), number)
        for number, shard in enumerate(names)
    ]
    heapify(queue)
    for _ in range(count - sum(taken.values())):
        _, number = queue[0]
        shard = names[number]
        taken[shard] += 1
        heapreplace(queue, (Fraction(2 * taken[shard] + 1, 2 * sizes[shard]), number))
    return taken
