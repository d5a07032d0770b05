"""What the study believes of speed and memory, from what was measured of its configurations."""

from collections.abc import Hashable, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import inf

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.profile import SHARED, Cost, Place, Profile
from shoal.core.state import Figures, News, State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.profile.all_reduce import Beside, Sums, curve_by_links, mean_beside, sums_of
from shoal.profile.overrides import Given
from shoal.profile.pace import (
    WORTH_FUSING,
    fused_seconds,
    fused_steps,
    lockstep,
    new_lanes,
    only_shrinks,
    repacked,
    rescaled,
    shares_one_slot,
    take_turns,
    until_all_begin,
)
from shoal.profile.signatures import Key, Signatures
from shoal.profile.slot_speeds import SlotSpeeds, are_comparable
from shoal.profile.widths import WIDER, mean_of, rate_at, speedups_of, wide_rates

RATE = 1000.0  # samples/s of all trials, while nothing was measured: any number does
NOTHING = Given(())
Slots = Mapping[SlotId, Slot]
NONE: Figures = {}


def believe(state: State, given: Given = NOTHING, signatures: Signatures | None = None) -> "Belief":
    """The belief by the study's journal; speeds and memory are computed when they are asked for."""
    slots = SlotSpeeds(state.speeds, state.rated)
    return Belief(
        state.figures, state.signature, state.known, given, largest(state), signatures, slots
    )


def largest(state: State) -> GiB:
    """Memory of the largest slot there is."""
    return max((slot.memory for slot in state.slots.values()), default=inf)


class Believer:
    """`believe` that gives the same object while nothing new was measured or submitted.

    So what the object has looked up is kept. What was learnt of signatures stays even longer: a new
    measurement costs as much as the trials that changed since the last one.
    """

    def __init__(self, given: Given = NOTHING) -> None:
        self.given = given
        self._last: Belief | None = None
        self._slots: Slots | None = None
        self._news: News | None = None
        self._speeds: Mapping[Place, float] = {}
        self._signatures = Signatures()
        self._lessons = 0

    def __call__(self, state: State) -> "Belief":
        self._last = self._current(state)
        self._slots = state.slots
        self._speeds = state.speeds
        self._lessons = self._signatures.lessons
        return self._last

    def _current(self, state: State) -> "Belief":
        """The last belief where it still holds, else a new one."""
        last = self._last
        self._learn(state)
        if last is None or self._outdated(last, state):
            return believe(state, self.given, self._signatures)
        if self._speeds is not state.speeds:
            # This changes no rate, but what was clocked where.
            last.slots = SlotSpeeds(state.speeds, state.rated)
        if last.known is not state.known:
            return last.of(state.known)
        return last

    def _outdated(self, last: "Belief", state: State) -> bool:
        """Whether something was learnt since that tells of any trial, or of slots.

        That one more trial is what all like it were is no news, nor is the clock of a study's only
        slot: of thousands of tiny trials each would otherwise be asked about anew at each decision.
        """
        if last.figures is not state.figures or last.signatures is not self._signatures:
            return True
        if self._lessons != self._signatures.lessons:
            return True
        if self._speeds is not state.speeds and (
            are_comparable(self._speeds) or are_comparable(state.speeds)
        ):
            return True
        return self._slots is not state.slots and last.room != largest(state)

    def _learn(self, state: State) -> None:
        """Take in the signatures of the trials that changed."""
        if state.news is self._news:
            return
        changed = state.news.since(self._news)
        self._news = state.news
        if changed is None or not self._signatures.learn(changed, state.signature, state.known):
            self._signatures = Signatures.of(state.signature, state.known)


def measured(profile: Profile) -> Figures | None:
    """The means of what was measured (or is given of all trials), by name.

    {}: nothing yet. None: the profile does not measure, all of it was given.
    """
    if not isinstance(profile, Belief):
        return None
    return {**profile._mean, **profile.given({})}


