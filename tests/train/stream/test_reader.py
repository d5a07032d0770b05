"""A pass cut into batches of any size, from any sample on, with steps made again."""

from itertools import accumulate

import pytest
import torch
from device_kit import HERE
from hypothesis import given, settings
from hypothesis import strategies as st
from train_kit import S0, Small, blobs

from shoal.core.cluster import ShardId
from shoal.train.stream.reader import JointReader, Reader, taken_of
from shoal.train.stream.stream import Stream


def counted(samples, sizes):
    """Chunks of these sizes, over and over, of the numbers of the samples."""

    def chunks(skip):
        at, turn = 0, 0
        while at < samples:
            size = min(sizes[turn % len(sizes)], samples - at)
            if at + size > skip:
                yield (torch.arange(max(at, skip), at + size),)
            at, turn = at + size, turn + 1

    return chunks


@settings(max_examples=200, deadline=None)
@given(st.data(), st.integers(1, 60), st.lists(st.integers(1, 20), min_size=1, max_size=3))
def test_every_sample_is_taken_once_in_order_whatever_is_undone(draw, samples, chunks):
    reader = Reader(counted(samples, chunks), samples)
    kept, open_ = [], []
    while len(kept) < samples:
        what = draw.draw(st.sampled_from(["take", "take", "keep", "undo", "elsewhere"]))
        if what == "take":
            batch = reader.take(draw.draw(st.integers(1, 25)))
            if batch is not None:
                assert len(batch[0][0]) == batch[1]
                open_ += batch[0][0].tolist()
        if what == "keep" or len(kept) + len(open_) == samples:
            reader.keep()
            kept, open_ = kept + open_, []
        if what == "undo":
            reader.seek(len(kept))
            open_ = []
        if what == "elsewhere":  # another rank was further
            to = draw.draw(st.integers(len(kept), samples))
            reader.seek(to)
            kept, open_ = list(range(to)), []
        assert reader.at == len(kept) + len(open_)
    assert kept == list(range(samples))
    assert reader.take(5) is None
    reader.end()


@pytest.mark.parametrize("shuffle", ["once", "each"])
def test_a_stream_opens_at_any_sample(shuffle):
    data = blobs(97, shards=1, chunk=16, validation=None)
    stream = Stream(Small(), data, seed=3, device=HERE, memory_gb=1.0)
    whole = torch.cat([chunk[0] for chunk in stream.chunks(data.shards[0], 2, shuffle)])
    for skip in (0, 1, 15, 16, 17, 50, 80, 96):
        rest = torch.cat([chunk[0] for chunk in stream.chunks(data.shards[0], 2, shuffle, skip)])
        assert torch.equal(rest, whole[skip:]), skip


def test_a_batch_that_was_written_to_is_found_at_the_end():
    data = blobs(32, shards=1, chunk=16, validation=None)
    stream = Stream(Small(), data, seed=3, device=HERE, memory_gb=1.0)
    reader = Reader(lambda skip: stream.chunks(S0, 0, "once", skip), 32)
    while (batch := reader.take(16)) is not None:
        batch[0][0].div_(2) if reader.at == 32 else None
        reader.keep()
    with pytest.raises(ValueError, match="a step wrote into its batch"):
        reader.end()


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_shards_are_read_together_evenly_and_by_any_ranks_alike(draw, counts):
    """What one process reads of several shards is what the ranks read, each its own shard's rows;
    each batch has of each shard what its size demands, to a sample.
    """
    sizes = {ShardId(f"s{number}"): count for number, count in enumerate(counts)}
    first = dict(zip(sizes, accumulate(counts, initial=0), strict=False))

    def passes():
        def of(shard):
            def chunks(skip):
                rows = torch.arange(first[shard], first[shard] + sizes[shard])
                yield (rows[skip:],)

            return chunks

        return {shard: of(shard) for shard in sizes}

    along = draw.draw(st.lists(st.sampled_from(list(sizes)), max_size=3))
    reads = [*sizes, *along]
    alone = JointReader(passes(), sizes)
    ranks = [JointReader(passes(), sizes, reads) for _ in reads]
    for rank, reader in enumerate(ranks):
        reader.sit(rank, len(reads))
    total = sum(counts)
    seen: list[int] = []
    kept = 0
    while alone.at < total:
        size = draw.draw(st.integers(1, 25))
        (rows,), own, count = alone.part(size)
        assert own == count == len(rows) == min(size, total - alone.at + count)
        parts = [reader.part(size) for reader in ranks]
        assert {part[2] for part in parts} == {count}
        mine = [row for part in parts if part[0] is not None for row in part[0][0].tolist()]
        assert sorted(mine) == sorted(rows.tolist())
        seen += rows.tolist()
        for shard, taken in taken_of(sizes, len(seen)).items():
            got = sum(first[shard] <= row < first[shard] + sizes[shard] for row in seen)
            assert got == taken
            assert abs(taken - len(seen) * sizes[shard] / total) <= len(sizes) / 2
        what = draw.draw(st.sampled_from(["keep", "go on", "undo"]))
        if what == "keep":
            kept = len(seen)
        if what == "undo":
            del seen[kept:]
        for reader in (alone, *ranks):
            if what == "keep":
                reader.keep()
            if what == "undo":
                reader.seek(kept)
    for reader in (alone, *ranks):
        assert reader.part(3) is None
        reader.end()
    assert sorted(seen) == list(range(total))
    for shard, size in sizes.items():  # in the order of the shard
        own = [row for row in seen if first[shard] <= row < first[shard] + size]
        assert own == sorted(own)
