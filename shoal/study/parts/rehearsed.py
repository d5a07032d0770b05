"""Before a new study begins: one batch is tried, where that costs little."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.study.folder import StudyError
from shoal.study.options import Options
from shoal.study.setup import Setup, Space, first_config, unlike_configs
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.lane.device import device_of, gpus
from shoal.train.lane.sharing import SharedError
from shoal.train.tools.rehearsal import LARGE, Mistake, is_rehearsed, rehearse
from shoal.train.tools.tried import check_configured

OTHERS = 3  # configurations that are tried, too, where the first one fails


def check_by_rehearsal(
    setup: Setup, space: Space | None, data: Data, options: Options, parameters: int
) -> None:
    """Train and validate a configuration on one batch; see `rehearse`.

    What is wrong with some configurations only is left to their trials; but a model of another
    configuration is built, too, for what it shares with the first one's, trials would share.
    `parameters`: of a model.

    Raises:
        StudyError: unlike configurations fail, too; or models share what is trained.
    """
    if space is None or parameters > LARGE or isinstance(setup.recipe, FunctionRecipe):
        return
    first = first_config(space)
    others = unlike_configs(space, first)[:OTHERS]
    device = _device(data, options)
    if device is not None and is_rehearsed(setup.recipe, data):
        _rehearse_one(setup, (first, *others), data, device)
    try:  # a model of the first was built before
        check_configured(setup.recipe, (*others, first)[0], setup.seed)
    except SharedError as error:
        raise StudyError(str(error)) from error
    except ValueError:
        pass  # the trial will say so


def _rehearse_one(
    setup: Setup, configs: Sequence[Mapping[str, Any]], data: Data, device: str
) -> None:
    """Rehearse the configurations in turn until one passes.

    Raises:
        StudyError: none does: what is wrong with the first.
    """
    found: Mistake | None = None
    for config in configs:
        try:
            rehearse(
                setup.recipe, data, config, setup.seed, device, setup.metric, setup.mode
            )
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
