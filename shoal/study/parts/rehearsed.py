"""Before a new study begins: one batch is tried, where that costs little."""

import sys

from shoal.options import Options
from shoal.study.folder import StudyError
from shoal.study.setup import Setup, Space, first_config, unlike_configs
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.lane.device import device_of, gpus
from shoal.train.tools.rehearsal import LARGE, Mistake, is_rehearsed, rehearse
from shoal.train.tools.tried import check_configured

OTHERS = 3  # configurations that are tried, too, where the first one fails


def check_by_rehearsal(
    setup: Setup, space: Space | None, data: Data, options: Options, parameters: int
) -> None:
    """Train and validate a configuration on one batch; see `rehearse`.

    Where no batch can be tried, a second model is built. What is wrong with some configurations
    only is left to their trials. `parameters`: of a model.

    Raises:
        StudyError: unlike configurations fail, too; or models share what is trained.
    """
    if space is None or parameters > LARGE or isinstance(setup.recipe, FunctionRecipe):
        return
    first = first_config(space)
    device = _device(data, options)
    if device is None or not is_rehearsed(setup.recipe, data):
        try:  # a model was built before: what this one shares with it, trials would share
            check_configured(setup.recipe, first, setup.seed)
        except ValueError as error:
            raise StudyError(str(error)) from error
        return
    found: Mistake | None = None
    for config in (first, *unlike_configs(space, first)[:OTHERS]):
        try:
            rehearse(setup.recipe, data, config, setup.seed, device, setup.metric, setup.mode)
        except Mistake as mistake:
            found = found or mistake
        else:
            return
    raise StudyError(str(found)) from found


def _device(data: Data, options: Options) -> str | None:
    """Where a batch can be tried; None: nowhere.

    Of the ray backend's devices this process knows only that there are no GPUs on this machine. And
    it reads no data that is not in memory.
    """
    if options.backend == "local":
        return device_of(options.device)
    ray = sys.modules.get("ray")
    elsewhere = options.address or (ray is not None and ray.is_initialized())
    if elsewhere or gpus() or not data.in_memory:
        return None
    return "cpu"
