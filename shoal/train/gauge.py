"""Whether lanes go faster fused, and how many at once: found out on their own first steps."""

from __future__ import annotations

from collections import Counter
from statistics import median

from shoal.core.trial import Seconds

TRIES, SKIPPED = 6, 2  # steps timed of each width in a round, and how many of the first ones do not count
GAIN = 0.03  # fused must save so much of the time to be chosen
AGAIN = (2, 6, 20, 60, 200, 1000)  # askings, with nothing to try, after which there is another round
SOON = 6  # up to here only what is in doubt is tried again, lest a short search lose by it
FAR = 1.5  # a width is in doubt that takes less than this times what lanes alone take, and more than that part of it
NEAR = 1.3  # a width speaks for those within this ratio


class Gauge:
    """Seconds per step of one lane alone (width 1) and of so many fused, by kind of lane. Kinds are graph keys.

    A machine's speed changes with what else runs on it: widths are compared within a round, whose tries follow each other
    closely, and the middle one of all rounds' ratios counts.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, list[dict[int, Seconds]]] = {}  # by kind: of a step, by width, the least in each round
        self._tries: Counter[tuple[str, int]] = Counter()  # by kind and width, in the newest round
        self._calm: Counter[str] = Counter()
        self._never: dict[str, str] = {}

    def wants(self, kind: str, lanes: int) -> int | None:
        """The width to try next where so many lanes are together; None: enough is known.

        First alone, then all together, then halves (rounded up), as long as that is faster; now and then again.
        """
        if kind in self._never or lanes < 2:
            return None
        width = self._next(kind, lanes)
        if width is None:
            self._calm[kind] += 1
            if self._calm[kind] in AGAIN and self._begun(kind, early=self._calm[kind] <= SOON):
                return 1
        return width

    def _begun(self, kind: str, early: bool) -> bool:
        """Whether there is another round."""
        ratios = {width: ratio for width in self._widths(kind) if (ratio := self._ratio(kind, width)) is not None}
        best = min(ratios.values(), default=1.0)
        if early and not 1 / FAR < best < FAR:
            return False
        settled = {width for width, ratio in ratios.items() if early and ratio > FAR * min(1.0, best)}
        for at in [at for at in self._tries if at[0] == kind and at[1] not in settled]:
            del self._tries[at]
        self._rounds[kind].append({})
        return True

    def _next(self, kind: str, lanes: int) -> int | None:
        if not self._tried(kind, 1):
            return 1
        width, best = lanes, float("inf")
        while width > 1:
            near = self._near(kind, width)
            if near is None:
                return width
            took = self.figure(kind, near) or 0.0
            if took >= best:
                return None
            width, best = (width + 1) // 2, took  # of the widths in which as many lanes can be parted evenly
        return None

    def choose(self, kind: str, lanes: int) -> int:
        """The width that takes the least time per lane; 1: one lane after the other."""
        ratios = {
            width: ratio
            for width in self._widths(kind)
            if width <= lanes * NEAR and (ratio := self._ratio(kind, width)) is not None
        }
        if kind in self._never or lanes < 2 or not ratios:
            return 1
        best = min(ratios, key=ratios.__getitem__)
        return min(best, lanes) if ratios[best] < 1 - GAIN else 1

    def took(self, kind: str, width: int, seconds: Seconds) -> bool:
        """A step of so many lanes took so long; whether that completes what is to be known of this width."""
        if self._tried(kind, width):
            return False
        self._tries[kind, width] += 1
        if self._tries[kind, width] > SKIPPED:  # the least counts: others may use the machine, too
            newest = self._rounds.setdefault(kind, [{}])[-1]
            newest[width] = min(seconds, newest.get(width, seconds))
        return self._tried(kind, width)

    def figure(self, kind: str, width: int) -> Seconds | None:
        """Seconds per step and lane at exactly this width."""
        took = [each[width] / width for each in self._rounds.get(kind, ()) if width in each]
        return median(took) if took else None

    def never(self, kind: str, why: str) -> None:
        """Lanes of this kind cannot be fused."""
        self._never.setdefault(kind, why)

    def why(self, kind: str) -> str | None:
        """Why lanes of this kind are not fused; None: they may be."""
        return self._never.get(kind)

    def _ratio(self, kind: str, width: int) -> float | None:
        """What a step of a lane takes at this width over what it takes alone."""
        ratios = [each[width] / width / each[1] for each in self._rounds.get(kind, ()) if width in each and 1 in each]
        return median(ratios) if ratios else None

    def _widths(self, kind: str) -> set[int]:
        """Those that were tried, but for 1."""
        return {width for each in self._rounds.get(kind, ()) for width in each} - {1}

    def _tried(self, kind: str, width: int) -> bool:
        return self._tries[kind, width] >= TRIES

    def _near(self, kind: str, width: int) -> int | None:
        """The width itself, or the nearest that speaks for it, if it was tried enough."""
        near = [w for of, w in self._tries if of == kind and w > 1 and width / NEAR <= w <= width * NEAR and self._tried(kind, w)]
        return min(near, key=lambda w: (abs(w - width), w), default=None)
