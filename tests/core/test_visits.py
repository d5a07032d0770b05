"""Which visit comes next: the same for every backend."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cluster import ShardId, shard_order
from shoal.core.trial import Trial, TrialId, Visit
from shoal.core.visits import is_met, is_scored, next_visit

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


def test_evaluations_follow_whole_epochs_and_the_last_visit() -> None:
    scored = [n for n in range(1, 17) if is_scored(n, 4, 2, last=n == 15)]
    assert scored == [8, 15, 16]
