"""Flotillas and their places: the worked examples."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from asks import ask
from hypothesis import given
from hypothesis import strategies as st
from small_studies import Arrivals, believed, follow, nodes, seen, state, table, trial, widths_of

from shoal.backend.sim.meter import EXACT
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Event, Fell, Finished, Measured, Opened, Planned
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.core.trial import Seconds, Trial, TrialId, Visit
from shoal.engine.journal import Journal, Line
from shoal.engine.run import run
from shoal.policy.width.ask import Ask, all_widths, asks
from shoal.policy.width.flotilla import (
    Flotilla,
    create_flotilla,
    extended,
    missing,
    noted_rates,
    smoothed,
    until_through,
)
from shoal.policy.width.place import assign, spread
from shoal.profile.evidence import known_widths
from shoal.profile.measure import Believer
from shoal.profile.table import Table

ALONE = (100.0, 52.0, 30.0, 90.0, 21.0)


def five(most: int) -> list[Ask]:
    return [
        ask(i, 1.0, {m: r * m * 0.95 ** (m - 1) for m in range(1, most + 1)})
        for i, r in enumerate(ALONE)
    ]


def test_flotillas_of_five_models() -> None:
    assert create_flotilla(five(8), 8, 20.0) == {"t0": 1, "t1": 2, "t2": 4, "t3": 1}
    assert create_flotilla(five(4), 4, 20.0) == {"t0": 1, "t1": 2, "t3": 1}


def test_what_is_left_over_goes_to_the_slowest() -> None:
    assert create_flotilla(
        [ask(0, 1, {1: 10.0, 2: 18.0, 3: 24.0}), ask(1, 1, {1: 9.0, 2: 17.0, 3: 23.0})], 5, 20.0
    ) == {"t0": 2, "t1": 3}


def test_the_guard_gives_no_slot_that_makes_slower() -> None:
    falling = [ask(0, 1, {1: 10.0, 2: 12.0, 3: 11.0, 4: 9.0})]
    assert create_flotilla(falling, 4, 20.0) == {"t0": 2}
    assert create_flotilla(falling, 4, 20.0, guard=False) == {"t0": 4}  # as printed


def test_order_in_which_members_join() -> None:
    """The nearest pace first, whatever the order in which they are given."""
    assert list(create_flotilla(five(8)[::-1], 8, 20.0)) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(("rate", "joins"), [(88.0, False), (89.0, True)])
def test_paces_differ_by_the_papers_share_at_most(rate: float, joins: bool) -> None:
    """20 of 176 images/s, where no delta is given."""
    both = [ask(0, 1, {1: 100.0}), ask(1, 1, {1: rate})]
    assert ("t1" in create_flotilla(both, 2)) == joins


THREE = [trial(0, 100, (3, 3)), trial(1, 100, (3, 3)), trial(2, 100, (2, 2))]


@pytest.mark.parametrize("memory", [float("inf"), 8.0])
def test_lanes_are_placed_by_algorithm_3_also_where_memory_is_finite(memory: float) -> None:
    """Best fit would part the third lane: 1/3 + 1/3 + 2/2 instead of 1/3 + 2/3 + 1/2 by eq. 4."""
    known = state(THREE, nodes(8, memory=memory))
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    lanes = {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}
    assert lanes == {"t0": ("g00", "g01", "g02"), "t1": ("g03", "g04", "g05"), "t2": ("g06", "g07")}


def test_no_lane_is_placed_where_it_has_no_room() -> None:
    slots = (*nodes(4, memory=8.0), *(Slot(SlotId(f"s{i}"), "small", memory=1.0) for i in range(4)))
    known = state(THREE, slots)
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    assert not {s for gang in plan.gangs for s in gang.slots if s.startswith("s")}


def test_it_forms_again_when_rates_arrive() -> None:
    """Trials that nobody has measured look alike; once they are measured they do not go
    together.
    """
    policy = Flotilla(together=True)
    known = state([trial(0, 100, (1, 4)), trial(1, 100, (1, 4))], nodes(2))
    alike, apart = (table((10.0, 20.0, 30.0, 40.0)), table((10.0, 20.0, 30.0, 40.0), (2.0, 4.0)))
    plan, memory = policy.decide(seen(known, alike), policy.start())
    (gang,) = plan.gangs
    assert len(gang.lanes) == 2
    known = follow(known, plan)
    again, memory = policy.decide(seen(known, alike), memory)
    assert again.gangs == plan.gangs
    again, memory = policy.decide(seen(known, apart), memory)
    assert [gang.trials for gang in again.gangs] == [("t0",)]
    known = follow(known, again)
    settled, _ = policy.decide(seen(known, apart), memory)
    assert settled.gangs == again.gangs, "once"


@pytest.mark.parametrize(
    ("widths", "places", "score"),
    [
        ([3, 3, 2], [range(3), range(3, 6), range(6, 8)], 1.5),
        ([3, 2, 3], [range(3), range(6, 8), range(3, 6)], 1.5),
        ([1, 1, 3, 3], [range(3, 4), range(7, 8), range(3), range(4, 7)], 8 / 3),
        (
            [4, 3, 1, 2, 2, 5, 3],
            [
                range(4),
                range(5, 8),
                range(4, 5),
                range(10, 12),
                range(8, 10),
                range(15, 20),
                range(12, 15),
            ],
            3.3167,
        ),
        ([1, 2, 1], [range(1), range(1, 3), range(3, 4)], 2.5),
    ],
)
def test_places(widths: list[int], places: list[range], score: float) -> None:
    assert assign(widths, 4) == places
    assert spread(assign(widths, 4), 4) == pytest.approx(score, abs=1e-4)


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 6))
def test_places_are_consecutive_and_disjoint(widths: list[int], per_node: int) -> None:
    places = assign(widths, per_node)
    assert [len(p) for p in places] == widths
    assert sorted(i for p in places for i in p) == list(range(sum(widths)))


@pytest.mark.parametrize(("alpha", "again"), [(0.75, False), (0.76, True)])
def test_a_new_flotilla_where_fewer_slots_than_alpha_are_busy(alpha: float, again: bool) -> None:
    """Three of four slots are busy once t1 has ended: that is enough where alpha asks for 0.75."""
    policy = Flotilla(alpha=alpha)
    rates = ((10.0, 20.0, 30.0), (10.0, 20.0), (2.0, 2.1))
    known = state([trial(0, 9, (3, 4)), trial(1, 9, (1, 1)), trial(2, 9, (1, 4))], nodes(4))
    plan, memory = policy.decide(seen(known, table(*rates)), policy.start())
    assert {gang.trials for gang in plan.gangs} == {("t0",), ("t1",)}
    known = follow(known, plan, Finished(TrialId("t1")))
    plan, _ = policy.decide(seen(known, table(*rates)), memory)
    assert (plan.gangs != known.plan.gangs) == again


@pytest.mark.parametrize(("left", "again"), [(16, False), (15, True)])
def test_the_papers_alpha(left: int, again: bool) -> None:
    """Of twenty slots: 0.8 of them, where no alpha is given."""
    policy, rates = Flotilla(), table((10.0,))
    known = state([trial(i, 9, (1, 1)) for i in range(21)], nodes(20))
    plan, memory = policy.decide(seen(known, rates), policy.start())
    ended = [Finished(TrialId(f"t{i}")) for i in range(20 - left)]
    known = follow(known, plan, *ended)
    plan, _ = policy.decide(seen(known, rates), memory)
    assert (plan.gangs != known.plan.gangs) == again


def test_delta_is_the_greatest_difference_of_paces() -> None:
    both = [ask(0, 1, {1: 100.0}), ask(1, 1, {1: 80.0})]
    assert list(create_flotilla(both, 2, 20.0)) == ["t0", "t1"]
    assert list(create_flotilla(both, 2, 19.9)) == ["t0"]


@pytest.mark.parametrize("together", [False, True])
def test_lanes_keep_their_own_pace_unless_they_are_to_advance_together(together: bool) -> None:
    known = state([trial(0, 100, (1, 1)), trial(1, 100, (1, 1))], nodes(2))
    policy = Flotilla(together=together)
    plan, _ = policy.decide(seen(known, table((10.0,))), policy.start())
    gangs = {("t0", "t1")} if together else {("t0",), ("t1",)}
    assert {gang.trials for gang in plan.gangs} == gangs


def test_nodes_without_the_memory_are_left_out_of_algorithm_3() -> None:
    small = tuple(Slot(SlotId(f"s{i}"), "a", memory=1.0) for i in range(4))
    known = state(THREE, (*small, *nodes(8, memory=8.0)))
    plan, _ = Flotilla(delta=99.0).decide(seen(known, table((1.0, 2.0, 3.0), memory=4.0)), {})
    lanes = {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}
    assert lanes["t2"] == ("g06", "g07") and lanes["t1"] == ("g03", "g04", "g05")


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="profile is one of alone, printed, never"):
        Flotilla(profile="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scope"):
        Flotilla("everywhere")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="alpha"):
        Flotilla(alpha=0)


# -- flotillas stand: noise in the rates moves nobody, and what is measured costs 48 batches


# Samples/s of four trials on one slot and on two; the first is the pace of all.
TRUE = ((100.0, 190.0), (52.0, 99.0), (95.0, 180.0), (30.0, 57.0))


def simulated(
    policy: Flotilla,
    trials: Sequence[Trial],
    slots: int,
    profile: Table,
    shards: Mapping[ShardId, int] | None = None,
    script: Sequence[tuple[Seconds, Event]] = (),
) -> list[Line]:
    """A study that begins unmeasured, as a user's. With a script, that alone tells figures."""
    journal = Journal()
    before = State()
    if shards:
        opened = Opened(1, shards)
        journal.append(0.0, opened)
        before = fold(before, [opened])
    measuring = None if script else EXACT
    sim = Sim(profile.of, nodes(slots), script, shards=shards, measuring=measuring)
    arrivals = Arrivals(*((0.0, each) for each in trials))
    run(arrivals, policy, sim, Believer(), journal, before)
    return journal.lines


