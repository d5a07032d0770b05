"""Gangs on one slot: one trial, or several that share it.

The slot gets their rounds, and makes them one after another.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from shoal.backend.course import Positions
from shoal.backend.fallen import fallen
from shoal.backend.gang_run import GangRun
from shoal.backend.ray.node.outcomes import Cut, Lost, Outcome, Trained, Unreadable
from shoal.backend.ray.rounds import NextRounds
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.ray.work import Work
from shoal.core.cluster import SlotId
from shoal.core.event import Ended, Event
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import PackRefused, Returned, TrialError

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
        if slot in self._work.fleet.processes:
            self.waiting[slot] = GangRun.of(gang)

    def begin(self) -> None:
        """Start the gangs that need not wait any more."""
        for slot, run in list(self.waiting.items()):
            process = self._work.fleet.processes[slot]
            over = frozenset(run.gang.trials) - self._work.unfinished
            rest = prune(run.gang, over)
            if rest is None:
                del self.waiting[slot]
                continue
            run.gang = rest
            if self._free(process, rest):
                del self.waiting[slot]
                self._work.active.update(rest.trials)
                process.run = run
                process.stopping = False
                self._rounds.fill(process)

    def _free(self, process: SlotProcess, gang: Gang) -> bool:
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
            self._work.at(trial).carried = None

        return True

    def stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void.

        Those given out after it are called off.
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
        process = self._work.fleet.processes.get(_slot_of(gang))
        if process is None or process.run is None or process.run.gang != gang:
            return None
        return process

    def call_off(self, process: SlotProcess) -> None:
        """Leave out the rounds that have not begun."""
        for call in process.calls[1:]:
            process.call_off(call)

    def lose(self, process: SlotProcess) -> tuple[TrialId, ...]:
        """The slot is gone: the trials that lost a unit there."""
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
        """The slot answered."""
        settle = partial(self._settled, process, call)
        return self._work.reported(process, process.calls, call, future, settle)

    def _settled(self, process: SlotProcess, call: Call, outcomes: Outcomes) -> Events:
        """The round is over; the slot gets the next one, if there is one."""
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
        """What came of the round's units."""
        here = _counting(run, call, outcomes)
        if call.void:
            return [self._course.abandon(trial) for trial in here]
        for outcome in here.values():
            if isinstance(outcome, Unreadable):
                return self._without_shard(process, run, call, outcome)

        call.measure_way(outcomes)
        events: Events = []
        failed: dict[TrialId, TrialError] = {}
        lost = _fall(self._course, here)
        for trial, outcome in here.items():
            if trial in lost:
                continue
            match outcome:
                case Trained():
                    events += self._trained(process, call, trial, outcome)
                case TrialError():
                    failed[trial] = outcome
                case Returned():
                    self._drop(process, trial)
                    events += self._work.at(trial).returned(outcome)

        for trial in [*failed, *lost]:
            self._drop(process, trial)
            error = failed.get(trial)
            if not isinstance(error, PackRefused) or error.begun:
                self._work.at(trial).carried = None
        events += lost.values()
        if run.left is not None and lost:
            # The shards of a gang may be wrong for its trial now: the policy decides anew.
            process.stopping = True
            return [*events, Ended(run.gang)]

        if any(
            trial not in lost and not isinstance(outcome, Cut) for trial, outcome in here.items()
        ):
            events += self._over(process, run, failed, lost)
        return events

    def _without_shard(
        self, process: SlotProcess, run: GangRun, call: Call, about: Unreadable
    ) -> Events:
        """A shard cannot be read there: the round came to nothing, and the gang ends."""
        process.stopping = True
        trials = [trial for trial in call.units if trial in run.gang.trials]
        units = [call.units[trial] for trial in trials]
        for trial in trials:
            self._drop(process, trial)
        back = [self._work.back(trial) for trial in trials]
        return [*back, *self._work.unread(process, run, units, about)]

    def _over(
        self,
        process: SlotProcess,
        run: GangRun,
        failed: Mapping[TrialId, TrialError],
        lost: Collection[TrialId],
    ) -> Events:
        """What ends with the round.

        If the gang is over (it had no room) while other rounds of it are out, these are void.
        """
        before = set(run.gang.trials)
        events = self._course.end_round(run, process.known, failed, lost)
        self._work.note_ends(events)
        if not run.over:
            self._work.active.difference_update(before - set(run.gang.trials))
            return events

        process.stopping = True
        out = self._given_out(process)
        self._work.active.difference_update(before - out)
        if not out:
            return events

        # How far the rounds that are out went, nobody knows.
        _halt(process)
        rest = prune(run.gang, frozenset(run.gang.trials) - out)
        run.gang = rest or run.gang
        fell = [self._course.fall(trial) for trial in sorted(out)]
        return [*fell, *events]

    def _given_out(self, process: SlotProcess) -> set[TrialId]:
        """The trials that still have rounds out."""
        trials: set[TrialId] = set()
        for call in process.calls:
            trials |= call.units.keys() - call.dropped
        return trials & self._work.unfinished

    def _trained(
        self, process: SlotProcess, call: Call, trial: TrialId, outcome: Trained
    ) -> Events:
        """The unit was made: its events."""
        states = self._work.states
        events = states.trained(process, call, trial, outcome)
        states.settle((process,), call, trial, outcome)
        if outcome.done.over:
            self._drop(process, trial)
        return events

    def _drop(self, process: SlotProcess, trial: TrialId) -> None:
        """A unit of the trial came to nothing: so will those given to the slot after it."""
        for call in process.calls:
            call.dropped.add(trial)
            if call.dropped.issuperset(call.units):
                process.call_off(call)


def _fall(course: Positions, outcomes: Outcomes) -> dict[TrialId, Event]:
    """The trials whose states are gone go on from what is durable, and can be read."""
    lost = fallen(course, outcomes)
    for trial, outcome in outcomes.items():
        if isinstance(outcome, Lost):
            lost[trial] = course.fall(trial)
    return lost


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
