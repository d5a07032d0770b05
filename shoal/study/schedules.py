"""For how many epochs schedules are laid out, where a recipe's code asks how long it trains.

The journal has that number. It stays: what a trial learns depends on it.
"""

from collections.abc import Mapping
from math import ceil
from typing import Any

from shoal.core.errors import StudyError, warn
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.visits import EPS
from shoal.search.registry import nested
from shoal.study.setup import Setup
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe

SCHEDULE = "schedule_epochs"  # its place in a journal's head
# Epochs of a Trainer that is told nothing; where only speeds are of interest.
USUAL = 1000
ASKS = "the module asks self.trainer how long it trains, and its schedules are laid out for"
Head = Mapping[str, Any]


def recipe_for_study(recipe: Recipe, former: Head) -> Recipe:
    """The recipe, with schedules for this study alone, as long as its head says."""
    if not isinstance(recipe, Adapted):
        return recipe
    adapted = recipe.for_study()
    if isinstance(adapted, Adapted) and former.get(SCHEDULE) is not None:
        adapted.plan(former[SCHEDULE], asked=True)
    return adapted


def plan_schedules(setup: Setup, searcher: Searcher[Any], before: Head, state: State) -> int | None:
    """Tell the recipe how long trials train; returns the epochs of the longest, if known."""
    longest = _longest_trial(searcher)
    if isinstance(setup.recipe, Adapted):
        former = _former_epochs(before, state)
        setup.recipe.plan(former or longest, asked=former is not None)
    return longest


def plan_to_measure(recipe: Recipe) -> Recipe:
    """The recipe with usual schedules, to be tried or timed outside of a study."""
    if not isinstance(recipe, Adapted):
        return recipe
    adapted = recipe.for_study()
    if isinstance(adapted, Adapted):
        adapted.plan(USUAL)
    return adapted


def _longest_trial(searcher: Searcher[Any]) -> int | None:
    """Whole epochs of the longest trials that the searcher, or one within it, asks for."""
    ends = [getattr(each, "max_epochs", None) for each in nested(searcher)]
    known = [each for each in ends if each is not None]
    if not known:
        return None
    epochs: int = ceil(max(known) - EPS)
    return epochs


def _former_epochs(before: Head, state: State) -> int | None:
    """The epochs that schedules of trials on record are laid out for; None if nothing says it."""
    if not state.known:
        return None
    epochs: int | None = before.get(SCHEDULE)
    return epochs


def check_schedules(setup: Setup, longest: int | None, before: Head, state: State) -> int | None:
    """The epochs that schedules are laid out for; None if the recipe's code does not ask.

    Raises:
        StudyError: trials on record have other schedules, or trials are to train for longer.
    """
    if not isinstance(setup.recipe, Adapted):
        return None
    now = setup.recipe.planned()
    former = _former_epochs(before, state)
    if former is not None and now not in (None, former):
        raise StudyError(
            f"this study's schedules are laid out for {former} epochs, and the recipe now says "
            f"max_epochs={now}: give {former} again, or begin a new study with another storage="
        )
    epochs = former or now
    if epochs is None or longest is None:
        return epochs
    if state.known:
        check_schedule_end({SCHEDULE: epochs}, longest)
    elif longest > epochs:
        raise StudyError(
            f"{ASKS} the recipe's max_epochs={epochs}, and trials are to train for {longest}: "
            "give shoal.lightning(…, max_epochs=) and the study the same number, or leave the "
            "recipe's out"
        )
    elif longest < epochs:
        warn(
            f"trials train for {longest} epochs, and their schedules are laid out for {epochs}, "
            f"the recipe's max_epochs: if the schedules are to end with the trials, give both the "
            "same number"
        )
    return epochs


def check_schedule_end(head: Head, epochs: float) -> None:
    """Raise StudyError if a trial is to train for longer than schedules are laid out for."""
    most = head.get(SCHEDULE)
    if most is None or epochs <= most:
        return
    raise StudyError(
        f"{ASKS} max_epochs={most}, as the trials on record had it, so that none can train for "
        f"{epochs:g} epochs: begin a new study with another storage="
    )
