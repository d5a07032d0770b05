"""What came of a study: its trials, the best of them, their models and curves."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.cluster import RECIPE
from shoal.core.errors import StudyError
from shoal.core.state import Score, State
from shoal.core.trial import Samples, Trial, TrialId, Value
from shoal.engine.journal import Line
from shoal.reporting.tally import TRAINING, Tally
from shoal.study.arguments import check_recipe_type
from shoal.study.checkpoint_retention import Retention
from shoal.study.setup import Setup, data_of, explain_missing_data
from shoal.train.data.data import Data
from shoal.train.function.checkpoint import unpacked
from shoal.train.function.command import CommandRecipe
from shoal.train.function.objective import numbered
from shoal.train.function.recipe import FunctionRecipe, nothing
from shoal.train.lane.checkpoints import Checkpoints, Damaged
from shoal.train.recipe.unit import Tree
from shoal.train.tools.verify import model_from

if TYPE_CHECKING:
    from torch import nn


COLUMNS = ("id", "status", "value", "best_value", "epochs", "samples")
# What users of other tools look for, and what to use here.
MEANT = {
    "state": "status",
    "values": "value, or metrics",
    "intermediate_values": "scores",
    "user_attrs": "metrics",
    "last_result": "metrics",
    "last_step": "epochs",
    "name": "id",
    "trial_id": "id",
    "checkpoint": "study.checkpoint(trial)",
}
CURVE_COLUMNS = ("trial", "epoch", "name", "value", "split")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of one trial.

    Attributes:
        id: its name, as "t003".
        config: its configuration, by name.
        status: "running", "finished", "retired" or "failed: why".
        epochs: passes over its data that it has trained, with fractions.
        samples: training samples that it has trained on.
        value: its last score of the study's metric, nan without one. Where several recipes have
            unlike metrics, of its recipe's.
        best_value: the best score over its epochs, nan without one.
        scores: (epoch, {metric: value}), oldest first.
    """

    id: TrialId
    config: Mapping[str, Value]
    status: str
    epochs: float
    samples: Samples
    value: float
    best_value: float
    scores: tuple[Score, ...]

    @property
    def number(self) -> int:
        """The number in its name, from 0, as Optuna calls it."""
        return numbered(self.id)

    @property
    def params(self) -> Mapping[str, Value]:
        """`config`, as Optuna calls it."""
        return self.config

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last scores by name, as Ray Tune calls it; empty without a score."""
        if not self.scores:
            return {}
        return self.scores[-1][1]

    def __getattr__(self, name: str) -> Any:
        meant = MEANT.get(name)
        hint = ""
        if meant is not None:
            hint = f": did you mean {meant}?"
        raise AttributeError(f"a trial has no {name!r}{hint}")


def id_of(trial: Any) -> TrialId:
    """The id of a trial, given as that id or as `Study.trials` lists it."""
    return trial.id if isinstance(trial, TrialResult) else TrialId(str(trial))


def results_of(setup: Setup, state: State) -> list[TrialResult]:
    """What came of each trial, in the order of their submission."""
    return [result_of(setup, state, trial) for trial in state.known.values()]


def result_of(setup: Setup, state: State, trial: Trial) -> TrialResult:
    """What came of this trial; the caller may change what it holds."""
    name = trial.id
    scores = state.scores[name]
    metric, mode = setup.aim(trial.config)
    key = metric or ""  # no value has the empty name
    values = [by_name[key] for _, by_name in scores if key in by_name]
    better = max if mode == "max" else min
    return TrialResult(
        id=name,
        config=dict(trial.config),
        status=state.ended.get(name, "running"),
        epochs=len(state.visits[name]) / max(len(trial.shards), 1),
        samples=state.done[name],
        value=[nan, *values][-1],
        best_value=better(filter(isfinite, values), default=nan),
        scores=tuple((epoch, dict(by_name)) for epoch, by_name in scores),
    )


def ranked(setup: Setup, state: State) -> list[TrialResult]:
    """The trials that have a score, the best last score first; of equal ones the earlier first.

    Raises:
        StudyError: there is no metric, or several recipes have unlike ones; or no trial has a
            score.
    """
    aims = setup.aims
    if aims:
        listed = ", ".join(f"{name} {metric} ({mode})" for name, (metric, mode) in aims.items())
        raise StudyError(
            f"the recipes have metrics of their own, which do not compare: {listed}. Take "
            "study.best_by_recipe, or create the study with metric= (and mode=)"
        )
    if setup.metric is None:
        raise StudyError("the study has no metric to rank by: create it with metric= (and mode=)")
    trials = results_of(setup, state)
    scored = _best_first(trials, setup.mode)
    if not scored:
        raise StudyError(_why_none(trials, setup.metric))
    return scored


def _why_none(trials: Sequence[TrialResult], metric: str) -> str:
    """The text of an error: why none of the trials is the best."""
    known = f"{len(trials)} trials are known"
    values = [scores[metric] for trial in trials for _, scores in trial.scores if metric in scores]
    if not values:
        yet = "" if trials and all(trial.status != "running" for trial in trials) else " yet"
        return f"no trial has a score {metric!r}{yet}; {known}"
    finite = sum(map(isfinite, values))
    unfit = {
        trial.id: trial.value
        for trial in trials
        if trial.scores and not isfinite(trial.value) and not trial.status.startswith("failed")
    }
    why = "all trials that have some failed"
    if unfit:
        some = ", ".join(f"{name} {value}" for name, value in list(unfit.items())[:4])
        why = f"the last one, which counts, is not finite in any trial that did not fail ({some})"
    return (
        f"no trial is the best: there are {len(values)} scores {metric!r}, {finite} of them "
        f"finite, but {why}; {known}. study.trials has each trial's scores and its best_value"
    )


def best_by_recipe(setup: Setup, state: State) -> dict[str, TrialResult]:
    """The best trial of each recipe that has one with a score.

    Raises:
        StudyError: the study has one recipe, without a name.
    """
    if not setup.names:
        raise StudyError("the study has one recipe, not several by name: take study.best_trial")
    trials = results_of(setup, state)
    best_trials = {}
    for name in setup.names:
        of_recipe = [trial for trial in trials if trial.config.get(RECIPE) == name]
        _, mode = setup.aim({RECIPE: name})
        for best in _best_first(of_recipe, mode)[:1]:
            best_trials[name] = best
    return best_trials


def _best_first(trials: Sequence[TrialResult], mode: str) -> list[TrialResult]:
    """The trials that have a score and did not fail, by their last score."""
    scored = []
    for result in trials:
        if isfinite(result.value) and not result.status.startswith("failed"):
            scored.append(result)
    return sorted(scored, key=lambda result: result.value, reverse=mode == "max")


def row_of(trial: TrialResult) -> dict[str, Any]:
    """A trial as a row of a table: its results, config.<name>, and last.<name> for each metric.

    The last value of a metric is that of the last evaluation which gave it.
    """
    row = {name: getattr(trial, name) for name in COLUMNS}
    row |= {f"config.{name}": value for name, value in trial.config.items()}
    for _, values in trial.scores:
        row |= {f"last.{name}": value for name, value in values.items()}
    return row


def curve_rows(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """A row for each value of each trial and epoch; see `Study.learning_curves`."""
    tally = Tally()
    for line in lines:
        tally.take(line.time, line.entry)
    rows = []
    for trial in tally.trials.values():
        for name, points in trial.points.items():
            plain = name.removesuffix(TRAINING)
            split = "validation" if plain == name else "train"
            for point in points:
                values = (trial.trial.id, point.epoch, plain, point.value, split)
                rows.append(dict(zip(CURVE_COLUMNS, values, strict=True)))
    return rows


def check_known(state: State, trial: TrialId) -> Trial:
    """The trial of that name.

    Raises:
        StudyError: there is none.
    """
    known = state.known.get(trial)
    if known is not None:
        return known
    some = ", ".join(sorted(state.known)[:8])
    raise StudyError(f"there is no trial {trial}; known: {some}")


# -- weights and data ------------------------------------------------------------------------------


def load_model(setup: Setup, state: State, trial: TrialId, which: str) -> "nn.Module":
    """A trial's model with its last durable weights, or with the best of those that were kept.

    In a callback, of the trial that it is told of: with the weights of that moment.

    Raises:
        StudyError: there is no such trial, nothing durable of it, or not of that moment.
    """
    known = check_known(state, trial)
    if isinstance(setup.recipe, FunctionRecipe):
        keeps = f"study.checkpoint({trial!r}) gives what it kept"
        if trial not in state.kept:
            keeps = _why_no_checkpoint(setup.recipe, state, trial)
        raise StudyError(f"what a function trains has no model that Shoal could build: {keeps}")
    moment, saved = setup.folder.moment, None
    if moment is not None and moment.trial == trial and which == "last":
        saved = moment.state()
    if saved is None:
        saved = saved_state(setup, state, trial, which)
    model: nn.Module = model_from(setup.recipe, known.config, setup.seed, saved)
    return model


def checkpoint(setup: Setup, state: State, trial: TrialId, which: str) -> Any:
    """What a function gave as its checkpoint; see `Study.checkpoint`."""
    if not isinstance(setup.recipe, FunctionRecipe):
        raise StudyError(
            "only functions give checkpoints of their own: load_model gives a recipe's model"
        )
    return function_checkpoint(saved_state(setup, state, trial, which))


def _why_no_checkpoint(recipe: FunctionRecipe, state: State, trial: TrialId) -> str:
    """Why there is no checkpoint of a function's trial, and what keeps one."""
    keeps = "shoal.report(…, checkpoint=…) keeps one"
    if recipe.function is nothing:
        keeps = "a loop with ask and tell keeps its models itself"
    elif isinstance(recipe, CommandRecipe):
        keeps = "a command keeps what it writes into the folder {checkpoint} before a report"
    end = state.ended.get(trial)
    if end is None:
        return f"trial {trial} kept no checkpoint yet: {keeps}"
    if end.startswith("failed"):
        return f"trial {trial} kept no checkpoint; it {end}"
    return f"trial {trial} kept no checkpoint: {keeps}"


