"""How fast a data-parallel lane goes, from the cost of its all-reduce.

Capes et al., "Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs", 2019, section 3.2,
eq. 2-5. Eq. 5 is fitted as seconds per sample with the *global* batch held fixed, so that the computing part
falls as 1/w (the paper writes m in eq. 2-4 and m/w in eq. 5). Batch and model size are constants of one
model and are left inside the coefficients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite, log2

from shoal.core.trial import Seconds


@dataclass(frozen=True, slots=True)
class Link:
    """What a message costs: `latency` seconds each, `transfer` seconds a byte sent, `add` seconds a byte summed."""

    latency: Seconds
    transfer: Seconds
    add: Seconds = 0.0


def is_power_of_two(width: int) -> bool:
    """1, 2, 4, 8 …"""
    return width > 0 and width & (width - 1) == 0


def ring(width: int, size: float, link: Link) -> Seconds:
    """All-reduce of `size` bytes by the ring algorithm (eq. 2): steps, and so latency, grow as the width."""
    part = (width - 1) * size / width
    return 4 * (width - 1) * link.latency + 4 * part * link.transfer + 2 * part * link.add


def doubling_halving(width: int, size: float, link: Link) -> Seconds:
    """All-reduce by doubling and halving (eq. 3); for powers of two.

    Raises:
        ValueError: the width is not a power of two.
    """
    if not is_power_of_two(width):
        raise ValueError(f"doubling and halving needs a power of two; got width {width}: use binary_blocks")
    return 0.0 if width == 1 else 4 * log2(width) * link.latency + 4 * size * link.transfer + 2.5 * size * link.add


def binary_blocks(width: int, size: float, link: Link) -> Seconds:
    """All-reduce by binary blocks (eq. 4): the same as `doubling_halving` for powers of two, dearer for others."""
    if is_power_of_two(width):
        return doubling_halving(width, size, link)
    return (5 + 4 * ceil(log2(width))) * link.latency + 7 * size * link.transfer + 3 * size * link.add


Theta = tuple[float, float, float, float]  # seconds per sample: of 1/w, w - 1, (w - 1)/w and 1


@dataclass(frozen=True, slots=True)
class Speed:
    """Eq. 5 with its own coefficients for powers of two and for other widths.

    The two run different algorithms (section 3.2), so that one curve through both would hide that 9 is slower
    than 8. `others` None: none was measured, and they are taken to be on the curve of the powers of two.
    """

    powers: Theta
    others: Theta | None = None

    def rate(self, width: int) -> float:
        """Samples/s."""
        theta = self.powers if self.others is None or is_power_of_two(width) else self.others
        return 1.0 / sum(t * x for t, x in zip(theta, _terms(width), strict=True))

    def curve(self, upto: int) -> tuple[float, ...]:
        """Samples/s at widths 1..upto."""
        return tuple(self.rate(width) for width in range(1, upto + 1))


def fit_speed(rates: Mapping[int, float]) -> Speed:
    """Least squares of the relative error in seconds per sample, no coefficient negative (NNLS), over {width: samples/s}.

    Widths that are no powers of two are fitted together with width 1, where both curves meet.

    Raises:
        ValueError: no power of two among the widths, or a rate that is not positive and finite.
    """
    for width, rate in rates.items():
        if width < 1 or not (isfinite(rate) and rate > 0):
            raise ValueError(f"speeds are {{width >= 1: samples/s > 0}}; got {width}: {rate!r}")
    powers = {w: r for w, r in rates.items() if is_power_of_two(w)}
    others = {w: r for w, r in rates.items() if not is_power_of_two(w)}
    if not powers:
        raise ValueError(f"a speed fit needs a power of two among the widths, 1 at best; got {sorted(rates)}")
    base = _fit(powers)
    if not others:
        return Speed(base)
    return Speed(base, _fit({1: Speed(base).rate(1), **others}))


def _fit(rates: Mapping[int, float]) -> Theta:
    from scipy.optimize import nnls  # slow to import, and needed here only

    theta, _ = nnls([[x * rate for x in _terms(width)] for width, rate in rates.items()], [1.0] * len(rates))
    a, b, c, d = map(float, theta)
    return a, b, c, d


def _terms(width: int) -> Theta:
    return 1.0 / width, width - 1.0, (width - 1.0) / width, 1.0
