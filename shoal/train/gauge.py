"""Whether lanes go faster fused, and how many at once: found out on their own first steps."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median

from shoal.core.trial import Seconds

TRIES, SKIPPED = 6, 2  # steps timed of each width in a round, and how many of the first ones do not count
GAIN = 0.03  # fused must save so much of the time to be chosen
AGAIN = (2, 6, 20, 60, 200, 1000)  # askings, with nothing to try, after which there is another round
SOON = 6  # up to here only what is in doubt is tried again, lest a short search lose by it
FAR = 1.5  # what takes more than this times the best, of widths and lanes alone, is not in doubt
NEAR = 1.3  # a width speaks for those within this ratio


@dataclass(slots=True)
class _Round:
    """Tries of a crew's widths that follow each other closely."""

    least: dict[int, Seconds] = field(default_factory=dict)  # of a step, by width
    tries: Counter[int] = field(default_factory=Counter)

    def tried(self, width: int) -> bool:
        return self.tries[width] >= TRIES


class Gauge:
    """Seconds per step of one lane alone (width 1) and of so many fused, by kind of lanes (their graph key).

    A machine's speed changes with what else runs on it, and lanes of a kind may have several optimizers: widths are compared
    within a round, whose tries follow each other closely and are of one `mix` of optimizers, and the middle one of all rounds'
    ratios counts. Where fusing is far faster in any case, and only by how many is in doubt, an early round leaves the lanes alone
    out: they would cost several times as much.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, list[_Round]] = {}  # by kind
        self._newest: dict[tuple[str, str], _Round] = {}  # by kind and mix
        self._calm: Counter[str] = Counter()
        self._never: dict[str, str] = {}
        self._most: dict[str, int] = {}  # lanes that have room fused, where more had none

    def wants(self, kind: str, lanes: int, mix: str = "") -> int | None:
        """The width to try next where so many lanes are together; None: enough is known.

        First alone, then all together, then halves (rounded up), as long as that is faster; now and then again. What is known of
        other mixes is enough for one that has tried nothing itself.
        """
        lanes = self.room(kind, lanes)
        if kind in self._never or lanes < 2:
            return None
        own = self._newest.get((kind, mix))
        if own is None and self._near(lanes, self.ratios(kind)) is None:
            own = self._begin(kind, mix)
        width = None if own is None else self._next(kind, own, lanes)
        if width is None:
            self._calm[kind] += 1
            if self._calm[kind] in AGAIN and self._again(kind, mix, lanes, early=self._calm[kind] <= SOON):
                return self._next(kind, self._newest[kind, mix], lanes)
        return width

    def _begin(self, kind: str, mix: str) -> _Round:
        made = self._newest[kind, mix] = _Round()
        self._rounds.setdefault(kind, []).append(made)
        return made

    def _again(self, kind: str, mix: str, lanes: int, early: bool) -> bool:
        """Whether there is another round."""
        ratios = {1: 1.0} | self._within(kind, lanes)
        best = min(ratios.values())
        settled = [width for width, ratio in ratios.items() if early and ratio > FAR * best]
        if len(ratios) - len(settled) < 2:
            return False
        self._begin(kind, mix).tries.update(dict.fromkeys(settled, TRIES))
        return True

    def _next(self, kind: str, own: _Round, lanes: int) -> int | None:
        if not own.tried(1):
            return 1
        width, best = lanes, float("inf")
        while width > 1:
            near = self._near(width, [of for of in own.tries if own.tried(of)])
            if near is None:
                if 1 not in own.least and self._near(width, self.ratios(kind)) is None:  # nothing to compare it with
                    own.tries[1] = 0
                    return 1
                return width
            took = self.ratio(kind, near) or 0.0
            if took >= best:
                return None
            width, best = (width + 1) // 2, took  # of the widths in which as many lanes can be parted evenly
        return None

    def choose(self, kind: str, lanes: int) -> int:
        """The width that takes the least time per lane; 1: one lane after the other."""
        lanes = self.room(kind, lanes)
        ratios = self._within(kind, lanes)
        if kind in self._never or lanes < 2 or not ratios:
            return 1
        best = min(ratios, key=ratios.__getitem__)
        width = lanes if lanes <= best * NEAR else best  # parted by less, as many would not be in one
        return width if ratios[best] < 1 - GAIN else 1

    def took(self, kind: str, width: int, seconds: Seconds, mix: str = "") -> bool:
        """A step of so many lanes took so long; whether that completes what is to be known of this width."""
        newest = self._newest.get((kind, mix)) or self._begin(kind, mix)
        if newest.tried(width):
            return False
        newest.tries[width] += 1
        if newest.tries[width] > SKIPPED:  # the least counts: others may use the machine, too
            newest.least[width] = min(seconds, newest.least.get(width, seconds))
        return newest.tried(width)

    def missing(self, kind: str, width: int, mix: str = "") -> int:
        """How many steps of this width the newest round still lacks."""
        newest = self._newest.get((kind, mix))
        return TRIES - newest.tries[width] if newest is not None else TRIES

    def never(self, kind: str, why: str) -> None:
        """Lanes of this kind cannot be fused."""
        self._never.setdefault(kind, why)

    def crowded(self, kind: str, lanes: int) -> None:
        """So many lanes of this kind have no room in one step: at most half as many are fused from now on."""
        self._most[kind] = min(lanes // 2, self._most.get(kind, lanes))

    def room(self, kind: str, lanes: int) -> int:
        """How many of so many lanes may be fused in one, of those in which they can be parted evenly."""
        most = min(lanes, self._most.get(kind, lanes))
        return -(-lanes // -(-lanes // most)) if most else lanes

    def why(self, kind: str) -> str | None:
        """Why lanes of this kind are not fused; None: they may be."""
        return self._never.get(kind)

    def ratio(self, kind: str, width: int) -> float | None:
        """What a step of a lane takes at this width over what it takes alone; None: not known."""
        return self.ratios(kind).get(width)

    def ratios(self, kind: str) -> dict[int, float]:
        """By width, of those that were tried."""
        found: defaultdict[int, list[float]] = defaultdict(list)
        steps = [{width: least / width for width, least in each.least.items()} for each in self._rounds.get(kind, ())]
        for each in (each for each in steps if 1 in each):
            for width, step in each.items():
                found[width].append(step / each[1])
        known = {width: median(ratios) for width, ratios in found.items()}
        for each in (each for each in steps if 1 not in each and len(each) > 1):
            near = {width: of for width in each if (of := self._near(width, known)) is not None}
            if near:
                alone = fmean(each[width] / known[of] for width, of in near.items())  # as these widths say
                for width, step in each.items():
                    found[width].append(step / alone)
        return {width: median(ratios) for width, ratios in found.items() if width > 1}

    def _within(self, kind: str, lanes: int) -> dict[int, float]:
        """Ratios of the widths that so many lanes can have, or nearly."""
        return {width: ratio for width, ratio in self.ratios(kind).items() if width <= lanes * NEAR}

    def _near(self, width: int, known: Iterable[int]) -> int | None:
        """The width itself, or the nearest known that speaks for it."""
        near = [of for of in known if of > 1 and width / NEAR <= of <= width * NEAR]
        return min(near, key=lambda of: (abs(of - width), of), default=None)
