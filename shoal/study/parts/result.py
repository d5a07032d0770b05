"""What came of each trial, as users see it, and which are the best."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from shoal.core.cluster import RECIPE
from shoal.core.state import Score, State
from shoal.core.trial import Samples, Trial, TrialId, Value
from shoal.study.folder import StudyError
from shoal.study.setup import Setup
from shoal.train.function.objective import numbered

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


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What came of one trial.

    `value` is its last score of the study's metric, `best_value` the best over its epochs; both
    are nan without a score. Where several recipes have unlike metrics, it is that of its recipe.
    `scores` are (epoch, {metric: value}), oldest first.
    """

    id: TrialId
    config: Mapping[str, Value]
    status: str  # "running", "finished", "retired" or "failed: why"
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
    """The trial's id, of that or of what `Study.trials` lists."""
    return trial.id if isinstance(trial, TrialResult) else TrialId(str(trial))


def results_of(setup: Setup, state: State) -> list[TrialResult]:
    """What came of each trial, in the order of their submission."""
    return [result_of(setup, state, trial) for trial in state.known.values()]


def result_of(setup: Setup, state: State, trial: Trial) -> TrialResult:
    """What came of this trial; the caller may change what it holds."""
    name = trial.id
    scores = state.scores[name]
    last, best = _values(*setup.aim(trial.config), scores)
    return TrialResult(
        id=name,
        config=dict(trial.config),
        status=state.ended.get(name, "running"),
        epochs=len(state.visits[name]) / max(len(trial.shards), 1),
        samples=state.done[name],
        value=last,
        best_value=best,
        scores=tuple((epoch, dict(found)) for epoch, found in scores),
    )


def _values(metric: str | None, mode: str, scores: Sequence[Score]) -> tuple[float, float]:
    """The last value of the metric, and the best; nan if there is none."""
    name = metric or ""  # no value has the empty name
    values = [found[name] for _, found in scores if name in found]
    better = min
    if mode == "max":
        better = max
    best = better(filter(isfinite, values), default=nan)
    return [nan, *values][-1], best


def ranked(setup: Setup, state: State) -> list[TrialResult]:
    """The trials that have a score, the best last score first; of equal ones the earlier first.

    Raises:
        StudyError: there is no metric, or several recipes have unlike ones; or no trial has a
            score.
    """
    own = setup.aims
    if own:
        said = ", ".join(f"{name} {metric} ({mode})" for name, (metric, mode) in own.items())
        raise StudyError(
            f"the recipes have metrics of their own, which do not compare: {said}. Take "
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
    """Why none of the trials is the best."""
    known = f"{len(trials)} trials are known"
    values = [found[metric] for trial in trials for _, found in trial.scores if metric in found]
    if not values:
        return f"no trial has a score {metric!r} yet; {known}"
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
    found = {}
    for name in setup.names:
        own = [trial for trial in trials if trial.config.get(RECIPE) == name]
        _, mode = setup.aim({RECIPE: name})
        for best in _best_first(own, mode)[:1]:
            found[name] = best
    return found


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
