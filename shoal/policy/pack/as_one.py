"""A view in which each pack of trials is one trial, its first, and the way back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.profile import Cost, MemoryTogether, Profile
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.policy.pack.company import Packs, seconds_together

ByFirst = Mapping[TrialId, Sequence[TrialId]]  # each pack, under its first trial
ANY = SlotId("slot")
Trials = Sequence[TrialId]


@dataclass(slots=True)
class PacksAsOne:
    """Packs of the trials in the view `real`. `fuse`: their lanes may train in one step."""

    real: View
    packs: Packs
    fuse: bool
    by_first: ByFirst = field(init=False)

    def __post_init__(self) -> None:
        self.by_first = {pack[0]: pack for pack in self.packs}

    def view(self) -> View:
        """The view in which each pack is its first trial."""
        real = self.real
        gangs = {_narrow(gang, self.by_first): gang for gang in real.plan.gangs}
        return replace(
            real,
            trials=self._trials(),
            plan=Plan(frozenset(gangs), real.plan.wake_at),
            busy={slot: gang for gang in gangs for slot in gang.slots},
            running={trial: gang for gang in gangs for trial in gang.trials},
            profile=_PackProfile(real.profile, self.by_first, self.fuse),
        )

    def _trials(self) -> dict[TrialId, Trial]:
        """The first trial of each pack, with as many samples as any of the pack has."""
        trials = {}
        for name, trial in self.real.trials.items():
            if name in self.by_first:
                trials[name] = replace(trial, samples=self._most_samples(name))
        return trials

    def _most_samples(self, first: TrialId) -> Samples:
        """The most samples that any trial of this one's pack has."""
        return max(self.real.trials[t].samples for t in self.by_first[first])

    def whole(self, gang: Gang) -> Gang:
        """The gang with all lanes of its packs; of one that runs, what runs."""
        running = self.real.running.get(gang.trials[0])
        if running is not None and _narrow(running, self.by_first) == gang:
            return running
        return _widened(gang, self.by_first, self.fuse)


def _narrow(gang: Gang, by_first: ByFirst) -> Gang:
    """The gang with the first trials of its packs only."""
    lanes = tuple(lane for lane in gang.lanes if lane.trial in by_first)
    return replace(gang, lanes=lanes or gang.lanes[:1], fused=False)


def _widened(gang: Gang, by_first: ByFirst, fuse: bool) -> Gang:
    """The gang with all trials of its packs."""
    lanes = tuple(_all_lanes(gang.lanes, by_first))
    fused = fuse and len(lanes) > len(gang.lanes)
    return replace(gang, lanes=lanes, fused=fused)


def _all_lanes(lanes: Iterable[Lane], by_first: ByFirst) -> Iterable[Lane]:
    """A lane for each trial of the packs whose first trials have these lanes."""
    for lane in lanes:
        for trial in by_first.get(lane.trial, (lane.trial,)):
            yield Lane(trial, lane.slots)


@dataclass(frozen=True, slots=True)
class _PackProfile:
    """The profile of packs, each under the name of its first trial."""

    real: Profile
    packs: ByFirst
    fuse: bool

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        rates = self.real.rates(_widened(gang, self.packs, self.fuse))
        return {trial: min(rates[t] for t in self._of(trial)) for trial in gang.trials}

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        alone = self.real.curve(trial, upto)
        if len(self._of(trial)) == 1:
            return alone
        share = 1.0 / (self._seconds(trial) * alone[0])
        return [rate * share for rate in alone]

    def _seconds(self, trial: TrialId) -> Seconds:
        """Seconds per sample of the trial's pack on one slot."""
        return seconds_together(self.real, ANY, self._of(trial), self.fuse)

    def cost(self, trial: TrialId) -> Cost:
        costs = [self.real.cost(t) for t in self._of(trial)]
        return Cost(
            memory=MemoryTogether(costs).now,
            build=sum(cost.build for cost in costs),
            evaluate=sum(cost.evaluate for cost in costs),
            save=sum(cost.save for cost in costs),
            first=max(cost.first for cost in costs),
        )

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        return self.real.switch(before, after)

    def _of(self, trial: TrialId) -> Trials:
        """The trials of the pack that this one is the first of."""
        return self.packs.get(trial, (trial,))