def plans(lines: Sequence[Line], since: Seconds) -> list[Seconds]:
    """When the plan was another one, after that time."""
    return [at for at, entry in lines if at > since and isinstance(entry, Planned)]


def noisy(seed: int, noise: float) -> list[tuple[Seconds, Event]]:
    """Rates that are off by a random part, up to `noise`, told each second by some slot."""
    rng = np.random.default_rng(seed)
    told: list[tuple[Seconds, Event]] = []
    for second in range(100):
        for number, rates in enumerate(TRUE):
            off = 1 + rng.uniform(-noise, noise, size=2)
            figures = {"rate": rates[0] * off[0], "rate@2": rates[1] * off[1]}
            name = TrialId(f"t{number}")
            told.append((second + 0.5, Measured(name, f"kind{number}", figures)))
    return told


@pytest.mark.parametrize("seed", range(4))
def test_noise_forms_no_flotilla_again(seed: int) -> None:
    """A pace that is off by 11 % of the fastest is as far off as paces may be in one flotilla."""
    trials = [trial(number, 1e5, (1, 2)) for number in range(4)]
    lines = simulated(Flotilla(), trials, 4, table(*TRUE, switch=5.0), script=noisy(seed, 0.15))
    changed = [at for at in plans(lines, 10.0) if at <= 100.0]
    assert not changed, f"formed again at {changed}"


