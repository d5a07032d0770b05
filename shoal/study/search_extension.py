"""How a study goes on with a larger search than before: longer trials, more of them, more values.

A search may grow as long as what is on record stays true. What it refuses, it says for each field.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from shoal.core.cluster import epoch_size
from shoal.core.errors import StudyError, warn
from shoal.core.event import Opened
from shoal.core.ports import Searcher
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.core.visits import EPS
from shoal.engine.journal import Line, plain
from shoal.engine.plain_files import remove_file
from shoal.search import ASHA, PBT, Grid, Random, SuccessiveHalving, describe, nested
from shoal.search.draws import SOBOL, Draws
from shoal.search.membership import outside
from shoal.search.space import Space, rebuild_space
from shoal.study.setup import Setup
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.recipe.recipes import own_config, own_recipe
from shoal.train.tools.model_trial import schedule_ends

Head = Mapping[str, Any]
# The names that searchers give; trials that people add have others.
NUMBERED = re.compile(r"t(\d{3,})(-g\d+)?")
# What may change without any effect on the past. `inner` is looked at by itself.
FREE = frozenset({"max_concurrent", "per_slot", "num_samples", "first", "inner"})
# Why a field may not change; of others: `CHOSEN`.
WHY = {
    "seed": "configurations and initial weights are drawn from it",
    "metric": "trials were compared by it",
    "mode": "trials were compared by it",
    "widths": "earlier trials have these",
    "priority": "earlier trials have this",
    "sampling": "configurations were drawn in this way",
    "num_samples": "its population",
    "max_epochs": "trials were asked for more",
}


CHOSEN = "earlier trials were chosen, compared or stopped by it"
BRACKETS = "its brackets begin at max_epochs / reduction_factor, again and again"
COMBINATIONS = "random search makes num_samples of each combination of the grids' values"


def with_history(searcher: Searcher[Any], before: Head, state: State) -> Searcher[Any]:
    """The searcher, made to draw in this study as it drew before.

    A grid that had other values begins with the configurations that came then. `before`: the
    description of the searcher in the run before.
    """
    former = _levels(before)[-1]
    core: Any = [*nested(searcher)][-1]
    if state.known and getattr(core, "sampling", None) == SOBOL:
        core = replace(core, sampling=former.get("sampling"))
        searcher = with_core(searcher, core)
    if not isinstance(core, Grid) or former.get("name") != "grid":
        return searcher
    if plain(describe(core))["space"] == former["space"] and not former.get("first"):
        return searcher
    ordered = sorted(_numbered(state), key=lambda trial: int(trial.id[1:]))
    return with_core(searcher, replace(core, first=tuple(trial.config for trial in ordered)))


def _levels(described: Head) -> list[Head]:
    """A searcher's description, and those of the searchers within it."""
    levels = [described]
    while levels[-1].get("inner"):
        levels.append(levels[-1]["inner"])
    return levels


def _space_of(described: Head) -> Space | None:
    if described.get("space") is None:
        return None
    return rebuild_space(described["space"])


def with_core(searcher: Any, core: Searcher[Any]) -> Searcher[Any]:
    """The searcher, with another one at its core."""
    if getattr(searcher, "inner", None) is None:
        return core
    changed: Searcher[Any] = replace(searcher, inner=with_core(searcher.inner, core))
    return changed


def _numbered(state: State) -> list[Trial]:
    """The trials that the searcher made, not people."""
    known = state.known.values()
    return [trial for trial in known if NUMBERED.fullmatch(trial.id)]


# -- what may not change -------------------------------------------------------------------------


def refused_changes(before: Head, now: Head, state: State) -> list[str]:
    """What differs between two heads and may not: a text for each field, with why."""
    changes: list[str] = []
    if before["seed"] != now["seed"]:
        changes.append(_differs("seed", before["seed"], now["seed"], WHY["seed"]))
    former = _levels(before["searcher"])
    latter = _levels(now["searcher"])
    former_names = [each.get("name") for each in former]
    latter_names = [each.get("name") for each in latter]
    if former_names != latter_names:
        changes.append(_differs("searcher", _joined(former_names), _joined(latter_names), CHOSEN))
        return changes
    for level, level_now in zip(former, latter, strict=True):
        changes += _refused_fields(level, level_now, state)
    return changes


