"""What is under way in virtual time: when units end, and what they have made until now."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from math import inf

from shoal.backend.sim.state import (
    TICK,
    BuiltModels,
    Leaving,
    SimulatedGang,
    SimulatedTrial,
    SlotEnds,
    Slots,
    Trials,
    UnitAtWork,
    UnitsOfTrials,
)
from shoal.backend.sim.units import Fault, SimulatedUnits
from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Ended, Event, Failed, Finished, Left, Measured
from shoal.core.plan import Gang, Lane, evenness, prune, same_stream
from shoal.core.profile import Profile
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.core.visits import EPS, is_met


class Timetable:
    """The units under way, and the time in the simulation, `now`."""

    def __init__(self, now: Seconds) -> None:
        self.now = now
        # The ends of the units, the soonest first. A unit that is scheduled again has a new end:
        # its former entry stays in the heap with an old version, and is skipped.
        self._ends: list[tuple[Seconds, int, UnitAtWork, SimulatedGang]] = []
        self._count = 0
        # Samples of data that is not divided, not yet reported.
        self._unreported: dict[TrialId, Samples] = {}

    def schedule(self, run: SimulatedGang, unit: UnitAtWork, wait: Seconds = 0.0) -> None:
        """Have the unit go on at the gang's rate from now on, after this wait."""
        self.advance(unit)
        unit.lanes = len(run.sharing(unit.position.trial.id))
        unit.schedule(self.now, run.rates[unit.position.trial.id], wait)
        self._count += 1
        unit.version = self._count
        heappush(self._ends, (unit.end, unit.version, unit, run))

    def advance(self, unit: UnitAtWork) -> None:
        """Train the unit up to now."""
        samples = unit.advance(self.now)
        if unit.visit is None and samples:
            # Count samples of data that is not divided.
            unit.position.samples += samples
            trial = unit.position.trial.id
            self._unreported[trial] = self._unreported.get(trial, 0.0) + samples

    def progress(self, runs: Iterable[SimulatedGang]) -> list[Event]:
        """The events of what was made of data that is not divided, since the last report."""
        for run in runs:
            for unit in run.units.values():
                self.advance(unit)
        samples = self._unreported
        self._unreported = {}
        return [Advanced(samples)] if samples else []

    def complete(self, unit: UnitAtWork) -> Samples:
        """Train the unit to its end, which is now; returns its samples not yet reported."""
        self.advance(unit)
        if unit.visit is not None:
            return unit.size
        return self._unreported.pop(unit.position.trial.id, 0.0)

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


NO_UNITS: UnitsOfTrials = {}


