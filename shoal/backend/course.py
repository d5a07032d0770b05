"""Where each trial stands: which unit comes next, and which events a finished unit makes.

The real backends share this.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.backend.gang_run import GangRun
from shoal.backend.measurements import Measurements
from shoal.backend.no_room import Errors, crowded_lanes, refused_lanes
from shoal.backend.position import Position
from shoal.core.cluster import GiB, ShardId, Slot
from shoal.core.event import (
    Advanced,
    Ended,
    Event,
    Failed,
    Fell,
    Joined,
    Kept,
    Measured,
    Sum,
)
from shoal.core.state import Figures, State
from shoal.core.trial import Trial, TrialId, Visit
from shoal.core.visits import ValidateEvery, counted, is_met, next_visit
from shoal.engine.own import make_folder, write_private
from shoal.train.recipe.guard import warn_of_shared
from shoal.train.recipe.unit import (
    Done,
    OutOfMemory,
    PackRefused,
    Part,
    Reached,
    TrialError,
    Unit,
)

NO_ERRORS: Errors = MappingProxyType({})


class Positions:
    """The positions of all trials of one study.

    `sizes`: samples per training shard. `validate_every`: when trials are evaluated, beside their
    ends. `state`: what the journal says, so that a resumed study goes on
    from its durable positions. `logs`: the folder for the traceback of a failed trial, which goes
    to <trial>/error.txt.
    """

    def __init__(
        self,
        seed: int,
        sizes: Mapping[ShardId, int],
        validate_every: ValidateEvery = ValidateEvery(),
        state: State = State(),
        logs: Path | None = None,
    ) -> None:
        self.logs = logs
        self.seed = seed
        self.sizes = sizes
        self.validate_every = validate_every
        self.positions: dict[TrialId, Position] = {}
        self._state = state
        # Slots or whole runs ended under these: they are durable again as soon as can be, which
        # tells those that are to blame from those that were only there.
        self._struck = set(state.strikes_of_slots)
        self.measurements = Measurements(state.figures)

    # -- trials ----------------------------------------------------------------------------------

    def submit(self, trial: Trial) -> list[Event]:
        """The trial is new, extended, or goes on in a resumed study; returns what this tells."""
        at = self.positions.get(trial.id)
        if at is not None:
            at.trial = trial
            return []
        at = self._first(trial)
        self.positions[trial.id] = at
        return at.lost(self._state.visits.get(trial.id, ()))

    def _resumed(self, trial: Trial, kept: Kept) -> Position:
        """Where the durable state is that an earlier run left."""
        visits = self._state.visits.get(trial.id, ())
        former = self._state.former.get(trial.id)
        return Position(trial, visits[: kept.visits], kept.samples, kept=kept, former=former)

    def _first(self, trial: Trial) -> Position:
        """Where a trial begins that this run does not know yet."""
        kept = self._state.kept.get(trial.id)
        if kept is not None:
            return self._resumed(trial, kept)
        if trial.start is not None:
            return self._child(trial, *trial.start)
        return Position(trial)

    def _child(self, trial: Trial, parent: TrialId, visits: int) -> Position:
        """Where a trial begins that starts from another's durable state."""
        if parent not in self.positions:
            self.submit(self._state.known[parent])
        at = self.positions[parent]
        assert at.kept is not None and at.kept.visits == visits, (
            f"{trial.id} starts from {trial.start}, but durable is {at.kept}"
        )
        kept = replace(at.kept, trial=trial.id)
        return Position(trial, at.visits[:visits], kept.samples, kept=kept)

    def met(self, trial: TrialId) -> bool:
        """Whether the trial has all its samples, or its function is over."""
        at = self.positions[trial]
        return at.over or is_met(at.trial, at.samples)

    def keep(self, trial: TrialId, name: str) -> Kept:
        """The trial's newest state is durable in this checkpoint."""
        at = self.positions[trial]
        kept = Kept(trial, len(at.visits), at.samples, name)
        at.keep(kept)
        at.age = 0.0
        self._struck.discard(trial)
        return kept

    def fail(self, trial: TrialId, error: TrialError) -> Failed:
        """The trial cannot go on; its traceback goes to the log folder."""
        if self.logs is not None:
            place = self.logs / trial
            make_folder(place, self.logs.parent)
            write_private(place / "error.txt", error.text, self.logs.parent)
        return Failed(trial, error.why)

    def fall(self, trial: TrialId) -> Fell:
        """The newest state of the trial is lost: back to the durable one, or to the beginning."""
        at = self.positions[trial]
        visits, samples = at.durable()
        at.visits = at.visits[:visits]
        at.samples = samples
        at.restart()
        at.age = 0.0
        at.carried = None
        return Fell(trial, visits, samples)

    def abandon(self, trial: TrialId) -> Fell:
        """The unit under way is void: back to where the trial was before it."""
        at = self.positions[trial]
        at.restart()
        return Fell(trial, len(at.visits), at.samples)

    # -- one unit --------------------------------------------------------------------------------

    def unit(self, run: GangRun, trial: TrialId, source: Any, carry: bool) -> Unit:
        """The trial's next unit, in a gang that is not over."""
        at = self.positions[trial]
        shards = at.trial.shards or frozenset(self.sizes)
        beside = run.shards_beside()
        visit = next_visit(self.seed, at.visits, shards, run.next_shard(), beside)
        last = is_met(at.trial, at.samples + sum(self.sizes[each] for each in visit.shards))
        made = range(len(at.visits), len(at.visits) + len(visit.shards))
        parts = [part for number in made for part in self.validate_every.parts(number, len(shards))]
        return Unit(
            at.trial,
            at.visits,
            visit,
            source=source,
            evaluate=last or 1.0 in parts,
            within=tuple(part for part in parts if part < 1.0),
            steps=self.validate_every.steps,
            age=inf if trial in self._struck else at.age,
            last=last,
            carry=carry,
            reads=run.gang.shards if run.gang.joint else (),
        )

    def part(self, trial: TrialId, part: Part) -> list[Event]:
        """A chunk of the unit under way was trained, or it was evaluated."""
        at = self.positions[trial]
        at.reported += part.samples
        values = {trial: part.values}
        advanced = Advanced({trial: part.samples}, values, spent={trial: part.spent})
        return [advanced, *part.evaluations(trial, len(at.visits), self._shards(trial))]

    def _shards(self, trial: TrialId) -> int:
        """Visits in an epoch of the trial."""
        return len(self.positions[trial].trial.shards or self.sizes)

    def on(self, trial: TrialId, reached: Reached) -> list[Event]:
        """The unit under way is there. Its values come when it is done.

        Returns what was not reported before.
        """
        return self.positions[trial].reach(reached, self._shards(trial))

    def done(
        self,
        unit: Unit,
        done: Done,
        values: Mapping[str, Sum] | None = None,
        moved: int = 0,
        room: GiB = inf,
    ) -> list[Event]:
        """The unit was trained: its events, in the order that backends owe.

        Those of the round's end are not among them. `values`: training values that no `part` has
        reported. `moved`: the bytes of state that came from another slot for the unit. `room`: the
        slot's memory, which the unit did not exceed.
        """
        trial = unit.trial.id
        at = self.positions[trial]
        at.over = done.over
        warn_of_shared(done.shared)
        done = replace(done, within=at.untold(done.within))
        events = at.chose(done.config)
        events.append(self._complete(unit, done, values, moved))
        events += self.measured(trial, done.signature, done.figures, room)
        events += done.evaluations(trial, len(unit.visits), self._shards(trial))
        if done.kept is not None:
            events.append(self.keep(trial, done.kept))
        return events

    def _complete(
        self,
        unit: Unit,
        done: Done,
        values: Mapping[str, Sum] | None,
        moved: int,
    ) -> Advanced:
        """Move the trial's position to the end of the unit."""
        trial = unit.trial.id
        at = self.positions[trial]
        fresh = done.visit.samples - at.reported
        visits: tuple[Visit, ...] = (done.visit,)
        if done.visit.beside:
            visits = counted(done.visit, self.sizes)
        at.visits = (*unit.visits, *visits)
        at.samples += done.visit.samples
        at.age = done.age
        at.restart()
        return Advanced(
            {trial: fresh},
            values={trial: values} if values else {},
            visits={trial: visits},
            spent={trial: done.spent},
            moved={trial: moved} if moved else {},
            dealt={trial: done.dealt} if done.dealt else {},
        )

    # -- the end of a round ----------------------------------------------------------------------

    def end_round(
        self,
        run: GangRun,
        slot: Slot,
        failed: Errors = NO_ERRORS,
        lost: Collection[TrialId] = (),
    ) -> list[Event]:
        """Each lane of the gang has made a unit or failed: the events of what ends by that.

        `failed`: the lanes that failed, and why. `lost`: the lanes that made no unit, because the
        state they were to go on from is gone.
        """
        refused = refused_lanes(failed)
        if refused:
            return _end_refused(self, run, slot, refused)
        gang = run.gang
        good = [trial for trial in gang.trials if trial not in failed]
        made = [self.positions[trial] for trial in good if trial not in lost]
        run.count_down([at.visits[-1] for at in made if at.visits], self.sizes)

        finished = [trial for trial in good if self.met(trial)]
        crowded = crowded_lanes(gang, failed)
        gone = {trial: error for trial, error in failed.items() if trial not in crowded}
        events: list[Event] = []
        if crowded:
            events += _split(self, run, slot, crowded)
        elif run.over and len(gone) < len(gang.lanes):
            events.append(Ended(gang))
        events += [self.positions[trial].ending() for trial in finished]
        for trial, error in gone.items():
            events += self.positions[trial].chose(error.config)
            events.append(self.fail(trial, error))
        run.shrink(frozenset(finished) | gone.keys())
        return events

    def measured(self, trial: TrialId, signature: str, figures: Figures, room: GiB) -> list[Event]:
        """What was measured on the trial, if that is new. `room`: as of `done`."""
        at = self.positions[trial]
        news = self.measurements.news_of(signature, figures, room)
        if not news and signature == at.signature:
            return []
        at.signature = signature
        return [Measured(trial, signature, news)]


