"""Optimizers of one formula, whose states lie in one memory, stepped by few operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from shoal.train.fuse.formulas import ADAM, FORMULAS, Formula, Update
from shoal.train.fuse.memory import Stack
from shoal.train.fuse.optimizers import ByRuns, OneByOne, SomeLanes, Stepping, runs_of
from shoal.train.lane.optimizers import family
from shoal.train.private import ADAM as ADAM_ROWS
from shoal.train.private import AdamRow, Numbers, call_stepped

Views = dict[str, Tensor]  # a parameter's state, by name
PRECISE = (torch.float32, torch.float64)  # dtypes that Adam's kernel for the CPU takes


def stepping(optimizers: Sequence[Optimizer], weights: Stack, gradients: Tensor) -> Stepping:
    """The way to step these optimizers, whose parameters lie in `weights`.

    It is the quicker, the more optimizers of one formula follow each other.
    """
    runs: list[tuple[SomeLanes, Stepping]] = []
    for lanes in runs_of(optimizers, weights, gradients):
        kind = family(lanes.optimizers[0])
        if kind is None:
            runs.append((lanes, OneByOne(lanes)))
        else:
            runs.append((lanes, StackedSteps(lanes, FORMULAS[kind])))
    if len(runs) == 1:
        return runs[0][1]
    return ByRuns(runs)


class StackedSteps:
    """Optimizers of one formula: their states in one memory, stepped by few operations.

    Each lane's optimizer holds views of that memory, so that its `state_dict()` is what it would
    be alone. Where a lane's parameters have made unlike numbers of steps, optimizers step one by
    one: only parameters that are not always used come to that.
    """

    def __init__(self, lanes: SomeLanes, formula: Formula) -> None:
        self._lanes = lanes
        self._formula = formula
        groups = lanes.optimizers[0].param_groups
        self._keeps = [formula.keeps(group) for group in groups]
        self._group_of = _group_numbers(groups, lanes.rows[0])  # of each parameter
        # memory (k, width) for what the formula keeps of the parameters, by name
        flat = lanes.of(lanes.weights.flat)
        names = sorted({name for keeps in self._keeps for name in keeps})
        self._flats = {name: torch.zeros_like(flat) for name in names}
        self._one_by_one = OneByOne(lanes)
        size = (len(lanes.optimizers), len(self._group_of))
        self._present = np.zeros(size, dtype=bool)  # whether a parameter's state exists
        self._ages = np.zeros(size)  # steps that each parameter has made
        self._counts: Tensor | None = None  # the same, as optimizers keep them
        self._views: list[list[Views]] = []  # of each lane and parameter
        self._runs: list[ParameterRun] | None = None  # None: to be cut
        self._used: list[bool] = []

    # -- what the optimizers are -------------------------------------------------------------------

    def gather(self) -> None:
        """Take up the optimizers' states; one without a state is before its first step."""
        if not self._views:
            self._make_views()
        for i, (optimizer, row) in enumerate(self._lanes.each()):
            call_stepped(optimizer)
            for j, parameter in enumerate(row):
                self._take(optimizer.state.get(parameter, {}), i, j)
        self._runs = None

    def _make_views(self) -> None:
        """Make the views of the memory that each lane's optimizer is to hold, by parameter."""
        parts_of = self._lanes.weights.parts_of
        parts = {name: parts_of(flat) for name, flat in self._flats.items()}
        if self._formula.counts:
            self._counts = self._new_counts()
        for i in range(len(self._lanes.optimizers)):
            row = []
            for j, group in enumerate(self._group_of):
                views = {name: parts[name][j][i] for name in self._keeps[group]}
                if self._counts is not None:
                    views["step"] = self._counts[i, j]
                row.append(views)
            self._views.append(row)

    def _new_counts(self) -> Tensor:
        """Counts of steps (k, n), of the dtype and on the device that torch has them."""
        shape = self._ages.shape
        for optimizer in self._lanes.optimizers:
            for state in optimizer.state.values():
                count = state.get("step")
                if isinstance(count, Tensor):
                    return torch.zeros_like(count).expand(shape).clone()
        # no optimizer has made a step
        double = torch.get_default_dtype() == torch.float64
        device = torch.device("cpu")
        if self._lanes.optimizers[0].param_groups[0].get("fused"):
            device = self._lanes.gradients.device
        return torch.zeros(shape, dtype=torch.float64 if double else torch.float32, device=device)

    def _take(self, state: dict[str, Any], i: int, j: int) -> None:
        """Take up parameter j's state of lane i: its values, as views of the memory."""
        views = self._views[i][j]
        present = all(state.get(name) is not None for name in views)
        self._present[i, j] = present
        self._ages[i, j] = 0
        if not present:
            for view in views.values():
                view.zero_()
            return
        if self._counts is not None:
            self._ages[i, j] = float(state["step"])
        for name, view in views.items():
            value = state[name]
            if not isinstance(value, Tensor):
                view.fill_(value)
            elif value.data_ptr() != view.data_ptr():
                view.copy_(value)
            state[name] = view

    # -- a step ------------------------------------------------------------------------------------

    def step(self, used: Sequence[bool]) -> None:
        """Take the steps of all at once where they can be, as `Stepping.step` says."""
        if self._runs is None or self._used != used:
            self._used = list(used)
            self._runs = self._cut()
        if not self._runs and any(used):
            self._one_by_one.step(used)
            self.gather()
            return
        for run in self._runs:
            run.step()
            columns = slice(run.first, run.end)
            self._ages[:, columns] += 1
            if self._counts is not None:
                self._counts[:, columns].add_(1)
        if not self._present[:, self._used].all():
            self._enter()

    def _cut(self) -> list[ParameterRun]:
        """The used parameters in runs of one group; none, where they have unlike counts."""

        def key(j: int) -> tuple[bool, int]:
            return self._used[j], self._group_of[j]

        runs = []
        for (is_used, group), same in groupby(range(len(self._used)), key):
            numbers = list(same)
            columns = slice(numbers[0], numbers[-1] + 1)
            if not is_used:
                continue
            # each lane has made as many steps with all of these parameters, or they go one by one
            if not _are_equal(self._ages[:, columns]) or not _are_equal(self._present[:, columns]):
                return []
            runs.append(self._run(columns.start, columns.stop, group))
        return runs

    def _run(self, first: int, end: int, group: int) -> ParameterRun:
        """The run of parameters first to end of all lanes."""
        lanes = self._lanes
        starts = lanes.weights.starts
        columns = slice(starts[first], starts[end])
        states = {name: self._flats[name][:, columns] for name in self._keeps[group]}
        return ParameterRun(
            formula=self._formula,
            first=first,
            end=end,
            groups=[optimizer.param_groups[group] for optimizer in lanes.optimizers],
            flags=_flags(lanes.optimizers[0], group),
            weights=lanes.of(lanes.weights.flat)[:, columns],
            gradients=lanes.of(lanes.gradients)[:, columns],
            states=states,
            ages=self._ages[:, first].copy(),
            fresh=~self._present[:, first],
        )

    def _enter(self) -> None:
        """Give optimizers the states that their first step has made."""
        for i, (optimizer, row) in enumerate(self._lanes.each()):
            for j, parameter in enumerate(row):
                if self._used[j] and not self._present[i, j]:
                    optimizer.state[parameter].update(self._views[i][j])
                    self._present[i, j] = True

    def part(self) -> None:
        """Give every optimizer memory of its own."""
        for optimizer, row in self._lanes.each():
            for parameter in row:
                state = optimizer.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        state[name] = value.clone()


