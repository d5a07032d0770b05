"""What a simulated unit is, and what it reports when it is done."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from shoal.backend.sim.meter import SimulatedMeter
from shoal.backend.sim.state import SimulatedGang, SimulatedTrial, UnitAtWork, learning_curve
from shoal.core.cluster import ShardId
from shoal.core.event import Advanced, Evaluated, Event, Sum
from shoal.core.profile import Profile
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit
from shoal.core.visits import ValidateEvery, counted, is_met, next_visit

# (configuration, epochs) -> metrics
Curve = Callable[[Mapping[str, Value], float], Mapping[str, float]]
# (trial, visits so far) -> why its next unit fails; None: it does not fail
Fault = Callable[[Trial, int], str | None]


def no_fault(trial: Trial, visits: int) -> None:
    """Nothing fails."""


@dataclass(frozen=True, slots=True)
class SimulatedRecipe:
    """What the recipe of a real study decides, beside how long things take.

    `curve`: the metrics of an evaluation, of (configuration, epochs).
    `fault`: why a trial's next unit fails, of (trial, visits so far); None: it does not fail.
    `validate_every`: when trials are evaluated; steps are not simulated.
    """

    curve: Curve = learning_curve
    fault: Fault = no_fault
    validate_every: ValidateEvery = ValidateEvery()


@dataclass(eq=False, slots=True)
class SimulatedUnits:
    """Makes the units of a study. The fields mean what the arguments of `Sim` mean.

    `meter`: what was measured so far.
    """

    truth: Profile
    shards: Mapping[ShardId, int]
    seed: int
    checkpoint_every: Seconds
    recipe: SimulatedRecipe
    meter: SimulatedMeter

    # -- units that begin ----------------------------------------------------------------------

    def next_of(
        self, run: SimulatedGang, position: SimulatedTrial, now: Seconds, until: Seconds = inf
    ) -> UnitAtWork:
        """The trial's next unit in this gang.

        `until`: when the last of its slots leaves. If data is not divided, the unit is so long that
        it is durable by then.
        """
        if self.shards:
            return self._visit(run, position, now)
        return self._stretch(run, position, now, until)

    def _visit(self, run: SimulatedGang, position: SimulatedTrial, now: Seconds) -> UnitAtWork:
        """One pass over a shard: the gang's next one, or the one that the trial's order says."""
        trial = position.trial
        shards = trial.shards or frozenset(self.shards)
        chosen = run.next_shard(trial.id)
        beside = run.shards_beside(trial.id)
        visit = next_visit(self.seed, position.visits, shards, chosen, beside)
        size = sum(self.shards[shard] for shard in visit.shards)

        last = is_met(trial, position.samples + size)
        first = len(position.visits)
        every = self.recipe.validate_every
        parts: set[float] = set()
        for number in range(first, first + len(visit.shards)):
            parts.update(every.parts(number, len(shards)))
        scored = len(parts) + (last and 1.0 not in parts)
        due = 0.0
        if not last:
            due = max(0.0, self.checkpoint_every - position.age)
        unit = self._unit(run, position, size, scored, due, now)
        unit.visit = visit._replace(samples=size)
        return unit

    def _stretch(
        self, run: SimulatedGang, position: SimulatedTrial, now: Seconds, until: Seconds
    ) -> UnitAtWork:
        """A unit of data that is not divided.

        It goes up to the trial's end, to its quota's end, or to the next durable state.
        """
        trial = position.trial
        left = min(trial.samples - position.samples, run.room(trial.id))
        pause = inf
        if self.checkpoint_every > 0:
            pause = self.checkpoint_every - position.age
        size = min(left, max(pause, 1.0) * run.rates[trial.id])
        if until < inf:
            room = until - now - self.truth.cost(trial.id).save
            size = min(size, max(room, 0.0) * run.rates[trial.id])

        last = is_met(trial, position.samples + size)
        due = inf
        if last or size < left:
            due = 0.0
        return self._unit(run, position, size, int(last), due, now)

    def _unit(
        self,
        run: SimulatedGang,
        position: SimulatedTrial,
        size: Samples,
        evaluations: int,
        due: Seconds,
        now: Seconds,
    ) -> UnitAtWork:
        """A unit. Its slot evaluates and saves its lanes one by one, while all of them wait."""
        costs = [self.truth.cost(each) for each in run.sharing(position.trial.id)]
        evaluate = None
        if evaluations:
            evaluate = evaluations * sum(cost.evaluate for cost in costs)
        return UnitAtWork(
            position=position,
            visit=None,
            size=size,
            left=size,
            since=now,
            ready=now,
            evaluate=evaluate,
            save=sum(cost.save for cost in costs),
            due=due,
            begun=now,
        )

    # -- units that end ------------------------------------------------------------------------

    def reported(self, run: SimulatedGang, unit: UnitAtWork, samples: Samples) -> list[Event]:
        """Complete a unit of this gang; returns Advanced, Measured, Evaluated, Kept, in this order.

        `samples`: those that were not yet reported.
        """
        position = unit.position
        trial = position.trial
        position.age += unit.trained
        visits = self._count_visit(unit)
        epoch = self._epoch(position)
        metrics = self.recipe.curve(trial.config, epoch)
        values = _loss_of(trial, metrics, unit.size)
        spent = {trial.id: unit.spent()}
        events: list[Event] = [Advanced({trial.id: samples}, values, visits, spent)]
        events += self.meter.at_end(run, unit)
        if unit.evaluate is not None:
            events.append(Evaluated(trial.id, epoch, metrics))
        if unit.saves:
            events.append(position.keep())
        return events

    def _count_visit(self, unit: UnitAtWork) -> dict[TrialId, tuple[Visit, ...]]:
        """Count the unit's visit; samples of data that is not divided were counted already."""
        position = unit.position
        if unit.visit is None:
            return {}
        visits = counted(unit.visit, self.shards)
        position.visits += visits
        position.samples += unit.size
        return {position.trial.id: visits}

    def _epoch(self, position: SimulatedTrial) -> float:
        """The epochs that a trial has made; without shards, each sample counts as one."""
        if not self.shards:
            return position.samples
        shards = position.trial.shards or self.shards
        return len(position.visits) / len(shards)


def _loss_of(
    trial: Trial, metrics: Mapping[str, float], size: Samples
) -> dict[TrialId, dict[str, Sum]]:
    """The training loss over so many samples, if the metrics have one."""
    if "loss" not in metrics:
        return {}
    total = metrics["loss"] * size
    return {trial.id: {"loss": (total, float(size))}}
