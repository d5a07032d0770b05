"""Training again, and comparing the results, to check that they are equal."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
import torch

from shoal.core.cluster import epoch_size
from shoal.core.trial import Trial, Visit
from shoal.train.data.data import Data
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.largest import with_size
from shoal.train.lane.optimizers import numbers_of_state
from shoal.train.lane.tree import load_model
from shoal.train.recipe.adapted import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.settings import seed_of
from shoal.train.recipe.several.recipes import own_config, own_recipe
from shoal.train.recipe.shard import ShardModel
from shoal.train.recipe.unit import Tree, Unit
from shoal.train.slot.setup import StationSetup
from shoal.train.slot.station import Station

Config = Mapping[str, Any]


class Comparison(NamedTuple):
    """Whether two states are equal to the last bit, and their largest absolute difference.

    The difference is infinite where they have no common form.
    """

    equal: bool
    difference: float


def compare(one: Any, other: Any) -> Comparison:
    """Compare two states, or parts of states."""
    gaps = [gap for _, gap in differences(one, other)]
    return Comparison(not gaps, max(gaps, default=0.0))


def compare_saved(saved: Tree, again: Tree) -> Comparison:
    """Compare a stored state with one of the same trial trained again.

    Earlier versions stored less, and more of what the optimizers were configured with.
    """
    then = {**again, **saved}
    if "configured" in then:
        then["configured"] = numbers_of_state(then["configured"])
    return compare(then, {**again, "found": saved.get("found")})


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Where two states are not equal to the last bit, and by how much.

    A place reads like "optimizer.state.0.exp_avg".
    """
    both = (one, other)
    if _are(both, list | tuple):
        one = dict(enumerate(one))
        other = dict(enumerate(other))
        both = (one, other)
    if _are(both, Mapping):
        for key in {**one, **other}:
            name = f"{path}.{key}".removeprefix(".")
            if key in one and key in other:
                yield from differences(one[key], other[key], name)
            else:
                yield name, inf
        return

    gap = None
    if _are(both, np.ndarray):
        gap = _array_gap(one, other)
    elif _are(both, int | float):
        gap = _number_gap(one, other)
    elif one != other:
        gap = inf
    if gap is not None:
        yield path, gap


def _are(both: tuple[Any, Any], kind: Any) -> bool:
    """Whether both are of that kind."""
    return all(isinstance(each, kind) for each in both)


def _number_gap(one: float, other: float) -> float | None:
    """The absolute difference of two numbers; None if they are equal, or both are NaN."""
    if one == other or (isnan(one) and isnan(other)):
        return None
    return abs(one - other)


def _array_gap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float | None:
    """The largest absolute difference of two arrays; None if they are equal to the last bit."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return inf
    if one.tobytes() == other.tobytes():
        return None
    wide: Any = np.float64
    if one.dtype.kind == "c":
        wide = np.complex128
    gaps = np.abs(one.astype(wide) - other)
    if np.isnan(gaps).all():
        return inf
    return float(np.nanmax(gaps))


def apart(one: Tree, other: Tree) -> float:
    """How far two states' models are apart: the norm of their difference over that of the first.

    Both are 2-norms over all floating-point parameters and buffers.
    """
    gap = 0.0
    size = 0.0
    theirs = other["model"]
    for name, array in one["model"].items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            exact = array.astype(np.float64)
            gap += _squares(exact - theirs[name])
            size += _squares(exact)
    if size == 0.0:
        return 0.0
    return float(np.sqrt(gap / size))


def nudged(state: Tree, size: float, seed: int) -> Tree:
    """A state whose model's numbers are each changed by about this fraction, at random."""
    rng = np.random.default_rng(seed)
    model = {}
    for name, array in state["model"].items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            factors = 1 + size * rng.standard_normal(array.shape)
            array = np.asarray(array * factors, dtype=array.dtype)
        model[name] = array
    return {**state, "model": model}


def _squares(array: np.ndarray[Any, Any]) -> float:
    """The sum of the squares."""
    return float(np.square(array).sum())


def retrain(
    recipe: Recipe,
    data: Data,
    trial: Trial,
    visits: tuple[Visit, ...],
    setup: StationSetup,
    *,
    evaluated: Collection[float] | None = None,
    begun: tuple[int, Tree] | None = None,
) -> Tree:
    """The trial's state after these visits, trained again, alone.

    `setup`: options of the slot that it is trained on; its seed, device, threads and metric count.
    `evaluated`: after how many epochs there was a validation; None: after each. `begun`: start from
    this state, after so many visits, instead of from the beginning.

    Raises:
        TrialError: the recipe raised or the loss diverged.
        DataError: a shard cannot be read.
    """
    first, source = begun or (0, None)
    if source is not None and first == len(visits):
        return source
    if not visits:
        return _untrained(recipe, data, trial, setup)
    station = Station(recipe, data, None, replace(setup, checkpoint_every=inf))
    shards = len(trial.shards or data.shards)
    metric = setup.metric or own_recipe(recipe, trial.config).metric
    for done, visit in enumerate(visits[first:], first):
        epoch = (done + 1) / shards
        score = metric is not None and _is_evaluated(epoch, evaluated)

        planned = visit._replace(samples=0)
        unit = Unit(trial, tuple(visits[:done]), planned, source, score)
        _make(station, unit)
        source = None  # from now on the station has the state
    return station.state(trial.id)


def _make(station: Station, unit: Unit) -> None:
    """Make the visit, at the widths that it names."""
    if unit.visit.widths:
        station.ranks.run(unit, _alone(unit.trial), Orders())
    else:
        deque(station.train(unit), maxlen=0)


def _alone(trial: Trial) -> Seat:
    """The seat of the only process that trains the trial."""
    return Seat(trial.id, generation=1, rank=0, width=1)


def _is_evaluated(epoch: float, evaluated: Collection[float] | None) -> bool:
    """Whether there was a validation after so many epochs."""
    if evaluated is None:
        return epoch.is_integer()
    return epoch in evaluated


def _untrained(recipe: Recipe, data: Data, trial: Trial, setup: StationSetup) -> Tree:
    """The trial's state before its first visit."""
    epoch = epoch_size(data.sizes, trial.config)
    lane = _new_lane(recipe, trial.config, setup.seed, setup.device, epoch)
    return lane.state()


def _new_lane(
    recipe: Recipe, config: Config, seed: int, device: str, epoch: float
) -> TrainingLane:
    """A lane that has not trained. `seed`: the study's. `epoch`: samples in one."""
    return TrainingLane(
        own_recipe(recipe, config),
        own_config(recipe, config),
        seed=seed_of(config, seed),
        device=torch.device(device),
        epoch=epoch,
    )


def model_from(
    recipe: Recipe,
    config: Config,
    seed: int,
    state: Tree,
    device: str = "cpu",
) -> Any:
    """The trained model of a state, in evaluation mode; of a `ShardRecipe` its state.

    Raises:
        ValueError: the state is that of another model.
    """
    if state.get("found") is not None:
        config = with_size(config, state["found"])
    lane = _new_lane(recipe, config, seed, device, epoch=1.0)
    with lane.rng:
        load_model(lane.model, state["model"])
    if isinstance(lane.model, ShardModel):
        return lane.model.state
    model = lane.model.eval()
    return recipe.trained(model) if isinstance(recipe, Adapted) else model
