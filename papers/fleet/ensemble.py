"""A hundred models like those of FLEET's evaluation: drawn, since the paper shows theirs in
pictures only.

What is printed: rates on one GPU from 21 to 176 images/s (section 6.1), 30 606 images
(Caltech256), and the running time on one GPU, mean 10 372.2 s and deviation 4178.9 s (Table 3,
baseline). How rates grow with GPUs is *calibrated* on the totals of Table 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Trial, TrialId
from shoal.profile.fleet import extrapolate
from shoal.profile.table import Row, Table

IMAGES = 30_606  # an epoch
MEAN, DEVIATION, LONGEST = 10_372.2, 4_178.9, 22_700.0  # seconds on one GPU
PER_NODE = 4
CHECKPOINT = 34.0  # seconds: all of Table 4's checkpointing overheads are multiples of it
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scaling:
    """Rate at width m: m `each`^(m - 1) that on one GPU, times `across` beyond one node; by eq.
    5 beyond two nodes.
    """

    each: float = 0.987
    across: float = 0.6

    def curve(self, alone: float, upto: int) -> tuple[float, ...]:
        """Images/s at widths 1..upto."""
        two_nodes = range(1, 2 * PER_NODE + 1)
        profiled = [
            alone * m * self.each ** (m - 1) * (self.across if m > PER_NODE else 1.0)
            for m in two_nodes
        ]
        return extrapolate(profiled, PER_NODE, upto)


CALIBRATED, GOOD, BAD = Scaling(), Scaling(0.99, 0.98), Scaling(0.97, 0.6)


@dataclass(frozen=True)
class Ensemble:
    """`alone`: images/s of each model on one GPU; `epochs`: until it converges."""

    alone: Floats
    epochs: Floats

    @property
    def seconds(self) -> Floats:
        """Running time of each on one GPU."""
        return self.epochs * IMAGES / self.alone

    def arrivals(self, longest_first: bool = False) -> list[tuple[float, Trial]]:
        """All of them at the beginning, in the order in which they were drawn."""
        order: Sequence[int] = (
            np.argsort(-self.seconds).tolist() if longest_first else range(len(self.alone))
        )
        return [
            (
                0.0,
                Trial(
                    TrialId(f"d{i:03d}"),
                    float(self.epochs[i]) * IMAGES,
                    {"model": i},
                    widths=(1, 999),
                ),
            )
            for i in order
        ]

    def table(self, scaling: Scaling, gpus: int) -> Table:
        """Rates up to all GPUs; each change costs a checkpoint."""
        rows = (
            Row(scaling.curve(float(r), gpus), {"model": i}, switch=CHECKPOINT)
            for i, r in enumerate(self.alone)
        )
        return Table(tuple(rows))


def draw(seed: int, count: int = 100) -> Ensemble:
    """Rates log-normal within the printed limits, epochs log-normal and independent of them;
    again until the times fit.

    No model takes longer than 22 700 s on one GPU: Table 4's total on 160 GPUs times Figure 5's
    speed-up leaves no more.
    """
    rng = np.random.default_rng(seed)
    while True:
        alone = np.clip(72 * np.exp(rng.normal(0, 0.36, count)), 21, 176)
        alone[rng.choice(count, 2, replace=False)] = 21, 176
        epochs = np.maximum(2, np.rint(_epochs(rng, alone)))
        found = Ensemble(alone, epochs)
        if (
            abs(found.seconds.mean() / MEAN - 1) < 0.04
            and abs(found.seconds.std() / DEVIATION - 1) < 0.12
        ):
            return found


def _epochs(rng: np.random.Generator, alone: Floats) -> Floats:
    """Epochs whose mean running time is the printed one, and none longer than the longest."""
    mean = MEAN * len(alone) / (IMAGES / alone).sum()
    epochs = mean * rng.lognormal(0, 0.22, len(alone))
    for _ in range(200):
        over = epochs * IMAGES / alone > LONGEST
        if not over.any():
            break
        epochs[over] = mean * rng.lognormal(-0.1, 0.22, over.sum())
    epochs = np.minimum(epochs, LONGEST * alone / IMAGES)
    fitted: Floats = epochs * MEAN / (epochs * IMAGES / alone).mean()
    return fitted


def fluid_bound(ensemble: Ensemble, table: Table, gpus: int) -> float:
    """A makespan that no schedule beats: GPUs divided at will, and rates on the concave hull of
    each model's curve.
    """
    hulls = [_hull((0.0, *row.rates[:gpus])) for row in table.rows]
    work = ensemble.epochs * IMAGES

    def needed(time: float) -> float:
        return sum(
            np.interp(w / time, h[:, 1], h[:, 0]) if w / time <= h[-1, 1] else np.inf
            for w, h in zip(work, hulls, strict=True)
        )

    low, high = 1.0, 1e7
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if needed(middle) <= gpus else (middle, high)
    return high


def _hull(rates: Sequence[float]) -> Floats:
    corners: list[tuple[int, float]] = []
    for point in enumerate(rates[: int(np.argmax(rates)) + 1]):
        while len(corners) > 1 and _turns_up(corners[-2], corners[-1], point):
            corners.pop()
        corners.append(point)
    return np.array(corners)


def _turns_up(a: tuple[int, float], b: tuple[int, float], c: tuple[int, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])
