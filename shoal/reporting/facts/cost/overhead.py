"""What a study spends beside its training on its policy: deciding, measuring, forming flotillas.

FLEET's Tables 3 and 4 (Guan et al., MLSys 2020).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, pstdev
from typing import Any, NamedTuple

from shoal.core.event import (
    Decided,
    Entry,
    Failed,
    Finished,
    Opened,
    Planned,
    Remembered,
    Retired,
)
from shoal.core.plan import Gang
from shoal.core.trial import Seconds, TrialId

# Policies that start several trials at once, which are to end at about the same time.
FORMING = ("flotilla", "rounds")


class Formed(NamedTuple):
    """Trials that were started at one time. Their lengths end where they end or get other slots."""

    start: Seconds
    trials: tuple[TrialId, ...]
    slots: int
    mean: Seconds
    deviation: Seconds


@dataclass(frozen=True, slots=True)
class Overhead:
    """What it took.

    `deciding`: seconds of the driver; None: nobody said. `profiling`: seconds in which the policy
    had trials measured before it formed flotillas; None: it is none that does. `formed`: what it
    started, in order of time; empty for policies that form nothing.
    """

    deciding: Seconds | None = None
    profiling: Seconds | None = None
    formed: tuple[Formed, ...] = ()


class OverheadTally:
    """Counts it along a journal. `forms`: also for a policy that is none of `FORMING`."""

    def __init__(self, forms: bool = False) -> None:
        self._always = forms
        self._forms = forms
        self._run = 0
        self._decided: dict[int, Seconds] = {}  # by run
        self._measures = False  # whether the policy has trials measured now
        self._measured: Seconds | None = None
        self._last: Seconds = 0.0
        self._starts: list[tuple[Seconds, tuple[Gang, ...]]] = []
        self._stops: dict[Gang, Seconds] = {}
        self._ends: dict[TrialId, Seconds] = {}

    def take(self, time: Seconds, entry: Entry) -> None:
        """Count one line."""
        if self._measures and not isinstance(entry, Opened):
            self._measured = (self._measured or 0.0) + time - self._last
        self._last = time
        match entry:
            case Opened():
                self._run = entry.run
                self._forms = self._always or _forms(entry.head.get("policy"))
            case Decided(seconds):
                self._decided[self._run] = seconds
            case Remembered("policy", memory):
                self._remember(memory)
            case Planned() if self._forms:
                self._plan(time, entry)
            case Finished(trial) | Failed(trial) | Retired(trial):
                self._ends[trial] = time

    def _remember(self, memory: Any) -> None:
        """A flotilla without paces has trials measured."""
        flotilla = _flotilla(memory)
        self._measures = flotilla is not None and flotilla["paces"] is None
        if flotilla is not None:
            self._measured = self._measured or 0.0

    def _plan(self, time: Seconds, entry: Planned) -> None:
        """Gangs stop and start."""
        for gang in entry.stop:
            self._stops.setdefault(gang, time)
        if entry.start and not self._measures:
            self._starts.append((time, entry.start))

    def so_far(self) -> Overhead:
        """What was counted."""
        deciding = None
        if self._decided:
            deciding = sum(self._decided.values())
        formed = tuple(self._formed(time, gangs) for time, gangs in self._starts)
        return Overhead(deciding, self._measured, formed)

    def _formed(self, time: Seconds, gangs: tuple[Gang, ...]) -> Formed:
        """What became of gangs that started at one time."""
        lengths = {}
        for gang in gangs:
            stop = self._stops.get(gang, self._last)
            for trial in gang.trials:
                lengths[trial] = min(stop, self._ends.get(trial, stop)) - time
        return Formed(
            time,
            tuple(lengths),
            sum(len(gang.slots) for gang in gangs),
            mean(lengths.values()),
            pstdev(lengths.values()),
        )


def _flotilla(memory: Any) -> Mapping[str, Any] | None:
    """The memory of a flotilla that is at work, in that of a policy: its own, or of one within."""
    match memory:
        case {"paces": _, "tried": _}:
            found: Mapping[str, Any] = memory
            return found
        case {"follows": name, "inner": {**inner}}:
            return _flotilla(inner.get(name))
        case [_, _]:
            within = map(_flotilla, memory)
            return next((found for found in within if found is not None), None)
    return None


def _forms(policy: Any) -> bool:
    """Whether this policy, or one within it, starts trials that are to end together."""
    if not isinstance(policy, Mapping):
        return False
    if policy.get("name") in FORMING:
        return True
    return any(_forms(part) for part in policy.values())
