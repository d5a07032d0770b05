"""How far each trial is, which unit comes next, and which events a finished unit makes.

The real backends share this.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.core.cluster import GiB, ShardId, Slot
from shoal.core.event import (
    Advanced,
    Ended,
    Evaluated,
    Event,
    Failed,
    Fell,
    Finished,
    Joined,
    Kept,
    Measured,
    Retired,
    Submitted,
    Sum,
)
from shoal.core.plan import Gang, prune
from shoal.core.state import Figures, State, durable
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit
from shoal.core.visits import EPS, ValidateEvery, counted, is_met, next_visit
from shoal.engine.ownership import make_folder, write_private
from shoal.train.recipe.guard import warn_of_shared
from shoal.train.recipe.unit import (
    Done,
    OutOfMemory,
    PackRefused,
    Part,
    Reached,
    Returned,
    Scored,
    StateLost,
    TrialError,
    Unit,
)


@dataclass(slots=True)
class GangRun:
    """A gang at work.

    `shards_left`: the shards it has yet to visit; None: it reads the whole data set.
    `quota`: the samples that are left of its quota; None: it has none.
    """

    gang: Gang
    shards_left: list[ShardId] | None
    quota: Samples | None

    @classmethod
    def of(cls, gang: Gang) -> "GangRun":
        return cls(gang, list(dict.fromkeys(gang.shards)) or None, gang.quota)

    @property
    def over(self) -> bool:
        if self.shards_left == []:
            return True
        return self.quota is not None and self.quota <= EPS

    def next_shard(self) -> ShardId | None:
        """The shard that the gang visits next; None: each trial goes by its own order."""
        if self.shards_left is None:
            return None
        return self.shards_left[0]

    def shards_beside(self) -> tuple[ShardId, ...]:
        """The shards that are read together with the next one."""
        if not self.gang.joint or self.shards_left is None:
            return ()
        return tuple(self.shards_left[1:])

    def waiting(self, units: Iterable[Unit], shard: ShardId) -> tuple[TrialId, ...]:
        """The trials of these units that cannot go on, as the shard cannot be read.

        A gang that was told its shards has no such trials: they may visit others meanwhile.
        """
        if self.shards_left is not None:
            return ()
        return tuple(unit.trial.id for unit in units if shard in unit.visit.shards)

    def count_down(self, visited: Sequence[Visit], sizes: Mapping[ShardId, int]) -> None:
        """Take a unit of each lane off what is left. `visited`: the newest visits of the lanes."""
        passed = max((visit.samples for visit in visited), default=0)
        if self.shards_left is not None:
            count = len(self.shards_left) if self.gang.joint else 1
            passed = sum(sizes[shard] for shard in self.shards_left[:count])
            del self.shards_left[:count]
        if self.quota is not None:
            self.quota -= passed

    def turn_into(self, gang: Gang) -> None:
        """Have the run go on as this gang; one that measured may have no quota any more."""
        self.gang = gang
        if gang.quota is None:
            self.quota = None

    def shrink(self, trials: frozenset[TrialId]) -> None:
        """Have the gang go on without these trials; it is over if none is left."""
        rest = prune(self.gang, trials)
        if rest is None:
            self.shards_left = []
        else:
            self.gang = rest


Errors = Mapping[TrialId, TrialError]


def refused_lanes(failed: Errors) -> dict[TrialId, PackRefused]:
    """The lanes that the slot did not begin."""
    return {trial: error for trial, error in failed.items() if isinstance(error, PackRefused)}


def crowded_lanes(gang: Gang, failed: Errors) -> dict[TrialId, OutOfMemory]:
    """The lanes that may have room another time.

    They ran out of memory beside other lanes, or beside models at rest that were given up since.
    """
    crowded: dict[TrialId, OutOfMemory] = {}
    in_company = len(gang.lanes) > 1
    for trial, error in failed.items():
        if isinstance(error, OutOfMemory) and (in_company or error.freed):
            crowded[trial] = error
    return crowded


# Taken as the room of a slot of which nothing is known, except that it was too small.
LITTLE: GiB = 1e-3


class Measurements:
    """What was measured in one study. Trials of one signature cost the same.

    `figures`: what the journal says, by signature.
    """

    def __init__(self, figures: Mapping[str, Figures]) -> None:
        # The signatures whose batch size was reported.
        self._with_batch_size: set[str] = set()
        # The signatures whose rates were reported.
        self.rated: set[str] = set()
        # What a trial of each signature is believed to need.
        self._memory: dict[str, GiB] = {}
        for signature, known in figures.items():
            measured = known.get("memory", 0.0)
            crowded = known.get("crowded", 0.0)
            self._memory[signature] = max(measured, crowded)
            if "rate" in known:
                self.rated.add(signature)
            if "batch_size" in known:
                self._with_batch_size.add(signature)

    def news_of(self, signature: str, figures: Figures, room: GiB) -> Figures:
        """These figures, without those that were reported before and cannot change.

        `room`: the slot's memory, which the trial did not exceed.
        """
        news = dict(figures)
        if signature in self._with_batch_size:
            news.pop("batch_size", None)
        elif "batch_size" in news:
            self._with_batch_size.add(signature)
        if "rate" in news:
            self.rated.add(signature)
        if "memory" in news:
            need = min(room, news["memory"])
            news["memory"] = need
            before = self._memory.get(signature, 0.0)
            self._memory[signature] = max(before, need)
        return news

    def crowded(self, signatures: Mapping[TrialId, str], memory: GiB) -> tuple[GiB, list[Measured]]:
        """Note trials that had no room together on a slot with so much memory.

        From now on they are believed to need twice the slot's room together. None is believed to
        need more than the slot's room: alone it may fit.

        Returns the slot's room, which is a guess if its memory is infinite; and what to report, of
        one trial of each signature.
        """
        needs = self._guessed(signatures.values())
        total = sum(needs[signature] for signature in signatures.values())
        room = memory
        if room == inf:
            room = max(total, *self._memory.values(), LITTLE)
        reports: list[Measured] = []
        one_each = {signature: trial for trial, signature in signatures.items() if signature}
        for signature, trial in one_each.items():
            share = 2.0 * room * needs[signature] / total
            self._memory[signature] = min(room, share)
            figures = {"crowded": self._memory[signature]}
            reports.append(Measured(trial, signature, figures))
        return room, reports

    def _guessed(self, signatures: Collection[str]) -> dict[str, GiB]:
        """The needs of all these signatures: an unknown one is taken as the mean of the others."""
        believed = [self._memory.get(signature, 0.0) for signature in signatures]
        known = [need for need in believed if need > 0]
        guess = LITTLE
        if known:
            guess = sum(known) / len(known)
        needs: dict[str, GiB] = {}
        for signature, need in zip(signatures, believed, strict=True):
            needs[signature] = need or guess
        return needs


@dataclass(slots=True)
class Position:
    """How far a trial is at its backend."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    samples: Samples = 0.0
    # The samples of the unit under way that were reported already.
    reported: Samples = 0.0
    # How many of its evaluations were reported already.
    evaluations_reported: int = 0
    # The figures measured in it that were reported already.
    rates: Mapping[str, float] = field(default_factory=dict)
    # The newest durable state, and the seconds of training since it was written.
    kept: Kept | None = None
    # The durable state before that one.
    former: Kept | None = None
    age: Seconds = 0.0
    signature: str = ""
    # The newest state on its way between two slots, in the backend's own form.
    carried: Any = None
    # Whether the trial's function is over, or gave it up: there is nothing left to train.
    over: bool = False
    pruned: bool = False

    def restart(self) -> None:
        """Forget what was reported of the unit under way."""
        self.reported = 0.0
        self.evaluations_reported = 0
        self.rates = {}

    def unreported(self, within: tuple[Scored, ...]) -> tuple[Scored, ...]:
        """Those of the unit's evaluations so far that were not reported before; now they are."""
        fresh = within[self.evaluations_reported :]
        self.evaluations_reported += len(fresh)
        return fresh

    def reach(self, reached: Reached, shards: int) -> list[Event]:
        """Note how far the unit under way is; returns the events of what is new."""
        events: list[Event] = []
        if reached.samples > self.reported:
            more = reached.samples - self.reported
            events.append(Advanced({self.trial.id: more}))
            self.reported = reached.samples
        if reached.rates != self.rates:
            fresh = dict(reached.rates.items() - self.rates.items())
            self.rates = reached.rates
            events.append(Measured(self.trial.id, reached.signature, fresh))
        for scored in self.unreported(reached.within):
            events.append(scored.event(self.trial.id, len(self.visits), shards))
        return events

    def keep(self, kept: Kept) -> None:
        """Note that this is the newest durable state from now on."""
        if self.kept is not None and self.kept.visits < kept.visits:
            self.former = self.kept
        self.kept = kept

    def durable(self) -> tuple[int, Samples]:
        """The visits and the samples of the newest durable state."""
        return durable(self.kept)

    def lost(self, visits: Sequence[Visit]) -> list[Event]:
        """The trial's fall, if an earlier run made more visits (`visits`) than it kept."""
        if len(visits) <= len(self.visits):
            return []
        return [Fell(self.trial.id, len(self.visits), self.samples)]

    def returned(self, news: Returned) -> list[Event]:
        """Note that the trial's function is over, and made no visit; returns the events of that."""
        self.over = True
        self.pruned = news.pruned
        events = self.chose(news.config)
        if news.scores:
            events.append(Advanced({self.trial.id: 0.0}, spent={self.trial.id: news.spent}))
            events.append(Evaluated(self.trial.id, float(len(self.visits)), news.scores))
        return events

    def chose(self, config: Mapping[str, Value] | None) -> list[Event]:
        """Submit the trial again with the configuration that it drew itself, if it did."""
        if config is None:
            return []
        self.trial = replace(self.trial, config=config)
        return [Submitted(self.trial)]

    def ending(self) -> Event:
        """The event that ends a trial that is over."""
        if self.pruned:
            return Retired(self.trial.id)
        return Finished(self.trial.id)


