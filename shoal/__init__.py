"""Shoal trains many models as one job: searches, architecture studies, ensembles.

>>> space = {"lr": shoal.loguniform(1e-4, 1e-1)}
>>> study = shoal.create_study(MyRecipe(), metric="accuracy", mode="max", search_space=space)
>>> study.optimize(num_samples=16, max_epochs=10)
>>> study.best_trial.config

Names are imported when first used, so that `import shoal` costs nothing.
"""

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.callbacks.callback import Callback as Callback
    from shoal.core.errors import StudyError as StudyError
    from shoal.policy.fifo import Fifo as Fifo
    from shoal.policy.hop.hop import Hop as Hop
    from shoal.search.asha import ASHA as ASHA
    from shoal.search.grid import Grid as Grid
    from shoal.search.halving import Hyperband as Hyperband
    from shoal.search.halving import SuccessiveHalving as SuccessiveHalving
    from shoal.search.optuna import Optuna as Optuna
    from shoal.search.pbt import PBT as PBT
    from shoal.search.random import Random as Random
    from shoal.search.space import choice as choice
    from shoal.search.space import grid as grid
    from shoal.search.space import loguniform as loguniform
    from shoal.search.space import randint as randint
    from shoal.search.space import uniform as uniform
    from shoal.search.stopping import MedianStopping as MedianStopping
    from shoal.study.folder import StudyPaused as StudyPaused
    from shoal.study.study import Study as Study
    from shoal.study.study import create_study as create_study
    from shoal.study.study import load_study as load_study
    from shoal.tools.hand_pack import pack as pack
    from shoal.train.adapt.huggingface import huggingface as huggingface
    from shoal.train.adapt.lightning import lightning as lightning
    from shoal.train.data.data import Data as Data
    from shoal.train.data.data import DataError as DataError
    from shoal.train.function.session import report as report
    from shoal.train.function.session import restore as restore
    from shoal.train.recipe.recipe import LRSchedule as LRSchedule
    from shoal.train.recipe.recipe import Recipe as Recipe
    from shoal.train.recipe.shard import ShardRecipe as ShardRecipe

__version__ = "0.2.0"

_HOMES = {
    "shoal.callbacks.callback": ["Callback"],
    "shoal.tools.hand_pack": ["pack"],
    "shoal.policy.fifo": ["Fifo"],
    "shoal.policy.hop.hop": ["Hop"],
    "shoal.search.asha": ["ASHA"],
    "shoal.search.grid": ["Grid"],
    "shoal.search.halving": ["Hyperband", "SuccessiveHalving"],
    "shoal.search.stopping": ["MedianStopping"],
    "shoal.search.optuna": ["Optuna"],
    "shoal.search.pbt": ["PBT"],
    "shoal.search.random": ["Random"],
    "shoal.search.space": ["choice", "grid", "loguniform", "randint", "uniform"],
    "shoal.core.errors": ["StudyError"],
    "shoal.study.folder": ["StudyPaused"],
    "shoal.study.study": ["Study", "create_study", "load_study"],
    "shoal.train.adapt.huggingface": ["huggingface"],
    "shoal.train.adapt.lightning": ["lightning"],
    "shoal.train.data.data": ["Data", "DataError"],
    "shoal.train.function.session": ["report", "restore"],
    "shoal.train.recipe.recipe": ["LRSchedule", "Recipe"],
    "shoal.train.recipe.shard": ["ShardRecipe"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME)  # noqa: PLE0605


# What users of other tools look for, and what to use here.
_MEANT = {
    **dict.fromkeys(("tune", "run", "fit", "Tuner", "optimize"), "create_study(…).optimize()"),
    "Trainer": "Recipe",
    "load": "load_study",
    "Dataset": "Data",
    "DataLoader": "Data",
    "TPESampler": "Optuna",
    "ASHAScheduler": "ASHA",
    "PopulationBasedTraining": "PBT",
    "grid_search": "grid",
    "suggest_float": "uniform or loguniform",
}


def _hint(name: str) -> str:
    """What the user may have meant by that name."""
    meant = _MEANT.get(name) or " or ".join(get_close_matches(name, __all__, 2))
    if not meant or name.startswith("_"):
        return ""
    return f": did you mean {meant}?"


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'shoal' has no attribute {name!r}{_hint(name)}; it offers {', '.join(__all__)}"
        )
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
