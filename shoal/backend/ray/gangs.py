"""Gangs of one slot each on Ray: their rounds, and what follows from each. `Work`: of all gangs."""

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Any

from ray.exceptions import RayTaskError

from shoal.backend.node.messages import Broken, Cut, Lost, Outcome, Trained, Unreadable
from shoal.backend.positions import GangRun, Position, Positions, fallen
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.slot_process import Call, Events, SlotProcess
from shoal.backend.ray.slot_watch import UnitTimes, is_over
from shoal.backend.ray.slots import Slots
from shoal.backend.ray.states import States, Stored, carries, durable_name
from shoal.core.cluster import SlotId
from shoal.core.event import Ended, Event, Failed, Finished, Joined, Retired, Unread
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.trial import Trial, TrialId
from shoal.train.recipe.unit import PackRefused, Returned, TrialError, Unit


@dataclass(frozen=True, slots=True)
class Work:
    """What all gangs at work share.

    Gangs on one slot and gangs over several wait, stop, lose slots and settle in ways of their own.
    They meet here: a trial is at work in one gang, and a slot works for one of them, at a time.
    """

    course: Positions
    fleet: Fleet
    slots: Slots
    states: States
    # A slot that is to leave has nothing to do any more.
    depart: Callable[[SlotProcess], Events]
    # Something came to its end: others may begin.
    settled: Callable[[], None]
    # Trials that are not through.
    unfinished: set[TrialId] = field(default_factory=set)
    # How long units took: slots of which the end is known begin none that could not end.
    times: UnitTimes = field(default_factory=UnitTimes)
    # Of what slots are given.
    numbers: Iterator[int] = field(default_factory=count)

    def position(self, trial: TrialId) -> Position:
        """How far the trial is."""
        return self.course.positions[trial]

    def submit(self, trial: Trial, tell: Callable[[Event], None]) -> None:
        """Note a trial that is new, extended, or goes on; it ends if its function is over."""
        for event in self.course.submit(trial):
            tell(event)
        if self.position(trial.id).over:
            tell(self.position(trial.id).ending())
        else:
            self.unfinished.add(trial.id)

    @property
    def active(self) -> set[TrialId]:
        """The trials at work."""
        return self.states.active

    def back(self, trial: TrialId) -> Event:
        """Take the trial of a void unit back to where the unit began, if that state is stored."""
        if isinstance(self.position(trial).carried, Stored):
            return self.course.abandon(trial)
        return self.course.fall(trial)

    def unread(
        self, process: SlotProcess, run: GangRun, units: Iterable[Unit], unreadable: Unreadable
    ) -> Events:
        """The events of a shard that the process cannot read for these units: the gang is over.

        If trials need not wait for the shard, other nodes may have it.
        """
        waiting = run.waiting(units, unreadable.shard)
        events: Events = [Unread(process.id, unreadable.shard, unreadable.why, waiting)]
        if not waiting:
            self.slots.shards.bar(process, unreadable.shard)
            events += self.slots.shards.update(self.slots.ready, ())
        return [*events, Ended(run.gang)]

    def note_ends(self, events: Events) -> None:
        """Note what a round's end says: trials that are through, and slots with less memory."""
        for event in events:
            if isinstance(event, Joined):
                slot = event.slots[0]
                self.slots.processes[slot.id].slot = slot
            elif isinstance(event, Finished | Failed | Retired):
                self.unfinished.discard(event.trial)

    def has_time(self, process: SlotProcess, trials: Sequence[TrialId]) -> bool:
        """Whether a unit of these trials can end there before the slot has to leave.

        If not, the slot leaves as soon as slots are looked at.
        """
        if process.leaving:
            return False
        if process.ready_slot.until == inf:
            return True
        return not is_over(process, self.slots.now(), self.times.needed(trials))

    def reported(
        self,
        process: SlotProcess,
        calls: list[Call],
        call: Call,
        future: Any,
        settle: Callable[[Any], Events],
    ) -> Events:
        """The events of a slot's answer to one of its calls, or of its death.

        Raises:
            Exception: disk, data or Shoal itself failed, not a trial.
        """
        if not self.slots.is_current(process) or call not in calls:
            return []

        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self.slots.died(process, error)

        process.finish(calls, call)
        outcome = future.result()
        if isinstance(outcome, Broken):
            raise outcome.error

        events = settle(outcome)
        self.times.learn(events)
        if process.leaving and not process.at_work:
            events += self.depart(process)
        self.settled()
        return events


