"""Trials that ended and train on: their weights, their schedules, and those that failed."""

import warnings
from collections.abc import Sequence

from shoal.core.cluster import epoch_size
from shoal.core.event import Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.engine.plain_files import remove_file
from shoal.study.folder import StudyError
from shoal.study.setup import Setup
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.recipe.several.recipes import own_config, own_recipe
from shoal.train.tools.tried import schedule_ends


def check_longer(
    setup: Setup, state: State, trials: Sequence[Trial], laid_out: int | None = None
) -> None:
    """Say what keeps these trials from going on, or from being as if trained so long at once.

    `laid_out`: for how many epochs the trials' schedules were made, if that is known. Trials that
    go on within these are as if trained so long at once.

    Raises:
        StudyError: their checkpoints are gone, or their learning rates are at an end.
    """
    if not trials:
        return
    _check_weights(setup, state, trials)
    if laid_out is not None:
        return
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        name = own_recipe(setup.recipe, trial.config).recipe_name
        alike.setdefault(name, []).append(trial)
    for some in alike.values():
        _check_schedules(setup, state, some)


def _check_schedules(setup: Setup, state: State, trials: Sequence[Trial]) -> None:
    """Say what learning rates these trials of one recipe would go on with.

    Raises:
        StudyError: their schedules are at an end.
    """
    config = trials[0].config
    epoch = epoch_size(state.shards, config)
    was = state.known[trials[0].id].samples / epoch
    recipe = own_recipe(setup.recipe, config)
    own = own_config(setup.recipe, config)
    ends = schedule_ends(recipe, own, setup.seed, was)
    goes = f"{len(trials)} trials are to go on from {was:g} to {trials[0].samples / epoch:g} epochs"
    if ends.fatal:
        raise StudyError(
            f"{goes}, but max_epochs cannot grow with {ends.fatal}, which allows no step beyond "
            "its end: begin a new study with another storage="
        )
    if ends.reasons:
        warnings.warn(
            f"{goes} with the learning rates of {', '.join(ends.reasons)}: if those depend on "
            "max_epochs, the trials will not equal ones that train so long at once",
            stacklevel=6,
        )


def _check_weights(setup: Setup, state: State, trials: Sequence[Trial]) -> None:
    """Raise StudyError if a trial's last state is not there any more."""
    names = set(Checkpoints(setup.folder.checkpoints, state.run).names())
    gone = []
    for trial in trials:
        kept = state.kept.get(trial.id)
        if kept is not None and kept.name not in names:
            gone.append(trial.id)
    if gone:
        raise StudyError(
            f"{len(gone)} trials cannot go on, because their checkpoints are gone "
            f"({', '.join(gone[:5])}): restore {setup.folder.checkpoints}, or begin a new study"
        )


# -- trials that failed ----------------------------------------------------------------------------


def tried_again(setup: Setup, state: State) -> tuple[Trial, ...]:
    """The failed trials, to be submitted once more: each goes on from its newest durable state.

    One without such a state begins again. One whose state is gone stays failed, with a warning.
    """
    failed = failed_in(state)
    names = set(Checkpoints(setup.folder.checkpoints, state.run).names())
    gone = [
        trial for trial in failed if trial in state.kept and state.kept[trial].name not in names
    ]
    if gone:
        warnings.warn(
            f"{len(gone)} failed trials stay failed, because their checkpoints are gone "
            f"({', '.join(gone[:5])}): copy them with warm_start=False",
            stacklevel=5,
        )
    return tuple(state.known[trial] for trial in failed if trial not in gone)


def failed_in(state: State) -> list[TrialId]:
    """The trials that failed."""
    return [trial for trial, how in state.ended.items() if how.startswith("failed")]


def with_work_again(state: State, trials: Sequence[Trial]) -> State:
    """The state once these trials are submitted again."""
    return fold(state, [Submitted(trial) for trial in trials])


def forget_tracebacks(setup: Setup, trials: Sequence[Trial]) -> None:
    """Delete the tracebacks of trials that are tried again."""
    for trial in trials:
        place = setup.folder.path / "trials" / trial.id / "error.txt"
        remove_file(place, setup.folder.path)
