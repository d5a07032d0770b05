"""The rounds that a slot is given: the next units of its gang's trials."""

import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from shoal.backend.course import Positions
from shoal.backend.gang_run import GangRun
from shoal.backend.position import Position
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.ray.states import carries, durable_name
from shoal.backend.ray.work import Work
from shoal.core.cluster import SlotId
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import Unit

# Units of a whole-data gang that its slot is given at once, so that it never waits for the driver.
DEPTH = 2

Parcels = dict[TrialId, Any]  # references to states
Trials = Sequence[TrialId]
Units = dict[TrialId, Unit]
Reported = Callable[[SlotProcess, Call, Any], Events]


class NextRounds:
    """What slots are given: the next rounds of their gangs.

    `reported`: what to do when a slot answers.
    """

    def __init__(self, work: Work, reported: Reported) -> None:
        self._work = work
        self._course = work.course
        self._reported = reported
        # Trials after the units given out.
        self._ahead = Positions(work.course.seed, work.course.sizes, work.course.validate_every)

    def fill(self, process: SlotProcess) -> None:
        """Give the slot its gang's next rounds."""
        run = process.run
        assert run is not None, "only of a process at work"
        depth = DEPTH
        if carries(run):
            depth = 1
        while len(process.calls) < depth and not (process.stopping or process.leaving):
            trials = self._next(process, run.gang.trials)
            if not trials:
                return
            self._give(process, run, trials)

    def _next(self, process: SlotProcess, trials: Trials) -> Trials:
        """The trials that make another unit after those given out already."""
        if not process.calls:
            return trials
        if any(not call.dropped.isdisjoint(trials) for call in process.calls):
            return ()  # such a trial must know first what it goes on from
        before = process.calls[-1].units
        return [t for t in trials if t in before and not before[t].last]

    def _give(self, process: SlotProcess, run: GangRun, trials: Trials) -> None:
        """Give the slot one more round."""
        parcels: Parcels = {}
        call = Call(next(self._work.numbers), {}, {})
        if process.calls:
            call.units = self._units_after(run, trials, process.calls)
        else:
            parcels = self._first(call, process, run, trials)

        # Of many visits: ten times as fast as Ray's own pickling.
        measured = rated_before(call.units, self._course.measurements.rated)
        task = pickle.dumps((call.units, run.gang.fused, measured))
        if not process.at_work:
            call.begun = monotonic()
        results = 1 + len(call.units)
        report, *states = process.call(
            "train", "train", call.number, task, parcels, results=results
        )
        call.states = dict(zip(call.units, states, strict=True))
        process.begin(process.calls, call)
        report.future().add_done_callback(call.note_end)
        self._work.fleet.follow(report, partial(self._reported, process, call))

    def _first(
        self,
        call: Call,
        process: SlotProcess,
        run: GangRun,
        trials: Trials,
    ) -> Parcels:
        """Units that go on from where the trials are; the states that lie in the object store."""
        carry = carries(run)
        parcels: Parcels = {}
        units: Units = {}
        origins: dict[TrialId, SlotId] = {}
        for trial in trials:
            stored = self._work.states.source(trial, process, void=carry)
            if stored is not None:
                parcels[trial] = stored.ref
                origins[trial] = stored.slot
            name = durable_name(self._work.at(trial))
            units[trial] = self._course.unit(run, trial, name, carry)

        call.units = units
        call.origins = origins
        return parcels

    def _units_after(self, run: GangRun, trials: Trials, calls: Sequence[Call]) -> Units:
        """The trials' units after those that these calls give."""
        units: Units = {}
        for trial in trials:
            given = [call.units[trial] for call in calls]
            self._ahead.positions[trial] = self._position_after(trial, given)
            units[trial] = self._ahead.unit(run, trial, None, carry=False)
        return units

    def _position_after(self, trial: TrialId, given: Sequence[Unit]) -> Position:
        """Where the trial is once these units are made."""
        at = self._work.at(trial)
        visits = list(at.visits)
        samples = at.samples
        for unit in given:
            size = self._course.sizes[unit.visit.shard]
            visits.append(unit.visit._replace(samples=size))
            samples += size
        return Position(at.trial, tuple(visits), samples)


def rated_before(units: Mapping[TrialId, Unit], rated: Collection[str]) -> frozenset[str] | None:
    """The signatures whose rates are known (`rated`), for the slot that makes these units.

    None where all trials have made visits: they told their rates then, whichever slot it was.
    """
    if all(unit.visits for unit in units.values()):
        return None
    return frozenset(rated)
