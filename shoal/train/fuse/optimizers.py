"""The steps of several lanes' optimizers at once, each with its own numbers.

Optimizers of one formula (Adam, say) that follow each other are stepped together by a few
operations over all their lanes: `StackedSteps`. Any other optimizers make their own steps, one
after the other: `OneByOne`. Lanes of several formulas are parted into runs: `ByRuns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from shoal.train.fuse.formulas import FORMULAS
from shoal.train.fuse.memory import Row, Rows, Stack
from shoal.train.lane.optimizers import family, step
from shoal.train.recipe.unit import RAISED

Errors = dict[int, BaseException]  # by lane number


class StepFailed(Exception):  # noqa: N818
    """Optimizers that raised, by lane number.

    The other lanes have made the step: it must not be repeated.
    """

    def __init__(self, errors: Errors) -> None:
        super().__init__(errors)
        self.errors = errors


class Stepping(Protocol):
    """The optimizers of k lanes."""

    def gather(self) -> None:
        """Take up what the optimizers are now."""

    def step(self, used: Sequence[bool]) -> None:
        """Step with the gradients that were written to the stack; parameters not used have none.

        Raises:
            StepFailed: some optimizers raised; the others have made their steps.
        """

    def part(self) -> None:
        """Give every optimizer memory of its own."""


@dataclass(frozen=True, slots=True)
class SomeLanes:
    """Lanes first to end (exclusive) of a stack: optimizers, parameters, and their gradients."""

    optimizers: Sequence[Optimizer]
    weights: Stack
    gradients: Tensor  # (k, width), of all lanes of the stack
    first: int
    end: int

    @property
    def rows(self) -> Rows:
        """Each lane's parameters."""
        return self.weights.rows[self.first : self.end]

    def of(self, flat: Tensor) -> Tensor:
        """These lanes' rows of a tensor (k, width)."""
        return flat[self.first : self.end]

    def each(self) -> list[tuple[Optimizer, Row]]:
        """Each lane's optimizer and parameters."""
        return list(zip(self.optimizers, self.rows, strict=True))


def formula_key(optimizer: Optimizer) -> tuple[Any, ...]:
    """The key that optimizers must have in common to be stepped together."""
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    kind = family(optimizer)
    if kind is None:
        return type(optimizer), "apart", sizes
    formula = FORMULAS[kind]
    forms = []
    for group in groups:
        flags = [bool(group.get(flag)) for flag in ("fused", *formula.flags)]
        forms.append((formula.keeps(group), flags))
    return kind, sizes, forms


def runs_of(optimizers: Sequence[Optimizer], weights: Stack, gradients: Tensor) -> list[SomeLanes]:
    """The lanes in runs that follow each other, each of one formula."""

    def key(lane: int) -> tuple[Any, ...]:
        return formula_key(optimizers[lane])

    runs = []
    for _, same in groupby(range(len(optimizers)), key):
        numbers = list(same)
        first = numbers[0]
        end = numbers[-1] + 1
        runs.append(SomeLanes(optimizers[first:end], weights, gradients, first, end))
    return runs


class OneByOne:
    """Steps any optimizers, one after the other, on views of the stack."""

    def __init__(self, lanes: SomeLanes) -> None:
        self._lanes = lanes
        parts = lanes.weights.parts_of(lanes.of(lanes.gradients))
        by_part = [part.unbind() for part in parts]
        self._gradients = list(zip(*by_part, strict=True))  # each lane's

    def gather(self) -> None:
        """Do nothing: the optimizers' states stay theirs."""

    def step(self, used: Sequence[bool]) -> None:
        """Take the steps one by one, as `Stepping.step` says."""
        errors: Errors = {}
        for i, (optimizer, row) in enumerate(self._lanes.each()):
            give_gradients(row, self._gradients[i], used)
            try:
                step(optimizer)
            except RAISED as error:  # this lane's alone
                errors[i] = error
            forget_gradients(row)
        self._lanes.weights.gather()
        if errors:
            raise StepFailed(errors)

    def part(self) -> None:
        """Do nothing: each optimizer has memory of its own."""


def give_gradients(row: Row, gradients: Row, used: Sequence[bool]) -> None:
    """Give the parameters that are used copies of their gradients, which others may keep."""
    forget_gradients(row)
    for parameter, gradient, is_used in zip(row, gradients, used, strict=True):
        if is_used:
            parameter.grad = gradient.clone()


def forget_gradients(row: Row) -> None:
    """Take the parameters' gradients from them."""
    for parameter in row:
        parameter.grad = None


class ByRuns:
    """Steps optimizers of several formulas: each run of lanes of one formula by itself."""

    def __init__(self, runs: Sequence[tuple[SomeLanes, Stepping]]) -> None:
        self._runs = runs

    def gather(self) -> None:
        """Take up what the optimizers are now."""
        for _, run in self._runs:
            run.gather()

    def step(self, used: Sequence[bool]) -> None:
        """Take the steps run by run, as `Stepping.step` says."""
        errors: Errors = {}
        for lanes, run in self._runs:
            try:
                run.step(used)
            except StepFailed as failed:
                for i, error in failed.errors.items():
                    errors[lanes.first + i] = error
            except RAISED as error:  # these lanes' alone
                errors.update(dict.fromkeys(range(lanes.first, lanes.end), error))
        if errors:
            raise StepFailed(errors)

    def part(self) -> None:
        """Give every optimizer memory of its own."""
        for _, run in self._runs:
            run.part()
