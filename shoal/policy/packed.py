"""Packs as trials: any policy, with trials that go faster together moved as one (hopping packs, say).

Ours: Pack's sharing (Liu et al. 2020) under another policy's plan, Cerebro's hopping for one. The policy sees one trial for each
pack, its first, with the pack's speed and memory.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from shoal.core.plan import Gang, Lane, Plan
from shoal.core.ports import Cost, Policy, Profile
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId

Packs = list[list[TrialId]]
Order = Callable[[Any, TrialId], object]  # of a policy's memory; equal for trials that visit shards in the same order
GAIN = 0.02  # trials are packed if that saves so much of their time


@dataclass(frozen=True, slots=True)
class Packed:
    """The policy, over packs of trials that are at the same visits and that the profile says go faster together.

    `most`: trials in a pack; packs are no larger than leaves one for every slot. `fuse`: lanes of one graph may train in
    one step. A pack stays together until its trials end or differ in their visits, or they turn out not to go faster, or to
    need more memory than a slot has. Where the policy fixes each trial's order of shards (`Hop.order`), all of a pack have
    that of its first trial from then on, so that an interrupted run equals the undisturbed one, whoever leads later.

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
        order: Order = getattr(self.policy, "order", _unordered)
        packs = _formed(view, _kept(view, memory[0], self.fuse), self, lambda trial: order(memory[1], trial))
        seen = _Seen(view, packs, self.fuse)
        plan, inner = self.policy.decide(seen.view(), memory[1])
        if packs != memory[0]:
            inner = self._followed(order, inner, packs)
        return Plan(frozenset(seen.whole(gang) for gang in plan.gangs), plan.wake_at), [packs, inner]

    def _followed(self, order: Order, inner: Any, packs: Packs) -> Any:
        """The policy's memory, in which all of a pack have an order where its first trial has one."""
        for pack in packs:
            new = [t for t in pack[1:] if order(inner, t) is None] if order(inner, pack[0]) is not None else []
            if new:
                inner = self.policy.follow(inner, new, pack[0])  # type: ignore[attr-defined]
        return inner


def _unordered(memory: Any, trial: TrialId) -> object:
    return None


def _state(view: View, trial: TrialId) -> tuple[Any, ...]:
    """Equal for trials that can go on together."""
    return len(view.visits[trial]), view.pending[trial], view.trials[trial].shards, view.trials[trial].widths


def _kept(view: View, packs: Packs, fuse: bool) -> Packs:
    """The packs as they were, without trials that ended, and parted where trials differ by now or turned out not to gain.

    Those that wait are parted, too, where they turned out to need more memory than a slot has.
    """
    kept: Packs = []
    room = _room(view)
    for pack in packs:
        parts: dict[object, list[TrialId]] = {}
        for trial in pack:
            if trial in view.trials:
                gang = view.running.get(trial)
                alone = (trial,) if view.deaths.get(trial, 0) >= 2 else ()
                key = (gang.since, gang.trials[0]) if gang is not None else (*_state(view, trial), *alone)
                parts.setdefault(key, []).append(trial)
        for part in parts.values():
            if part[0] in view.running:
                kept.append(part)
                continue
            for some in _fitting(view, part, room):
                whole = len(some) == 1 or _gains(view, some, fuse)
                kept += [some] if whole else [[trial] for trial in some]
    return kept


def _room(view: View) -> float:
    """The memory of the smallest slot: a pack may come to any."""
    return min((slot.memory for slot in view.slots.values()), default=inf)


def _fitting(view: View, pack: Sequence[TrialId], room: float) -> Packs:
    """The pack in as few parts as have room, in order."""
    needs = [view.profile.cost(t).memory for t in pack] if room < inf else []
    if sum(needs) <= room:
        return [[*pack]]
    cuts = [0]
    for at in range(1, len(pack)):
        if sum(needs[cuts[-1] : at + 1]) > room:
            cuts.append(at)
    return [[*pack[a:b]] for a, b in pairwise([*cuts, len(pack)])]


