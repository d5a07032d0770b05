"""Losses of class indices, by operations that can be vectorized: torch's own are taken apart anew in Python at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from shoal.train.lanewise import at_once
from shoal.train.linear import linear


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
        made: Tensor = _CrossEntropy.apply(_whole(logs), target, ignore_index, reduction)  # type: ignore[no-untyped-call]
        return made

    made = at_once(every if soft else one, input, target)
    return one(input, target) if made is None else made


def _whole(logs: Tensor) -> Tensor:
    """As torch's own: under autocast they are computed in float32."""
    return logs.float() if logs.dtype.itemsize < 4 and torch.is_autocast_enabled(logs.device.type) else logs


class _CrossEntropy(torch.autograd.Function):
    """Of (k, n, classes) and (k, n), in few steps: of small models their number is what costs."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignored: int, reduction: str) -> Tensor:
        logs, flat = torch.log_softmax(logits, -1), target.reshape(-1)
        each, total = torch.ops.aten.nll_loss_forward(logs.flatten(0, 1), flat, None, 0, ignored)
        found: Tensor = each.view(target.shape)
        count = (target != ignored).sum(-1, keepdim=True) if reduction == "mean" else None
        ctx.save_for_backward(logits, logs, flat, total, count)
        ctx.ignored, ctx.reduction = ignored, reduction
        if reduction == "none":
            return found
        return found.sum(-1) if count is None else found.sum(-1) / count.squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *tops: Tensor) -> tuple[Tensor | None, ...]:
        logits, logs, flat, total, count = ctx.saved_tensors
        if torch.is_grad_enabled():  # it is to be differentiated again
            logs = torch.log_softmax(logits, -1)
        top = tops[0] if ctx.reduction == "none" else tops[0].unsqueeze(-1)
        top = (top if count is None else top / count).expand(logs.shape[:-1]).reshape(-1)
        picked = torch.ops.aten.nll_loss_backward(top, logs.flatten(0, 1), flat, None, 0, ctx.ignored, total)
        backward: Any = torch._log_softmax_backward_data
        return backward(picked.view(logs.shape), logs, -1, logits.dtype), None, None, None
