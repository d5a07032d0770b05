"""Widths for a short mean time to the end of a trial: better than `doubling`, whose objective favours the longest.

Ours. `Equi`: equal shares, the surplus to those with least left; needs no sizes but for that, and is the
default. `Wrate`, `HeSrpt` and `SrptK` favour short trials more, and are for trials of known and unlike size.
heSRPT: Berg, Vesilo, Harchol-Balter, Performance 2020.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.ask import Ask, admitted, asks, left_of, room
from shoal.policy.doubling import again, check_interval
from shoal.policy.foretell import foretold
from shoal.policy.place import place


def equal_shares(wanting: Sequence[Ask], capacity: int) -> dict[TrialId, int]:
    """The same share for all (for those with least left, if they do not all fit), and what is over to those with least left."""
    taken = admitted(_shortest_first(wanting), capacity)
    rung = dict.fromkeys((ask.trial for ask in taken), 0)
    free = capacity - sum(ask.least for ask in taken)
    share = capacity / len(taken) if taken else 0.0
    for ask in taken:
        free -= _climb(ask, rung, share, free)
    rising = True
    while rising:  # once round is enough where all have the same limits
        rising = False
        for ask in taken:
            if ask.helps(rung[ask.trial]) and ask.step(rung[ask.trial]) <= free:
                free -= ask.step(rung[ask.trial])
                rung[ask.trial] += 1
                rising = True
    return {ask.trial: ask.widths[rung[ask.trial]] for ask in taken}


def _climb(ask: Ask, rung: dict[TrialId, int], share: float, free: int) -> int:
    """To the largest width within the share; the slots it took."""
    at = rung[ask.trial]
    while ask.helps(at) and ask.widths[at + 1] <= share and ask.widths[at + 1] - ask.least <= free:
        at += 1
    rung[ask.trial] = at
    return ask.widths[at] - ask.least


def weighted_rates(wanting: Sequence[Ask], capacity: int, beta: float, hysteresis: float = 0.0) -> dict[TrialId, int]:
    """Greatest sum of speed-ups, each weighted by (seconds left)^-beta: slot by slot along the concave hull of each.

    `hysteresis`: how much more a step counts that the trial already has.
    """
    given: dict[TrialId, int] = {}
    hulls = [_hull(ask) for ask in wanting]

    def step(i: int, k: int) -> tuple[float, int, int]:
        """From corner k of its hull to the next: worth per slot (negated, for the heap), who, where."""
        ask, ((w0, v0), (w1, v1)) = wanting[i], hulls[i][k : k + 2]
        worth = ask.seconds() ** -beta * (v1 - v0) / (w1 - w0) / ask.rates[0]
        return -worth * (1.0 + hysteresis * (ask.held >= w1)), i, k

    heap = [step(i, 0) for i in range(len(wanting))]
    heapify(heap)
    while heap and capacity > 0:
        _, i, k = heappop(heap)
        width, _ = hulls[i][k + 1]
        more = width - hulls[i][k][0]
        if more <= capacity:
            capacity -= more
            given[wanting[i].trial] = width
            if k + 2 < len(hulls[i]):
                heappush(heap, step(i, k + 1))
    return given


def _hull(ask: Ask) -> list[tuple[int, float]]:
    """The upper concave hull of (0, 0) and its (width, rate), as far as it rises."""
    hull: list[tuple[int, float]] = [(0, 0.0)]
    for w, v in zip(ask.widths, ask.rates, strict=True):
        if v <= hull[-1][1]:
            continue
        while len(hull) > 1 and (hull[-1][1] - hull[-2][1]) * (w - hull[-2][0]) <= (v - hull[-2][1]) * (
            hull[-1][0] - hull[-2][0]
        ):
            hull.pop()
        hull.append((w, v))
    return hull


def hesrpt_shares(wanting: Sequence[Ask], capacity: int, p: float) -> dict[TrialId, int]:
    """Optimal shares for speed-ups of the form width^p, rounded to the rungs; what is over to those with least left.

    The i-th largest of n gets (i/n)^(1/(1-p)) - ((i-1)/n)^(1/(1-p)) of the slots.
    """
    order = _shortest_first(wanting)
    n, power = len(order), 1.0 / (1.0 - p)
    rung: dict[TrialId, int] = {}
    free = capacity
    for i, ask in zip(range(n, 0, -1), order, strict=True):
        share = ((i / n) ** power - ((i - 1) / n) ** power) * capacity
        at = max((k for k, w in enumerate(ask.widths) if w <= max(1.34 * share, ask.least)), default=0)
        while at and ask.widths[at] > free:
            at -= 1
        if share >= 0.75 * ask.least and ask.widths[at] <= free:
            rung[ask.trial] = at
            free -= ask.widths[at]
    _fill(order, rung, free)
    return {ask.trial: ask.widths[rung[ask.trial]] for ask in order if ask.trial in rung}


def shortest_first(wanting: Sequence[Ask], capacity: int, width: int) -> dict[TrialId, int]:
    """So many slots to each, those with least left first; what is over doubles them in the same order."""
    order = _shortest_first(wanting)
    rung: dict[TrialId, int] = {}
    for ask in order:
        fitting = [k for k, w in enumerate(ask.widths) if w <= min(max(width, ask.least), capacity)]
        if fitting:
            rung[ask.trial] = fitting[-1]
            capacity -= ask.widths[fitting[-1]]
    _fill([ask for ask in order if ask.trial in rung], rung, capacity)
    return {ask.trial: ask.widths[rung[ask.trial]] for ask in order if ask.trial in rung}


def _fill(order: Sequence[Ask], rung: dict[TrialId, int], free: int) -> None:
    """One after the other as wide as it helps and fits."""
    for ask in order:
        if ask.trial not in rung and ask.least <= free:
            rung[ask.trial] = 0
            free -= ask.least
        while ask.trial in rung and ask.helps(rung[ask.trial]) and ask.step(rung[ask.trial]) <= free:
            free -= ask.step(rung[ask.trial])
            rung[ask.trial] += 1


def _shortest_first(wanting: Sequence[Ask]) -> list[Ask]:
    return sorted(wanting, key=lambda ask: ask.seconds())


@dataclass(frozen=True, slots=True)
class Equi:
    """Equal shares, in powers of two. `every`, `foretell`: as in `Doubling`."""

    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = asks(view, left=foretold(self.foretell) if self.foretell else left_of)
        return again(view, place(view, equal_shares(wanting, room(view))), self.every), memory


@dataclass(frozen=True, slots=True)
class Wrate:
    """Greatest sum of speed-ups, short trials counting more with `beta` (0: all alike; 0.25 is a good value).

    `hysteresis`: 0.1 and more where a change of width costs a minute or more.

    Raises:
        ValueError: beta or hysteresis below 0.
    """

    beta: float = 0.25
    hysteresis: float = 0.0
    every: Seconds | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        if not (self.beta >= 0 and self.hysteresis >= 0):
            raise ValueError(f"beta and hysteresis must be >= 0; got {self.beta!r}, {self.hysteresis!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        widths = weighted_rates(asks(view), room(view), self.beta, self.hysteresis)
        return again(view, place(view, widths), self.every), memory


@dataclass(frozen=True, slots=True)
class HeSrpt:
    """Shares that fall with what is left, for speed-ups of about width^p.

    Raises:
        ValueError: p is not between 0 and 1.
    """

    p: float = 0.6
    every: Seconds | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        if not 0 < self.p < 1:
            raise ValueError(f"the exponent of the speed-up must lie between 0 and 1; got {self.p!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        return again(view, place(view, hesrpt_shares(asks(view), room(view), self.p)), self.every), memory


@dataclass(frozen=True, slots=True)
class SrptK:
    """The trials with least left, each on so many slots.

    Raises:
        ValueError: slots below 1.
    """

    slots: int = 4
    every: Seconds | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        if self.slots < 1:
            raise ValueError(f"a width must be >= 1 slot; got {self.slots!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        return again(view, place(view, shortest_first(asks(view), room(view), self.slots)), self.every), memory
