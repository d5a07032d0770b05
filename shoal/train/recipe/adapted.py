"""Recipes around training code that was written for another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from shoal.train.recipe.recipe import Recipe


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
        """Those of the names whose value the code ignores, for an attribute that it reads.

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
            raise TypeError(
                f"recipes have no attribute {name!r}; they have {', '.join(sorted(known))}"
            )
        if value is not None:
            setattr(recipe, name, value)
