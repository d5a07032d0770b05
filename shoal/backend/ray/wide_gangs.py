"""Who makes the units of a lane over several slots.

Its processes form generations, which only this side numbers.

See docs/decisions/0010.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shoal.backend.node.messages import (
    Cut,
    Drifting,
    Lost,
    Share,
    Trained,
    Unreadable,
)
from shoal.backend.positions import GangRun, fall_back
from shoal.backend.ray.cluster import Gradients
from shoal.backend.ray.gangs import Work
from shoal.backend.ray.slot_process import Call, Events, SlotProcess
from shoal.backend.ray.states import Resident, Stored, carries, durable_name
from shoal.core.check import PlanError
from shoal.core.cluster import Slot
from shoal.core.event import Ended, Event, Finished
from shoal.core.plan import Gang, prune, same_stream
from shoal.core.trial import TrialId
from shoal.train.recipe.seat import Move, Seat
from shoal.train.recipe.unit import Made, OutOfMemory, StateLost, TrialError, Unit

Processes = Sequence[SlotProcess]
Seats = dict[SlotProcess, Seat]
Calls = dict[SlotProcess, Call]


@dataclass(eq=False, slots=True)
class GangAtWork:
    """A gang at work, or that waits for its slots. A round is a unit of each lane."""

    run: GangRun
    lanes: dict[TrialId, "LaneAtWork"] = field(default_factory=dict)

    @property
    def through(self) -> bool:
        """Whether all lanes are through with their units of the round."""
        return all(lane.through for lane in self.lanes.values())

    def without(self, trial: TrialId) -> None:
        """The trial leaves the gang, unless it is the only one."""
        self.run.gang = prune(self.run.gang, frozenset((trial,))) or self.run.gang

    def has_begun(self, trial: TrialId) -> bool:
        """Whether the trial is at work in the gang."""
        return trial in self.lanes and self.lanes[trial].begun


@dataclass(eq=False, slots=True)
class LaneAtWork:
    """A lane: the slots it is to have, and who makes its unit.

    Several processes make a unit together, each its share of every batch. They form a generation,
    in which each has a seat. When slots join or leave, the unit goes on in a new generation, in
    which somebody must have the trial's state (`sure`). A process says that its pass is made; then
    rank 0 reports the unit, and the others are told of it.
    """

    trial: TrialId
    joint: GangAtWork
    members: list[SlotProcess]  # in gang order
    begun: bool = False
    through: bool = False  # with its unit of the round
    gone: bool = False  # from its gang, after the unit under way
    error: TrialError | None = None
    unit: Unit | None = None  # under way
    # What the unit went on from, if that lies in the object store.
    stored: Stored | None = None
    # Of the newest generation.
    seats: Seats = field(default_factory=dict)
    # Who had the trial's state when the unit began, and did not leave it.
    sure: set[SlotProcess] = field(default_factory=set)
    # Of the unit, not answered yet.
    calls: Calls = field(default_factory=dict)
    # Who made its pass, while rank 0 has yet to say so.
    made: set[SlotProcess] = field(default_factory=set)
    steady: bool = False  # the newest generation is the one at work, and complete
    reused: bool = False  # the unit began in the generation of the one before it
    void: bool = False  # whatever comes of the unit does not count

    @property
    def at_unit(self) -> list[SlotProcess]:
        """Those who make it, or are to."""
        return [each for each in self.seats if each in self.calls or each in self.made]

    def leave(self, process: SlotProcess) -> None:
        """The lane is to have this slot no more."""
        self.members = [each for each in self.members if each is not process]

    def begin(self, unit: Unit) -> None:
        """The next unit is under way."""
        self.unit = unit
        self.through = False
        self.error = None
        self.calls = {}
        self.made = set()

    def end(self) -> None:
        """No unit is under way any more."""
        self.unit = None
        self.calls = {}
        self.made = set()
        self.steady = False


# What to do when a process answers one of its calls for a lane.
Reported = Callable[[LaneAtWork, SlotProcess, Call, Any], Events]


class Seating:
    """The processes of all lanes over several slots.

    `gradients`: how they travel between the processes of a lane. `reported`: what to do when one
    of the processes answers.
    """

    def __init__(
        self,
        work: Work,
        gradients: Gradients,
        reported: Reported,
    ) -> None:
        self._work = work
        self._reported = reported
        self._gradients: Gradients = gradients
        self._generations: Counter[TrialId] = Counter()
        # whether a lane over several nodes was told to measure the links
        self._links = False

    # -- the next unit -------------------------------------------------------------------------

    def give(self, lane: LaneAtWork) -> None:
        """The lane's next unit. Slots that others still work at join when they come free."""
        members = usable(lane.members)
        if not members:
            return  # the gang shrinks by it when they have left

        run = lane.joint.run
        here = [each for each in members if not queued(each, lane.trial)] or members
        if run.gang.joint:
            if len(members) < len(run.gang.shards):
                return  # a shard has no reader: the gang ends when that slot has left
            here = members
        carry = carries(run)
        self._find_state(lane, here, carry)
        self._forget_elsewhere(lane, here)
        name = durable_name(self._work.at(lane.trial))
        lane.begin(self._work.course.unit(run, lane.trial, name, carry))

        lane.reused = lane.steady and list(lane.seats) == here
        if not lane.reused:
            lane.seats = self._seated(lane, here, ())
        lane.steady = True
        for process in here:
            self._call(lane, process, joins=False, first=process is here[0])

        if len(here) < len(members):
            self.order(lane, members)

    def _find_state(self, lane: LaneAtWork, here: Processes, carry: bool) -> None:
        """Who of these has the trial's state. If none has, the first gets what is stored."""
        carried = self._work.at(lane.trial).carried
        lane.sure = set()
        if isinstance(carried, Resident):
            lane.sure = set(here).intersection(carried.processes)
        lane.stored = None
        if carry or not lane.sure:
            lane.stored = self._work.states.source(lane.trial, here[0], void=carry)
            lane.sure = {here[0]}

    def _forget_elsewhere(self, lane: LaneAtWork, here: Processes) -> None:
        """The trial goes on at these processes, and nowhere else."""
        at = self._work.at(lane.trial)
        if not isinstance(at.carried, Resident):
            return
        for process in set(at.carried.processes).difference(here):
            process.forget(lane.trial)
        at.carried = Resident(tuple(here))

    # -- generations ---------------------------------------------------------------------------

    def _seated(self, lane: LaneAtWork, who: Processes, joining: tuple[int, ...]) -> Seats:
        """A new generation."""
        self._generations[lane.trial] += 1
        generation = self._generations[lane.trial]
        anchors = [process for process in who if process in lane.sure] or who
        store = ""
        if len(who) > 1:  # in turn, lest all depends on one
            store = anchors[generation % len(anchors)].meeting
        hosts = [process.meeting.rpartition(":")[0] for process in who]
        links = not self._links and len(set(hosts)) > 1
        self._links = self._links or links
        seats: Seats = {}
        for rank, (process, host) in enumerate(zip(who, hosts, strict=True)):
            seats[process] = Seat(
                lane.trial,
                generation,
                rank,
                len(who),
                store,
                host=host,
                joining=joining,
                gradients=self._gradients,
                links=links,
            )

        return seats

    def _call(
        self, lane: LaneAtWork, process: SlotProcess, joins: bool, first: bool = False
    ) -> None:
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

    def order(self, lane: LaneAtWork, who: Processes, broken: bool = False) -> None:
        """Have the unit go on among these; those that leave it are free at the next step."""
        if not who or (lane.made and not broken):
            return  # its pass is at its end: the next one will be theirs

        sure = lane.sure
        joining = tuple(rank for rank, each in enumerate(who) if each not in sure)
        before = dict(lane.calls)
        lane.seats = self._seated(lane, who, joining)
        lane.steady = False
        for process in who:
            if process not in before:
                self._call(lane, process, joins=process not in lane.made)

        self._move(lane, before, broken)
        lane.made.difference_update(who)
        lane.sure.intersection_update(who)
        at = self._work.at(lane.trial)
        if isinstance(at.carried, Resident):
            at.carried = Resident(tuple(who))

    def _move(self, lane: LaneAtWork, calls: Calls, broken: bool) -> None:
        """Have those that are at the unit go over to the newest generation, or leave it."""
        generation = self._generations[lane.trial]
        for process, call in calls.items():
            move = Move(generation, lane.seats.get(process), broken)
            process.call("control", "move", call.number, move)

    # -- the end of a unit ---------------------------------------------------------------------

    def halt(self, lane: LaneAtWork) -> None:
        """Whatever is under way comes to nothing, or what is made of it."""
        for process, call in lane.calls.items():
            process.halt(call)
        for process in lane.made:
            process.forget(lane.trial)
        lane.end()

    def unhold(self, lane: LaneAtWork, process: SlotProcess) -> None:
        """The trial's state is not there any more."""
        at = self._work.at(lane.trial)
        if isinstance(at.carried, Resident) and len(at.carried.processes) > 1:
            at.carried = at.carried.without(process)


