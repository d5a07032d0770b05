"""Samples dealt anew between shards in each epoch."""

import numpy as np
import pytest

import shoal
from shoal.train.data.arrangement import Deal

SIZES = {"s000": 30, "s001": 50, "s002": 21}


def held(epoch, seed=0, sizes=SIZES):
    """By shard, the samples that it holds in the epoch, as (home, place)."""
    deal = Deal(seed, epoch, sizes)
    return {
        shard: [(p.home, int(row)) for p in deal.pieces(shard) for row in p.rows] for shard in sizes
    }


def test_each_sample_is_in_one_shard_and_sizes_stay():
    found = held(3)
    assert {shard: len(samples) for shard, samples in found.items()} == SIZES
    everything = sorted(sample for samples in found.values() for sample in samples)
    assert everything == sorted((home, row) for home, size in SIZES.items() for row in range(size))


def test_deals_depend_on_seed_and_epoch_alone():
    assert held(1) == held(1)
    assert held(1) != held(2)
    assert held(1) != held(1, seed=1)


def test_each_sample_comes_to_each_shard_as_often_as_its_size_says():
    sizes = {"s000": 2, "s001": 6}
    went = [("s000", 0) in held(epoch, sizes=sizes)["s000"] for epoch in range(1, 401)]
    assert abs(np.mean(went) - 0.25) < 0.09  # four standard errors
    both = [
        {("s000", 0), ("s000", 1)} <= set(held(epoch, sizes=sizes)["s000"])
        for epoch in range(1, 401)
    ]
    assert abs(np.mean(both) - 2 / 8 * 1 / 7) < 0.04


def test_dealt_data_gives_the_rows_of_the_deal():
    data = shoal.Data.arrays(np.arange(101), np.arange(101) * 2.0, shards=3, validation=None)
    dealt = data.reshuffle("across").dealt(seed=5, epoch=2)
    read = [dealt.read(shard) for shard in data.shards]
    assert sorted(np.concatenate([x for x, _ in read]).tolist()) == list(range(101))
    assert all((y == 2 * x).all() for x, y in read)
    some = dealt.rows(data.shards[1], np.array([7, 0, 30, 7]))
    assert some[0].tolist() == read[1][0][[7, 0, 30, 7]].tolist()
    assert [dealt.size(shard) for shard in data.shards] == list(data.sizes.values())


def test_dealt_data_holds_ragged_columns_too():
    items = [{"words": np.arange(n % 5 + 1), "label": n} for n in range(40)]
    data = shoal.Data.dataset(items, collate=lambda items: items, shards=2, validation=None)
    dealt = data.reshuffle("across").dealt(seed=0, epoch=1)
    for shard in data.shards:
        columns = dealt.read(shard)
        lengths = [len(words) for words in columns["words"]]
        assert lengths == [label % 5 + 1 for label in columns["label"].tolist()]


@pytest.mark.parametrize(
    ("arranged", "why"),
    [
        (lambda data: data.reshuffle("within"), 'must be "across"'),
        (lambda data: data.weighted(np.ones(20)).reshuffle(), "does not go with"),
        (lambda data: data.reshuffle().weighted(np.ones(20)), "does not go with"),
        (lambda data: data.reshuffle().folds(2), "does not go with"),
    ],
)
def test_what_cannot_be_dealt_is_refused(arranged, why):
    data = shoal.Data.arrays(np.arange(20), validation=None, shards=2)
    with pytest.raises(shoal.DataError, match=why):
        arranged(data)


def test_files_that_are_read_as_a_whole_are_refused(tmp_path):
    for name in ("a", "b"):
        np.savez_compressed(tmp_path / f"{name}.npz", x=np.arange(9))
    data = shoal.Data.folder(tmp_path)
    with pytest.raises(shoal.DataError, match="Data.make_shards"):
        data.reshuffle()
