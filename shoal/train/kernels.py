"""The formulas of torch's optimizers over (k, width): a row for each lane, with numbers of its own.

On a CPU torch's own kernel makes the whole step in one pass over a row, to the bit as for one model alone (measured: 2.5 us
+ 1 ns per element against 20 us / k + 2 ns); elsewhere numbers are columns (k, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class Piece:
    """Parameters that lie side by side and are updated alike."""

    groups: Sequence[dict[str, Any]]  # each lane's group
    numbers: Callable[[dict[str, Any]], tuple[Any, ...]]
    weights: Tensor  # (k, width), as all that follows
    states: dict[str, Tensor]
    steps: Tensor | None  # (k, parameters): each optimizer's own count
    before: Any  # (k,): steps taken before this piece was made, as NumPy array
    fresh: Any  # (k,): lanes that have no state yet; None: all have
    decoupled: bool
    columns: tuple[int, int]
    runs: Sequence[tuple[int, int]]  # of these columns, as `Layout.runs`
    lanes: int
    span: tuple[int, int]
    values: list[tuple[Any, ...]] = field(default_factory=list)  # each lane's numbers, as last read
    made: dict[str, Any] = field(default_factory=dict)  # out of these numbers
    more: int = 0  # steps taken since
    ages: Sequence[Tensor] = ()  # each lane's count of steps, a view
    views: dict[tuple[int, int], list[list[Tensor]]] = field(default_factory=dict)  # each lane's part, by where the whole lies

    def read(self) -> None:
        """Read each lane's numbers; what was made of other ones is dropped."""
        values = [self.numbers(group) for group in self.groups]
        if any(issubclass(kind, Tensor) for kind in {type(value[0]) for value in values}):  # a rate that changes in place
            values = [tuple(float(n) if isinstance(n, Tensor) else n for n in value) for value in values]
        if values != self.values:
            self.values, self.made = values, {}

    def count(self) -> None:
        """One more step."""
        if self.steps is not None:
            self.steps.add_(1)
            self.more += 1

    @property
    def counts(self) -> Any:
        """(k,): steps taken, as NumPy array."""
        return self.before + self.more

    def own(self, number: int) -> Any:
        """One of the numbers, of each lane (k,) or (k, 2)."""
        return np.array([value[number] for value in self.values], dtype=np.float64)

    def column(self, numbers: Any) -> Tensor:
        """(k,) as (k, 1) beside the weights."""
        made = torch.as_tensor(numbers, dtype=self.weights.dtype)
        there = self.weights.device
        if there.type == "cuda":  # without waiting for the device
            return made.pin_memory().to(there, non_blocking=True).unsqueeze(1)
        return made.to(there).unsqueeze(1)

    def kept(self, name: str, numbers: Callable[[], Any]) -> Tensor:
        """A column made once for these numbers."""
        if name not in self.made:
            self.made[name] = self.column(numbers())
        column: Tensor = self.made[name]
        return column

    def rows(self, tensor: Tensor | None) -> list[list[Tensor]]:
        """Each lane's part of (k, width), in runs."""
        if tensor is None:
            return [[]] * self.lanes
        at = tensor.data_ptr(), tensor.stride(0)
        if at not in self.views:
            if len(self.views) > 2 * (2 + len(self.states)):  # gradients that lie elsewhere each time
                self.views.clear()
            self.views[at] = [[row[a:b] for a, b in self.runs] for row in tensor.unbind()]
        return self.views[at]

    def taken(self) -> Sequence[Tensor]:
        """Each lane's count of steps, as torch's kernels want it."""
        assert self.steps is not None
        if self.steps.dtype != torch.float32 or self.steps.device.type != "cpu":
            return torch.from_numpy(self.counts).float().unbind()
        if not self.ages:
            self.ages = self.steps[:, 0].unbind()
        return self.ages

    @property
    def by_rows(self) -> bool:
        """Whether a row at a time, as alone."""
        return self.weights.device.type == "cpu" and self.weights.dtype in (torch.float32, torch.float64)


def _direction(piece: Piece, grads: Tensor, decay: int) -> Tensor:
    """The gradient with its sign and the (coupled) weight decay."""
    if piece.groups[0]["maximize"]:
        grads = -grads
    if "decays" not in piece.made:
        piece.made["decays"] = bool(piece.own(decay).any())
    if piece.made["decays"] and not piece.decoupled:
        grads = grads + piece.weights * piece.kept("decay", lambda: piece.own(decay))
    return grads


def sgd(piece: Piece, grads: Tensor) -> None:
    """With momentum, dampening, Nesterov; the first step's buffer is the gradient."""
    if piece.by_rows:
        _sgd_by_rows(piece, grads)
        return
    grads = _direction(piece, grads, 3)
    buffer = piece.states.get("momentum_buffer")
    if buffer is not None:
        momentum = piece.kept("momentum", lambda: piece.own(1))
        share = 1 - piece.own(2)
        if piece.fresh is not None:
            share[piece.fresh] = 1
        buffer.mul_(momentum).add_(grads if (share == 1).all() else grads * piece.column(share))
        grads = grads + buffer * momentum if piece.groups[0]["nesterov"] else buffer
    piece.weights.sub_(grads * piece.kept("rate", lambda: piece.own(0)))