# Units of a whole-data gang that its slot is given at once, so that it never waits for the driver.
DEPTH = 2

Parcels = dict[TrialId, Any]  # references to states
Trials = Sequence[TrialId]
Units = dict[TrialId, Unit]
Reported = Callable[[SlotProcess, Call, Any], Events]


class NextRounds:
    """Gives slots the next rounds of their gangs.

    `reported`: what to do when a slot answers.
    """

    def __init__(self, work: Work, reported: Reported) -> None:
        self._work = work
        self._course = work.course
        self._reported = reported
        # Trials after the units given out.
        self._ahead = Positions(work.course.seed, work.course.sizes, work.course.validate_every)

    def fill(self, process: SlotProcess) -> None:
        """Give the slot its gang's next rounds."""
        run = process.run
        assert run is not None, "only of a process at work"
        depth = DEPTH
        if carries(run):
            depth = 1
        while len(process.calls) < depth and not (process.stopping or process.leaving):
            trials = self._next(process, run.gang.trials)
            if not trials:
                return
            self._give(process, run, trials)

    def _next(self, process: SlotProcess, trials: Trials) -> Trials:
        """The trials that make another unit after those given out already."""
        if not process.calls:
            return trials
        if any(not call.dropped.isdisjoint(trials) for call in process.calls):
            return ()  # such a trial must know first what it goes on from
        before = process.calls[-1].units
        return [t for t in trials if t in before and not before[t].last]

    def _give(self, process: SlotProcess, run: GangRun, trials: Trials) -> None:
        """Give the slot one more round."""
        parcels: Parcels = {}
        call = Call(next(self._work.numbers), {}, {})
        if process.calls:
            call.units = self._units_after(run, trials, process.calls)
        else:
            parcels = self._first(call, process, run, trials)

        # Of many visits: ten times as fast as Ray's own pickling.
        measured = rated_before(call.units, self._course.measurements.rated)
        task = pickle.dumps((call.units, run.gang.fused, measured))
        if not process.at_work:
            call.begun = monotonic()
        results = 1 + len(call.units)
        report, *states = process.call(
            "train", "train", call.number, task, parcels, results=results
        )
        call.states = dict(zip(call.units, states, strict=True))
        process.begin(process.calls, call)
        then = partial(self._reported, process, call)
        self._work.fleet.follow(report, then, at_once=call.note_end)

    def _first(self, call: Call, process: SlotProcess, run: GangRun, trials: Trials) -> Parcels:
        """Give the call the trials' next units; returns their states in the object store."""
        carry = carries(run)
        parcels: Parcels = {}
        units: Units = {}
        origins: dict[TrialId, SlotId] = {}
        for trial in trials:
            stored = self._work.states.source(trial, process, void=carry)
            if stored is not None:
                parcels[trial] = stored.ref
                origins[trial] = stored.slot
            name = durable_name(self._work.position(trial))
            units[trial] = self._course.unit(run, trial, name, carry)

        call.units = units
        call.origins = origins
        return parcels

    def _units_after(self, run: GangRun, trials: Trials, calls: Sequence[Call]) -> Units:
        """The trials' units after those that these calls give."""
        units: Units = {}
        for trial in trials:
            position = self._work.position(trial)
            visits = list(position.visits)
            samples = position.samples
            for call in calls:
                visit = call.units[trial].visit
                size = self._course.sizes[visit.shard]
                visits.append(visit._replace(samples=size))
                samples += size
            self._ahead.positions[trial] = Position(position.trial, tuple(visits), samples)
            units[trial] = self._ahead.unit(run, trial, None, carry=False)
        return units


def rated_before(units: Mapping[TrialId, Unit], rated: Collection[str]) -> frozenset[str] | None:
    """The signatures whose rates are known (`rated`), for the slot that makes these units.

    None where all trials have made visits: they told their rates then, whichever slot it was.
    """
    if all(unit.visits for unit in units.values()):
        return None
    return frozenset(rated)


Outcomes = Mapping[TrialId, Outcome]


