"""The guard: what runs is held against one trial a slot, and left once too much was lost."""

from typing import Any

import pytest
from small_studies import follow, nodes, seen, state, table, trial

from shoal.core.cluster import SlotId
from shoal.core.event import Finished
from shoal.core.plan import Gang, Lane, Plan, solo
from shoal.core.state import State, View
from shoal.core.trial import TrialId
from shoal.policy.auto import Auto
from shoal.policy.fifo import Fifo
from shoal.policy.guard import NO_DEFICIT, WORSE, Comparison, Deficit, compare, is_simple
from shoal.profile.table import Table

G = [SlotId(f"g{i:02d}") for i in range(4)]
T = [TrialId(f"t{i}") for i in range(6)]


def pack(slot: SlotId, *trials: TrialId) -> Gang:
    return Gang(tuple(Lane(name, (slot,)) for name in trials))


def plan(*gangs: Gang) -> Plan:
    return Plan(frozenset(gangs))


def of_equals(
    trials: int, slots: int, samples: float = 100.0, switch: float = 0.0
) -> tuple[State, Table]:
    known = state([trial(i, samples, (1, 1)) for i in range(trials)], nodes(slots))
    return known, table((1.0,), switch=switch)


def test_a_pack_beside_an_idle_slot_takes_twice_as_long() -> None:
    """Without a gain by company two trials on one slot take 200 s, on two 100 s."""
    known, profile = of_equals(2, 2)
    found = compare(seen(known, profile), plan(pack(G[0], T[0], T[1])))
    assert found == Comparison(what_runs=200.0, simple=100.0, switch=0.0)
    assert found.loss == 0.5


def test_one_trial_a_slot_loses_nothing() -> None:
    known, profile = of_equals(4, 2)
    now = plan(solo(T[0], G[0], 0), solo(T[1], G[1], 0))
    view = seen(known, profile)
    assert is_simple(view, now)
    found = compare(view, now)
    assert found is not None and found.loss == 0.0


def test_the_simple_plan_is_a_list_schedule() -> None:
    """Three equal trials on two slots take two rounds; what runs may be quicker in the mean."""
    known, profile = of_equals(3, 2)
    found = compare(seen(known, profile), plan(solo(T[0], G[0], 0), solo(T[1], G[1], 0)))
    assert found == Comparison(what_runs=150.0, simple=200.0, switch=0.0)


def test_trials_that_wait_count_and_of_very_many_the_first_stand_for_all() -> None:
    for count in (6, 600):
        known, profile = of_equals(count, 2)
        found = compare(seen(known, profile), plan(pack(G[0], T[0], T[1])))
        assert found is not None
        assert found.what_runs == pytest.approx(100.0 * count)
        assert found.simple == pytest.approx(100.0 * count / 2)


def test_a_trial_that_needs_several_slots_cannot_have_one() -> None:
    """Then there is no simple plan to compare with."""
    known = state([trial(0, 100.0, (2, 2))], nodes(2))
    wide = Gang((Lane(T[0], (G[0], G[1])),))
    assert compare(seen(known, table((1.0, 1.5))), plan(wide)) is None


# -- what was lost


def test_what_was_lost_adds_up_and_is_made_good_within_bounds() -> None:
    slow = Comparison(what_runs=200.0, simple=100.0, switch=0.0)  # loses half a second
    quick = Comparison(what_runs=50.0, simple=100.0, switch=0.0)  # gains one
    deficit = NO_DEFICIT.updated(0.0, slow)
    assert deficit.at(4.0) == 2.0
    deficit = deficit.updated(4.0, quick)
    assert deficit.at(5.0) == 1.0
    deficit = deficit.updated(1000.0, slow)
    assert deficit.at(1000.0) == -WORSE * slow.simple, "no more than that to its credit"
    assert Deficit.of(deficit.plain()) == deficit
    assert Deficit.of(None) is NO_DEFICIT


def test_while_what_runs_is_quicker_nothing_is_written_down() -> None:
    """A pack's pace changes with each trial that ends, and memories are journalled."""
    deficit = NO_DEFICIT
    for number, what_runs in enumerate((50.0, 80.0, 99.0, 20.0)):
        quick = Comparison(what_runs=what_runs, simple=100.0, switch=0.0)
        assert deficit.updated(float(number), quick) is NO_DEFICIT