class SimulatedGangs:
    """The gangs of a simulation.

    `positions`: how far each trial is. `time`: the units under way. `fault`: why a trial's
    next unit fails, given the trial and its visits so far; None: it does not fail.
    """

    def __init__(self, truth: Profile, units: SimulatedUnits, fault: Fault, now: Seconds) -> None:
        self.truth = truth
        self.units = units
        self.fault = fault
        self.time = Timetable(now)
        self.positions: dict[TrialId, SimulatedTrial] = {}
        # The gangs that run as planned, and those that were stopped or wait to start.
        self.runs: dict[Gang, SimulatedGang] = {}
        self.leaving = Leaving()
        self.ends = SlotEnds()
        self._built = BuiltModels()
        # Gangs whose lanes have no room together: when that is known, and what is then reported.
        self.refusals: dict[Gang, tuple[Seconds, list[Measured]]] = {}

    def at_work(self) -> list[SimulatedGang]:
        """The gangs that run as planned, and those that complete their last visits."""
        return [*self.runs.values(), *self.leaving.runs]

    def go_by(self, truth: Profile) -> None:
        """Take another profile as true from now on."""
        self.truth = self.units.truth = self.units.meter.truth = truth
        for run in self.at_work():
            run.rates = self._rates(run.gang)
            for unit in run.units.values():
                self._schedule(run, unit, 0.0)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """Start a gang, stop one, or turn one into another: see `Backend.change`."""
        self.leaving.withdraw(before)
        old = None
        if before is not None:
            self.refusals.pop(before, None)
            old = self.runs.pop(before, None)
        if old is not None and (after is None or self.leaving.holds(after.trials)):
            self._leave(old, old.units)
            old = None
        if after is not None:
            self._turn(before, old, after)

    def _turn(self, before: Gang | None, old: SimulatedGang | None, after: Gang) -> None:
        """Start a gang, at once or when its slots and trials are free.

        Units of the `old` gang may go on in it; None: `before` has left already.
        """
        run = self._run_of(after)
        carried = NO_UNITS
        if old is not None:
            carried = self._carry(old, run)
        wait = max(0.0, self.leaving.free_at(after, self.time.now) - self.time.now)
        if carried:
            switch = self.truth.switch(before, after)
            self.units.meter.changed(before, after, switch)
            self._start(run, carried, switch + wait)
        elif wait > 0:
            self.leaving.waiting.append(after)
        else:
            self._start_afresh(run)

    def _run_of(self, gang: Gang) -> SimulatedGang:
        """The gang at its beginning, not yet at work."""
        return SimulatedGang.of(gang, self._rates(gang))

    def _rates(self, gang: Gang) -> Mapping[TrialId, float]:
        """Samples/s of each lane. Of a joint gang, the slot with the most to read sets the pace."""
        rates = self.truth.rates(gang)
        if not gang.joint:
            return rates
        even = evenness(gang, self.units.shards)
        return {trial: rate * even for trial, rate in rates.items()}

    def _start_afresh(self, run: SimulatedGang) -> None:
        """Have each lane begin a unit, once all models are built and all states are loaded.

        None does where the slot learns first that they have no room together.
        """
        gang = run.gang
        room = min(self.ends.memory.get(slot, inf) for slot in gang.slots)
        seconds, reports = self.units.meter.refused(gang, room)
        if reports:
            self.refusals[gang] = (self.time.now + seconds, reports)
            return
        wait = seconds + self._building(gang) + self._loading(gang)
        self._start(run, NO_UNITS, wait)

    def refused(self) -> list[Event]:
        """The events of gangs without room that end now: what slots learnt, and the ends."""
        events: list[Event] = []
        for gang, (time, reports) in list(self.refusals.items()):
            if time <= self.time.now + TICK:
                del self.refusals[gang]
                for report in reports:
                    events += [Advanced({report.trial: 0.0}), report]
                events.append(Ended(gang))
        return events

    def _shrink_refusals(self, trials: Trials = frozenset(), slots: Slots = frozenset()) -> None:
        """Take these trials and slots out of the gangs that are to be refused."""
        for gang, (time, reports) in list(self.refusals.items()):
            rest = prune(gang, trials, slots)
            if rest == gang:
                continue
            del self.refusals[gang]
            if rest is not None:
                rest_reports = [each for each in reports if each.trial in rest.trials]
                self.refusals[rest] = (time, rest_reports)

    def _start(self, run: SimulatedGang, carried: UnitsOfTrials, wait: Seconds) -> None:
        """Have each lane begin a unit, or go on with the one that it brings along."""
        for lane in run.gang.lanes:
            if lane.trial in carried:
                self._schedule(run, carried[lane.trial], wait)
            elif not self.positions[lane.trial].over:
                self._begin(run, lane, wait)
        if run.units:
            self.runs[run.gang] = run

    def _building(self, gang: Gang) -> Seconds:
        """Seconds until each slot has built the models of its lanes, one after the other."""
        times: dict[SlotId, Seconds] = {}
        for lane in gang.lanes:
            cost = self.truth.cost(lane.trial)
            for slot in lane.slots:
                seconds = self._built.build(lane.trial, slot, cost)
                times[slot] = times.get(slot, 0.0) + seconds
                if seconds:
                    self.units.meter.built(lane.trial, cost.build, seconds - cost.build)
        return max(times.values())

    def _loading(self, gang: Gang) -> Seconds:
        """Seconds until all states that lie elsewhere are loaded."""
        positions = self.positions
        far = [lane for lane in gang.lanes if positions[lane.trial].is_far(lane.slots)]
        if not far:
            return 0.0
        self.units.meter.hopped(far)
        return self.truth.switch(None, replace(gang, lanes=tuple(far)))

    def _leave(self, run: SimulatedGang, units: UnitsOfTrials) -> None:
        """Stop the lanes of these units: visits under way are completed, all else is dropped."""
        for unit in units.values():
            unit.version = 0
        late = _to_complete(run, units, self.time.now)
        leaving = run.leaving_part(late)
        if leaving is not None:
            self.leaving.runs.append(leaving)
            for unit in late.values():
                self.time.schedule(leaving, unit)

    def _carry(self, old: SimulatedGang, run: SimulatedGang) -> UnitsOfTrials:
        """Take over the units that go on in the new gang. The other lanes leave.

        A unit goes on if its trial is in both gangs and both read the same.
        """
        staying: UnitsOfTrials = {}
        parting: UnitsOfTrials = {}
        same = same_stream(old.gang, run.gang)
        for trial, unit in old.units.items():
            units = parting
            if same and trial in run.stream:
                units = staying
            units[trial] = unit
        self._leave(old, parting)
        for trial, unit in staying.items():
            run.take_over(old, trial, unit)
        for lane in run.gang.lanes:
            if lane.trial in staying:
                self.positions[lane.trial].at = lane.slots
        return staying

    def start_waiting(self) -> None:
        """Start the gangs whose slots and trials have become free."""
        for gang in self.leaving.ready(self.time.now):
            self._start_afresh(self._run_of(gang))

    def _begin(self, run: SimulatedGang, lane: Lane, wait: Seconds = 0.0) -> None:
        """Begin the lane's next unit now, after this wait."""
        position = self.positions[lane.trial]
        until = self.ends.last(lane.slots) - wait
        unit = self.units.next_of(run, position, self.time.now, until)
        rate = run.rates[lane.trial]
        if not self.ends.has_time(lane, unit, rate, until - self.time.now):
            return
        position.at = lane.slots
        run.units[lane.trial] = unit
        self._schedule(run, unit, wait)

    def _schedule(self, run: SimulatedGang, unit: UnitAtWork, wait: Seconds) -> None:
        """Have the unit go on in this gang, after this wait."""
        self.time.schedule(run, unit, wait)
        self.units.meter.begun(run, unit)

    def finished(self) -> list[Event]:
        """The events of the units that end now."""
        events: list[Event] = []
        while ending := self.time.take():
            endings = [ending]
            while ending := self.time.take():
                endings.append(ending)
            # As on the real backends, lanes that end together report before any of them leaves.
            over: list[tuple[SimulatedGang, SimulatedTrial, str | None]] = []
            for unit, run in endings:
                unit.version = 0
                position = unit.position
                del run.units[position.trial.id]
                why = self.fault(position.trial, len(position.visits))
                if why is None:
                    events += self._report(run, unit)
                over.append((run, position, why))
            for run, position, why in over:
                events += self._after(run, position, why)
        return events

    def _report(self, run: SimulatedGang, unit: UnitAtWork) -> list[Event]:
        """The events of a unit that was made."""
        position = unit.position
        events = self.units.reported(run, unit, self.time.complete(unit))
        run.take(position.trial.id, unit.size)
        position.over = is_met(position.trial, position.samples)
        return events

    def _after(self, run: SimulatedGang, position: SimulatedTrial, why: str | None) -> list[Event]:
        """The events that follow the end of a unit. `why`: why it failed; None: it was made."""
        if why is None:
            return self._go_on(run, position)
        trial = position.trial.id
        position.over = True
        return [Failed(trial, why), *self.shrink(run, _only(trial))]

    def _go_on(self, run: SimulatedGang, position: SimulatedTrial) -> list[Event]:
        """The events that follow for a lane that has completed a unit, and for its gang."""
        trial = position.trial.id
        events: list[Event] = []
        goes_on = False
        if run.leaving:
            self.shrink(run, _only(trial))
        elif run.is_over():
            if self.runs.pop(run.gang, None) is not None:
                events.append(Ended(run.gang))
        else:
            goes_on = True
        if position.over:
            self.leaving.shrink(_only(trial))
            events.append(Finished(trial))
        if goes_on:
            events += self._next(run, position)
        return events

    def _next(self, run: SimulatedGang, position: SimulatedTrial) -> list[Event]:
        """Have a lane of a gang that goes on leave, begin a unit, or do nothing: its events."""
        trial = position.trial.id
        if position.over:
            return self.shrink(run, _only(trial))
        if run.room(trial) > EPS:
            lane = next(lane for lane in run.gang.lanes if lane.trial == trial)
            self._begin(run, lane)
        return []

    def shrink(
        self, run: SimulatedGang, trials: Trials = frozenset(), slots: Slots = frozenset()
    ) -> list[Event]:
        """Take lanes or slots out of a gang. The rest goes on at another rate, or is over."""
        old = run.gang
        rest = prune(old, trials, slots)
        # The gang is at work no more.
        if run.leaving:
            self.leaving.runs.remove(run)
        else:
            del self.runs[run.gang]
        if rest is None:
            run.forget(old.trials)
            return []
        if rest.joint and slots:  # a shard has lost its reader: the unit is void
            run.forget(old.trials)
            return [] if run.leaving else [Ended(rest)]
        run.forget(set(old.trials).difference(rest.trials))
        wait = self.truth.switch(old, rest) if slots else 0.0
        # What is left of a gang goes on after this wait, unless it has nothing left to read.
        run.gang = rest
        run.rates = self._rates(rest)
        if run.leaving:
            self.leaving.runs.append(run)
        elif run.is_over():
            return [Ended(rest)]
        else:
            self.runs[rest] = run
        for unit in run.units.values():
            self._schedule(run, unit, wait)
        return []

    def lose(self, slots: Slots) -> list[Event]:
        """Take these slots away, with the models and the states on them."""
        events: list[Event] = []
        for slot in slots:
            self._built.lose(slot)
        self.leaving.shrink(slots=slots)
        self._shrink_refusals(slots=slots)
        for run in self.at_work():
            if not slots.isdisjoint(run.gang.slots):
                events += self.shrink(run, slots=slots)
        return events + _lose_states(self.positions.values(), slots)

    def fail(self, trial: TrialId) -> list[Event]:
        """Have the trial, which failed, train no more."""
        self.positions[trial].over = True
        self.leaving.shrink(_only(trial))
        self._shrink_refusals(_only(trial))
        for run in self.at_work():
            if trial in run.gang.trials:
                return self.shrink(run, _only(trial))
        return []


