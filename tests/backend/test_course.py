"""What the real backends share: where trials are, and what ends with a round."""

from collections.abc import Sequence

from shoal.backend.positions import GangRun, Positions
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Ended, Evaluated, Event, Fell, Measured
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.recipe.unit import Done, PackRefused, Reached, Scored

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


def test_each_evaluation_within_a_unit_is_told_once() -> None:
    """A slot says again and again which ones it has made, and once more at the unit's end."""
    course = Positions(0, {SHARD: 10})
    course.submit(Trial(A, 20.0, {}, shards=frozenset([SHARD])))
    run = GangRun.of(Gang((Lane(A, (SLOT,)),)))
    half, more = Scored(0.5, {"loss": 2.0}), Scored(0.75, {"loss": 1.5})

    def told(events: Sequence[Event]) -> list[float]:
        return [event.epoch for event in events if isinstance(event, Evaluated)]

    for epoch in (0, 1):
        unit = course.unit(run, A, None, carry=False)
        assert course.on(A, Reached(4.0)) == [Advanced({A: 4.0})]
        assert told(course.on(A, Reached(6.0, (half,)))) == [epoch + 0.5]
        assert course.on(A, Reached(6.0, (half,))) == []
        visit = unit.visit._replace(samples=10)
        done = Done(visit, scores={"loss": 1.0}, within=(half, more))
        assert told(course.done(unit, done)) == [epoch + 0.75, epoch + 1.0]
        assert course.positions[A].samples == 10.0 * (epoch + 1)

    course = Positions(0, {SHARD: 10})
    course.submit(Trial(A, 20.0, {}, shards=frozenset([SHARD])))
    assert told(course.on(A, Reached(6.0, (half,)))) == [0.5]
    course.abandon(A)
    assert told(course.on(A, Reached(6.0, (half,)))) == [0.5]


def test_a_refused_pack_does_not_unlearn_what_its_trials_are() -> None:
    """The slot stops at the first trial without room, and does not look at the others."""
    course = Positions(0, {SHARD: 10})
    for trial in (A, B):
        course.submit(Trial(trial, 20.0, {}, shards=frozenset([SHARD])))
    unit = course.unit(GangRun.of(Gang((Lane(B, (SLOT,)),))), B, None, carry=False)
    course.done(unit, Done(unit.visit._replace(samples=10), signature="kind of b"))

    gang = Gang((Lane(A, (SLOT,)), Lane(B, (SLOT,))))
    refused = {A: PackRefused("no room", "kind of a", {"memory": 1.0}), B: PackRefused("no room")}
    events = course.end_round(GangRun.of(gang), Slot(SLOT, memory=1.5), refused)
    assert events == [Measured(A, "kind of a", {"memory": 1.0}), Ended(gang)]
    assert course.positions[B].signature == "kind of b"


def test_a_refused_pack_falls_back_if_it_was_begun() -> None:
    """Its lanes trained in a way that cannot be; no memory is believed to be short."""
    course = Positions(0, {SHARD: 10})
    for trial in (A, B):
        course.submit(Trial(trial, 20.0, {}, shards=frozenset([SHARD])))
        course.positions[trial].visits = (Visit(0, SHARD, 0, 10),)
    gang = Gang((Lane(A, (SLOT,)), Lane(B, (SLOT,))))
    refused = {trial: PackRefused("draws", begun=True) for trial in (A, B)}
    events = course.end_round(GangRun.of(gang), Slot(SLOT), refused)
    assert events == [Fell(A, 0, 0.0), Fell(B, 0, 0.0), Ended(gang)]
