"""Policies of changeable width go by the rates that were measured, once there are any."""

from collections.abc import Mapping, Sequence

import pytest
from small_studies import follow, nodes, state, table, trial

from shoal.core.event import Measured
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.profile import Profile
from shoal.core.state import State, view
from shoal.core.trial import TrialId
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
from shoal.policy.width.flotilla import Flotilla
from shoal.policy.width.waterfill import WaterFill
from shoal.profile.measure import believe

Rates = Mapping[TrialId, Sequence[float]]
SLOTS = 8
# Samples/s by width. The second scales well, the first not at all beyond two slots.
TRUE = {
    TrialId("t0"): (100.0, 190.0, 180.0, 170.0, 160.0, 150.0, 140.0, 130.0),
    TrialId("t1"): (40.0, 78.0, 115.0, 152.0, 188.0, 224.0, 260.0, 295.0),
}
POLICIES = [Doubling(), Doubling("plus-one"), Equi(), WaterFill(), Flotilla()]


def widths(plan: Plan) -> dict[str, int]:
    return {lane.trial: len(lane.slots) for gang in plan.gangs for lane in gang.lanes}


def begin() -> State:
    return state([trial(0, 1e7, (1, SLOTS)), trial(1, 1e7, (1, SLOTS))], nodes(SLOTS))


def timed(plan: Plan, rates: Rates) -> list[Measured]:
    """What the slots tell of a visit that each lane of the plan made."""
    found = []
    for name, width in sorted(widths(plan).items()):
        figure = "rate" if width == 1 else f"rate@{width}"
        rate = rates[TrialId(name)][width - 1]
        found.append(Measured(TrialId(name), f"kind of {name}", {figure: rate}))
    return found


def settled(
    policy: Policy[object], known: State, rates: Rates, profile: Profile | None = None
) -> tuple[State, object]:
    """Where the widths come to rest: by this profile, or by what is measured meanwhile."""
    memory = policy.start()
    for now in range(20):
        known, memory = decided(policy, known, memory, float(now), profile)
        known = follow(known, known.plan, *timed(known.plan, rates))
    return known, memory


def decided(
    policy: Policy[object],
    known: State,
    memory: object,
    now: float,
    profile: Profile | None = None,
) -> tuple[State, object]:
    """The state once the policy's plan runs, and what it remembers."""
    seen = view(known, now, profile or believe(known))
    plan, memory = policy.decide(seen, memory)
    return follow(known, plan), memory


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_widths_come_to_rest_where_the_true_rates_put_them(policy) -> None:
    truth = table(*TRUE.values()).of(begin().known)
    best, _ = settled(policy, begin(), TRUE, truth)
    found, _ = settled(policy, begin(), TRUE)
    assert widths(found.plan) == widths(best.plan)
    assert widths(found.plan)["t0"] == 2


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_a_trial_gives_back_slots_that_turn_out_slower_later(policy) -> None:
    known, memory = settled(policy, begin(), TRUE)
    slower = {**TRUE, TrialId("t0"): (100.0, 60.0)}
    known = follow(known, known.plan, *timed(known.plan, slower))
    known, _ = decided(policy, known, memory, 30.0)
    assert widths(known.plan)["t0"] == 1