def part(gangs: SimulatedGangs) -> list[Event]:
    """Let slots leave that have no time for another unit; what only they hold becomes durable."""
    slots = parting(gangs)
    if not slots:
        return []
    gangs.ends.leave(slots)
    return [*kept_at(gangs, slots), Left(slots), *gangs.lose(slots)]


def kept_at(gangs: SimulatedGangs, slots: Slots) -> list[Event]:
    """Make durable what lies only at these slots, whose leave was known before."""
    events: list[Event] = []
    for position in gangs.positions.values():
        alone = position.at and slots.issuperset(position.at)
        if alone and position.is_ahead() and not position.over:
            events.append(position.keep())
    return events


def parting(gangs: SimulatedGangs) -> Slots:
    """The slots that have no time for another unit, and none under way."""
    if not gangs.ends.over:
        return frozenset()
    busy: set[SlotId] = set()
    for run in gangs.at_work():
        for lane in run.gang.lanes:
            if lane.trial in run.units:
                busy.update(lane.slots)
    return frozenset(gangs.ends.over - busy)


def _only(trial: TrialId) -> Trials:
    return frozenset((trial,))


def _to_complete(
    run: SimulatedGang, units: Mapping[TrialId, UnitAtWork], now: Seconds
) -> UnitsOfTrials:
    """The units with a visit that began before now; none in a gang with a quota."""
    if run.gang.quota is not None:
        return {}
    return {
        trial: unit
        for trial, unit in units.items()
        if unit.visit is not None and unit.begun < now - TICK
    }


def _lose_states(positions: Iterable[SimulatedTrial], slots: Slots) -> list[Event]:
    """Take trials whose newest state was only on these slots back to their durable one."""
    events: list[Event] = []
    for position in positions:
        if slots.isdisjoint(position.at):
            continue
        position.at = tuple(slot for slot in position.at if slot not in slots)
        if not position.at and position.is_ahead():
            events.append(position.fall())
    return events