class OneSlotGangs:
    """The gangs of one slot each, at work or waiting for it."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._course = work.course
        self._rounds = NextRounds(work, self._reported)
        # Gangs whose slot or trial is still at work.
        self.waiting: dict[SlotId, GangRun] = {}

    def at_work(self, process: SlotProcess, number: int) -> Collection[TrialId]:
        """The trials of that round, if it is the one under way there and counts."""
        if process.run is None or not process.calls:
            return ()
        call = process.calls[0]
        if call.number != number or call.void:
            return ()
        return set(process.run.gang.trials) - call.dropped

    # -- gangs ---------------------------------------------------------------------------------

    def wait(self, gang: Gang) -> None:
        """Have the gang begin as soon as it can."""
        slot = _slot_of(gang)
        if slot in self._work.slots.processes:
            self.waiting[slot] = GangRun.of(gang)

    def begin(self) -> None:
        """Start the gangs that need not wait any more."""
        for slot, run in list(self.waiting.items()):
            process = self._work.slots.processes[slot]
            over = frozenset(run.gang.trials) - self._work.unfinished
            rest = prune(run.gang, over)
            if rest is None:
                del self.waiting[slot]
                continue
            run.gang = rest
            if self._is_free(process, rest):
                del self.waiting[slot]
                self._work.active.update(rest.trials)
                process.run = run
                process.stopping = False
                self._rounds.fill(process)

    def _is_free(self, process: SlotProcess, gang: Gang) -> bool:
        """Whether the slot is idle and has time, and no trial of the gang is at work elsewhere."""
        if process.slot is None or process.run is not None or process.shares:
            return False
        free = self._work.active.isdisjoint(gang.trials)
        return free and self._work.has_time(process, gang.trials)

    def shrinks(self, before: Gang, after: Gang) -> bool:
        """Whether a gang at work only loses lanes.

        If so, what is under way of these comes to nothing, and the others go on.
        """
        if not goes_on(before, after) or len(after.slots) > 1:
            return False

        process = self._process_of(before)
        if process is None or process.run is None:
            return False

        process.run.turn_into(after)
        for trial in set(before.trials) - set(after.trials):
            self._drop(process, trial)
            self._work.active.discard(trial)
            self._work.position(trial).carried = None

        return True

    def stop(self, gang: Gang) -> None:
        """Stop the gang after the round under way, which is void if the gang has a quota.

        Rounds given out after it are called off.
        """
        slot = _slot_of(gang)
        if slot in self.waiting and self.waiting[slot].gang == gang:
            del self.waiting[slot]
            return

        process = self._process_of(gang)
        if process is None or process.stopping:
            return

        process.stopping = True
        if gang.quota is None:
            self.call_off(process)
        else:
            _halt(process)

    def _process_of(self, gang: Gang) -> SlotProcess | None:
        """The process that the gang is at work on, if it is."""
        process = self._work.slots.processes.get(_slot_of(gang))
        if process is None or process.run is None or process.run.gang != gang:
            return None
        return process

    def call_off(self, process: SlotProcess) -> None:
        """Leave out the rounds that have not begun."""
        for call in process.calls[1:]:
            process.call_off(call)

    def lose(self, process: SlotProcess) -> tuple[TrialId, ...]:
        """Forget what was under way at a slot that is gone: the trials that lost a unit there."""
        self.waiting.pop(process.id, None)
        trials: tuple[TrialId, ...] = ()
        if process.run is not None:
            trials = process.run.gang.trials
        self._work.active.difference_update(trials)
        process.run = None
        process.calls = []
        return trials

    # -- what comes back -----------------------------------------------------------------------

    def _reported(self, process: SlotProcess, call: Call, future: Any) -> Events:
        """The events of the slot's answer."""
        settle = partial(self._settled, process, call)
        return self._work.reported(process, process.calls, call, future, settle)

    def _settled(self, process: SlotProcess, call: Call, outcomes: Outcomes) -> Events:
        """The events of a round that is over; the slot gets the next one, if there is one."""
        run = process.run
        assert run is not None, "it has calls"
        events = self._settle(process, run, call, outcomes)
        self._rounds.fill(process)
        if not process.calls:
            if call.void or not run.over:  # else they went at the round's end
                self._work.active.difference_update(run.gang.trials)
            process.run = None

        return events

    def _settle(self, process: SlotProcess, run: GangRun, call: Call, outcomes: Outcomes) -> Events:
        """The events of what came of the round's units."""
        counting = _counting(run, call, outcomes)
        if call.void:
            return [self._course.abandon(trial) for trial in counting]
        for outcome in counting.values():
            if isinstance(outcome, Unreadable):
                return self._without_shard(process, run, call, outcome)

        call.measure_way(outcomes)
        events: Events = []
        failed: dict[TrialId, TrialError] = {}
        # The trials whose states are gone go on from what is durable, and can be read.
        lost = fallen(self._course, counting)
        forgotten = [trial for trial, outcome in counting.items() if isinstance(outcome, Lost)]
        lost |= {trial: self._course.fall(trial) for trial in forgotten}
        for trial, outcome in counting.items():
            if trial in lost:
                continue
            match outcome:
                case Trained():
                    events += self._trained(process, call, trial, outcome)
                case TrialError():
                    failed[trial] = outcome
                case Returned():
                    self._drop(process, trial)
                    events += self._work.position(trial).returned(outcome)

        for trial in [*failed, *lost]:
            self._drop(process, trial)
            error = failed.get(trial)
            if not isinstance(error, PackRefused) or error.begun:
                self._work.position(trial).carried = None
        events += lost.values()
        if run.shards_left is not None and lost:
            # The shards of a gang may be wrong for its trial now: the policy decides anew.
            process.stopping = True
            return [*events, Ended(run.gang)]

        if any(trial not in lost and not isinstance(counting[trial], Cut) for trial in counting):
            events += self._over(process, run, failed, lost)
        return events

    def _without_shard(
        self, process: SlotProcess, run: GangRun, call: Call, unreadable: Unreadable
    ) -> Events:
        """End the gang, whose round came to nothing, as a shard cannot be read there."""
        process.stopping = True
        trials = [trial for trial in call.units if trial in run.gang.trials]
        units = [call.units[trial] for trial in trials]
        for trial in trials:
            self._drop(process, trial)
        back = [self._work.back(trial) for trial in trials]
        return [*back, *self._work.unread(process, run, units, unreadable)]

    def _over(
        self,
        process: SlotProcess,
        run: GangRun,
        failed: Mapping[TrialId, TrialError],
        lost: Collection[TrialId],
    ) -> Events:
        """The events of what ends with the round.

        If the gang is over (it had no room) while other rounds of it are out, these are void.
        """
        before = set(run.gang.trials)
        events = self._course.end_round(run, process.ready_slot, failed, lost)
        self._work.note_ends(events)
        if not run.over:
            self._work.active.difference_update(before - set(run.gang.trials))
            return events

        process.stopping = True
        out: set[TrialId] = set()  # trials that still have rounds out
        for call in process.calls:
            out |= (call.units.keys() - call.dropped) & self._work.unfinished
        self._work.active.difference_update(before - out)
        if not out:
            return events

        # How far the rounds that are out went, nobody knows.
        _halt(process)
        rest = prune(run.gang, frozenset(run.gang.trials) - out)
        run.gang = rest or run.gang
        fell = [self._course.fall(trial) for trial in sorted(out)]
        return [*fell, *events]

    def _trained(
        self, process: SlotProcess, call: Call, trial: TrialId, outcome: Trained
    ) -> Events:
        """The events of a unit that was made."""
        states = self._work.states
        events = states.trained(process, call, trial, outcome)
        states.settle((process,), call, trial, outcome)
        if outcome.done.over:
            self._drop(process, trial)
        return events

    def _drop(self, process: SlotProcess, trial: TrialId) -> None:
        """Have the trial's units that the slot was given come to nothing, as one did before."""
        for call in process.calls:
            call.dropped.add(trial)
            if call.dropped.issuperset(call.units):
                process.call_off(call)


def _counting(run: GangRun, call: Call, outcomes: Outcomes) -> Outcomes:
    """The outcomes of trials that are still in the gang."""
    counting: dict[TrialId, Outcome] = {}
    for trial, outcome in outcomes.items():
        if trial in run.gang.trials and trial not in call.dropped:
            counting[trial] = outcome
    return counting


def _halt(process: SlotProcess) -> None:
    """Stop the rounds that are out there: they are void."""
    for call in process.calls:
        call.void = True
        process.halt(call)


def _slot_of(gang: Gang) -> SlotId:
    """The slot of a gang that has one."""
    return gang.lanes[0].slots[0]