def test_a_rate_that_is_told_twice_is_believed() -> None:
    """Paces that were far off at first are put right, though not at the first word of it."""
    known = state([trial(0, 2e6, (1, 1)), trial(1, 1e6, (1, 1))], nodes(2))
    policy = Flotilla(together=True)

    def told(rate: float) -> Measured:
        return Measured(TrialId("t1"), "kind1", {"rate": rate})

    known = follow(
        known, known.plan, Measured(TrialId("t0"), "kind0", {"rate": 100.0}), told(100.0)
    )
    memory: object = policy.start()
    gangs = []
    for rate in (100.0, 72.0, 71.0, 70.0, 69.0):
        known = follow(known, known.plan, told(rate))
        plan, memory = policy.decide(believed(known), memory)  # type: ignore[arg-type]
        known = follow(known, plan)
        gangs.append(len(plan.gangs))
    assert gangs[:2] == [1, 1]
    assert gangs[-1] == 2, "they go together no more"


def test_what_cannot_repay_itself_is_not_changed() -> None:
    """Evener paces that cost more seconds than they save, and a change just before an end."""
    rates = ((10.0, 19.0), (5.0, 9.6))
    even = table(*rates)
    for seconds, samples, again in ((0.0, 1e6, True), (400.0, 1000, False)):
        known = state([trial(i, samples, (1, 2)) for i in range(2)], nodes(2))
        policy = Flotilla(together=True)
        alike = table((10.0, 19.0), (10.0, 19.0)).of(known.known)
        plan, memory = policy.decide(view(known, 0.0, alike), policy.start())
        known = follow(known, plan)
        costly = table(*rates, switch=seconds) if seconds else even
        after, _ = policy.decide(view(known, 1.0, costly.of(known.known)), memory)
        assert (after.gangs != plan.gangs) == again


def test_no_flotilla_is_formed_just_before_an_end() -> None:
    """One slot of two is idle, but the other trial ends sooner than a change is made."""
    for left, again in ((50.0, False), (500.0, True)):
        known = state([trial(0, left, (1, 2)), trial(1, 10.0, (1, 1))], nodes(2))
        profile = table((10.0, 19.0), (10.0,), switch=10.0).of(known.known)
        policy = Flotilla()
        plan, memory = policy.decide(view(known, 0.0, profile), policy.start())
        known = follow(known, plan, Finished(TrialId("t1")))
        after, _ = policy.decide(view(known, 1.0, profile), memory)
        assert (after.gangs != known.plan.gangs) == again


