"""The optimizers and schedules of one trial: their state, and what changes their rates."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.train.lane import optimizers as numbers
from shoal.train.lane import tree
from shoal.train.lane.stepping.configured import configured
from shoal.train.lane.stepping.inner import load_whole, whole_state
from shoal.train.recipe.hooks import steps_itself
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.settings import Settings

# settings of the steps that Shoal takes, and their values that ask for nothing
OF_STEPS = {
    "gradient_clip_val": None,
    "accumulate_grad_batches": 1,
    "batch_per_slot": False,
}


# what a recipe does to step by itself; one of another library's code says it in its own way
OWN_STEPS = "write training_step(self, model, batch, optimizers)"


class Optimizing:
    """What `configure_optimizers` returned.

    Raises:
        TypeError, ValueError: it is none of the forms.
    """

    def __init__(self, made: Any) -> None:
        pairs = configured(made)
        self.optimizers: tuple[Optimizer, ...] = tuple(each for each, _ in pairs)
        self.schedules = tuple(schedule for _, schedule in pairs)
        self._configured = [_numbers_of(each) for each in self.optimizers]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of all groups, in order."""
        found: list[Parameter] = []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                found.extend(group["params"])
        return found

    @property
    def objects(self) -> list[Any]:
        """The optimizers and torch's schedulers, each of which belongs to one trial."""
        schedulers = [schedule.scheduler for schedule in self.schedules]
        own = [each for each in schedulers if isinstance(each, LRScheduler)]
        return [*self.optimizers, *own]

    @property
    def bytes(self) -> int:
        """Memory that the optimizers' states take."""
        states = [dict(state) for each in self.optimizers for state in _values(each)]
        return tree.size_of(states)

    def quicken(self, device: torch.device) -> None:
        """Have Shoal's own steps use fused kernels where there are any."""
        for optimizer in self.optimizers:
            numbers.quicken(optimizer, device)

    def forget_gradients(self) -> None:
        """No gradient lasts beyond a pass, for none is part of a trial's state."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    # -- schedules ---------------------------------------------------------------------------------

    @property
    def follows_metric(self) -> bool:
        """Whether a learning rate depends on the study's metric."""
        return any(schedule.follows_metric for schedule in self.schedules)

    @property
    def by_epoch(self) -> bool:
        """Whether an epoch's end changes anything."""
        return any(schedule.by_epoch for schedule in self.schedules)

    def check_metric(self, metric: str | None, mode: str | None = None) -> None:
        """Raise ValueError if a scheduler is to follow another metric, or it in another mode."""
        for schedule in self.schedules:
            schedule.check_metric(metric, mode)

    def before_step(self, samples: float, epoch: float) -> None:
        """Set the rates for the step that is due; see `Schedule.before_step`."""
        for schedule in self.schedules:
            schedule.before_step(samples, epoch)

    def after_step(self) -> None:
        """A step was made."""
        for schedule in self.schedules:
            schedule.after_step()

    def end_epoch(self, metric: float | None) -> None:
        """An epoch is over."""
        for schedule in self.schedules:
            schedule.end_epoch(metric)

    # -- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The states of all: of one optimizer as they are, of several as lists."""
        made_with = [schedule.made_with for schedule in self.schedules]
        return {
            "optimizer": self._joined([whole_state(each) for each in self.optimizers]),
            "scheduler": self._joined([each.state() for each in self.schedules]),
            "configured": self._joined(tree.to_numpy(self._configured)),
            "scheduled": self._joined(tree.to_numpy(made_with)),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from that state.

        Of a trial with other hyper-parameters momenta and progress are taken over; learning rates,
        decays, the schedule's gamma and the like stay this trial's.

        Raises:
            ValueError: it is the state of other optimizers.
        """
        self._check_number(state["optimizer"])
        saved = self._parted(state["optimizer"])
        schedulers = self._parted(state["scheduler"])
        made_with = self._parted(state.get("scheduled", self._joined([{}] * len(saved))))
        configured = state.get("configured", self._joined(self._configured))
        theirs = self._parted(numbers.numbers_of_state(configured))
        for number, (optimizer, schedule) in enumerate(
            zip(self.optimizers, self.schedules, strict=True)
        ):
            load_whole(optimizer, saved[number])
            numbers.unsettle(optimizer)
            schedule.load(schedulers[number], made_with[number])
            own = self._configured[number]
            if theirs[number] != own:
                numbers.restore_numbers(optimizer, own, theirs[number])
                schedule.set_bases([numbers.base_rate(each) for each in own])

    def _check_number(self, saved: Any) -> None:
        """Raise ValueError if the state is that of more or fewer optimizers."""
        theirs = len(saved) if isinstance(saved, list) else 1
        own = len(self.optimizers)
        if theirs != own:
            raise ValueError(
                f"the state is that of {theirs} optimizers, and configure_optimizers returned "
                f"{own}: was it changed?"
            )

    def _joined(self, each: list[Any]) -> Any:
        """What is kept of all: the only one, or the list."""
        return each[0] if len(self.optimizers) == 1 else each

    def _parted(self, kept: Any) -> Sequence[Any]:
        """One for each optimizer, of what `_joined` made."""
        parts: Sequence[Any] = [kept] if len(self.optimizers) == 1 else kept
        return parts


def _numbers_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The hyper-parameters of each group."""
    return [numbers.group_numbers(group) for group in optimizer.param_groups]


def _values(optimizer: Optimizer) -> list[Any]:
    return list(optimizer.state.values())


def check_steps(recipe: Recipe, settings: Settings, optimizers: Sequence[Optimizer] = ()) -> None:
    """Raise ValueError if the recipe's steps and its optimizers or settings do not fit.

    `optimizers`: what `configure_optimizers` returned.
    """
    if not steps_itself(recipe):
        own_steps = getattr(recipe, "OWN_STEPS", OWN_STEPS)
        if len(optimizers) > 1:
            raise ValueError(
                f"configure_optimizers returned {len(optimizers)} optimizers, so that "
                f"training_step must step them itself: {own_steps}, or give one optimizer several "
                "parameter groups"
            )
        for optimizer in filter(_needs_closure, optimizers):
            raise ValueError(
                f"{type(optimizer).__name__} steps by a closure, which training_step must give it: "
                f"{own_steps}"
            )
        return
    for name, usual in OF_STEPS.items():
        value = getattr(settings, name)
        if value != usual:
            raise ValueError(
                "training_step takes `optimizers` and steps them itself, so that "
                f"{name}={value!r} would do nothing: leave it out, and do that in the step"
            )


def _needs_closure(optimizer: Optimizer) -> bool:
    """Whether its step has no default for the closure, as LBFGS's."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty
