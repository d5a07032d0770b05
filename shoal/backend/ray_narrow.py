"""Gangs on one slot: one trial, or several that share it. The slot gets their rounds, and makes them one after another."""

import pickle
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from math import inf
from typing import Any

from shoal.backend.course import Course, Position, Run
from shoal.backend.ray_fleet import Berth, Call
from shoal.backend.ray_slot import Cut, Lost, Outcome, Trained
from shoal.backend.ray_states import Resident, Work, carries, durable_name
from shoal.core.cluster import SlotId
from shoal.core.event import Ended, Event, Failed, Finished, Joined
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.trial import TrialId
from shoal.train.unit import TrialError, Unit

DEPTH = 2  # units of a whole-data gang that its slot is given at once, so that none waits for the driver


class Narrow:
    """The gangs of one slot each, at work or waiting for it."""

    def __init__(self, work: Work) -> None:
        self._work, self._course, self._fleet, self._states = work, work.course, work.fleet, work.states
        self._active, self._unfinished = work.active, work.unfinished
        self._ahead = Course(
            self._course.seed, self._course.sizes, self._course.validate_every
        )  # trials after the units given out
        self.waiting: dict[SlotId, Run] = {}  # gangs whose slot or trial is still at work
        self.moved = 0  # bytes of states that came from other slots

    def wait(self, gang: Gang) -> None:
        """Have the gang begin as soon as it can."""
        if _slot_of(gang) in self._fleet.berths:
            self.waiting[_slot_of(gang)] = Run.of(gang)

    def lose(self, berth: Berth) -> tuple[TrialId, ...]:
        """The slot is gone: the trials that lost a unit there."""
        self.waiting.pop(berth.id, None)
        trials = () if berth.run is None else berth.run.gang.trials
        self._active.difference_update(trials)
        berth.run, berth.calls = None, []
        return trials

    def at_work(self, berth: Berth, number: int) -> Collection[TrialId]:
        """The trials of that round, if it is the one under way there and counts."""
        if berth.run is None or not berth.calls or berth.calls[0].number != number or berth.calls[0].void:
            return ()
        return set(berth.run.gang.trials) - berth.calls[0].dropped

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def shrinks(self, before: Gang, after: Gang) -> bool:
        """Whether a gang at work only loses lanes; if so, what is under way of them comes to nothing, and the others go on."""
        berth = self._fleet.berths.get(_slot_of(before))
        if not goes_on(before, after) or len(after.slots) > 1 or berth is None or berth.run is None or berth.run.gang != before:
            return False
        berth.run.gang = after
        for trial in set(before.trials) - set(after.trials):
            self._drop(berth, trial)
            self._active.discard(trial)
            self._course.positions[trial].carried = None
        return True

    def stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void; those given out after it are called off."""
        slot = _slot_of(gang)
        if slot in self.waiting and self.waiting[slot].gang == gang:
            del self.waiting[slot]
            return
        berth = self._fleet.berths.get(slot)
        if berth is None or berth.run is None or berth.run.gang != gang or berth.stopping:
            return
        berth.stopping = True
        if gang.quota is None:
            self.call_off(berth)
        else:
            for call in berth.calls:
                call.void = True
                berth.call("control", "halt", call.number)

    def call_off(self, berth: Berth) -> None:
        """Leave out the rounds that have not begun."""
        for call in berth.calls[1:]:
            berth.call("control", "call_off", call.number)

    def begin(self) -> None:
        """Start the gangs that need not wait any more."""
        for slot, run in list(self.waiting.items()):
            berth = self._fleet.berths[slot]
            rest = prune(run.gang, frozenset(run.gang.trials) - self._unfinished)
            if rest is None:
                del self.waiting[slot]
                continue
            run.gang = rest
            if berth.slot is not None and berth.run is None and not berth.shares and self._active.isdisjoint(rest.trials):
                del self.waiting[slot]
                self._active.update(rest.trials)
                berth.run, berth.stopping = run, False
                self._fill(berth)

    def _fill(self, berth: Berth) -> None:
        """Give the slot its gang's next rounds."""
        run = berth.run
        assert run is not None, "only of a berth at work"
        depth = 1 if carries(run) else DEPTH
        while len(berth.calls) < depth and not (berth.stopping or berth.leaving):
            trials = run.gang.trials
            if any(not call.dropped.isdisjoint(trials) for call in berth.calls):
                return  # such a trial must know first what it goes on from
            if berth.calls:
                trials = tuple(t for t in trials if t in berth.calls[-1].units and not berth.calls[-1].units[t].last)
            if not trials:
                return
            self._give(berth, run, trials)

    def _give(self, berth: Berth, run: Run, trials: Iterable[TrialId]) -> None:
        parcels: dict[TrialId, Any] = {}
        origins: dict[TrialId, SlotId] = {}
        units: dict[TrialId, Unit] = {}
        for trial in trials:
            if berth.calls:
                units[trial] = self._unit_after(run, trial, [call.units[trial] for call in berth.calls])
                continue
            stored = self._states.source(trial, berth, void=carries(run))
            if stored is not None:
                parcels[trial], origins[trial] = stored.ref, stored.slot
            at = self._course.positions[trial]
            units[trial] = self._course.unit(run, trial, durable_name(at), carries(run))
        call = Call(next(self._work.numbers), units, origins)
        told = pickle.dumps((units, run.gang.fused))  # many visits: ten times as fast as Ray's own pickling
        report, *states = berth.call("train", "train", call.number, told, parcels, results=1 + len(units))
        call.states = dict(zip(units, states, strict=True))
        berth.calls.append(call)
        self._fleet.follow(report, partial(self._reported, berth, call))

    def _unit_after(self, run: Run, trial: TrialId, given: Iterable[Unit]) -> Unit:
        """The trial's unit after those given out already."""
        at = self._course.positions[trial]
        coming = [unit.visit._replace(samples=self._course.sizes[unit.visit.shard]) for unit in given]
        samples = at.samples + sum(visit.samples for visit in coming)
        self._ahead.positions[trial] = Position(at.trial, (*at.visits, *coming), samples)
        return self._ahead.unit(run, trial, None, carry=False)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def _reported(self, berth: Berth, call: Call, future: Any) -> list[Event]:
        return self._work.reported(berth, berth.calls, call, future, partial(self._settled, berth, call))

    def _settled(self, berth: Berth, call: Call, outcomes: Mapping[TrialId, Outcome]) -> list[Event]:
        assert berth.run is not None, "it has calls"
        events = self._settle(berth, berth.run, call, outcomes)
        self._fill(berth)
        if not berth.calls:
            if call.void or not berth.run.over:  # else they went at the round's end
                self._active.difference_update(berth.run.gang.trials)
            berth.run = None
        return events

    def _settle(self, berth: Berth, run: Run, call: Call, outcomes: Mapping[TrialId, Outcome]) -> list[Event]:
        here = {t: outcome for t, outcome in outcomes.items() if t in run.gang.trials and t not in call.dropped}
        if call.void:
            return [self._course.abandon(trial) for trial in here]
        events: list[Event] = []
        for trial, outcome in here.items():
            if isinstance(outcome, Trained):
                events += self._trained(berth, call, trial, outcome)
        failed = {t: outcome for t, outcome in here.items() if isinstance(outcome, TrialError)}
        lost = [t for t, outcome in here.items() if isinstance(outcome, Lost)]
        for trial in [*failed, *lost]:
            self._drop(berth, trial)
            self._course.positions[trial].carried = None
        events += [self._course.fall(trial) for trial in lost]
        if run.left is not None and lost:  # the shards of a gang may be wrong for its trial now: the policy decides anew
            berth.stopping = True
            return [*events, Ended(run.gang)]
        if any(not isinstance(outcome, Cut | Lost) for outcome in here.values()):
            events += self._over(berth, run, failed, lost)
        return events

    def _over(self, berth: Berth, run: Run, failed: Mapping[TrialId, TrialError], lost: Collection[TrialId]) -> list[Event]:
        """What ends with the round."""
        assert berth.slot is not None, "only of a berth at work"
        before = run.gang.trials
        events = self._course.end_round(run, berth.slot, failed, lost)
        for event in events:
            if isinstance(event, Joined):
                berth.slot = event.slots[0]
            elif isinstance(event, Finished | Failed):
                self._unfinished.discard(event.trial)
        out = set[TrialId]()
        if run.over:
            berth.stopping = True
            out = {t for call in berth.calls for t in set(call.units) - call.dropped if t in self._unfinished}
        if out:
            events = [*self._void(berth, out), *events]
            run.gang = prune(run.gang, frozenset(run.gang.trials) - out) or run.gang
        self._active.difference_update(set(before) - (out if run.over else set(run.gang.trials)))
        return events

    def _void(self, berth: Berth, trials: Collection[TrialId]) -> list[Event]:
        """The gang is over (it had no room) while rounds of it are out: they come to nothing; how far they went nobody knows."""
        for call in berth.calls:
            call.void = True
            berth.call("control", "halt", call.number)
        for trial in trials:
            self._course.positions[trial].carried = None
        return [self._course.fall(trial) for trial in sorted(trials)]

    def _trained(self, berth: Berth, call: Call, trial: TrialId, outcome: Trained) -> list[Event]:
        at, unit = self._course.positions[trial], call.units[trial]
        moved = outcome.fetched if call.origins.get(trial) != berth.id else 0
        self.moved += moved
        events = self._course.done(unit, outcome.done, outcome.values, moved, berth.slot.memory if berth.slot else inf)
        if self._course.met(trial) and outcome.done.kept is not None:
            at.carried = None
        elif unit.carry:
            self._states.store(trial, call.states[trial], outcome.size, berth.id)
        else:
            at.carried = Resident((berth,))
        return events

    def _drop(self, berth: Berth, trial: TrialId) -> None:
        """What was given to the slot of this trial after a unit that came to nothing will come to nothing, too."""
        for call in berth.calls:
            call.dropped.add(trial)
            if call.dropped.issuperset(call.units):
                berth.call("control", "call_off", call.number)


def _slot_of(gang: Gang) -> SlotId:
    return gang.lanes[0].slots[0]
