"""Whether lanes go faster fused, and how many at once: found out on their own first steps."""

from __future__ import annotations

from shoal.core.trial import Seconds

TRIES, SKIPPED = 6, 2  # steps timed of each width, and how many of the first ones do not count
GAIN = 0.03  # fused must save so much of the time to be chosen
AGAIN = (8, 32, 128, 1024)  # askings after which all is tried again
NEAR = 1.3  # a width speaks for those within this ratio


class Gauge:
    """Seconds per step of one lane alone (width 1) and of so many fused, by kind of lane. Kinds are graph keys."""

    def __init__(self) -> None:
        self._best: dict[tuple[str, int], Seconds] = {}  # of a step, by kind and width
        self._tries: dict[tuple[str, int], int] = {}  # since it was begun to measure, or measured again
        self._asked: dict[str, int] = {}
        self._never: dict[str, str] = {}

    def wants(self, kind: str, lanes: int) -> int | None:
        """The width to try next where so many lanes are together; None: enough is known.

        First alone, then all together, then halves, as long as that is faster; now and then all again, as others may have
        disturbed the first tries.
        """
        if kind in self._never or lanes < 2:
            return None
        self._asked[kind] = self._asked.get(kind, 0) + 1
        if self._asked[kind] in AGAIN:
            self._tries = {at: tries for at, tries in self._tries.items() if at[0] != kind}
        if not self._tried(kind, 1):
            return 1
        width, best = lanes, float("inf")
        while width > 1:
            near = self._near(kind, width)
            if near is None:
                return width
            took = self._best[kind, near] / near
            if took >= best:
                return None
            width, best = width // 2, took
        return None

    def choose(self, kind: str, lanes: int) -> int:
        """The width that takes the least time per lane; 1: one lane after the other."""
        alone = self.figure(kind, 1)
        if kind in self._never or alone is None or lanes < 2:
            return 1
        found = {w: took for (of, w), _ in self._best.items() if of == kind and (took := self.figure(kind, w)) is not None}
        widths = [w for w in found if 1 < w <= lanes * NEAR]
        best = min(widths, key=found.__getitem__, default=1)
        return min(best, lanes) if found[best] < alone * (1 - GAIN) else 1

    def took(self, kind: str, width: int, seconds: Seconds) -> bool:
        """A step of so many lanes took so long; whether that completes what is to be known of this width."""
        at = kind, width
        if self._tried(kind, width):
            return False
        self._tries[at] = self._tries.get(at, 0) + 1
        if self._tries[at] > SKIPPED:  # the least counts: others may use the machine, too
            self._best[at] = min(seconds, self._best.get(at, seconds))
        return self._tried(kind, width)

    def figure(self, kind: str, width: int) -> Seconds | None:
        """Seconds per step and lane at exactly this width."""
        took = self._best.get((kind, width))
        return None if took is None else took / width

    def never(self, kind: str, why: str) -> None:
        """Lanes of this kind cannot be fused."""
        self._never.setdefault(kind, why)

    def why(self, kind: str) -> str | None:
        """Why lanes of this kind are not fused; None: they may be."""
        return self._never.get(kind)

    def _tried(self, kind: str, width: int) -> bool:
        return self._tries.get((kind, width), 0) >= TRIES

    def _near(self, kind: str, width: int) -> int | None:
        """The width itself, or the nearest that speaks for it, if it was tried enough."""
        near = [w for of, w in self._tries if of == kind and w > 1 and width / NEAR <= w <= width * NEAR and self._tried(kind, w)]
        return min(near, key=lambda w: (abs(w - width), w), default=None)