def _formed(view: View, packs: Packs, rule: Packed, order: Callable[[TrialId], object]) -> Packs:
    """With trials that are in none yet: each joins one that waits, has its order and makes a gain, or begins one."""
    known = {trial for pack in packs for trial in pack}
    fresh = [trial for trial in view.trials if trial not in known]
    if not fresh:
        return packs
    packs = [list(pack) for pack in packs]
    most = min(rule.most, max(1, len(view.trials) // max(1, len(view.slots))))
    room = _room(view)

    def key(trial: TrialId) -> tuple[object, ...]:
        return order(trial), _state(view, trial)

    open_: dict[object, Packs] = {}  # packs that wait, by what must be equal; the first of each kind stands for it
    for pack in packs:
        if pack[0] not in view.running:
            open_.setdefault(key(pack[0]), []).append(pack)
    crowds = _crowds(
        view, [(key(t), t) for t in (*fresh, *(t for some in open_.values() for p in some for t in p))], most, rule.fuse
    )
    for trial in fresh:
        waiting = open_.setdefault(key(trial), [])
        alike = [pack for pack in waiting if len(pack) < most and _fits(view, [*pack, trial], room)]
        form = _form(view, trial) if (key(trial), _form(view, trial)) in crowds else None
        of_form = [pack for pack in alike if form is not None and _form(view, pack[0]) == form]
        chosen = next(iter(of_form), None) or next((p for p in alike if _gains(view, (p[0], trial), rule.fuse)), None)
        if chosen is None or view.deaths.get(trial, 0) >= 2:
            packs.append([trial])
            waiting.append(packs[-1])
        else:
            chosen.append(trial)
    return packs


def _crowds(view: View, trials: Sequence[tuple[object, TrialId]], most: int, fuse: bool) -> set[tuple[object, Hashable]]:
    """Keys with forms of which as many as may be packed go faster together, also where two gain nothing."""
    some: dict[tuple[object, Hashable], list[TrialId]] = {}
    for key, trial in trials:
        some.setdefault((key, _form(view, trial)), []).append(trial)
    return {at for at, of in some.items() if at[1] is not None and min(len(of), most) > 2 and _gains(view, of[:most], fuse)}


def _form(view: View, trial: TrialId) -> Hashable:
    return view.profile.cost(trial).form


def _fits(view: View, trials: Sequence[TrialId], room: float) -> bool:
    return room == inf or sum(view.profile.cost(t).memory for t in trials) <= room


def _gains(view: View, trials: Sequence[TrialId], fuse: bool) -> bool:
    alone = sum(1.0 / view.profile.curve(t, 1)[0] for t in trials)
    return _seconds(view.profile, next(iter(view.slots), None), trials, fuse) < alone * (1 - GAIN)


def _seconds(profile: Profile, slot: Any, trials: Sequence[TrialId], fuse: bool) -> Seconds:
    """Seconds per sample of the trials together on one slot."""
    if slot is None:
        return inf
    gang = Gang(tuple(Lane(t, (slot,)) for t in trials), fused=fuse and len(trials) > 1)
    return 1.0 / min(profile.rates(gang).values())


@dataclass(slots=True)
class _Seen:
    """The view in which each pack is its first trial, and the way back."""

    real: View
    packs: Packs
    fuse: bool

    def view(self) -> View:
        real = self.real
        first = {pack[0]: pack for pack in self.packs}
        gangs = {_narrow(gang, first): gang for gang in real.plan.gangs}
        plan = Plan(frozenset(gangs), real.plan.wake_at)
        most = {trial: max(real.trials[t].samples for t in pack) for trial, pack in first.items()}
        return replace(
            real,
            trials={t: replace(trial, samples=most[t]) for t, trial in real.trials.items() if t in first},
            plan=plan,
            busy={slot: gang for gang in gangs for slot in gang.slots},
            running={trial: gang for gang in gangs for trial in gang.trials},
            profile=_PackProfile(real.profile, first, self.fuse),
        )

    def whole(self, gang: Gang) -> Gang:
        """The gang with all lanes of its packs; of one that runs, what runs."""
        running = self.real.running.get(gang.trials[0])
        first = {pack[0]: pack for pack in self.packs}
        if running is not None and _narrow(running, first) == gang:
            return running
        lanes = tuple(Lane(t, lane.slots) for lane in gang.lanes for t in first.get(lane.trial, [lane.trial]))
        return replace(gang, lanes=lanes, fused=self.fuse and len(lanes) > len(gang.lanes))


def _narrow(gang: Gang, first: Mapping[TrialId, Sequence[TrialId]]) -> Gang:
    """The gang with the first trials of its packs only."""
    lanes = tuple(lane for lane in gang.lanes if lane.trial in first)
    return replace(gang, lanes=lanes or gang.lanes[:1], fused=False)


@dataclass(frozen=True, slots=True)
class _PackProfile:
    """The profile of packs, each under the name of its first trial."""

    real: Profile
    packs: Mapping[TrialId, Sequence[TrialId]]
    fuse: bool

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        lanes = tuple(Lane(t, lane.slots) for lane in gang.lanes for t in self._of(lane.trial))
        rates = self.real.rates(replace(gang, lanes=lanes, fused=self.fuse and len(lanes) > len(gang.lanes)))
        return {trial: min(rates[t] for t in self._of(trial)) for trial in gang.trials}

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        pack = self._of(trial)
        alone = self.real.curve(trial, upto)
        if len(pack) == 1:
            return alone
        share = 1.0 / (_seconds(self.real, "slot", pack, self.fuse) * alone[0])
        return [rate * share for rate in alone]

    def cost(self, trial: TrialId) -> Cost:
        costs = [self.real.cost(t) for t in self._of(trial)]
        sums = {name: sum(getattr(cost, name) for cost in costs) for name in ("memory", "build", "evaluate", "save")}
        return Cost(**sums, first=max(cost.first for cost in costs))

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        return self.real.switch(before, after)

    def _of(self, trial: TrialId) -> Sequence[TrialId]:
        return self.packs.get(trial, (trial,))
