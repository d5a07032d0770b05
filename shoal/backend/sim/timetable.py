"""What is under way in virtual time: when units end, and what they have made until now."""

from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from shoal.backend.sim.virtual import TICK, SimulatedGang, SimulatedTrial, UnitAtWork
from shoal.core.event import Advanced, Event
from shoal.core.trial import Samples, Seconds, TrialId


class Timetable:
    """The units under way, and the time in the simulation, `now`."""

    def __init__(self, now: Seconds) -> None:
        self.now = now
        # The ends of the units, the soonest first. A unit that is scheduled again has a new end:
        # its former entry stays in the heap with an old version, and is skipped.
        self._ends: list[tuple[Seconds, int, UnitAtWork, SimulatedGang]] = []
        self._count = 0
        # Samples of data that is not divided, not yet reported.
        self._made: dict[TrialId, Samples] = {}

    def schedule(self, run: SimulatedGang, unit: UnitAtWork, wait: Seconds = 0.0) -> None:
        """The unit goes on at the gang's rate from now on, after this wait."""
        self.advance(unit)
        unit.lanes = len(run.sharing(unit.position.trial.id))
        unit.schedule(self.now, run.rates[unit.position.trial.id], wait)
        self._count += 1
        unit.version = self._count
        heappush(self._ends, (unit.end, unit.version, unit, run))

    def advance(self, unit: UnitAtWork) -> None:
        """Train the unit up to now."""
        made = unit.advance(self.now)
        if unit.visit is None and made:
            self._count_made(unit.position, made)

    def _count_made(self, position: SimulatedTrial, made: Samples) -> None:
        """Count samples of data that is not divided."""
        position.samples += made
        trial = position.trial.id
        self._made[trial] = self._made.get(trial, 0.0) + made

    def progress(self, runs: Iterable[SimulatedGang]) -> list[Event]:
        """What these gangs have made of data that is not divided, since the last report."""
        for run in runs:
            for unit in run.units.values():
                self.advance(unit)
        return self._report()

    def _report(self) -> list[Event]:
        """What was made since the last report, if anything."""
        made = self._made
        self._made = {}
        if not made:
            return []
        return [Advanced(made)]

    def complete(self, unit: UnitAtWork) -> Samples:
        """The unit is at its end; returns its samples that were not yet reported."""
        self.advance(unit)
        if unit.visit is not None:
            return unit.size
        return self._made.pop(unit.position.trial.id, 0.0)

    def next_end(self) -> Seconds:
        """When the next unit ends, if nobody intervenes; infinity: no unit is under way."""
        ends = self._ends
        while ends:
            end, version, unit, _ = ends[0]
            if unit.version == version:
                return end
            heappop(ends)
        return inf

    def take(self) -> tuple[UnitAtWork, SimulatedGang] | None:
        """Take out the next unit that ends by now; None: there is none."""
        if self.next_end() > self.now + TICK:
            return None
        return heappop(self._ends)[2:]