def usable(processes: Iterable[SlotProcess]) -> list[SlotProcess]:
    """Those that are not to leave."""
    return [process for process in processes if not process.leaving]


def idle(process: SlotProcess) -> bool:
    """Whether it is ready, and nothing is under way there."""
    return process.slot is not None and process.run is None and not process.at_work


def queued(process: SlotProcess, trial: TrialId) -> bool:
    """Whether it is still at work for others."""
    if process.calls:
        return True
    return any(trial not in call.units for call in process.shares)


class WideLanes:
    """All lanes of `WideGangs`.

    A lane waits for its slots, then it is at work. A lane that leaves its gang makes the unit
    under way to its end first, unless it has to leave at once.
    """

    def __init__(self, work: Work, seating: Seating) -> None:
        self._work = work
        self._seating = seating
        self.gangs: list[GangAtWork] = []
        self._leaving: list[LaneAtWork] = []  # lanes that are gone, at their last unit

    # -- which there are -----------------------------------------------------------------------

    def all(self) -> list[LaneAtWork]:
        """All lanes; the list does not change when lanes come or go."""
        found: list[LaneAtWork] = []
        for joint in self.gangs:
            found += joint.lanes.values()
        return found + self._leaving

    def at(self, gang: Gang) -> GangAtWork | None:
        """The gang at work that is this one of the plan, if any is."""
        for joint in self.gangs:
            if joint.run.gang == gang:
                return joint
        return None

    def at_work(self, process: SlotProcess, number: int) -> Collection[TrialId]:
        """The trial of that unit, if it is under way there and counts."""
        trials: list[TrialId] = []
        for lane in self.all():
            call = lane.calls.get(process)
            if call is not None and call.number == number and not lane.void:
                trials.append(lane.trial)
        return trials

    # -- coming --------------------------------------------------------------------------------

    def place(self, joint: GangAtWork) -> None:
        """Each lane of the gang to the slots that the gang says."""
        there = self._work.slots.processes
        for planned in joint.run.gang.lanes:
            members = [there[slot] for slot in planned.slots if slot in there]
            lane = joint.lanes.get(planned.trial)
            if lane is None:
                joint.lanes[planned.trial] = LaneAtWork(planned.trial, joint, members)
            elif lane.members != members:
                self._move(lane, members)

    def _move(self, lane: LaneAtWork, members: list[SlotProcess]) -> None:
        """The lane is to have these slots, from now on if one of them has its state."""
        lane.members = members
        there = usable(members)
        if lane.unit is not None and not lane.sure.isdisjoint(there):
            self._seating.order(lane, there)

    # -- going ---------------------------------------------------------------------------------

    def stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void."""
        joint = self.at(gang)
        if joint is not None:
            self.gangs.remove(joint)
            for lane in list(joint.lanes.values()):
                self.part_with(lane, at_once=False)

    def part_with(self, lane: LaneAtWork, at_once: bool) -> None:
        """Take the lane out of its gang: at once, or after the unit under way."""
        del lane.joint.lanes[lane.trial]
        if lane.unit is None or at_once:
            self._seating.halt(lane)
            self.drop(lane)
            if at_once:
                self._work.at(lane.trial).carried = None
            return

        self._let_end(lane, lane.at_unit)
        if lane.joint.run.quota is not None:
            lane.void = True
            for process, call in lane.calls.items():
                process.halt(call)

    def _let_end(self, lane: LaneAtWork, members: list[SlotProcess]) -> None:
        """These processes make the lane's unit to its end, and then it leaves."""
        lane.gone = True
        lane.members = members
        self._leaving.append(lane)

    def leave(self, lane: LaneAtWork) -> None:
        """A lane that waited for its slots has nothing to do any more."""
        lane.joint.without(lane.trial)
        self.drop(lane)

    def drop(self, lane: LaneAtWork) -> None:
        """The lane is at work no more."""
        if lane.joint.lanes.get(lane.trial) is lane:
            del lane.joint.lanes[lane.trial]
        if lane in self._leaving:
            self._leaving.remove(lane)
        if lane.begun:
            self._work.active.discard(lane.trial)
        self._drop_empty(lane.joint)

    def _drop_empty(self, joint: GangAtWork) -> None:
        """A gang without lanes is at work no more."""
        if not joint.lanes and joint in self.gangs:
            self.gangs.remove(joint)

    # -- slots that are gone -------------------------------------------------------------------

    def bereave(self, lane: LaneAtWork, process: SlotProcess) -> list[TrialId]:
        """The lane has no slot left: its trial, if that loses a unit by it.

        Processes that are still at its unit on other slots make it to the end.
        """
        del lane.joint.lanes[lane.trial]
        self._drop_empty(lane.joint)
        others = [each for each in lane.at_unit if each is not process]
        if lane.unit is not None and not lane.sure.isdisjoint(others):
            self._let_end(lane, others)
            return []

        lost: list[TrialId] = []
        if lane.unit is not None:
            lost.append(lane.trial)
        self._seating.halt(lane)
        self.drop(lane)
        return lost

    def take_out(self, lane: LaneAtWork, process: SlotProcess) -> None:
        """The process is gone, and what it did for the lane's unit with it."""
        lane.calls.pop(process, None)
        lane.made.discard(process)
        lane.sure.discard(process)
        lane.leave(process)


