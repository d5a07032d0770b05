"""Recipes around training code of another library, and what a lane tells them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.core.other_tools import for_recipe, hint
from shoal.core.trial import Visit
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.settings import Settings
from shoal.train.rng import Rng


class NotOfferedError(AttributeError):
    """The code asks for something of its library that Shoal does not offer."""


class TrialProgress(Protocol):
    """How far a trial is, at any moment."""

    @property
    def epochs(self) -> int:
        """Whole epochs trained so far."""
        ...

    @property
    def steps(self) -> int:
        """Optimizer steps taken so far."""
        ...

    @property
    def batches(self) -> int:
        """Batches trained so far in this epoch."""
        ...

    @property
    def newest_epoch(self) -> int:
        """The number, from 0, of the epoch that the newest batch belongs to."""
        ...

    @property
    def group(self) -> int:
        """Batches whose gradient waits for its optimizer's step."""
        ...


class Adapted(Recipe):
    """A recipe that hears what a lane does with its model; the methods here do nothing."""

    def for_study(self) -> Recipe:
        """The recipe of one study, to which `plan` tells what is true of that study only."""
        return self

    def plan(self, epochs: int | None, asked: bool = False) -> None:
        """Trials train for so many epochs at most, for code that asks; None: nobody knows.

        `asked`: whether it is known that the code asks.
        """

    def planned(self) -> int | None:
        """For how many epochs the code's schedules are; None if the code does not ask."""
        return None

    def brought(self) -> tuple[Any, ...]:
        """Classes and functions of the user's, whose code belongs into the recipe's pickle."""
        return ()

    def named(self) -> Any:
        """The class or function that the user wrote: the journal names its file."""
        return None

    def renew(self, kind: Any) -> None:
        """Take this instead of what `named` gave: its file has changed."""

    def trained(self, model: nn.Module) -> nn.Module:
        """A trained model as the user is to get it."""
        return model

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError if the code does not take a key of the configuration."""

    def attributes_instead(
        self, model: Any, names: Sequence[str], unread: Sequence[str]
    ) -> list[str]:
        """The names whose value the code ignores, for an attribute that it reads.

        `model`: one that was built. `unread`: those that nobody took from the configuration.
        """
        return []

    def obstacle(self, model: nn.Module) -> str | None:
        """Why models of this kind cannot be fused; None if nothing is known to stand in the way."""

    def attach(self, model: nn.Module, progress: TrialProgress) -> None:
        """A lane has this model, and is so far."""

    def begin_pass(self, model: nn.Module) -> None:
        """A pass over a shard begins."""

    def after_backward(self, model: nn.Module) -> None:
        """A batch's gradient was added."""

    def before_step(self, model: nn.Module, optimizer: Optimizer) -> None:
        """The optimizer is about to step."""

    def after_batch(self, model: nn.Module) -> None:
        """A batch was trained on, its step included."""

    def begin_validation(self, model: nn.Module) -> None:
        """The model is about to be validated."""

    def end_validation(self, model: nn.Module) -> Mapping[str, float]:
        """The model was validated; scores beside those of the steps."""
        return {}

    def leave_validation(self, model: nn.Module) -> None:
        """The validation is over, or was broken off: nothing may be left of it."""

    def end_epoch(self, model: nn.Module) -> Mapping[str, float]:
        """An epoch is over, its validation included; returns scores beside those of that."""
        return {}

    def state(self, model: nn.Module) -> Any:
        """What of the trial lies neither in parameters nor in buffers, as a plain tree."""

    def load(self, model: nn.Module, state: Any) -> None:
        """Restore what `state` gave."""


def set_attributes(recipe: Adapted, attributes: Mapping[str, Any]) -> None:
    """Give the recipe these attributes.

    Raises:
        TypeError: recipes have none of that name.
    """
    known = [
        name
        for name, value in vars(Recipe).items()
        if not name.startswith("_") and not callable(value)
    ]
    for name, value in attributes.items():
        if name not in known:
            meant = for_recipe(name)
            if name in ("callbacks", "loggers"):
                meant = f"study.optimize({name}=)"
            raise TypeError(
                f"recipes have no attribute {name!r}{hint(name, meant)}; they have "
                f"{', '.join(sorted(known))}"
            )
        if value is not None:
            setattr(recipe, name, value)


class LaneView(Protocol):
    """What an adapter reads of its lane."""

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

    def __init__(self, lane: LaneView) -> None:
        self._lane = weakref.ref(lane)
        self._visits: tuple[Visit, ...] | None = None
        # in the visits: samples, optimizer steps, and batches since the begin of the epoch
        self._visits_totals = (0, 0, 0)

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
        samples = lane.passed + lane.grouped
        return max(ceil(samples / lane.epoch_samples) - 1, 0)

    @property
    def group(self) -> int:
        """Batches whose gradient waits for its optimizer's step."""
        return self._of_lane().batches

    def _of_lane(self) -> LaneView:
        return alive(self._lane)

    def _in_visits(self) -> tuple[int, int, int]:
        """Samples, steps and batches of the epoch, in the visits made."""
        lane = self._of_lane()
        if self._visits is not lane.visits:
            self._visits = lane.visits
            samples = steps = batches = 0
            for visit in lane.visits:
                visit_batches = self._batches(visit.samples)
                samples += visit.samples
                batches += visit_batches
                steps += self._steps(visit_batches)
                if samples % lane.epoch_samples == 0:
                    batches = 0
            self._visits_totals = samples, steps, batches
        return self._visits_totals

    def _batches(self, samples: float) -> int:
        """Batches of a pass over so many samples, or of the part of it that was made."""
        lane = self._of_lane()
        if lane.settings.drop_last:
            return int(samples // lane.size)
        return int(-(-samples // lane.size))

    def _steps(self, batches: int) -> int:
        """Optimizer steps of a pass of so many batches."""
        return -(-batches // self._of_lane().settings.accumulate_grad_batches)


def alive(lane: weakref.ref[LaneView]) -> LaneView:
    """The lane behind the reference: only what the lane itself uses asks, so that it is there."""
    target = lane()
    assert target is not None, "what a lane tells is asked for while the lane is there"
    return target


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
        """Restore what `state` gave, out of a trial's state."""


class LaneAdapter(NoAdapter):
    """Tells an adapted recipe what its lane does."""

    listens = True

    def __init__(self, recipe: Adapted, lane: LaneView) -> None:
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


def adapter_of(lane: LaneView) -> NoAdapter:
    """The adapter by which the lane tells its recipe what it does."""
    if isinstance(lane.recipe, Adapted):
        return LaneAdapter(lane.recipe, lane)
    return NoAdapter()
