"""The lanes of gangs over several slots: those at work, waiting, or at their last unit."""

from collections.abc import Collection

from shoal.backend.ray.slots import Events, SlotProcess
from shoal.backend.ray.wide.seating import GangAtWork, LaneAtWork, Seating, usable
from shoal.backend.ray.work import Work
from shoal.core.cluster import Slot
from shoal.core.event import Finished
from shoal.core.plan import Gang
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import TrialError


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
        there = self._work.fleet.processes
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
