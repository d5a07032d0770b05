"""What a user may have called while a study runs."""

from collections.abc import Mapping
from typing import Any

# The methods that are called.
METHODS = ("on_start", "on_trial_start", "on_epoch", "on_trial_end", "on_end")


class Callback:
    """Code of yours that follows a study; override what you need.

    `study` is the `Study`; `study.trials` and `study.best_trial` are as of this moment. `trial` is
    a `TrialResult`: id, config, status, epochs, value, scores. Methods run in the process that
    called `optimize`, between two steps of training: a slow one delays the next.

    `on_epoch` and `on_trial_end` may name one more argument, `model`: it gets the trial's model of
    that moment, a copy in evaluation mode; None if a trial failed before a state of it was kept.

    An error in a method is one warning, and that method of this object is not called again; trials
    go on. `study.stop(trial.id)`, `study.stop()`, `study.enqueue(…)` and the like may be called.
    """

    def on_start(self, study: Any) -> None:
        """A run of the study begins, the first one or one that goes on.

        Args:
            study: the `Study`.
        """

    def on_trial_start(self, study: Any, trial: Any) -> None:
        """The trial begins to train, or goes on in this run, or after its former end.

        Args:
            study: the `Study`.
            trial: its `TrialResult` as of now.
        """

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Mapping[str, float]) -> None:
        """The trial was evaluated.

        Args:
            study: the `Study`.
            trial: its `TrialResult` as of now.
            epoch: after how many epochs, perhaps a fraction.
            values: its scores, by name.
        """

    def on_trial_end(self, study: Any, trial: Any) -> None:
        """The trial ended.

        Args:
            study: the `Study`.
            trial: its `TrialResult`; `trial.status` says how it ended: "finished", "retired" or
                "failed: why".
        """

    def on_end(self, study: Any) -> None:
        """The run is over: all is done, or it was stopped, or it raised an error.

        Args:
            study: the `Study`.
        """
