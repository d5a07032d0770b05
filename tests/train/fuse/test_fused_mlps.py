"""Each fused step of MLPs of any shape and optimizer is, to 1e-5, that of training alone."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adagrad, Adam, AdamW
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.train.fuse.fused import Fused
from shoal.train.lane.lane import TrainingLane

OPTIMIZERS: dict[str, Callable[[Any, float], Any]] = {
    "sgd": lambda p, lr: SGD(p, lr=10 * lr),
    "momentum": lambda p, lr: SGD(p, lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p, lr: Adam(p, lr=lr),
    "adamw": lambda p, lr: AdamW(p, lr=lr, weight_decay=0.1),
    "adagrad": lambda p, lr: Adagrad(p, lr=10 * lr, lr_decay=0.1),
}


class Mlp(shoal.Recipe):
    def __init__(
        self, inputs: int, width: int, optimizer: str, activation: type[nn.Module] = nn.ReLU
    ) -> None:
        self.inputs, self.width, self.optimizer, self.activation = (
            inputs,
            width,
            optimizer,
            activation,
        )

    def data(self) -> shoal.Data:
        return shoal.Data.arrays(
            torch.zeros(8, self.inputs).numpy(), torch.zeros(8, dtype=torch.int64).numpy()
        )

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        inner = nn.Linear(self.width, self.width, bias=False)
        return nn.Sequential(
            nn.Linear(self.inputs, self.width),
            self.activation(),
            inner,
            self.activation(),
            nn.Linear(self.width, 10),
        )

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return OPTIMIZERS[config.get("optimizer", self.optimizer)](model.parameters(), config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])


def lanes(recipe: Mlp, batch: int, count: int = 5, mixed: bool = False) -> list[TrainingLane]:
    made = []
    for i in range(count):
        config = {
            "lr": 1e-3 * (i + 1),
            "batch_size": batch,
            **({"optimizer": list(OPTIMIZERS)[i]} if mixed else {}),
        }
        made.append(TrainingLane(recipe, config, seed=i, device=torch.device("cpu"), epoch=1000.0))
        made[-1].begin(10**6)
    return made


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "all of them"])
@pytest.mark.parametrize(
    ("inputs", "width", "batch"),
    [(64, 64, 32), (784, 100, 20), (13, 37, 7), (50, 17, 31), (3, 2, 5), (8, 8, 6)],
)
def test_each_fused_step_is_that_of_training_alone(
    optimizer: str, inputs: int, width: int, batch: int
) -> None:
    """In float32, from the same states; all lanes at once, and some of them."""
    recipe, rng = Mlp(inputs, width, optimizer), torch.Generator().manual_seed(1)
    mixed = optimizer not in OPTIMIZERS
    alone, packed = lanes(recipe, batch, mixed=mixed), lanes(recipe, batch, mixed=mixed)
    for some in (slice(0, 5), slice(1, 4)):
        fused = Fused(tuple(packed[some]))
        for _ in range(4):
            x = torch.randn(batch, inputs, generator=rng)
            y = torch.randint(0, 10, (batch,), generator=rng)
            fused.step((x, y), batch)
            fused.loosen()
            for own, other in zip(alone[some], packed[some], strict=True):
                before = parameters(own)
                own.step((x, y), batch)
                step = parameters(own) - before
                gap = parameters(own) - parameters(other)
                # Adam divides by the gradient: where that is rounding, its steps are, too
                assert float(gap.norm()) <= 1e-5 * float(step.norm() + before.norm())
                other.load(own.state())
        fused.split()


def parameters(lane: TrainingLane) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in lane.model.parameters()])


@pytest.mark.parametrize("reentrant", [True, False])
def test_activations_that_are_computed_again(reentrant: bool) -> None:
    """Checkpointed layers are computed anew in the backward pass: fused rightly, or not at all."""

    class Saving(Mlp):
        def training_step(self, model: Any, batch: Any) -> Tensor:
            hidden = model[0](batch[0])
            return cross_entropy(
                model[4](checkpoint(model[1:4], hidden, use_reentrant=reentrant)), batch[1]
            )

    recipe, rng = Saving(16, 8, "adam"), torch.Generator().manual_seed(3)
    alone, together = lanes(recipe, 20, 2), lanes(recipe, 20, 2)
    fused = Fused(tuple(together))
    for _ in range(3):
        x, y = (torch.randn(20, 16, generator=rng), torch.randint(0, 10, (20,), generator=rng))
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