def _sgd_by_rows(piece: Piece, grads: Tensor) -> None:
    group = piece.groups[0]
    if "rows" not in piece.made:
        piece.made["rows"] = list(zip(piece.rows(piece.weights), piece.rows(piece.states.get("momentum_buffer")), strict=True))
    rows = zip(piece.made["rows"], piece.rows(grads), piece.values, strict=True)
    for i, ((row, held), grad, (lr, momentum, dampening, decay)) in enumerate(rows):
        torch._fused_sgd_(
            row,
            grad,
            held,
            weight_decay=decay,
            momentum=momentum,
            lr=lr,
            dampening=dampening,
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            is_first_step=piece.fresh is not None and bool(piece.fresh[i]),
        )


def adam(piece: Piece, grads: Tensor) -> None:
    """Adam and AdamW, with AMSGrad."""
    if piece.by_rows:
        _adam_by_rows(piece, grads)
        return
    grads = _direction(piece, grads, 3)
    lr, betas, eps = piece.own(0), piece.own(1), piece.own(2)
    if piece.decoupled and piece.made["decays"]:
        piece.weights.mul_(piece.kept("shrink", lambda: 1 - lr * piece.own(3)))
    first, second = piece.states["exp_avg"], piece.states["exp_avg_sq"]
    first.lerp_(grads, piece.kept("new1", lambda: 1 - betas[:, 0]))
    second.mul_(piece.kept("old2", lambda: betas[:, 1])).add_((grads * grads).mul_(piece.kept("new2", lambda: 1 - betas[:, 1])))
    if "max_exp_avg_sq" in piece.states:
        second = torch.maximum(piece.states["max_exp_avg_sq"], second, out=piece.states["max_exp_avg_sq"])
    corrections = 1 - betas ** piece.counts[:, None]
    root = second.sqrt().div_(piece.column(np.sqrt(corrections[:, 1]))).add_(piece.kept("eps", lambda: eps))
    piece.weights.sub_(torch.div(first, root, out=root).mul_(piece.column(lr / corrections[:, 0])))


def _adam_by_rows(piece: Piece, grads: Tensor) -> None:
    kernel: Any = torch._fused_adamw_ if piece.decoupled else torch._fused_adam_
    group, largest = piece.groups[0], piece.states.get("max_exp_avg_sq")
    rows, ages = piece.rows(grads), piece.taken()
    known = piece.made.get("of", (None, None))
    if known[0] is not rows or known[1] is not ages:  # all that the calls are given stays where it is
        of = [piece.rows(t) for t in (piece.weights, piece.states["exp_avg"], piece.states["exp_avg_sq"], largest)]
        piece.made["of"], piece.made["calls"] = (
            (rows, ages),
            [
                partial(
                    kernel,
                    held[0],
                    grad,
                    *held[1:],
                    [age] * len(grad),
                    lr=lr,
                    beta1=betas[0],
                    beta2=betas[1],
                    weight_decay=decay,
                    eps=eps,
                    amsgrad=largest is not None,
                    maximize=group["maximize"],
                )
                for *held, grad, age, (lr, betas, eps, decay) in zip(*of, rows, ages, piece.values, strict=True)
            ],
        )
    for call in piece.made["calls"]:
        call()


def adagrad(piece: Piece, grads: Tensor) -> None:
    """With a rate that decays by the count."""
    if piece.by_rows:
        _adagrad_by_rows(piece, grads)
        return
    grads = _direction(piece, grads, 2)
    total = piece.states["sum"]
    total.addcmul_(grads, grads)
    root = total.sqrt().add_(piece.kept("eps", lambda: piece.own(3)))
    rate = piece.own(0) / (1 + (piece.counts - 1) * piece.own(1))
    piece.weights.sub_(torch.div(grads, root, out=root).mul_(piece.column(rate)))


def _adagrad_by_rows(piece: Piece, grads: Tensor) -> None:
    if "rows" not in piece.made:
        piece.made["rows"] = list(zip(piece.rows(piece.weights), piece.rows(piece.states["sum"]), strict=True))
    rows = zip(piece.made["rows"], piece.rows(grads), piece.taken(), piece.values, strict=True)
    for (row, total), grad, count, (lr, lr_decay, decay, eps) in rows:
        torch._fused_adagrad_(
            row,
            grad,
            total,
            [count] * len(row),
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=decay,
            eps=eps,
            maximize=piece.groups[0]["maximize"],
        )


def rmsprop(piece: Piece, grads: Tensor) -> None:
    """Centered or not, with momentum or not."""
    grads = _direction(piece, grads, 3)
    square, alpha = piece.states["square_avg"], piece.kept("alpha", lambda: piece.own(1))
    rest = piece.kept("rest", lambda: 1 - piece.own(1))
    square.mul_(alpha).add_((grads * grads).mul_(rest))
    if "grad_avg" in piece.states:
        mean = piece.states["grad_avg"].lerp_(grads, rest)
        root = square.addcmul(mean, mean, value=-1).sqrt_()
    else:
        root = square.sqrt()
    ratio = torch.div(grads, root.add_(piece.kept("eps", lambda: piece.own(2))), out=root)
    if "momentum_buffer" in piece.states:
        ratio = piece.states["momentum_buffer"].mul_(piece.kept("momentum", lambda: piece.own(4))).add_(ratio)
    piece.weights.sub_(ratio * piece.kept("rate", lambda: piece.own(0)))
