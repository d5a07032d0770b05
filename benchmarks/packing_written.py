"""The four nets of Pack's evaluation as their papers write them, for images of 3x224x224.

Liu et al., 2020, section 4.1, names MLP-3, MobileNetV2, ResNet-50 and DenseNet-121. Of ResNet-50
there are two forms; this is the usual one, of He et al., 2015. How wide MLP-3 is, the paper does
not say: its three hidden layers have 64 units here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

IMAGE = (3, 224, 224)
CLASSES = 1000
# Blocks of MobileNetV2: how much they expand, channels, how many, stride of the first.
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv(before: int, after: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution that keeps the image's size but for the stride."""
    return nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)


def head(features: int, dropped: float = 0.0) -> list[nn.Module]:
    """From maps to classes."""
    ends: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    ends += [nn.Dropout(dropped)] if dropped else []
    return [*ends, nn.Linear(features, CLASSES)]


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, and what went into it."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *(conv(before, width, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(conv(width, after, 1), nn.BatchNorm2d(after)),
        )
        self.past: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.past = nn.Sequential(conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.past(x))


def resnet50() -> nn.Module:
    """He et al., 2015: stages of 3, 4, 6 and 3 blocks."""
    layers: list[nn.Module] = [
        *(conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    before = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    return nn.Sequential(*layers, *head(before))


class Inverted(nn.Module):
    """MobileNetV2's block: wider, depthwise, narrow again."""

    def __init__(self, before: int, after: int, expand: int, stride: int) -> None:
        super().__init__()
        wide = before * expand
        layers: list[nn.Module] = []
        if expand > 1:
            layers += [conv(before, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)]
        self.body = nn.Sequential(
            *layers,
            *(conv(wide, wide, 3, stride, wide), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True)),
            *(conv(wide, after, 1), nn.BatchNorm2d(after)),
        )
        self.adds = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def mobilenet_v2() -> nn.Module:
    """Sandler et al., 2018, of width 1."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU6(inplace=True)]
    before = 32
    for expand, after, blocks, stride in INVERTED:
        for block in range(blocks):
            layers.append(Inverted(before, after, expand, 1 if block else stride))
            before = after
    layers += [conv(before, 1280, 1), nn.BatchNorm2d(1280), nn.ReLU6(inplace=True)]
    return nn.Sequential(*layers, *head(1280, dropped=0.2))


class Dense(nn.Module):
    """DenseNet's layer: its new maps follow those that went into it."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        wide = 4 * growth
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(before), nn.ReLU(inplace=True), conv(before, wide, 1)),
            *(nn.BatchNorm2d(wide), nn.ReLU(inplace=True), conv(wide, growth, 3)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)


def densenet121(growth: int = 32) -> nn.Module:
    """Huang et al., 2017: blocks of 6, 12, 24 and 16 layers."""
    layers: list[nn.Module] = [
        *(conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(inplace=True)),
        nn.MaxPool2d(3, 2, 1),
    ]
    maps = 64
    for block, depth in enumerate((6, 12, 24, 16)):
        if block:  # half as many maps, of half the size
            layers += [nn.BatchNorm2d(maps), nn.ReLU(inplace=True), conv(maps, maps // 2, 1)]
            layers.append(nn.AvgPool2d(2))
            maps //= 2
        layers += [Dense(maps + i * growth, growth) for i in range(depth)]
        maps += depth * growth
    return nn.Sequential(*layers, nn.BatchNorm2d(maps), nn.ReLU(inplace=True), *head(maps))


def mlp3_written(width: int = 64) -> nn.Module:
    """Three hidden layers on the image's 150 528 numbers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before in (IMAGE[0] * IMAGE[1] * IMAGE[2], width, width):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


WRITTEN = {
    "MLP-3": mlp3_written,
    "MobileNetV2": mobilenet_v2,
    "ResNet-50": resnet50,
    "DenseNet-121": densenet121,
}
