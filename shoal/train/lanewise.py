"""Code written for one lane, run for all of them at once: `vmap` without its wrappings, and ways around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

try:  # what vmap is made of; it takes half a millisecond and more for what these do at once
    from torch._C._functorch import (
        _add_batch_dim,
        _remove_batch_dim,
        _unwrap_batched,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
        is_batchedtensor,
        maybe_current_level,
        maybe_get_level,
        pop_dynamic_layer_stack,
        push_dynamic_layer_stack,
    )
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]
    from torch.autograd.function import _SingleLevelFunction
    from torch.autograd.graph import _engine_run_backward

    DIRECT = True
except ImportError:  # another torch: slower, and equal but for rounding
    DIRECT = False

Function: Any = _SingleLevelFunction if DIRECT else torch.autograd.Function  # within `at_once`: looks for no other `vmap`
Tensors = tuple[Tensor, ...]


def for_each_lane(function: Callable[[list[Tensor]], Tensors], stacked: list[Tensor], randomness: str) -> Tensors:
    """What `vmap` makes of the function, given tensors (k, ...) for all lanes: tensors (k, ...)."""
    if not DIRECT:
        found: Tensors = vmap(function, randomness=randomness)(stacked)
        return found
    lazy_load_decompositions()
    lanes = stacked[0].size(0)
    level = _vmap_increment_nesting(lanes, randomness)
    try:
        given = [_add_batch_dim(tensor, 0, level) for tensor in stacked]
        return tuple(_remove_batch_dim(value, level, lanes, 0) for value in function(given))
    finally:
        _vmap_decrement_nesting()


def at_once(function: Callable[..., Tensor], own: Tensor, *more: Tensor | None) -> Tensor | None:
    """The function's value for this lane, computed for all: it is given (k, ...) for each tensor (...), and gives (k, ...).

    None: `own` is not each lane's own tensor, or not only that (the recipe's own `vmap` is at work). `vmap` translates every
    operation anew; what is written for all lanes is translated only here.
    """
    if not DIRECT or maybe_current_level() != 1 or maybe_get_level(own) != 1 or not is_batchedtensor(own):
        return None
    given: list[Any] = []
    tensor: Any
    for one in (own, *more):  # at every layer of every step: nothing is called here that need not be
        tensor, at = (None, 0) if one is None else _unwrap_batched(one, 1)
        if at is None:  # all lanes have it in common
            tensor = tensor.expand(given[0].size(0), *tensor.shape)
        elif at:
            tensor = tensor.movedim(at, 0)
        given.append(tensor)
    held: Any = pop_dynamic_layer_stack()
    try:
        made = function(*given)
    finally:
        push_dynamic_layer_stack(held)
    found: Tensor = _add_batch_dim(made, 0, 1)
    return found


def gradients(losses: Tensor, leaves: Sequence[Tensor], shares: Tensor) -> Sequence[Tensor | None]:
    """Of the losses (k,), each times its share, by the leaves; None: they do not depend on it."""
    if not DIRECT:
        return torch.autograd.grad(losses, leaves, shares, allow_unused=True)
    # Without torch.autograd.grad's checks, which take as long as ten small kernels
    return _engine_run_backward((losses,), (shares,), False, False, tuple(leaves), True, accumulate_grad=False)
