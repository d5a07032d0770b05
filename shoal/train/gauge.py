"""Whether lanes go faster fused, and how many at once: found out on their own first steps."""

from __future__ import annotations

from shoal.core.trial import Seconds

TRIES, SKIPPED = 6, 2  # steps timed of each width, and how many of the first ones do not count
GAIN = 0.05  # fused must save so much of the time to be chosen
NEAR = 1.3  # a width speaks for those within this ratio


class Gauge:
    """Seconds per step of one lane alone (width 1) and of so many fused, by kind of lane. Kinds are graph keys."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], list[Seconds]] = {}
        self._never: dict[str, str] = {}

    def wants(self, kind: str, lanes: int) -> int | None:
        """The width to try next where so many lanes are together; None: enough is known.

        First alone, then all together, then halves, as long as that is faster.
        """
        if kind in self._never or lanes < 2:
            return None
        if self._step(kind, 1) is None:
            return 1
        width, best = lanes, float("inf")
        while width > 1:
            took = self._step(kind, width)
            if took is None:
                return width
            if took >= best:
                return None
            width, best = width // 2, took
        return None

    def choose(self, kind: str, lanes: int) -> int:
        """The width that takes the least time per lane; 1: one lane after the other."""
        alone = self._step(kind, 1)
        if kind in self._never or alone is None or lanes < 2:
            return 1
        widths = [w for (of, w), times in self._times.items() if of == kind and 1 < w <= lanes * NEAR and len(times) >= TRIES]
        best = min(widths, key=lambda w: self.figure(kind, w) or 0.0, default=1)
        took = self.figure(kind, best)
        return min(best, lanes) if took is not None and took < alone * (1 - GAIN) else 1

    def took(self, kind: str, width: int, seconds: Seconds) -> bool:
        """A step of so many lanes took so long; whether that completes what is to be known of this width."""
        times = self._times.setdefault((kind, width), [])
        if len(times) >= TRIES:
            return False
        times.append(seconds)
        return len(times) == TRIES

    def figure(self, kind: str, width: int) -> Seconds | None:
        """Seconds per step and lane at exactly this width."""
        times = self._times.get((kind, width), ())
        return min(times[SKIPPED:]) / width if len(times) >= TRIES else None  # the least: others may use the machine

    def never(self, kind: str, why: str) -> None:
        """Lanes of this kind cannot be fused."""
        self._never.setdefault(kind, why)

    def why(self, kind: str) -> str | None:
        """Why lanes of this kind are not fused; None: they may be."""
        return self._never.get(kind)

    def _step(self, kind: str, width: int) -> Seconds | None:
        """Seconds per step and lane, at the width or at one near it."""
        exact = self.figure(kind, width)
        if exact is not None or width == 1:
            return exact
        near = [w for (of, w) in self._times if of == kind and w > 1 and width / NEAR <= w <= width * NEAR]
        found = [(abs(w - width), took) for w in near if (took := self.figure(kind, w)) is not None]
        return min(found)[1] if found else None
