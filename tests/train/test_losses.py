"""Losses of class indices within `vmap` are torch's own, whatever is each lane's and whatever all lanes have in common."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from shoal.train import lanewise
from shoal.train.lanewise import at_once, for_each_lane
from shoal.train.linear import linear
from shoal.train.losses import Vectorized

K, N, C = 3, 5, 4
Loss = Callable[..., Tensor]


def stacked(*shape: int) -> Tensor:
    return torch.randn(K, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)


def one_by_one(loss: Callable[[Tensor], Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    """Losses and gradients, lane by lane, by torch's own functions."""
    values = torch.stack([loss(lane) for lane in given])
    return values.detach(), torch.autograd.grad(values.sum(), given)[0]


def together(loss: Callable[[Tensor], Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
    with Vectorized():
        (values,) = for_each_lane(lambda tensors: (loss(tensors[0]),), [given], "error")
    return values.detach(), torch.autograd.grad(values.sum(), given)[0]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_losses(name: str, reduction: str, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanewise, "DIRECT", direct)
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
        "a target of each lane for logits in common": lambda logits: loss(common, logits.argmax(1)) * logits.mean(),
        "named": lambda logits: function(input=logits, target=target, reduction=reduction),
    }
    for what, of in cases.items():
        for mine, alone in zip(together(of, stacked(N, C)), one_by_one(of, stacked(N, C)), strict=True):
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


def test_linear_layers_and_losses_are_computed_for_all_lanes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By functions that see whole stacks, not a lane's part of them."""
    seen: list[int] = []
    inner = torch.log_softmax

    def noted(logits: Tensor, dim: int) -> Tensor:
        seen.append(logits.numel())
        return inner(logits, dim)

    for classes in (C, 40):  # by columns, or rows
        monkeypatch.setattr(torch, "log_softmax", inner)
        together(lambda logits: cross_entropy(logits, torch.tensor([0, 3, 2, 1, 1])), stacked(N, classes))
        monkeypatch.setattr(torch, "log_softmax", noted)
        together(lambda logits: cross_entropy(logits, torch.tensor([0, 3, 2, 1, 1])), stacked(N, classes))
        assert len(seen) == 1
        assert seen.pop() >= K * N * classes


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 2, 3, 4, 5, 7, 8, 9, 10, 15, 16, 17, 100])
def test_cross_entropy_is_that_of_a_lane_alone_to_the_bit(classes: int, dtype: torch.dtype, threads: int) -> None:
    """Also where its softmax is made by columns, whose last few torch would round otherwise than those before."""
    numbers = torch.Generator().manual_seed(classes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for lanes, n, scale in [(2, 1, 1.0), (3, 5, 0.1), (4, 33, 3.0), (16, 32, 1.0), (7, 700, 30.0)]:
            logits = (torch.randn(lanes, n, classes, generator=numbers, dtype=dtype) * scale).requires_grad_()
            target = torch.randint(classes, (n,), generator=numbers)
            target[n // 2] = -100 if n > 1 else 0
            for reduction in ("mean", "sum", "none"):
                top = torch.randn(n, generator=numbers, dtype=dtype)

                def loss(logits: Tensor, given: Tensor = target, by: str = reduction, top: Tensor = top) -> Tensor:
                    found = cross_entropy(logits, given, reduction=by)
                    return (found * top).sum() if by == "none" else found

                mine, alone = together(loss, logits), [one_by_one(loss, lane.unsqueeze(0)) for lane in logits]
                assert torch.equal(mine[1], torch.cat([grads for _, grads in alone])), (lanes, n, reduction)
                assert torch.allclose(mine[0], torch.cat([values for values, _ in alone]), rtol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_a_target_of_another_length_is_an_error() -> None:
    for target in (torch.tensor([1]), torch.tensor([1, 2, 3, 0, 0, 1])):
        with pytest.raises(ValueError, match="batch_size"):
            together(lambda logits, target=target: cross_entropy(logits, target), stacked(N, C))  # type: ignore[misc]


def test_a_vmap_of_the_recipe_within() -> None:
    """The recipe's own ensemble, of two heads with weights of their own."""
    x = torch.randn(N, C, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    target = torch.tensor([0, 3, 2, 1, 1])

    def heads(weights: Tensor) -> Tensor:
        each = torch.func.vmap(lambda w: cross_entropy(nn.functional.linear(x, w), target))
        return each(weights).sum()

    for mine, alone in zip(together(heads, stacked(2, C, C)), one_by_one(heads, stacked(2, C, C)), strict=True):
        assert torch.allclose(mine, alone, atol=1e-12)


def test_an_error_leaves_no_level_behind() -> None:
    def fail(_: list[Tensor]) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        for_each_lane(fail, [stacked(2)], "error")
    with pytest.raises(KeyError, match="mine"):  # raised among all lanes
        for_each_lane(lambda given: (at_once(fail, given[0]) or given[0],), [stacked(2)], "error")  # type: ignore[arg-type]
    assert at_once(lambda t: t, stacked(2)) is None
    assert torch.equal(linear(stacked(2), torch.eye(2, dtype=torch.float64)), stacked(2))