class WideRounds:
    """Where the rounds of gangs end. A round is a unit of each lane of its gang."""

    def __init__(self, work: Work, seating: Seating, lanes: WideLanes) -> None:
        self._work = work
        self._course = work.course
        self._seating = seating
        self._lanes = lanes

    def through(self, lane: LaneAtWork) -> Events:
        """The lane has made its unit, or failed.

        One that is at its end leaves; the others wait for each other.
        """
        lane.through = True
        if not lane.gone and lane.joint.through:
            return self.advance()

        events = self._end_of(lane)
        if events and not lane.gone:
            lane.joint.without(lane.trial)  # others are at work

        if events or lane.gone:
            self._lanes.drop(lane)
        return events

    def _end_of(self, lane: LaneAtWork) -> Events:
        """The lane's end, if it is there: its trial failed, or has all its samples."""
        if lane.error is None and not self._course.met(lane.trial):
            return []
        self._work.unfinished.discard(lane.trial)
        if lane.error is None:
            return [Finished(lane.trial)]
        return [self._course.fail(lane.trial, lane.error)]

    def advance(self) -> Events:
        """End the rounds whose lanes are all through, and begin the next ones."""
        done = [joint for joint in self._lanes.gangs if joint.lanes and joint.through]
        events: Events = []
        for joint in done:
            events += self._end_round(joint)
        return events

    def _end_round(self, joint: GangAtWork) -> Events:
        """What ends with the gang's round; lanes that go on get their next units."""
        failed: dict[TrialId, TrialError] = {}
        for lane in joint.lanes.values():
            if lane.error is not None:
                failed[lane.trial] = lane.error

        events = self._course.end_round(joint.run, _slot_of(joint), failed)
        self._work.note_ends(events)

        for lane in list(joint.lanes.values()):
            if joint.run.over or lane.trial not in joint.run.gang.trials:
                self._lanes.drop(lane)
            else:
                self._seating.give(lane)

        return events


