"""Lanes fused in one learn, to the bit, what they learn alone: linear layers of several outputs, on a CPU, by torch's kernels."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.train.fused import Fused
from shoal.train.lane import Lane
from shoal.train.linear import linear

OPTIMIZERS: dict[str, Callable[[Any, float], Any]] = {
    "sgd": lambda p, lr: SGD(p, lr=10 * lr),
    "momentum": lambda p, lr: SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p, lr: Adam(p, lr=lr),
    "adamw": lambda p, lr: AdamW(p, lr=lr, weight_decay=0.1),
    "adagrad": lambda p, lr: Adagrad(p, lr=10 * lr, lr_decay=0.1),
}


class Mlp(shoal.Recipe):
    def __init__(self, inputs: int, width: int, optimizer: str, activation: type[nn.Module] = nn.ReLU) -> None:
        self.inputs, self.width, self.optimizer, self.activation = inputs, width, optimizer, activation

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(torch.zeros(8, self.inputs).numpy(), torch.zeros(8, dtype=torch.int64).numpy())

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        inner = nn.Linear(self.width, self.width, bias=False)
        return nn.Sequential(
            nn.Linear(self.inputs, self.width), self.activation(), inner, self.activation(), nn.Linear(self.width, 10)
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return OPTIMIZERS[config.get("optimizer", self.optimizer)](model.parameters(), config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])


def lanes(recipe: Mlp, batch: int, count: int = 5, mixed: bool = False) -> list[Lane]:
    made = []
    for i in range(count):
        config = {"lr": 1e-3 * (i + 1), "batch_size": batch, **({"optimizer": list(OPTIMIZERS)[i]} if mixed else {})}
        made.append(Lane(recipe, config, seed=i, device=torch.device("cpu"), kind="cpu", epoch=1000.0))
        made[-1].begin(10**6)
    return made


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "all of them"])
@pytest.mark.parametrize(
    ("inputs", "width", "batch"), [(64, 64, 32), (784, 100, 20), (13, 37, 7), (50, 17, 31), (3, 2, 5), (8, 8, 6)]
)
def test_fused_is_alone_to_the_bit(optimizer: str, inputs: int, width: int, batch: int) -> None:
    """Also widths and batches with which matrices would begin anywhere in memory; and in parts of several sizes."""
    recipe, rng = Mlp(inputs, width, optimizer), torch.Generator().manual_seed(1)
    mixed = optimizer not in OPTIMIZERS
    alone, together = lanes(recipe, batch, mixed=mixed), lanes(recipe, batch, mixed=mixed)
    for some in (slice(0, 5), slice(1, 4)):
        fused = Fused(tuple(together[some]))
        for _ in range(4):
            x, y = torch.randn(batch, inputs, generator=rng), torch.randint(0, 10, (batch,), generator=rng)
            fused.step((x, y), batch)
            for lane in alone[some]:
                lane.step((x, y), batch)
        fused.split()
    for mine, other in zip(alone, together, strict=True):
        assert all(map(torch.equal, mine.model.parameters(), other.model.parameters()))
        for one, same in zip(mine.optimizer.state.values(), other.optimizer.state.values(), strict=True):
            assert all(torch.equal(one[name], same[name]) for name in one)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU])
def test_a_training_that_blows_roundings_up_stays_the_same(activation: type[nn.Module]) -> None:
    """At such a rate one different bit would change the weights by a tenth within a hundred steps."""
    recipe, rng = Mlp(64, 64, "adagrad", activation), torch.Generator().manual_seed(2)
    alone, together = lanes(recipe, 20, 2), lanes(recipe, 20, 2)
    for lane in (*alone, *together):
        lane._rate([0.3])
    fused = Fused(tuple(together))
    for _ in range(150):
        x, y = torch.randn(20, 64, generator=rng), torch.randint(0, 10, (20,), generator=rng)
        fused.step((x, y), 20)
        for lane in alone:
            lane.step((x, y), 20)
    fused.split()
    for mine, other in zip(alone, together, strict=True):
        assert all(map(torch.equal, mine.model.parameters(), other.model.parameters()))


@pytest.mark.parametrize("samples", range(1, 17))
@pytest.mark.parametrize(("inputs", "outputs"), [(8, 3), (8, 8), (16, 3), (16, 10), (16, 16)])
def test_products_of_any_size_are_those_of_a_pair(samples: int, inputs: int, outputs: int) -> None:
    """Small ones, too, which torch multiplies in other ways as a batch than as a pair."""
    rng = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, inputs, generator=rng)
    weight, bias = torch.randn(3, outputs, inputs, generator=rng), torch.randn(3, outputs, generator=rng)
    top = torch.randn(3, samples, outputs, generator=rng)
    given = [x.expand(3, samples, inputs).clone(), weight.clone(), bias.clone()]
    for tensor in given:
        tensor.requires_grad_()
    found = torch.func.vmap(linear)(*given)
    found.backward(top)
    for i in range(3):
        own = [x.clone(), weight[i].clone(), bias[i].clone()]
        for tensor in own:
            tensor.requires_grad_()
        alone = nn.functional.linear(*own)
        alone.backward(top[i].clone())
        assert torch.equal(alone, found[i])
        for mine, all_of_them in zip(own, given, strict=True):
            assert mine.grad is not None and all_of_them.grad is not None
            assert torch.equal(mine.grad, all_of_them.grad[i])


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 4, 6), (2, 3, 4, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_linear(shape: tuple[int, ...], bias: bool) -> None:
    """Of any shape; differentiable twice; by lanes, or with one input for all."""
    torch.manual_seed(0)
    weights = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    biases = torch.randn(3, 5, dtype=torch.float64, requires_grad=True) if bias else None
    each = torch.randn(3, *shape, dtype=torch.float64, requires_grad=True)

    def outputs(how: Any, x: Tensor, shared: bool) -> Tensor:
        def one(w: Tensor, b: Tensor | None, x: Tensor) -> Tensor:
            return how(x, w, b) ** 3

        return torch.func.vmap(one, in_dims=(0, 0 if bias else None, None if shared else 0))(weights, biases, x)

    given = [weights, *([biases] if biases is not None else []), each]
    for shared in (False, True):
        found = [outputs(how, each[0] if shared else each, shared) for how in (linear, nn.functional.linear)]
        torch.testing.assert_close(*found)
        first = [torch.autograd.grad(out.sum(), given, create_graph=True) for out in found]
        torch.testing.assert_close(*first)
        second = [torch.autograd.grad(sum(g.square().sum() for g in grads), given) for grads in first]
        torch.testing.assert_close(*second)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_again(reentrant: bool) -> None:
    """Checkpointed layers are computed anew in the backward pass: fused rightly, or not at all."""

    class Saving(Mlp):
        def training_step(self, model: Any, batch: Any) -> Tensor:
            hidden = model[0](batch[0])
            return cross_entropy(model[4](checkpoint(model[1:4], hidden, use_reentrant=reentrant)), batch[1])

    recipe, rng = Saving(16, 8, "adam"), torch.Generator().manual_seed(3)
    alone, together = lanes(recipe, 20, 2), lanes(recipe, 20, 2)
    fused = Fused(tuple(together))
    for _ in range(3):
        x, y = torch.randn(20, 16, generator=rng), torch.randint(0, 10, (20,), generator=rng)
        for lane in alone:
            lane.step((x, y), 20)
        try:
            fused.step((x, y), 20)
        except Exception:  # noqa: BLE001 nothing was changed, as a pack expects
            for lane in together:
                lane.step((x, y), 20)
    fused.split()
    for mine, other in zip(alone, together, strict=True):
        assert all(map(torch.allclose, mine.model.parameters(), other.model.parameters()))
