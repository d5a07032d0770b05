"""Elastic trials on slots of which the ends are known: worth the time that they have left."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.check import check
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Joined, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId
from shoal.policy import Elastic
from shoal.profile.table import Row, Table

HORIZON = 100.0
UP = 5.0
ENDS = st.sampled_from([0.5, 3.0, 6.0, 20.0, 50.0, 99.0, 101.0, inf])
FALLING = (10.0, 18.0, 24.0, 28.0, 30.0)
RATES = st.sampled_from([(10.0, 20.0, 30.0, 40.0, 50.0), FALLING, (10.0, 9.0, 8.0)])


def seen(
    ends: Sequence[float],
    rates: Sequence[float],
    held: Sequence[int],
    trials: int = 1,
    build: float = 0.0,
    widths: tuple[int, int] = (1, 5),
) -> View:
    """Slots with these ends; so many trials, of which the first ones hold some slots."""
    slots = tuple(Slot(SlotId(f"s{i}"), until=end) for i, end in enumerate(ends))
    names = [TrialId(f"t{j}") for j in range(trials)]
    known = {name: Trial(name, 1e6, widths=widths) for name in names}
    entries = [Joined(slots), *map(Submitted, known.values())]
    gangs = []
    free = [slot.id for slot in slots]
    for name, count in zip(names, held, strict=False):
        mine, free = tuple(free[:count]), free[count:]
        if mine:
            gangs.append(Gang((Lane(name, mine),), since=0))
    state = fold(State(), [*entries, Planned((), tuple(gangs))])
    profile = Table((Row(tuple(rates), build=build),)).of(known)
    return view(state, 0.0, profile)


def lanes(plan: Plan) -> Mapping[TrialId, tuple[SlotId, ...]]:
    return {lane.trial: lane.slots for gang in plan.gangs for lane in gang.lanes}


def made(at: View, rates: Sequence[float], slots: Sequence[SlotId]) -> float:
    """Samples of a trial within the horizon: its rate at each width for as long as it has that."""
    lasts = sorted(min(HORIZON, max(0.0, at.slots[slot].until)) for slot in slots)
    total, before = 0.0, 0.0
    for i, end in enumerate(lasts):
        width = len(lasts) - i
        total += rates[min(width, len(rates)) - 1] * (end - before)
        before = end
    return total


def paid(at: View, rates: Sequence[float], old: Sequence[SlotId], new: Sequence[SlotId]) -> float:
    """The same, less what growing costs."""
    cost = UP * rates[len(old) - 1] if old and len(new) > len(old) else 0.0
    return made(at, rates, new) - cost


POLICY = Elastic(HORIZON, up=UP, down=UP)


@given(st.lists(ENDS, min_size=1, max_size=5), RATES, st.integers(0, 2))
def test_one_trial_takes_the_slots_on_which_it_makes_most(
    ends: list[float], rates: tuple[float, ...], held: int
) -> None:
    """By trying all of them, where it keeps what it has."""
    at = seen(ends, rates, [held], widths=(1, len(rates)))
    before = lanes(at.plan).get(TrialId("t0"), ())
    plan, _ = POLICY.decide(at, {})
    check(plan, at)
    after = lanes(plan).get(TrialId("t0"), ())
    if not set(before) <= set(after):
        return  # it shrinks: a slot less may be worth more
    free = [slot for slot in at.slots if slot not in before]
    choices = [
        (*before, *more)
        for count in range(min(len(free), len(rates) - len(before)) + 1)
        for more in combinations(free, count)
    ]
    best = max(paid(at, rates, before, choice) for choice in choices)
    assert paid(at, rates, before, after) == pytest.approx(best, abs=0.02 * HORIZON * 10)


@given(
    st.lists(ENDS, min_size=1, max_size=8),
    RATES,
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=4),
    st.sampled_from(["index", "spatial"]),
)
def test_no_trial_grows_by_slots_that_do_not_pay_before_they_leave(
    ends: list[float], rates: tuple[float, ...], trials: int, held: list[int], placement: str
) -> None:
    policy = Elastic(HORIZON, up=UP, down=UP, placement=placement)
    at = seen(ends, rates, held, trials, widths=(1, len(rates)))
    plan, _ = policy.decide(at, {})
    check(plan, at)
    old, new = lanes(at.plan), lanes(plan)
    for trial, slots in new.items():
        before = old.get(trial, ())
        if len(slots) > len(before):
            assert paid(at, rates, before, slots) > made(at, rates, before) - 1e-6


@given(
    st.lists(st.sampled_from([HORIZON, 101.0, 1e6, inf]), min_size=1, max_size=8),
    RATES,
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=4),
)
def test_ends_beyond_the_horizon_change_no_counts(
    ends: list[float], rates: tuple[float, ...], trials: int, held: list[int]
) -> None:
    def counts(ends: Sequence[float]) -> dict[TrialId, int]:
        at = seen(ends, rates, held, trials, widths=(1, len(rates)))
        plan, _ = POLICY.decide(at, {})
        return {trial: len(slots) for trial, slots in lanes(plan).items()}

    assert counts(ends) == counts([inf] * len(ends))


def test_of_two_trials_that_want_the_long_slot_the_other_one_takes_none() -> None:
    """The short one would make 6 s x 8 samples/s, and growing costs 5 s x 10 samples/s."""
    at = seen([inf, inf, inf, 6.0], FALLING, [1, 1], 2, widths=(1, 2))
    plan, _ = POLICY.decide(at, {})
    assert sorted(map(sorted, lanes(plan).values())) in (
        [["s0", "s2"], ["s1"]],
        [["s0"], ["s1", "s2"]],
    )


def test_what_was_given_up_for_nothing_is_kept() -> None:
    """The third trial would begin on a slot of the first, but that one leaves too soon for it."""
    at = seen([8.0, 8.0, 8.0, 8.0], FALLING, [4], 2, build=10.0, widths=(1, 4))
    plan, _ = POLICY.decide(at, {})
    assert plan == at.plan


def test_a_trial_does_not_begin_where_it_could_not_be_built_and_kept() -> None:
    assert not POLICY.decide(seen([9.0], FALLING, [], build=10.0), {})[0].gangs
    assert POLICY.decide(seen([11.0], FALLING, [], build=10.0), {})[0].gangs


def test_the_longest_slots_are_taken_and_the_shortest_released() -> None:
    grown, _ = POLICY.decide(seen([30.0, inf, 60.0], (10.0, 20.0), [], widths=(1, 2)), {})
    assert set(lanes(grown)[TrialId("t0")]) == {"s1", "s2"}
    # A second trial comes, and the first one gives up half of its slots.
    at = seen([50.0, inf, 50.0, inf], FALLING, [4], 2, widths=(1, 4))
    shrunk, _ = POLICY.decide(at, {})
    assert lanes(shrunk)[TrialId("t0")] == ("s1", "s3")
