"""Where each trial stands: which unit comes next, and which events a finished one makes. Shared by the real backends."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shoal.core.cluster import GiB, ShardId, Slot, shard_order
from shoal.core.event import Advanced, Ended, Evaluated, Event, Failed, Fell, Finished, Joined, Kept, Measured, Sum
from shoal.core.plan import Gang, prune
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit
from shoal.train.unit import Done, OutOfMemory, Part, TrialError, Unit

EPS = 1e-6
LITTLE: GiB = 1e-3  # taken for the room of a slot of which nothing is known but that it was too small


@dataclass(slots=True)
class Position:
    """How far a trial is at its backend. `carried`: its newest state on the way between slots, in the backend's own form."""

    trial: Trial
    visits: tuple[Visit, ...] = ()
    samples: Samples = 0.0
    reported: Samples = 0.0  # samples of the unit under way that were reported already
    kept: Kept | None = None
    age: Seconds = 0.0  # trained since kept
    signature: str = ""
    carried: Any = None


@dataclass(slots=True)
class Run:
    """A gang at work: the shards it has yet to visit (None: the whole data set), and what is left of its quota."""

    gang: Gang
    left: list[ShardId] | None
    quota: Samples | None

    @classmethod
    def of(cls, gang: Gang) -> "Run":
        return cls(gang, list(gang.shards) or None, gang.quota)

    @property
    def over(self) -> bool:
        return self.left == [] or (self.quota is not None and self.quota <= EPS)


