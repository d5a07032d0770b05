"""What a study offers to training code that it does not drive step by step."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.trial import TrialId
from shoal.search import is_searcher
from shoal.study import results
from shoal.study.code.files import code_name, function_in
from shoal.study.code.given import as_recipe
from shoal.study.folder import StudyError
from shoal.study.parts.result import TrialResult, id_of
from shoal.study.stored import StoredStudy
from shoal.train.function.recipe import nothing

# Where to give what Optuna's `ask` takes.
SPACE_FIRST = (
    'a study knows its space before it is asked: create_study(search_space={"lr": '
    "shoal.loguniform(1e-4, 1e-1)}), then study.ask(); or trial.suggest_float(…) on what it gives"
)


def check_ask(space: Any, others: Mapping[str, Any]) -> None:
    """Raise StudyError if `ask` was given more than it takes."""
    if space is not None or "fixed_distributions" in others:
        raise StudyError(SPACE_FIRST)
    for name in others:
        raise StudyError(f"ask has no argument {name}=: it takes open_first=True only")


class OwnCode(StoredStudy):
    """The part of a `Study` that is for functions."""

    def by_place(self, searcher: Any, policy: Any) -> tuple[Any, Any, int | None]:
        """The searcher, the policy and the number of trials that `optimize` was given by place.

        After a function, which becomes what is trained, a searcher may follow, or the number of
        trials, as in Optuna.

        Raises:
            StudyError: the study has another function.
        """
        rest = self._without_function(searcher)
        if rest is searcher:
            return searcher, policy, None
        if isinstance(policy, int):
            return None, "auto", policy
        if is_searcher(policy):
            return policy, "auto", None
        return None, policy, None

    def _without_function(self, searcher: Any) -> Any:
        """The searcher that `optimize` was given; a function becomes what is trained.

        Raises:
            StudyError: the study has another function.
        """
        former = function_in(self.setup.recipe)
        own = isinstance(searcher, str | type) or hasattr(searcher, "propose")
        if own or former is None or not callable(searcher):
            return searcher
        recipe = as_recipe(searcher)
        if former is not nothing and former is not searcher:
            hint = ""
            if self.setup.recipe.draws and not recipe.draws:  # type: ignore[attr-defined]
                hint = " (if it is an objective, call its first argument trial)"
            raise StudyError(
                f"this study trains {code_name(self.setup.recipe)}: to train "
                f"{getattr(searcher, '__name__', searcher)!s}, create a study of it{hint}"
            )
        self.setup = replace(self.setup, source=recipe)
        return None

    def checkpoint(self, trial: TrialResult | TrialId | str, which: str = "last") -> Any:
        """What a function's trial gave as its newest checkpoint; of a path, the path of a copy.

        `which`: as of `load_model`.

        Raises:
            StudyError: the study's trials are no functions, there is no such trial, or it gave
                none.
        """
        return results.checkpoint(self.setup, self.state, id_of(trial), which)
