"""The whole state of an optimizer: torch's state dict, deques, and optimizers that it wraps.

An optimizer may hold another one as an attribute, as SAM does. Its own state dict lacks that
one's state then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from shoal.train.lane import tree

# keys that torch's state dicts do not have
WRAPPED = "~wrapped"
DEQUE = "~deque"


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state as a plain tree, with those of optimizers that it wraps."""
    state: dict[str, Any] = tree.to_numpy(_listed(optimizer.state_dict()))
    wrapped = _wrapped(optimizer)
    if wrapped:
        state[WRAPPED] = {name: whole_state(each) for name, each in wrapped.items()}
    return state


def load_whole(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Make the optimizer what `whole_state` was of.

    Raises:
        ValueError: other groups of parameters.
    """
    own = {name: value for name, value in state.items() if name != WRAPPED}
    wrapped = _wrapped(optimizer)
    shared = [name for name, each in wrapped.items() if each.param_groups is optimizer.param_groups]
    tree.load_optimizer(optimizer, own)
    for values in optimizer.state.values():
        if isinstance(values, dict):
            values.update(_with_deques(values))
    for name, each in wrapped.items():
        load_whole(each, state[WRAPPED][name])
        if name in shared:
            each.param_groups = optimizer.param_groups


def _wrapped(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers that this one has as attributes, by name."""
    attributes = vars(optimizer).items()
    return {name: value for name, value in attributes if isinstance(value, Optimizer)}


def _listed(value: Any) -> Any:
    """The tree with marked lists for its deques."""
    if isinstance(value, deque):
        return {DEQUE: [_listed(each) for each in value], "maxlen": value.maxlen}
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_listed(each) for each in value]
    return value


def _with_deques(value: Any) -> Any:
    """The tree as it was before `_listed`."""
    if isinstance(value, Mapping):
        if DEQUE in value:
            return deque(map(_with_deques, value[DEQUE]), value["maxlen"])
        return {key: _with_deques(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_deques(each) for each in value]
    return value
