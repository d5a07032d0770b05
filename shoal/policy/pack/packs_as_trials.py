"""Packs as trials: any policy, with trials that go faster together moved as one.

Ours: Pack's sharing (Liu et al. 2020) under another policy's plan, such as Cerebro's hopping. The
policy sees one trial for each pack, its first, with the pack's speed and memory.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from math import inf
from typing import Any

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.ports import Policy
from shoal.core.profile import Cost, MemoryTogether, Profile
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.idle import queue
from shoal.policy.pack.company import (
    Packs,
    Together,
    by_key,
    form,
    gains,
    have_room,
    must_be_alone,
    parts_with_room,
    seconds_together,
    smallest_memory,
    state,
)

WINDOW = 256  # trials, from which on the policy sees the first ones only: a decision has a bound
Kind = tuple[Hashable, Hashable]  # a key and a form
Waiting = dict[Hashable, Packs]  # packs by key
ByFirst = Mapping[TrialId, Sequence[TrialId]]  # each pack, under its first trial
ANY = SlotId("slot")
Trials = Sequence[TrialId]


@dataclass(frozen=True, slots=True)
class PacksAsTrials:
    """The policy, over packs of trials at the same passes that go faster together.

    A pack stays together until its trials end or differ in their passes, or they turn out not to go
    faster, or to need more memory than a slot has, or slots would be idle.

    Where the policy fixes each trial's order of shards (`Hop.order`), all of a pack have that of
    its first trial from then on. So an interrupted run equals the undisturbed one, whichever trial
    is the first later. Of very many trials the policy sees the first ones only, the others as these
    end.

    Args:
        policy: the policy.
        most: trials in a pack, at most; packs are small enough that every slot has one.
        fuse: trials of one graph may train in one step, equal to rounding.

    Raises:
        ValueError: packs of less than one.
    """

    policy: Policy[Any]
    most: int = 32
    fuse: bool = True

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"a pack has at least one trial; got most={self.most!r}")

    def start(self) -> list[Any]:
        return [[], self.policy.start()]

    def decide(self, view: View, memory: Sequence[Any]) -> tuple[Plan, list[Any]]:
        if not view.slots:
            return Plan(), [*memory]  # how large packs are to be depends on them
        before, inner = memory
        window = max(WINDOW, 2 * self.most * len(view.slots))
        view = _admitted(view, before, window)
        packs = self._formed(view, before, inner)

        as_one = PacksAsOne(view, packs, self.fuse)
        plan, inner = self.policy.decide(as_one.view(), inner)
        if packs != before:
            inner = self._followed(inner, packs)
        gangs = frozenset(map(as_one.whole, plan.gangs))
        return Plan(gangs, plan.wake_at), [packs, inner]

    def _formed(self, view: View, before: Packs, inner: Any) -> Packs:
        """The packs of now: what is left of those of before, and the trials that were in none."""

        def order(trial: TrialId) -> object:
            return self._order(inner, trial)

        forming = Forming(view, self.most, self.fuse, order)
        packs = forming.with_fresh(still_together(view, before, self.fuse))
        return one_for_each_slot(view, packs)

    def _order(self, inner: Any, trial: TrialId) -> object:
        """A key, equal for trials that visit shards in the same order, from the policy's memory.

        None where the policy fixes no order, or has not fixed this trial's yet.
        """
        order = getattr(self.policy, "order", None)
        if order is None:
            return None
        return order(inner, trial)

    def _followed(self, inner: Any, packs: Packs) -> Any:
        """The policy's memory, in which all of a pack have the order that its first trial has."""
        for pack in packs:
            new = self._newcomers(inner, pack)
            if new:
                inner = self.policy.follow(inner, new, pack[0])  # type: ignore[attr-defined]
        return inner

    def _newcomers(self, inner: Any, pack: Sequence[TrialId]) -> Sequence[TrialId]:
        """The trials of the pack without an order, where its first one has an order."""
        if self._order(inner, pack[0]) is None:
            return []
        return [trial for trial in pack[1:] if self._order(inner, trial) is None]


def _admitted(view: View, packs: Packs, most: int) -> View:
    """The view with the first so many trials, and those that run or are in a pack already."""
    if len(view.trials) <= most:
        return view
    first = islice(queue(view), most)
    # The view with those of these trials that it has, in the order given.
    trials = chain(first, *packs, view.running)
    names = dict.fromkeys(trials)
    admitted = {name: view.trials[name] for name in names if name in view.trials}
    return replace(view, trials=admitted)


# -- how packs come about and end: which trials stay together, and whom a new trial joins


def still_together(view: View, packs: Packs, fuse: bool) -> Packs:
    """The packs as they were, without trials that ended.

    They are parted where trials differ by now or turned out not to gain. Packs that wait are
    parted, too, where they turned out to need more memory than a slot has.
    """
    parts: Packs = []
    for pack in packs:
        # The trials of the pack that have work left, in parts that stay together.
        alive = [trial for trial in pack if trial in view.trials]
        for part in by_key(alive, lambda trial: _company(view, trial)).values():
            parts += _worth_keeping(view, part, fuse)
    return parts


def _company(view: View, trial: TrialId) -> tuple[Any, ...]:
    """A key, equal for trials of a pack that stay together: in one gang, or of the same visits."""
    gang = view.running.get(trial)
    if gang is not None:
        return gang.since, gang.trials[0]
    alone = (trial,) if must_be_alone(view, trial) else ()
    return (*state(view, trial), *alone)


