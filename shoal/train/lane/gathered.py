"""Scores that need the whole validation set at once, of the recipe's own and of metric objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from shoal.train.lane.lane import TrainingLane

OUTPUTS_RULE = (
    "validation_step, in a recipe with validation_epoch, must return {name: tensor}, the first "
    "axis of each the n samples of the batch; or one number, the mean over the batch"
)
EPOCH_RULE = "validation_epoch must return {name: one number}"
METRICS_RULE = (
    "configure_metrics must return {name: metric}, each with update(…), compute() and reset(), as "
    "torchmetrics has them"
)


class NotANumberError(TypeError):
    """What should be a score is not one number, however many samples there are."""


class Gathered:
    """What `validation_epoch` and the objects of `configure_metrics` are told of one evaluation.

    Neither is part of the trial's state.
    """

    def __init__(self, lane: TrainingLane) -> None:
        self._lane = lane
        self._outputs: dict[str, list[Tensor]] = {}
        self._metrics = _metrics_of(lane)
        self._updated: set[str] = set()
        for metric in self._metrics.values():
            metric.reset()

    def take(self, values: Mapping[str, Any], samples: int) -> dict[str, Any]:
        """Take what one batch of so many samples gave; returns the values that are to be averaged.

        Raises:
            TypeError, ValueError: a value is not what is needed under its name.
        """
        rest = {}
        for name, value in values.items():
            if name in self._metrics:
                self._update(name, value)
            elif self._lane.hooks.gathers:
                output = _output(name, value, samples)
                self._outputs.setdefault(name, []).append(output)
            else:
                rest[name] = value
        return rest

    def takes(self, name: str) -> bool:
        """Whether the values of this name are needed as they are, and not as sums."""
        return name in self._metrics or self._lane.hooks.gathers

    def output(self, name: str, value: Any, samples: int) -> Any:
        """A batch's value in main memory, for `take` in another process.

        Raises:
            TypeError, ValueError: as `take`.
        """
        if name not in self._metrics:
            return _output(name, value, samples)
        if not isinstance(value, tuple):
            return value  # which `take` refuses
        return tuple(each.detach().cpu() if isinstance(each, Tensor) else each for each in value)

    def _update(self, name: str, value: Any) -> None:
        """Show a batch to one metric."""
        if not isinstance(value, tuple):
            raise TypeError(
                f"configure_metrics has {name!r}, so that validation_step must return "
                f"{{{name!r}: (predictions, targets)}}; got {type(value).__name__}"
            )
        device = self._lane.device
        there = (each.to(device) if isinstance(each, Tensor) else each for each in value)
        self._metrics[name].update(*there)
        self._updated.add(name)

    def scores(self) -> dict[str, float]:
        """The scores of all batches so far.

        Raises:
            NotANumberError: a score is not one number.
            ValueError: a metric saw no batch.
        """
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if name not in self._updated:
                raise ValueError(
                    f"configure_metrics has {name!r}, and validation_step returned nothing under "
                    f"that name: return {{{name!r}: (predictions, targets)}}"
                )
            found |= dict(_computed(name, metric.compute()))
            metric.reset()
        if self._outputs:
            found |= self._own()
        return found

    def _own(self) -> dict[str, float]:
        """The scores of `validation_epoch`."""
        lane = self._lane
        outputs = {name: torch.cat(parts) for name, parts in self._outputs.items()}
        with _evaluating(lane):
            made = lane.hooks.validation_epoch(lane.model, outputs, lane.progress)
        if not isinstance(made, Mapping):
            raise TypeError(f"{EPOCH_RULE}; got {type(made).__name__}")
        return {name: _number(name, value, EPOCH_RULE) for name, value in made.items()}


@contextmanager
def _evaluating(lane: TrainingLane) -> Iterator[None]:
    """Have the model in evaluation mode, where the recipe is to get it.

    Of fused lanes only the first one's model is in that mode while they are validated.
    """
    if not lane.hooks.epoch_gets_model:
        yield
        return
    flags = [(module, module.training) for module in lane.model.modules()]
    try:
        lane.model.eval()
        yield
    finally:
        for module, flag in flags:
            module.training = flag


def _metrics_of(lane: TrainingLane) -> Mapping[str, Any]:
    """The trial's metrics, on its device.

    Raises:
        TypeError: they are none.
        SharedError: one is another trial's, too.
    """
    metrics = lane.hooks.metrics(lane.device)
    for name, metric in metrics.items():
        for method in ("update", "compute", "reset"):
            if not callable(getattr(metric, method, None)):
                raise TypeError(f"{METRICS_RULE}; {name}: {type(metric).__name__} has no {method}")
    lane.holder.hold_objects("configure_metrics", metrics.values())
    return metrics


def _output(name: str, value: Any, samples: int) -> Tensor:
    """A batch's output in main memory, with a row for each sample."""
    if isinstance(value, Real):
        value = torch.tensor(float(value))
    if not isinstance(value, Tensor):
        raise TypeError(f"{OUTPUTS_RULE}; {name}: got {type(value).__name__}")
    if value.dim() == 0:
        value = value.expand(samples)
    shape = tuple(value.shape)
    if shape[0] != samples:
        raise ValueError(f"{OUTPUTS_RULE}; {name}: got shape {shape} for {samples} samples")
    rows: Tensor = value.detach().cpu()
    return rows


def _computed(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """A metric's result by name; of one that computes several, each with its own name behind."""
    if isinstance(value, Mapping):
        for own, each in value.items():
            yield from _computed(f"{name}_{own}", each)
        return
    yield name, _number(name, value, "compute() of a metric must give one number")


def _number(name: str, value: Any, rule: str) -> float:
    """The value as a number.

    Raises:
        NotANumberError: it is not one number.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise NotANumberError(
            f"{rule}; {name}: got shape {shape}: give its mean, or each of its numbers under a "
            "name of its own"
        )
    if not isinstance(value, Real):
        raise NotANumberError(f"{rule}; {name}: got {str(value)[:60]}")
    return float(value)
