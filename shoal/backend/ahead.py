"""Looking ahead: what a policy would take for the work in view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any

from shoal.backend.sim import Sim
from shoal.core.check import PlanError
from shoal.core.event import Entry, Kept
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.ports import Cost, Policy, Profile
from shoal.core.state import State, View
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import Stalled, run

PER_UNIT = 1.5e-4, 7e-7  # seconds to simulate a unit, and more for each trial in view; measured on a slow core, hopping


def ahead(view: View, policy: Policy[Any], truth: Profile | None = None) -> Seconds:
    """Seconds until the trials in view are done under this policy, as simulated; infinity where it gets stuck.

    Nobody comes or goes meanwhile; the gangs of now go on if the policy lets them, with their units from the start.
    `truth`: the profile taken as true; None: what the view believes.
    """
    believed = view.profile if truth is None else truth
    state = State(
        turn=view.turn,
        shards=view.shards,
        known=view.known,
        trials=view.trials,
        ended=view.ended,
        done=view.done,
        visits=view.visits,
        pending=view.pending,
        scores=view.scores,
        kept={t: Kept(t, len(view.visits[t]), view.done[t]) for t in view.trials},
    )
    sim = Sim(believed, view.slots.values(), shards=view.shards, checkpoint_every=0 if not view.shards else inf, state=state)
    end = inf

    def watch(now: Seconds, entries: tuple[Entry, ...], then: State) -> None:
        nonlocal end
        if not then.trials:
            end = min(end, now)

    try:
        run(_Nobody(), _GoingOn(policy, view), sim, lambda then: believed, Journal(), state, watch=[watch])
    except (Stalled, PlanError):
        return inf
    return end


@dataclass(frozen=True, slots=True)
class Ahead:
    """`ahead`, estimated where all of it would take more than about `most` seconds, or than `part` of the work, to simulate.

    First all trials are made shorter alike, by whole epochs; then some of them are simulated, and about half as many, and
    the line through both is drawn on: drawn evenly by the seconds they have left, and never fewer than four a slot, and two.
    Where those are too many, `price` is infinite. Pure: what it costs is predicted from the number of units, never timed.
    """

    most: Seconds = 0.3
    part: float = 1e-3

    def price(self, view: View) -> Seconds:
        """What a call costs, in seconds, about."""
        most = self._most(view)
        views = _parts(_shorter(view, most), most)
        return sum(map(_price, views)) if views else inf

    def __call__(self, view: View, policy: Policy[Any]) -> Seconds:
        """As `ahead`.

        Raises:
            ValueError: more work than it may take, `price` being infinite.
        """
        if not _seconds(view):
            return 0.0  # all is trained, and about to be reported as finished
        most = self._most(view)
        short = _shorter(view, most)
        views = _parts(short, most)
        if not views:
            raise ValueError(f"{len(view.trials)} trials on {len(view.slots)} slots are too many to simulate: see `price`")
        factor = _seconds(view) / (_seconds(short) or 1.0)
        times = [ahead(part, policy, _Less(view.profile, factor)) for part in views]
        found = times[0]
        if len(views) > 1 and found < inf:
            some, half, every = map(_seconds, (*views, short))
            found += max(0.0, found - times[1]) / ((some - half) or 1.0) * (every - some)
        return found * factor

    def _most(self, view: View) -> Seconds:
        return min(self.most, self.part * _seconds(view) / max(1, len(view.slots)))


def _parts(view: View, most: Seconds) -> list[View]:
    """The view itself, or one with some of its trials and one with about half of those, or nothing."""
    if _price(view) <= most:
        return [view]
    names = sorted(view.trials, key=lambda t: _left(view, t) / view.profile.curve(t, 1)[0])
    slots = len(view.slots)
    odd, rounds = len(names) % slots, len(names) // slots // 2
    while rounds >= 2:  # as many slots as now stand idle in the last round
        parts = [_some(view, names, odd + rounds * slots * n) for n in (2, 1)]
        if sum(map(_price, parts)) <= most:
            return parts
        rounds //= 2
    return []


def _epoch(view: View, trial: Trial) -> Samples:
    """Samples in an epoch of the trial; infinity: its data is not divided."""
    return sum(view.shards[s] for s in trial.shards or view.shards) if view.shards else inf


def _left(view: View, name: TrialId) -> Samples:
    return max(0.0, view.trials[name].samples - view.done[name])


def _price(view: View) -> Seconds:
    units = 0.0
    for name, trial in view.trials.items():
        units += ceil(_left(view, name) / _epoch(view, trial) * len(trial.shards or view.shards)) if view.shards else 1
    return units * (PER_UNIT[0] + PER_UNIT[1] * len(view.trials))


def _seconds(view: View) -> Seconds:
    """Of the work left, one trial after the other."""
    return sum(_left(view, name) / view.profile.curve(name, 1)[0] for name in view.trials)


def _shorter(view: View, most: Seconds) -> View:
    """The view with as much less work, in whole epochs, as brings the price down to that; with one epoch a trial at least."""
    if _price(view) <= most or not view.shards or not most:
        return view
    factor = ceil(_price(view) / most)
    trials = {}
    for name, trial in view.trials.items():
        epoch = _epoch(view, trial)
        away = int(_left(view, name) / epoch + 1e-9)
        cut = max(0, away - max(1, away // factor))
        trials[name] = replace(trial, samples=trial.samples - cut * epoch)
    return replace(view, trials=trials, known={**view.known, **trials})


def _some(view: View, names: Sequence[TrialId], count: int) -> View:
    """The view with so many of these trials, evenly drawn, and nothing running."""
    drawn = {names[(2 * i + 1) * len(names) // (2 * count)] for i in range(count)}
    trials = {name: trial for name, trial in view.trials.items() if name in drawn}
    return replace(view, trials=trials, plan=Plan(), busy={}, running={})


@dataclass(frozen=True, slots=True)
class _Less:
    """The profile for a study so much shorter: what is paid once a trial costs less by as much.

    What a slot's first model costs is left out: it is the same for all policies, and most slots have paid it.
    """

    inner: Profile
    factor: float

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        return self.inner.rates(gang)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        return self.inner.curve(trial, upto)

    def cost(self, trial: TrialId) -> Cost:
        cost, less = self.inner.cost(trial), self.factor
        return replace(cost, build=cost.build / less, first=0.0, save=cost.save / less)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        return self.inner.switch(before, after)


@dataclass(frozen=True, slots=True)
class _GoingOn:
    """The policy, which takes what runs in the view for its own at first."""

    policy: Policy[Any]
    begin: View

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        if memory is not None:
            plan, inner = self.policy.decide(view, memory[0])
            return plan, memory if inner is memory[0] else (inner,)
        then = replace(view, plan=self.begin.plan, busy=self.begin.busy, running=self.begin.running)
        plan, inner = self.policy.decide(then, self.policy.start())
        return plan, (inner,)


class _Nobody:
    """A searcher that wants nothing."""

    def start(self) -> None:
        return None

    def propose(self, view: View, memory: None) -> tuple[Proposal, None]:
        return Proposal(), None
