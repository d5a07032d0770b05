"""When a slot that is silent counts as hung. Its own times decide, and nothing here acts."""

from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from shoal.core.trial import Seconds

PULSE: Seconds = 4.0  # a process answers so often, also if it has nothing new to tell
ROUNDS = 8  # rounds of a kind whose silences are remembered
# How many times as long as it was silent before a slot may be silent: without an answer, which is
# given beside its work, and without progress in its work.
TIMES_A_PULSE = 3.0
TIMES_AT_WORK = 10.0
# How many times the least limit work may make no progress: work of a kind that was made before,
# and of a new kind. Meanwhile a large checkpoint may be written, or a large evaluation be made.
LEAST_AT_WORK = 10.0
LEAST_AT_NEW_WORK = 60.0
MOST_DOUBLINGS = 10
# How much later than that, at least, a process counts as hung that should have ended a call itself.
LATE: Seconds = 10.0


@dataclass(slots=True)
class Signs:
    """What was heard of a slot's process. All times are of the driver's monotonic clock."""

    # When the process answered last, to whatever it was asked.
    heard: Seconds
    # When its work went on last, or began.
    went_on: Seconds
    # The longest time between two answers so far.
    pause: Seconds = PULSE
    # The longest time without progress in the work under way.
    gap: Seconds = 0.0
    # How far the work was, as the process said last.
    reached: Any = None

    @classmethod
    def at(cls, now: Seconds) -> "Signs":
        """The signs of a process that answers for the first time."""
        return cls(now, now)

    def hear(self, now: Seconds) -> None:
        """Note that the process answered."""
        self.pause = max(self.pause, now - self.heard)
        self.heard = now

    def reach(self, reached: Any, now: Seconds) -> None:
        """Note how far its work is, as the process answered."""
        self.hear(now)
        if reached != self.reached:
            self.reached = reached
            self.go_on(now)

    def go_on(self, now: Seconds) -> None:
        """Note that the work went on, as this process or another one at the same work says."""
        self.gap = max(self.gap, now - self.went_on)
        self.went_on = max(self.went_on, now)

    def begin(self, now: Seconds) -> None:
        """Note that a process that was idle was given work."""
        self.went_on = now
        self.gap = 0.0

    def finish(self, now: Seconds) -> Seconds:
        """The longest silence in a piece of work that is done; the next one begins."""
        self.hear(now)
        self.go_on(now)
        gap = self.gap
        self.gap = 0.0
        return gap

    def forgive(self, late: Seconds) -> None:
        """Do not count as silence the time in which the driver did not listen."""
        self.heard += late
        self.went_on += late


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """How long a slot may be silent.

    `least`: seconds without an answer that are allowed in any case; inf: no slot counts as hung.
    `work`: whether work tells of its progress, so that work without progress may count as hung.
    `fixed`: how long calls of the recipe's code may take, `stuck_after`. The process ends longer
    ones by itself, and counts as hung if it cannot.

    All that is allowed doubles with each hang in the same work before. So a slot that was only slow
    is not given up again and again.
    """

    least: Seconds = 30.0
    work: bool = True
    fixed: Seconds | None = None

    def without_answer(self, pause: Seconds, hangs: int) -> Seconds:
        """How long the process may answer nothing; `pause`: the longest that it did so before."""
        return _doubled(max(self.least, TIMES_A_PULSE * pause), hangs)

    def without_progress(self, usual: Seconds | None, hangs: int) -> Seconds:
        """How long the work under way may make no progress.

        `usual`: the longest silence in such work before; None: there was no such work.
        """
        if self.fixed is not None:
            return LATE + PULSE + 2.0 * self.fixed
        if usual is None:
            return _doubled(LEAST_AT_NEW_WORK * self.least, hangs)
        return _doubled(max(LEAST_AT_WORK * self.least, TIMES_AT_WORK * usual), hangs)


def _doubled(seconds: Seconds, hangs: int) -> Seconds:
    """The seconds, doubled for each hang."""
    return float(seconds * 2.0 ** min(hangs, MOST_DOUBLINGS))


@dataclass(frozen=True, slots=True)
class WorkUnderWay:
    """What is known of the work that a process is at; see `SilenceLimits.without_progress`."""

    usual: Seconds | None
    hangs: int


def why_hung(
    signs: Signs, now: Seconds, limits: SilenceLimits, work: WorkUnderWay | None
) -> str | None:
    """Why a process counts as hung; None: it does not. `work`: None if it is idle."""
    hangs = 0
    if work is not None:
        hangs = work.hangs
    silent = now - signs.heard
    allowed = limits.without_answer(signs.pause, hangs)
    if silent > allowed:
        return f"it hung: no answer for {silent:.0f} s, and {allowed:.0f} s are allowed"
    if work is None or not limits.work:
        return None
    still = now - signs.went_on
    allowed = limits.without_progress(work.usual, hangs)
    if still > allowed:
        return f"it hung: no progress for {still:.0f} s, and {allowed:.0f} s are allowed"
    return None


@dataclass(slots=True)
class Silences:
    """The longest silences of rounds that were made, by slot and by kind of work."""

    _known: dict[tuple[str, Hashable], deque[Seconds]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=ROUNDS))
    )

    def learn(self, slot: str, kind: Hashable, gap: Seconds) -> None:
        """Note a round of this kind that was made at the slot, with such a silence in it."""
        self._known[slot, kind].append(gap)

    def usual(self, slot: str, kind: Hashable) -> Seconds | None:
        """The longest silence in such work at the slot, else at any slot; None: not known."""
        gaps_here = self._known.get((slot, kind))
        if gaps_here:
            return max(gaps_here)
        elsewhere = [max(gaps) for (_, each), gaps in self._known.items() if each == kind]
        return max(elsewhere, default=None)
