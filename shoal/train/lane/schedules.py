"""Learning-rate schedules: Shoal's own, and torch's, stepped by epoch or by optimizer step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    CyclicLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

from shoal.train.lane import tree
from shoal.train.lane.optimizers import set_rates
from shoal.train.recipe.recipe import LRSchedule

Interval = Literal["epoch", "step"]
# schedulers whose arguments are numbers of optimizer steps
COUNT_STEPS = (OneCycleLR, CyclicLR)
# attributes that say how far a scheduler is, though a new scheduler has them, too
_COUNTED = ("_last_lr", "T_i", "T_cur")
# attributes that hold schedulers, or functions, with attributes of their own
_WITHIN = ("_schedulers", "lr_lambdas")


class Schedule:
    """What changes an optimizer's learning rates: an `LRSchedule`, torch's scheduler, or nothing.

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
        """Whether the study's metric is what ReduceLROnPlateau is to follow.

        `mode`: whether its least or its largest value is the best; None: nobody said.

        Raises:
            ValueError: no.
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
        own = getattr(self.scheduler, "mode", None)
        if mode not in (None, own):
            raise ValueError(
                f"ReduceLROnPlateau(mode={own!r}) follows the study's metric, {metric!r}, whose "
                f"mode is {mode!r}: the rate would fall while the metric gets better. Give the "
                f"scheduler mode={mode!r}, or the study mode={own!r}"
            )

    def before_step(self, samples: float, epoch: float) -> None:
        """Set an `LRSchedule`'s rates, after so many samples; `epoch`: samples to an epoch."""
        if not isinstance(self.scheduler, LRSchedule):
            return
        progress = samples / epoch if self.scheduler.unit == "epochs" else samples
        factor = self.scheduler.factor(progress)
        set_rates(self._optimizer, [base * factor for base in self._bases])

    def after_step(self) -> None:
        """The optimizer has made a step."""
        if self.by_step and isinstance(self.scheduler, LRScheduler):
            self.scheduler.step()

    def end_epoch(self, metric: float | None) -> None:
        """An epoch is over. ReduceLROnPlateau waits for an epoch with a metric."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if metric is not None:
                self.scheduler.step(metric)
        elif isinstance(self.scheduler, LRScheduler) and self.by_epoch:
            self.scheduler.step()

    def state(self) -> Any:
        """How far it is, as a plain tree; None where there is nothing to keep."""
        if not isinstance(self.scheduler, LRScheduler):
            return None
        return tree.to_numpy(self.scheduler.state_dict())

    def load(self, state: Any, made: Mapping[str, Any] | None = None) -> None:
        """Go on from that state. `made`: what the scheduler with that state was made with."""
        if state is None or not isinstance(self.scheduler, LRScheduler):
            return
        self.scheduler.load_state_dict(tree.to_torch(state))
        if made is not None:
            put_back(self.scheduler, self.made_with, made)

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

    They tell what it was made with from what it counts: a trial that starts from another's state
    keeps its own. {} of other schedules.
    """
    return _attributes(scheduler) if isinstance(scheduler, LRScheduler) else {}


def _attributes(of: Any) -> dict[str, Any]:
    """As `made_with`, of any object."""
    found = getattr(of, "__dict__", {})
    attributes: dict[str, Any] = {}
    for name, value in found.items():
        if name not in (*_COUNTED, *_WITHIN) and _is_plain(value):
            attributes[name] = _plain(value)
    for name in _WITHIN:
        if name in found:
            attributes[name] = [_attributes(each) for each in found[name]]
    return attributes


def put_back(scheduler: Any, own: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Restore, after another trial's state was loaded, what the two schedulers were made with.

    Examples: gamma, T_max, base rates.
    """
    for name, value in own.items():
        if name in _WITHIN:
            others = theirs.get(name, ())
            inner = zip(getattr(scheduler, name), value, others, strict=False)
            for each, mine, other in inner:
                put_back(each, mine, other)
        elif name in theirs and theirs[name] != value:
            now = getattr(scheduler, name)
            if isinstance(now, tuple | list | dict):
                value = type(now)(deepcopy(value))
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
