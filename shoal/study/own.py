"""What a study offers to training code that it does not drive step by step."""

from typing import Any

from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.study import results
from shoal.study.results import TrialResult
from shoal.study.setup import Setup


class OwnCode:
    """The part of a `Study` that is for functions and for loops of one's own."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @property
    def state(self) -> State:
        """What the journal says now."""
        raise NotImplementedError

    def checkpoint(
        self, trial: TrialResult | TrialId | str, which: str = "last"
    ) -> Any:
        """What a function's trial gave as its newest checkpoint; of a path, the path of a copy.

        `which`: as of `load_model`.

        Raises:
            StudyError: the study's trials are no functions, there is no such trial, or it gave
                none.
        """
        if isinstance(trial, TrialResult):
            trial = trial.id
        return results.checkpoint(self.setup, self.state, TrialId(trial), which)
