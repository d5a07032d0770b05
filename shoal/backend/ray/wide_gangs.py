"""Gangs over several slots on Ray: which processes make a unit together, and what follows.

The processes that make a unit of a lane form a generation, in which each has a seat; only this side
numbers generations. See docs/decisions/0010. A lane is in one of these states:

| state   | of `WideLane`        | means                                  | ends by               |
| ------- | -------------------- | -------------------------------------- | --------------------- |
| waiting | not `begun`          | a slot of it, or its trial, is at work | `begin`               |
| at work | `unit`               | a generation makes the unit            | `_trained`, `_failed` |
| through | `through`, no `unit` | waits for the lanes beside it          | `advance`             |
| leaving | `leaving`            | makes its last unit, out of its gang   | `_through`            |
| void    | `leaving`, `void`    | likewise, and the unit does not count  | `_halted`             |
| over    | in no list           | nothing is under way                   |                       |

At work, `_order` has slots join and leave the unit. When one is to leave (`release`) or is gone
(`lose`), the unit goes on in a new generation (`_regroup`) if one of those left has the trial's
state; else it begins anew (`_restart`). Lanes leave by `stop`, `turns` and `lose`.
"""

import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shoal.backend.node.messages import Cut, Drifting, Lost, Share, Trained, Unreadable
from shoal.backend.positions import GangRun, fall_back
from shoal.backend.ray.cluster import Gradients
from shoal.backend.ray.gangs import Work
from shoal.backend.ray.slot_process import Call, Events, SlotProcess
from shoal.backend.ray.states import Resident, Stored, carries, durable_name
from shoal.core.check import PlanError
from shoal.core.event import Ended, Event, Finished
from shoal.core.plan import Gang, prune, same_stream
from shoal.core.trial import TrialId
from shoal.train.recipe.seat import Move, Seat
from shoal.train.recipe.unit import Made, OutOfMemory, StateLost, TrialError, Unit

Processes = Sequence[SlotProcess]
Seats = dict[SlotProcess, Seat]
Calls = dict[SlotProcess, Call]


@dataclass(eq=False, slots=True)
class WideGangRun:
    """A gang at work, or that waits for its slots. A round is a unit of each lane."""

    run: GangRun
    lanes: dict[TrialId, "WideLane"] = field(default_factory=dict)

    @property
    def through(self) -> bool:
        """Whether all lanes are through with their units of the round."""
        return all(lane.through for lane in self.lanes.values())

    def without(self, trial: TrialId) -> None:
        """Take the trial out of the gang, unless it is the only one."""
        self.run.gang = prune(self.run.gang, frozenset((trial,))) or self.run.gang


@dataclass(eq=False, slots=True)
class WideLane:
    """A lane: the slots it is to have, and who makes its unit.

    Several processes make a unit together, each its share of every batch. They form a generation,
    in which each has a seat. When slots join or leave, the unit goes on in a new generation, in
    which somebody must have the trial's state (`holders`). A process says that its pass is made
    (`finished`); then rank 0 reports the unit, and the others are told of it.
    """

    trial: TrialId
    gang_run: WideGangRun
    members: list[SlotProcess]  # in gang order
    begun: bool = False
    through: bool = False  # with its unit of the round
    leaving: bool = False  # from its gang, after the unit under way
    error: TrialError | None = None
    unit: Unit | None = None  # under way
    # What the unit went on from, if that lies in the object store.
    stored: Stored | None = None
    # Of the newest generation.
    seats: Seats = field(default_factory=dict)
    # Who had the trial's state when the unit began, and did not leave it.
    holders: set[SlotProcess] = field(default_factory=set)
    # Of the unit, not answered yet.
    calls: Calls = field(default_factory=dict)
    # Who made its pass, while rank 0 has yet to say so.
    finished: set[SlotProcess] = field(default_factory=set)
    steady: bool = False  # the newest generation is the one at work, and complete
    reused: bool = False  # the unit began in the generation of the one before it
    void: bool = False  # whatever comes of the unit does not count

    @property
    def run(self) -> GangRun:
        """The run of its gang."""
        return self.gang_run.run

    @property
    def at_unit(self) -> list[SlotProcess]:
        """The processes that make the unit, or are to."""
        return [each for each in self.seats if each in self.calls or each in self.finished]

    def begin(self, unit: Unit) -> None:
        """Note that the next unit is under way."""
        self.unit = unit
        self.through = False
        self.error = None
        self.calls = {}
        self.finished = set()

    def end(self) -> None:
        """Note that no unit is under way any more."""
        self.unit = None
        self.calls = {}
        self.finished = set()
        self.steady = False


