"""Trials whose newest durable state cannot be read: they go on from the one before."""

from collections.abc import Mapping
from dataclasses import replace

from shoal.backend.course import Positions
from shoal.core.event import Event, Fell
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import StateLost


def fall_back(course: Positions, trial: TrialId, error: StateLost) -> Fell | None:
    """Back to the durable state before the newest one, or to the beginning.

    None: there is none before, and the trial did not begin from nothing but from the state of
    another trial. So it cannot go on.
    """
    at = course.positions[trial]
    if at.former is None and at.trial.start is not None:
        return None
    at.kept = at.former
    at.former = None
    return replace(course.fall(trial), why=error.why)


def fallen(course: Positions, outcomes: Mapping[TrialId, object]) -> dict[TrialId, Event]:
    """The trials of these that lost their newest durable states, and can go on."""
    found: dict[TrialId, Event] = {}
    for trial, outcome in outcomes.items():
        if isinstance(outcome, StateLost):
            fell = fall_back(course, trial, outcome)
            if fell is not None:
                found[trial] = fell
    return found
