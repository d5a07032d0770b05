"""Who makes the units of a lane over several slots.

Its processes form generations, which only this side numbers.

See docs/decisions/0010.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from shoal.backend.gang_run import GangRun
from shoal.backend.ray.cluster import Gradients
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.ray.states import Resident, Stored, carries, durable_name
from shoal.backend.ray.work import Work
from shoal.core.plan import prune
from shoal.core.trial import TrialId
from shoal.train.recipe.seat import Move, Seat
from shoal.train.recipe.unit import TrialError, Unit

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