class WideGangs:
    """All gangs over several slots, and those of one trial that may get more slots.

    `gradients`: how they travel between the processes of a lane.
    """

    def __init__(self, work: Work, gradients: Gradients) -> None:
        self._work = work
        self._gradients: Gradients = gradients
        self._gang_runs: list[WideGangRun] = []
        self._leaving: list[WideLane] = []  # lanes that are gone, at their last unit
        self._generations: Counter[TrialId] = Counter()
        self._links = False  # a lane over several nodes was told to measure the links

    def _lanes(self) -> list[WideLane]:
        """All lanes; the list does not change when lanes come or go."""
        lanes = [lane for gang_run in self._gang_runs for lane in gang_run.lanes.values()]
        return lanes + self._leaving

    def _gang_run_of(self, gang: Gang) -> WideGangRun | None:
        """The run of this gang of the plan, if it is at work or waits."""
        return next((each for each in self._gang_runs if each.run.gang == gang), None)

    def at_work(self, process: SlotProcess, number: int) -> Collection[TrialId]:
        """The trial of that unit, if it is under way there and counts."""
        trials: list[TrialId] = []
        for lane in self._lanes():
            call = lane.calls.get(process)
            if call is not None and call.number == number and not lane.void:
                trials.append(lane.trial)
        return trials

    # -- gangs come ----------------------------------------------------------------------------

    def takes(self, gang: Gang) -> bool:
        """Whether such a gang is for here: over several slots, or one trial that may get more.

        Raises:
            PlanError: its lanes share some of several slots.
        """
        if len(gang.slots) > 1:
            if _overlap(gang):
                raise PlanError(
                    "the ray backend runs lanes over several slots only where they share none; "
                    f"got {gang.lanes}"
                )
            return True

        _, widest = self._work.position(gang.trials[0]).trial.widths
        return widest > 1 and len(gang.lanes) == 1 and (gang.quota is None or gang.measures)

    def wait(self, gang: Gang) -> None:
        """Have the gang begin; each lane as soon as its slots are free."""
        gang_run = WideGangRun(GangRun.of(gang))
        self._gang_runs.append(gang_run)
        self._place(gang_run)

    @property
    def waiting(self) -> bool:
        """Whether a lane still waits for its slots."""
        return any(not lane.begun for lane in self._lanes())

    def begin(self) -> None:
        """Start the lanes that need not wait any more."""
        for lane in self._lanes():
            if lane.begun:
                continue
            if lane.trial not in self._work.unfinished:  # it has nothing to do any more
                lane.gang_run.without(lane.trial)
                self._drop(lane)
                self._work.fleet.put(self.advance)
            elif lane.trial not in self._work.active and self._is_free(lane):
                lane.begun = True
                self._work.active.add(lane.trial)
                self._give(lane)

    def _is_free(self, lane: WideLane) -> bool:
        """Whether the lane has slots with time for it, and nothing else is under way at any."""
        for process in lane.members:
            if process.slot is None or process.run is not None or process.at_work:
                return False
        last = max(lane.members, key=lambda process: process.ready_slot.until, default=None)
        return last is not None and self._work.has_time(last, [lane.trial])

    def _place(self, gang_run: WideGangRun) -> None:
        """Give each lane of the gang the slots that the gang says.

        A lane at work has them from now on, if one of them has its state.
        """
        processes = self._work.slots.processes
        for planned in gang_run.run.gang.lanes:
            members = [processes[slot] for slot in planned.slots if slot in processes]
            lane = gang_run.lanes.get(planned.trial)
            if lane is None:
                gang_run.lanes[planned.trial] = WideLane(planned.trial, gang_run, members)
            elif lane.members != members:
                lane.members = members
                if lane.unit is not None and not lane.holders.isdisjoint(_usable(members)):
                    self._order(lane, _usable(members))

    # -- gangs go ------------------------------------------------------------------------------

    def turns(self, before: Gang, after: Gang) -> bool:
        """Whether lanes at work go on in the other gang, which has the same stream.

        Lanes that it lacks leave after their unit. Those that a gang loses without a decision
        about it (its turn is the same) are over at once.
        """
        gang_run = self._gang_run_of(before)
        if gang_run is None or not same_stream(before, after) or _overlap(after):
            return False
        lanes = gang_run.lanes
        if not any(trial in lanes and lanes[trial].begun for trial in after.trials):
            return False

        for trial in lanes.keys() - set(after.trials):
            self._part_with(lanes[trial], at_once=before.since == after.since)

        gang_run.run.turn_into(after)
        self._place(gang_run)
        self._work.fleet.put(self.advance)  # the others may be through
        return True

    def stop(self, gang: Gang) -> None:
        """Stop the gang after the round under way, which is void if the gang has a quota."""
        gang_run = self._gang_run_of(gang)
        if gang_run is not None:
            self._gang_runs.remove(gang_run)
            for lane in list(gang_run.lanes.values()):
                self._part_with(lane, at_once=False)

    def _part_with(self, lane: WideLane, at_once: bool) -> None:
        """Take the lane out of its gang: at once, or after the unit under way."""
        del lane.gang_run.lanes[lane.trial]
        if lane.unit is None or at_once:
            self._halt(lane)
            self._drop(lane)
            if at_once:
                self._work.position(lane.trial).carried = None
            return

        self._let_end(lane, lane.at_unit)
        if lane.run.quota is not None:
            lane.void = True
            for process, call in lane.calls.items():
                process.halt(call)

    def _let_end(self, lane: WideLane, members: list[SlotProcess]) -> None:
        """Have these processes make the lane's unit to its end; then the lane leaves."""
        lane.leaving = True
        lane.members = members
        self._leaving.append(lane)

    def _drop(self, lane: WideLane) -> None:
        """Forget the lane, which is at work no more."""
        if lane.gang_run.lanes.get(lane.trial) is lane:
            del lane.gang_run.lanes[lane.trial]
        if lane in self._leaving:
            self._leaving.remove(lane)
        if lane.begun:
            self._work.active.discard(lane.trial)
        self._drop_empty(lane.gang_run)

    def _drop_empty(self, gang_run: WideGangRun) -> None:
        """Forget the gang if it has no lanes any more."""
        if not gang_run.lanes and gang_run in self._gang_runs:
            self._gang_runs.remove(gang_run)

    # -- a unit begins -------------------------------------------------------------------------

    def _give(self, lane: WideLane) -> None:
        """Begin the lane's next unit. Slots that are at work for others join when they are free."""
        members = _usable(lane.members)
        if not members:
            return  # the gang shrinks by it when they have left

        run = lane.run
        makers = [each for each in members if not _queued(each, lane.trial)] or members
        if run.gang.joint:
            if len(members) < len(run.gang.shards):
                return  # a shard has no reader: the gang ends when that slot has left
            makers = members

        # Who of these has the trial's state. If none has, the first gets what is stored.
        position = self._work.position(lane.trial)
        carry = carries(run)
        lane.holders = set()
        if isinstance(position.carried, Resident):
            lane.holders = set(makers).intersection(position.carried.processes)
        lane.stored = None
        if carry or not lane.holders:
            lane.stored = self._work.states.source(lane.trial, makers[0], void=carry)
            lane.holders = {makers[0]}
        if isinstance(position.carried, Resident):  # it goes on here, and nowhere else
            for process in set(position.carried.processes).difference(makers):
                process.forget(lane.trial)
            position.carried = Resident(tuple(makers))

        lane.begin(self._work.course.unit(run, lane.trial, durable_name(position), carry))
        lane.reused = lane.steady and list(lane.seats) == makers
        if not lane.reused:
            lane.seats = self._seated(lane, makers, ())
        lane.steady = True
        for process in makers:
            self._call(lane, process, joins=False, first=process is makers[0])

        if len(makers) < len(members):
            self._order(lane, members)

    def _seated(self, lane: WideLane, processes: Processes, joining: tuple[int, ...]) -> Seats:
        """The seats of a new generation; `joining`: ranks of those without the trial's state."""
        self._generations[lane.trial] += 1
        generation = self._generations[lane.trial]
        anchors = [process for process in processes if process in lane.holders] or processes
        store = ""
        if len(processes) > 1:  # in turn, lest all depends on one
            store = anchors[generation % len(anchors)].meeting
        hosts = [process.meeting.rpartition(":")[0] for process in processes]
        links = not self._links and len(set(hosts)) > 1
        self._links = self._links or links
        seats: Seats = {}
        for rank, (process, host) in enumerate(zip(processes, hosts, strict=True)):
            seats[process] = Seat(
                lane.trial,
                generation,
                rank,
                len(processes),
                store,
                host=host,
                joining=joining,
                gradients=self._gradients,
                links=links,
            )

        return seats

    def _call(self, lane: WideLane, process: SlotProcess, joins: bool, first: bool = False) -> None:
        """Have the process take part in the unit under way.

        `first`: the process gets the state that the unit goes on from, if it does not have it.
        """
        unit = lane.unit
        assert unit is not None, "of a unit under way"
        call = Call(next(self._work.numbers), {}, {})
        parcel = []
        if not first:
            unit = replace(unit, source=None)
        elif lane.stored is not None:
            parcel.append(lane.stored.ref)
            call.origins = {lane.trial: lane.stored.slot}

        call.units = {lane.trial: unit}
        task = pickle.dumps((unit, lane.seats[process], joins))
        report, state = process.call("train", "wide", call.number, task, parcel, results=2)
        call.states = {lane.trial: state}
        lane.calls[process] = call
        process.begin(process.shares, call)
        self._work.fleet.follow(report, partial(self._reported, lane, process, call))

    # -- a unit goes on among others -----------------------------------------------------------

    def _order(self, lane: WideLane, processes: Processes, broken: bool = False) -> None:
        """Have the unit go on among these processes; others leave it at the next step."""
        if not processes or (lane.finished and not broken):
            return  # its pass is at its end: the next one will be theirs

        joining = tuple(rank for rank, each in enumerate(processes) if each not in lane.holders)
        before = dict(lane.calls)
        lane.seats = self._seated(lane, processes, joining)
        lane.steady = False
        for process in processes:
            if process not in before:
                self._call(lane, process, joins=process not in lane.finished)
        for process, call in before.items():
            move = Move(self._generations[lane.trial], lane.seats.get(process), broken)
            process.call("control", "move", call.number, move)

        lane.finished.difference_update(processes)
        lane.holders.intersection_update(processes)
        position = self._work.position(lane.trial)
        if isinstance(position.carried, Resident):
            position.carried = Resident(tuple(processes))

    def _regroup(self, lane: WideLane) -> Events:
        """Have the unit go on among those that are left, if one of them has the trial's state."""
        able = [each for each in lane.at_unit if each in lane.holders or each in lane.finished]
        able = able or [each for each in lane.at_unit if not _queued(each, lane.trial)]
        if not able:
            return self._restart(lane)

        wanted = [process for process in lane.members if process in able] or able
        gang = lane.run.gang
        if gang.joint and len(wanted) < len(gang.shards):
            return self._restart(lane)  # a shard has lost its reader
        self._order(lane, wanted, broken=True)
        others = set(_usable(lane.members)) - set(wanted)
        if others and not lane.leaving and not lane.holders.isdisjoint(lane.members):
            self._order(lane, _usable(lane.members))
        return []

    def _restart(self, lane: WideLane, fell: Event | None = None) -> Events:
        """Begin the unit anew, as the trial's newest state is gone.

        It goes on from what is stored or durable. `fell`: the trial's fall, if it fell already.
        """
        self._halt(lane)
        events = [fell or self._back(lane)]
        if lane.leaving:
            self._drop(lane)
        elif lane.run.shards_left is not None:
            # The shards of a gang may be wrong for its trial now: the policy decides anew.
            gang = lane.run.gang
            self._drop(lane)
            self.stop(gang)
            events.append(Ended(gang))
        else:
            self._give(lane)

        return events

    def _back(self, lane: WideLane) -> Event:
        """Take the trial back to the state that is stored, else to the durable one."""
        self._work.position(lane.trial).carried = lane.stored
        if lane.stored is None:
            return self._work.course.fall(lane.trial)
        return self._work.course.abandon(lane.trial)

    def _halt(self, lane: WideLane) -> None:
        """Have whatever is under way come to nothing, and what was made of it."""
        for process, call in lane.calls.items():
            process.halt(call)
        for process in lane.finished:
            process.forget(lane.trial)
        lane.end()

    # -- slots go ------------------------------------------------------------------------------

    def release(self, process: SlotProcess) -> None:
        """Have lanes go on without a slot that is to leave, at once if they have others."""
        for lane in self._lanes():
            if lane.unit is None or lane.leaving or process not in lane.at_unit:
                continue
            if lane.run.gang.joint:
                continue  # none of its slots can be spared: the unit is made first
            rest = _usable(lane.members)
            if not lane.holders.isdisjoint(rest):
                self._order(lane, rest)

    def lose(self, process: SlotProcess) -> tuple[list[TrialId], Events]:
        """Shrink the gangs of a slot that is gone: trials that lost a unit by it, and events."""
        process.shares = []
        waits = [
            lane
            for lane in self._lanes()
            if lane.run.gang.joint and lane.unit is None and process in lane.members
        ]
        lost: list[TrialId] = []
        events: Events = []
        for gang_run in list(self._gang_runs):
            rest = prune(gang_run.run.gang, slots=frozenset((process.id,)))
            if rest is not None:
                gang_run.run.gang = rest
            for lane in list(gang_run.lanes.values()):
                events += self._leave_slot(lane, process, lost)

        for lane in waits:  # a shard has lost its reader before the unit began
            gang = lane.run.gang
            self._drop(lane)
            events.append(Ended(gang))
        for lane in self._lanes():
            involved = lane.unit is not None and (process in lane.calls or process in lane.finished)
            if involved or process in lane.seats:
                lane.steady = False
            if not involved:
                continue
            lane.calls.pop(process, None)
            lane.finished.discard(process)
            lane.holders.discard(process)
            lane.members = [each for each in lane.members if each is not process]
            if lane.at_unit and not lane.void:
                events += self._regroup(lane)
            elif lane.calls:
                continue  # of a void unit: they are about to say that they have halted
            elif lane.leaving:
                lost.append(lane.trial)
                self._halt(lane)
                self._drop(lane)
            else:
                events += self._restart(lane)

        return lost, events

    def _leave_slot(self, lane: WideLane, process: SlotProcess, lost: list[TrialId]) -> Events:
        """Take the slot from the lane; if its trial lost a unit by it, that is noted in `lost`.

        Of a lane without another slot, processes that are still at its unit elsewhere make it to
        the end if one of them had the trial's state for certain. Otherwise it is halted; but they
        may have made it by then, so that what they have is not what the trial goes on from.
        """
        if process not in lane.members:
            return []
        lane.members = [each for each in lane.members if each is not process]
        if lane.members:
            return []
        del lane.gang_run.lanes[lane.trial]
        self._drop_empty(lane.gang_run)
        others = [each for each in lane.at_unit if each is not process]
        if lane.unit is not None and not lane.holders.isdisjoint(others):
            self._let_end(lane, others)
            return []

        events: Events = []
        if lane.unit is not None and others:
            events.append(self._back(lane))
        elif lane.unit is not None:
            lost.append(lane.trial)
        self._halt(lane)
        self._drop(lane)
        return events

    # -- what comes back -----------------------------------------------------------------------

    def _reported(self, lane: WideLane, process: SlotProcess, call: Call, future: Any) -> Events:
        """The events of an answer of one of the lane's processes."""
        settle = partial(self._settled, lane, process, call)
        return self._work.reported(process, process.shares, call, future, settle)

    def _settled(self, lane: WideLane, process: SlotProcess, call: Call, share: Share) -> Events:
        """The events that follow from what came of a process's share of the unit."""
        if lane.calls.get(process) is not call:
            return self._late(lane, process, call, share)
        del lane.calls[process]
        if lane.void:
            return self._halted(lane, process, share)
        events: Events = []
        match share:
            case Trained():
                events = self._trained(lane, process, call, share)
            case TrialError():
                events = self._failed(lane, share)
            case Lost():
                if call.origins:  # it looked for the stored state, and it is not there
                    lane.stored = None
                events = self._restart(lane)
            case Drifting():
                lane.finished.add(process)  # as far as it goes: it is asked again
                events = self._regroup(lane)
            case Made():
                lane.finished.add(process)
                if not lane.calls:  # rank 0 is gone: nobody is left who would report the unit
                    events = self._regroup(lane)
            case Unreadable():
                events = self._without_shard(lane, process, share)
            case Cut():
                self._left(lane, process)
        return events

    def _late(self, lane: WideLane, process: SlotProcess, call: Call, share: Share) -> Events:
        """The events of an answer about a unit that is made, or was given up."""
        position = self._work.position(lane.trial)
        visits = position.visits
        if isinstance(share, Made) and visits and call.units[lane.trial].is_made_in(visits):
            # The unit is the newest that counts: what came of it is at this process, too.
            carried = position.carried
            if lane.unit is None and isinstance(carried, Resident):
                position.carried = Resident(tuple(dict.fromkeys((*carried.processes, process))))
            return []
        if lane.unit is not None and not lane.reused:
            return []  # what it is out of is over
        if process in lane.calls and lane.steady:
            # It is out of the generation in which the next unit was to be made.
            return self._regroup(lane)

        lane.steady = False
        return []

    def _halted(self, lane: WideLane, process: SlotProcess, share: Share) -> Events:
        """The events of an answer about a void unit: the lane is over once all have answered."""
        if isinstance(share, Made):
            lane.finished.add(process)
        if lane.calls:
            return []
        self._halt(lane)
        self._drop(lane)
        return [self._work.course.abandon(lane.trial)]

    def _left(self, lane: WideLane, process: SlotProcess) -> None:
        """Note that the process has left the unit to the others, and the trial's state with it."""
        lane.holders.discard(process)
        position = self._work.position(lane.trial)
        if isinstance(position.carried, Resident) and len(position.carried.processes) > 1:
            position.carried = position.carried.without(process)
        wanted = _usable(lane.members)
        if process in wanted and not lane.leaving:
            # By now it is to come back, unless only others have the state, who make the unit.
            able = lane.holders.intersection(lane.at_unit)
            if not able or not able.isdisjoint(wanted):
                self._order(lane, wanted)

    def _without_shard(
        self, lane: WideLane, process: SlotProcess, unreadable: Unreadable
    ) -> Events:
        """End the gang, whose lanes all lose their units, as a shard cannot be read there."""
        run = lane.run
        units: list[Unit] = []
        events: Events = []
        for each in [lane] if lane.leaving else [*lane.gang_run.lanes.values()]:
            if each.unit is not None:
                units.append(each.unit)
                events.append(self._back(each))
            self._halt(each)
            self._drop(each)
        return [*events, *self._work.unread(process, run, units, unreadable)]

    def _trained(self, lane: WideLane, process: SlotProcess, call: Call, share: Trained) -> Events:
        """The events of a unit that is made, as rank 0 says."""
        unit = call.units[lane.trial]
        events = self._work.states.trained(process, call, lane.trial, share)
        # The others are told; also those that were told to leave, but too late.
        visits = self._work.position(lane.trial).visits
        report = pickle.dumps((visits, share.done.scores, share.done.age, unit.last))
        for other in dict.fromkeys((*lane.seats, *lane.finished, *lane.calls)):
            if other is not process:
                other.call("train", "conclude", lane.trial, report)

        holders = (process, *(each for each in lane.seats if each in lane.finished))
        steady = lane.steady and not unit.carry
        lane.finished = set()
        self._halt(lane)
        lane.steady = steady
        self._work.states.settle(holders, call, lane.trial, share)
        return events + self._through(lane)

    def _failed(self, lane: WideLane, error: TrialError) -> Events:
        """The events of a unit in which the recipe's code raised, or memory ran out."""
        if isinstance(error, StateLost):
            fell = fall_back(self._work.course, lane.trial, error)
            if fell is not None:
                return self._restart(lane, fell)
        self._halt(lane)
        self._work.position(lane.trial).carried = None
        if isinstance(error, OutOfMemory) and len(lane.gang_run.lanes) > 1:
            # Its neighbours are on other slots: they need not make room.
            if error.freed and not lane.leaving:
                events: Events = [self._work.course.fall(lane.trial)]
                self._give(lane)
                return events
            error = TrialError(error.why, error.text, error.signature)

        lane.error = error
        return self._through(lane)

    # -- rounds --------------------------------------------------------------------------------

    def _through(self, lane: WideLane) -> Events:
        """The events of a lane that has made its unit, or failed.

        One that is at its end leaves; the others wait for each other.
        """
        lane.through = True
        if not lane.leaving and lane.gang_run.through:
            return self.advance()

        events: Events = []
        if lane.error is not None or self._work.course.met(lane.trial):
            self._work.unfinished.discard(lane.trial)
            if lane.error is None:
                events.append(Finished(lane.trial))
            else:
                events.append(self._work.course.fail(lane.trial, lane.error))
            if not lane.leaving:
                lane.gang_run.without(lane.trial)  # others are at work
        if events or lane.leaving:
            self._drop(lane)
        return events

    def advance(self) -> Events:
        """End the rounds whose lanes are all through, and begin the next ones: the events."""
        events: Events = []
        for gang_run in [each for each in self._gang_runs if each.lanes and each.through]:
            lanes = list(gang_run.lanes.values())
            failed = {lane.trial: lane.error for lane in lanes if lane.error is not None}
            ready = (each.slot for lane in lanes for each in lane.members if each.slot is not None)
            slot = next(ready, None)
            assert slot is not None, "a gang whose round is over has a slot"
            ended = self._work.course.end_round(gang_run.run, slot, failed)
            self._work.note_ends(ended)
            events += ended
            for lane in lanes:
                if gang_run.run.over or lane.trial not in gang_run.run.gang.trials:
                    self._drop(lane)
                else:
                    self._give(lane)
        return events


def _usable(processes: Iterable[SlotProcess]) -> list[SlotProcess]:
    """The processes that are not to leave."""
    return [process for process in processes if not process.leaving]


def _queued(process: SlotProcess, trial: TrialId) -> bool:
    """Whether the process is still at work for others."""
    if process.calls:
        return True
    return any(trial not in call.units for call in process.shares)


def _overlap(gang: Gang) -> bool:
    """Whether lanes of the gang share slots."""
    return sum(len(lane.slots) for lane in gang.lanes) > len(gang.slots)


def gradients(gpus: float) -> Gradients:
    """How gradients travel between slots: by NCCL if each has a GPU of its own.

    `gpus`: that a slot has.
    """
    if gpus >= 1:
        return "nccl"
    return "gloo"
