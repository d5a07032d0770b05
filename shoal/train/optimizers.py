"""Torch's optimizers, by their one-pass kernels where those are faster: two to four times on a CPU (measured for Adam).

What torch does around a step for profilers and hooks takes 0.1 to 0.2 ms, of 1 to 2 for a small model's whole step: it is left
out while nothing listens.
"""

from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch import device as Device  # noqa: N812
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from shoal.train.stack import is_lazy, strides

_AROUND: Any
try:
    from torch._C._autograd import _profiler_enabled
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

    _AROUND = Optimizer.profile_hook_step(len).__code__  # what torch puts around every class's step
except (ImportError, AttributeError):  # another torch: everything as it has it
    _AROUND = None
_ZERO = Optimizer.zero_grad

KERNELS = (Adam, AdamW, SGD, Adagrad)
FLOAT = 4  # bytes of the smallest numbers that SGD's kernel works for; bfloat16 and float16 it leaves as they are (torch 2.13)
SAID = ("fused", "foreach", "differentiable", "capturable")  # by these their makers choose an implementation
# those quickened: parameters that had no dense gradient yet; None: not known
_open: WeakKeyDictionary[Optimizer, list[Tensor] | None] = WeakKeyDictionary()


def quicken(optimizer: Optimizer, device: Device) -> None:
    """Have it use its fused kernel on a CPU, unless its maker said `fused=`, `foreach=` or `differentiable=`.

    The sums are the same ones, rounded otherwise; alone and in packs alike.
    """
    if device.type != "cpu" or type(optimizer) not in KERNELS:
        return
    groups = optimizer.param_groups
    said = any(group.get(name) not in (None, False) or group.get("fused") is False for group in groups for name in SAID)
    parameters = [p for group in groups for p in group["params"]]
    if said or not all(p.is_floating_point() and not p.is_complex() and p.device.type == "cpu" for p in parameters):
        return
    if type(optimizer) is SGD and any(p.dtype.itemsize < FLOAT for p in parameters):
        return
    if not all(is_lazy(p) or p.stride() == strides(p) for p in parameters):  # the kernels walk over gaps in memory, too
        return
    for group in groups:
        group["fused"] = True
    _open[optimizer] = None


def unsettle(optimizer: Optimizer) -> None:
    """Its state is another one."""
    if optimizer in _open:
        _open[optimizer] = None


def zero(optimizer: Optimizer) -> None:
    """Forget the gradients, as `zero_grad` does."""
    if _AROUND is None or type(optimizer).zero_grad is not _ZERO or "zero_grad" in vars(optimizer) or _profiler_enabled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def step(optimizer: Optimizer) -> None:
    """Its step: where a fused kernel chosen by `quicken` is not up to it, as by torch's own choice.

    That is asked only when a parameter has its first gradient, or a sparse one: other steps cost nothing more.
    """
    left = _open.get(optimizer, [])
    if left is not None and all(p.grad is None for p in left):
        _step(optimizer)
        return
    slow = [group for group in optimizer.param_groups if group["fused"] and not _fits(optimizer, group)]
    for group in slow:
        group["fused"] = False
    try:
        optimizer.step()
    finally:
        for group in slow:
            group["fused"] = True
    every = [p for group in optimizer.param_groups for p in group["params"]] if left is None else left
    _open[optimizer] = [p for p in every if p.grad is None or p.grad.is_sparse]


def _step(optimizer: Optimizer) -> None:
    """Its class's step, without what is around it if that has nothing to do."""
    around: Any = type(optimizer).step
    usual = _AROUND is not None and getattr(around, "__code__", None) is _AROUND and "step" not in vars(optimizer)
    if usual and not _heard(optimizer):
        around.__wrapped__(optimizer)
    else:
        optimizer.step()


def _heard(optimizer: Any) -> bool:
    """Whether a hook or a profiler listens to its steps."""
    own = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return bool(own or _global_optimizer_pre_hooks or _global_optimizer_post_hooks) or _profiler_enabled()


def _fits(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether all gradients are dense, and either all or none of their parameters have a momentum yet."""
    parameters = [p for p in group["params"] if p.grad is not None]
    held = [optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in parameters] if group.get("momentum") else []
    return len({*held}) < 2 and not any(p.grad.is_sparse for p in parameters)