def kinds_measured(profile: Profile) -> int:
    """How many kinds of trials have a measured speed; 0: the profile does not measure."""
    if not isinstance(profile, Belief):
        return 0
    return len(profile.figures)


class Belief:
    """Figures by signature, for trials measured and not.

    A trial has the figures of the signature measured on its configuration; else of the nearest
    configuration measured, as far as speed can depend on it. Keys by which configurations of one
    signature differ, and usual names of tuning parameters, do not count. Figures that are missing
    are the mean of those measured; of widths, the mean of the speed-ups.

    What is `given` of a trial holds, whatever was measured. A trial that ran out of memory beside
    others ("crowded") is never believed to need more than the largest slot has (`room`): alone it
    may fit.
    """

    def __init__(
        self,
        figures: Mapping[str, Figures],
        signature: Mapping[TrialId, str],
        known: Mapping[TrialId, Trial],
        given: Given = NOTHING,
        room: GiB = inf,
        signatures: Signatures | None = None,
        slots: SlotSpeeds = SlotSpeeds({}, {}),
    ) -> None:
        self.figures = figures
        self.given = given
        self.room = room
        self.known = known
        if signatures is None:
            signatures = Signatures.of(signature, known)
        self.signatures = signatures
        self.slots = slots
        self._near: dict[Key, Figures] = {}
        self._figures_of: dict[TrialId, Figures] = {}
        self._curves: dict[TrialId, list[float]] = {}
        self._costs: dict[tuple[int, Hashable], Cost] = {}

    def of(self, known: Mapping[TrialId, Trial]) -> "Belief":
        """A belief from the same measurements for these trials (a simulation's, say)."""
        belief = copy(self)  # with what it has computed already
        belief.known = known
        belief._figures_of = {}
        belief._curves = {}
        belief._costs = {}
        return belief

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        if shares_one_slot(gang):
            (slot,) = gang.slots
            pace = 1.0 / self._together_on(slot, gang)
            return dict.fromkeys(gang.trials, pace)
        return lockstep(gang, self._alone)

    def _together_on(self, slot: SlotId, gang: Gang) -> Seconds:
        """Seconds per sample of such lanes: as clocked where such a pack has trained a while."""
        if not self.slots.have_packs:
            return self._together(gang) / self.slots.of(slot)
        names = [self.signatures.name(trial, self.known) for trial in gang.trials]
        clocked = self.slots.of_pack("+".join(sorted(names)), slot)
        if clocked is None:
            return self._together(gang) / self.slots.of(slot)
        waits = max(self._figures(trial).get("data", 0.0) for trial in gang.trials)
        return len(names) / clocked + waits

    def _together(self, gang: Gang) -> Seconds:
        """Seconds per sample of lanes that share a slot and its stream.

        Each chunk of data is waited for once. Lanes that are not fused take turns, or are summed
        where that is quicker.
        """
        forms: dict[object, list[TrialId]] = {}
        for trial in gang.trials:
            forms.setdefault(self._form(trial), []).append(trial)
        total = max(self._figures(trial).get("data", 0.0) for trial in gang.trials)
        one_by_one: list[TrialId] = []
        in_turns = 0.0
        for trials in forms.values():
            alone = sum(1.0 / self._speed(trial) for trial in trials)
            fused = alone
            if gang.fused and self._may_be_fused(trials):
                figures = self._figures(trials[0])
                fused = fused_seconds(figures, len(trials), alone / len(trials))
            if fused < alone:
                total += fused
            else:
                one_by_one += trials
                in_turns += alone
        return total + in_turns * self._summed(one_by_one)

    def _summed(self, trials: Sequence[TrialId]) -> float:
        """The time that trials that are not fused take together over what they take alone."""
        if len(trials) < 2:
            return 1.0
        ratios = [self._figures(trial).get("summed", 1.0) for trial in trials]
        return min(1.0, sum(ratios) / len(ratios))

    def _may_be_fused(self, trials: Sequence[TrialId]) -> bool:
        """Whether a slot would try to fuse these: not for a few steps if nothing was measured."""
        figures = self._figures(trials[0])
        batch = figures.get("rate", 0.0) * figures.get("step", 0.0)
        if not batch or fused_steps(figures):
            return True
        samples = [self.known[t].samples for t in trials if t in self.known]
        return not samples or sum(samples) / len(samples) >= WORTH_FUSING * batch

    def _form(self, trial: TrialId) -> Hashable:
        """The trial's form, as far as it is known."""
        return self.signatures.form(self.signatures.key(trial, self.known))

    def _alone(self, lane: Lane) -> float:
        """Samples/s of the lane on its slots, if no other lane shares them."""
        width = len(lane.slots)
        rate = self.curve(lane.trial, width)[width - 1]
        if not self.slots:
            return rate
        kind = self.signatures.name(lane.trial, self.known)
        return rate * min(self.slots.of_kind(kind, slot) for slot in lane.slots)

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        if upto == 1:
            return [1.0 / (1.0 / self._speed(trial) + self._figures(trial).get("data", 0.0))]
        known = self._curves.get(trial, [])
        if len(known) < upto:
            known = self._curve(trial, upto)
            self._curves[trial] = known
        return known[:upto]

    def _curve(self, trial: TrialId, upto: int) -> list[float]:
        """Samples/s at each width up to this one, with what the trial waits for data."""
        figures = self._figures(trial)
        waits = figures.get("data", 0.0)
        sums = self._sums(figures)
        if sums is None:
            # Widths, rising, and samples/s there, without waiting for data.
            alone = self._speed(trial)
            by_width = {1: alone} | self._wider(trial, alone)
            points = tuple(sorted(by_width.items()))
            rates = [rate_at(points, width) for width in range(1, upto + 1)]
        else:
            known = {1: self._speed(trial)} | wide_rates(figures)
            rates = curve_by_links(known, sums, self._beside, upto)
        return [1.0 / (1.0 / rate + waits) for rate in rates]

    def _sums(self, figures: Figures) -> Sums | None:
        """The sums of such trials, where their size and the links between nodes were measured."""
        return sums_of(figures, self._mean)

    @cached_property
    def _beside(self) -> Beside:
        """The mean corrections of Capes' eq. 2-4, by all widths that were measured."""
        corrections = []
        for figures in self.figures.values():
            sums, alone = self._sums(figures), figures.get("rate")
            if sums is not None and alone:
                wide = wide_rates(figures).items()
                corrections += [sums.beside(alone, width, rate) for width, rate in wide]
        return mean_beside(corrections)

    def _wider(self, trial: TrialId, alone: float) -> dict[int, float]:
        """Samples/s at the widths above 1: as measured, else by others' speed-ups."""
        wider = wide_rates(self._figures(trial))
        if wider:
            return wider
        return {width: alone * more for width, more in self._speedups.items()}

    def cost(self, trial: TrialId) -> Cost:
        known, form = self._figures(trial), self._form(trial)
        key = (id(known), form)  # trials of one kind have the same figures, which this belief keeps
        if key not in self._costs:
            given = self._given(trial)
            figures = {**self._mean, **known}
            if "memory" in known and "transient" not in known:
                figures["transient"] = 0.0  # another's is not a part of it
            for name in self._mean:
                if name.startswith(SHARED) and name not in known:
                    figures[name] = 0.0  # nor what others hold once
            figures["first"] = given.get("first", self._first)
            crowded = 0.0
            if "memory" not in given:
                crowded = min(known.get("crowded", 0.0), self.room)
            # The costs by these figures; what is not known counts 0.
            memory = figures.get("memory", 0.0)
            transient = min(memory, figures.get("transient", 0.0))
            trunk, shared = max(
                ((name, gib) for name, gib in figures.items() if name.startswith(SHARED)),
                key=lambda item: item[1],
                default=(None, 0.0),
            )
            if crowded:
                transient = shared = 0.0
            self._costs[key] = Cost(
                memory=max(memory, crowded),
                build=figures.get("build", 0.0),
                evaluate=figures.get("evaluate", 0.0),
                save=figures.get("save", 0.0),
                first=figures["first"],
                form=form,
                transient=transient,
                in_turns=take_turns(figures),
                shared=min(memory - transient, shared),
                trunk=trunk,
            )
        return self._costs[key]

    @cached_property
    def _first(self) -> Seconds:
        """The longest time that a trial spent the first time on a slot."""
        times = [figures.get("first", 0.0) for figures in self.figures.values()]
        return max(times, default=0.0)

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        if after is None:
            return 0.0
        repack = 0.0
        if repacked(before, after):
            repack = max(self._figure(trial, "repack") for trial in after.trials)
        if only_shrinks(before, after):
            return repack

        if before is not None:
            change = rescaled(before, after)
            first = after.lanes[0].trial
            if change is not None and (change in self._figures(first) or change in self._mean):
                return self._figure(first, change)
        return repack + until_all_begin(
            new_lanes(before, after), lambda trial: self._figure(trial, "switch")
        )

    def _figure(self, trial: TrialId, name: str) -> float:
        """The trial's figure of this name; else the mean of those measured; else 0."""
        return self._figures(trial).get(name, self._mean.get(name, 0.0))

    def _speed(self, trial: TrialId) -> float:
        """Samples/s of the trial alone on one slot, without what it waits for data."""
        figures = self._figures(trial)
        return (
            self._rate_alone(trial, figures)
            or self._narrowed(figures)
            or self._mean.get("rate")
            or self._narrowed(self._mean)
            or RATE
        )

    def _rate_alone(self, trial: TrialId, figures: Figures) -> float | None:
        """The trial's rate on a slot of speed 1, if one was measured or given."""
        rate = figures.get("rate")
        if not rate or not self.slots or "rate" in self._given(trial):
            return rate
        return rate / self.slots.where_rated(self.signatures.name(trial, self.known))

    def _narrowed(self, figures: Figures) -> float | None:
        """Samples/s on one slot, of what was only measured wider."""
        wider = wide_rates(figures)
        if not wider:
            return None
        width = min(wider)
        sums = self._sums(figures)
        if sums is not None:
            return sums.alone(width, wider[width])
        return wider[width] / (self._speedups.get(width) or width**WIDER)

    def _figures(self, trial: TrialId) -> Figures:
        """The figures of this trial, by name: measured of it, or of others, under those given."""
        figures = self._figures_of.get(trial)
        if figures is None:
            figures = self._look_up(trial)
            given = self._given(trial)
            if given:
                figures = {**figures, **given}
            self._figures_of[trial] = figures
        return figures

    def _given(self, trial: TrialId) -> Figures:
        """The figures that are given of this trial."""
        if trial not in self.known:
            return self.given({})
        return self.given(self.known[trial].config)

    def _look_up(self, trial: TrialId) -> Figures:
        """The figures measured of its configuration, or the mean of those of the nearest ones."""
        if trial not in self.known:
            return NONE
        key = self.signatures.key(trial, self.known)
        name = self.signatures.seen.get(key)
        if name is not None:
            return self.figures.get(name, NONE)
        # The mean figures of the signatures whose configurations are nearest to this kind.
        kind = self.signatures.kind(key)
        if kind not in self._near:
            near = [self.figures.get(name, NONE) for name in self.signatures.nearest(kind)]
            # Of one it is what is measured of it, to the last digit.
            self._near[kind] = near[0] if len(near) == 1 else mean_of(near)
        return self._near[kind]

    @cached_property
    def _mean(self) -> Figures:
        """The means of all that was measured."""
        return mean_of(self.figures.values())

    @cached_property
    def _speedups(self) -> dict[int, float]:
        """The mean speed-up over one slot by width, of the signatures measured so wide."""
        speedups: dict[int, list[float]] = {}
        for figures in self.figures.values():
            for width, more in speedups_of(figures).items():
                speedups.setdefault(width, []).append(more)
        return {width: sum(values) / len(values) for width, values in speedups.items()}
