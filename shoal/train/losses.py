"""Losses of class indices, by operations that can be vectorized: torch's own are taken apart anew in Python at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from shoal.train.linear import linear


class Vectorized(TorchFunctionMode):
    """Within it cross_entropy and nll_loss of (samples, classes) are sums of picked values; rarer forms are left to torch.

    Linear layers are those of `linear`.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.linear:
            return linear(*args, **kwargs)
        if func is F.cross_entropy and _plain(*args, **kwargs):
            logits = args[0] if args else kwargs.pop("input")
            return _picked(torch.log_softmax(logits, 1), *args[1:], **kwargs)
        if func is F.nll_loss and _plain(*args, **kwargs):
            return _picked(args[0] if args else kwargs.pop("input"), *args[1:], **kwargs)
        return func(*args, **kwargs)


def _plain(
    input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0,
) -> bool:  # fmt: skip
    usual = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    return usual and input.dim() == 2 and target.dim() == 1 and not target.is_floating_point()


def _picked(
    logs: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100, reduce: Any = None,
    reduction: str = "mean", label_smoothing: float = 0.0, **_: Any,
) -> Tensor:  # fmt: skip
    keep = target != ignore_index
    found = -logs.gather(1, target.where(keep, 0).unsqueeze(1)).squeeze(1).where(keep, 0)  # a product would make nan of inf
    if reduction == "none":
        return found
    return found.sum() if reduction == "sum" else found.sum() / keep.sum()