def function_checkpoint(saved: Mapping[str, Any]) -> Any:
    """What a function gave as its checkpoint; of a path a copy, which the process's end deletes."""
    folder = ""
    if saved["checkpoint"]["kind"] != "tree":
        folder = tempfile.mkdtemp(prefix="shoal-")
        atexit.register(_remove_own, folder, os.getpid())
    return unpacked(saved["checkpoint"], Path(folder))


def _remove_own(folder: str, process: int) -> None:
    """Delete the folder, unless this is a fork of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def saved_state(setup: Setup, state: State, trial: TrialId, which: str) -> Tree:
    """A trial's last durable state, or the best of those that were kept.

    Raises:
        StudyError: there is no such trial, or nothing durable of it.
    """
    check_known(state, trial)
    if which not in ("last", "best"):
        raise StudyError(f'which must be "last" or "best"; got {which!r}')
    moment = setup.folder.moment
    vault = moment.vault if moment else Checkpoints(setup.folder.checkpoints, state.run)
    kept = state.kept.get(trial)
    name = None if kept is None else kept.name
    if which == "best":
        retention = Retention(vault, setup.aim)
        retention.learn_past(setup.folder.past(), setup.folder.lines)
        _, name = retention.best.get(trial, (nan, name))
    if name is None:
        if isinstance(setup.recipe, FunctionRecipe):
            raise StudyError(_why_no_checkpoint(setup.recipe, state, trial))
        why = " yet: let the study run on"
        if trial in state.ended:
            why = f"; it {state.ended[trial]}"
        raise StudyError(f"nothing of trial {trial} is durable{why}")
    try:
        return vault.load(name)
    except FileNotFoundError as error:
        raise StudyError(
            f"checkpoint {name} of trial {trial} is not in {vault.url} any more: "
            "it was deleted for max_checkpoint_gb, or by hand"
        ) from error
    except Damaged as error:
        raise StudyError(
            f"{error}: bring it back from a copy; which='best' may have another one, and "
            f"study.clone({trial!r}, warm_start=False) trains the trial again"
        ) from error


def data_as_trained(setup: Setup) -> Data:
    """The recipe's data, read anew; it must be that of the study's runs.

    Raises:
        StudyError: it is other data than the study's runs had, or there is no recipe.
    """
    check_recipe_type(setup.recipe)
    head = setup.folder.head()
    with explain_missing_data(head):
        data = data_of(setup.recipe)
    if head and head["data"]["fingerprint"] != data.fingerprint:
        raise StudyError(
            "the data changed since this study was trained, and with it perhaps how text is "
            "encoded: bring the former files back"
        )
    return data
