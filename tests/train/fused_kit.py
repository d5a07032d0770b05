"""Models that packs are made of, and two ways to train them: each alone, and as one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from device_kit import HERE
from torch import Tensor, nn

from shoal.train.fuse.fused import Fused
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.recipe import LRSchedule, Recipe

F64 = torch.float64


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3),
        nn.BatchNorm2d(8, momentum=0.3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 16)
        self.place = nn.Parameter(torch.randn(8, 16) * 0.02)
        self.inner = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2
        )
        self.leave = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.inner(self.enter(x.squeeze(1)) + self.place).mean(1))
        return out


class Recurrent(nn.Module):
    def __init__(self, kind: Any = nn.GRU) -> None:
        super().__init__()
        self.inner = kind(8, 12, batch_first=True)
        self.leave = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.inner(x.squeeze(1))[0][:, -1])
        return out


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": Transformer,
    "rnn": Recurrent,
    "lstm": lambda: Recurrent(nn.LSTM),
    "plain": lambda: Recurrent(nn.RNN),
}
OPTIMIZERS: dict[str, Callable[[Any, Mapping[str, Any]], torch.optim.Optimizer]] = {
    "sgd": lambda p, c: torch.optim.SGD(p, lr=c["lr"]),
    "momentum": lambda p, c: torch.optim.SGD(
        p, lr=c["lr"], momentum=c.get("momentum", 0.9), weight_decay=1e-3
    ),
    "adam": lambda p, c: torch.optim.Adam(p, lr=c["lr"] / 10, betas=(c.get("beta", 0.9), 0.99)),
    "adamw": lambda p, c: torch.optim.AdamW(p, lr=c["lr"] / 10, weight_decay=c.get("decay", 0.01)),
    "adadelta": lambda p, c: torch.optim.Adadelta(p, lr=c["lr"]),
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda o: None,
    "steps": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    "samples": lambda o: LRSchedule(lambda samples: 0.99 ** (samples / 10), unit="samples"),
    "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=100),
}


class Images(Recipe):
    """8 x 8 images of four kinds; `config`: model, optimizer, schedule, lr, and what the
    recipe's attributes are.
    """

    batch_size = 16

    def __init__(self, dtype: torch.dtype = torch.float32, **settings: Any) -> None:
        self.dtype = dtype
        for name, value in settings.items():
            setattr(self, name, value)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return MODELS[config.get("model", "mlp")]().to(self.dtype)

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        optimizer = OPTIMIZERS[config.get("optimizer", "adam")](model.parameters(), config)
        return optimizer, SCHEDULES[config.get("schedule", "none")](optimizer)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        out = model(x)
        return {
            "loss": nn.functional.cross_entropy(out, y),
            "accuracy": (out.argmax(1) == y).float().mean(),
            "one": 1.0,
        }

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        x, y = batch
        out = model(x)
        return {
            "accuracy": (out.argmax(1) == y).float(),
            "loss": nn.functional.cross_entropy(out, y, reduction="none"),
        }


def images(
    samples: int = 72, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, samples)
    x = 0.5 * rng.normal(size=(samples, 1, 8, 8))
    x[np.arange(samples), 0, 2 * y, 2 * y] += 2
    return torch.from_numpy(x).to(dtype), torch.from_numpy(y)


def configs(k: int, **same: Any) -> list[dict[str, Any]]:
    return [
        {
            "lr": 0.02 * (i + 1),
            "beta": 0.8 + 0.02 * i,
            "momentum": 0.5 + 0.05 * i,
            "decay": 0.01 * i,
            **same,
        }
        for i in range(k)
    ]


def lanes(recipe: Recipe, configured: Sequence[Mapping[str, Any]]) -> list[TrainingLane]:
    return [
        TrainingLane(recipe, config, seed=3 + i, device=HERE, epoch=72.0)
        for i, config in enumerate(configured)
    ]


def alone(lane: TrainingLane, data: Any, passes: int = 1) -> None:
    for _ in range(passes):
        lane.begin(len(data[0]))
        with lane.rng:
            list(lane.feed(data))
            list(lane.flush())
            lane.end_epoch(None)


def together(fused: Fused, data: Any, passes: int = 1) -> None:
    size, n = fused.lanes[0].settings.batch_size, len(data[0])
    for _ in range(passes):
        for lane in fused.lanes:
            lane.begin(n)
        for at in range(0, n - n % size, size):
            fused.step((data[0][at : at + size], data[1][at : at + size]), size)
        if n % size:
            fused.last((data[0][n - n % size :], data[1][n - n % size :]), n % size)
        fused.close()
        for lane in fused.lanes:
            lane.end_epoch(None)


def weights(lane: TrainingLane) -> Tensor:
    return torch.cat(
        [p.detach().reshape(-1).double() for p in [*lane.model.parameters(), *lane.model.buffers()]]
    )


def pair(
    k: int = 3, dtype: torch.dtype = F64, recipe: Recipe | None = None, **same: Any
) -> tuple[list[TrainingLane], list[TrainingLane]]:
    """The same lanes twice."""
    recipe = recipe or Images(dtype)
    return lanes(recipe, configs(k, **same)), lanes(recipe, configs(k, **same))


def gap(one: TrainingLane, other: TrainingLane) -> float:
    return float((weights(one) - weights(other)).abs().max())


def as_alone(
    own: Sequence[TrainingLane],
    fused: Sequence[TrainingLane],
    data: Any,
    passes: int = 1,
    within: float = 1e-12,
) -> None:
    """Train each of the first lanes alone: the others have learnt the same."""
    for one, other in zip(own, fused, strict=True):
        alone(one, data, passes)
        assert gap(one, other) < within
