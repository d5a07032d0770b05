"""What the parts of a slot share: the study, the device, the data, and stopwatches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from time import perf_counter
from typing import Protocol

import torch

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds, TrialId
from shoal.core.visits import next_visit
from shoal.train.data.data import Data
from shoal.train.lane.checkpoints import Checkpoints
from shoal.train.lane.device import memory_of
from shoal.train.lane.measure import Meter
from shoal.train.lane.scoring import Record
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import Unit
from shoal.train.slot.setup import RESTING, TrainerSetup, resting_memory
from shoal.train.stream.stream import Streams


def ignore_turn(_trial: TrialId) -> None:
    """The default of `turn_of`: nobody wants to know whose code runs next."""


Records = Mapping[ShardId, Record]


class RemoteValidation(Protocol):
    """Has models validated at the nodes where validation parts lie."""

    def begin(self, unit: Unit, parts: Collection[ShardId]) -> Callable[[], Records]:
        """Send the model there. What this returns waits for the records of the parts.

        `unit`: the trial's, whose source is the model's state. Waiting raises TrialError if the
        recipe's code raised there, and DataError if a part is nowhere to be read.
        """
        ...


class Stopwatch:
    """The seconds of a unit, by what they were spent on.

    The clock takes them; without `clocked` only those count that are added.
    """

    def __init__(self, clocked: bool) -> None:
        self._clocked = clocked
        self._seconds: dict[str, Seconds] = {}
        self.worked: Seconds = 0.0  # what the loss of the state would cost again

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """The seconds spent within count as `name`."""
        begin = perf_counter()
        try:
            yield
        finally:
            if self._clocked:
                self.add(name, perf_counter() - begin)

    def add(self, name: str, seconds: Seconds) -> None:
        """Count so many seconds as `name`."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        if name in ("data", "train"):
            self.worked += seconds

    def take(self) -> dict[str, Seconds]:
        """The seconds spent since the last call."""
        spent, self._seconds = self._seconds, {}
        return spent


@dataclass(frozen=True)
class SlotContext:
    """The study, the device and the data of one slot, which its parts share.

    `turn_of` is called with the trial whose code runs next, of fused trials with the first.
    """

    recipe: Recipe
    data: Data
    vault: Checkpoints | None  # None: nothing is made durable here
    setup: TrainerSetup
    device: torch.device
    streams: Streams
    meter: Meter
    turn_of: Callable[[TrialId], None] = ignore_turn
    # has models validated on parts that lie at other nodes only; None: all lie here
    remote_validation: RemoteValidation | None = None

    @cached_property
    def state_room(self) -> float:
        """Bytes that the lanes here may take."""
        limit = self.setup.options.state_memory_gb
        if limit is None:
            memory = memory_of(str(self.device))
            limit = RESTING * memory if isfinite(memory) else resting_memory()
        return limit * 2**30

    @property
    def slot_room(self) -> float:
        """Bytes of the slot in all; infinite if that is not known."""
        return self.setup.options.slot_limit * 2**30

    def next_pass(self, unit: Unit) -> tuple[ShardId, int] | None:
        """The shard and the turn of the pass that probably follows the unit's; None: no pass."""
        if unit.last:
            return None
        visits = (*unit.visits, unit.visit)
        shards = unit.trial.shards or frozenset(self.data.shards)
        following = next_visit(self.setup.seed, visits, shards)
        if not self.data.is_here(following.shard):
            return None  # another slot reads it
        return following.shard, following.turn

    def data_of(self, recipe: Recipe) -> Data:
        """The data of this recipe, one of the study's."""
        return self.data.of_recipe(recipe.recipe_name)

    def set_threads(self) -> None:
        """Use as many threads as this slot may; other slots of this process may use more."""
        if torch.get_num_threads() != self.setup.options.threads:
            torch.set_num_threads(self.setup.options.threads)

    def stopwatch(self) -> Stopwatch:
        """Measures a unit's seconds by the clock; with a pace it counts only what is added."""
        return Stopwatch(self.setup.clocked)