# -- gangs without room


def _end_refused(
    positions: Positions,
    run: GangRun,
    slot: Slot,
    errors: Mapping[TrialId, PackRefused],
) -> list[Event]:
    """The slot learnt what the lanes cost, or that they cannot train together so: the gang ends.

    Lanes whose units were begun fall back. What the slot learnt is told first, so that policies
    make better packs. It may not have looked at all of the lanes.
    """
    run.left = []
    events: list[Event] = [positions.fall(trial) for trial, error in errors.items() if error.begun]
    for trial, error in errors.items():
        if not error.signature:
            continue
        events += positions.measured(trial, error.signature, error.figures, slot.memory)
    return [*events, Ended(run.gang)]


def _split(
    positions: Positions,
    run: GangRun,
    slot: Slot,
    errors: Mapping[TrialId, OutOfMemory],
) -> list[Event]:
    """These lanes had no room together. The gang ends, and none of them fails.

    They are believed to need more from now on, so that policies do not try it again. `Joined`
    says how much memory the slot is believed to have, if that was not known.
    """
    run.left = []
    fell = [positions.fall(trial) for trial in errors]
    if len(run.gang.lanes) == 1:
        why = f"out of memory beside models at rest on {slot.id}"
        return [*fell, Ended(run.gang, why)]

    signatures = {}
    for trial, error in errors.items():
        signatures[trial] = error.signature or positions.positions[trial].signature
    room, reports = positions.measurements.crowded(signatures, slot.memory)
    why = f"out of memory with {len(errors)} trials on {slot.id}"
    joined: list[Event] = []
    if slot.memory == inf:
        joined.append(Joined((replace(slot, memory=room),)))
    return [*joined, *fell, *reports, Ended(run.gang, why)]
