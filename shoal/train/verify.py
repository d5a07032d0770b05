"""Training again, and comparing: what makes the promise of equal results checkable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from shoal.core.trial import Trial, Visit
from shoal.train import columns as cols
from shoal.train.columns import Columns
from shoal.train.data import Data
from shoal.train.lane import Lane
from shoal.train.largest import is_open, with_size
from shoal.train.recipe import Recipe, data_key, overrides, seed_of, seen_by
from shoal.train.seat import Orders, Seat
from shoal.train.station import Station
from shoal.train.stream import Stream
from shoal.train.tree import load_model
from shoal.train.unit import RAISED, Tree, Unit

STEPS = 3  # that `check_recipe` takes
SMALL = 32  # its batch size, where it is to be found out


class Comparison(NamedTuple):
    """Of two states: equal to the last bit, and the largest absolute difference (infinite where they have no common form)."""

    equal: bool
    difference: float


def compare(one: Any, other: Any) -> Comparison:
    """Two states, or parts of states."""
    gaps = [gap for _, gap in differences(one, other)]
    return Comparison(not gaps, max(gaps, default=0.0))


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Where two states are not equal to the last bit, and by how much; "optimizer.state.0.exp_avg", say."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            name = f"{path}.{key}" if path else str(key)
            if key in one and key in other:
                yield from differences(one[key], other[key], name)
            else:
                yield name, inf
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            yield path, inf
        elif one.tobytes() != other.tobytes():
            gaps = np.abs(one.astype(np.complex128 if one.dtype.kind == "c" else np.float64) - other)
            yield path, float(np.nanmax(gaps)) if not np.isnan(gaps).all() else inf
    elif isinstance(one, int | float) and isinstance(other, int | float):
        if one != other and not (isnan(one) and isnan(other)):
            yield path, abs(one - other)
    elif one != other:
        yield path, inf


def apart(one: Tree, other: Tree) -> float:
    """How far two states' models are apart, relative to the first: 2-norms over all floating-point parameters and buffers."""
    gap = size = 0.0
    for name, array in one["model"].items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            gap += float(np.square(array.astype(np.float64) - other["model"][name]).sum())
            size += float(np.square(array.astype(np.float64)).sum())
    return float(np.sqrt(gap / size)) if size else 0.0


def retrain(
    recipe: Recipe,
    data: Data,
    trial: Trial,
    visits: tuple[Visit, ...],
    seed: int,
    *,
    device: str = "cpu",
    threads: int = 1,
    metric: str | None = None,
    evaluated: Collection[float] | None = None,
    begun: tuple[int, Tree] | None = None,
) -> Tree:
    """The state after these visits, from the beginning, alone; or `begun` with the state after so many of them.

    `metric`: the study's, where ReduceLROnPlateau follows it; `evaluated`: after how many epochs there was a validation
    (None: after each).

    Raises:
        TrialError: the recipe raised or the loss diverged.
        DataError: a shard cannot be read.
    """
    station = Station(recipe, data, None, seed=seed, run=0, device=device, threads=threads, checkpoint_every=inf, metric=metric)
    shards = len(trial.shards or data.shards)
    first, source = begun or (0, None)
    for done, visit in enumerate(visits[first:], first):
        epoch = (done + 1) / shards
        evaluate = metric is not None and (epoch.is_integer() if evaluated is None else epoch in evaluated)
        unit = Unit(trial, tuple(visits[:done]), visit._replace(samples=0), source if done == first else None, evaluate)
        if visit.widths:
            station.ranks.run(unit, Seat(trial.id, 1, 0, 1), Orders())
        else:
            deque(station.train(unit), maxlen=0)
    if begun is not None and first == len(visits):
        return begun[1]
    if not visits:
        own = seed_of(trial.config, seed)
        return Lane(recipe, trial.config, seed=own, device=torch.device(device), epoch=float(data.samples)).state()
    return station.state(trial.id)


