"""Whether lanes go faster fused, and how many at once: found out on their own first steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf
from statistics import fmean, median

from shoal.core.trial import Seconds
from shoal.profile.pace import SAVED, WORTH_FUSING

TRIES = 6  # steps timed of each width in a round
SKIPPED = 2  # how many of the first ones do not count
# numbers of asks with nothing to try, after which there is another round
AGAIN = (2, 6, 20, 60, 200, 1000)
# up to here only what is in doubt is tried again, lest a short search lose by it
SOON = 6
FAR = 1.5  # what takes more than this times the best, of widths and lanes alone, is not in doubt
NEAR = 1.3  # a width speaks for those within this ratio

Steps = dict[int, Seconds]  # of a step, by width
RatioLists = defaultdict[int, list[float]]  # ratios of several rounds, by width
Ratios = dict[int, float]  # a lane's time at a width over its time alone, by width


@dataclass(slots=True)
class _GaugeRound:
    """Tries of the widths of one kind of lanes that follow each other closely."""

    least: Steps = field(default_factory=dict)
    tries: Counter[int] = field(default_factory=Counter)

    def tried(self, width: int) -> bool:
        """Whether the width was tried often enough."""
        return self.tries[width] >= TRIES

    def took(self, width: int, seconds: Seconds) -> None:
        """Take the time of a step. The least counts, for others may use the machine, too."""
        self.tries[width] += 1
        if self.tries[width] > SKIPPED:
            least = self.least.get(width, seconds)
            self.least[width] = min(seconds, least)

    def of_a_lane(self) -> Steps:
        """Seconds of a step, over the lanes in it, by width."""
        return {width: least / width for width, least in self.least.items()}


class Gauge:
    """Seconds per step of one lane alone (width 1) and of so many fused.

    They are known by kind of lanes, which is their graph key. A machine's speed changes with what
    else runs on it, and lanes of a kind may have several optimizers. So widths are compared within
    a round, whose tries follow each other closely and are of one `mix` of optimizers, and the
    median of all rounds' ratios counts. Where fusing is far faster in any case, and only by how
    many is in doubt, an early round leaves the lanes alone out: they would cost several times as
    much.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, list[_GaugeRound]] = {}  # by kind
        self._newest: dict[tuple[str, str], _GaugeRound] = {}  # by kind and mix
        self._idle_asks: Counter[str] = Counter()
        self._never: dict[str, str] = {}
        # lanes that have room fused, where more had none
        self._most: dict[str, int] = {}

    # -- what to try -------------------------------------------------------------------------------

    def wants(self, kind: str, lanes: int, mix: str = "", left: float = inf) -> int | None:
        """The width to try next where so many lanes are together; None: enough is known.

        Nothing is tried, either, with fewer than `WORTH_FUSING` steps `left` to a lane.

        First alone, then all together, then halves (rounded up), as long as that is faster; now
        and then again. What is known of other mixes is enough for one that has tried nothing
        itself.
        """
        lanes = self.room(kind, lanes)
        if kind in self._never or lanes < 2 or left < WORTH_FUSING:
            return None
        newest = self._newest.get((kind, mix))
        if newest is None and _near(lanes, self.ratios(kind)) is None:
            newest = self._begin(kind, mix)
        width = None
        if newest is not None:
            width = self._next(kind, newest, lanes)
        if width is not None:
            return width
        return self._wants_again(kind, lanes, mix)

    def _wants_again(self, kind: str, lanes: int, mix: str) -> int | None:
        """The width to try next, if it is time for another round."""
        self._idle_asks[kind] += 1
        if self._idle_asks[kind] not in AGAIN:
            return None
        ratios = {1: 1.0} | self._within(kind, lanes)
        settled = []
        if self._idle_asks[kind] <= SOON:  # widths that take far longer than the best
            far = FAR * min(ratios.values())
            settled = [width for width, ratio in ratios.items() if ratio > far]
        if len(ratios) - len(settled) < 2:
            return None
        newest = self._begin(kind, mix)
        newest.tries.update(dict.fromkeys(settled, TRIES))
        return self._next(kind, newest, lanes)

    def _begin(self, kind: str, mix: str) -> _GaugeRound:
        newest = _GaugeRound()
        self._newest[kind, mix] = newest
        self._rounds.setdefault(kind, []).append(newest)
        return newest

    def _next(self, kind: str, newest: _GaugeRound, lanes: int) -> int | None:
        """The width that the newest round is to try next; None: it is over."""
        if not newest.tried(1):
            return 1
        width = lanes
        best = inf
        while width > 1:
            near = _near(width, filter(newest.tried, newest.tries))
            if near is None:
                if 1 in newest.least or _near(width, self.ratios(kind)) is not None:
                    return width
                newest.tries[1] = 0  # there is nothing to compare it with: lanes alone first
                return 1
            ratio = self.ratio(kind, near) or 0.0
            if ratio >= best:
                return None
            best = ratio
            # of the widths in which as many lanes can be parted evenly
            width = ceil(width / 2)
        return None

    def missing(self, kind: str, width: int, mix: str = "") -> int:
        """How many steps of this width the newest round still lacks."""
        newest = self._newest.get((kind, mix))
        if newest is None:
            return TRIES
        return TRIES - newest.tries[width]

    # -- what is found -----------------------------------------------------------------------------

    def took(self, kind: str, width: int, seconds: Seconds, mix: str = "") -> bool:
        """Take the time of a step of so many lanes; returns whether that completes this width."""
        newest = self._newest.get((kind, mix)) or self._begin(kind, mix)
        if newest.tried(width):
            return False
        newest.took(width, seconds)
        return newest.tried(width)

    def never(self, kind: str, why: str) -> None:
        """Note that lanes of this kind cannot be fused."""
        self._never.setdefault(kind, why)

    def crowded(self, kind: str, lanes: int) -> None:
        """Note that so many lanes have no room in one step: from now on at most half are fused."""
        self._most[kind] = min(lanes // 2, self._most.get(kind, lanes))

    # -- what is known -----------------------------------------------------------------------------

    def choose(self, kind: str, lanes: int) -> int:
        """The width that takes the least time per lane; 1: one lane after the other."""
        lanes = self.room(kind, lanes)
        ratios = self._within(kind, lanes)
        if kind in self._never or lanes < 2 or not ratios:
            return 1
        best = min(ratios, key=ratios.__getitem__)
        if ratios[best] >= SAVED:
            return 1
        # parted by less, as many would not be in one
        return lanes if lanes <= best * NEAR else best

    def room(self, kind: str, lanes: int) -> int:
        """How many of these lanes may be fused in one step, if they are parted evenly."""
        return evenly(lanes, self._most.get(kind) or inf)

    def why(self, kind: str) -> str | None:
        """Why lanes of this kind are not fused; None: they may be."""
        return self._never.get(kind)

    def ratio(self, kind: str, width: int) -> float | None:
        """The time of a lane's step at this width over its time alone; None: not known."""
        return self.ratios(kind).get(width)

    def ratios(self, kind: str) -> Ratios:
        """The ratios of the widths that were tried."""
        lists: RatioLists = defaultdict(list)
        steps = [each.of_a_lane() for each in self._rounds.get(kind, ())]
        for step in steps:
            if 1 in step:
                _compare(step, step[1], lists)
        measured = _medians(lists)
        for step in steps:
            alone = _alone_by(step, measured)
            if 1 not in step and alone is not None:
                _compare(step, alone, lists)
        ratios = _medians(lists)
        ratios.pop(1, None)
        return ratios

    def _within(self, kind: str, lanes: int) -> Ratios:
        """Ratios of the widths that so many lanes can have, or nearly."""
        most = lanes * NEAR
        ratios = self.ratios(kind)
        return {width: ratio for width, ratio in ratios.items() if width <= most}


def _compare(step: Steps, alone: Seconds, lists: RatioLists) -> None:
    """Add a round's ratios to the lists."""
    for width, took in step.items():
        lists[width].append(took / alone)


def _medians(lists: RatioLists) -> Ratios:
    return {width: median(ratios) for width, ratios in lists.items()}


def _alone_by(step: Steps, measured: Ratios) -> Seconds | None:
    """The time of a lane alone, estimated from a round's widths and their measured ratios."""
    if len(step) < 2:
        return None
    alone = []
    for width, seconds in step.items():
        near = _near(width, measured)
        if near is not None:
            alone.append(seconds / measured[near])
    return fmean(alone) if alone else None


def _near(width: int, widths: Iterable[int]) -> int | None:
    """The width itself, or the nearest of these that speaks for it."""
    near = sorted(each for each in widths if each > 1 and width / NEAR <= each <= width * NEAR)
    return min(near, key=lambda each: abs(each - width), default=None)


def evenly(count: int, most: float) -> int:
    """The size of the largest part, where `count` is parted evenly into parts of at most `most`."""
    if count <= most or count < 1:
        return count
    return ceil(count / ceil(count / max(1, int(most))))