def _worth_keeping(view: View, part: Together, fuse: bool) -> Packs:
    """The part as it is where it runs; else in packs that have room and gain, or alone."""
    if part[0] in view.running:
        return [part]
    packs: Packs = []
    for pack in parts_with_room(view, part, smallest_memory(view)):
        if len(pack) == 1 or gains(view, pack, fuse):
            packs.append(pack)
        else:
            packs += [[trial] for trial in pack]
    return packs


def one_for_each_slot(view: View, packs: Packs) -> Packs:
    """The packs; where there are fewer than slots, the largest that wait are halved.

    As trials end, packs become few, and slots would be idle beside packs of many.
    """
    packs = list(packs)
    while len(packs) < len(view.slots):
        waiting = [pack for pack in packs if pack[0] not in view.running]
        largest = max(waiting, key=len, default=[])
        if len(largest) < 2:
            break
        half = (len(largest) + 1) // 2
        place = packs.index(largest)
        packs[place : place + 1] = [largest[:half], largest[half:]]
    return packs


# -- trials that are in no pack


class Forming:
    """One decision about the trials that are in no pack yet.

    Each joins a pack that waits, has its order of shards and gains by it, or begins a new one.

    Args:
        view: what is known now.
        most: trials in a pack. Packs are small enough that every slot has one.
        fuse: whether lanes of one graph may train in one step.
        order: what is equal for trials that visit shards in the same order.
    """

    def __init__(
        self, view: View, most: int, fuse: bool, order: Callable[[TrialId], object]
    ) -> None:
        self.view = view
        self.fuse = fuse
        self.order = order
        self.most = min(most, max(1, len(view.trials) // max(1, len(view.slots))))
        self.room = smallest_memory(view)

    def with_fresh(self, packs: Packs) -> Packs:
        """The packs, with the trials that are in none yet."""
        known = {trial for pack in packs for trial in pack}
        fresh = [trial for trial in self.view.trials if trial not in known]
        if not fresh:
            return packs
        packs = [list(pack) for pack in packs]
        # Packs that do not run, by key; the first trial of a pack stands for it.
        waiting: Waiting = {}
        for pack in packs:
            if pack[0] not in self.view.running:
                waiting.setdefault(self._key(pack[0]), []).append(pack)
        crowds = self._crowds(fresh, waiting)
        for trial in fresh:
            kind = self._kind(trial)
            rivals = waiting.setdefault(kind[0], [])
            chosen = self._chosen(trial, rivals, kind in crowds)
            if chosen is None:
                packs.append([trial])
                rivals.append(packs[-1])
            else:
                chosen.append(trial)
        return packs

    def _kind(self, trial: TrialId) -> Kind:
        """The trial's key and form."""
        return self._key(trial), form(self.view, trial)

    def _key(self, trial: TrialId) -> Hashable:
        """A key that is equal for trials that may be in one pack."""
        return self.order(trial), state(self.view, trial)

    def _crowds(self, fresh: Together, waiting: Waiting) -> set[Kind]:
        """Keys with forms of which as many as may be packed go faster together.

        This may hold also where two trials of a form gain nothing.
        """
        trials = [*fresh]
        for packs in waiting.values():
            for pack in packs:
                trials += pack
        kinds: dict[Kind, Together] = {}
        for trial in trials:
            kinds.setdefault(self._kind(trial), []).append(trial)
        return {kind for kind, alike in kinds.items() if self._is_crowd(kind, alike)}

    def _is_crowd(self, kind: Kind, alike: Together) -> bool:
        """Whether the trials' form is known, and as many as may be packed go faster together."""
        pack = alike[: self.most]
        return kind[1] is not None and len(pack) > 2 and self._gain(pack)

    def _gain(self, trials: Sequence[TrialId]) -> bool:
        return gains(self.view, trials, self.fuse)

    def _chosen(self, trial: TrialId, packs: Packs, crowded: bool) -> Together | None:
        """The pack that the trial joins, of these; None if it begins a new one.

        `crowded`: it joins trials of its form whether two of them gain by it or not.
        """
        if must_be_alone(self.view, trial):
            return None
        open_ = [pack for pack in packs if self._has_place(pack, trial)]
        if crowded:
            wanted = form(self.view, trial)
            for pack in open_:
                if form(self.view, pack[0]) == wanted:
                    return pack
        for pack in open_:
            if self._gain((pack[0], trial)):
                return pack
        return None

    def _has_place(self, pack: Together, trial: TrialId) -> bool:
        """Whether the pack is not full, and the smallest slot has memory for one more."""
        if len(pack) >= self.most:
            return False
        return self.room == inf or have_room(self.view, [*pack, trial], self.room)


# -- a view in which each pack is one trial, its first, and the way back


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
                most = max(self.real.trials[t].samples for t in self.by_first[name])
                trials[name] = replace(trial, samples=most)
        return trials

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
    lanes = tuple(
        Lane(trial, lane.slots)
        for lane in gang.lanes
        for trial in by_first.get(lane.trial, (lane.trial,))
    )
    fused = fuse and len(lanes) > len(gang.lanes)
    return replace(gang, lanes=lanes, fused=fused)


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
        share = 1.0 / (seconds_together(self.real, ANY, self._of(trial), self.fuse) * alone[0])
        return [rate * share for rate in alone]

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
