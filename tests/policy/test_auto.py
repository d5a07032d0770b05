"""The automatic choice: it asks when it should, follows the best, and says why."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from shoal.backend.sim.lookahead import ahead
from shoal.core.check import check
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Finished, Joined, Measured, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.ports import Policy
from shoal.core.state import State, View, view
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.auto import Auto
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.policy.reference.baselines import Width
from shoal.policy.width.equi import Equi
from shoal.profile.measure import believe
from shoal.profile.table import Row, Table

TABLE = Table((Row(rates=(10.0, 18.0, 25.0, 32.0)),))


def study(trials: int, slots: int) -> State:
    many = tuple(Slot(SlotId(f"g{i}")) for i in range(slots))
    submitted = [
        Submitted(Trial(TrialId(f"t{i}"), 1000.0 * (i + 1), widths=(1, 4))) for i in range(trials)
    ]
    return fold(State(), [Joined(many), *submitted])


def seen(state: State, now: Seconds = 0.0) -> View:
    return view(state, now, TABLE.of(state.known))


class Asked:
    """A simulation of given results that counts how often it is asked."""

    def __init__(self, **takes: float) -> None:
        self.takes, self.times = takes, 0

    def __call__(self, look: View, policy: Policy[Any]) -> Seconds:
        self.times += 1
        return self.takes[type(policy).__name__]


CANDIDATES = {"fifo": Fifo(), "equi": Equi(), "width": Width(2)}


def test_the_quickest_is_followed_and_the_memory_says_why() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=300.0, Equi=100.0, Width=200.0))
    look = seen(study(1, 4))
    plan, memory = policy.decide(look, policy.start())
    check(plan, look)
    assert plan == Equi().decide(look, None)[0]
    assert memory["follows"] == "equi"
    assert (
        memory["why"]
        == "the 1 trial left would take 100 s on 4 slots, against 200 s with width and 300 s"
        " with fifo"
    )


def test_the_objective_says_what_the_seconds_are_of() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    said = {}
    for objective in ("mean_completion", "first_result"):
        policy = Auto(CANDIDATES, simulate, objective=objective)  # type: ignore[arg-type]
        said[objective] = policy.decide(seen(study(2, 4)), policy.start())[1]["why"]
    rest = "after 100 s on 4 slots, against 200 s with width and 300 s with fifo"
    assert said["mean_completion"] == f"the 2 trials left would end, in the mean, {rest}"
    assert said["first_result"] == f"the first of the 2 trials left would end {rest}"
    with pytest.raises(ValueError, match="objective is one of makespan, .*; got 'best'"):
        Auto(CANDIDATES, simulate, objective="best")  # type: ignore[arg-type]


def test_once_the_first_result_is_there_it_asks_again_for_the_end_of_all() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate, objective="first_result")
    state = study(3, 4)
    memory = policy.decide(seen(state), policy.start())[1]
    state = fold(state, [Advanced({TrialId("t0"): 1000.0}), Finished(TrialId("t0"))])
    memory = policy.decide(seen(state), memory)[1]
    assert simulate.times == 6 and memory["why"].startswith("the 2 trials left would take")
    assert policy.decide(seen(state), memory)[1] == memory and simulate.times == 6


def test_the_first_is_followed_unless_another_is_clearly_quicker() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=100.0, Equi=99.0, Width=inf))
    memory = policy.decide(seen(study(1, 4)), policy.start())[1]
    assert memory["follows"] == "fifo"
    assert (
        memory["why"]
        == "the 1 trial left would take 100 s on 4 slots, and no other saves more than 2 %:"
        " 99 s with equi; width would never finish them"
    )


def test_what_simulations_chose_is_left_for_more_than_the_gain() -> None:
    follows = []
    for fifo in (80.0, 70.0):
        simulate = Asked(Fifo=150.0, Equi=100.0)
        policy = Auto({"fifo": Fifo(), "equi": Equi()}, simulate, gain=0.1)
        memory = policy.decide(seen(study(6, 3)), policy.start())[1]
        assert memory["follows"] == "equi"
        simulate.takes["Fifo"] = fifo
        memory = policy.decide(seen(study(6, 4)), memory)[1]
        assert simulate.times == 4
        follows.append(memory["follows"])
    assert follows == ["equi", "fifo"], "20 % less is not enough, 30 % is"


def test_it_asks_again_when_half_of_the_trials_that_may_be_wide_are_left() -> None:
    for widths, times in (((1, 4), 6), ((1, 1), 3)):
        simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
        policy = Auto(CANDIDATES, simulate)
        state = fold(
            State(),
            [
                Joined((Slot(SlotId("g0")), Slot(SlotId("g1")))),
                *(Submitted(Trial(TrialId(f"t{i}"), 1000.0, widths=widths)) for i in range(8)),
            ],
        )
        memory = policy.decide(seen(state), policy.start())[1]
        for i in range(4):
            assert simulate.times == 3, f"{8 - i} of 8 are left"
            trial = TrialId(f"t{i}")
            state = fold(state, [Advanced({trial: 1000.0}), Finished(trial)])
            memory = policy.decide(seen(state), memory)[1]
        assert simulate.times == times


def test_a_single_candidate_of_a_crowd_is_compared_once_half_are_left() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0)
    candidates = {"fifo": Fifo(), "equi": Equi()}

    def among(look: View) -> tuple[str, ...]:
        return ("fifo",) if len(look.trials) > 4 else ("fifo", "equi")

    policy = Auto(candidates, simulate, among=among)
    memory = policy.decide(seen(study(8, 1)), policy.start())[1]
    assert (memory["follows"], simulate.times) == ("fifo", 0)
    memory = policy.decide(seen(study(4, 1)), memory)[1]
    assert (memory["follows"], simulate.times) == ("equi", 2)


def test_candidates_of_which_none_would_finish_are_named() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=inf, Equi=inf, Width=inf))
    memory = policy.decide(seen(study(3, 1)), policy.start())[1]
    assert memory["follows"] == "fifo"
    assert (
        memory["why"] == "no candidate would finish the 3 trials left on 1 slot (fifo, equi, width)"
    )


def test_trials_that_are_trained_to_their_end_are_not_counted() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=1.0, Equi=9.0, Width=9.0))
    state = fold(study(3, 1), [Advanced({TrialId("t0"): 1000.0})])
    assert policy.decide(seen(state), policy.start())[1]["why"].startswith(
        "the 2 trials left would take 1 s on 1 slot, against 9 s with "
    )


def test_it_simulates_at_the_start_and_when_slots_or_many_trials_come() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    memory = policy.decide(seen(study(2, 4)), policy.start())[1]
    assert simulate.times == 3
    assert policy.decide(seen(study(3, 4)), memory)[1] == memory
    assert simulate.times == 3
    policy.decide(seen(study(4, 4)), memory)
    policy.decide(seen(study(2, 3)), memory)
    assert simulate.times == 9


def test_without_work_nothing_is_asked() -> None:
    simulate = Asked()
    policy = Auto(CANDIDATES, simulate)
    assert policy.decide(seen(study(0, 4)), policy.start())[1] == policy.start()
    assert simulate.times == 0


def test_a_change_of_mind_keeps_what_can_be_kept() -> None:
    simulate = Asked(Fifo=10.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = study(2, 4)
    plan, memory = policy.decide(seen(state), policy.start())
    state = fold(state, [Planned((), tuple(plan.gangs)), Joined((Slot(SlotId("new")),))])
    simulate.takes["Equi"] = 1.0
    after, memory = policy.decide(seen(state), memory)
    check(after, seen(state))
    assert memory["follows"] == "equi"


def test_with_the_simulator_it_finds_the_better_policy() -> None:
    few, many = seen(study(1, 4)), seen(study(8, 2))
    assert ahead(few, Fifo()) == pytest.approx(100.0)
    assert ahead(few, Equi()) == pytest.approx(1000 / 32)
    stuck = replace(few, slots={})
    assert ahead(stuck, Equi()) == inf
    policy = Auto({"fifo": Fifo(), "equi": Equi()}, ahead)
    assert policy.decide(few, policy.start())[1]["follows"] == "equi"
    assert policy.decide(many, policy.start())[1]["follows"] in ("fifo", "equi")
    assert ahead(many, Fifo()) == pytest.approx(36000 / 20, rel=0.2)


def test_no_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="candidates"):
        Auto({}, ahead)


def believed(state: State) -> View:
    return view(state, 0.0, believe(state))


def measured(state: State, **figures: float) -> State:
    return fold(state, [Measured(TrialId("t0"), "a", figures)])


def test_with_nothing_measured_the_usual_is_followed_and_the_first_figures_decide() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate, among=lambda seen: ("width", "equi", "fifo"))
    state = study(2, 4)
    memory = policy.decide(believed(state), policy.start())[1]
    assert (memory["follows"], simulate.times) == ("width", 0)
    assert (
        memory["why"]
        == "it is the usual choice for 4 slots and 0 shards, and nothing is measured yet"
    )
    assert policy.decide(believed(state), memory)[1] is memory
    memory = policy.decide(believed(measured(state, rate=10.0, memory=1.0)), memory)[1]
    assert (memory["follows"], simulate.times) == ("equi", 3)


def test_before_the_first_result_nothing_is_packed_blind() -> None:
    """A step that is tried with each kind would delay it."""
    for aim, follows in (("first_result", "fifo"), ("makespan", "width")):
        policy = Auto(
            CANDIDATES,
            Asked(),
            among=lambda seen: ("width", "equi", "fifo"),
            objective=aim,  # type: ignore[arg-type]
            simple="fifo",
        )
        memory = policy.decide(believed(study(2, 4)), policy.start())[1]
        assert memory["follows"] == follows


def test_one_trial_on_one_slot_is_said_to_leave_nothing_to_compare() -> None:
    policy = Auto(CANDIDATES, Asked(Fifo=1.0, Equi=2.0, Width=3.0))
    memory = policy.decide(believed(study(1, 1)), policy.start())[1]
    assert memory["why"].endswith("one trial on one slot leaves nothing to compare so far")


def test_it_asks_again_when_a_figure_was_wrong_by_more_than_twice() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = measured(
        study(2, 4), rate=10.0
    )  # 100 s for a trial of 1000 samples: costs under 2 s do not matter
    memory = policy.decide(believed(state), policy.start())[1]
    near = (
        {"rate": 19.0},
        {"rate": 6.0},
        {"switch": 1.0},
        {"build": 0.5, "save": 1.5},
        {"memory": 9.0},
        {"first": 60.0},
    )
    assert [
        policy.decide(believed(measured(state, **figures)), memory)[1] is memory for figures in near
    ] == [True] * 6
    assert simulate.times == 3
    for times, figures in enumerate(
        ({"rate": 21.0}, {"rate": 4.0}, {"switch": 3.0}, {"evaluate": 30.0}), 2
    ):
        assert policy.decide(believed(measured(state, **figures)), memory)[1] != memory
        assert simulate.times == 3 * times


def test_it_asks_again_when_half_as_many_kinds_more_are_measured() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = study(6, 4)
    asked = []
    memory = policy.start()
    for kind in range(6):
        told = Measured(TrialId(f"t{kind}"), f"kind {kind}", {"rate": 10.0})
        state = fold(state, [told])
        memory = policy.decide(believed(state), memory)[1]
        asked.append(simulate.times // 3)
    assert asked == [1, 2, 3, 3, 4, 4], "of 1, 2, 3 and 5 kinds"
    assert memory["asked"] == "figures"


def test_it_asks_again_when_a_slot_is_idle_and_trials_ended_since() -> None:
    simulate = Asked(Fifo=100.0, Equi=300.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate, simple=None)
    state = study(7, 4)
    gangs = tuple(Gang((Lane(TrialId(f"t{i}"), (SlotId(f"g{i}"),)),)) for i in range(3))
    pack = Gang(tuple(Lane(TrialId(f"t{i}"), (SlotId("g3"),)) for i in range(3, 7)))
    state = fold(state, [Planned((), (*gangs, pack))])
    memory = policy.decide(seen(state), policy.start())[1]
    assert simulate.times == 3
    ended = fold(state, [Finished(TrialId("t0"))])
    memory = policy.decide(seen(ended), memory)[1]
    assert (memory["asked"], simulate.times) == ("idle", 6)
    assert policy.decide(seen(ended), memory)[1]["asked"] == "idle"
    assert simulate.times == 6, "not twice for the same"


def test_figures_that_swing_are_looked_at_again_when_twice_as_much_is_trained() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = fold(measured(study(2, 4), rate=10.0), [Advanced({TrialId("t0"): 100.0})])
    memory = policy.decide(believed(state), policy.start())[1]
    swung = fold(measured(state, rate=30.0), [Advanced({TrialId("t1"): 90.0})])
    assert policy.decide(believed(swung), memory)[1] is memory and simulate.times == 3
    memory = policy.decide(believed(fold(swung, [Advanced({TrialId("t1"): 10.0})])), memory)[1]
    assert simulate.times == 6 and memory["figures"]["rate"] == 30.0


def test_when_all_is_trained_nothing_is_asked_any_more() -> None:
    """Trials are known until their end is told."""
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = measured(study(2, 4), rate=10.0)
    memory = policy.decide(believed(state), policy.start())[1]
    trained = fold(
        measured(state, rate=100.0),
        [Advanced({t: trial.samples for t, trial in state.trials.items()})],
    )
    assert policy.decide(believed(trained), memory)[1] is memory and simulate.times == 3


def test_what_simulating_costs_is_bounded_by_the_work_known() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    look = seen(study(2, 4))  # (1000 + 2000) samples / 10 a second / 4 slots = 75 s
    for price, says in (
        (0.26, "comparing policies takes 0.78 s, too long for 75 s of work"),
        (inf, "comparing policies takes too long for 75 s of work"),
    ):
        policy = Auto(CANDIDATES, simulate, price=lambda seen, price=price: price)  # type: ignore[misc]
        memory = policy.decide(look, policy.start())[1]
        assert (
            memory["follows"] == "fifo"
            and memory["why"] == f"it is the usual choice for 4 slots and 0 shards, and {says}"
        )
        assert policy.decide(look, memory)[1] is memory
    assert simulate.times == 0
    policy = Auto(CANDIDATES, simulate, price=lambda seen: 0.2)
    memory = policy.decide(look, policy.start())[1]
    assert (memory["follows"], simulate.times, memory["spent"]) == ("equi", 3, pytest.approx(0.6))
    after = policy.decide(seen(study(2, 3)), memory)[1]  # of 1 s that it may cost, 0.6 s are gone
    assert (
        after["follows"] == "equi"
        and after["why"].startswith("it was the best choice before, and comparing ")
        and simulate.times == 3
    )


def test_a_single_candidate_is_never_simulated() -> None:
    simulate = Asked()
    policy = Auto({"fifo": Fifo(), "equi": Equi()}, simulate, among=lambda seen: ("equi",))
    assert (
        policy.decide(seen(study(1, 4)), policy.start())[1]["why"]
        == "no other candidate suits 4 slots and 0 shards"
    )


def test_while_a_lost_slots_shards_lie_nowhere_it_keeps_to_what_it_follows() -> None:
    shards = {ShardId("a"): 10, ShardId("b"): 10}
    slots = [Slot(SlotId(name), shards=frozenset({ShardId(name)})) for name in "ab"]
    trial = Trial(TrialId("t"), 40.0, shards=frozenset(shards))
    simulate = Asked(Hop=1.0, Fifo=2.0)
    policy = Auto({"fifo": Fifo(), "hop": Hop()}, simulate)
    full = fold(State(), [Opened(1, shards), Joined(tuple(slots)), Submitted(trial)])
    memory = policy.decide(seen(full), policy.start())[1]
    assert (memory["follows"], simulate.times) == ("hop", 2)
    simulate.takes["Hop"] = inf
    lost = replace(full, slots={slots[0].id: slots[0]})
    assert policy.decide(seen(lost), memory)[1] == memory and simulate.times == 2
    moved = replace(full, slots={slots[0].id: replace(slots[0], shards=frozenset(shards))})
    after = policy.decide(seen(moved), memory)[1]
    assert after["follows"] == "fifo" and "hop would never finish" in after["why"]


def test_who_is_followed_again_goes_on_with_its_memory() -> None:
    shards = {ShardId("a"): 10, ShardId("b"): 10}
    slots = tuple(Slot(SlotId(name), shards=frozenset(shards)) for name in "ab")
    trials = [Submitted(Trial(TrialId(f"t{i}"), 40.0, shards=frozenset(shards))) for i in range(4)]
    simulate = Asked(Hop=1.0, Fifo=2.0)
    policy = Auto({"fifo": Fifo(), "hop": Hop()}, simulate)
    two = fold(State(), [Opened(1, shards), Joined(slots), *trials[:2]])
    memory = policy.decide(seen(two), policy.start())[1]
    seats = memory["inner"]["hop"]
    simulate.takes["Hop"] = 3.0
    memory = policy.decide(seen(fold(two, trials)), memory)[1]
    assert memory["follows"] == "fifo" and memory["inner"]["hop"] == seats
    simulate.takes["Hop"] = 1.0
    memory = policy.decide(seen(replace(two, slots={slots[0].id: slots[0]})), memory)[1]
    assert memory["follows"] == "hop" and memory["inner"]["hop"] == seats


def test_it_does_not_ask_for_what_only_rounding_left() -> None:
    simulate = Asked(Fifo=300.0, Equi=100.0, Width=200.0)
    policy = Auto(CANDIDATES, simulate)
    state = measured(study(2, 4), rate=10.0)
    memory = policy.decide(believed(state), policy.start())[1]
    state = fold(
        state, [Advanced({name: trial.samples - 1e-9 for name, trial in state.trials.items()})]
    )
    assert policy.decide(believed(measured(state, rate=40.0)), memory)[1]["why"] == memory["why"]
    assert simulate.times == 3
