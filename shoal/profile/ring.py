"""How fast a data-parallel lane goes at each width, fitted to measured speeds.

Source: Capes et al., "Dynamic Scheduling of MPI-based Distributed Deep Learning Training Jobs",
2019, section 3.2, eq. 5. It is fitted as seconds per sample with the *global* batch held fixed, so
that the computing part falls as 1/w (the paper writes m in eq. 2-4 and m/w in eq. 5). Batch and
model size are constants of one model and are left inside the coefficients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from shoal.profile.all_reduce import is_power_of_two

# Seconds per sample, the factors of 1/w, w - 1, (w - 1)/w and 1.
Theta = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Speed:
    """Eq. 5 with its own coefficients for powers of two and for other widths.

    The two run different algorithms (section 3.2): one curve through both would hide that 9 slots
    are slower than 8. `others`: None if no such width was measured; then they are taken to be on
    the curve of the powers of two.
    """

    powers: Theta
    others: Theta | None = None

    def rate(self, width: int) -> float:
        """Samples/s at this width."""
        parts = zip(self._theta(width), _terms(width), strict=True)
        return 1.0 / sum(factor * term for factor, term in parts)

    def _theta(self, width: int) -> Theta:
        """The coefficients for this width."""
        if self.others is None or is_power_of_two(width):
            return self.powers
        return self.others

    def curve(self, upto: int) -> tuple[float, ...]:
        """Samples/s at widths 1..upto."""
        return tuple(self.rate(width) for width in range(1, upto + 1))


def fit_speed(rates: Mapping[int, float]) -> Speed:
    """The curve through {width: samples/s}, with no coefficient negative (NNLS).

    Least squares of the relative error in seconds per sample. Widths that are no powers of two are
    fitted together with width 1, where both curves meet.

    Raises:
        ValueError: no width is a power of two, or a rate is not positive and finite.
    """
    for width, rate in rates.items():
        if width < 1 or not (isfinite(rate) and rate > 0):
            raise ValueError(f"speeds are {{width >= 1: samples/s > 0}}; got {width}: {rate!r}")
    powers = {width: rate for width, rate in rates.items() if is_power_of_two(width)}
    others = {width: rate for width, rate in rates.items() if not is_power_of_two(width)}
    if not powers:
        raise ValueError(
            f"a speed fit needs a power of two among the widths, 1 at best; got {sorted(rates)}"
        )
    base = Speed(_fit(powers))
    if not others:
        return base
    return Speed(base.powers, _fit({1: base.rate(1), **others}))


def _fit(rates: Mapping[int, float]) -> Theta:
    from scipy.optimize import nnls  # slow to import, and needed here only

    relative = [[term * rate for term in _terms(width)] for width, rate in rates.items()]
    theta, _ = nnls(relative, [1.0] * len(rates))
    a, b, c, d = map(float, theta)
    return a, b, c, d


def _terms(width: int) -> Theta:
    return 1.0 / width, width - 1.0, (width - 1.0) / width, 1.0
