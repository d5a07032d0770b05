"""Where each trial stands: which unit comes next, and which events a finished one makes. Shared by the real backends."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.cluster import ShardId, shard_order
from shoal.core.event import Advanced, Ended, Evaluated, Event, Failed, Fell, Finished, Kept, Measured, Sum
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit
from shoal.train.unit import Done, Part, TrialError, Unit

EPS = 1e-6


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

    def submit(self, trial: Trial) -> None:
        at = self.positions.get(trial.id)
        if at is not None:
            at.trial = trial
            return
        kept = self._state.kept.get(trial.id)
        visits = self._state.visits.get(trial.id, ())
        if kept is not None:
            self.positions[trial.id] = Position(trial, visits[: kept.visits], kept.samples, kept=kept)
        else:
            self.positions[trial.id] = Position(trial)

    def unit(self, run: Run, source: Any, carry: bool) -> Unit:
        """The next unit of a one-lane gang that is not over."""
        at = self.positions[run.gang.lanes[0].trial]
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

    def done(self, run: Run, unit: Unit, done: Done, values: Mapping[str, Sum] | None = None, moved: int = 0) -> list[Event]:
        """The unit was trained; the events, in the order that backends owe.

        `values`: those that no `part` has reported. `moved`: bytes of state that came from another slot for it.
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
        if done.figures or done.signature != at.signature:
            at.signature = done.signature
            events.append(Measured(trial, done.signature, done.figures))
        if done.scores is not None:
            shards = len(at.trial.shards or self.sizes)
            events.append(Evaluated(trial, len(at.visits) / shards, done.scores))
        if done.kept is not None:
            events.append(self.keep(trial, done.kept))
        if run.left is not None:
            run.left.pop(0)
        if run.quota is not None:
            run.quota -= done.visit.samples
        if run.over:
            events.append(Ended(run.gang))
        if at.samples >= at.trial.samples - EPS:
            events.append(Finished(trial))
        return events

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
