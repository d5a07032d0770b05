"""What `configure_optimizers` may return: one optimizer or several, each with its schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.train.lane.schedules import Schedule
from shoal.train.recipe.recipe import LRSchedule

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


def configured(made: Any) -> list[tuple[Optimizer, Schedule]]:
    """The optimizers and their schedules, from what `configure_optimizers` returned.

    Raises:
        TypeError: none of the forms.
        ValueError: an interval, frequency or key that Shoal does not know; two schedulers of one
            optimizer.
    """
    pairs = [_checked(each) for each in _entries(made)]
    if not pairs:
        raise TypeError(f"{FORMS}; got no optimizer")
    return pairs


def _checked(entry: Configured) -> tuple[Optimizer, Schedule]:
    """The optimizer and its schedule.

    Raises:
        TypeError, ValueError: as `configured`.
    """
    optimizer, scheduler, monitor = entry
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{FORMS}; got {type(optimizer).__name__}: {str(optimizer)[:80]}")
    interval = None
    if isinstance(scheduler, Mapping):
        interval, monitor = _lightning(scheduler, monitor)
        scheduler = scheduler["scheduler"]
    if scheduler is not None and not isinstance(scheduler, LRSchedule | LRScheduler):
        raise TypeError(f"{FORMS}; got the scheduler {type(scheduler).__name__}")
    return optimizer, Schedule(optimizer, scheduler, interval, monitor)


def _entries(made: Any) -> Iterator[Configured]:
    """Each optimizer with what belongs to it."""
    if isinstance(made, Mapping):
        yield _of_dict(made)
    elif not isinstance(made, list | tuple):
        yield Configured(made)
    elif not _is_pair(made):
        for each in made:
            yield from _entries(each)
    elif isinstance(made[0], Optimizer):
        yield Configured(made[0], _only(made[1]))
    else:
        yield from _by_optimizer(*made)


def _is_pair(made: Sequence[Any]) -> bool:
    """Whether it is (optimizer, scheduler) or ([optimizers], [schedulers])."""
    if not isinstance(made, tuple) or len(made) != 2:
        return False
    first, second = made
    if isinstance(second, Mapping):
        return isinstance(first, Optimizer) and "optimizer" not in second
    if isinstance(first, list):
        return isinstance(second, list) and all(map(_is_optimizer, first))
    return _is_optimizer(first) and not isinstance(second, Optimizer | tuple)


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, Optimizer)


def _of_dict(made: Mapping[Any, Any]) -> Configured:
    """An optimizer's dictionary.

    Raises:
        TypeError: it has other keys, or no optimizer.
    """
    unknown = set(made) - {"optimizer", "lr_scheduler", "monitor"}
    if unknown or "optimizer" not in made:
        raise TypeError(f"{FORMS}; got a dict with the keys {', '.join(map(str, made))}")
    return Configured(**{_FIELDS[key]: value for key, value in made.items()})


_FIELDS = {
    "optimizer": "optimizer",
    "lr_scheduler": "scheduler",
    "monitor": "monitor",
}


def _only(scheduler: Any) -> Any:
    """The one scheduler that there is; None if there is none."""
    if not isinstance(scheduler, list):
        return scheduler
    if len(scheduler) > 1:
        raise ValueError(_two_schedulers(len(scheduler)))
    return next(iter(scheduler), None)


def _two_schedulers(count: int) -> str:
    return (
        f"an optimizer has one scheduler; configure_optimizers returned {count} for it: "
        "chain them with SequentialLR or ChainedScheduler"
    )


def _by_optimizer(
    optimizers: Sequence[Optimizer], schedulers: Sequence[Any]
) -> Iterator[Configured]:
    """Each optimizer with its scheduler.

    One of torch's schedulers knows its optimizer. Others go by their place in the list.
    """
    if len(optimizers) == 1:
        yield Configured(optimizers[0], _only(list(schedulers)))
        return
    for place, optimizer in enumerate(optimizers):
        own = [
            scheduler
            for number, scheduler in enumerate(schedulers)
            if _belongs(scheduler, optimizer, number == place)
        ]
        yield Configured(optimizer, _only(own))


def _belongs(scheduler: Any, optimizer: Optimizer, same_place: bool) -> bool:
    """Whether the scheduler is this optimizer's."""
    if isinstance(scheduler, Mapping):
        scheduler = scheduler.get("scheduler")
    if isinstance(scheduler, LRScheduler):
        return scheduler.optimizer is optimizer
    return same_place


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