def formed_at(size: int) -> tuple[Seconds, list[Line]]:
    """When all kinds are measured, of six on two slots; the journal."""
    trials = [
        Trial(TrialId(f"t{i}"), 3.0 * size, {"x": i, "batch_size": 32}, widths=(1, 2))
        for i in range(6)
    ]
    rates = [(100.0 + 3 * i,) for i in range(6)]
    lines = simulated(Flotilla(), trials, 2, table(*rates), {ShardId("a"): size})
    told = {entry.trial: at for at, entry in reversed(lines) if isinstance(entry, Measured)}
    return max(told.values()), lines


def test_measuring_is_independent_of_the_size_of_the_data_set() -> None:
    small, lines = formed_at(20_000)
    large, more = formed_at(2_000_000)
    assert small == pytest.approx(large)
    assert large <= 3 * 48 * 32 / 100, "two by two, of at most 48 batches each"
    for journal in (lines, more):
        assert not [entry for _, entry in journal if isinstance(entry, Fell)]


def test_a_visit_shorter_than_the_quota_is_made_whole() -> None:
    _, lines = formed_at(500)
    first = next(entry for _, entry in lines if isinstance(entry, Measured))
    state_then = fold(State(), [entry for _, entry in lines])
    assert state_then.ended[first.trial] == "finished"
    assert len(state_then.visits[first.trial]) == 3


def test_a_trial_that_stays_goes_on_with_the_visit_in_which_it_was_measured() -> None:
    """As many kinds as slots: the quota is lifted, and nothing is trained twice."""
    trials = [Trial(TrialId(f"t{i}"), 1e5, {"x": i}, widths=(1, 2)) for i in range(2)]
    lines = simulated(
        Flotilla(), trials, 2, table((100.0, 100.0), (99.0, 99.0)), {ShardId("a"): 100_000}
    )
    assert lines[-1].time == pytest.approx(1e5 / 99.0)


def test_a_forecast_of_flotillas() -> None:
    asks = [
        Ask(TrialId("a"), 100.0, (1, 2), (10.0, 20.0)),
        Ask(TrialId("b"), 100.0, (1, 2), (5.0, 10.0)),
    ]

    def form(rest: Sequence[Ask], capacity: int) -> list[dict[TrialId, int]]:
        return [{rest[0].trial: capacity}]

    apart = [{TrialId("a"): 1}, {TrialId("b"): 1}]
    together = [{TrialId("a"): 1, TrialId("b"): 1}]
    assert until_through(apart, asks, 2, 2, form) == pytest.approx(10.0 + 5.0)
    assert until_through(together, asks, 2, 2, form) == pytest.approx(20.0)
    assert until_through([], asks, 2, 2, form) == pytest.approx(5.0 + 10.0)


def test_rates_are_smoothed_and_unmeasured_widths_go_along() -> None:
    known = state([trial(0, 1e6, (1, 2))], nodes(2))
    told: Mapping[str, Mapping[str, Sequence[float]]] = {}
    for rate in (100.0, 120.0):
        known = follow(known, known.plan, Measured(TrialId("t0"), "k", {"rate": rate}))
        look = believed(known)
        raw = Ask(TrialId("t0"), 1.0, (1, 2), (rate, 2 * rate))
        told = noted_rates(look, [raw], told)
    assert smoothed(raw, told).rates == pytest.approx((110.0, 220.0))
    far = noted_rates(look, [Ask(TrialId("t0"), 1.0, (1, 2), (50.0, 99.0))], told)
    assert far["t0"]["1"][1] == 50.0, "that is no noise"


# -- what `flotilla` measures first (FLEET, appendix B.3), and eq. 5 for what it does not


EIGHT = (10.0, 20.0, 30.0, 38.0, 47.0, 56.0, 65.0, 72.0)


def name(width: int) -> str:
    return "rate" if width == 1 else f"rate@{width}"


def measured(number: int, *rates: float) -> Measured:
    """Its rates at widths 1, 2, …"""
    figures = {name(width): rate for width, rate in enumerate(rates, 1)}
    return Measured(TrialId(f"t{number}"), f"kind{number}", figures)


def decide(policy: Flotilla, known: State, memory: object) -> tuple[State, object]:
    plan, memory = policy.decide(believed(known), memory)  # type: ignore[arg-type]
    return follow(known, plan), memory


