"""Gangs over several slots.

Several processes train a lane of them, or lanes on slots of their own advance together.
"""

import pickle
from collections.abc import Collection
from functools import partial
from typing import Any

from shoal.backend.fallen import fall_back
from shoal.backend.gang_run import GangRun
from shoal.backend.ray.cluster import Gradients
from shoal.backend.ray.node.outcomes import (
    Cut,
    Drifting,
    Lost,
    Share,
    Trained,
    Unreadable,
)
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.ray.states import Resident
from shoal.backend.ray.wide.lanes import WideLanes, WideRounds
from shoal.backend.ray.wide.losses import WideLosses
from shoal.backend.ray.wide.seating import GangAtWork, LaneAtWork, Seating, idle, usable
from shoal.backend.ray.work import Work
from shoal.core.check import PlanError
from shoal.core.plan import Gang, same_stream
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import Made, OutOfMemory, StateLost, TrialError


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
                self._work.fleet.post(self.advance)
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
        self._work.fleet.post(self.advance)  # the others may be through
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
