"""Rewritten losses are torch's own, whatever is each lane's and whatever all lanes share."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import preloaded
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from shoal.train import private
from shoal.train.fuse.rewrites import Rewritten, mean_class_loss
from shoal.train.private import vmapped

K, N, C = 3, 5, 4
Loss = Callable[..., Tensor]


def stacked(*shape: int) -> Tensor:
    return torch.randn(
        K,
        *shape,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
        requires_grad=True,
    )


def one_by_one(loss: Callable[[Tensor], Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and gradients, lane by lane, by torch's own functions."""
    values = torch.stack([loss(lane) for lane in given])
    return values.detach(), torch.autograd.grad(values.sum(), given)[0]


def on_cpu() -> Any:
    """What replaces torch's losses on a CPU, where no function is watched."""
    return private.class_losses(mean_class_loss)


@pytest.fixture(params=[Rewritten, on_cpu], autouse=True)
def replacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "replaced", request.param)


replaced: Any = Rewritten


def together(loss: Callable[[Tensor], Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    with replaced():
        (values,) = vmapped(lambda tensors: (loss(tensors[0]),), [given], "error")
    return values.detach(), torch.autograd.grad(values.sum(), given)[0]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_losses(name: str, reduction: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "VMAP", direct)
    function = {"cross_entropy": cross_entropy, "nll_loss": nll_loss}[name]
    loss: Loss = partial(function, reduction=reduction)
    target = torch.tensor([0, 3, -100, 1, 1])
    common = torch.randn(N, C, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def weighted(logits: Tensor) -> Tensor:
        """The lanes' own part enters where all have the logits in common, too."""
        return loss(common, target) * logits.mean()

    cases: dict[str, Callable[[Tensor], Tensor]] = {
        "target in common": lambda logits: loss(logits, target),
        "another one is ignored": lambda logits: loss(logits, target.clamp(min=0), ignore_index=1),
        "target of each lane": lambda logits: loss(logits, (logits * 2 - common).argmax(1)),
        "logits in common": weighted,
        "a target of each lane for logits in common": lambda logits: (
            loss(common, logits.argmax(1)) * logits.mean()
        ),
        "named": lambda logits: function(input=logits, target=target, reduction=reduction),
    }
    for what, of in cases.items():
        for mine, alone in zip(
            together(of, stacked(N, C)), one_by_one(of, stacked(N, C)), strict=True
        ):
            assert torch.allclose(mine, alone, atol=1e-12), what


def test_losses_under_autocast_are_those_of_float32() -> None:
    """As torch's own; in bfloat16 they would differ in the third digit."""
    target = torch.tensor([0, 3, 2, 1, 1])

    def of(logits: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return cross_entropy(logits.bfloat16() * 3, target)

    mine, alone = together(of, stacked(N, C)), one_by_one(of, stacked(N, C))
    assert mine[0].dtype == alone[0].dtype == torch.float32
    assert torch.allclose(mine[0], alone[0], rtol=1e-6)


def test_rare_losses_are_left_to_torch() -> None:
    target = torch.tensor([0, 3, 2, 1, 1])
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    losses: list[Loss] = [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=weight),
        nn.CrossEntropyLoss(label_smoothing=0.1),
    ]
    for loss in losses:
        found = together(lambda logits, loss=loss: loss(logits, target), stacked(N, C))  # type: ignore[misc]
        alone = one_by_one(lambda logits, loss=loss: loss(logits, target), stacked(N, C))  # type: ignore[misc]
        assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(found, alone, strict=True))


def test_a_target_of_another_length_is_an_error() -> None:
    for target in (torch.tensor([1]), torch.tensor([1, 2, 3, 0, 0, 1])):
        with pytest.raises(ValueError, match="batch_size|size|shape"):
            together(lambda logits, target=target: cross_entropy(logits, target), stacked(N, C))  # type: ignore[misc]


def test_a_vmap_of_the_recipe_within() -> None:
    """The recipe's own ensemble, of two heads with weights of their own."""
    x = torch.randn(N, C, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    target = torch.tensor([0, 3, 2, 1, 1])

    def heads(weights: Tensor) -> Tensor:
        each = torch.func.vmap(lambda w: cross_entropy(nn.functional.linear(x, w), target))
        return each(weights).sum()

    for mine, alone in zip(
        together(heads, stacked(2, C, C)), one_by_one(heads, stacked(2, C, C)), strict=True
    ):
        assert torch.allclose(mine, alone, atol=1e-12)


def test_an_error_leaves_no_level_behind() -> None:
    def fail(_: list[Tensor]) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        vmapped(fail, [stacked(2)], "error")
    (found,) = vmapped(lambda given: (given[0] * 2,), [stacked(2)], "error")
    assert torch.equal(found, stacked(2) * 2)


def test_a_fused_step_loads_no_more_of_torch() -> None:
    """Not the tools for symbolic shapes: they take 0.4 s."""
    code = """
import sys, torch
from torch.nn.functional import cross_entropy, nll_loss
from shoal.train.fuse.models import gradients_of
from shoal.train.fuse.rewrites import mean_class_loss
from shoal.train.private import class_losses, vmapped
x = torch.randn(3, 5, 4, requires_grad=True)
y = torch.tensor([0, 3, 2, 1, 1])
for loss in (cross_entropy, lambda x, y: nll_loss(x.log_softmax(-1), y)):
    with class_losses(mean_class_loss):
        losses, = vmapped(lambda given: (loss(given[0], y),), [x], "error")
    gradients_of(losses, [x])
print([name for name in ("sympy", "torch.fx.experimental.symbolic_shapes") if name in sys.modules])
"""
    run = preloaded.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_other_tensors_losses_are_torchs_own_meanwhile() -> None:
    """To the bit: another thread may train alone."""
    logits = torch.randn(33, 10, generator=torch.Generator().manual_seed(1))
    target = torch.arange(33) % 10
    alone = cross_entropy(logits, target)
    with on_cpu():
        assert torch.equal(cross_entropy(logits, target), alone)
    assert "partial" not in repr(torch._C._nn.cross_entropy_loss)
