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
    def of(logs: Tensor, target: Tensor) -> Tensor:
        """Of one lane or, with an axis more in front, of all."""
        if logs.dtype.itemsize < 4 and torch.is_autocast_enabled(logs.device.type):
            logs = logs.float()  # as torch's own
        logs = torch.log_softmax(logs, -1) if soft else logs
        keep = target != ignore_index
        index = target.where(keep, 0).unsqueeze(-1)
        found = -logs.gather(-1, index).squeeze(-1).where(keep, 0)  # a product would make nan of inf
        if reduction == "none":
            return found
        return found.sum(-1) if reduction == "sum" else found.sum(-1) / keep.sum(-1)

    made = at_once(of, input, target)
    return of(input, target) if made is None else made
