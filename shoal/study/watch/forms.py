"""A study in other forms while it runs: on the screen, and as Optuna's journal."""

from pathlib import Path
from typing import Any

from shoal.core.ports import Searcher
from shoal.engine.files import whole
from shoal.engine.plain_files import check_plain, is_there
from shoal.reporting.optuna_log import OptunaLog
from shoal.reporting.progress import Progress
from shoal.search import nested
from shoal.study.setup import Setup
from shoal.train.function.recipe import UNLIMITED, FunctionRecipe

LARGEST_LOG = 2**30  # bytes of optuna.log, which Optuna reads whole


def display(wanted: bool, setup: Setup, furthest: float | None) -> list[Any]:
    """The live display, if wanted. `furthest`: see `Progress`."""
    if not wanted:
        return []
    endless = None
    if isinstance(setup.recipe, FunctionRecipe):
        endless = UNLIMITED
    shown = Progress(setup.metric, setup.mode, endless=endless, aim=setup.aim, furthest=furthest)
    return [shown]


def optuna_log(setup: Setup, wanted: bool | str | Path, searcher: Searcher[Any]) -> list[OptunaLog]:
    """Optuna's journal of the study, if wanted, or if there is one in its folder already."""
    place = setup.folder.path / "optuna.log"
    if not wanted and not is_there(place):
        return []
    if isinstance(wanted, bool):
        check_plain(place, most=LARGEST_LOG)
    else:
        place = whole(wanted)
    name = setup.folder.path.name
    epochs = _epochs(searcher)
    return [OptunaLog(place, name, setup.space, setup.metric, setup.mode, epochs)]


def _epochs(searcher: Searcher[Any]) -> Any:
    """Epochs of a trial, as the searcher or one within it says."""
    for each in nested(searcher):
        epochs = getattr(each, "max_epochs", None)
        if epochs is not None:
            return epochs
    return None
