"""What a study's folder tells: its trials, the best of them, their models."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import reporting
from shoal.core.state import State
from shoal.core.trial import TrialId, is_whole, shown
from shoal.engine.files import whole as whole_path
from shoal.engine.journal import Line
from shoal.study import results
from shoal.study.folder import Folder, StudyError
from shoal.study.parts import result
from shoal.study.parts.backends import at_holders
from shoal.study.parts.curves import curve_rows
from shoal.study.parts.result import TrialResult, id_of
from shoal.study.setup import Setup, alone_in_process
from shoal.train.function.recipe import FunctionRecipe

if TYPE_CHECKING:
    from torch import nn

    from shoal.train.data.data import Data
    from shoal.train.recipe.recipe import Recipe


# What users of other tools look for, and what to use here.
MEANT = {
    "fit": "optimize()",
    "run": "optimize()",
    "train": "optimize()",
    "tune": "optimize()",
    "results": "trials, or trials_dataframe()",
    "get_results": "trials, or trials_dataframe()",
    "get_dataframe": "trials_dataframe()",
    "best_result": "best_trial",
    "get_best_result": "best_trial",
    "get_best_trial": "best_trial",
    "best_trials": "best_trial, or best_by_recipe",
    "get_best_config": "best_config",
    "best_estimator_": "best_model()",
    "best_checkpoint": "best_model()",
    "get_best_model": "best_model()",
    "enqueue_trial": "enqueue(config)",
    "add_trial": "enqueue(config)",
    "direction": "setup.mode",
    "name": "folder.path.name",
    "study_name": "folder.path.name",
    "plot": "report()",
    "predict": "best_model(), with data().encode(file)",
}


class StoredStudy:
    """A study as it is stored: what can be read of it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        # The journal's size in bytes, and what it says.
        self._state: tuple[int, State] | None = None

    def __getattr__(self, name: str) -> Any:
        meant = MEANT.get(name)
        if meant is None:
            offered = [each for each in dir(self) if not each.startswith("_")]
            meant = " or ".join(get_close_matches(name, offered, 2))
        hint = ""
        if meant and not name.startswith("_"):
            hint = f": did you mean {meant}?"
        raise AttributeError(f"a study has no {name!r}{hint}")

    @property
    def recipe(self) -> "Recipe":
        """What is trained."""
        return self.setup.recipe

    @property
    def folder(self) -> Folder:
        """Where the study is stored."""
        return self.setup.folder

    @property
    def metric(self) -> str | None:
        """The name of the validation value to rank by."""
        return self.setup.metric

    # -- what came out -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the journal says now."""
        if self.folder.live is not None:
            return self.folder.live
        size = self.folder.size()
        if self._state is None or self._state[0] != size:
            self._state = size, self.folder.past().state
        return self._state[1]

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, in the order of their submission."""
        return result.results_of(self.setup, self.state)

    @property
    def best_trial(self) -> TrialResult:
        """The trial with the best last score; of equal ones the first.

        Raises:
            StudyError: no metric was named, several recipes have unlike ones, or no trial has a
                score yet.
        """
        return result.ranked(self.setup, self.state)[0]

    @property
    def best_by_recipe(self) -> Mapping[str, TrialResult]:
        """Of several recipes by name, the best trial of each, by its own metric.

        A recipe is left out as long as none of its trials has a score.

        Raises:
            StudyError: the study has one recipe.
        """
        return result.best_by_recipe(self.setup, self.state)

    @property
    def best_config(self) -> Mapping[str, Any]:
        """The configuration of `best_trial`."""
        return self.best_trial.config

    @property
    def best_params(self) -> Mapping[str, Any]:
        """`best_config`, as Optuna calls it."""
        return self.best_config

    @property
    def best_value(self) -> float:
        """The last score of `best_trial`."""
        return self.best_trial.value

    def get_trials(self, *others: Any, **given: Any) -> list[TrialResult]:
        """`trials`, as Optuna calls it. There are no arguments: they are errors.

        Raises:
            StudyError: there are some.
        """
        if given.get("states") is not None or others:
            raise StudyError(
                "get_trials gives all trials: choose by their status, as "
                '[t for t in study.trials if t.status == "finished"] (or "running", "retired", '
                'and of failed ones t.status.startswith("failed"))'
            )
        return self.trials

    def best_model(self, which: str = "last") -> "nn.Module":
        """The best trial's model in evaluation mode; `which`: as of `load_model`."""
        return self.load_model(self.best_trial, which)

    def models(self, top: int) -> list["nn.Module"]:
        """The models of the best `top` trials, best first."""
        if not is_whole(top) or top < 0:
            raise StudyError(f"top must be a number of trials >= 0; got {shown(top)}")
        return [self.load_model(trial) for trial in result.ranked(self.setup, self.state)[:top]]

    def load_model(self, trial: TrialResult | TrialId | str, which: str = "last") -> "nn.Module":
        """A trial's model in evaluation mode, with its newest durable weights.

        `which`: "best" takes the best of the weights that were kept instead.

        Raises:
            StudyError: there is no such trial, or nothing durable of it.
        """
        return results.load_model(self.setup, self.state, id_of(trial), which)

    def data(self) -> "Data":
        """The recipe's data, read again; its method `encode` gives new rows to predict on.

        Raises:
            StudyError: it is other data than trials were trained on, it cannot be read, or the
                study trains a function.
        """
        return results.data_as_trained(self.setup)

    def trials_dataframe(self) -> Any:
        """One row a trial.

        Its columns: id, status, value, best_value, epochs, samples, config.<name>, and
        last.<name> for each metric.
        """
        rows = [result.row_of(trial) for trial in self.trials]
        return _frame(rows, "trials_dataframe")

    def learning_curves(self) -> Any:
        """One row for each value of each trial and epoch, read from the journal alone.

        Its columns: trial, epoch, name, value, and split: "train" for means over the epoch's
        training samples, "validation" for scores.
        """
        return _frame(curve_rows(self.lines()), "learning_curves")

    def report(self, path: str | Path | None = None, *, whole: bool = False) -> Path:
        """Write the report, one HTML file made from the journal alone; returns its path.

        By default it goes into the study's folder. Of a journal of more than 100 000 entries the
        use of slots is that of the newest of them, and of more than 10 000 trials a sample is
        drawn; the page says so. `whole`: the use of slots of the whole journal, which takes longer.

        Raises:
            StudyError: the study has not begun.
        """
        self.folder.check_begun()
        target = whole_path(path or self.folder.report)
        since, lines = self.folder.snapshots.recent(whole)
        facts = reporting.account(lines, since=since)
        folder = str(self.folder.path)
        return reporting.save(facts, target, None, folder, named=path is not None)

    def replay(
        self, trials: Sequence[str] | None = None, *, address: str | None = None
    ) -> list[dict[str, Any]]:
        """Train trials again, alone, over their recorded visits, and compare with what was kept.

        `trials`: by default all that have durable weights. `address`: of the Ray cluster whose
        nodes hold the shards (`Data.shards`): trials are trained at one of these nodes, and the
        others read for it.

        Returns a row a trial: trial, visits, verdict, why (of the last three verdicts), equal (the
        verdict is "equal"), agrees (it is one of the first two), difference (the largest absolute
        one), fused (trained in a fused pack), wide (it had several slots), elsewhere (of one that
        differs: in what the processor, the libraries or the threads are others than in the study).
        The verdicts are

        - "equal": to the last bit;
        - "agrees": of a fused or wide trial; what is exact is equal (visits, samples, steps,
          schedules, random states, integers), and numbers are as near as rounding leaves them;
        - "not comparable": what is exact is equal, but rounding moves the numbers too far, or
          other random numbers were drawn;
        - "differs";
        - "missing": its checkpoint is not there, or damaged.

        Raises:
            StudyError: there is nothing durable of a trial, or this process trains already.
            ConnectionError: no cluster is at the address, or the process at its node ended.
        """
        if address is not None and isinstance(self.setup.recipe, FunctionRecipe):
            raise StudyError(
                "address= (--address) names the nodes where a recipe's shards lie, and functions "
                "read their data themselves: leave it out"
            )
        chosen = [id_of(trial) for trial in trials or ()]
        with alone_in_process(self.folder), at_holders(address) as perform:
            return results.replayed(self.setup, self.state, chosen, perform)

    def lines(self) -> list[Line]:
        """The journal."""
        return self.folder.lines()


def _frame(rows: Sequence[Mapping[str, Any]], method: str) -> Any:
    """The rows as a dataframe, for that method."""
    try:
        import pandas
    except ImportError as error:
        raise StudyError(f"{method}() needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)
