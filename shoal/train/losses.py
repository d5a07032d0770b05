"""Losses of class indices, by operations that can be vectorized: torch's own are taken apart anew in Python at every step."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from shoal.train.lanewise import Function, at_once
from shoal.train.linear import linear

REGISTER = 16  # numbers at most that a processor takes at once


class Vectorized(TorchFunctionMode):
    """Within it cross_entropy and nll_loss of (samples, classes) are sums of picked values; rarer forms are left to torch.

    Linear layers are those of `linear`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.linear:
            return linear(*args, **kwargs)
        if func in (F.cross_entropy, F.nll_loss) and _plain(*args, **kwargs):
            return _picked(func is F.cross_entropy, *args, **kwargs)
        return func(*args, **kwargs)


def _plain(
    input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> bool:  # fmt: skip
    usual = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    return usual and input.dim() == 2 and target.shape == input.shape[:1] and not target.is_floating_point()


def _picked(
    soft: bool, input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    def one(logs: Tensor, target: Tensor) -> Tensor:
        """By operations that `vmap` knows."""
        logs, keep = torch.log_softmax(_whole(logs), -1) if soft else _whole(logs), target != ignore_index
        found = -logs.gather(-1, target.where(keep, 0).unsqueeze(-1)).squeeze(-1).where(keep, 0)  # a product: nan of inf
        if reduction == "none":
            return found
        return found.sum(-1) if reduction == "sum" else found.sum(-1) / keep.sum(-1)

    def every(logs: Tensor, target: Tensor) -> Tensor:
        made: Tensor = _CrossEntropy.apply(_whole(logs), target, ignore_index, reduction)
        return made

    made = at_once(every if soft else one, input, target)
    return one(input, target) if made is None else made


def _whole(logs: Tensor) -> Tensor:
    """As torch's own: under autocast they are computed in float32."""
    return logs.float() if logs.dtype.itemsize < 4 and torch.is_autocast_enabled(logs.device.type) else logs


class _CrossEntropy(Function):  # type: ignore[misc]
    """Of (k, n, classes) and (k, n), in few steps: of small models their number is what costs."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignored: int, reduction: str) -> Tensor:
        rows, flat = logits.flatten(0, 1), target.reshape(-1)
        columns = torch.log_softmax(_columns(rows), 0) if logits.is_cpu and _alike(rows.shape[1], rows.dtype) else None
        logs = torch.log_softmax(rows, -1) if columns is None else columns.T[: len(rows)]
        each, total = torch.ops.aten.nll_loss_forward(logs, flat, None, 0, ignored)
        found: Tensor = each.view(target.shape)
        count = (target != ignored).sum(-1, keepdim=True) if reduction == "mean" else None
        ctx.save_for_backward(logits, logs, columns, flat, total, count)
        ctx.ignored, ctx.reduction = ignored, reduction
        if reduction == "none":
            return found
        return found.sum(-1) if count is None else found.sum(-1) / count.squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *tops: Tensor) -> tuple[Tensor | None, ...]:
        logits, logs, columns, flat, total, count = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            logs, columns = torch.log_softmax(logits.flatten(0, 1), -1), None
        top = tops[0] if ctx.reduction == "none" else tops[0].unsqueeze(-1)
        top = (top if count is None else top / count).expand(logits.shape[:-1]).reshape(-1)
        picked = torch.ops.aten.nll_loss_backward(top, logs, flat, None, 0, ctx.ignored, total)
        backward: Any = torch._log_softmax_backward_data
        if columns is None:
            made = backward(picked, logs, -1, logits.dtype)
        else:
            made = backward(_columns(picked), columns, 0, logits.dtype).T[: len(picked)].contiguous()
        return made.view(logits.shape), None, None, None


def _columns(rows: Tensor) -> Tensor:
    """(n, classes) as (classes, n), with columns more, of zeros, where kernels would take the last few one by one."""
    n, classes = rows.shape
    whole = -(-n // REGISTER) * REGISTER
    if whole == n:
        return rows.T.contiguous()
    made = rows.new_zeros(classes, whole)
    made[:, :n] = rows.T
    return made


@cache
def _alike(classes: int, dtype: torch.dtype) -> bool:
    """Whether logarithms of softmax are, to the bit, by columns what they are by rows, which takes up to 20 times as long.

    Seen where a row does not fill a register (of 16 numbers, with AVX-512): its numbers are then added up one by one.
    """
    if classes >= REGISTER or dtype not in (torch.float32, torch.float64):
        return False
    numbers = torch.Generator("cpu").manual_seed(0)
    with torch.no_grad():
        rows = torch.randn(1280 * REGISTER, classes, generator=numbers, dtype=dtype, device="cpu")
        logs, columns = torch.log_softmax(rows * 3, -1), torch.log_softmax(_columns(rows * 3), 0)
        backward: Any = torch._log_softmax_backward_data
        grads = backward(rows, logs, -1, dtype), backward(_columns(rows), columns, 0, dtype).T
        return torch.equal(logs, columns.T) and torch.equal(*grads)