NO_ERRORS: Errors = MappingProxyType({})


class Positions:
    """The positions of all trials of one study.

    `sizes`: samples per training shard. `validate_every`: when trials are evaluated, beside their
    ends. `state`: what the journal says, so that a resumed study goes on from its durable
    positions. `logs`: the folder for the traceback of a failed trial, which goes to
    <trial>/error.txt.
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
        """Note a trial that is new, extended, or goes on in a resumed study; returns its events."""
        position = self.positions.get(trial.id)
        if position is not None:
            position.trial = trial
            return []
        position = self._first(trial)
        self.positions[trial.id] = position
        return position.lost(self._state.visits.get(trial.id, ()))

    def _first(self, trial: Trial) -> Position:
        """Where a trial begins that this run does not know yet."""
        kept = self._state.kept.get(trial.id)
        if kept is not None:
            # The durable state that an earlier run left.
            visits = self._state.visits.get(trial.id, ())[: kept.visits]
            former = self._state.former.get(trial.id)
            return Position(trial, visits, kept.samples, kept=kept, former=former)
        if trial.start is not None:
            return self._child(trial, *trial.start)
        return Position(trial)

    def _child(self, trial: Trial, parent: TrialId, visits: int) -> Position:
        """Where a trial begins that starts from another's durable state."""
        if parent not in self.positions:
            self.submit(self._state.known[parent])
        position = self.positions[parent]
        assert position.kept is not None and position.kept.visits == visits, (
            f"{trial.id} starts from {trial.start}, but durable is {position.kept}"
        )
        kept = replace(position.kept, trial=trial.id)
        return Position(trial, position.visits[:visits], kept.samples, kept=kept)

    def met(self, trial: TrialId) -> bool:
        """Whether the trial has all its samples, or its function is over."""
        position = self.positions[trial]
        return position.over or is_met(position.trial, position.samples)

    def keep(self, trial: TrialId, name: str) -> Kept:
        """Note that the trial's newest state is durable in this checkpoint."""
        position = self.positions[trial]
        kept = Kept(trial, len(position.visits), position.samples, name)
        position.keep(kept)
        position.age = 0.0
        self._struck.discard(trial)
        return kept

    def fail(self, trial: TrialId, error: TrialError) -> Failed:
        """The event of a trial that cannot go on; its traceback goes to the log folder."""
        if self.logs is not None:
            place = self.logs / trial
            make_folder(place, self.logs.parent)
            write_private(place / "error.txt", error.text, self.logs.parent)
        return Failed(trial, error.why)

    def fall(self, trial: TrialId) -> Fell:
        """Take the trial back to its durable state, or to the beginning: its newest one is lost."""
        position = self.positions[trial]
        visits, samples = position.durable()
        position.visits = position.visits[:visits]
        position.samples = samples
        position.restart()
        position.age = 0.0
        position.carried = None
        return Fell(trial, visits, samples)

    def abandon(self, trial: TrialId) -> Fell:
        """Take the trial back to where it was before the unit under way, which is void."""
        position = self.positions[trial]
        position.restart()
        return Fell(trial, len(position.visits), position.samples)

    # -- one unit --------------------------------------------------------------------------------

    def unit(self, run: GangRun, trial: TrialId, source: Any, carry: bool) -> Unit:
        """The trial's next unit, in a gang that is not over."""
        position = self.positions[trial]
        shards = position.trial.shards or frozenset(self.sizes)
        beside = run.shards_beside()
        visit = next_visit(self.seed, position.visits, shards, run.next_shard(), beside)
        samples = sum(self.sizes[each] for each in visit.shards)
        last = is_met(position.trial, position.samples + samples)
        first = len(position.visits)
        parts: list[float] = []
        for number in range(first, first + len(visit.shards)):
            parts += self.validate_every.parts(number, len(shards))
        return Unit(
            position.trial,
            position.visits,
            visit,
            source=source,
            evaluate=last or 1.0 in parts,
            within=tuple(part for part in parts if part < 1.0),
            steps=self.validate_every.steps,
            age=inf if trial in self._struck else position.age,
            last=last,
            carry=carry,
            reads=run.gang.shards if run.gang.joint else (),
        )

    def part(self, trial: TrialId, part: Part) -> list[Event]:
        """The events of a chunk that was trained, or of an evaluation, amid the unit under way."""
        position = self.positions[trial]
        position.reported += part.samples
        values = {trial: part.values}
        advanced = Advanced({trial: part.samples}, values, spent={trial: part.spent})
        return [advanced, *part.evaluations(trial, len(position.visits), self._shards(trial))]

    def _shards(self, trial: TrialId) -> int:
        """Visits in an epoch of the trial."""
        return len(self.positions[trial].trial.shards or self.sizes)

    def on(self, trial: TrialId, reached: Reached) -> list[Event]:
        """The events of how far a unit under way is. Its values come when it is done."""
        return self.positions[trial].reach(reached, self._shards(trial))

    def done(
        self,
        unit: Unit,
        done: Done,
        values: Mapping[str, Sum] | None = None,
        moved: int = 0,
        room: GiB = inf,
    ) -> list[Event]:
        """The events of a unit that was trained, in the order that backends owe.

        Those of the round's end are not among them. `values`: training values that no `part` has
        reported. `moved`: the bytes of state that came from another slot for the unit. `room`: the
        slot's memory, which the unit did not exceed.
        """
        trial = unit.trial.id
        position = self.positions[trial]
        position.over = done.over
        warn_of_shared(done.shared)
        done = replace(done, within=position.unreported(done.within))
        events = position.chose(done.config)
        events.append(self._complete(unit, done, values, moved))
        events += self.measured(trial, done.signature, done.figures, room)
        events += done.evaluations(trial, len(unit.visits), self._shards(trial))
        if done.kept is not None:
            events.append(self.keep(trial, done.kept))
        return events

    def _complete(
        self, unit: Unit, done: Done, values: Mapping[str, Sum] | None, moved: int
    ) -> Advanced:
        """Move the trial's position to the end of the unit."""
        trial = unit.trial.id
        position = self.positions[trial]
        fresh = done.visit.samples - position.reported
        visits: tuple[Visit, ...] = (done.visit,)
        if done.visit.beside:
            visits = counted(done.visit, self.sizes)
        position.visits = (*unit.visits, *visits)
        position.samples += done.visit.samples
        position.age = done.age
        position.restart()
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
        self, run: GangRun, slot: Slot, failed: Errors = NO_ERRORS, lost: Collection[TrialId] = ()
    ) -> list[Event]:
        """The events of what ends when each lane of the gang has made a unit or failed.

        `failed`: the lanes that failed, and why. `lost`: the lanes that made no unit, because the
        state they were to go on from is gone.
        """
        refused = refused_lanes(failed)
        if refused:
            return _end_refused(self, run, slot, refused)
        gang = run.gang
        good = [trial for trial in gang.trials if trial not in failed]
        visits = [self.positions[trial].visits for trial in good if trial not in lost]
        run.count_down([of_trial[-1] for of_trial in visits if of_trial], self.sizes)

        finished = [trial for trial in good if self.met(trial)]
        crowded = crowded_lanes(gang, failed)
        errors = {trial: error for trial, error in failed.items() if trial not in crowded}
        events: list[Event] = []
        if crowded:
            events += _split(self, run, slot, crowded)
        elif run.over and len(errors) < len(gang.lanes):
            events.append(Ended(gang))
        events += [self.positions[trial].ending() for trial in finished]
        for trial, error in errors.items():
            events += self.positions[trial].chose(error.config)
            events.append(self.fail(trial, error))
        run.shrink(frozenset(finished) | errors.keys())
        return events

    def measured(self, trial: TrialId, signature: str, figures: Figures, room: GiB) -> list[Event]:
        """The events of what was measured on the trial, if that is new. `room`: as of `done`."""
        position = self.positions[trial]
        news = self.measurements.news_of(signature, figures, room)
        if not news and signature == position.signature:
            return []
        position.signature = signature
        return [Measured(trial, signature, news)]