def _joined(names: list[str | None]) -> str:
    return " of ".join(str(name) for name in names)


def _differs(name: str, was: Any, is_now: Any, why: str) -> str:
    return f"{name}: {was!r}, now {is_now!r}: {why}"


def _refused_fields(former: Head, latter: Head, state: State) -> Iterator[str]:
    """What differs between two descriptions of a searcher and may not."""
    kind = str(former.get("name"))
    free = set(FREE)
    if kind == "pbt":
        free.remove("num_samples")  # a population has its size
    if former.get("metric") not in _metrics(state):
        free |= {"metric", "mode"}  # it was misspelt, and may be set right
    for name in sorted(former.keys() | latter.keys()):
        was = former.get(name)
        is_now = latter.get(name)
        if was == is_now or name in free:
            continue
        if name == "space":
            why = _why_not_space(former, latter, state)
            if why is not None:
                yield f"space: {why}"
            continue
        why = WHY.get(name, CHOSEN)
        if name == "max_epochs":
            if kind != "hyperband" and (is_now or 1) >= (was or 1):
                continue  # trials go on
            if kind == "hyperband" and (is_now or 1) > (was or 1):
                why = BRACKETS
        yield _differs(name, was, is_now, why)


def check_scored(metric: str | None, state: State) -> None:
    """Refuse a metric that no trial has, once trials have scores.

    Raises:
        StudyError: it is misspelt, or what trains has changed.
    """
    names = _metrics(state)
    if metric is not None and names and metric not in names:
        raise StudyError(
            f"no trial of this study has a score {metric!r}; they have {', '.join(sorted(names))}: "
            "run again with metric= set to one of them, or start a new study with another storage="
        )


def _metrics(state: State) -> Set[str]:
    """The names of all scores that trials have."""
    names: set[str] = set()
    for scores in state.scores.values():
        for _, values in scores:
            names |= values.keys()
    return names


def _why_not_space(former: Head, latter: Head, state: State) -> str | None:
    """Why the space may not change so; None: it may. Every earlier trial has to be of it."""
    before = _space_of(former)
    now = _space_of(latter)
    if former.get("name") == "random" and _grids(before) != _grids(now):
        return COMBINATIONS
    for trial in _numbered(state):
        lacks = outside(now, trial.config)
        if lacks is not None and outside(before, trial.config) is None:
            return f"trial {trial.id} has {lacks}, which the new one could not give"
    return None


def _grids(space: Space | None) -> int:
    return Draws(space or {}, 0).combinations


# -- trials that go on ---------------------------------------------------------------------------


def extended_trials(
    searcher: Searcher[Any], lines: Iterable[Line], state: State
) -> tuple[Trial, ...]:
    """The trials that train on, since `max_epochs` grew after one of the runs in this journal.

    They have their new samples. Trials that failed or were retired stay as they are, and so do
    those that a person added.
    """
    core = [*nested(searcher)][-1]
    extended: dict[str, Trial] = {}
    ends = set()  # the epochs to which runs were to train their trials
    for _, entry in lines:
        if isinstance(entry, Opened):
            described = _levels(entry.head.get("searcher", {}))[-1]
            ends.add(float(described.get("max_epochs") or 1))
    for end in sorted(ends):
        stop = _next_stop(core, end)
        for trial in _numbered(state):
            epoch = epoch_size(state.shards, trial.config)
            short = trial.samples < stop * epoch - EPS
            # Where all trials train equally long, a person may have made one longer.
            more = trial.samples - end * epoch
            ends_there = abs(more) <= EPS or (more > 0 and isinstance(core, (Grid, Random)))
            if short and ends_there and _goes_on(state, trial):
                extended[trial.id] = replace(trial, samples=stop * epoch)
    return tuple(extended.values())


def _goes_on(state: State, trial: Trial) -> bool:
    """Whether the trial has work left, or came to its end; a function may return before."""
    how = state.ended.get(trial.id)
    complete = state.done[trial.id] >= trial.samples - EPS
    return how is None or (how == "finished" and complete)