def test_each_kind_is_measured_alone_before_flotillas_are_formed() -> None:
    known = state([trial(i, 1e6, (1, 2)) for i in range(3)], nodes(2))
    policy = Flotilla()
    known, memory = decide(policy, known, policy.start())
    assert widths_of(known.plan) == {"t0": 1, "t1": 1}
    known = follow(known, known.plan, measured(0, 100.0))
    known, memory = decide(policy, known, memory)
    assert widths_of(known.plan) == {"t1": 1, "t2": 1}, "t0 is known, and makes room"
    known = follow(known, known.plan, measured(1, 10.0), measured(2, 95.0))
    known, memory = decide(policy, known, memory)
    assert widths_of(known.plan) == {"t0": 1, "t2": 1}, "t1 is too slow at any width"
    known = follow(known, known.plan, Finished(TrialId("t0")), Finished(TrialId("t2")))
    known, _ = decide(policy, known, memory)
    assert widths_of(known.plan) == {"t1": 2}


def test_all_widths_up_to_m_t_are_measured_as_printed() -> None:
    """Two slots to a node: M_b = 4; the slowest would need M_a = 6 slots."""
    trials = [trial(0, 1e6), trial(1, 1e6)]
    known = state(trials, nodes(8, per_node=2))
    wanting = asks(believed(known), all_widths)
    found = missing(believed(known), wanting, {}, "printed")
    assert [need.widths for need in found] == [(1, 2, 3, 4)] * 2
    known = follow(known, known.plan, measured(0, 100.0), measured(1, 17.0))
    found = missing(believed(known), wanting, {}, "printed")
    assert [need.widths for need in found] == [(2, 3, 4, 5, 6)] * 2
    assert missing(believed(known), wanting, {}, "alone") == []
    known = follow(known, known.plan, measured(1, *range(17, 23)))
    found = missing(believed(known), wanting, {}, "printed")
    assert [(need.ask.trial, need.widths) for need in found] == [("t0", (2, 3, 4, 5, 6))]


def test_a_trial_is_measured_at_one_width_after_the_other_where_it_is() -> None:
    known = state([trial(0, 1e6, (1, 3)), trial(1, 1e6, (1, 3))], nodes(3))
    policy = Flotilla(profile="printed")
    memory: object = policy.start()
    begun = []
    for upto in range(1, 4):
        known, memory = decide(policy, known, memory)
        begun.append(widths_of(known.plan))
        known = follow(known, known.plan, measured(0, *EIGHT[:upto]))
    assert begun[0] == {"t0": 1, "t1": 1}
    assert begun[1] == {"t0": 2, "t1": 1}
    assert begun[2] == {"t0": 2, "t1": 1}, "three slots are not free while t1 is measured"


def test_trials_of_one_kind_are_measured_once() -> None:
    known = state([trial(i, 1e6, (1, 2)) for i in range(2)], nodes(1))
    alike = [known.trials[each] for each in known.trials]
    known = follow(known, known.plan, measured(0, 100.0))
    assert known_widths(believed(known).profile, alike[0].id) == {1}
    assert known_widths(believed(known).profile, alike[1].id) == set()
    known = follow(known, known.plan, Measured(TrialId("t1"), "kind0", {}))
    assert known_widths(believed(known).profile, alike[1].id) == {1}


def test_a_width_that_gives_no_rate_is_given_up_after_a_whole_visit() -> None:
    known = state([trial(0, 1e6, (1, 2))], nodes(2))
    policy = Flotilla()
    known, memory = decide(policy, known, policy.start())
    assert widths_of(known.plan) == {"t0": 1}
    for number in range(2):
        visit = Visit(0, ShardId("a"), number, 100)
        made = Advanced({TrialId("t0"): 100.0}, visits={TrialId("t0"): (visit,)})
        known = follow(known, known.plan, made)
    known, _ = decide(policy, known, memory)
    assert widths_of(known.plan) == {"t0": 2}


@pytest.mark.parametrize(("rates", "last"), [(EIGHT, 112.145), (EIGHT[:7], None)])
def test_unmeasured_widths_have_the_rates_of_eq_5(
    rates: tuple[float, ...], last: float | None
) -> None:
    """ALGORITHMS' third example; with less than two nodes measured, what the profile believes."""
    known = state([trial(0, 1e6, (1, 16))], nodes(16))
    known = follow(known, known.plan, measured(0, *rates))
    (ask,) = asks(believed(known), all_widths)
    after = extended(believed(known), ask)
    assert after.rates[:7] == pytest.approx(rates[:7])
    if last is None:
        assert after.rates == ask.rates
    else:
        assert (after.rates[8], after.rates[9], after.rates[15]) == pytest.approx(
            (78.508, 84.547, last), abs=1e-3
        )
