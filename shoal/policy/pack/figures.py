"""What one decision asks of the profile about packs, each question once."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.profile import Cost, MemoryTogether, stepping_in_turns
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.pack.company import GAIN

# A slot, and the numbers of trials that share it.
Company = tuple[SlotId, tuple[int, ...]]
Trials = Sequence[TrialId]
Rates = Mapping[TrialId, float]  # samples/s
Left = Mapping[TrialId, Samples]

MOST_KEPT = 100_000  # answers, beyond which all are forgotten
THROUGH = 1e-6  # a trial is through once it has this part of a stretch's samples left


@dataclass(slots=True)
class Figures:
    """Speeds, spans and costs of trials and of packs of them, as the view's profile has them.

    Trials with as much left to train that the profile does not tell apart have the same `number`,
    and packs of the same numbers the same figures: thousands of trials that differ in nothing but
    their learning rate are asked about once.
    """

    view: View
    fuse: bool
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _number: dict[TrialId, int] = field(default_factory=dict)
    _left: dict[TrialId, Samples] = field(default_factory=dict)
    _cost: dict[TrialId, Cost] = field(default_factory=dict)
    _rate: dict[TrialId, float] = field(default_factory=dict)
    _speeds: dict[Company, float] = field(default_factory=dict)
    _spans: dict[Company, Seconds] = field(default_factory=dict)
    _stretch_of: dict[tuple[SlotId, tuple[TrialId, ...]], "_Stretch"] = field(default_factory=dict)
    _over: dict[Gang, Seconds] = field(default_factory=dict)
    # Of each trial the one gang in `_over` that it is in.
    _gang_of: dict[TrialId, Gang] = field(default_factory=dict)
    _lanes: dict[SlotId, "_LanesOn"] = field(default_factory=dict)

    def in_view(self, view: View) -> "Figures":
        """The figures in this view, with the answers so far that still hold.

        Purely for speed: another profile is asked anew.
        """
        answers = len(self._spans) + len(self._stretch_of)
        if view.profile is not self.view.profile or answers > MOST_KEPT:
            return Figures(view, self.fuse)
        changed = view.news.since(self.view.news)
        for trial in self._left.copy() if changed is None else changed:
            self._left.pop(trial, None)
            self._number.pop(trial, None)  # it may have less left
            gang = self._gang_of.pop(trial, None)
            if gang is not None:
                self._over.pop(gang, None)
        self.view = view
        return self

    def slot(self, gang: Gang) -> Slot:
        """The one slot of the gang."""
        (name,) = gang.slots
        return self.view.slots[name]

    def gang(self, slot: Slot, trials: Trials) -> Gang:
        """The trials as a new gang on this slot."""
        lanes_here = self._lanes.get(slot.id)
        if lanes_here is None:
            lanes_here = self._lanes[slot.id] = _LanesOn(slot.id)
        lanes = tuple([lanes_here[trial] for trial in trials])
        fused = self.fuse and len(lanes) > 1
        return Gang(lanes, fused=fused, since=self.view.turn)

    # -- of one trial

    def left(self, trial: TrialId) -> Samples:
        """Samples that the trial has yet to train."""
        left = self._left.get(trial)
        if left is None:
            left = self.view.trials[trial].samples - self.view.done[trial]
            self._left[trial] = left
        return left

    def alone(self, trial: TrialId) -> Seconds:
        """Seconds until the trial is through, if it has a slot to itself."""
        return self.left(trial) / self.rate(trial)

    def rate(self, trial: TrialId) -> float:
        """Samples/s of the trial alone on one slot."""
        if trial not in self._rate:
            self._rate[trial] = self.view.profile.curve(trial, 1)[0]
        return self._rate[trial]

    def cost(self, trial: TrialId) -> Cost:
        """Memory, and what it takes to build, evaluate and save the trial."""
        if trial not in self._cost:
            cost = self.view.profile.cost(trial)
            if not self.fuse:
                cost = stepping_in_turns(cost)
            self._cost[trial] = cost
        return self._cost[trial]

    def form(self, trial: TrialId) -> Hashable:
        """The trial's form: equal for those that may train in one fused step; None: not known."""
        return self.cost(trial).form

    def number(self, trial: TrialId) -> int:
        """A number that is equal for trials with equal figures."""
        if trial not in self._number:
            # The number of the trial's figures: the next one where they are new.
            figures = (self.left(trial), self.rate(trial), self.cost(trial))
            self._number[trial] = self._numbers.setdefault(figures, len(self._numbers))
        return self._number[trial]

    # -- of a pack

    def memory(self, trials: Trials) -> GiB:
        """GiB that the trials need together on a slot."""
        return MemoryTogether(map(self.cost, trials)).now

    def company(self, slot: Slot, trials: Trials) -> Company:
        """A key that is equal for packs with equal figures."""
        return slot.id, tuple(sorted(map(self.number, trials)))

    def speed(self, slot: Slot, trials: Trials) -> float:
        """Work that the trials do together on the slot, in trials alone.

        2.0 is as much as two slots do.
        """
        key = self.company(slot, trials)
        if key not in self._speeds:
            self._speeds[key] = self.work(self.view.profile.rates(self.gang(slot, trials)))
        return self._speeds[key]

    def work(self, rates: Rates) -> float:
        """The work of lanes at these rates, each against what it would do alone."""
        return sum(rate / self.rate(trial) for trial, rate in rates.items())

    def gains(self, slot: Slot, trials: Trials) -> bool:
        """Whether the trials are faster together than one after the other."""
        return self.speed(slot, trials) > 1 + GAIN

    def span(self, slot: Slot, trials: Trials) -> Seconds:
        """How long the pack takes, all of it: whoever is through leaves, and the others go on."""
        return self.spans(slot, trials)(range(len(trials)))

    def spans(self, slot: Slot, trials: Trials) -> Callable[[Sequence[int]], Seconds]:
        """How long a group of these trials takes, by their numbers in the sequence.

        A decision asks for thousands of groups: their keys, and what their trials have left, are
        made of what is at hand.
        """
        numbers = [self.number(trial) for trial in trials]
        equal = len(set(numbers)) == 1
        left = [self.left(trial) for trial in trials]
        # Rounding depends on the order. So it is one that does not depend on who asked first.
        ranks = [(left[i], self.rate(trial)) for i, trial in enumerate(trials)]

        def span(group: Sequence[int]) -> Seconds:
            company = numbers[: len(group)]
            if not equal:
                company = sorted([numbers[i] for i in group])
            key = slot.id, tuple(company)
            seconds = self._spans.get(key)
            if seconds is None:
                order = sorted(group, key=ranks.__getitem__)
                seconds = self._stretches(slot, {trials[i]: left[i] for i in order})
                self._spans[key] = seconds
            return seconds

        return span

    def until_over(self, gang: Gang) -> Seconds:
        """Seconds until the slots of a gang that runs are free."""
        seconds = self._over.get(gang)
        if seconds is None:
            if len(gang.slots) > 1:
                rates = self.view.profile.rates(gang)
                seconds = max(self.left(trial) / rates[trial] for trial in gang.trials)
            else:
                seconds = self.span(self.slot(gang), gang.trials)
            for trial in gang.trials:
                former = self._gang_of.get(trial)
                if former is not None:
                    self._over.pop(former, None)
                self._gang_of[trial] = gang
            self._over[gang] = seconds
        return seconds

    def _stretches(self, slot: Slot, left: Left) -> Seconds:
        """Seconds of all stretches, each from one lane's end to the next one's.

        What it costs to go on without the lane counts as well.
        """
        now = self._stretch(slot, tuple(left))
        spent = 0.0
        while True:
            first = min([samples / now.rates[trial] for trial, samples in left.items()])
            spent += first
            left = _after(first, left, now.rates)
            if not left:
                return spent
            rest = tuple(left)
            after = self._stretch_of[slot.id, rest] = self._stretch(slot, rest)
            if rest not in now.switches:
                switch = self.view.profile.switch(now.gang, after.gang)
                now.switches[rest] = switch
            spent += now.switches[rest]
            now = after

    def _stretch(self, slot: Slot, trials: tuple[TrialId, ...]) -> "_Stretch":
        """The stretch in which these trials share the slot.

        Packs that are compared have most stretches in common: whoever is through first leaves the
        same others. So stretches of some of a pack are kept; of a whole pack only its span is.
        """
        stretch = self._stretch_of.get((slot.id, trials))
        if stretch is None:
            gang = self.gang(slot, trials)
            stretch = _Stretch(gang, self.view.profile.rates(gang))
        return stretch


class _LanesOn(dict[TrialId, Lane]):
    """Lanes of trials alone on this slot, made when they are first asked for."""

    def __init__(self, slot: SlotId) -> None:
        self.slots = (slot,)

    def __missing__(self, trial: TrialId) -> Lane:
        lane = self[trial] = Lane(trial, self.slots)
        return lane


@dataclass(slots=True)
class _Stretch:
    """Trials that share a slot until the first of them is through.

    `rates`: samples/s of each. `switches`: seconds that it takes to go on with some of them.
    """

    gang: Gang
    rates: Rates
    switches: dict[tuple[TrialId, ...], Seconds] = field(default_factory=dict)


def _after(seconds: Seconds, left: Left, rates: Rates) -> Left:
    """The samples that trials have left so many seconds later, without those that are through."""
    rest = {}
    for trial, before in left.items():
        samples = before - seconds * rates[trial]
        if samples > THROUGH * before:
            rest[trial] = samples
    return rest