class Course:
    """The positions of all trials of one study.

    `sizes`: samples per training shard. `validate_every`: epochs between evaluations (the last epoch is
    always evaluated). `state`: what the journal says, so that a resumed study goes on from its durable positions.
    `logs`: where the traceback of a failed trial goes, as <trial>/error.txt.
    """

    def __init__(
        self, seed: int, sizes: Mapping[ShardId, int], validate_every: int = 1, state: State = State(), logs: Path | None = None
    ) -> None:
        self.logs = logs
        self.seed = seed
        self.sizes = sizes
        self.validate_every = validate_every
        self._state = state
        self.positions: dict[TrialId, Position] = {}
        self._sizes = {name for name, figures in state.figures.items() if "batch_size" in figures}
        self._memory = {n: max(f.get("memory", 0.0), f.get("crowded", 0.0)) for n, f in state.figures.items()}  # GiB

    def submit(self, trial: Trial) -> None:
        at = self.positions.get(trial.id)
        if at is not None:
            at.trial = trial
            return
        kept = self._state.kept.get(trial.id)
        visits = self._state.visits.get(trial.id, ())
        if kept is not None:
            self.positions[trial.id] = Position(trial, visits[: kept.visits], kept.samples, kept=kept)
        elif trial.start is not None:
            self.positions[trial.id] = self._child(trial, *trial.start)
        else:
            self.positions[trial.id] = Position(trial)

    def _child(self, trial: Trial, parent: TrialId, visits: int) -> Position:
        """Where a trial begins that starts from another's durable state."""
        if parent not in self.positions:
            self.submit(self._state.known[parent])
        at = self.positions[parent]
        assert at.kept is not None and at.kept.visits == visits, f"{trial.id} starts from {trial.start}, but durable is {at.kept}"
        return Position(trial, at.visits[:visits], at.kept.samples, kept=replace(at.kept, trial=trial.id))

    def unit(self, run: Run, trial: TrialId, source: Any, carry: bool) -> Unit:
        """The trial's next unit in a gang that is not over."""
        at = self.positions[trial]
        shards = at.trial.shards or frozenset(self.sizes)
        epoch, seen = divmod(len(at.visits), len(shards))
        if run.left is None:
            pending = shards - {visit.shard for visit in at.visits[len(at.visits) - seen :]}
            shard = shard_order(self.seed, epoch, pending)[0]
        else:
            shard = run.left[0]
        last = at.samples + self.sizes[shard] >= at.trial.samples - EPS
        whole = seen + 1 == len(shards)
        evaluate = last or (whole and (epoch + 1) % self.validate_every == 0)
        return Unit(at.trial, at.visits, Visit(epoch, shard, epoch, 0), source, evaluate, at.age, last, carry)

    def part(self, trial: TrialId, part: Part) -> Advanced:
        """A chunk of the unit under way was trained."""
        self.positions[trial].reported += part.samples
        return Advanced({trial: part.samples}, {trial: part.values}, spent={trial: part.spent})

    def on(self, trial: TrialId, samples: Samples) -> Advanced | None:
        """The unit under way is at so many samples; None: not further than was known. Its values come when it is done."""
        at = self.positions[trial]
        fresh, at.reported = samples - at.reported, max(samples, at.reported)
        return Advanced({trial: fresh}) if fresh > 0 else None

    def done(
        self, unit: Unit, done: Done, values: Mapping[str, Sum] | None = None, moved: int = 0, room: GiB = inf
    ) -> list[Event]:
        """The unit was trained; the events, in the order that backends owe, but for those of the round's end.

        `values`: those that no `part` has reported. `moved`: bytes of state that came from another slot for it.
        `room`: the slot's memory, which it did not exceed.
        """
        trial = unit.trial.id
        at = self.positions[trial]
        at.visits = (*unit.visits, done.visit)
        at.samples += done.visit.samples
        at.age = done.age
        fresh, at.reported = done.visit.samples - at.reported, 0.0
        came = {trial: moved} if moved else {}
        told = {trial: values} if values else {}
        events: list[Event] = [Advanced({trial: fresh}, told, {trial: (done.visit,)}, {trial: done.spent}, came)]
        figures = self._believed(done, room)
        if figures or done.signature != at.signature:
            at.signature = done.signature
            events.append(Measured(trial, done.signature, figures))
        if done.scores is not None:
            shards = len(at.trial.shards or self.sizes)
            events.append(Evaluated(trial, len(at.visits) / shards, done.scores))
        if done.kept is not None:
            events.append(self.keep(trial, done.kept))
        return events

    def _believed(self, done: Done, room: GiB) -> Mapping[str, float]:
        """The unit's figures, each said as often as it can change."""
        figures = dict(done.figures)
        if done.signature in self._sizes:
            figures.pop("batch_size", None)  # part of the signature: said once
        elif "batch_size" in figures:
            self._sizes.add(done.signature)
        if "memory" not in figures:
            return figures
        need = min(room, done.figures["memory"])
        self._memory[done.signature] = max(self._memory.get(done.signature, 0.0), need)
        return {**figures, "memory": need}

    def end_round(
        self,
        run: Run,
        slot: Slot,
        failed: Mapping[TrialId, TrialError] = MappingProxyType({}),
        lost: Collection[TrialId] = (),
    ) -> list[Event]:
        """Each lane of the gang has made a unit, or failed, or `lost` the state it was to go on from: what ends by that.

        Lanes that had no room together do not fail: the gang ends, they are believed to need more, `Joined` tells of the slot.
        Nor does one alone that found no room beside models at rest.
        """
        gang, events = run.gang, list[Event]()
        short = {t: e for t, e in failed.items() if isinstance(e, OutOfMemory)}
        crowded = {t: e for t, e in short.items() if len(gang.lanes) > 1 or e.freed}
        gone = {trial: error for trial, error in failed.items() if trial not in crowded}
        finished = [trial for trial in gang.trials if trial not in failed and self.met(trial)]
        self._count_down(run, [trial for trial in gang.trials if trial not in failed and trial not in lost])
        if crowded:
            events += self._split(run, slot, crowded)
        elif run.over and len(gone) < len(gang.lanes):
            events.append(Ended(gang))
        events += [Finished(trial) for trial in finished]
        events += [self.fail(trial, error) for trial, error in gone.items()]
        rest = prune(gang, frozenset(finished) | gone.keys())
        if rest is None:
            run.left = []
        else:
            run.gang = rest
        return events

    def _count_down(self, run: Run, made: Sequence[TrialId]) -> None:
        """What is left of the gang's shards and quota, once these lanes have made their units."""
        passed = max((self.positions[trial].visits[-1].samples for trial in made), default=0)
        if run.left is not None:
            passed = self.sizes[run.left.pop(0)]
        if run.quota is not None:
            run.quota -= passed

    def met(self, trial: TrialId) -> bool:
        """Whether the trial has all its samples."""
        at = self.positions[trial]
        return at.samples >= at.trial.samples - EPS

    def _split(self, run: Run, slot: Slot, errors: Mapping[TrialId, OutOfMemory]) -> list[Event]:
        """These lanes had no room together: so many are believed to need twice the room there is."""
        names = {trial: error.signature or self.positions[trial].signature for trial, error in errors.items()}
        known = [self._memory[name] for name in names.values() if self._memory.get(name)]
        guess = sum(known) / len(known) if known else LITTLE  # of those not measured
        need = {name: self._memory.get(name) or guess for name in names.values()}
        needs = sum(need[name] for name in names.values())
        room = slot.memory if slot.memory < inf else max(needs, *self._memory.values(), LITTLE)
        run.left, fell = list[ShardId](), [self.fall(trial) for trial in errors]
        if len(run.gang.lanes) == 1:
            return [*fell, Ended(run.gang, f"out of memory beside models at rest on {slot.id}")]
        events: list[Event] = [*([Joined((replace(slot, memory=room),))] if slot.memory == inf else []), *fell]
        for name, trial in {name: trial for trial, name in names.items() if name}.items():
            self._memory[name] = min(room, 2.0 * room * need[name] / needs)  # alone it may have room
            events.append(Measured(trial, name, {"crowded": self._memory[name]}))
        return [*events, Ended(run.gang, f"out of memory with {len(errors)} trials on {slot.id}")]

    def keep(self, trial: TrialId, name: str) -> Kept:
        at = self.positions[trial]
        at.kept = Kept(trial, len(at.visits), at.samples, name)
        at.age = 0.0
        return at.kept

    def fail(self, trial: TrialId, error: TrialError) -> Failed:
        if self.logs is not None:
            place = self.logs / trial
            place.mkdir(parents=True, exist_ok=True)
            (place / "error.txt").write_text(error.text)
        return Failed(trial, error.why)

    def fall(self, trial: TrialId) -> Fell:
        """The newest state of the trial is lost: back to the durable one, or to the beginning."""
        at = self.positions[trial]
        count, samples = (at.kept.visits, at.kept.samples) if at.kept else (0, 0.0)
        at.visits, at.samples, at.reported, at.age, at.carried = at.visits[:count], samples, 0.0, 0.0, None
        return Fell(trial, count, samples)

    def abandon(self, trial: TrialId) -> Fell:
        """The unit under way is void: back to where the trial was before it."""
        at = self.positions[trial]
        at.reported = 0.0
        return Fell(trial, len(at.visits), at.samples)
