"""Trials of a search may have several slots: whoever is left of a rung is widened."""

from dataclasses import replace
from typing import Any

import pytest
from search_kit import simulate

from shoal.core.event import Planned
from shoal.policy.width.waterfill import WaterFill
from shoal.search import ASHA, PBT, Hyperband, MedianStopping, Optuna, SuccessiveHalving
from shoal.search.space import uniform

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}
RATES = (100.0, 190.0, 270.0, 350.0)
SEARCHES = {
    "halving": SuccessiveHalving(X, 9, 9, **GOAL),
    "hyperband": Hyperband(X, 9, concurrent=False, **GOAL),
    "asha": ASHA(X, 9, 9, max_concurrent=9, **GOAL),
    "pbt": PBT(X, 3, 3, **GOAL),
    "median": MedianStopping(Optuna("random", X, 5, 3, **GOAL), **GOAL),
}


def wide(searcher: Any) -> Any:
    """The searcher, whose trials may have up to four slots."""
    if isinstance(searcher, MedianStopping):
        return replace(searcher, inner=replace(searcher.inner, widths=[1, 4]))
    return replace(searcher, widths=[1, 4])


@pytest.mark.parametrize("name", SEARCHES)
def test_few_trials_left_are_widened_and_score_the_same(name: str) -> None:
    alone, narrow = simulate(SEARCHES[name], WaterFill(), slots=4, rates=RATES)
    state, lines = simulate(wide(SEARCHES[name]), WaterFill(), slots=4, rates=RATES)
    assert {trial.widths for trial in alone.known.values()} == {(1, 1)}
    assert {trial.widths for trial in state.known.values()} == {(1, 4)}
    plans = [line.entry for line in lines if isinstance(line.entry, Planned)]
    gangs = [gang for plan in plans for gang in plan.start]
    assert max(len(gang.slots) for gang in gangs) > 1
    assert lines[-1].time < narrow[-1].time
    if name not in ("asha", "median"):  # these follow who comes first
        assert state.scores == alone.scores and state.done == alone.done


@pytest.mark.parametrize(
    "searcher",
    [ASHA(X, 9, 9, widths=(2, 4), **GOAL), Optuna("random", X, 9, 9, widths=(2, 4), **GOAL)],
)
def test_as_many_trials_are_under_way_as_slots_allow(searcher: Any) -> None:
    _, lines = simulate(searcher, WaterFill(), slots=4, rates=RATES)
    plans = [line.entry for line in lines if isinstance(line.entry, Planned)]
    first = next(plan.start for plan in plans if plan.start)
    assert sorted(len(gang.slots) for gang in first) == [2, 2]
    at_once = {entry.trial.id for time, entry in lines if _is_first(time, entry)}
    assert len(at_once) == 2


def _is_first(time: float, entry: Any) -> bool:
    return time == 0.0 and hasattr(entry, "trial") and hasattr(entry.trial, "widths")
