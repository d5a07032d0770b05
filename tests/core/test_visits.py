"""Which visit comes next: the same for every backend."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cluster import ShardId, shard_order
from shoal.core.trial import Trial, TrialId, Visit
from shoal.core.visits import ValidateEvery, is_met, next_visit

SHARDS = frozenset(ShardId(f"s{n}") for n in range(4))


@given(st.integers(0, 99), st.integers(0, 11))
def test_an_epoch_follows_the_order_of_its_shards(seed: int, count: int) -> None:
    visits: list[Visit] = []
    for _ in range(count):
        visits.append(next_visit(seed, visits, SHARDS)._replace(samples=1))
    following = next_visit(seed, visits, SHARDS)
    epoch, seen = divmod(count, 4)
    assert following == Visit(epoch, shard_order(seed, epoch, SHARDS)[seen], epoch, 0)


def test_a_gang_may_choose_the_shard_and_the_rest_follows_in_order() -> None:
    order = shard_order(0, 0, SHARDS)
    first = next_visit(0, (), SHARDS, order[2])
    assert first == Visit(0, order[2], 0, 0)
    visits = [first]
    for _ in range(3):
        visits.append(next_visit(0, visits, SHARDS))
    assert [visit.shard for visit in visits] == [order[2], order[0], order[1], order[3]]


def test_rounding_does_not_keep_a_trial_from_its_end() -> None:
    trial = Trial(TrialId("a"), 0.3)
    assert is_met(trial, 0.1 + 0.2)
    assert is_met(trial, 0.3 - 1e-9)
    assert not is_met(trial, 0.29)


def test_evaluations_follow_whole_epochs() -> None:
    assert [n + 1 for n in range(16) if ValidateEvery(2).parts(n, 4)] == [8, 16]
    assert {ValidateEvery(2).parts(n, 4) for n in range(16)} == {(), (1.0,)}


def test_fractions_count_from_the_begin_of_each_epoch() -> None:
    assert [ValidateEvery(0.25).parts(n, 4) for n in range(5)] == [(1.0,)] * 5
    assert [ValidateEvery(1 / 3).parts(n, 3) for n in range(3)] == [(1.0,)] * 3
    assert ValidateEvery(0.25).parts(7, 1) == (0.25, 0.5, 0.75, 1.0)
    assert ValidateEvery(0.3).parts(1, 1) == (0.3, 0.6, 0.9, 1.0)
    assert [ValidateEvery(0.3).parts(n, 2) for n in (2, 3)] == [(0.6,), (0.2, 0.8, 1.0)]
    assert [ValidateEvery(0.75).parts(n, 2) for n in (0, 1)] == [(), (0.5, 1.0)]


def test_more_than_an_epoch_may_be_any_number() -> None:
    assert [ValidateEvery(1.5).parts(n, 1) for n in range(6)] == [(), (0.5,), (1.0,)] * 2


@given(st.floats(0.01, 3), st.integers(1, 9), st.integers(0, 20))
def test_every_part_lies_in_its_visit(every: float, shards: int, made: int) -> None:
    parts = ValidateEvery(every).parts(made, shards)
    assert list(parts) == sorted(set(parts))
    assert all(0 < part <= 1 for part in parts)
    within = [part for part in parts if part < 1]
    assert not within or ValidateEvery(every).within(shards)
    ends_epoch = (made + 1) % shards == 0
    assert every >= 1 or not ends_epoch or parts[-1] == 1


@pytest.mark.parametrize(
    ("said", "means"),
    [
        (2, ValidateEvery(2)),
        (0.25, ValidateEvery(0.25)),
        ("0.25", ValidateEvery(0.25)),
        ("200 steps", ValidateEvery(steps=200)),
        ("1 step", ValidateEvery(steps=1)),
    ],
)
def test_how_often_can_be_said_in_two_ways(said: Any, means: ValidateEvery) -> None:
    assert ValidateEvery.of(said) == means


@pytest.mark.parametrize(
    "said", [0, -1, 1e-9, "0 steps", "2.5 steps", "steps", "epoch", True, None, nan, inf]
)
def test_other_ways_are_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="validate_every is a number of epochs"):
        ValidateEvery.of(said)