def test_it_is_too_much_beyond_5_percent_and_what_a_switch_takes() -> None:
    for switch, expected in ((0.0, 5.0), (30.0, 30.0)):
        slow = Comparison(what_runs=200.0, simple=100.0, switch=switch)
        deficit = NO_DEFICIT.updated(0.0, slow)
        at = deficit.over_at(0.0, slow)
        assert at == 2 * expected
        assert not deficit.is_over(at - 0.1, slow)
        assert deficit.is_over(at, slow)


def test_nothing_is_left_for_less_than_the_switch_takes() -> None:
    slow = Comparison(what_runs=200.0, simple=100.0, switch=101.0)
    deficit = NO_DEFICIT.updated(0.0, slow)
    assert not deficit.is_over(1e6, slow)


# -- in auto


class AllOnOne:
    """The worst packer: all trials on the first slot."""

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if view.plan.gangs:
            return view.plan, None
        return plan(pack(next(iter(view.slots)), *view.trials)), None


def guarded(**options: Any) -> Auto:
    return Auto(
        {"bad": AllOnOne(), "fifo": Fifo()},
        lambda view, policy: 1.0,  # the simulation sees no difference
        simple="fifo",
        **options,
    )


def test_auto_leaves_what_loses_and_says_so() -> None:
    known, profile = of_equals(4, 2)
    policy = guarded()
    made, memory = policy.decide(seen(known, profile), policy.start())
    assert made.gangs == {pack(G[0], *T[:4])}
    assert made.wake_at == 20.0, "half of each second is lost, and 10 s may be"
    known = follow(known, made)
    assert policy.decide(seen(known, profile, 19.0), memory)[0] == made.but(wake_at=20.0)
    made, memory = policy.decide(seen(known, profile, 20.0), memory)
    assert memory["follows"] == "fifo" and "as they ran with bad" in memory["why"]
    assert made.gangs == {solo(T[0], G[0], 1), solo(T[1], G[1], 1)}
    assert memory["rejected"] == ["bad"]


@pytest.mark.parametrize("options", [{"objective": "mean_completion"}])
def test_the_guard_is_for_the_makespan(options: Any) -> None:
    known, profile = of_equals(4, 2)
    policy = guarded(**options)
    made, memory = policy.decide(seen(known, profile), policy.start())
    assert made.wake_at is None and memory["deficit"] is None


def test_on_many_slots_the_guard_looks_on_now_and_then() -> None:
    """A comparison takes longer there: after 2 ms for each slot at work it is made again."""
    known, profile = of_equals(200, 100)
    policy = guarded()
    name, memory = next(iter(known.slots)), policy.start()
    packs = plan(
        *(solo(TrialId(f"t{i}"), slot, 0) for i, slot in enumerate(list(known.slots)[1:])),
        pack(name, TrialId("t150"), TrialId("t151")),
    )
    known = follow(known, packs)
    compared_at = []
    for now in (0.0, 0.1, 0.19, 0.2, 0.3, 0.5):
        _, memory = policy.decide(seen(known, profile, now), memory)
        compared_at.append(memory["compared_at"])
    assert compared_at == [0.0, 0.0, 0.0, 0.2, 0.2, 0.5]


def test_what_lost_is_no_candidate_until_slots_come_or_go() -> None:
    known, profile = of_equals(4, 2)
    policy = guarded()
    made, memory = policy.decide(seen(known, profile), policy.start())
    known = follow(known, made)
    _, memory = policy.decide(seen(known, profile, 20.0), memory)
    memory = {**memory, "deficit": None}
    ended = follow(known, plan(), Finished(T[3]))
    assert policy.decide(seen(ended, profile, 30.0), memory)[1]["follows"] == "fifo"
    more, _ = of_equals(4, 3)
    _, after = policy.decide(seen(more, profile, 40.0), memory)
    assert after["rejected"] == []


def test_fifo_takes_apart_what_others_left_running() -> None:
    known = state([trial(i, 100.0, (1, 2)) for i in range(4)], nodes(4))
    wide = Gang((Lane(T[3], (G[1], G[2])),))
    known = follow(known, plan(pack(G[0], *T[:3]), wide))
    made, _ = Fifo().decide(seen(known, table((1.0, 1.5))), None)
    alone = {(gang.trials, tuple(gang.slots)) for gang in made.gangs}
    assert alone == {((T[0],), (G[0],)), ((T[3],), (G[1],)), ((T[1],), (G[2],)), ((T[2],), (G[3],))}
    unit = Gang(pack(G[0], T[0], T[1]).lanes, quota=10.0)
    known = follow(state([trial(i, 100.0) for i in range(2)], nodes(1)), plan(unit))
    assert Fifo().decide(seen(known, table((1.0, 1.5))), None)[0].gangs == {unit}
