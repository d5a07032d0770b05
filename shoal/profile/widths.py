"""The rate of a lane at widths that were not measured, from the widths that were; and means.

Source of the fit: Capes et al., "Dynamic Scheduling of MPI-based Distributed Deep Learning Training
Jobs", 2019, section 3.2, eq. 5. It is fitted as seconds per sample with the *global* batch held
fixed, so that the computing part falls as 1/w (the paper writes m in eq. 2-4 and m/w in eq. 5).
Batch and model size are constants of one model and are left inside the coefficients.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, log

from shoal.core.state import Figures
from shoal.profile.all_reduce import is_power_of_two

WIDER = 0.9  # rate at width w is that at width 1 times w ** WIDER, until wider lanes were measured
AT = "rate@"  # before a width: the samples/s of a lane so wide
FITTED = 3  # powers of two, width 1 among them, that must be known for a fit of the others
Points = tuple[tuple[int, float], ...]  # widths, rising, and samples/s


def wide_rates(figures: Figures) -> dict[int, float]:
    """Samples/s by width, of the widths above 1."""
    wide = {}
    for name, rate in figures.items():
        if name.startswith(AT) and rate > 0:
            wide[int(name.removeprefix(AT))] = rate
    return wide


# -- the fit

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
    """The coefficients of eq. 5 that fit these rates best."""
    from scipy.optimize import nnls  # slow to import, and needed here only

    relative = [[term * rate for term in _terms(width)] for width, rate in rates.items()]
    theta, _ = nnls(relative, [1.0] * len(rates))
    a, b, c, d = map(float, theta)
    return a, b, c, d


def _terms(width: int) -> Theta:
    """The terms of eq. 5 at this width, by which its coefficients are multiplied."""
    return 1.0 / width, width - 1.0, (width - 1.0) / width, 1.0


# -- between and beyond what was measured


@lru_cache(maxsize=4096)
def _fitted(known: Points) -> Speed:
    return fit_speed(dict(known))


@lru_cache(maxsize=4096)
def rate_at(known: Points, width: int) -> float:
    """Samples/s at this width from those at some, width 1 among them, rising.

    As measured; else on the curve of Capes' eq. 5 through them, where enough of them are powers of
    two; else on the power law between the two nearest. Beyond the last width it is the power law of
    the last two, but never steeper than `WIDER`.
    """
    widths = [width for width, _ in known]
    at = bisect_left(widths, width)
    if at < len(known) and widths[at] == width:
        return known[at][1]
    if sum(map(is_power_of_two, widths)) >= FITTED:
        return _fitted(known).rate(width)

    below, rate = known[at - 1]
    if at == len(known):
        power = min(WIDER, _power(known[at - 1], known[at - 2]))
    else:
        power = _power(known[at - 1], known[at])
    return float(rate * (width / below) ** power)


def _power(one: tuple[int, float], other: tuple[int, float]) -> float:
    """The exponent with which the rate grows with the width, from two points."""
    if one[0] == other[0]:
        return WIDER  # there is only one point
    return log(other[1] / one[1]) / log(other[0] / one[0])


# -- figures of several signatures


def speedups_of(figures: Figures) -> dict[int, float]:
    """The rate over that of one slot, by width; nothing where that is not known."""
    alone = figures.get("rate")
    if not alone:
        return {}
    return {width: rate / alone for width, rate in wide_rates(figures).items()}


def mean_of(figures: Iterable[Figures]) -> Figures:
    """Means by name; of rates, the mean is taken over the seconds per sample."""
    # All values of each name, in the form in which they add up.
    gathered: dict[str, list[float]] = {}
    for named in figures:
        for name, value in named.items():
            gathered.setdefault(name, []).append(_additive(name, value))
    means = {name: sum(values) / len(values) for name, values in gathered.items()}
    return {name: _additive(name, mean) for name, mean in means.items()}


def _additive(name: str, value: float) -> float:
    """A rate's seconds per sample (and back again); any other figure as it is."""
    if name.startswith("rate"):
        return 1.0 / value
    return value
