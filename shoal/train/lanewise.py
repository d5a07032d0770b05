"""Code written for one lane, run for all of them at once: `vmap` without its wrappings, and ways around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap

try:  # what vmap is made of; it takes half a millisecond and more for what these do at once
    from torch._C._functorch import (
        TransformType,
        _add_batch_dim,
        _remove_batch_dim,
        _unwrap_batched,
        _vmap_decrement_nesting,
        _vmap_increment_nesting,
        maybe_get_level,
        peek_interpreter_stack,
        pop_dynamic_layer_stack,
        push_dynamic_layer_stack,
    )
    from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]

    DIRECT = True
except ImportError:  # another torch: slower, and equal but for rounding
    DIRECT = False

Tensors = tuple[Tensor, ...]


def for_each_lane(function: Callable[[list[Tensor]], Tensors], stacked: list[Tensor], randomness: str) -> Tensors:
    """What `vmap` makes of the function, given tensors (k, ...) for all lanes: tensors (k, ...)."""
    if not DIRECT:
        found: Tensors = vmap(function, randomness=randomness)(stacked)
        return found
    lazy_load_decompositions()
    lanes = stacked[0].shape[0]
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
    layer: Any = peek_interpreter_stack() if DIRECT else None
    if layer is None or layer.key() != TransformType.Vmap or layer.level() != 1 or maybe_get_level(own) != 1:
        return None
    given: list[Any] = [(None, 0) if tensor is None else _unwrap_batched(tensor, 1) for tensor in (own, *more)]
    lanes = given[0][0].shape[given[0][1]]
    held: Any = pop_dynamic_layer_stack()
    try:
        made = function(*(_first(tensor, dim, lanes) for tensor, dim in given))
    finally:
        push_dynamic_layer_stack(held)
    found: Tensor = _add_batch_dim(made, 0, 1)
    return found


def _first(tensor: Any, dim: int | None, lanes: int) -> Any:
    """With the lanes' axis as the first one."""
    if dim is None:
        return tensor.expand(lanes, *tensor.shape)
    return tensor.movedim(dim, 0) if dim else tensor
