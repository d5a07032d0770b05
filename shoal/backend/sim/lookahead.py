"""Looking ahead: what a policy would take for the work in view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, TypeVar

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.check import PlanError
from shoal.core.event import Entry, Failed, Finished, Kept
from shoal.core.plan import Gang, Plan, Proposal, prune
from shoal.core.ports import Policy
from shoal.core.profile import Cost, Profile
from shoal.core.state import State, View
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.core.visits import ValidateEvery, is_met
from shoal.engine.journal import Journal
from shoal.engine.run import Stalled, run
from shoal.policy.aim import MAKESPAN, Objective, aim_of, score

# Seconds that it takes to simulate a unit, and how much more for each trial in view. Measured on a
# slow core, under a hopping policy.
PER_UNIT = 1.5e-4
PER_UNIT_AND_TRIAL = 7e-7
# Seconds more for each trial in view where data is not divided: a unit is then a whole trial, and
# at its end a policy deals out all trials anew. The mean over seven policies, at 100, 300 and 1000
# trials. At 1000 trials fifo, one of them, took a twentieth of it, and mixed, not one of them, nine
# times as much.
PER_WHOLE_TRIAL_AND_TRIAL = 5e-6

V = TypeVar("V")


def ahead(
    view: View,
    policy: Policy[Any],
    truth: Profile | None = None,
    every: ValidateEvery = ValidateEvery(),
    aim: Objective = MAKESPAN,
) -> Seconds:
    """Simulated seconds until the trials in view are done under this policy.

    `aim`: or until they are done in the mean, or until the first of them is done. Infinity: the
    policy gets stuck. No trial and no slot comes or goes meanwhile. The gangs that
    run now go on if the policy lets them, with their units from the start.
    `truth`: the profile that is taken as true; None: what the view believes. `every`: when trials
    are evaluated.
    """
    view = with_work_left(view)
    believed = truth
    if believed is None:
        believed = view.profile
    state = _state_of(view)
    checkpoint_every = inf
    if not view.shards:
        checkpoint_every = 0
    sim = Sim(
        believed,
        view.slots.values(),
        shards=view.shards,
        checkpoint_every=checkpoint_every,
        recipe=SimulatedRecipe(validate_every=every),
        former=(state, 0.0),
        measuring=None,
    )
    ends: dict[TrialId, Seconds] = {}

    def watch(now: Seconds, entries: tuple[Entry, ...], then: State) -> None:
        """Remember when each trial's work was over."""
        for entry in entries:
            if isinstance(entry, (Finished, Failed)):
                ends[entry.trial] = now

    try:
        run(
            _NoSearcher(),
            _ContinuedPolicy(policy, view),
            sim,
            lambda then: believed,
            Journal(),
            state,
            watch=[watch],
        )
    except (Stalled, PlanError):
        return inf
    if len(ends) < len(view.trials):
        return inf
    return score(aim, ends)


def with_work_left(view: View) -> View:
    """The view without the trials that are trained to their end.

    That they are finished is an event that is still to come. A simulation knows no such event, so
    it would wait for these trials for ever.
    """
    over = frozenset(name for name, trial in view.trials.items() if is_met(trial, view.done[name]))
    if not over:
        return view
    pruned = [prune(gang, over) for gang in view.plan.gangs]
    gangs = [gang for gang in pruned if gang is not None]
    return replace(
        view,
        trials=_without(view.trials, over),
        ranked=_without(view.ranked, over),
        ended={**view.ended, **dict.fromkeys(over, "finished")},
        plan=Plan(frozenset(gangs)),
        busy={slot: gang for gang in gangs for slot in gang.slots},
        running={trial: gang for gang in gangs for trial in gang.trials},
    )


def _without(table: Mapping[TrialId, V], over: frozenset[TrialId]) -> dict[TrialId, V]:
    """The table without these trials."""
    return {name: value for name, value in table.items() if name not in over}


