import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.check import diff
from shoal.core.cluster import ShardId, SlotId
from shoal.core.plan import Gang, Lane, Plan, prune, solo
from shoal.core.trial import TrialId

TRIALS = [TrialId(f"t{i}") for i in range(6)]
SLOTS = [SlotId(f"w{i}") for i in range(6)]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Gangs of disjoint trials and slots, of one to three lanes."""
    trials, slots = draw(st.permutations(TRIALS)), draw(st.permutations(SLOTS))
    gangs, at = set(), 0
    while at < len(trials) and draw(st.booleans()):
        n = min(draw(st.integers(1, 3)), len(trials) - at)
        lanes = tuple(Lane(trials[at + i], (slots[at + i],)) for i in range(n))
        quota = draw(st.sampled_from([None, 10.0]))
        gangs.add(
            Gang(lanes, (ShardId("s0"),) if quota else (), quota, since=draw(st.integers(0, 3)))
        )
        at += n
    return Plan(frozenset(gangs))


@settings(deadline=None)
@given(plans(), plans())
def test_diff_leads_from_one_plan_to_the_other(old: Plan, new: Plan) -> None:
    changes = list(diff(old, new))
    stops = [before for before, _ in changes if before is not None]
    starts = [after for _, after in changes if after is not None]
    assert sorted(map(str, stops)) == sorted(map(str, old.gangs - new.gangs)), (
        "each gang that goes is in one change"
    )
    assert sorted(map(str, starts)) == sorted(map(str, new.gangs - old.gangs)), (
        "each gang that comes is in one change"
    )
    for before, after in changes:
        assert before is None or after is None or set(before.trials) & set(after.trials), (
            "a move shares a trial"
        )
    kinds = [(before is None, after is None) for before, after in changes]
    order = {(False, True): 0, (False, False): 1, (True, False): 2}
    assert [order[k] for k in kinds] == sorted(order[k] for k in kinds), (
        "what only stops comes first, what only starts last"
    )


@settings(deadline=None)
@given(plans())
def test_no_change_from_a_plan_to_itself(plan: Plan) -> None:
    assert list(diff(plan, plan)) == []


def test_diff_joins_and_splits() -> None:
    a, b = solo(TRIALS[0], SLOTS[0], 0), solo(TRIALS[1], SLOTS[1], 0)
    both = Gang((a.lanes[0], b.lanes[0]), since=1)
    assert list(diff(Plan(frozenset({a, b})), Plan(frozenset({both})))) == [(b, None), (a, both)]
    assert list(diff(Plan(frozenset({both})), Plan(frozenset({a, b})))) == [(both, a), (None, b)]


def test_prune() -> None:
    gang = Gang(
        (Lane(TRIALS[0], (SLOTS[0], SLOTS[1])), Lane(TRIALS[1], (SLOTS[2],))), quota=5.0, since=3
    )
    assert prune(gang) == gang
    assert prune(gang, trials=frozenset(TRIALS[:1])) == Gang((gang.lanes[1],), quota=5.0, since=3)
    lost = prune(gang, slots=frozenset({SLOTS[1], SLOTS[2]}))
    assert lost == Gang((Lane(TRIALS[0], (SLOTS[0],)),), quota=5.0, since=3)
    assert prune(gang, slots=frozenset(SLOTS)) is None
    assert prune(gang, trials=frozenset(TRIALS)) is None


@settings(deadline=None)
@given(plans(), st.sets(st.sampled_from(TRIALS)), st.sets(st.sampled_from(SLOTS)))
def test_pruning_twice_is_pruning_once(
    plan: Plan, trials: set[TrialId], slots: set[SlotId]
) -> None:
    for gang in plan.gangs:
        once = prune(gang, frozenset(trials), frozenset(slots))
        apart = prune(gang, frozenset(trials))
        assert once == (None if apart is None else prune(apart, slots=frozenset(slots)))
        if once is not None:
            assert not (set(once.trials) & trials or once.slots & slots)
            assert prune(once, frozenset(trials), frozenset(slots)) == once


def test_wrong_gangs_cannot_be_built() -> None:
    lane = Lane(TRIALS[0], (SLOTS[0],))
    with pytest.raises(ValueError, match="a lane or more"):
        Gang(())
    with pytest.raises(ValueError, match="one lane of a gang at most"):
        Gang((lane, Lane(TRIALS[0], (SLOTS[1],))))
    with pytest.raises(ValueError, match="quota"):
        Gang((lane,), quota=0.0)
    for slots in ((), (SLOTS[0], SLOTS[0])):
        with pytest.raises(ValueError, match="slot or more, each once"):
            Lane(TRIALS[0], slots)
