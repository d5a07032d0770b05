"""Policies made of policies."""

import pytest
from small_studies import follow, nodes, seen, simulated, state, table, trial, widths_over_time

from shoal.core.plan import Plan
from shoal.core.trial import TrialId
from shoal.policy.combine import admit, every, fallback
from shoal.policy.fifo import Fifo
from shoal.policy.reference.baselines import Width
from shoal.policy.width.equi import Equi

FLAT = table((1.0, 2.0, 3.0, 4.0))


def test_admit_shows_the_first_trials_only() -> None:
    lines = simulated(admit(2, Equi()), [(0.0, trial(i, 8.0)) for i in range(3)], nodes(4), FLAT)
    assert widths_over_time(lines) == [(0.0, {"t0": 2, "t1": 2}), (4.0, {"t2": 4})]


def test_fallback_gives_the_rest_to_the_other() -> None:
    known = state([trial(i, 8.0) for i in range(4)], nodes(4))
    policy = fallback(admit(1, Width(2)), Fifo())
    plan, memory = policy.decide(seen(known, FLAT), policy.start())
    assert {g.trials[0]: len(g.slots) for g in plan.gangs} == {"t0": 2, "t1": 1, "t2": 1}
    known = follow(known, plan)
    again, _ = policy.decide(seen(known, FLAT), memory)
    assert again.gangs == plan.gangs


def test_every_waits_for_its_time() -> None:
    lines = simulated(
        every(10.0, Equi()), [(0.0, trial(0, 30.0)), (3.0, trial(1, 30.0))], nodes(4), FLAT
    )
    assert widths_over_time(lines) == [(0.0, {"t0": 4}), (10.0, {"t1": 4})]


def test_every_keeps_what_runs_and_asks_for_the_next_time() -> None:
    known = state([trial(0, 30.0)], nodes(2))
    policy = every(10.0, Equi())
    plan, memory = policy.decide(seen(known, FLAT, 12.0), policy.start())
    assert plan.wake_at == 20.0
    assert policy.decide(seen(known, FLAT, 15.0), memory)[0] == Plan(frozenset(), 20.0)


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="admitted"):
        admit(0, Equi())
    with pytest.raises(ValueError, match="interval"):
        every(0.0, Equi())


def test_trials_behind_the_limit_are_not_stopped_by_fifo() -> None:
    known = state([trial(0, 8.0), trial(1, 8.0)], nodes(2))
    known = follow(known, Fifo().decide(seen(known, FLAT), None)[0])
    plan, _ = admit(1, Fifo()).decide(seen(known, FLAT), None)
    assert {TrialId("t0"), TrialId("t1")} == {t for g in plan.gangs for t in g.trials}
