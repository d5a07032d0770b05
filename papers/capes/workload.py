"""The trials of Capes et al., section 7, and how fast they go, from its Table 2."""

import numpy as np

from shoal.core.trial import Trial, TrialId
from shoal.profile.table import Row, Table

EPOCH = 50_000  # training images of CIFAR-10
SLOTS = 64
RESTART = 10.0  # seconds
MINUTES = {1: 368 / 160, 2: 232 / 170, 4: 126 / 160, 8: 84 / 170}  # per epoch
EPOCHS = (160, 170, 160, 170, 171, 162)  # of the six completed runs
LOADS = {
    "Extreme": (250, 206),
    "Moderate": (500, 114),
    "None": (1000, 44),
}  # seconds between arrivals, trials


def minutes(width: int, penalty: float = 0.0) -> float:
    """Minutes per epoch; between powers of two linear in 1/width, and longer by the penalty."""
    if width in MINUTES:
        return MINUTES[width]
    low, high = (max(w for w in MINUTES if w < width), min(w for w in MINUTES if w > width))
    part = (1 / width - 1 / high) / (1 / low - 1 / high)
    return (MINUTES[high] + part * (MINUTES[low] - MINUTES[high])) * (1 + penalty)


def speeds(penalty: float = 0.0, restart: float = RESTART) -> Table:
    """Images/s at widths 1..8."""
    return Table(
        (Row(rates=tuple(EPOCH / 60 / minutes(w, penalty) for w in range(1, 9)), switch=restart),)
    )


def arrivals(load: str, seed: int, spread: float = 0.0) -> list[tuple[float, Trial]]:
    """The paper's number of trials, at exponential intervals.

    Epochs are those of a completed run drawn by lot; with a `spread` above 0 log-normal with
    that coefficient of variation and their mean.
    """
    gap, count = LOADS[load]
    rng = np.random.default_rng(seed * 101 + gap)
    times = np.cumsum(rng.exponential(gap, count))
    epochs = rng.choice(EPOCHS, count).astype(float)
    if spread:
        sigma = np.sqrt(np.log(1 + spread**2))
        epochs = np.mean(EPOCHS) * rng.lognormal(-(sigma**2) / 2, sigma, count)
    trials = (
        Trial(TrialId(f"t{i:03d}"), float(e) * EPOCH, widths=(1, 8)) for i, e in enumerate(epochs)
    )
    return list(zip(map(float, times), trials, strict=True))
