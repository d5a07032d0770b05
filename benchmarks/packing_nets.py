"""The models of the packing benchmark, and the recipe that trains any of them on made-up images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from packing_written import IMAGE, WRITTEN
from torch import Tensor, nn

import shoal


@dataclass(frozen=True)
class Net:
    """`shape`: of one sample. `make`: the model."""

    shape: tuple[int, ...]
    make: Any


def mlp3(inputs: int, width: int) -> nn.Module:
    """Three hidden layers, as the paper's MLP-3."""
    layers: list[nn.Module] = []
    for before in (inputs, width, width):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def cnn(channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )


def normed(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution and batch norm."""
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(after)]


def mobilenet(channels: int) -> nn.Module:
    """Depthwise-separable blocks with batch norm, after MobileNet."""
    layers: list[nn.Module] = [*normed(channels, 16, 3), nn.ReLU()]
    for before, after, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [
            *normed(before, before, 3, stride, before),
            nn.ReLU(),
            *normed(before, after, 1),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Residual(nn.Module):
    """Two convolutions, and what went into them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *normed(before, after, 3, stride), nn.ReLU(), *normed(after, after, 3)
        )
        same = stride == 1 and before == after
        self.past = nn.Identity() if same else nn.Sequential(*normed(before, after, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


def resnet(channels: int, widths: tuple[int, ...], blocks: int) -> nn.Module:
    """After ResNet for small images; (64, 128, 256, 512) with 2 blocks each is ResNet-18."""
    layers: list[nn.Module] = [*normed(channels, widths[0], 3), nn.ReLU()]
    before = widths[0]
    for i, width in enumerate(widths):
        for block in range(blocks):
            layers.append(Residual(before, width, 2 if i and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


NETS: Mapping[str, Net] = {
    **{
        f"MLP-3 x{width}": Net((64,), lambda width=width: mlp3(64, width))
        for width in (16, 64, 128)
    },
    "CNN": Net((1, 8, 8), lambda: cnn(1)),
    "MobileNet-like": Net((1, 8, 8), lambda: mobilenet(1)),
    "ResNet-like": Net((1, 8, 8), lambda: resnet(1, (16, 32), 1)),
    "MLP-3 x1024": Net((64,), lambda: mlp3(64, 1024)),
    "CNN, 3x32x32": Net((3, 32, 32), lambda: cnn(3)),
    "ResNet-18": Net((3, 32, 32), lambda: resnet(3, (64, 128, 256, 512), 2)),
    **{f"{name}, as written": Net(IMAGE, make) for name, make in WRITTEN.items()},
}
ON_CPU = ("MLP-3 x16", "MLP-3 x64", "MLP-3 x128", "CNN", "MobileNet-like", "ResNet-like")
ON_GPU = ("MLP-3 x64", "MLP-3 x1024", "CNN, 3x32x32", "ResNet-18")


class Images(shoal.Recipe):
    """Any of the nets, on `samples` made-up images a shard."""

    def __init__(self, shape: tuple[int, ...], samples: int, shards: int = 1) -> None:
        self.shape, self.samples, self.shards = shape, samples, shards

    def data(self) -> shoal.Data:
        rng = np.random.default_rng(0)
        rows = self.samples * self.shards
        images = rng.integers(0, 256, (rows, *self.shape), dtype="uint8").astype("float32") / 255
        return shoal.Data.arrays(
            images, rng.integers(0, 10, rows), shards=self.shards, validation=None
        )

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        net = NETS[config["net"]]
        made: nn.Module = net.make()
        return made if net.shape == self.shape else nn.Sequential(nn.Flatten(), made)

    def configure_optimizers(
        self, model: nn.Module, config: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        kind = torch.optim.SGD if config.get("optimizer") == "SGD" else torch.optim.Adam
        return kind(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


class RawImages(Images):
    """The same, preprocessed anew in each pass: images are shifted, mirrored or not, and
    brought to mean 0 and deviation 1.
    """

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        images, labels = samples
        count = len(images)
        varied = np.empty_like(images)
        moves, mirrored = rng.integers(-1, 2, (count, 2)), rng.random(count) < 0.5
        for i in range(count):
            image = (
                np.roll(images[i], tuple(moves[i]), (-2, -1))
                if images.ndim > 2
                else np.roll(images[i], moves[i][0])
            )
            varied[i] = image[..., ::-1] if mirrored[i] else image
        inner = tuple(range(1, images.ndim))
        return (varied - varied.mean(inner, keepdims=True)) / (
            varied.std(inner, keepdims=True) + 1e-6
        ), labels


def configs(net: str, models: int, batch: int) -> list[dict[str, Any]]:
    """Models of one kind that differ in seed and learning rate."""
    return [
        {"net": net, "batch_size": batch, "seed": i, "lr": 1e-3 * (1 + i / 64)}
        for i in range(models)
    ]