def _group_numbers(groups: Sequence[dict[str, Any]], row: Sequence[Tensor]) -> list[int]:
    """The number of each parameter's group."""
    numbers = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
    return [numbers[id(parameter)] for parameter in row]


def _are_equal(table: Any) -> bool:
    """Whether each row's values are equal."""
    return bool((table == table[:, :1]).all())


def _flags(optimizer: Optimizer, number: int) -> dict[str, Any]:
    """The group's numbers and flags; for AdamW they say that its weight decay is decoupled."""
    group = dict(optimizer.param_groups[number])
    group.setdefault("decoupled_weight_decay", False)
    if isinstance(optimizer, AdamW):
        group["decoupled_weight_decay"] = True
    return group


@dataclass(slots=True, kw_only=True)
class ParameterRun:
    """Parameters first to end (exclusive) of some lanes.

    Each lane has made equally many steps with all of them.
    """

    formula: Formula
    first: int
    end: int
    groups: Sequence[dict[str, Any]]  # each lane's group
    flags: dict[str, Any]
    weights: Tensor  # (k, width), as gradients and states
    gradients: Tensor
    states: dict[str, Tensor]
    ages: Any  # (k,): steps that each lane has made
    fresh: Any  # (k,): whether a lane has no state yet
    rows: list[AdamRow] | None = None
    row_ages: Tensor | None = None

    def step(self) -> None:
        """Make the step of every lane."""
        self.ages += 1
        if self._by_rows:
            self._step_rows()
        else:
            update = Update(
                weights=self.weights,
                gradients=self.gradients,
                states=self.states,
                numbers=self._numbers(),
                ages=self.ages,
                fresh=self.fresh,
                flags=self.flags,
            )
            self.formula.update(update)
        self.fresh = np.zeros_like(self.fresh)

    def _numbers(self) -> dict[str, Any]:
        """The numbers of each lane's optimizer (k,), by name."""
        numbers = {}
        for name in self.formula.numbers:
            numbers[name] = np.array([float(group[name]) for group in self.groups])
        if "betas" in self.flags:
            betas = np.array([group["betas"] for group in self.groups])
            numbers["beta1"], numbers["beta2"] = betas.T
        return numbers

    @property
    def _by_rows(self) -> bool:
        """Whether torch's kernel for the CPU makes the steps."""
        if self.formula is not ADAM or not ADAM_ROWS:
            return False
        return self.weights.dtype in PRECISE and self.weights.device.type == "cpu"

    def _step_rows(self) -> None:
        """Adam's step by torch's kernel for the CPU, lane by lane."""
        if self.rows is None or self.row_ages is None:
            self.row_ages = torch.from_numpy(self.ages).float()
            largest = self.states.get("max_exp_avg_sq")
            self.rows = []
            for i, age in enumerate(self.row_ages):
                moments = (self.states["exp_avg"][i], self.states["exp_avg_sq"][i])
                tensors = (self.weights[i], self.gradients[i], *moments)
                self.rows.append(AdamRow(tensors, None if largest is None else largest[i], age))
        else:
            self.row_ages.add_(1)
        decoupled = self.flags["decoupled_weight_decay"]
        maximize = self.flags["maximize"]
        for row, group in zip(self.rows, self.groups, strict=True):
            decay = float(group["weight_decay"])
            numbers: Numbers = (float(group["lr"]), *group["betas"], group["eps"], decay)
            row.step(numbers, decoupled=decoupled, maximize=maximize)
