"""The options of the Ray backend."""

import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from shoal.backend.node.messages import Feeders, SlotSetup
from shoal.backend.node.window import SHARE
from shoal.backend.ray.shard_register import NodeShards, ShardRegister
from shoal.backend.ray.silence import SilenceLimits
from shoal.core.cluster import GiB
from shoal.core.errors import warn
from shoal.core.trial import Seconds
from shoal.engine.process import cpus_here
from shoal.options import Options
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.recipes import Recipes
from shoal.train.slot.setup import Pace, TrainerSetup, resting_memory


def told_to_nobody(now: Seconds, text: str) -> None:
    """Show nothing of what a run tells."""


@dataclass(frozen=True, slots=True)
class RaySetup:
    """How slots of a Ray cluster work for a study.

    Without an `options.address`, the run takes the cluster that this process has joined already,
    else it starts one here, with `options.slots` slots (None: one per GPU; without GPUs, as many as
    CPUs allow). With an address, it takes as many slots as fit the cluster's nodes, which may come
    and go.
    """

    checkpoints: str  # URL of their folder, good on every node
    run: int  # the study's incarnation
    options: Options
    cpus: int | None = None  # of a cluster started here; None: those of this machine
    cpus_per_slot: float | None = None
    gpus_per_slot: float | None = None
    # Of data that stays at its nodes: only nodes that hold all of it have slots.
    whole: bool = False
    since: Seconds = 0.0  # the time of the study at which this run begins
    metric: str | None = None  # the study's
    mode: str | None = None  # the metric's
    keep_evaluated: bool = False  # see `TrainerSetup`
    pace: Pace | None = None  # see `TrainerSetup`
    logs: str | os.PathLike[str] | None = None  # folder for what trials print
    # Each node's folder for its copy of the data; None: one in the temporary folder.
    cache: str | os.PathLike[str] | None = None
    # Told what the run waits for until its first moment, with the time of the study.
    tell: Callable[[Seconds, str], None] = told_to_nobody

    def silence_limits(self, recipe: Recipe) -> SilenceLimits:
        """How long a slot may be silent. A function may work for hours, and tell nothing of it."""
        return SilenceLimits(
            self.options.hang_after,
            work=not isinstance(recipe, FunctionRecipe),
            fixed=self.options.stuck_after,
        )

    def feeders_for(self, recipe: Recipe, data: Data) -> Feeders:
        """The feeders; 0 if they would have nothing to do."""
        if why_no_feeders(recipe, data) is None:
            return self.options.feeders
        return 0

    def warn_of_idle_feeders(self, recipe: Recipe, data: Data) -> None:
        """Warn if the user asked for feeders, and there will be none."""
        why = why_no_feeders(recipe, data)
        if self.options.feeders not in ("auto", 0) and why is not None:
            warn(f"feeders={self.options.feeders} has no effect, since {why}")

    def resting_gb(self) -> GiB:
        """What models at rest may take in main memory, per slot."""
        if self.options.state_memory_gb is not None:
            return self.options.state_memory_gb
        return resting_memory(self.options.slots or cpus_here())

    def store_gb(self, recipe: Recipe, data: Data) -> GiB:
        """What the object store of a cluster started here should hold."""
        states = self.resting_gb() * (self.options.slots or cpus_here())
        if not self.feeders_for(recipe, data):
            return states
        return states + self.options.stream_memory_gb / SHARE

    def register(self, data: Data) -> ShardRegister | NodeShards:
        """Which slots hold which shards."""
        if data.catalogue is None:
            return ShardRegister(data.shards, self.options.copies)
        return NodeShards(data.catalogue, self.whole)

    def slot(self, recipe: Recipe, data: Data, seed: int, gpus: float) -> SlotSetup:
        """What each slot has to know; `gpus`: the slot's share of them."""
        checkpoints = self.checkpoints
        if "://" not in checkpoints:
            checkpoints = os.path.abspath(checkpoints)
        return SlotSetup(
            user=dumps((recipe, self.pace, _placed(data))),
            checkpoints=checkpoints,
            trainer=self._trainer(recipe, data, seed, gpus),
            gpus=gpus,
            fingerprint=data.fingerprint,
            token=secrets.token_hex(16),
            cache=_absolute(self.cache),
            logs=_absolute(self.logs),
        )

    def _trainer(self, recipe: Recipe, data: Data, seed: int, gpus: float) -> TrainerSetup:
        """What each slot's trainer has to know."""
        changes: dict[str, Any] = {"feeders": self.feeders_for(recipe, data)}
        if self.options.copies > 1:
            # The end of a slot costs the units under way there, no more: others go on from there.
            changes["checkpoint_every"] = 0.0
        if not gpus:  # of a GPU the slot takes a part itself
            changes["state_memory_gb"] = self.resting_gb()
        return TrainerSetup(
            replace(self.options, **changes),
            seed=seed,
            run=self.run,
            metric=self.metric,
            mode=self.mode,
            keep_evaluated=self.keep_evaluated,
        )


def why_no_feeders(recipe: Recipe, data: Data) -> str | None:
    """Why feeders would have nothing to do for all slots; None if there is something."""
    if isinstance(recipe, Recipes):
        return "the study has several recipes, each with its own data: slots prepare it"
    if recipe.data_keys or data.arrangement.folds is not None:
        return "each trial's data depends on its configuration: slots prepare their own"
    if data.arrangement.reshuffles and data.catalogue is not None:
        return "samples are dealt between nodes, and slots bring their shards together"
    prepares = overrides(recipe, "prepare") or overrides(recipe, "augment")
    if data.in_memory and not prepares:
        return "the data is in memory and the recipe neither prepares nor augments it"
    return None


def _placed(data: Data) -> Data | None:
    """The data that slots are sent: what stays at its nodes; None: they build it themselves."""
    if data.catalogue is None:
        return None
    return data.at(())


def _absolute(path: str | os.PathLike[str] | None) -> str | None:
    """The path, good in processes that work in other folders."""
    if path is None:
        return None
    return os.path.abspath(path)