def _slot_of(joint: GangAtWork) -> Slot:
    """The first of the gang's slots that is ready."""
    for lane in joint.lanes.values():
        for process in lane.members:
            if process.slot is not None:
                return process.slot
    raise AssertionError("a gang whose round is over has a slot")


class WideLosses:
    """Lanes go on without a slot that is gone, or begin their units anew.

    A unit goes on (`regroup`) if one of those left has the trial's state. Otherwise it begins anew
    (`restart`), from the state that is stored or durable.
    """

    def __init__(self, lanes: WideLanes, seating: Seating, work: Work) -> None:
        self._lanes = lanes
        self._seating = seating
        self._work = work
        self._course = work.course

    # -- units -------------------------------------------------------------------------------------

    def regroup(self, lane: LaneAtWork) -> Events:
        """A process of the unit is gone: the others go on, if one of them has the trial's state."""
        able = self._able(lane)
        if not able:
            return self.restart(lane)

        wanted = [process for process in lane.members if process in able] or able
        gang = lane.joint.run.gang
        if gang.joint and len(wanted) < len(gang.shards):
            return self.restart(lane)  # a shard has lost its reader
        self._seating.order(lane, wanted, broken=True)
        others = set(usable(lane.members)) - set(wanted)
        if others and not lane.gone and not lane.sure.isdisjoint(lane.members):
            self._seating.order(lane, usable(lane.members))
        return []

    def _able(self, lane: LaneAtWork) -> list[SlotProcess]:
        """Those of the unit that have the trial's state, else those that are not at others."""
        able = [each for each in lane.at_unit if each in lane.sure or each in lane.made]
        if able:
            return able
        return [each for each in lane.at_unit if not queued(each, lane.trial)]

    def restart(self, lane: LaneAtWork, fell: Event | None = None) -> Events:
        """The trial's newest state is gone: the unit begins anew.

        It goes on from what is stored or durable. `fell`: it fell back already.
        """
        self._seating.halt(lane)
        events = [fell or self._back(lane)]
        if lane.gone:
            self._lanes.drop(lane)
        elif lane.joint.run.left is not None:
            # The shards of a gang may be wrong for its trial now: the policy decides anew.
            gang = lane.joint.run.gang
            self._lanes.drop(lane)
            self._lanes.stop(gang)
            events.append(Ended(gang))
        else:
            self._seating.give(lane)

        return events

    def without_shard(self, lane: LaneAtWork, process: SlotProcess, about: Unreadable) -> Events:
        """A shard cannot be read there: all lanes of the gang lose their units, and it ends."""
        run = lane.joint.run
        lanes = [lane]
        if not lane.gone:
            lanes = list(lane.joint.lanes.values())
        units: list[Unit] = []
        events: Events = []
        for each in lanes:
            if each.unit is not None:
                units.append(each.unit)
                events.append(self._back(each))
            self._seating.halt(each)
            self._lanes.drop(each)
        return [*events, *self._work.unread(process, run, units, about)]

    def _back(self, lane: LaneAtWork) -> Event:
        """The trial is back at the state that is stored, else at the durable one."""
        self._course.positions[lane.trial].carried = lane.stored
        if lane.stored is None:
            return self._course.fall(lane.trial)
        return self._course.abandon(lane.trial)

    # -- slots -------------------------------------------------------------------------------------

    def release(self, process: SlotProcess) -> None:
        """The slot is to leave: lanes that have others go on without it at once."""
        for lane in self._lanes.all():
            if lane.unit is None or lane.gone or process not in lane.at_unit:
                continue
            if lane.joint.run.gang.joint:
                continue  # none of its slots can be spared: the unit is made first
            rest = usable(lane.members)
            if not lane.sure.isdisjoint(rest):
                self._seating.order(lane, rest)

    def lose(self, process: SlotProcess) -> tuple[list[TrialId], Events]:
        """The slot is gone, its gangs shrink. Trials that lost a unit by it, and other events."""
        process.shares = []
        waits = [
            lane
            for lane in self._lanes.all()
            if lane.joint.run.gang.joint and lane.unit is None and process in lane.members
        ]
        lost = self._shrink(process)
        events: Events = []
        for lane in waits:  # a shard has lost its reader before the unit began
            gang = lane.joint.run.gang
            self._lanes.drop(lane)
            events.append(Ended(gang))
        for lane in self._lanes.all():
            here = process in lane.calls or process in lane.made
            here = here and lane.unit is not None
            if here or process in lane.seats:
                lane.steady = False
            if not here:
                continue
            self._lanes.take_out(lane, process)
            if lane.at_unit and not lane.void:
                events += self.regroup(lane)
            elif lane.calls:
                continue  # of a void unit: they are about to say that they have halted
            elif lane.gone:
                lost.append(lane.trial)
                self._seating.halt(lane)
                self._lanes.drop(lane)
            else:
                events += self.restart(lane)

        return lost, events

    def _shrink(self, process: SlotProcess) -> list[TrialId]:
        """Take the slot out of all gangs: the trials that have no other, and lost a unit."""
        lost: list[TrialId] = []
        for joint in list(self._lanes.gangs):
            rest = prune(joint.run.gang, slots=frozenset((process.id,)))
            if rest is not None:
                joint.run.gang = rest
            for lane in list(joint.lanes.values()):
                lost += self._leave(lane, process)
        return lost

    def _leave(self, lane: LaneAtWork, process: SlotProcess) -> list[TrialId]:
        """Take the slot from the lane: its trial, if that has no other and lost a unit."""
        if process not in lane.members:
            return []
        lane.leave(process)
        if lane.members:
            return []
        return self._lanes.bereave(lane, process)