# -- gangs without room


def _end_refused(
    positions: Positions, run: GangRun, slot: Slot, errors: Mapping[TrialId, PackRefused]
) -> list[Event]:
    """End a gang of which the slot learnt what lanes cost, or that they cannot train together.

    Lanes whose units were begun fall back. What the slot learnt is reported before the end, so that
    policies make better packs. It may not have looked at all of the lanes.
    """
    run.shards_left = []
    events: list[Event] = [positions.fall(trial) for trial, error in errors.items() if error.begun]
    for trial, error in errors.items():
        if not error.signature:
            continue
        events += positions.measured(trial, error.signature, error.figures, slot.memory)
    return [*events, Ended(run.gang)]


def _split(
    positions: Positions, run: GangRun, slot: Slot, errors: Mapping[TrialId, OutOfMemory]
) -> list[Event]:
    """End a gang whose lanes had no room together. None of them fails.

    They are believed to need more from now on, so that policies do not try it again. `Joined`
    says how much memory the slot is believed to have, if that was not known.
    """
    run.shards_left = []
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


def fall_back(course: Positions, trial: TrialId, error: StateLost) -> Fell | None:
    """Take the trial back to the durable state before the newest one, or to the beginning.

    None: there is none before, and the trial did not begin from nothing but from the state of
    another trial. So it cannot go on.
    """
    position = course.positions[trial]
    if position.former is None and position.trial.start is not None:
        return None
    position.kept = position.former
    position.former = None
    return replace(course.fall(trial), why=error.why)


def fallen(course: Positions, outcomes: Mapping[TrialId, object]) -> dict[TrialId, Event]:
    """The falls of those trials that lost their newest durable states, and can go on."""
    falls: dict[TrialId, Event] = {}
    for trial, outcome in outcomes.items():
        if isinstance(outcome, StateLost):
            fell = fall_back(course, trial, outcome)
            if fell is not None:
                falls[trial] = fell
    return falls