def _state_of(view: View) -> State:
    """A state in which all that the trials in view have done is durable, and nothing runs."""
    kept: dict[TrialId, Kept] = {}
    for trial in view.trials:
        kept[trial] = Kept(trial, len(view.visits[trial]), view.done[trial])
    return State(
        turn=view.turn,
        shards=view.shards,
        known=view.known,
        trials=view.trials,
        ranked=view.ranked,
        ended=view.ended,
        done=view.done,
        visits=view.visits,
        pending=view.pending,
        scores=view.scores,
        first_scores=view.first_scores,
        kept=kept,
    )


@dataclass(frozen=True, slots=True)
class Ahead:
    """`ahead`, estimated if simulating all the work in view would take too long.

    Too long is more than about `most` seconds, or than `part` of the time that the work takes.

    First all trials are made shorter alike, by whole epochs. If that is not enough, some of the
    trials are simulated, then about half as many, and the line through both results is drawn on.
    These trials are drawn evenly by the seconds that they have left. There are never fewer than
    four a slot, and two a slot. If even these are too many, `price` is infinite.

    `every`: when trials are evaluated. If that is not at each epoch, each epoch has its share of an
    evaluation. `objective`: what the seconds are of, see `aim_of`.

    Pure: what an estimate costs is predicted from the number of units, and never timed.
    """

    most: Seconds = 0.3
    part: float = 1e-3
    every: ValidateEvery = ValidateEvery()
    objective: Objective = MAKESPAN

    def price(self, view: View) -> Seconds:
        """About how many seconds a call will take; infinity: a call would raise."""
        view = with_work_left(view)
        most = self._most(view)
        views = _parts(_shorter(view, most), most)
        if not views:
            return inf
        return sum(map(_price, views))

    def __call__(self, view: View, policy: Policy[Any]) -> Seconds:
        """Seconds until the trials in view are done, by the objective: see `ahead`.

        Raises:
            ValueError: there is more work than the estimate may take; `price` is infinite.
        """
        view = with_work_left(view)
        if not view.trials:
            return 0.0  # all is trained, and about to be reported as finished
        most = self._most(view)
        short = _shorter(view, most)
        views = _parts(short, most)
        if not views:
            raise ValueError(
                f"{len(view.trials)} trials on {len(view.slots)} slots are too many"
                " to simulate: see `price`"
            )
        factor = _work_seconds(view) / (_work_seconds(short) or 1.0)
        profile = _ShortenedProfile(view.profile, factor, max(1.0, self.every.epochs))
        often = ValidateEvery(min(1.0, self.every.epochs))
        aim = aim_of(self.objective, view)
        times = [ahead(part, policy, profile, often, aim) for part in views]
        seconds = times[0]
        if len(views) > 1 and seconds < inf:
            # The time that the whole work takes, on a line through the times of two parts of it.
            works = [_work_seconds(part) for part in views]
            whole = _work_seconds(short)
            longer, shorter = times
            some, half = works
            slope = max(0.0, longer - shorter) / ((some - half) or 1.0)
            seconds = longer + slope * (whole - some)
        return seconds * factor

    def _most(self, view: View) -> Seconds:
        """The seconds that the simulations may take."""
        slots = max(1, len(view.slots))
        return min(self.most, self.part * _work_seconds(view) / slots)


def _parts(view: View, most: Seconds) -> list[View]:
    """The views to simulate for at most so many seconds; empty: that is impossible.

    One view with all trials; or one with some of the trials, and one with about half as many.
    """
    if _price(view) <= most:
        return [view]

    def seconds_left(name: TrialId) -> Seconds:
        return _samples_left(view, name) / view.profile.curve(name, 1)[0]

    names = sorted(view.trials, key=seconds_left)
    slots = len(view.slots)
    # In the last round of the trials as many slots stand idle as in that of all trials.
    odd = len(names) % slots
    rounds = len(names) // slots // 2
    while rounds >= 2:
        some = _some(view, names, odd + rounds * slots * 2)
        half = _some(view, names, odd + rounds * slots)
        if _price(some) + _price(half) <= most:
            return [some, half]
        rounds //= 2
    return []


