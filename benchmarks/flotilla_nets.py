"""Eight small ResNets and DenseNets of random block sizes, and the images they train on.

As FLEET's ensemble (Guan et al. 2020, appendix B.1: three ResNets and three DenseNets, varied),
small enough for a CPU. The images are made here: gratings of eight directions in noise, in a file
that is mapped. In each pass each one is rotated a little, cropped at random, resized, turned over
at random and normalized (Pillow, NumPy): what FLEET's preprocessors do. Groups are normalized, not
batches, so that a model learns the same on any number of slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import shoal

SIDE, CROPPED, CLASSES = 96, 32, 8  # pixels of an image and of what is trained on
SHARD, SHARDS = 1536, 8  # images: 340 MB in all
BATCH = 32


def block_sizes(models: int, seed: int) -> list[dict[str, Any]]:
    """Configurations: every second model a ResNet, the others DenseNets."""
    rng = np.random.default_rng(seed)
    found: list[dict[str, Any]] = []
    for number in range(models):
        dense = number % 2 == 1
        most = 6 if dense else 5
        blocks = [int(n) for n in rng.integers(1, most + 1, size=3)]
        net = "densenet" if dense else "resnet"
        found.append({"net": net, "blocks": blocks, "model": number, "lr": 0.05})
    return found


def normed(before: int, after: int, stride: int = 1) -> nn.Sequential:
    """A convolution of 3 x 3, its groups normalized."""
    conv = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.GroupNorm(4, after), nn.ReLU())


class Residual(nn.Module):
    """Two convolutions around which the input is led (He et al. 2016)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(normed(before, after, stride), normed(after, after))
        self.around = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) + self.around(x)
        return out


class Dense(nn.Module):
    """A layer that adds channels to those it gets (Huang et al. 2017)."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.body = normed(before, growth)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def resnet(blocks: list[int]) -> nn.Module:
    layers: list[nn.Module] = [normed(3, 16, 2)]
    width = 16
    for stage, count in enumerate(blocks):
        for number in range(count):
            stride = 2 if stage and number == 0 else 1
            layers.append(Residual(width, 16 * 2**stage, stride))
            width = 16 * 2**stage
    return nn.Sequential(*layers, *head(width))


def densenet(blocks: list[int], growth: int = 12) -> nn.Module:
    layers: list[nn.Module] = [normed(3, 16, 2)]
    width = 16
    for stage, count in enumerate(blocks):
        if stage:
            layers += [nn.Conv2d(width, width // 2, 1), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(count):
            layers.append(Dense(width, growth))
            width += growth
    return nn.Sequential(*layers, *head(width))


def head(width: int) -> tuple[nn.Module, ...]:
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)


def make_images(folder: Path, shards: int) -> None:
    """Write the images and their classes."""
    count = shards * SHARD
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, size=count)
    images = np.lib.format.open_memmap(
        folder / "images.npy", "w+", np.uint8, (count, SIDE, SIDE, 3)
    )
    y, x = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    for first in range(0, count, SHARD):
        chosen = labels[first : first + SHARD, None, None]
        angle = np.pi * chosen / CLASSES
        wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) / 4.0)
        noise = rng.integers(0, 128, size=(SHARD, SIDE, SIDE, 3), dtype=np.uint8)
        images[first : first + SHARD] = noise + (63.0 * (1 + wave))[..., None].astype("uint8")
    images.flush()
    np.save(folder / "labels.npy", labels)


def varied(image: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An image rotated, cropped, resized, perhaps turned over, normalized."""
    side = SIDE * rng.uniform(0.5, 1.0)
    left, top = rng.uniform(0, SIDE - side, 2)
    box = (left, top, left + side, top + side)
    size = (CROPPED, CROPPED)
    turned_a_little = Image.fromarray(image).rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC)
    small = turned_a_little.resize(size, Image.Resampling.BICUBIC, box)
    made = np.asarray(small, "float32")
    turned = made[::-1] if rng.random() < 0.5 else made
    return turned.transpose(2, 0, 1) / 128 - 1


class Nets(shoal.Recipe):
    """Trains any of the models on the images in this folder."""

    batch_size = BATCH
    shuffle = "each"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def data(self) -> shoal.Data:
        images = np.load(self.folder / "images.npy", mmap_mode="r")
        labels = np.load(self.folder / "labels.npy")
        data = shoal.Data.arrays(images, labels, validation=None, shards=len(labels) // SHARD)
        data.chunk = 2 * BATCH
        return data

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        images, labels = samples
        return np.stack([varied(image, rng) for image in images]), labels

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        make = densenet if config["net"] == "densenet" else resnet
        return make([int(n) for n in config["blocks"]])

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])


def seconds_alone(folder: Path, models: int, seed: int) -> dict[str, Any]:
    """Milliseconds of one core to prepare an image, and for each model to train on one."""
    torch.set_num_threads(1)
    images = np.load(folder / "images.npy", mmap_mode="r")[: 4 * BATCH]
    rng = np.random.default_rng(0)
    prepares = []
    for _ in range(5):
        begin = perf_counter()
        made = np.stack([varied(image, rng) for image in images])
        prepares.append(1000 * (perf_counter() - begin) / len(images))
    recipe = Nets(folder)
    batch = (torch.from_numpy(made[:BATCH]), torch.zeros(BATCH, dtype=torch.long))
    trained = []
    for config in block_sizes(models, seed):
        model = recipe.configure_model(config)
        optimizer = recipe.configure_optimizers(model, config)
        times = []
        for _ in range(5):
            begin = perf_counter()
            optimizer.zero_grad()
            recipe.training_step(model, batch).backward()
            optimizer.step()
            times.append(perf_counter() - begin)
        trained.append(1000 * min(times) / BATCH)
    return {"prepare_ms": min(prepares), "train_ms": trained}
