"""What slots are told with a round of what others have measured."""

from typing import Any

from shoal.backend.ray.gangs import rated_before
from shoal.core.cluster import ShardId
from shoal.core.trial import Trial, TrialId, Visit
from shoal.train.recipe.unit import Unit

VISIT = Visit(0, ShardId("s"), 0, 10)


def units(*made: int) -> Any:
    """A unit of each trial, after so many visits."""
    trials = [Trial(TrialId(f"t{number}"), 20.0, {}) for number in range(len(made))]
    return {
        trial.id: Unit(trial, (VISIT,) * count, VISIT)
        for trial, count in zip(trials, made, strict=True)
    }


def test_a_pack_that_has_trained_is_begun_at_any_slot() -> None:
    """Its trials told their rates at another slot: a slot that is new to them tries nothing."""
    assert rated_before(units(1, 2), {"x"}) is None


def test_a_pack_with_a_trial_that_has_not_trained_is_held_against_what_is_known() -> None:
    assert rated_before(units(1, 0), {"x"}) == {"x"}
    assert rated_before(units(0), set()) == frozenset()
