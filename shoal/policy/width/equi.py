"""Widths for a short mean time to the end of a trial.

Ours. `doubling` minimises the sum of the seconds left, which favours the longest trials; these
policies are better where the mean counts. `Equi`: equal shares, and the surplus to the trials with
least left. It needs no sizes but for the surplus. `Wrate`, `HeSrpt` and `SrptK` favour short trials
more, and are for trials of known and unlike size.
heSRPT: Berg, Vesilo, Harchol-Balter, Performance 2020.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.width.ask import Ask, Rung, Widths, admitted, paying, room
from shoal.policy.width.doubling import check_interval, placed
from shoal.policy.width.foretell import check_foretell, left_by

Corner = tuple[int, float]  # of a hull: a width, and samples/s


def equal_shares(wanting: Sequence[Ask], capacity: int) -> dict[TrialId, int]:
    """The same share for all trials, and what is over to those with least left.

    If not all trials fit, those with least left get the slots.
    """
    taken = admitted(_shortest_first(wanting), capacity)
    if not taken:
        return {}
    rungs = {ask.trial: 0 for ask in taken}
    free = capacity - sum(ask.least for ask in taken)
    share = capacity / len(taken)
    for ask in taken:
        free -= _climb(ask, rungs, share, free)
    _round_by_round(taken, rungs, free)
    return _widths(taken, rungs)


def _climb(ask: Ask, rungs: Rung, share: float, free: int) -> int:
    """Raise the trial to its largest width within the share. Returns the slots it took."""
    rung = rungs[ask.trial]
    while ask.helps(rung):
        above = ask.widths[rung + 1]
        if above > share or above - ask.least > free:
            break
        rung += 1
    rungs[ask.trial] = rung
    return ask.widths[rung] - ask.least


def _round_by_round(taken: Sequence[Ask], rungs: Rung, free: int) -> None:
    """Raise each by one rung in turn, until none can rise; mostly one round is enough."""
    rising = True
    while rising:
        rising = False
        for ask in taken:
            rung = rungs[ask.trial]
            if ask.helps(rung) and ask.step(rung) <= free:
                free -= ask.step(rung)
                rungs[ask.trial] = rung + 1
                rising = True


def weighted_rates(
    wanting: Sequence[Ask], capacity: int, beta: float, hysteresis: float = 0.0
) -> dict[TrialId, int]:
    """Greatest sum of speed-ups, each weighted by (seconds left)^-beta.

    Slots are given step by step along the concave hull of each trial's rates. `hysteresis`: how
    much more a step counts that the trial already has.
    """
    given: dict[TrialId, int] = {}
    hulls = [_hull(ask) for ask in wanting]

    def step(i: int, k: int) -> tuple[float, int, int]:
        """From corner k to the next: worth per slot (negated, for the heap), who, where."""
        here, above = hulls[i][k : k + 2]
        worth = _worth(wanting[i], here, above, beta)
        if wanting[i].held >= above[0]:
            worth *= 1.0 + hysteresis
        return -worth, i, k

    heap = [step(i, 0) for i in range(len(wanting))]
    heapify(heap)
    while heap and capacity > 0:
        _, i, k = heappop(heap)
        here, above = hulls[i][k : k + 2]
        more = above[0] - here[0]
        if more > capacity:
            continue
        capacity -= more
        given[wanting[i].trial] = above[0]
        if k + 2 < len(hulls[i]):
            heappush(heap, step(i, k + 1))
    return given


def _worth(ask: Ask, here: Corner, above: Corner, beta: float) -> float:
    """What each slot of the step between two corners adds to the weighted sum of speed-ups."""
    slots = above[0] - here[0]
    rate = above[1] - here[1]
    weight: float = ask.seconds() ** -beta
    return weight * rate / slots / ask.rates[0]


def _hull(ask: Ask) -> list[Corner]:
    """The upper concave hull of (0, 0) and its (width, rate), as far as it rises."""
    hull: list[Corner] = [(0, 0.0)]
    for corner in zip(ask.widths, ask.rates, strict=True):
        highest = hull[-1][1]
        if corner[1] <= highest:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], corner):
            hull.pop()
        hull.append(corner)
    return hull


def _is_below(first: Corner, middle: Corner, last: Corner) -> bool:
    """Whether the corner in the middle lies on or below the line between the two others."""
    width, rate = first
    rise = (middle[1] - rate) * (last[0] - width)
    of_line = (last[1] - rate) * (middle[0] - width)
    return rise <= of_line


def hesrpt_shares(wanting: Sequence[Ask], capacity: int, p: float) -> dict[TrialId, int]:
    """Optimal shares for speed-ups of the form width^p, rounded to the rungs (heSRPT).

    The i-th largest of n trials gets (i/n)^(1/(1-p)) - ((i-1)/n)^(1/(1-p)) of the slots. What is
    over goes to the trials with least left.
    """
    order = _shortest_first(wanting)
    shares = _hesrpt(len(order), capacity, p)
    rungs: Rung = {}
    free = capacity
    for ask, share in zip(order, shares, strict=True):
        rung = _rounded(ask, share, free)
        if share >= 0.75 * ask.least and ask.widths[rung] <= free:
            rungs[ask.trial] = rung
            free -= ask.widths[rung]
    _fill(order, rungs, free)
    return _widths(order, rungs)


def _hesrpt(trials: int, capacity: int, p: float) -> Iterator[float]:
    """The slots of the shortest of so many trials, of the next one, and so on."""
    power = 1.0 / (1.0 - p)
    for i in range(trials, 0, -1):
        upto = (i / trials) ** power
        before = ((i - 1) / trials) ** power
        yield (upto - before) * capacity


def _rounded(ask: Ask, share: float, free: int) -> int:
    """The rung nearest to the share (up to a third above it), of those that fit."""
    limit = min(max(1.34 * share, ask.least), free)
    fitting = bisect_right(ask.widths, limit)
    return max(fitting - 1, 0)


def shortest_first(wanting: Sequence[Ask], capacity: int, width: int) -> dict[TrialId, int]:
    """So many slots to each, those with least left first.

    What is over widens the trials in the same order.
    """
    order = _shortest_first(wanting)
    rungs: Rung = {}
    for ask in order:
        limit = min(max(width, ask.least), capacity)
        if ask.least > limit:
            continue
        rung = bisect_right(ask.widths, limit) - 1
        rungs[ask.trial] = rung
        capacity -= ask.widths[rung]

    taken = [ask for ask in order if ask.trial in rungs]
    _fill(taken, rungs, capacity)
    return _widths(order, rungs)


def _fill(order: Sequence[Ask], rungs: Rung, free: int) -> None:
    """Make one after the other as wide as it helps and fits."""
    for ask in order:
        rung = rungs.get(ask.trial)
        if rung is None and ask.least > free:
            continue
        if rung is None:
            rung = 0
            free -= ask.least
        while ask.helps(rung) and ask.step(rung) <= free:
            free -= ask.step(rung)
            rung += 1
        rungs[ask.trial] = rung


def _widths(order: Sequence[Ask], rungs: Rung) -> dict[TrialId, int]:
    """The slots of each trial that has a rung."""
    with_rung = [ask for ask in order if ask.trial in rungs]
    return {ask.trial: ask.widths[rungs[ask.trial]] for ask in with_rung}


def _shortest_first(wanting: Sequence[Ask]) -> list[Ask]:
    """The trials with least time left first."""
    return sorted(wanting, key=lambda ask: ask.seconds())


@dataclass(frozen=True, slots=True)
class Equi:
    """Equal shares, in powers of two. `every`, `foretell`: as in `Doubling`."""

    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        return placed(view, self._widths(view), self.every), memory

    def _widths(self, view: View) -> Widths:
        """The slots of each trial."""
        wanting = paying(view, left=left_by(self.foretell))
        return equal_shares(wanting, room(view))


@dataclass(frozen=True, slots=True)
class Wrate:
    """Greatest sum of speed-ups, in which short trials count more.

    `beta`: how much more (0: all alike; 0.25 is a good value). `hysteresis`: how much more a step
    counts that the trial already has; 0.1 and more where a change of width costs a minute or more.

    Raises:
        ValueError: beta or hysteresis below 0.
    """

    beta: float = 0.25
    hysteresis: float = 0.0
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if not (self.beta >= 0 and self.hysteresis >= 0):
            given = f"{self.beta!r}, {self.hysteresis!r}"
            raise ValueError(f"beta and hysteresis must be >= 0; got {given}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        return placed(view, self._widths(view), self.every), memory

    def _widths(self, view: View) -> Widths:
        """The slots of each trial."""
        wanting = paying(view, left=left_by(self.foretell))
        return weighted_rates(wanting, room(view), self.beta, self.hysteresis)


@dataclass(frozen=True, slots=True)
class HeSrpt:
    """Shares that fall with what is left, for speed-ups of about width^p.

    Raises:
        ValueError: p is not between 0 and 1.
    """

    p: float = 0.6
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if not 0 < self.p < 1:
            raise ValueError(
                f"the exponent of the speed-up must lie between 0 and 1; got {self.p!r}"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        widths = hesrpt_shares(wanting, room(view), self.p)
        return placed(view, widths, self.every), memory


@dataclass(frozen=True, slots=True)
class SrptK:
    """The trials with least left, each on so many slots.

    Raises:
        ValueError: slots below 1.
    """

    slots: int = 4
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if self.slots < 1:
            raise ValueError(f"a width must be >= 1 slot; got {self.slots!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        widths = shortest_first(wanting, room(view), self.slots)
        return placed(view, widths, self.every), memory
