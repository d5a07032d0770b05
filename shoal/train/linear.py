"""Linear layers of several lanes at once, each by the same matrix products, in the same orientation, as alone.

On a CPU a product of a batch of matrices then gives, to the bit, what the product of each pair gives (seen with MKL, where each
matrix begins at a multiple of 16 bytes: see `stack.Layout`). Left to itself, vectorization turns some of them the other way
round, which is right but for rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from shoal.train.lanewise import Function, at_once

APART = 16  # bytes
SMALL = 400  # multiplications, below which torch has loops of its own for products of batches, but not for those of pairs


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, for one lane within `vmap`."""
    usual = input.dim() > 1 and input.dtype == weight.dtype and not torch.is_autocast_enabled(weight.device.type)
    made = at_once(_linear, weight, input, bias) if usual else None
    return F.linear(input, weight, bias) if made is None else made


def _linear(w: Tensor, x: Tensor, *b: Tensor | None) -> Tensor:
    biases = [bias for bias in b if bias is not None]
    flat = x if x.dim() == 3 else x.reshape(len(w), -1, x.shape[-1])
    made: Tensor = _Products.apply(flat, w, *biases)
    return made if x.dim() == 3 else made.view(*x.shape[:-1], -1)


class _Products(Function):  # type: ignore[misc]
    """(k, n, inputs) by (k, outputs, inputs), and (k, outputs) on top."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, *b: Tensor) -> Tensor:
        x = _apart(x)
        ctx.save_for_backward(x, w)
        return _product(x, w.mT, *b)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), grad = ctx.saved_tensors, _apart(grads[0])
        wanted = ctx.needs_input_grad
        return (
            _product(grad, w) if wanted[0] else None,
            _product(grad.mT, x) if wanted[1] else None,
            *([grad.sum(1)] if len(wanted) == 3 else []),
        )


def _product(a: Tensor, b: Tensor, *bias: Tensor) -> Tensor:
    """(k, n, m) by (k, m, o), and (k, o) on top."""
    k, n, m = a.shape
    if not a.is_cpu or n * m * b.shape[2] >= SMALL or torch.is_grad_enabled():
        return torch.baddbmm(bias[0].unsqueeze(1), a, b) if bias else torch.bmm(a, b)
    made = a.new_empty(k, n, b.shape[2])
    for out, *pair in zip(made, *bias, a, b, strict=True):
        torch.addmm(*pair, out=out) if bias else torch.mm(*pair, out=out)
    return made


def _apart(matrices: Tensor) -> Tensor:
    """(k, n, m) of which each matrix begins where one alone may: a copy, with gaps between them, where they do not."""
    unit = max(1, APART // matrices.element_size())
    if not matrices.is_cpu or matrices.stride(0) % unit == 0:
        return matrices
    k, n, m = matrices.shape
    room = -(-n * m // unit) * unit
    made = matrices.new_empty(k * room).as_strided((k, n, m), (room, m, 1))
    return made.copy_(matrices)
