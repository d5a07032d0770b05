"""What becomes of lanes over several slots when one of these slots leaves or dies."""

from shoal.backend.ray.node.outcomes import Unreadable
from shoal.backend.ray.slots import Events, SlotProcess
from shoal.backend.ray.wide.lanes import WideLanes
from shoal.backend.ray.wide.seating import LaneAtWork, Seating, queued, usable
from shoal.backend.ray.work import Work
from shoal.core.event import Ended, Event
from shoal.core.plan import prune
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import Unit


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
