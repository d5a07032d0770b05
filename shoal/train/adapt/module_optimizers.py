"""What a module's `configure_optimizers` returns, in the forms that a recipe's may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


class EveryNth(LRScheduler):
    """A scheduler that is stepped at every n-th batch of an epoch, or epoch; never, where n is 0.

    `count`: gives the number of batches or epochs so far.
    """

    def __init__(self, scheduler: LRScheduler, every: int, count: Callable[[], int]) -> None:
        self.optimizer = scheduler.optimizer
        self._schedulers = [scheduler]
        self.every = every
        self._count = count

    def step(self, epoch: int | None = None) -> None:
        """Step the scheduler if its time has come."""
        if self.every and self._count() % self.every == 0:
            self._schedulers[0].step()

    def get_last_lr(self) -> list[Any]:
        """The rates that the scheduler set last."""
        return list(self._schedulers[0].get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        """How far the scheduler is."""
        return {"within": self._schedulers[0].state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the scheduler go on from what `state_dict` gave."""
        if "within" in state_dict:
            self._schedulers[0].load_state_dict(state_dict["within"])


def recipe_form(
    configured: Any, steps_itself: bool, counts: Mapping[str, Callable[[], int]]
) -> tuple[list[Any], list[Any]]:
    """The optimizers, and for each its scheduler in the form that recipes have; or None.

    `steps_itself`: the module steps its schedulers, too. `counts`: give the batches of the epoch so
    far ("step"), and the epochs ("epoch").

    Raises:
        ValueError, TypeError: a form that Lightning does not have, or Shoal does not.
    """
    optimizers, schedulers, monitor = _unpacked(configured)
    if not optimizers:
        raise TypeError(
            "configure_optimizers returned no optimizer: Shoal trains modules that have one"
        )
    options = [_as_options(each, monitor) for each in schedulers]
    by_optimizer = [_of_optimizer(options, each) for each in optimizers]
    return optimizers, [_form(each, steps_itself, counts) for each in by_optimizer]


def scheduler_of(form: Any) -> Any:
    """The module's own scheduler in a form that `recipe_form` gave; None if there is none."""
    if form is None:
        return None
    scheduler = form["scheduler"]
    if isinstance(scheduler, EveryNth):
        return scheduler._schedulers[0]
    return scheduler


def _unpacked(configured: Any) -> tuple[list[Any], list[Any], str | None]:
    """The optimizers, schedulers and monitored metric in one of Lightning's forms."""
    if configured is None:
        return [], [], None
    if isinstance(configured, Optimizer):
        return [configured], [], None
    if isinstance(configured, Mapping):
        scheduler = configured.get("lr_scheduler")
        schedulers = [] if scheduler is None else [scheduler]
        return [configured["optimizer"]], schedulers, configured.get("monitor")
    if len(configured) == 2 and isinstance(configured[0], list | tuple):
        optimizers, scheduler = configured
        schedulers = list(scheduler) if isinstance(scheduler, Sequence) else [scheduler]
        return list(optimizers), schedulers, None
    if all(isinstance(each, Mapping) for each in configured):
        parts = [_unpacked(each) for each in configured]
        return (
            [each for part in parts for each in part[0]],
            [_as_options(each, part[2]) for part in parts for each in part[1]],
            None,
        )
    if all(isinstance(each, Optimizer) for each in configured):
        return list(configured), [], None
    raise TypeError(
        "configure_optimizers must return an optimizer, a list of them, ([optimizers], "
        f"[schedulers]), or dicts with the keys optimizer and lr_scheduler; got {configured!r:.80}"
    )


def _as_options(scheduler: Any, monitor: str | None) -> dict[str, Any]:
    """The scheduler as Lightning's dict of options, with its defaults."""
    options = {"interval": "epoch", "frequency": 1, "monitor": monitor}
    if isinstance(scheduler, Mapping):
        return {**options, **scheduler}
    return {**options, "scheduler": scheduler}


def _of_optimizer(options: list[dict[str, Any]], optimizer: Any) -> dict[str, Any] | None:
    """The options of the optimizer's scheduler.

    Raises:
        ValueError: it has several.
    """
    matching = [each for each in options if each["scheduler"].optimizer is optimizer]
    if len(matching) > 1:
        raise ValueError(
            f"an optimizer has {len(matching)} schedulers: chain them with SequentialLR or "
            "ChainedScheduler"
        )
    return matching[0] if matching else None


def _form(
    options: dict[str, Any] | None, steps_itself: bool, counts: Mapping[str, Callable[[], int]]
) -> Any:
    """The options of a scheduler in the form in which a recipe gives them."""
    if options is None:
        return None
    scheduler = options["scheduler"]
    frequency = int(options["frequency"])
    if steps_itself:
        return {"scheduler": EveryNth(scheduler, 0, counts["epoch"]), "interval": "epoch"}
    if isinstance(scheduler, ReduceLROnPlateau):
        if frequency != 1 or options["interval"] != "epoch":
            raise ValueError(
                "ReduceLROnPlateau is stepped after each validation, interval epoch and frequency "
                f"1; got {options['interval']!r} and {frequency}"
            )
        return {"scheduler": scheduler, "monitor": options["monitor"]}
    if frequency != 1:
        scheduler = EveryNth(scheduler, frequency, counts[options["interval"]])
    return {"scheduler": scheduler, "interval": options["interval"]}