def _next_stop(searcher: Any, end: float) -> float:
    """The epochs to which trials go on that were to train to the `end`; 0: no further.

    A searcher that compares trials at rungs or intervals sends the best of them further itself.
    """
    most = getattr(searcher, "max_epochs", None) or 1
    if most <= end or isinstance(searcher, SuccessiveHalving):
        return 0.0
    stops: tuple[float, ...] = (most,)
    if isinstance(searcher, PBT):
        stops = tuple(searcher.ends())
    elif isinstance(searcher, ASHA) and not searcher.stopping:
        stops = searcher.epochs()
    return next(each for each in stops if each >= end)


def check_extended(
    setup: Setup, state: State, trials: Sequence[Trial], laid_out: int | None = None
) -> None:
    """Check that trials can go on, and warn if they will not be as if trained so long at once.

    `laid_out`: for how many epochs the trials' schedules were made, if that is known. Trials that
    go on within these are as if trained so long at once.

    Raises:
        StudyError: their checkpoints are gone, or their learning rates are at an end.
    """
    if not trials:
        return
    names = set(Checkpoints(setup.folder.checkpoints, state.run).names())
    kept = {trial.id: state.kept.get(trial.id) for trial in trials}
    gone = [name for name, each in kept.items() if each is not None and each.name not in names]
    if gone:
        raise StudyError(
            f"{len(gone)} trials cannot go on, because their checkpoints are gone "
            f"({', '.join(gone[:5])}): restore {setup.folder.checkpoints}, or begin a new study"
        )
    if laid_out is not None:
        return
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        name = own_recipe(setup.recipe, trial.config).recipe_name
        alike.setdefault(name, []).append(trial)
    for some in alike.values():
        _check_schedules(setup, state, some)


def _check_schedules(setup: Setup, state: State, trials: Sequence[Trial]) -> None:
    """Check the learning rates that these trials of one recipe would go on with.

    Raises:
        StudyError: their schedules are at an end.
    """
    config = trials[0].config
    epoch = epoch_size(state.shards, config)
    was = state.known[trials[0].id].samples / epoch
    recipe = own_recipe(setup.recipe, config)
    recipe_config = own_config(setup.recipe, config)
    ends = schedule_ends(recipe, recipe_config, setup.seed, was)
    goes = f"{len(trials)} trials are to go on from {was:g} to {trials[0].samples / epoch:g} epochs"
    if ends.fatal:
        raise StudyError(
            f"{goes}, but max_epochs cannot grow with {ends.fatal}, which allows no step beyond "
            "its end: begin a new study with another storage="
        )
    if ends.reasons:
        warn(
            f"{goes} with the learning rates of {', '.join(ends.reasons)}: if those depend on "
            "max_epochs, the trials will not equal ones that train so long at once"
        )


# -- trials that failed ----------------------------------------------------------------------------


def retried_trials(setup: Setup, state: State) -> tuple[Trial, ...]:
    """The failed trials, to be submitted once more: each goes on from its newest durable state.

    One without such a state begins again. One whose state is gone stays failed, with a warning.
    """
    failed = failed_trials(state)
    names = set(Checkpoints(setup.folder.checkpoints, state.run).names())
    gone = [
        trial for trial in failed if trial in state.kept and state.kept[trial].name not in names
    ]
    if gone:
        warn(
            f"{len(gone)} failed trials stay failed, because their checkpoints are gone "
            f"({', '.join(gone[:5])}): copy them with warm_start=False"
        )
    return tuple(state.known[trial] for trial in failed if trial not in gone)


def failed_trials(state: State) -> list[TrialId]:
    """The trials that failed."""
    return [trial for trial, how in state.ended.items() if how.startswith("failed")]


def remove_tracebacks(setup: Setup, trials: Sequence[Trial]) -> None:
    """Delete the tracebacks of trials that are tried again."""
    for trial in trials:
        place = setup.folder.path / "trials" / trial.id / "error.txt"
        remove_file(place, setup.folder.path)
