"""What a module logs: the values of one training step, or of a whole validation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shoal.train.adapt.lightning_classes import is_metric

Reduce = str | Callable[..., Any]
# names of reductions over batches, Lightning's forms of them included
REDUCTIONS: Mapping[Any, str] = {
    "mean": "mean",
    torch.mean: "mean",
    "sum": "sum",
    torch.sum: "sum",
    "max": "max",
    torch.max: "max",
    "min": "min",
    torch.min: "min",
}


def reduction(name: str, reduce_fx: Reduce) -> str:
    """The name of the reduction that `reduce_fx` says.

    Raises:
        ValueError: there is no such reduction.
    """
    if reduce_fx not in REDUCTIONS:
        raise ValueError(
            f"self.log({name!r}, reduce_fx={reduce_fx!r}): Shoal reduces by mean, sum, max or min"
        )
    return REDUCTIONS[reduce_fx]


def one_number(name: str, value: Any) -> Any:
    """The value, which must be one number.

    Raises:
        ValueError: it has several, or is none.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"self.log({name!r}, …) takes one number; got shape {tuple(value.shape)}: "
                "log its mean"
            )
        return value.detach().reshape(())
    if isinstance(value, bool | int | float):
        return float(value)
    if hasattr(value, "item"):
        return float(value.item())
    raise ValueError(
        f"self.log({name!r}, …) takes a number, a tensor with one number or a torchmetrics "
        f"metric; got {type(value).__name__}"
    )


class StepLog:
    """The values that one step logged, by name, to be returned beside its loss."""

    def __init__(self) -> None:
        self.values = Means()
        # metrics that were logged, and whether their value over the epoch was asked for
        self.metrics: dict[str, tuple[Any, bool]] = {}
        # tells the samples of the step's batch, once that is there
        self.samples: Callable[[], int] | None = None

    def add(
        self, name: str, value: Any, how: str, batch_size: int | None, whole: bool = False
    ) -> None:
        """Log a value, or a metric that was updated in the step.

        `batch_size`: its weight among the values of an epoch's steps. `whole`: of a metric, the
        value over the epoch is wanted.

        Raises:
            ValueError: it is to be reduced otherwise than by a mean over samples.
        """
        if is_metric(value):
            # the batch's value; None: the step only updated the metric
            newest = getattr(value, "_forward_cache", None)
            self.metrics[name] = value, whole or newest is None
            if newest is not None and not whole:
                self.values.log(name, one_number(name, newest))
            return
        if how != "mean":
            raise ValueError(
                f"self.log({name!r}, reduce_fx={how!r}) in a training step: Shoal takes the mean "
                "of what training steps log; collect it in an attribute, and log it in "
                "on_train_epoch_end"
            )
        if batch_size is not None:
            self._check_weight(name, batch_size)
        self.values.log(name, one_number(name, value))

    def _check_weight(self, name: str, batch_size: int) -> None:
        """Raise ValueError if a batch has not so many samples; of some batches nobody can tell."""
        try:
            samples = batch_size if self.samples is None else self.samples()
        except (AttributeError, StopIteration, TypeError):
            return
        if samples != batch_size:
            raise ValueError(
                f"self.log({name!r}, batch_size={batch_size}) in a training step on {samples} "
                "samples: Shoal weighs what training steps log by the samples of their batches; "
                "leave batch_size out, or collect value and weight in attributes, and log their "
                "mean in on_train_epoch_end"
            )


class Means(dict[str, Any]):
    """Values by name; of one that was logged several times the mean."""

    def __init__(self) -> None:
        super().__init__()
        self._times: Counter[str] = Counter()

    def log(self, name: str, value: Any) -> None:
        """Take in a value."""
        self._times[name] += 1
        if name in self:
            value = self[name] + (value - self[name]) / self._times[name]
        self[name] = value


class Reduced:
    """One name's value over the batches of a validation."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._value: Any = None
        self._weight = 0.0

    def add(self, value: Any, weight: float) -> None:
        """Take in the value of a batch of that many samples."""
        if isinstance(value, Tensor):
            value = value.double() if value.device.type != "mps" else value.cpu().double()
        if self._how == "mean":
            value = value * weight
        if self._value is None:
            self._value = value
        elif self._how in ("mean", "sum"):
            self._value = self._value + value
        else:
            self._value = getattr(_Extremes, self._how)(self._value, value)
        self._weight += weight

    def result(self) -> float:
        """The value over all batches."""
        if self._how == "mean":
            return float(self._value) / self._weight
        return float(self._value)


class _Extremes:
    """The larger or the smaller of two numbers."""

    @staticmethod
    def max(one: Any, other: Any) -> float:
        return max(float(one), float(other))

    @staticmethod
    def min(one: Any, other: Any) -> float:
        return min(float(one), float(other))


class ValidationLog:
    """What a validation logged that its steps do not return."""

    def __init__(self) -> None:
        self._tallies: dict[str, Reduced] = {}
        self._metrics: dict[str, Any] = {}
        # metrics without a value of their own here, which begin anew all the same
        self._finished: list[Any] = []

    def add(self, name: str, value: Any, weight: float, how: str) -> None:
        """Log the value of a batch of that many samples, or a metric that the step updated."""
        if is_metric(value):
            self._metrics[name] = value
            return
        if name not in self._tallies:
            self._tallies[name] = Reduced(how)
        self._tallies[name].add(one_number(name, value), weight)

    def add_of_steps(self, metrics: Mapping[str, tuple[Any, bool]]) -> None:
        """Take the metrics that an epoch's training steps logged: see `StepLog.metrics`."""
        for name, (metric, whole) in metrics.items():
            if whole:
                self._metrics.setdefault(name, metric)
            self._finished.append(metric)

    def results(self) -> dict[str, float]:
        """The value of each name."""
        values = {name: tally.result() for name, tally in self._tallies.items()}
        for name, metric in self._metrics.items():
            values[name] = float(one_number(name, metric.compute()))
        for metric in (*self._metrics.values(), *self._finished):
            metric.reset()
        return values


def items_of(dictionary: Any) -> list[tuple[str, Any]]:
    """What `self.log_dict` got; of a MetricCollection, its metrics by their names with affixes."""
    if hasattr(dictionary, "compute_groups"):
        return list(dictionary.items(keep_base=False, copy_state=False))
    return list(dictionary.items())
