"""The steps of several optimizers at once, each with its own numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from shoal.train.kernels import Piece, adagrad, adam, rmsprop, sgd
from shoal.train.optimizers import step
from shoal.train.stack import Layout, Stack
from shoal.train.unit import RAISED

Group = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """One of torch's optimizers: the numbers of its groups, the tensors it keeps, its formula."""

    numbers: tuple[str, ...]  # each trial's own
    flags: tuple[str, ...]  # the same in all
    keeps: Callable[[Group], tuple[str, ...]]  # tensors of each parameter's form
    counts: bool  # whether it keeps "step"
    update: Callable[[Piece, Tensor], None]


def _adam_keeps(group: Group) -> tuple[str, ...]:
    return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")


def _rmsprop_keeps(group: Group) -> tuple[str, ...]:
    momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
    return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))


_ADAM = Family(("lr", "betas", "eps", "weight_decay"), ("amsgrad", "maximize"), _adam_keeps, True, adam)
FAMILIES: dict[type[Optimizer], Family] = {
    SGD: Family(
        ("lr", "momentum", "dampening", "weight_decay"),
        ("nesterov", "maximize"),
        lambda group: ("momentum_buffer",) if group["momentum"] != 0 else (),
        False,
        sgd,
    ),
    Adam: _ADAM,
    AdamW: _ADAM,
    Adagrad: Family(("lr", "lr_decay", "weight_decay", "eps"), ("maximize",), lambda group: ("sum",), True, adagrad),
    RMSprop: Family(("lr", "alpha", "eps", "weight_decay", "momentum"), ("centered", "maximize"), _rmsprop_keeps, True, rmsprop),
}


def family(optimizer: Optimizer) -> Family | None:
    """The optimizer's family; None: it is stepped by itself."""
    own = vars(optimizer).get("step")  # torch's schedulers put a counter there
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    plain = not any(hooks) and (own is None or hasattr(own, "_wrapped_by_lr_sched"))
    groups = optimizer.param_groups
    plain = plain and not any(group.get("differentiable") or group.get("capturable") for group in groups)
    plain = plain and not any(isinstance(beta, Tensor) for group in groups for beta in group.get("betas", ()))
    return FAMILIES.get(type(optimizer)) if plain else None


def formula(optimizer: Optimizer) -> tuple[Any, ...]:
    """What optimizers stepped together must have in common."""
    kind = family(optimizer)
    if kind is None:
        return (type(optimizer), "apart", [len(group["params"]) for group in optimizer.param_groups])
    flags = ("fused", "decoupled_weight_decay", *kind.flags)
    return (
        type(optimizer),
        [(len(g["params"]), kind.keeps(g), *(bool(g.get(flag)) for flag in flags)) for g in optimizer.param_groups],
    )


class Batched(Protocol):
    """The optimizers of k lanes."""

    def gather(self) -> None:
        """Take up what the optimizers are now."""

    def step(self, grads: Tensor, used: Sequence[bool]) -> None:
        """Step with these gradients (k, width); parameters not used have none."""

    def part(self) -> None:
        """Give every optimizer memory of its own."""


class Apart:
    """Any optimizers: one after the other, on views of the stack."""

    def __init__(self, optimizers: Sequence[Optimizer], rows: Sequence[Sequence[Tensor]], weights: Stack) -> None:
        self._optimizers, self._rows, self._weights = optimizers, rows, weights

    def gather(self) -> None:
        """Nothing to be taken up."""

    def step(self, grads: Tensor, used: Sequence[bool]) -> None:
        """As `Batched.step`.

        Raises:
            StepFailed: some optimizers raised; the others have made their steps.
        """
        errors: dict[int, BaseException] = {}
        for i, (optimizer, row) in enumerate(zip(self._optimizers, self._rows, strict=True)):
            for parameter, own, is_used in zip(row, self._weights.layout.row(grads, i), used, strict=True):
                parameter.grad = own.clone() if is_used else None  # it may keep it
            try:
                step(optimizer)
            except RAISED as error:  # it is that lane's alone
                errors[i] = error
            for parameter in row:
                parameter.grad = None
        self._weights.gather()
        if errors:
            raise StepFailed(errors)

    def part(self) -> None:
        """Their states are their own."""


