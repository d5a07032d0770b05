"""The values that training steps return: noted for each step, summed when the lane reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from numbers import Real
from operator import mul
from typing import Any

import torch
from torch import Tensor

from shoal.core.cluster import fits_utf8
from shoal.core.event import Sum
from shoal.core.trial import shown
from shoal.train.recipe.unit import Diverged

OWN_RULE = (
    "training_step takes `optimizers`, so that it must return the values to note: the loss, one "
    'number, or {"loss": loss, name: number, …}'
)
Items = dict[str, list[tuple[int, Any]]]  # samples and value of each step, by name


class TrainingMetrics:
    """Values by name, with the samples of each step. They stay on their device until `sums`.

    `patience`: so many steps in a row may have a loss that is not finite.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._by_name: Items = {}
        # by name, of the training epoch so far: the sum of value times samples, and the samples
        self.epoch: dict[str, Sum] = {}
        self.strikes = 0  # steps in a row, up to now, whose loss was not finite
        # brings values in that were noted for several lanes at once
        self.pending: Callable[[], None] | None = None

    @property
    def by_name(self) -> Items:
        """(samples, value) of each step since the last report."""
        if self.pending is not None:
            self.pending()
        return self._by_name

    def add(self, values: Mapping[str, Any], samples: int) -> None:
        """Note what one step on so many samples returned. A copy is kept: parameters change."""
        by_name = self.by_name
        for name, value in values.items():
            if isinstance(value, Tensor):
                value = value.detach().clone()
            else:
                value = float(value)
            by_name.setdefault(name, []).append((samples, value))

    def take(self) -> Items:
        """The values noted since the last report, which are noted no longer."""
        by_name, self._by_name = self.by_name, {}
        return by_name

    def sums(self) -> dict[str, Sum]:
        """The sums since the last report, by name: of value times samples, and of samples.

        Waits for the device.

        Raises:
            Diverged: too many steps in a row had a loss that is not finite.
        """
        sums = {}
        for name, items in self.take().items():
            counts = [count for count, _ in items]
            values = numbers([value for _, value in items])
            if name == "loss":
                self._watch(values)
            products = list(map(mul, counts, values))
            samples = float(sum(counts))
            sums[name] = (sum(products), samples)
            total, counted = self.epoch.get(name, (0.0, 0.0))
            for product in products:  # one by one: it does not matter when the lane reports
                total += product
            self.epoch[name] = (total, counted + samples)
        return sums

    def state(self) -> dict[str, Any]:
        """The part of the metrics that belongs to the trial's state."""
        noted = {name: list(sums) for name, sums in self.epoch.items()}
        return {"bad": self.strikes, "noted": noted}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from that state. Earlier versions did not keep the epoch's sums."""
        self.strikes = state["bad"]
        noted = state.get("noted", {})
        self.epoch = {name: (sums[0], sums[1]) for name, sums in noted.items()}

    def epoch_means(self) -> dict[str, float]:
        """The mean of each value over the samples of the epoch so far."""
        return {name: total / count for name, (total, count) in self.epoch.items()}

    def _watch(self, losses: list[float]) -> None:
        """Count the steps in a row whose loss is not finite."""
        if self.strikes == 0 and all(map(isfinite, losses)):
            return
        for loss in losses:
            self.strikes = 0 if isfinite(loss) else self.strikes + 1
            if self.strikes > self._patience:
                raise Diverged(f"diverged: loss was not finite for {self.strikes} steps")

    def check_end(self, steps: int) -> None:
        """Look at the end of a trial whose last epoch had so many steps at most.

        Raises:
            Diverged: none of them had a finite loss.
        """
        if steps and self.strikes >= steps:
            raise Diverged(
                f"diverged: loss was not finite for the last {self.strikes} steps, among them all "
                "of the last epoch"
            )


def step_values(outcome: Any) -> Mapping[str, Any]:
    """The values that a training step returned, by name.

    Raises:
        TypeError, ValueError: it holds no loss that is one number.
    """
    values = outcome
    if isinstance(outcome, Tensor):
        values = {"loss": outcome}
    if not isinstance(values, Mapping) or not isinstance(values.get("loss"), Tensor):
        rule = 'training_step must return the loss or {"loss": loss, …}, the loss a tensor'
        raise TypeError(f"{rule}; got {type(outcome).__name__}")
    shape = tuple(values["loss"].shape)
    if shape:
        rule = "training_step must return one number, the mean loss over the batch"
        raise ValueError(f"{rule}; got shape {shape}: give its .mean()")
    if len(values) > 1:
        _check_numbers(values)
    return values


def check_names(values: Mapping[Any, Any]) -> None:
    """Raise TypeError if one of the values has no name that can be written down."""
    for name in values:
        if not isinstance(name, str) or not fits_utf8(name):
            raise TypeError(
                f"names of values are texts that UTF-8 can hold; got {shown(name)}: give another"
            )


def _check_numbers(values: Mapping[str, Any]) -> None:
    """Raise TypeError or ValueError if one of the values is not one number by name."""
    check_names(values)
    for name, value in values.items():
        rule = 'values beside the loss, as in {"loss": loss, name: value}, must be one number each'
        if isinstance(value, Tensor):
            if value.numel() != 1:
                shape = tuple(value.shape)
                raise ValueError(f"{rule}; {name}: got shape {shape}: give its .mean()")
        elif not isinstance(value, Real) and getattr(value, "size", 0) != 1:
            raise TypeError(f"{rule}; {name}: got {type(value).__name__}")


def own_step_values(outcome: Any) -> Mapping[str, Any]:
    """The values of a training step that steps by itself, by name; one number is the loss.

    Raises:
        TypeError, ValueError: it is neither a number nor numbers by name.
    """
    values: Mapping[str, Any] = {"loss": outcome}
    if isinstance(outcome, Mapping):
        values = outcome
    check_names(values)
    for name, value in values.items():
        if isinstance(value, Tensor):
            shape = tuple(value.shape)
            if shape:
                raise ValueError(f"{OWN_RULE}; {name}: got shape {shape}: give its .mean()")
        elif not isinstance(value, Real):
            raise TypeError(f"{OWN_RULE}; {name}: got {type(value).__name__}")
    return values


def numbers(values: list[Any]) -> list[float]:
    """The values as numbers; tensors on a device are fetched all at once."""
    if values and all(isinstance(value, Tensor) for value in values):
        fetched: list[float] = torch.stack([value.reshape(()) for value in values]).tolist()
        return fetched
    return [float(value) for value in values]


def add_sums(totals: dict[str, Sum], sums: Mapping[str, Sum]) -> None:
    """Add sums of values to the totals."""
    for name, (total, samples) in sums.items():
        before, counted = totals.get(name, (0.0, 0.0))
        totals[name] = (before + total, counted + samples)
