"""The rate of a lane at widths that were not measured, from the widths that were; and means."""

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from math import log

from shoal.core.state import Figures
from shoal.profile.all_reduce import is_power_of_two
from shoal.profile.ring import Speed, fit_speed

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
    widths = [each for each, _ in known]
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


def own_speedups(figures: Figures) -> dict[int, float]:
    """By width, the rate over that of one slot; nothing where that is not known."""
    alone = figures.get("rate")
    if not alone:
        return {}
    return {width: rate / alone for width, rate in wide_rates(figures).items()}


def mean_of(figures: Iterable[Figures]) -> Figures:
    """Means by name; of rates, the mean is taken over the seconds per sample."""
    # All values of each name, in the form in which they add up.
    gathered: dict[str, list[float]] = {}
    for each in figures:
        for name, value in each.items():
            gathered.setdefault(name, []).append(_additive(name, value))
    means = {name: sum(values) / len(values) for name, values in gathered.items()}
    return {name: _additive(name, mean) for name, mean in means.items()}


def _additive(name: str, value: float) -> float:
    """A rate's seconds per sample (and back again); any other figure as it is."""
    if name.startswith("rate"):
        return 1.0 / value
    return value
