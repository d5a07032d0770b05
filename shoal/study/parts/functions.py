"""What a study of a function cannot be asked for, and what follows its run."""

from dataclasses import replace
from typing import Any

from shoal.core.event import Entry, Failed, Retired
from shoal.core.ports import Policy, Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.policy import Fifo
from shoal.policy.named import KNOWN
from shoal.search import (
    ASHA,
    PBT,
    Grid,
    Hyperband,
    Optuna,
    SuccessiveHalving,
    nested,
)
from shoal.search.draws import OWN, SOBOL
from shoal.study.code.files import function_in
from shoal.study.folder import StudyError
from shoal.study.parts.auto import policy_of
from shoal.study.parts.grown import with_last
from shoal.study.setup import Setup
from shoal.train.function.recipe import UNLIMITED, FunctionRecipe, nothing
from shoal.train.recipe.reads import reports_no_checkpoint

# Searchers whose trials stop at rungs, which lie before an end that must be known.
BY_RUNGS = (ASHA, Hyperband, PBT, SuccessiveHalving)


def trains_itself(setup: Setup) -> bool:
    """Whether trials are functions, which Shoal does not drive step by step."""
    return isinstance(setup.recipe, FunctionRecipe)


def function_policy(policy: Policy[Any] | str) -> Policy[Any]:
    """The policy for trials that are functions: each has a slot for itself.

    Raises:
        StudyError: the policy packs trials, moves them between slots, or gives them several.
    """
    if policy == "auto":
        return policy_of("auto:fifo", fuse=False, seed=0)
    if policy == "fifo":
        return Fifo()
    kinds = {kind for kind in KNOWN.values() if kind is not Fifo}
    if isinstance(policy, str) or type(policy) in kinds:
        raise StudyError(
            "a function has one slot for itself: it is neither packed nor moved nor resized, so "
            f'policy={policy!r} cannot be met: use "fifo", or leave policy= out'
        )
    return policy


def check_function_search(setup: Setup, searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher asks of functions what they cannot do."""
    if isinstance(setup.recipe, FunctionRecipe) and setup.recipe.draws:
        if function_in(setup.recipe) is nothing:
            raise StudyError(
                "there is nothing to train: study.optimize(objective, n_trials=…), or a loop of "
                "your own with study.ask() and study.tell()"
            )
        check_drawn(setup, searcher)
    for each in nested(searcher):
        if isinstance(each, PBT) and reports_no_checkpoint(setup.recipe):
            raise StudyError(
                "PBT copies trials from their checkpoints, and this function reports without one: "
                "give shoal.report(…, checkpoint=…) and begin with shoal.restore(), or use another "
                "searcher"
            )
        widths = getattr(each, "widths", None)
        if widths not in (None, (1, 1)):
            raise StudyError(
                f"a function has one slot for itself, so widths={widths!r} cannot be met: "
                "leave widths= out"
            )
        if isinstance(each, BY_RUNGS) and each.max_epochs == UNLIMITED:
            raise StudyError(
                f"{type(each).__name__} compares trials after some of their reports: say how many "
                "a trial makes at most, max_epochs="
            )


def check_drawn(setup: Setup, searcher: Searcher[Any]) -> None:
    """Raise StudyError if the searcher must know the space that an objective draws from."""
    for each in nested(searcher):
        if getattr(each, "space", None):
            continue
        if isinstance(each, Optuna | PBT):
            raise StudyError(
                f"{type(each).__name__} must know the space before a trial begins, and this "
                "objective draws its parameters as it runs: give search_space= (suggest_* then "
                "take their values from it), or leave the searcher out for random ones"
            )
        if isinstance(each, Grid):
            raise StudyError("say how many trials to draw: n_trials=")


def with_own_draws(setup: Setup, searcher: Searcher[Any]) -> Searcher[Any]:
    """The searcher; where an objective alone draws, it says so, and the objective is told.

    What an objective draws is spread over trials then. It is not in a study that was begun before,
    nor where the searcher draws, too: both would take the same places.
    """
    core: Any = [*nested(searcher)][-1]
    if not isinstance(setup.recipe, FunctionRecipe) or not hasattr(core, "sampling"):
        return searcher
    if setup.recipe.draws and core.sampling == SOBOL and not core.space:
        core = replace(core, sampling=OWN)
        searcher = with_last(searcher, core)
    setup.recipe.spread = core.sampling == OWN
    return searcher


def end_beyond_rungs(searcher: Searcher[Any]) -> float | None:
    """The epochs to which trials go on at most that ended at a rung; None: none goes on."""
    for each in nested(searcher):
        if isinstance(each, BY_RUNGS) and not getattr(each, "stopping", False):
            return each.max_epochs
    return None


def releasing(setup: Setup, backend: Any) -> list[Any]:
    """What ends the functions of trials that are taken out."""
    if not trains_itself(setup):
        return []
    return [Releasing(backend)]


class Releasing:
    """Ends the functions of trials that were taken out."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, now: Seconds, entries: tuple[Entry, ...], state: State) -> None:
        for entry in entries:
            if isinstance(entry, Retired | Failed):
                self._backend.forget(entry.trial)
