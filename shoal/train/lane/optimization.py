"""What `configure_optimizers` returned: one optimizer or several, each with its schedule."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from shoal.train.lane import tree
from shoal.train.lane.optimizers import (
    base_rate,
    group_numbers,
    load_whole,
    numbers_of_state,
    quicken,
    restore_numbers,
    set_rates,
    unsettle,
    whole_state,
)
from shoal.train.recipe.hooks import steps_itself
from shoal.train.recipe.recipe import LRSchedule, Recipe
from shoal.train.recipe.settings import Settings

Interval = Literal["epoch", "step"]
# schedulers whose arguments are numbers of optimizer steps
COUNT_STEPS = (OneCycleLR, CyclicLR)
# attributes that say how far a scheduler is, though a new scheduler has them, too
_COUNTED = ("_last_lr", "T_i", "T_cur")
# attributes that hold schedulers, or functions, with attributes of their own
_WITHIN = ("_schedulers", "lr_lambdas")


class Schedule:
    """The schedule of an optimizer's learning rates: an `LRSchedule`, torch's scheduler, or none.

    `interval`: when torch's scheduler is stepped; None for what is usual for its class.
    `monitor`: the metric that ReduceLROnPlateau is to follow, where the recipe names one.

    Raises:
        ValueError: the interval does not fit the scheduler.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduler: LRSchedule | LRScheduler | None = None,
        interval: Interval | None = None,
        monitor: str | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.monitor = monitor
        self.by_step = interval == "step"
        if interval is None:
            self.by_step = _counts_steps(scheduler)
        if self.by_step and self.follows_metric:
            raise ValueError(
                'ReduceLROnPlateau is stepped once an epoch; got interval="step": leave it out'
            )
        if interval is not None and isinstance(scheduler, LRSchedule):
            raise ValueError(
                f"an LRSchedule is set before every step; got interval={interval!r}: leave it out"
            )
        self._optimizer = optimizer
        self._bases = [float(group["lr"]) for group in optimizer.param_groups]
        self.made_with = made_with(scheduler)

    @property
    def by_epoch(self) -> bool:
        """Whether an epoch's end changes anything."""
        return isinstance(self.scheduler, LRScheduler) and not self.by_step

    @property
    def follows_metric(self) -> bool:
        """Whether the learning rate depends on the study's metric."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def check_metric(self, metric: str | None, mode: str | None = None) -> None:
        """Check that ReduceLROnPlateau can follow the study's metric.

        `mode`: whether its least or its largest value is the best; None: nobody said.

        Raises:
            ValueError: it is to follow another one, or in another mode.
        """
        if not self.follows_metric:
            return
        if metric is None:
            raise ValueError(
                "ReduceLROnPlateau follows the study's metric, but none is set: give metric="
            )
        if self.monitor not in (None, metric):
            raise ValueError(
                f"ReduceLROnPlateau follows the study's metric, {metric!r}; "
                f"got monitor={self.monitor!r}: leave it out"
            )
        own_mode = getattr(self.scheduler, "mode", None)
        if mode not in (None, own_mode):
            raise ValueError(
                f"ReduceLROnPlateau(mode={own_mode!r}) follows the study's metric, {metric!r}, "
                f"whose mode is {mode!r}: the rate would fall while the metric gets better. Give "
                f"the scheduler mode={mode!r}, or the study mode={own_mode!r}"
            )

    def before_step(self, samples: float, epoch: float) -> None:
        """Set an `LRSchedule`'s rates, after so many samples; `epoch`: samples to an epoch."""
        if not isinstance(self.scheduler, LRSchedule):
            return
        progress = samples / epoch if self.scheduler.unit == "epochs" else samples
        factor = self.scheduler.factor(progress)
        set_rates(self._optimizer, [base * factor for base in self._bases])

    def after_step(self) -> None:
        """Step a scheduler that counts steps, after a step of the optimizer."""
        if self.by_step and isinstance(self.scheduler, LRScheduler):
            self.scheduler.step()

    def end_epoch(self, metric: float | None) -> None:
        """Step a scheduler that counts epochs. ReduceLROnPlateau waits for one with a metric."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if metric is not None:
                self.scheduler.step(metric)
        elif isinstance(self.scheduler, LRScheduler) and self.by_epoch:
            self.scheduler.step()

    def state(self) -> Any:
        """The state of torch's scheduler as a plain tree; None where there is no scheduler."""
        if not isinstance(self.scheduler, LRScheduler):
            return None
        return tree.to_numpy(self.scheduler.state_dict())

    def load(self, state: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """Go on from that state, of a scheduler that was made with these arguments."""
        if state is None or not isinstance(self.scheduler, LRScheduler):
            return
        self.scheduler.load_state_dict(tree.to_torch(state))
        if arguments is not None:
            put_back(self.scheduler, self.made_with, arguments)

    def set_bases(self, bases: Sequence[float]) -> None:
        """Count from these learning rates, one for each parameter group."""
        if isinstance(self.scheduler, LRScheduler):
            rates = [float(group["lr"]) for group in self._optimizer.param_groups]
            state = self.scheduler.state_dict()
            state.update(base_lrs=list(bases), _last_lr=rates)
            self.scheduler.load_state_dict(state)


def _counts_steps(scheduler: Any) -> bool:
    """Whether the scheduler, or one within it, counts optimizer steps."""
    inner = getattr(scheduler, "_schedulers", ())
    return isinstance(scheduler, COUNT_STEPS) or any(map(_counts_steps, inner))


# -- a state that comes from another trial ---------------------------------------------------------


def made_with(scheduler: Any) -> dict[str, Any]:
    """The plain attributes of a torch scheduler that has just been made, and of what is within it.

    They are what it was made with, not what it counts: a trial that starts from another's state
    keeps its own. {} of other schedules.
    """
    return _attributes(scheduler) if isinstance(scheduler, LRScheduler) else {}


def _attributes(instance: Any) -> dict[str, Any]:
    """The plain attributes of any object, as in `made_with`."""
    values = getattr(instance, "__dict__", {})
    attributes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in (*_COUNTED, *_WITHIN) and _is_plain(value):
            attributes[name] = _plain(value)
    for name in _WITHIN:
        if name in values:
            attributes[name] = [_attributes(each) for each in values[name]]
    return attributes


def put_back(scheduler: Any, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Restore a scheduler's own attributes (gamma, T_max) after it has loaded another's state.

    `own`, `theirs`: what the two schedulers were `made_with`.
    """
    for name, value in own.items():
        if name in _WITHIN:
            inner = zip(getattr(scheduler, name), value, theirs.get(name, ()), strict=False)
            for each, own_inner, their_inner in inner:
                put_back(each, own_inner, their_inner)
        elif name in theirs and theirs[name] != value:
            loaded = getattr(scheduler, name)
            if isinstance(loaded, tuple | list | dict):
                value = type(loaded)(deepcopy(value))
            setattr(scheduler, name, value)
    if isinstance(scheduler, CyclicLR):
        # its scale function holds the gamma that was there when it was made
        scheduler.load_state_dict(scheduler.state_dict())


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """A copy as it comes back from a checkpoint: lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


LIGHTNING = {"scheduler", "interval", "frequency", "monitor", "strict", "name"}
_KEYS = ", ".join(sorted(LIGHTNING - {"scheduler"}))
FORMS = (
    "configure_optimizers must return an optimizer, (optimizer, scheduler) or "
    '{"optimizer": …, "lr_scheduler": …}, the scheduler one of torch\'s, a shoal.LRSchedule, or '
    '{"scheduler": …, "interval": "epoch" or "step"}; or a list of these; or Lightning\'s '
    "([optimizers], [schedulers])"
)


class Configured(NamedTuple):
    """One optimizer, its scheduler in any form, and the metric to be monitored; not yet checked."""

    optimizer: Any
    scheduler: Any = None
    monitor: str | None = None


def configured(outcome: Any) -> list[tuple[Optimizer, Schedule]]:
    """The optimizers and their schedules, from what `configure_optimizers` returned.

    Raises:
        TypeError: none of the forms.
        ValueError: an interval, frequency or key that Shoal does not know; two schedulers of one
            optimizer.
    """
    pairs = []
    for optimizer, scheduler, monitor in _entries(outcome):
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{FORMS}; got {type(optimizer).__name__}: {str(optimizer)[:80]}")
        interval = None
        if isinstance(scheduler, Mapping):
            interval, monitor = _lightning(scheduler, monitor)
            scheduler = scheduler["scheduler"]
        if scheduler is not None and not isinstance(scheduler, LRSchedule | LRScheduler):
            raise TypeError(f"{FORMS}; got the scheduler {type(scheduler).__name__}")
        pairs.append((optimizer, Schedule(optimizer, scheduler, interval, monitor)))
    if not pairs:
        raise TypeError(f"{FORMS}; got no optimizer")
    return pairs


def _entries(outcome: Any) -> Iterator[Configured]:
    """The optimizers in any of the forms, each with its scheduler."""
    if isinstance(outcome, Mapping):
        unknown = set(outcome) - {"optimizer", "lr_scheduler", "monitor"}
        if unknown or "optimizer" not in outcome:
            raise TypeError(f"{FORMS}; got a dict with the keys {', '.join(map(str, outcome))}")
        yield Configured(outcome["optimizer"], outcome.get("lr_scheduler"), outcome.get("monitor"))
    elif not isinstance(outcome, list | tuple):
        yield Configured(outcome)
    elif not _is_pair(outcome):
        for each in outcome:
            yield from _entries(each)
    elif isinstance(outcome[0], Optimizer):
        yield Configured(outcome[0], _only(outcome[1]))
    else:
        yield from _by_optimizer(*outcome)


def _is_pair(outcome: Sequence[Any]) -> bool:
    """Whether the outcome is (optimizer, scheduler) or ([optimizers], [schedulers])."""
    if not isinstance(outcome, tuple) or len(outcome) != 2:
        return False
    first, second = outcome
    if isinstance(second, Mapping):
        return isinstance(first, Optimizer) and "optimizer" not in second
    if isinstance(first, list):
        return isinstance(second, list) and all(isinstance(each, Optimizer) for each in first)
    return isinstance(first, Optimizer) and not isinstance(second, Optimizer | tuple)


def _only(scheduler: Any) -> Any:
    """The one scheduler that there is; None if there is none."""
    if not isinstance(scheduler, list):
        return scheduler
    if len(scheduler) > 1:
        raise ValueError(
            f"an optimizer has one scheduler; configure_optimizers returned {len(scheduler)} for "
            "it: chain them with SequentialLR or ChainedScheduler"
        )
    return next(iter(scheduler), None)


def _by_optimizer(
    optimizers: Sequence[Optimizer], schedulers: Sequence[Any]
) -> Iterator[Configured]:
    """The optimizers of ([optimizers], [schedulers]), each with its scheduler.

    One of torch's schedulers knows its optimizer. Others go by their place in the list.
    """
    if len(optimizers) == 1:
        yield Configured(optimizers[0], _only(list(schedulers)))
        return
    for place, optimizer in enumerate(optimizers):
        matching = []
        for number, scheduler in enumerate(schedulers):
            of_torch = scheduler.get("scheduler") if isinstance(scheduler, Mapping) else scheduler
            belongs = number == place
            if isinstance(of_torch, LRScheduler):
                belongs = of_torch.optimizer is optimizer
            if belongs:
                matching.append(scheduler)
        yield Configured(optimizer, _only(matching))


def _lightning(options: Mapping[str, Any], monitor: str | None) -> tuple[Any, str | None]:
    """Interval and monitored metric of Lightning's scheduler dictionary."""
    unknown = set(options) - LIGHTNING
    if unknown or "scheduler" not in options:
        keys = ", ".join(sorted(map(str, options)))
        raise ValueError(f'a scheduler\'s dict needs "scheduler", and may have {_KEYS}; got {keys}')
    interval = options.get("interval")
    if interval not in (None, "epoch", "step"):
        raise ValueError(f'a scheduler\'s interval must be "epoch" or "step"; got {interval!r}')
    frequency = options.get("frequency", 1)
    if frequency != 1:
        raise ValueError(
            f"a scheduler is stepped at every interval, frequency 1; got {frequency!r}: "
            "give the scheduler numbers that many times as large"
        )
    return interval, options.get("monitor", monitor)


# settings of the steps that Shoal takes, and their values that ask for nothing
OF_STEPS = {"gradient_clip_val": None, "accumulate_grad_batches": 1, "batch_per_slot": False}
# what a recipe does to step by itself; one of another library's code says it in its own way
OWN_STEPS = "write training_step(self, model, batch, optimizers)"


class Optimization:
    """The optimizers and schedules that `configure_optimizers` returned.

    Raises:
        TypeError, ValueError: it is none of the forms.
    """

    def __init__(self, outcome: Any) -> None:
        pairs = configured(outcome)
        self.optimizers: tuple[Optimizer, ...] = tuple(each for each, _ in pairs)
        self.schedules = tuple(schedule for _, schedule in pairs)
        # the hyper-parameters of each group
        self._configured = [list(map(group_numbers, each.param_groups)) for each in self.optimizers]

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters of all groups, in order."""
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    @property
    def objects(self) -> list[Any]:
        """The optimizers and torch's schedulers, each of which belongs to one trial."""
        schedulers = [schedule.scheduler for schedule in self.schedules]
        return [*self.optimizers, *(each for each in schedulers if isinstance(each, LRScheduler))]

    @property
    def bytes(self) -> int:
        """Memory that the optimizers' states take."""
        states = [dict(state) for each in self.optimizers for state in each.state.values()]
        return tree.size_of(states)

    def quicken(self, device: torch.device) -> None:
        """Have Shoal's own steps use fused kernels where there are any."""
        for optimizer in self.optimizers:
            quicken(optimizer, device)

    def forget_gradients(self) -> None:
        """Drop the gradients: none lasts beyond a pass, for none is part of a trial's state."""
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
        """Step the schedules that count steps, after a step of the optimizers."""
        for schedule in self.schedules:
            schedule.after_step()

    def end_epoch(self, metric: float | None) -> None:
        """Step the schedules that count epochs, at the end of one."""
        for schedule in self.schedules:
            schedule.end_epoch(metric)

    # -- state -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The states of optimizers and schedules; of several optimizers lists of them."""
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
        saved_count = len(state["optimizer"]) if isinstance(state["optimizer"], list) else 1
        if saved_count != len(self.optimizers):
            raise ValueError(
                f"the state is that of {saved_count} optimizers, and configure_optimizers returned "
                f"{len(self.optimizers)}: was it changed?"
            )
        saved = self._parted(state["optimizer"])
        schedulers = self._parted(state["scheduler"])
        made_with = self._parted(state.get("scheduled", self._joined([{}] * len(saved))))
        configured = state.get("configured", self._joined(self._configured))
        numbers = self._parted(numbers_of_state(configured))
        for number, (optimizer, schedule) in enumerate(
            zip(self.optimizers, self.schedules, strict=True)
        ):
            load_whole(optimizer, saved[number])
            unsettle(optimizer)
            schedule.load(schedulers[number], made_with[number])
            hyper_parameters = self._configured[number]
            if numbers[number] != hyper_parameters:
                restore_numbers(optimizer, hyper_parameters, numbers[number])
                schedule.set_bases([base_rate(each) for each in hyper_parameters])

    def _joined(self, items: list[Any]) -> Any:
        """The only item, or the list of all: the form in which a state holds them."""
        return items[0] if len(self.optimizers) == 1 else items

    def _parted(self, joined: Any) -> Sequence[Any]:
        """The items, one for each optimizer, of which `_joined` made this."""
        parts: Sequence[Any] = [joined] if len(self.optimizers) == 1 else joined
        return parts


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
        for optimizer in optimizers:
            closure = inspect.signature(type(optimizer).step).parameters.get("closure")
            # without a default, as LBFGS's
            if closure is not None and closure.default is inspect.Parameter.empty:
                raise ValueError(
                    f"{type(optimizer).__name__} steps by a closure, which training_step must give "
                    f"it: {own_steps}"
                )
        return
    for name, usual in OF_STEPS.items():
        value = getattr(settings, name)
        if value != usual:
            raise ValueError(
                "training_step takes `optimizers` and steps them itself, so that "
                f"{name}={value!r} would do nothing: leave it out, and do that in the step"
            )
