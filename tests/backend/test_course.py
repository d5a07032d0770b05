"""What the real backends share: where trials are, and what ends with a round."""

from shoal.backend.course import GangRun, Positions
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId, Visit

A, B, SHARD, SLOT = TrialId("a"), TrialId("b"), ShardId("s"), SlotId("slot0")


def test_a_lane_that_lost_its_first_state_does_not_end_the_round_of_others() -> None:
    """It has made no visit that could be counted."""
    course = Positions(0, {SHARD: 10})
    for trial in (A, B):
        course.submit(Trial(trial, 30.0, {}, shards=frozenset([SHARD])))
    course.positions[A].visits = (Visit(0, SHARD, 0, 10),)
    run = GangRun.of(Gang((Lane(A, (SLOT,)), Lane(B, (SLOT,))), quota=30.0))
    assert course.end_round(run, Slot(SLOT), lost=[B]) == []
    assert run.quota == 20.0
