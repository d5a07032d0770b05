"""Torch's optimizers in lanes: their fused kernels, their kind, and their numbers.

A fused kernel takes a half to a quarter of the time of a step on a CPU (measured for Adam).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch import device as Device  # noqa: N812
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from shoal.train import private
from shoal.train.lane import tree
from shoal.train.lane.tensors import is_lazy, strides

KERNELS = (Adam, AdamW, SGD, Adagrad)
USUAL = (SGD, Adam, AdamW, Adagrad, RMSprop)  # their formulas are known to Shoal
# bytes of the smallest numbers that SGD's kernel works for: bfloat16 and float16 it leaves as they
# are (torch 2.13)
FLOAT = 4
# by these options a recipe chooses an implementation
CHOICES = ("fused", "foreach", "differentiable", "capturable")

Group = dict[str, Any]  # a parameter group

# optimizers with kernels, and their parameters without a dense gradient so far; None: not known
_waiting: WeakKeyDictionary[Optimizer, list[Tensor] | None] = WeakKeyDictionary()


# -- kernels -------------------------------------------------------------------------------------


def quicken(optimizer: Optimizer, device: Device) -> None:
    """Have the optimizer use its fused kernel on a CPU, unless the recipe chose an implementation.

    A recipe chooses by `fused=`, `foreach=` or `differentiable=`. The sums are the same ones,
    rounded otherwise; alone and in packs alike.
    """
    if device.type != "cpu" or type(optimizer) not in KERNELS:
        return
    groups = optimizer.param_groups
    for group in groups:
        chosen = any(group.get(name) not in (None, False) for name in CHOICES)
        if chosen or group.get("fused") is False:
            return
    if not all(_has_kernel(optimizer, p) for p in _parameters(optimizer)):
        return
    for group in groups:
        group["fused"] = True
    _waiting[optimizer] = None


def _has_kernel(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Whether the optimizer's kernel can step such a parameter."""
    if not parameter.is_floating_point() or parameter.device.type != "cpu":
        return False
    if type(optimizer) is SGD and parameter.dtype.itemsize < FLOAT:
        return False
    # the kernels walk over gaps in memory, too
    return is_lazy(parameter) or parameter.stride() == strides(parameter)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def unsettle(optimizer: Optimizer) -> None:
    """Look at the optimizer's gradients anew: another state was loaded."""
    if optimizer in _waiting:
        _waiting[optimizer] = None


# -- steps ---------------------------------------------------------------------------------------


def zero(optimizer: Optimizer) -> None:
    """Forget the gradients, as `zero_grad` does."""
    private.forget_gradients(optimizer)


def step(optimizer: Optimizer) -> None:
    """Take the optimizer's step, by the fused kernel that `quicken` chose where that can make it.

    Whether it can is asked only when a parameter has its first gradient, or a sparse one. Other
    steps cost nothing more.
    """
    waiting = _waiting.get(optimizer, [])
    if waiting is not None and all(p.grad is None for p in waiting):
        private.step(optimizer)
        return
    groups = optimizer.param_groups
    slow = [group for group in groups if group["fused"] and not _fits(optimizer, group)]
    for group in slow:
        group["fused"] = False
    try:
        optimizer.step()
    finally:
        for group in slow:
            group["fused"] = True
    if waiting is None:
        waiting = _parameters(optimizer)
    _waiting[optimizer] = [p for p in waiting if p.grad is None or p.grad.is_sparse]


def step_scaled(optimizer: Optimizer, factor: float) -> None:
    """Take the optimizer's step, at learning rates that are so many times its own."""
    if factor == 1.0:
        step(optimizer)
        return
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    set_rates(optimizer, [rate * factor for rate in rates])
    step(optimizer)
    set_rates(optimizer, rates)


def _fits(optimizer: Optimizer, group: Group) -> bool:
    """Whether all gradients are dense, and all or none of their parameters have a momentum."""
    parameters = [p for p in group["params"] if p.grad is not None]
    if any(p.grad.is_sparse for p in parameters):
        return False
    if not group.get("momentum"):
        return True
    states = [optimizer.state.get(p, {}) for p in parameters]
    begun = {state.get("momentum_buffer") is not None for state in states}
    return len(begun) < 2


def family(optimizer: Optimizer) -> type[Optimizer] | None:
    """Which of torch's usual optimizers it is; None: nothing is known about how it steps."""
    kind = type(optimizer)
    if kind not in USUAL or private.has_step_hooks(optimizer):
        return None
    wrapper = vars(optimizer).get("step")
    if wrapper is not None and not hasattr(wrapper, "_wrapped_by_lr_sched"):
        return None  # torch's schedulers put a counter there, which does no harm
    for group in optimizer.param_groups:
        if group.get("differentiable") or group.get("capturable"):
            return None
        if any(isinstance(beta, Tensor) for beta in group.get("betas", ())):
            return None
        rate = group["lr"]
        if isinstance(rate, Tensor) and rate.device.type != "cpu":
            return None  # to read it at each step would wait for the device
    return kind


# -- numbers -------------------------------------------------------------------------------------


def set_rates(optimizer: Optimizer, rates: Sequence[float]) -> None:
    """Set the learning rate of each parameter group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        _set_rate(group, rate)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def group_numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's hyper-parameters, as plain numbers.

    Which implementation makes the steps is none of them.
    """
    plain: dict[str, Any] = {"lr": float(group["lr"])}
    for name, value in group.items():
        if name in CHOICES:
            continue
        if isinstance(value, int | float):
            plain[name] = value
        elif isinstance(value, tuple | list) and all(
            isinstance(each, int | float) for each in value
        ):
            plain[name] = list(value)
    return plain


def numbers_of_state(configured: Any) -> Any:
    """A state's hyper-parameters as `group_numbers` gives them: earlier versions kept more."""
    if isinstance(configured, Mapping):
        return group_numbers(configured)
    return [numbers_of_state(each) for each in configured]


def restore_numbers(
    optimizer: Optimizer, own: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> None:
    """Put a trial's own hyper-parameters over those loaded from another trial's state.

    The factor that a schedule has put on the learning rate by now stays.
    """
    for group, mine, loaded in zip(optimizer.param_groups, own, theirs, strict=True):
        rate = base_rate(mine)
        former = base_rate(loaded)
        if former:
            rate = float(group["lr"]) * rate / former
        for name, value in mine.items():
            if name != "lr":
                group[name] = tuple(value) if isinstance(value, list) else value
        _set_rate(group, rate)


def base_rate(group: Mapping[str, Any]) -> float:
    """The learning rate of a group's numbers before a schedule changed it."""
    base: float = group.get("initial_lr", group["lr"])
    return base


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
    """Restore what `whole_state` saved of such an optimizer.

    Raises:
        ValueError: other groups of parameters.
    """
    unwrapped = {name: value for name, value in state.items() if name != WRAPPED}
    wrapped = _wrapped(optimizer)
    shared = [name for name, each in wrapped.items() if each.param_groups is optimizer.param_groups]
    tree.load_optimizer(optimizer, unwrapped)
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