class WideGangs:
    """All gangs over several slots, and those of one trial that may get more slots.

    Their lanes are in `WideLanes`, who makes the unit of a lane is in `Seating`, where rounds end
    is in `WideRounds`, and what follows when a slot is gone is in `WideLosses`.

    `gradients`: how they travel between the processes of a lane.
    """

    def __init__(self, work: Work, gradients: Gradients) -> None:
        self._work = work
        self._course = work.course
        self._seating = Seating(work, gradients, self._reported)
        self._lanes = WideLanes(work, self._seating)
        self._rounds = WideRounds(work, self._seating, self._lanes)
        self._losses = WideLosses(self._lanes, self._seating, work)

    # -- gangs ---------------------------------------------------------------------------------

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

        _, widest = self._work.at(gang.trials[0]).trial.widths
        return widest > 1 and len(gang.lanes) == 1 and (gang.quota is None or gang.measures)

    def wait(self, gang: Gang) -> None:
        """Have the gang begin; each lane as soon as its slots are free."""
        joint = GangAtWork(GangRun.of(gang))
        self._lanes.gangs.append(joint)
        self._lanes.place(joint)

    @property
    def waiting(self) -> bool:
        """Whether a lane still waits for its slots."""
        return any(not lane.begun for lane in self._lanes.all())

    def begin(self) -> None:
        """Start the lanes that need not wait any more."""
        for lane in self._lanes.all():
            if lane.begun:
                continue
            if lane.trial not in self._work.unfinished:
                self._lanes.leave(lane)
                self._work.fleet.put(self.advance)
            elif lane.trial not in self._work.active and self._is_free(lane):
                lane.begun = True
                self._work.active.add(lane.trial)
                self._seating.give(lane)

    def _is_free(self, lane: LaneAtWork) -> bool:
        """Whether the lane has slots with time for it, and nothing else is under way at any."""
        if not lane.members or not all(map(idle, lane.members)):
            return False
        last = max(lane.members, key=lambda process: process.known.until)
        return self._work.has_time(last, [lane.trial])

    def turns(self, before: Gang, after: Gang) -> bool:
        """Whether lanes at work go on in the other gang, which has the same stream.

        Lanes that it lacks leave after their unit. Those that a gang loses without a decision
        about it (its turn is the same) are over at once.
        """
        joint = self._lanes.at(before)
        if joint is None or not same_stream(before, after) or _overlap(after):
            return False
        if not any(joint.has_begun(trial) for trial in after.trials):
            return False

        for trial in joint.lanes.keys() - set(after.trials):
            at_once = before.since == after.since
            self._lanes.part_with(joint.lanes[trial], at_once)

        joint.run.turn_into(after)
        self._lanes.place(joint)
        self._work.fleet.put(self.advance)  # the others may be through
        return True

    def stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void."""
        self._lanes.stop(gang)

    def advance(self) -> Events:
        """End the rounds whose lanes are all through, and begin the next ones."""
        return self._rounds.advance()

    # -- slots ---------------------------------------------------------------------------------

    def at_work(self, process: SlotProcess, number: int) -> Collection[TrialId]:
        """The trial of that unit, if it is under way there and counts."""
        return self._lanes.at_work(process, number)

    def release(self, process: SlotProcess) -> None:
        """The slot is to leave: lanes that have others go on without it at once."""
        self._losses.release(process)

    def lose(self, process: SlotProcess) -> tuple[list[TrialId], Events]:
        """The slot is gone, its gangs shrink. Trials that lost a unit by it, and other events."""
        return self._losses.lose(process)

    # -- what comes back -----------------------------------------------------------------------

    def _reported(self, lane: LaneAtWork, process: SlotProcess, call: Call, future: Any) -> Events:
        """One of the lane's processes answered."""
        settle = partial(self._settled, lane, process, call)
        return self._work.reported(process, process.shares, call, future, settle)

    def _settled(self, lane: LaneAtWork, process: SlotProcess, call: Call, share: Share) -> Events:
        """What follows from the answer."""
        if lane.calls.get(process) is not call:
            return self._late(lane, process, call, share)
        del lane.calls[process]
        if lane.void:
            return self._halted(lane, process, share)
        return self._settle(lane, process, call, share)

    def _settle(self, lane: LaneAtWork, process: SlotProcess, call: Call, share: Share) -> Events:
        """What came of the process's part in a unit that counts."""
        events: Events = []
        match share:
            case Trained():
                events = self._trained(lane, process, call, share)
            case TrialError():
                events = self._failed(lane, share)
            case Lost():
                if call.origins:  # it looked for the stored state, and it is not there
                    lane.stored = None
                events = self._losses.restart(lane)
            case Drifting():
                lane.made.add(process)  # as far as it goes: it is asked again
                events = self._losses.regroup(lane)
            case Made():
                lane.made.add(process)
                if not lane.calls:  # rank 0 is gone: nobody is left who would report the unit
                    events = self._losses.regroup(lane)
            case Unreadable():
                events = self._losses.without_shard(lane, process, share)
            case Cut():
                self._left(lane, process)

        return events

    def _halted(self, lane: LaneAtWork, process: SlotProcess, share: Share) -> Events:
        """The unit is void: the lane is over once all have answered."""
        if isinstance(share, Made):
            lane.made.add(process)
        if lane.calls:
            return []
        self._seating.halt(lane)
        self._lanes.drop(lane)
        return [self._course.abandon(lane.trial)]

    def _left(self, lane: LaneAtWork, process: SlotProcess) -> None:
        """The process has left the unit to the others."""
        lane.sure.discard(process)
        self._seating.unhold(lane, process)
        if process in lane.members and not lane.gone and not process.leaving:
            # By now it is to come back.
            self._seating.order(lane, usable(lane.members))

    def _late(self, lane: LaneAtWork, process: SlotProcess, call: Call, share: Share) -> Events:
        """An answer about a unit that is made, or was given up."""
        if isinstance(share, Made) and self._is_newest(call, lane.trial):
            if lane.unit is None:
                self._hold(lane.trial, process)
            return []
        if lane.unit is not None and not lane.reused:
            return []  # what it is out of is over
        if process in lane.calls and lane.steady:
            # It is out of the generation in which the next unit was to be made.
            return self._losses.regroup(lane)

        lane.steady = False
        return []

    def _is_newest(self, call: Call, trial: TrialId) -> bool:
        """Whether the call's unit is the last one that counts of the trial."""
        visits = self._work.at(trial).visits
        return bool(visits) and call.units[trial].is_made_in(visits)

    def _hold(self, trial: TrialId, process: SlotProcess) -> None:
        """The trial's newest state is at this process, too."""
        at = self._work.at(trial)
        carried = at.carried
        if isinstance(carried, Resident) and process not in carried.processes:
            at.carried = Resident((*carried.processes, process))

    def _trained(
        self, lane: LaneAtWork, process: SlotProcess, call: Call, share: Trained
    ) -> Events:
        """Rank 0 says that the unit is made."""
        unit = call.units[lane.trial]
        events = self._work.states.trained(process, call, lane.trial, share)
        self._conclude(lane, process, call, share)
        holders = (process, *(each for each in lane.seats if each in lane.made))
        steady = lane.steady and not unit.carry
        lane.made = set()
        self._seating.halt(lane)
        lane.steady = steady
        self._work.states.settle(holders, call, lane.trial, share)
        return events + self._rounds.through(lane)

    def _conclude(self, lane: LaneAtWork, process: SlotProcess, call: Call, share: Trained) -> None:
        """Tell the others that the unit is made; also those told to leave, but too late."""
        visits = self._work.at(lane.trial).visits
        last = call.units[lane.trial].last
        report = pickle.dumps((visits, share.done.scores, share.done.age, last))
        for other in dict.fromkeys((*lane.seats, *lane.made, *lane.calls)):
            if other is not process:
                other.call("train", "conclude", lane.trial, report)

    def _failed(self, lane: LaneAtWork, error: TrialError) -> Events:
        """The recipe's code raised, or there was no memory."""
        if isinstance(error, StateLost):
            fell = fall_back(self._course, lane.trial, error)
            if fell is not None:
                return self._losses.restart(lane, fell)
        self._seating.halt(lane)
        self._work.at(lane.trial).carried = None
        if isinstance(error, OutOfMemory) and len(lane.joint.lanes) > 1:
            # Its neighbours are on other slots: they need not make room.
            if error.freed and not lane.gone:
                events: Events = [self._course.fall(lane.trial)]
                self._seating.give(lane)
                return events
            error = TrialError(error.why, error.text, error.signature)

        lane.error = error
        return self._rounds.through(lane)


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