def _epoch(view: View, trial: Trial) -> Samples:
    """The samples in an epoch of the trial; infinity: its data is not divided."""
    if not view.shards:
        return inf
    return sum(view.shards[shard] for shard in trial.shards or view.shards)


def _samples_left(view: View, name: TrialId) -> Samples:
    """The samples that the trial has left."""
    return max(0.0, view.trials[name].samples - view.done[name])


def _price(view: View) -> Seconds:
    """About how many seconds it takes to simulate all of a view."""
    units = sum(_units_left(view, name) for name in view.trials)
    per_trial = PER_UNIT_AND_TRIAL
    if not view.shards:
        per_trial = PER_WHOLE_TRIAL_AND_TRIAL
    return units * (PER_UNIT + per_trial * len(view.trials))


def _units_left(view: View, name: TrialId) -> float:
    """The units that the trial has left, about."""
    if not view.shards:
        return 1.0
    trial = view.trials[name]
    epochs = _samples_left(view, name) / _epoch(view, trial)
    return float(ceil(epochs * len(trial.shards or view.shards)))


def _work_seconds(view: View) -> Seconds:
    """The seconds of the work left, one trial after the other on one slot."""
    return sum(_samples_left(view, name) / view.profile.curve(name, 1)[0] for name in view.trials)


def _shorter(view: View, most: Seconds) -> View:
    """The view with less work, so that simulating it takes at most so many seconds.

    Each trial loses the same part of its epochs, in whole epochs, and keeps one at least. The
    price may therefore still be higher.
    """
    if _price(view) <= most or not view.shards or not most:
        return view
    factor = ceil(_price(view) / most)
    trials: dict[TrialId, Trial] = {}
    for name, trial in view.trials.items():
        epoch = _epoch(view, trial)
        epochs = int(_samples_left(view, name) / epoch + 1e-9)
        cut = max(0, epochs - max(1, epochs // factor))
        trials[name] = replace(trial, samples=trial.samples - cut * epoch)
    return replace(view, trials=trials, known={**view.known, **trials})


def _some(view: View, names: Sequence[TrialId], count: int) -> View:
    """The view with so many of these trials, evenly drawn, and nothing running."""
    drawn = {names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)}
    trials = {name: trial for name, trial in view.trials.items() if name in drawn}
    return replace(view, trials=trials, plan=Plan(), busy={}, running={})


@dataclass(frozen=True, slots=True)
class _ShortenedProfile:
    """The profile of a study that was made shorter by this factor.

    What is paid once a trial costs less by the factor. `epochs`: the share of an evaluation that
    an epoch has is one by so many. What a slot's first model costs is left
    out: it is the same for all policies, and most slots have paid it.
    """

    inner: Profile
    factor: float
    epochs: float

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        return self.inner.rates(gang)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        return self.inner.curve(trial, upto)

    def cost(self, trial: TrialId) -> Cost:
        cost = self.inner.cost(trial)
        build = cost.build / self.factor
        save = cost.save / self.factor
        evaluate = cost.evaluate / self.epochs
        return replace(cost, build=build, first=0.0, save=save, evaluate=evaluate)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        return self.inner.switch(before, after)


@dataclass(frozen=True, slots=True)
class _ContinuedPolicy:
    """The policy, which at first takes what runs in the view `begin` for its own.

    Its memory is None before the first decision, then the inner policy's memory in a tuple.
    """

    policy: Policy[Any]
    begin: View

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        if memory is None:
            began = self.begin
            then = replace(view, plan=began.plan, busy=began.busy, running=began.running)
            plan, inner = self.policy.decide(then, self.policy.start())
            return plan, (inner,)
        plan, inner = self.policy.decide(view, memory[0])
        if inner is not memory[0]:
            memory = (inner,)
        return plan, memory


class _NoSearcher:
    """A searcher that wants nothing."""

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        return Proposal(), None
