"""The check of a recipe: steps that are taken again in ways that must make no difference."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import cycle, islice
from typing import Any

import torch

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.fuse.fused import Fused
from shoal.train.lane.batch_size_search import is_open, with_size
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import evaluate
from shoal.train.recipe.adapter import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.settings import data_key, seed_of, seen_by
from shoal.train.recipe.shard import ShardModel, arrays, is_scored
from shoal.train.recipe.unit import RAISED, Tree
from shoal.train.stream.stream import Stream
from shoal.train.tools.verify import Config, differences

STEPS = 3  # that `check_recipe` takes
SMALL = 32  # its batch size if the recipe says "max"
Check = tuple[str, bool, str]  # name, whether it passed, and more
Between = Callable[[TrainingLane], TrainingLane]


def check_recipe(
    recipe: Recipe,
    data: Data,
    config: Config,
    seed: int = 0,
    neighbour: Config | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Take three steps alone, and again in ways that must make no difference.

    Where a pass has fewer steps, its batches are trained again.

    `device`: where the steps are taken. `neighbour`: the configuration of the trial beside which
    they are taken again; best one that differs from `config` in every key. None: the same
    configuration under another seed.

    Returns {"ok": …, "steps": …, "checks": [(name, passed, text), …]}; a recipe that raises fails
    the check "trains".
    """
    try:
        bench = _Bench(recipe, data, config, seed, device)
        first = bench.train(bench.lane(), _same)
    except RAISED as error:
        return _report(0, [("trains", False, _described(error))])
    checks: list[Check] = [("trains", True, f"{STEPS} steps")]
    if neighbour is None:
        neighbour = config
    other_trial = Neighbour(recipe, data, neighbour, seed + 1, device)
    for name, between in bench.ways(other_trial).items():
        try:
            repeated = bench.train(bench.lane(), between)
            checks.append(_compared(name, first, repeated))
        except RAISED as error:
            checks.append((name, False, _described(error)))
    if isinstance(recipe, Adapted):
        checks.append(("fused packs", True, bench.fused()))
    return _report(STEPS, checks)


def trained_names(recipe: Recipe, data: Data, config: Config, seed: int = 0) -> set[str] | None:
    """The names of the values that training on a batch gives; None if it raises."""
    try:
        bench = _Bench(recipe, data, config, seed)
        lane = bench.lane()
        bench.begin(lane)
        if isinstance(lane.model, ShardModel):
            with lane.rng:
                return set(lane.model.trained(iter([arrays(bench.batches[0])])))
        batch = bench.batches[0]
        with lane.rng:
            lane.step(batch, cols.rows(batch))
        _, values = lane.taken()
    except RAISED:
        return None
    return set(values)


def _compared(name: str, first: Tree, repeated: Tree) -> Check:
    """Whether two states are equal; if not, the first three places where they differ."""
    gaps = list(differences(first, repeated))
    if not gaps:
        return name, True, "equal to the last bit"
    places = [f"{where} differs by {gap:.3g}" for where, gap in gaps[:3]]
    return name, False, ", ".join(places)


def _report(steps: int, checks: list[Check]) -> dict[str, Any]:
    """What `check_recipe` returns."""
    passed = all(check[1] for check in checks)
    return {"ok": passed, "steps": steps, "checks": checks}


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _same(lane: TrainingLane) -> TrainingLane:
    """The lane, with which nothing happens between the steps."""
    return lane


