"""Gangs over several slots: lanes that several processes train, and lanes on slots of their own that advance together."""

import pickle
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from math import inf
from typing import Any, Literal

from shoal.backend.course import Run
from shoal.backend.ray_fleet import Berth, Call
from shoal.backend.ray_seating import Joint, Line, Seating, idle, queued, usable
from shoal.backend.ray_slot import Cut, Drifting, Lost, Share, Trained
from shoal.backend.ray_states import Resident, Work
from shoal.core.check import PlanError
from shoal.core.event import Ended, Event, Failed, Finished, Joined
from shoal.core.plan import Gang, prune
from shoal.core.trial import TrialId
from shoal.train.unit import Made, OutOfMemory, TrialError


class Wides:
    """`gradients`: how they travel between the processes of a lane."""

    def __init__(self, work: Work, gradients: Literal["gloo", "nccl"]) -> None:
        self._work, self._course, self._fleet, self._states = work, work.course, work.fleet, work.states
        self._seating = Seating(work, gradients, self._reported)
        self._joints: list[Joint] = []
        self._leaving: list[Line] = []  # lines that are gone, at their last unit
        self.moved = 0  # bytes of states that came from other slots through the object store

    def at_work(self, berth: Berth, number: int) -> Collection[TrialId]:
        """The trial of that unit, if it is under way there and counts."""
        lines = [line for line in self._lines() if (call := line.calls.get(berth)) is not None and call.number == number]
        return [line.trial for line in lines if not line.void]

    # -- what the plan asks --------------------------------------------------------------------------------------------

    def takes(self, gang: Gang) -> bool:
        """Whether such a gang is for here: over several slots, or one trial that may get more.

        Raises:
            PlanError: its lanes share some of several slots.
        """
        if len(gang.slots) > 1:
            if sum(len(lane.slots) for lane in gang.lanes) > len(gang.slots):
                raise PlanError(f"the ray backend runs lanes over several slots only where they share none; got {gang.lanes}")
            return True
        widest = self._course.positions[gang.trials[0]].trial.widths[1]
        return widest > 1 and len(gang.lanes) == 1 and gang.quota is None

    def wait(self, gang: Gang) -> None:
        """Have the gang begin; each lane as soon as its slots are free."""
        joint = Joint(Run.of(gang))
        self._joints.append(joint)
        self._man(joint)

    def _man(self, joint: Joint) -> None:
        """Each lane of the gang to the slots that the gang says."""
        for lane in joint.run.gang.lanes:
            members = [self._fleet.berths[slot] for slot in lane.slots if slot in self._fleet.berths]
            line = joint.lines.setdefault(lane.trial, Line(lane.trial, joint, members))
            if line.members != members:
                line.members = members
                if line.unit is not None and not line.sure.isdisjoint(usable(members)):
                    self._seating.order(line, usable(members))

    def turns(self, before: Gang, after: Gang) -> bool:
        """Whether lanes at work go on in the other gang, which has the same stream; lanes it lacks leave after their unit.

        Those that a gang loses without a decision about it (its turn is the same) are over at once.
        """
        joint = self._at(before)
        same = (before.shards, before.quota) == (after.shards, after.quota)
        overlap = sum(len(lane.slots) for lane in after.lanes) > len(after.slots)
        if joint is None or not same or overlap or not any(t in joint.lines and joint.lines[t].begun for t in after.trials):
            return False
        for trial in set(joint.lines) - set(after.trials):
            self._part_with(joint.lines[trial], at_once=before.since == after.since)
        joint.run.gang = after
        self._man(joint)
        self._work.post(self.advance)  # the others may be through
        return True

    def stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void."""
        joint = self._at(gang)
        if joint is not None:
            self._joints.remove(joint)
            for line in list(joint.lines.values()):
                self._part_with(line, at_once=False)

    def _at(self, gang: Gang) -> Joint | None:
        return next((joint for joint in self._joints if joint.run.gang == gang), None)

    def _part_with(self, line: Line, at_once: bool) -> None:
        del line.joint.lines[line.trial]
        if line.unit is None or at_once:
            self._seating.halt(line)
            self._drop(line)
            if at_once:
                self._course.positions[line.trial].carried = None
            return
        line.gone, line.members = True, line.at_unit
        self._leaving.append(line)
        if line.joint.run.quota is not None:
            line.void = True
            for berth, call in line.calls.items():
                berth.call("control", "halt", call.number)

    def _drop(self, line: Line) -> None:
        """It is at work no more."""
        if line.joint.lines.get(line.trial) is line:
            del line.joint.lines[line.trial]
        if line in self._leaving:
            self._leaving.remove(line)
        if line.begun:
            self._work.active.discard(line.trial)
        if not line.joint.lines and line.joint in self._joints:
            self._joints.remove(line.joint)

    def _lines(self) -> Iterator[Line]:
        return iter([*(line for joint in self._joints for line in joint.lines.values()), *self._leaving])

    # -- beginning -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether a lane still waits for its slots."""
        return any(not line.begun for line in self._lines())

    def begin(self) -> None:
        """Start the lanes that need not wait any more."""
        for line in [line for line in self._lines() if not line.begun]:
            if line.trial not in self._work.unfinished:
                self._leave(line)
                self._work.post(self.advance)
            elif line.trial not in self._work.active and line.members and all(idle(berth) for berth in line.members):
                line.begun = True
                self._work.active.add(line.trial)
                self._seating.give(line)

    def _regroup(self, line: Line) -> list[Event]:
        """A process of the unit is gone: the others go on, if one of them has the trial's state."""
        able = [b for b in line.at_unit if b in line.sure or b in line.made]
        able = able or [b for b in line.at_unit if not queued(b, line.trial)]
        if not able:
            return self._restart(line)
        wanted = [berth for berth in line.members if berth in able] or able
        self._seating.order(line, wanted, broken=True)
        if not line.gone and set(usable(line.members)) - set(wanted) and not line.sure.isdisjoint(line.members):
            self._seating.order(line, usable(line.members))
        return []

    def _restart(self, line: Line) -> list[Event]:
        """The trial's state is nowhere any more, but for what is stored or durable: the unit begins anew from there."""
        at = self._course.positions[line.trial]
        self._seating.halt(line)
        at.carried = line.stored
        events: list[Event] = [(self._course.fall if line.stored is None else self._course.abandon)(line.trial)]
        if line.gone:
            self._drop(line)
        elif line.joint.run.left is not None:  # the shards of a gang may be wrong for its trial now: the policy decides anew
            gang = line.joint.run.gang
            self._drop(line)
            self.stop(gang)
            events.append(Ended(gang))
        else:
            self._seating.give(line)
        return events

    # -- what comes back -----------------------------------------------------------------------------------------------

    def _reported(self, line: Line, berth: Berth, call: Call, future: Any) -> list[Event]:
        return self._work.reported(berth, berth.shares, call, future, partial(self._settled, line, berth, call))

    def _settled(self, line: Line, berth: Berth, call: Call, share: Share) -> list[Event]:
        if line.calls.get(berth) is not call:
            return self._late(line, berth, call, share)
        del line.calls[berth]
        return self._settle(line, berth, call, share)

    def _settle(self, line: Line, berth: Berth, call: Call, share: Share) -> list[Event]:
        if line.void:
            if isinstance(share, Made):
                line.made.add(berth)
            if line.calls:
                return []
            self._seating.halt(line)
            self._drop(line)
            return [self._course.abandon(line.trial)]
        match share:
            case Trained():
                events = self._trained(line, berth, call, share)
            case TrialError():
                events = self._failed(line, share)
            case Lost():
                line.stored = None if call.origins else line.stored  # it looked there
                events = self._restart(line)
            case Drifting():
                line.made.add(berth)  # as far as it goes: it is asked again
                events = self._regroup(line)
            case Made():
                line.made.add(berth)
                events = []
            case Cut():
                events = self._left(line, berth)
        return events

    def _left(self, line: Line, berth: Berth) -> list[Event]:
        line.sure.discard(berth)
        self._seating.unhold(line, berth)
        if berth in line.members and not line.gone and not berth.leaving:  # by now it is to come back
            self._seating.order(line, usable(line.members))
        return []

    def _late(self, line: Line, berth: Berth, call: Call, share: Share) -> list[Event]:
        """Of a unit that is made, or was given up."""
        at, unit = self._course.positions[line.trial], call.units[line.trial]
        if isinstance(share, Made) and len(unit.visits) == len(at.visits) - 1 and at.visits[:-1] == unit.visits:
            if isinstance(at.carried, Resident) and berth not in at.carried.berths and line.unit is None:
                at.carried = Resident((*at.carried.berths, berth))
            return []
        if line.unit is not None and not line.reused:
            return []  # what it is out of is over
        if berth in line.calls and line.steady:  # it is out of the generation in which the next unit was to be made
            return self._regroup(line)
        line.steady = False
        return []

    def _trained(self, line: Line, berth: Berth, call: Call, share: Trained) -> list[Event]:
        trial, unit, done = line.trial, call.units[line.trial], share.done
        at = self._course.positions[trial]
        moved = share.fetched if call.origins.get(trial) != berth.id else 0
        self.moved += moved
        events = self._course.done(unit, done, share.values, moved, berth.slot.memory if berth.slot else inf)
        told = pickle.dumps((at.visits, done.scores, done.age, unit.last))
        for other in dict.fromkeys((*line.seats, *line.made, *line.calls)):  # also who was told to leave, but too late
            if other is not berth:
                other.call("train", "conclude", trial, told)
        holders = (berth, *(each for each in line.seats if each in line.made))
        steady, line.made = line.steady and not unit.carry, set()
        self._seating.halt(line)
        line.steady = steady
        if self._course.met(trial) and done.kept is not None:
            at.carried = None
        elif unit.carry:
            self._states.store(trial, call.states[trial], share.size, berth.id)
        else:
            at.carried = Resident(holders)
        return events + self._ended(line)

    def _failed(self, line: Line, error: TrialError) -> list[Event]:
        self._seating.halt(line)
        self._course.positions[line.trial].carried = None
        if isinstance(error, OutOfMemory) and len(line.joint.lines) > 1:  # its neighbours are on other slots
            if error.freed and not line.gone:
                events: list[Event] = [self._course.fall(line.trial)]
                self._seating.give(line)
                return events
            error = TrialError(error.why, error.text, error.signature)
        line.error = error
        return self._ended(line)

    def _ended(self, line: Line) -> list[Event]:
        """The lane has made its unit, or failed. One that is at its end leaves; the others wait for each other."""
        line.through = True
        if not line.gone and all(each.through for each in line.joint.lines.values()):
            return self.advance()
        events = self._end_of(line)
        if events and not line.gone:
            rest = prune(line.joint.run.gang, frozenset((line.trial,)))
            assert rest is not None, "others are at work"
            line.joint.run.gang = rest
        if events or line.gone:
            self._drop(line)
        return events

    def _end_of(self, line: Line) -> list[Event]:
        if line.error is None and not self._course.met(line.trial):
            return []
        self._work.unfinished.discard(line.trial)
        return [Finished(line.trial) if line.error is None else self._course.fail(line.trial, line.error)]

    def advance(self) -> list[Event]:
        """End the rounds whose lanes are all through, and begin the next ones."""
        events: list[Event] = []
        for joint in [j for j in self._joints if j.lines and all(line.through for line in j.lines.values())]:
            run, slot = joint.run, next(b.slot for line in joint.lines.values() for b in line.members if b.slot is not None)
            failed = {line.trial: line.error for line in joint.lines.values() if line.error is not None}
            told = self._course.end_round(run, slot, failed)
            for event in told:
                if isinstance(event, Joined):
                    self._fleet.berths[event.slots[0].id].slot = event.slots[0]
                elif isinstance(event, Finished | Failed):
                    self._work.unfinished.discard(event.trial)
            events += told
            for line in list(joint.lines.values()):
                if run.over or line.trial not in run.gang.trials:
                    self._drop(line)
                else:
                    self._seating.give(line)
        return events

    # -- slots that go -------------------------------------------------------------------------------------------------

    def release(self, berth: Berth) -> None:
        """The slot is to leave: lanes that have others go on without it at once."""
        for line in self._lines():
            if line.unit is not None and berth in line.at_unit and not line.gone:
                rest = usable(line.members)
                if not line.sure.isdisjoint(rest):
                    self._seating.order(line, rest)

    def lose(self, berth: Berth) -> tuple[list[TrialId], list[Event]]:
        """The slot is gone, its gangs shrink. Trials that lost a unit by it, and what happened to others."""
        lost, events = list[TrialId](), list[Event]()
        berth.shares = []
        for joint in list(self._joints):
            rest = prune(joint.run.gang, slots=frozenset((berth.id,)))
            if rest is not None:
                joint.run.gang = rest
            for line in list(joint.lines.values()):
                if berth in line.members:
                    line.members = [each for each in line.members if each is not berth]
                    if not line.members:
                        lost += self._bereaved(line, berth)
        for line in self._lines():
            here = line.unit is not None and (berth in line.calls or berth in line.made)
            if here or berth in line.seats:
                line.steady = False
            if here:
                self._without(line, berth)
                if line.at_unit and not line.void:
                    events += self._regroup(line)
                elif line.calls:
                    continue  # of a void unit: they are about to say that they have halted
                elif line.gone:
                    lost.append(line.trial)
                    self._seating.halt(line)
                    self._drop(line)
                else:
                    events += self._restart(line)
        return lost, events

    def _bereaved(self, line: Line, berth: Berth) -> Iterable[TrialId]:
        """A lane that has no slot left; who is still at its unit elsewhere makes it to the end."""
        del line.joint.lines[line.trial]
        if not line.joint.lines and line.joint in self._joints:
            self._joints.remove(line.joint)
        others = [each for each in line.at_unit if each is not berth]
        if line.unit is not None and not line.sure.isdisjoint(others):
            line.gone, line.members = True, others
            self._leaving.append(line)
            return ()
        lost = (line.trial,) if line.unit is not None else ()
        self._seating.halt(line)
        self._drop(line)
        return lost

    def _without(self, line: Line, berth: Berth) -> None:
        line.calls.pop(berth, None)
        line.made.discard(berth)
        line.sure.discard(berth)
        line.members = [each for each in line.members if each is not berth]

    def _leave(self, line: Line) -> None:
        """A lane that waited for its slots has nothing to do any more."""
        rest = prune(line.joint.run.gang, frozenset((line.trial,)))
        if rest is not None:
            line.joint.run.gang = rest
        self._drop(line)
