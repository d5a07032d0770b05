"""What is computed for all lanes at once: their steps, and in them linear layers by the matrix products that each has alone.

On a CPU a product of a batch of matrices then gives, to the bit, what the product of each pair gives (seen with MKL, where each
matrix begins at a multiple of 16 bytes: see `stack.Layout`). Left to itself, vectorization turns some of them the other way
round, which is right but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812

functorch: Any
try:  # torch's own functions take half a millisecond for what these do at once
    from torch._C import _functorch as functorch
    from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
except ImportError:  # another torch: slower, and equal but for rounding
    functorch = None

APART = 16  # bytes
Tensors = tuple[Tensor, ...]


def for_each_lane(function: Callable[[list[Tensor]], Tensors], stacked: list[Tensor], randomness: str) -> Tensors:
    """What `vmap` makes of the function, given tensors (k, ...) for all lanes: tensors (k, ...)."""
    if functorch is None:
        found: Tensors = vmap(function, randomness=randomness)(stacked)
        return found
    lazy_load_decompositions()
    lanes = len(stacked[0])
    with disable_saved_tensors_hooks("what a step saves for its gradient cannot be changed for all lanes at once"):
        level = functorch._vmap_increment_nesting(lanes, randomness)
        try:
            given = [functorch._add_batch_dim(tensor, 0, level) for tensor in stacked]
            return tuple(functorch._remove_batch_dim(value, level, lanes, 0) for value in function(given))
        finally:
            functorch._vmap_decrement_nesting()


def at_once(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor | None:
    """The function's value, given for all lanes at once what is given here for one; None: these are not lanes' tensors.

    Within `vmap` each operation is translated anew; what is written for all lanes needs it only here. The first tensor has the
    lanes' axis first; others that all lanes have in common are given as they are.
    """
    if functorch is None or functorch.peek_interpreter_stack() is None:
        return None
    layer: Any = retrieve_current_functorch_interpreter()
    if not isinstance(layer, VmapInterpreter) or functorch.maybe_get_level(tensors[0]) != (level := layer.level()):
        return None
    given: list[Any] = [(None, None) if tensor is None else functorch._unwrap_batched(tensor, level) for tensor in tensors]
    with layer.lower():
        made = function(*(tensor.movedim(dim, 0) if dim else tensor for tensor, dim in given), given)
    found: Tensor = functorch._add_batch_dim(made, 0, level)
    return found


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As torch's, for one lane within `vmap`."""
    usual = input.dim() > 1 and input.dtype == weight.dtype and not torch.is_autocast_enabled(weight.device.type)
    made = at_once(_linear, weight, input, bias) if usual else None
    return F.linear(input, weight, bias) if made is None else made


def _linear(w: Tensor, x: Tensor, b: Tensor | None, given: Sequence[tuple[Any, int | None]]) -> Tensor:
    lanes, one = len(w), [dim is None for _, dim in given]
    x = x.expand(lanes, *x.shape) if one[1] else x
    biases = [] if b is None else [b.expand(lanes, *b.shape) if one[2] else b]
    flat = x if x.dim() == 3 else x.reshape(lanes, -1, x.shape[-1])
    made: Tensor = _Products.apply(flat, w, *biases)  # type: ignore[no-untyped-call]
    return made if x.dim() == 3 else made.view(*x.shape[:-1], -1)


class _Products(torch.autograd.Function):
    """(k, n, inputs) by (k, outputs, inputs), and (k, outputs) on top."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, *b: Tensor) -> Tensor:
        x = _apart(x)
        ctx.save_for_backward(x, w)
        return torch.baddbmm(b[0].unsqueeze(1), x, w.mT) if b else torch.bmm(x, w.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), grad = ctx.saved_tensors, _apart(grads[0])
        wanted = ctx.needs_input_grad
        return (
            torch.bmm(grad, w) if wanted[0] else None,
            torch.bmm(grad.mT, x) if wanted[1] else None,
            *([grad.sum(1)] if len(wanted) == 3 else []),
        )


def _apart(matrices: Tensor) -> Tensor:
    """(k, n, m) of which each matrix begins where one alone may: a copy, with gaps between them, where they do not."""
    k, n, m = matrices.shape
    unit = max(1, APART // matrices.element_size())
    if matrices.device.type != "cpu" or matrices.stride(0) % unit == 0:
        return matrices
    room = -(-n * m // unit) * unit
    made = matrices.new_empty(k * room).as_strided((k, n, m), (room, m, 1))
    return made.copy_(matrices)