def model_from(recipe: Recipe, config: Mapping[str, Any], seed: int, state: Tree, device: str = "cpu") -> nn.Module:
    """The trained model of a state, in evaluation mode.

    Raises:
        ValueError: the state is that of another model.
    """
    if state.get("found") is not None:
        config = with_size(config, state["found"])
    lane = Lane(recipe, config, seed=seed_of(config, seed), device=torch.device(device), epoch=1.0)
    load_model(lane.model, state["model"])
    return lane.model.eval()


def check_recipe(recipe: Recipe, data: Data, config: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Take three steps alone, and again in ways that must make no difference.

    Returns {"ok": …, "steps": …, "checks": [(name, passed, text), …]}; a recipe that raises fails the check "trains".
    """
    try:
        alone = _Bench(recipe, data, config, seed)
        first = alone.train(alone.lane(), lambda lane: lane)
    except RAISED as error:
        return {"ok": False, "steps": 0, "checks": [("trains", False, f"{type(error).__name__}: {error}")]}
    checks = [("trains", True, f"{len(alone.batches)} steps")]
    for name, between in alone.ways().items():
        try:
            found = list(differences(first, alone.train(alone.lane(), between)))
            text = ", ".join(f"{where} differs by {gap:.3g}" for where, gap in found[:3]) or "equal to the last bit"
            checks.append((name, not found, text))
        except RAISED as error:
            checks.append((name, False, f"{type(error).__name__}: {error}"))
    return {"ok": all(passed for _, passed, _ in checks), "steps": len(alone.batches), "checks": checks}


class _Bench:
    """A few batches, and lanes to train on them with something between the steps."""

    def __init__(self, recipe: Recipe, data: Data, config: Mapping[str, Any], seed: int) -> None:
        self._recipe, self._data = recipe, data
        self._config = with_size(config, SMALL) if is_open(recipe, config) else config
        self._seed = seed_of(config, seed)
        stream = Stream(seen_by(recipe, data_key(recipe, config)), data, seed=seed, device=torch.device("cpu"), memory_gb=0.0)
        size, shard = self.lane().settings.batch_size, data.shards[0]
        chunks = stream.chunks(shard, 0, self.lane().settings.shuffle)
        chunk = next(chunks)
        chunks.close()
        count = min(STEPS, max(1, cols.rows(chunk) // size))
        self.batches = [cols.cut(chunk, i * size, (i + 1) * size) for i in range(count)]
        self._checked = list(stream.validation())[:1] if overrides(recipe, "validation_step") else []

    def lane(self, shift: int = 0) -> Lane:
        config = {**self._config, "seed": self._seed + shift} if shift else self._config
        epoch = float(self._data.samples)
        return Lane(self._recipe, config, seed=self._seed + shift, device=torch.device("cpu"), epoch=epoch)

    def train(self, lane: Lane, between: Callable[[Lane], Lane]) -> Tree:
        """The state after the steps; `between` gives the lane that takes the next one."""
        lane.begin(self._data.sizes[self._data.shards[0]])
        for batch in self.batches:
            self.step(lane, batch)
            lane = between(lane)
        return lane.state()

    def step(self, lane: Lane, batch: Columns) -> None:
        with lane.rng:
            deque(lane.feed(batch), maxlen=0)

    def ways(self) -> dict[str, Callable[[Lane], Lane]]:
        """What must make no difference."""
        other = self.lane(shift=1)
        other.begin(self._data.sizes[self._data.shards[0]])

        def beside(lane: Lane) -> Lane:
            self.step(other, self.batches[0])
            return lane

        def moved(lane: Lane) -> Lane:
            fresh = self.lane()
            fresh.load(lane.state())
            return fresh

        def validated(lane: Lane) -> Lane:
            lane.evaluate(self._checked)
            return lane

        ways: dict[str, Callable[[Lane], Lane]] = {"repeats itself": lambda lane: lane, "same beside another trial": beside}
        ways["same after a move"] = moved
        if self._checked:
            ways["validation changes nothing"] = validated
        return ways