class _Bench:
    """A few batches, and lanes to train on them with something between the steps."""

    def __init__(
        self, recipe: Recipe, data: Data, config: Config, seed: int, device: str = "cpu"
    ) -> None:
        self._recipe = recipe
        self._data = data
        self._device = torch.device(device)
        self._config = dict(config)
        if is_open(recipe, config):
            self._config = with_size(config, SMALL)
        self._seed = seed_of(config, seed)
        stream = Stream(
            seen_by(recipe, data_key(recipe, config)),
            data,
            seed=seed,
            device=self._device,
            memory_gb=0.0,
        )
        settings = self.lane().settings
        size = settings.batch_size
        shard = self._data.shards[0]
        with closing(stream.chunks(shard, 0, settings.order)) as chunks:
            chunk = next(chunks)
        count = max(1, cols.rows(chunk) // size)
        batches = [cols.cut(chunk, index * size, (index + 1) * size) for index in range(count)]
        self.batches = list(islice(cycle(batches), STEPS * settings.accumulate_grad_batches))
        self._validation: list[Columns] = []
        if is_scored(recipe):
            self._validation = list(stream.validation())[:1]

    def lane(self) -> TrainingLane:
        """A new lane of the trial."""
        return TrainingLane(
            self._recipe,
            self._config,
            seed=self._seed,
            device=self._device,
            epoch=float(self._data.samples),
        )

    def train(self, lane: TrainingLane, between: Between) -> Tree:
        """The state after the steps.

        `between` is called with the lane before the first step and after each. It returns the lane
        that goes on.
        """
        lane = between(lane)
        self.begin(lane)
        for batch in self.batches:
            self.step(lane, batch)
            lane = between(lane)
        return lane.state()

    def begin(self, lane: TrainingLane) -> None:
        """Begin a pass over the first shard."""
        data = self._data
        lane.begin(data.sizes[data.shards[0]])

    def step(self, lane: TrainingLane, batch: Columns) -> None:
        """Train on the batch, and look at what that did, as slots do.

        Raises:
            Diverged, ChangeError: see `TrainingLane.taken`.
        """
        with lane.rng:
            lane.step(batch, cols.rows(batch))
        lane.taken()

    def fused(self) -> str:
        """Whether two lanes can make their first step in one, or what is in the way."""
        lanes = [self.lane(), self.lane()]
        batch = self.batches[0]
        for lane in lanes:
            self.begin(lane)
        try:
            Fused(lanes).step(batch, cols.rows(batch))
        except RAISED as error:
            return f"trials are trained one after the other: {error}"
        return "trials that differ in numbers of their optimizers only are trained at once"

    def ways(self, neighbour: Neighbour) -> dict[str, Between]:
        """What must make no difference between the steps, by the name of the check."""

        def beside(lane: TrainingLane) -> TrainingLane:
            neighbour.step()
            return lane

        def moved(lane: TrainingLane) -> TrainingLane:
            if lane.unfinished:  # trials move where no batch waits for its step
                return lane
            fresh = self.lane()
            fresh.load(lane.state())
            fresh.restart(lane.passed, 0)
            return fresh

        def validated(lane: TrainingLane) -> TrainingLane:
            if lane.passed:  # validation comes after training
                evaluate(lane, self._validation)
            return lane

        ways: dict[str, Callable[[TrainingLane], TrainingLane]] = {
            "repeats itself": _same,
            "same beside another trial": beside,
            "same after a move": moved,
        }
        if self._validation:
            ways["validation changes nothing"] = validated
        return ways


class Neighbour:
    """Another trial of the recipe, which takes steps between those of the trial that is checked.

    Its model is built at its first step, after that of the checked trial: what its configuration
    leaves on the recipe is then there when the checked trial goes on.
    """

    def __init__(
        self, recipe: Recipe, data: Data, config: Config, seed: int, device: str = "cpu"
    ) -> None:
        own_config = dict(config)
        if "seed" in own_config:
            own_config["seed"] = seed
        self._bench = partial(_Bench, recipe, data, own_config, seed, device)
        self._trial: tuple[_Bench, TrainingLane] | None = None

    def step(self) -> None:
        """Train on its first batch."""
        if self._trial is None:
            bench = self._bench()
            lane = bench.lane()
            bench.begin(lane)
            self._trial = bench, lane
        bench, lane = self._trial
        bench.step(lane, bench.batches[0])
