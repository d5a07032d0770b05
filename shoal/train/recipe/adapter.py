"""What a lane tells a recipe that was made out of another library's code."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

import torch
from torch import nn

from shoal.core.trial import Visit
from shoal.train.recipe.adapted import Adapted
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.settings import Settings
from shoal.train.rng import Rng


class ToldOf(Protocol):
    """What of a lane is told."""

    recipe: Recipe
    model: nn.Module
    rng: Rng
    settings: Settings
    visits: tuple[Visit, ...]
    # samples to an epoch, to a whole batch, and of all steps in all visits
    epoch_samples: float
    size: int
    passed: float
    # in the gradient so far: batches, and their samples
    batches: int
    grouped: int

    @property
    def epochs_made(self) -> int:
        """Whole epochs trained so far."""
        ...


class LaneProgress:
    """How far a lane is; it follows from the visits made and the samples of the present pass."""

    def __init__(self, lane: ToldOf) -> None:
        self._lane = weakref.ref(lane)
        self._visits: tuple[Visit, ...] | None = None
        # in the visits: samples, optimizer steps, and batches since the begin of the epoch
        self._made = (0, 0, 0)

    @property
    def epochs(self) -> int:
        """Whole epochs trained so far."""
        return self._of_lane().epochs_made

    @property
    def steps(self) -> int:
        """Optimizer steps taken so far."""
        samples, steps, _ = self._in_visits()
        batches = self._batches(self._of_lane().passed - samples)
        return steps + self._steps(batches)

    @property
    def batches(self) -> int:
        """Batches trained so far in this epoch."""
        lane = self._of_lane()
        samples, _, batches = self._in_visits()
        return batches + self._batches(lane.passed - samples) + lane.batches

    @property
    def newest_epoch(self) -> int:
        """The number, from 0, of the epoch that the newest batch belongs to."""
        lane = self._of_lane()
        trained = lane.passed + lane.grouped
        return max(ceil(trained / lane.epoch_samples) - 1, 0)

    @property
    def group(self) -> int:
        """Batches whose gradient waits for its optimizer's step."""
        return self._of_lane().batches

    def _of_lane(self) -> ToldOf:
        return alive(self._lane)

    def _in_visits(self) -> tuple[int, int, int]:
        """Samples, steps and batches of the epoch, in the visits made."""
        lane = self._of_lane()
        if self._visits is not lane.visits:
            self._visits = lane.visits
            self._made = self._counted(lane)
        return self._made

    def _counted(self, lane: ToldOf) -> tuple[int, int, int]:
        samples = steps = batches = 0
        for visit in lane.visits:
            own = self._batches(visit.samples)
            samples += visit.samples
            batches += own
            steps += self._steps(own)
            if samples % lane.epoch_samples == 0:
                batches = 0
        return samples, steps, batches

    def _batches(self, samples: float) -> int:
        """Batches of a pass over so many samples, or of the part of it that was made."""
        lane = self._of_lane()
        if lane.settings.drop_last:
            return int(samples // lane.size)
        return int(-(-samples // lane.size))

    def _steps(self, batches: int) -> int:
        """Optimizer steps of a pass of so many batches."""
        return -(-batches // self._of_lane().settings.accumulate_grad_batches)


def alive(lane: weakref.ref[ToldOf]) -> ToldOf:
    """The lane, which uses what asks for it."""
    found = lane()
    assert found is not None, "what a lane tells is asked for while the lane is there"
    return found


class NoAdapter:
    """Stands where the recipe does not want to hear of its lane."""

    listens = False

    def begin_pass(self) -> None:
        """A pass begins. To be called outside `with lane.rng`."""

    def after_backward(self) -> None:
        """A batch's gradient was added."""

    def before_step(self, optimizer: Any) -> None:
        """The optimizer is about to step."""

    def after_batch(self) -> None:
        """A batch was trained on."""

    def end_epoch(self) -> Mapping[str, float]:
        """An epoch is over; returns scores beside those of its validation."""
        return {}

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Within it the model is validated. To be entered outside `with lane.rng`."""
        yield

    def scores(self) -> Mapping[str, float]:
        """Scores beside those that the validation steps returned."""
        return {}

    def state(self) -> dict[str, Any]:
        """The part of a trial's state that lies neither in parameters nor in buffers; tensors."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore it from a trial's state."""


class LaneAdapter(NoAdapter):
    """Tells an adapted recipe what its lane does."""

    listens = True

    def __init__(self, recipe: Adapted, lane: ToldOf) -> None:
        self._recipe = recipe
        self._lane = weakref.ref(lane)
        with lane.rng:
            recipe.attach(lane.model, LaneProgress(lane))

    @property
    def _model(self) -> nn.Module:
        return alive(self._lane).model

    def begin_pass(self) -> None:
        with alive(self._lane).rng:
            self._recipe.begin_pass(self._model)

    def after_backward(self) -> None:
        self._recipe.after_backward(self._model)

    def before_step(self, optimizer: Any) -> None:
        self._recipe.before_step(self._model, optimizer)

    def after_batch(self) -> None:
        self._recipe.after_batch(self._model)

    def end_epoch(self) -> Mapping[str, float]:
        return self._recipe.end_epoch(self._model)

    @contextmanager
    def validating(self) -> Iterator[None]:
        lane = alive(self._lane)
        try:
            with lane.rng:
                self._recipe.begin_validation(lane.model)
            yield
        finally:
            self._recipe.leave_validation(lane.model)

    def scores(self) -> Mapping[str, float]:
        with alive(self._lane).rng, torch.no_grad():
            return self._recipe.end_validation(self._model)

    def state(self) -> dict[str, Any]:
        return {"adapted": self._recipe.state(self._model)}

    def load(self, state: Mapping[str, Any]) -> None:
        if "adapted" in state:
            self._recipe.load(self._model, state["adapted"])


def adapter_of(lane: ToldOf) -> NoAdapter:
    """What tells the lane's recipe of it."""
    if isinstance(lane.recipe, Adapted):
        return LaneAdapter(lane.recipe, lane)
    return NoAdapter()
