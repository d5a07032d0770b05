"""Who makes the units of a lane over several slots. Its processes form generations, which only this side numbers.

See docs/decisions/0010.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from shoal.backend.course import Run
from shoal.backend.ray_fleet import Berth, Call
from shoal.backend.ray_states import Resident, Stored, Work, carries, durable_name
from shoal.core.event import Event
from shoal.core.trial import TrialId
from shoal.train.seat import Move, Seat
from shoal.train.unit import TrialError, Unit


@dataclass(eq=False, slots=True)
class Joint:
    """A gang at work, or that waits for its slots. A round is a unit of each lane."""

    run: Run
    lines: dict[TrialId, "Line"] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Line:
    """A lane: the slots it is to have, and who makes its unit."""

    trial: TrialId
    joint: Joint
    members: list[Berth]  # in gang order
    begun: bool = False
    through: bool = False  # with its unit of the round
    gone: bool = False  # from its gang, after the unit under way
    error: TrialError | None = None
    unit: Unit | None = None  # under way
    stored: Stored | None = None  # what it went on from, where that lies in the object store
    seats: dict[Berth, Seat] = field(default_factory=dict)  # of the newest generation
    sure: set[Berth] = field(default_factory=set)  # who had the trial's state when the unit began, and did not leave it
    calls: dict[Berth, Call] = field(default_factory=dict)  # of the unit, not answered yet
    made: set[Berth] = field(default_factory=set)  # who made its pass, while rank 0 has yet to say so
    steady: bool = False  # the newest generation is the one at work, and complete
    reused: bool = False  # the unit began in the generation of the one before it
    void: bool = False  # whatever comes of the unit does not count

    @property
    def at_unit(self) -> list[Berth]:
        """Those who make it, or are to."""
        return [berth for berth in self.seats if berth in self.calls or berth in self.made]


class Seating:
    """`gradients`: how they travel between the processes of a lane. `reported`: what to do when one of them answers."""

    def __init__(
        self, work: Work, gradients: Literal["gloo", "nccl"], reported: Callable[[Line, Berth, Call, Any], list[Event]]
    ) -> None:
        self._work, self._reported = work, reported
        self._gradients: Literal["gloo", "nccl"] = gradients
        self._generations: Counter[TrialId] = Counter()

    def give(self, line: Line) -> None:
        """The lane's next unit. Slots that others still work at join when they come free."""
        members = usable(line.members)
        if not members:
            return  # the gang shrinks by it when they have left
        here = [berth for berth in members if not queued(berth, line.trial)] or members
        at, carry = self._work.course.positions[line.trial], carries(line.joint.run)
        holders = at.carried.berths if isinstance(at.carried, Resident) else ()
        line.sure, line.stored = {berth for berth in here if berth in holders}, None
        if carry or not line.sure:
            line.stored = self._work.states.source(line.trial, here[0], void=carry)
            line.sure = {here[0]}
        if isinstance(at.carried, Resident):
            for berth in set(holders).difference(here):
                berth.call("train", "forget", line.trial)
            at.carried = Resident(tuple(here))
        line.unit = self._work.course.unit(line.joint.run, line.trial, durable_name(at), carry)
        line.through, line.error, line.calls, line.made = False, None, {}, set()
        line.reused = line.steady and list(line.seats) == here
        if not line.reused:
            line.seats = self._seated(line, here, ())
        line.steady = True
        for berth in here:
            self._call(line, berth, joins=False, first=berth is here[0])
        if len(here) < len(members):
            self.order(line, members)

    def _seated(self, line: Line, who: Sequence[Berth], joining: tuple[int, ...]) -> dict[Berth, Seat]:
        """A new generation."""
        self._generations[line.trial] += 1
        generation = self._generations[line.trial]
        anchors = [berth for berth in who if berth in line.sure] or who
        store = anchors[generation % len(anchors)].meeting if len(who) > 1 else ""  # in turn, lest all depends on one
        return {
            berth: Seat(
                line.trial,
                generation,
                rank,
                len(who),
                store,
                host=berth.meeting.rpartition(":")[0],
                joining=joining,
                gradients=self._gradients,
            )
            for rank, berth in enumerate(who)
        }

    def _call(self, line: Line, berth: Berth, joins: bool, first: bool = False) -> None:
        """`first`: the one that gets the state that the unit goes on from, where it is not held."""
        assert line.unit is not None, "of a unit under way"
        unit = line.unit if first else replace(line.unit, source=None)
        told, parcel = pickle.dumps((unit, line.seats[berth], joins)), []
        origins = {}
        if first and line.stored is not None:
            parcel, origins = [line.stored.ref], {line.trial: line.stored.slot}
        number = next(self._work.numbers)
        report, state = berth.call("train", "wide", number, told, parcel, results=2)
        call = line.calls[berth] = Call(number, {line.trial: unit}, origins, {line.trial: state})
        berth.shares.append(call)
        self._work.fleet.follow(report, partial(self._reported, line, berth, call))

    def order(self, line: Line, who: Sequence[Berth], broken: bool = False) -> None:
        """Have the unit go on among these; those that leave it are free at the next step."""
        if not who or (line.made and not broken):
            return  # its pass is at its end: the next one will be theirs
        joining = tuple(rank for rank, berth in enumerate(who) if berth not in line.sure)
        before = dict(line.calls)
        line.seats = self._seated(line, who, joining)
        line.steady = False
        for berth in who:
            if berth not in before:
                self._call(line, berth, joins=berth not in line.made)
        generation = self._generations[line.trial]
        for berth, call in before.items():
            berth.call("control", "move", call.number, Move(generation, line.seats.get(berth), broken))
        line.made.difference_update(who)
        line.sure.intersection_update(who)
        at = self._work.course.positions[line.trial]
        if isinstance(at.carried, Resident):
            at.carried = Resident(tuple(who))

    def halt(self, line: Line) -> None:
        """Whatever is under way comes to nothing, or what is made of it."""
        for berth, call in line.calls.items():
            berth.call("control", "halt", call.number)
        for berth in line.made:
            berth.call("train", "forget", line.trial)
        line.unit, line.calls, line.made, line.steady = None, {}, set(), False

    def unhold(self, line: Line, berth: Berth) -> None:
        """The trial's state is not there any more."""
        at = self._work.course.positions[line.trial]
        if isinstance(at.carried, Resident) and len(at.carried.berths) > 1:
            at.carried = Resident(tuple(each for each in at.carried.berths if each is not berth))


def usable(berths: Iterable[Berth]) -> list[Berth]:
    """Those that are not to leave."""
    return [berth for berth in berths if not berth.leaving]


def idle(berth: Berth) -> bool:
    """Whether it is ready, and nothing is under way there."""
    return berth.slot is not None and berth.run is None and not berth.at_work


def queued(berth: Berth, trial: TrialId) -> bool:
    """Whether it is still at work for others."""
    return bool(berth.calls) or any(trial not in call.units for call in berth.shares)
