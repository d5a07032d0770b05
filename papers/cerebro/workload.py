"""The simulations' workload (section 5.4): Table 7's networks, four kinds of GPU, and random
placement of replicas.
"""

from dataclasses import dataclass

import numpy as np

FLOPS = {  # Table 7, MFLOP
    "AlexNet": 727, "CaffeNet": 724, "SqueezeNet1-0": 837, "SqueezeNet1-1": 360, "VGG-f": 727, "VGG-m": 2000, "VGG-s": 3000,
    "VGG-m-2048": 2000, "VGG-m-1024": 2000, "VGG-m-128": 2000, "VGG-vd-16-atrous": 16000, "VGG-vd-16": 16000,
    "VGG-vd-19": 20000, "GoogleNet": 2000, "ResNet18": 2000, "ResNet34": 4000, "ResNet50": 4000, "ResNet101": 8000,
    "ResNet152": 11000, "ResNext-50-32x4d": 4000, "ResNext-101-32x4d": 8000, "ResNext-101-64x4d": 16000,
    "Inception-V3": 6000, "SE-ResNet-50": 4000, "SE-ResNet-101": 8000, "SE-ResNet-152": 11000, "SE-ResNeXt-50-32x4d": 4000,
    "SE-ResNeXt-101-32x4d": 8000, "SENet": 21000, "SE-BN-Inception": 2000, "DenseNet121": 3000, "DenseNet161": 8000,
    "DenseNet169": 3000, "DenseNet201": 4000, "MobileNet": 579,
}  # fmt: skip
SPEEDS = {"Titan Xp": 12.1, "K80": 5.6, "GTX 1080": 11.3, "P100": 18.7}  # TFLOP/s


@dataclass(frozen=True)
class Cell:
    """`flops[i]` of each trial, `speeds[w]` of each slot; a pass takes flops/speed seconds.
    `holders[q]`: slots with shard q.
    """

    flops: tuple[float, ...]
    speeds: tuple[float, ...]
    holders: tuple[tuple[int, ...], ...]

    @property
    def times(self) -> list[list[float]]:
        """Seconds of each trial at each slot."""
        return (np.array(self.flops)[:, None] / np.array(self.speeds)).tolist()

    @property
    def seconds(self) -> np.ndarray:
        """(trials, shards, slots), infinite where the slot does not hold the shard."""
        found = np.full((len(self.flops), len(self.holders), len(self.speeds)), np.inf)
        for q, at in enumerate(self.holders):
            found[:, q, list(at)] = np.array(self.times)[:, list(at)]
        return found


def cell(trials: int, slots: int, seed: int = 0, alike: bool = False, copies: int = 1) -> Cell:
    """Drawn with replacement, as in the paper; `alike`: the homogeneous setting. `copies` of
    each shard lie at random slots.
    """
    rng = np.random.default_rng([seed, trials, slots])
    flops = rng.choice(list(FLOPS.values()), trials) if not alike else np.full(trials, 4000)
    speeds = rng.choice(list(SPEEDS.values()), slots) if not alike else np.full(slots, 11.3)
    holders = []
    for q in range(slots):
        others = rng.permutation([w for w in range(slots) if w != q])[: copies - 1]
        holders.append((q, *map(int, others)))
    return Cell(tuple(map(float, flops)), tuple(map(float, speeds)), tuple(holders))
