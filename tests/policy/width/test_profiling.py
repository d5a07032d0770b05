"""What `flotilla` measures first (FLEET, appendix B.3), and eq. 5 for what it does not."""

import pytest
from small_studies import follow, nodes, state, trial

from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Finished, Measured
from shoal.core.plan import Plan
from shoal.core.state import State, View, view
from shoal.core.trial import TrialId, Visit
from shoal.policy.width.ask import all_widths, asks
from shoal.policy.width.flotilla import Flotilla, extended, missing
from shoal.profile.evidence import known_widths
from shoal.profile.measure import believe

EIGHT = (10.0, 20.0, 30.0, 38.0, 47.0, 56.0, 65.0, 72.0)


def seen(known: State) -> View:
    return view(known, 0.0, believe(known))


def name(width: int) -> str:
    return "rate" if width == 1 else f"rate@{width}"


def measured(number: int, *rates: float) -> Measured:
    """Its rates at widths 1, 2, …"""
    figures = {name(width): rate for width, rate in enumerate(rates, 1)}
    return Measured(TrialId(f"t{number}"), f"kind{number}", figures)


def widths(plan: Plan) -> dict[str, int]:
    return {lane.trial: len(lane.slots) for gang in plan.gangs for lane in gang.lanes}


def decide(policy: Flotilla, known: State, memory: object) -> tuple[State, object]:
    plan, memory = policy.decide(seen(known), memory)  # type: ignore[arg-type]
    return follow(known, plan), memory


def test_each_kind_is_measured_alone_before_flotillas_are_formed() -> None:
    known = state([trial(i, 1e6, (1, 2)) for i in range(3)], nodes(2))
    policy = Flotilla()
    known, memory = decide(policy, known, policy.start())
    assert widths(known.plan) == {"t0": 1, "t1": 1}
    known = follow(known, known.plan, measured(0, 100.0))
    known, memory = decide(policy, known, memory)
    assert widths(known.plan) == {"t1": 1, "t2": 1}, "t0 is known, and makes room"
    known = follow(known, known.plan, measured(1, 10.0), measured(2, 95.0))
    known, memory = decide(policy, known, memory)
    assert widths(known.plan) == {"t0": 1, "t2": 1}, "t1 is too slow at any width"
    known = follow(known, known.plan, Finished(TrialId("t0")), Finished(TrialId("t2")))
    known, _ = decide(policy, known, memory)
    assert widths(known.plan) == {"t1": 2}


def test_all_widths_up_to_m_t_are_measured_as_printed() -> None:
    """Two slots to a node: M_b = 4; the slowest would need M_a = 6 slots."""
    trials = [trial(0, 1e6), trial(1, 1e6)]
    known = state(trials, nodes(8, per_node=2))
    wanting = asks(seen(known), all_widths)
    found = missing(seen(known), wanting, {}, "printed")
    assert [need.widths for need in found] == [(1, 2, 3, 4)] * 2
    known = follow(known, known.plan, measured(0, 100.0), measured(1, 17.0))
    found = missing(seen(known), wanting, {}, "printed")
    assert [need.widths for need in found] == [(2, 3, 4, 5, 6)] * 2
    assert missing(seen(known), wanting, {}, "alone") == []
    known = follow(known, known.plan, measured(1, *range(17, 23)))
    found = missing(seen(known), wanting, {}, "printed")
    assert [(need.ask.trial, need.widths) for need in found] == [("t0", (2, 3, 4, 5, 6))]


def test_a_trial_is_measured_at_one_width_after_the_other_where_it_is() -> None:
    known = state([trial(0, 1e6, (1, 3)), trial(1, 1e6, (1, 3))], nodes(3))
    policy = Flotilla(profile="printed")
    memory: object = policy.start()
    begun = []
    for upto in range(1, 4):
        known, memory = decide(policy, known, memory)
        begun.append(widths(known.plan))
        known = follow(known, known.plan, measured(0, *EIGHT[:upto]))
    assert begun[0] == {"t0": 1, "t1": 1}
    assert begun[1] == {"t0": 2, "t1": 1}
    assert begun[2] == {"t0": 2, "t1": 1}, "three slots are not free while t1 is measured"


def test_trials_of_one_kind_are_measured_once() -> None:
    known = state([trial(i, 1e6, (1, 2)) for i in range(2)], nodes(1))
    alike = [known.trials[each] for each in known.trials]
    known = follow(known, known.plan, measured(0, 100.0))
    assert known_widths(seen(known).profile, alike[0].id) == {1}
    assert known_widths(seen(known).profile, alike[1].id) == set()
    known = follow(known, known.plan, Measured(TrialId("t1"), "kind0", {}))
    assert known_widths(seen(known).profile, alike[1].id) == {1}


def test_a_width_that_gives_no_rate_is_given_up_after_a_whole_visit() -> None:
    known = state([trial(0, 1e6, (1, 2))], nodes(2))
    policy = Flotilla()
    known, memory = decide(policy, known, policy.start())
    assert widths(known.plan) == {"t0": 1}
    for number in range(2):
        visit = Visit(0, ShardId("a"), number, 100)
        made = Advanced({TrialId("t0"): 100.0}, visits={TrialId("t0"): (visit,)})
        known = follow(known, known.plan, made)
    known, _ = decide(policy, known, memory)
    assert widths(known.plan) == {"t0": 2}


@pytest.mark.parametrize(
    ("rates", "last"),
    [(EIGHT, 112.145), (EIGHT[:7], None)],
)
def test_unmeasured_widths_have_the_rates_of_eq_5(
    rates: tuple[float, ...], last: float | None
) -> None:
    """ALGORITHMS' third example; with less than two nodes measured, what the profile believes."""
    known = state([trial(0, 1e6, (1, 16))], nodes(16))
    known = follow(known, known.plan, measured(0, *rates))
    (ask,) = asks(seen(known), all_widths)
    after = extended(seen(known), ask)
    assert after.rates[:7] == pytest.approx(rates[:7])
    if last is None:
        assert after.rates == ask.rates
    else:
        assert (after.rates[8], after.rates[9], after.rates[15]) == pytest.approx(
            (78.508, 84.547, last), abs=1e-3
        )