class StepFailed(Exception):  # noqa: N818
    """Optimizers that raised, by lane number. The other lanes have made the step: it must not be repeated."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__(errors)
        self.errors = errors


class Together:
    """Optimizers of one family: their states in one memory, stepped by a few kernels over (k, width).

    Each lane's optimizer holds views, so its `state_dict()` is what it would be alone.
    """

    def __init__(
        self, kind: Family, optimizers: Sequence[Optimizer], rows: Sequence[Sequence[Tensor]], flat: Tensor, layout: Layout
    ) -> None:
        self._kind, self._optimizers, self._rows, self._flat, self._layout = kind, optimizers, rows, flat, layout
        groups = {id(p): g for g, group in enumerate(optimizers[0].param_groups) for p in group["params"]}
        self._group_of = [groups[id(p)] for p in rows[0]]
        self._keeps = [kind.keeps(group) for group in optimizers[0].param_groups]
        names = {name: None for keeps in self._keeps for name in keeps}
        k, n = len(rows), len(rows[0])
        self._flats = {name: torch.zeros_like(flat) for name in names}
        views = {name: [layout.row(own, i) for i in range(k)] for name, own in self._flats.items()}
        self._steps: Tensor | None = None
        self._own: list[list[dict[str, Tensor]]] = [
            [{name: views[name][i][j] for name in self._keeps[self._group_of[j]]} for j in range(n)] for i in range(k)
        ]
        self._present = np.zeros((k, n), dtype=bool)  # whose state exists
        self._counts = np.zeros((k, n))
        self._pieces: list[Piece] = []
        self._used: Sequence[bool] | None = None

    def gather(self) -> None:
        """Take up what the optimizers are now; where there is no state yet it is that before the first step."""
        if self._kind.counts and self._steps is None:
            self._count()
        for i, (optimizer, row) in enumerate(zip(self._optimizers, self._rows, strict=True)):
            optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's schedulers would warn
            for j, parameter in enumerate(row):
                state: dict[str, Any] = optimizer.state.get(parameter, {})
                self._present[i, j] = all(state.get(name) is not None for name in self._own[i][j])
                if self._present[i, j]:
                    self._take(state, i, j)
                else:
                    self._clear(i, j)
        self._pieces, self._used = [], None

    def _count(self) -> None:
        first = next((s["step"] for o in self._optimizers for s in o.state.values() if "step" in s), None)
        dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
        on = self._flat.device if self._optimizers[0].param_groups[0].get("fused") else torch.device("cpu")
        if isinstance(first, Tensor):
            dtype, on = first.dtype, first.device
        self._steps = torch.zeros(self._counts.shape, dtype=dtype, device=on)
        for i, row in enumerate(self._own):
            for j, own in enumerate(row):
                self._own[i][j] = {"step": self._steps[i, j], **own}

    def _take(self, state: dict[str, Any], i: int, j: int) -> None:
        for name, view in self._own[i][j].items():
            value = state[name]
            if not isinstance(value, Tensor) or value.data_ptr() != view.data_ptr():
                view.copy_(value) if isinstance(value, Tensor) else view.fill_(value)
                state[name] = view
        if self._kind.counts:
            self._counts[i, j] = float(state["step"])

    def _clear(self, i: int, j: int) -> None:
        for view in self._own[i][j].values():
            view.zero_()
        self._counts[i, j] = 0

    def step(self, grads: Tensor, used: Sequence[bool]) -> None:
        """As `Batched.step`."""
        if self._used != used:
            self._pieces = list(self._cut(used))
            self._used = list(used)
        for piece in self._pieces:
            a, b = piece.columns
            piece.read()
            piece.count()
            self._kind.update(piece, grads if b - a == grads.shape[1] else grads[:, a:b])
        if any(piece.fresh is not None for piece in self._pieces):
            self._enter(used)

    def _cut(self, used: Sequence[bool]) -> Iterator[Piece]:
        """The used parameters in as few runs as share group, count and whether there is a state."""
        ends, k = self._layout.ends, len(self._rows)
        self._sync()

        def sort(j: int) -> tuple[Any, ...]:
            return used[j], self._group_of[j], self._counts[:, j].tobytes(), self._present[:, j].tobytes()

        for what, run in groupby(range(len(used)), sort):
            numbers = list(run)
            lo, hi = numbers[0], numbers[-1] + 1
            if what[0]:
                a, b = ends[lo], ends[hi]
                group = what[1]
                yield Piece(
                    groups=[optimizer.param_groups[group] for optimizer in self._optimizers],
                    numbers=itemgetter(*self._kind.numbers),
                    weights=self._flat[:, a:b],
                    states={name: self._flats[name][:, a:b] for name in self._keeps[group]},
                    steps=None if self._steps is None else self._steps[:, lo:hi],
                    before=self._counts[:, lo].copy(),
                    fresh=None if self._present[:, lo].all() else ~self._present[:, lo],
                    decoupled=self._decoupled(group),
                    columns=(a, b),
                    runs=self._layout.runs(lo, hi),
                    lanes=k,
                    span=(lo, hi),
                )

    def _decoupled(self, group: int) -> bool:
        first = self._optimizers[0]
        return isinstance(first, AdamW) or bool(first.param_groups[group].get("decoupled_weight_decay"))

    def _sync(self) -> None:
        for piece in self._pieces:
            lo, hi = piece.span
            self._counts[:, lo:hi] = piece.counts[:, None]

    def _enter(self, used: Sequence[bool]) -> None:
        """The first step makes the state."""
        for i, (optimizer, row) in enumerate(zip(self._optimizers, self._rows, strict=True)):
            for j, parameter in enumerate(row):
                if used[j] and not self._present[i, j]:
                    optimizer.state[parameter].update(self._own[i][j])
                    self._present[i, j] = True
        self._used = None

    def part(self) -> None:
        """Give every optimizer memory of its own."""
        for optimizer, row in zip(self._optimizers, self._rows, strict=True):
            for parameter in row:
                state = optimizer.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, Tensor):
                        state[name] = value.clone()


class Mixed:
    """Optimizers of several formulas: each run of lanes that share one by itself."""

    def __init__(self, runs: Sequence[tuple[int, int, Batched]]) -> None:
        self._runs = runs  # from lane, to lane, their optimizers

    def gather(self) -> None:
        """Take up what the optimizers are now."""
        for _, _, run in self._runs:
            run.gather()

    def step(self, grads: Tensor, used: Sequence[bool]) -> None:
        """As `Batched.step`.

        Raises:
            StepFailed: some optimizers raised; the others have made their steps.
        """
        errors: dict[int, BaseException] = {}
        for first, end, run in self._runs:
            try:
                run.step(grads[first:end], used)
            except StepFailed as failed:
                errors.update({first + i: error for i, error in failed.errors.items()})
            except RAISED as error:  # it is those lanes' alone
                errors.update(dict.fromkeys(range(first, end), error))
        if errors:
            raise StepFailed(errors)

    def part(self) -> None:
        """Give every optimizer memory of its own."""
        for _, _, run in self._runs:
            run.part()


def batched(optimizers: Sequence[Optimizer], rows: Sequence[Sequence[Tensor]], weights: Stack) -> Batched:
    """The way to step these optimizers, whose `rows` of parameters lie in `weights`; the quicker, the more of one formula
    follow each other."""
    runs: list[tuple[int, int, Batched]] = []
    for _, same in groupby(range(len(optimizers)), lambda i: formula(optimizers[i])):
        numbers = list(same)
        lanes = slice(numbers[0], numbers[-1] + 1)
        kind, own, parameters = family(optimizers[lanes.start]), optimizers[lanes], rows[lanes]
        if kind is None:
            way: Batched = Apart(own, parameters, weights)
        else:
            way = Together(kind, own, parameters, weights.flat[lanes], weights.layout)
        runs.append((lanes.start, lanes.stop, way))
    return runs[0][2] if len(runs) == 1 else Mixed(runs)
