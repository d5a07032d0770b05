"""Packing: several trials on one slot, over one stream of data.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter Tuning", 2020, section 5; the
groupings are in `policy.grouping`. Ours: exact grouping by length, company across rungs and
brackets, and lanes that are filled again when a trial ends.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import nsmallest
from math import ceil, inf
from typing import Any, Literal, get_args

from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId, Value
from shoal.policy.grouping import Groups, Member, at_random, cheapest, equal_length, nearest
from shoal.policy.idle import fits, idle_slots, idle_trials

ALONE = 2  # a trial under which so many slots died, or that so often had no room in a pack, runs alone
KINDS = 64  # of trials that gain by each other: so many are told apart
NEAR, JOINING = 4, 16  # nearest in configuration: kinds that a trial is compared with, and trials that may join a pack
GAIN = 0.02  # a trial is packed with another if that saves so much of their time
Grouping = Literal["contiguous", "nearest", "random", "batch_size"]


@dataclass(frozen=True, slots=True)
class Pack:
    """A free slot takes a pack of waiting trials that fit its memory together, the one that takes longest first.

    `grouping`: "contiguous" is the cheapest by the profile, and packs only what gains by it; "nearest" (kNN),
    "random" and "batch_size" are the paper's, and fill the memory. `most`: trials in a pack. `same`: names in the
    configuration that make the model's graph; trials that differ in one are not packed. `batch`: the name of the
    batch size. `refill`: a trial that waits joins a running pack that has room, where the profile says that all
    together then go faster. `fuse`: lanes of one graph may train in one step (equal to rounding).
    Packs are no larger than it takes to give every idle slot one. A trial that brought two slots down runs alone.

    Raises:
        ValueError: no such grouping, or packs of less than one.
    """

    grouping: Grouping = "contiguous"
    most: int = 32
    same: Sequence[str] = ()
    batch: str = "batch_size"
    refill: bool = True
    fuse: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.grouping not in get_args(Grouping):
            raise ValueError(f"a pack's grouping is one of {', '.join(get_args(Grouping))}; got {self.grouping!r}")
        if self.most < 1:
            raise ValueError(f"a pack has at least one trial; got most={self.most!r}")
        object.__setattr__(self, "same", tuple(self.same))

    def start(self) -> str:
        return ""

    def decide(self, view: View, memory: str) -> tuple[Plan, str]:
        waits = idle_trials(view)
        packs = _Packs(view, self)
        if waits and not idle_slots(view):
            seen = packs.digest(waits) if self.refill else memory
            if seen == memory:  # nothing changed since nobody was found to join
                return view.plan, memory
            memory = seen
        if not waits:
            return view.plan, memory
        gangs = set(view.plan.gangs)
        for slot, trials in packs.on_idle(waits):
            gangs.add(_gang(view, slot, trials, self.fuse))
            waits = [t for t in waits if t not in trials]
        if self.refill:
            for before, after in packs.joined(sorted(gangs, key=lambda g: (g.since, g.trials)), waits):
                gangs.remove(before)
                gangs.add(after)
        return (Plan(frozenset(gangs)) if gangs != view.plan.gangs else view.plan), memory


def _gang(view: View, slot: Slot, trials: Sequence[TrialId], fuse: bool) -> Gang:
    return Gang(tuple(Lane(t, (slot.id,)) for t in trials), fused=fuse and len(trials) > 1, since=view.turn)


@dataclass(slots=True)
class _Packs:
    """One decision: what is known of the trials, looked up once."""

    view: View
    rule: Pack
    spans: dict[object, Seconds] = field(default_factory=dict)
    kinds: dict[TrialId, int] = field(default_factory=dict)
    speeds: dict[object, float] = field(default_factory=dict)

    def digest(self, waits: Sequence[TrialId]) -> str:
        """Of all that decides who joins a running pack, in a few letters: memories are journalled."""
        gangs = sorted(self.view.plan.gangs, key=lambda g: (g.since, g.trials))
        speeds = [(gang.trials, sorted(self.view.profile.rates(gang).values())) for gang in gangs]
        return blake2b(repr((len(waits), waits[-1:], speeds)).encode(), digest_size=6).hexdigest()

    def on_idle(self, waits: Sequence[TrialId]) -> Iterator[tuple[Slot, list[TrialId]]]:
        """A pack for each idle slot, longest first; slots with the most memory choose first."""
        slots = sorted(idle_slots(self.view), key=lambda s: (-s.memory, s.id))
        left = list(waits)
        for number, slot in enumerate(slots):
            here = [t for t in left if fits(self.view, t, slot)]
            if not here:
                continue
            most = min(self.rule.most, ceil(len(here) / (len(slots) - number)))
            packs = [pack for alike in self._alike(here) for pack in self._groups(alike, slot, most)]
            chosen = self._fair(slot, packs, len(slots) - number)
            while sum(map(self._memory, chosen)) > slot.memory:  # by a rounding error
                chosen.pop()
            left = [t for t in left if t not in chosen]
            yield slot, chosen

    def joined(self, gangs: Sequence[Gang], waits: Sequence[TrialId]) -> Iterator[tuple[Gang, Gang]]:
        """Packs with those that may join them, the most work left first."""
        view, left = self.view, sorted(waits, key=lambda t: -self._left(t))
        packs = {gang: gang.trials for gang in gangs if len(gang.slots) == 1}
        for gang in gangs:
            slots = gang.slots
            if gang.quota is not None or gang.shards or len(slots) != 1:
                continue
            slot, lanes = view.slots[next(iter(slots))], list(gang.trials)
            alike = [t for t in left if self._graph(t) == self._graph(lanes[0]) and view.trials[t].widths[0] == 1]
            most = self._share(lanes, packs.values(), alike)
            near = set(nsmallest(JOINING, alike, key=lambda t: self._apart(lanes[0], t)))
            for trial in [t for t in alike if t in near]:
                if len(lanes) < most and self._gains(slot, gang, lanes, [trial]):
                    lanes.append(trial)
            crowd = [t for t in alike if t in near and t not in lanes and self._form(t) == self._form(lanes[0]) is not None]
            crowd = crowd[: max(0, most - len(lanes))]
            if len(crowd) > 1 and self._gains(slot, gang, lanes, crowd):
                lanes += crowd
            left = [t for t in left if t not in lanes]
            if len(lanes) > len(gang.lanes):
                packs[gang] = tuple(lanes)
                yield gang, _gang(view, slot, lanes, self.rule.fuse)

    def _share(self, lanes: Sequence[TrialId], packs: Iterable[Sequence[TrialId]], waits: Sequence[TrialId]) -> int:
        """How many this pack may have in all, that no slot with others like them stands idle for it."""
        peers = [pack for pack in packs if self._form(pack[0]) == self._form(lanes[0])]
        return min(self.rule.most, ceil((sum(map(len, peers)) + len(waits)) / max(1, len(peers))))

    def _alike(self, trials: Sequence[TrialId]) -> list[list[TrialId]]:
        """Trials that may be packed: equal in what is named, and, of the cheapest packs, such that each gains with the first.

        Of one form also where two gain nothing, but as many as there may be do.
        """
        kinds: dict[tuple[Value, ...], list[list[TrialId]]] = {}
        crowds = self._crowds(trials)
        for t in trials:
            same = kinds.setdefault(self._graph(t), [])
            of_form = [kind for kind in same if self._form(kind[0]) == self._form(t)] if self._form(t) in crowds else []
            if self.rule.grouping != "contiguous" or of_form:
                some = next(iter(of_form or same), None)
            else:
                near = nsmallest(NEAR, same[:KINDS], key=lambda kind: self._apart(kind[0], t))
                some = next((kind for kind in near if self._saves(kind[0], t)), None)
            if some is None:
                same.append([t])
            else:
                some.append(t)
        found = [kind for same in kinds.values() for kind in same]
        self.kinds = {trial: number for number, kind in enumerate(found) for trial in kind}
        return found

    def _crowds(self, trials: Sequence[TrialId]) -> set[Hashable]:
        """Forms of which as many as may be packed go faster together."""
        slot = next(iter(self.view.slots.values()))
        forms: dict[Hashable, list[TrialId]] = {}
        for t in trials if self.rule.fuse and self.rule.grouping == "contiguous" else ():
            forms.setdefault(self._form(t), []).append(t)
        return {
            form
            for form, some in forms.items()
            if form is not None and len(some) > 2 and self._speed(slot, some[: self.rule.most]) > 1 + GAIN
        }

    def _apart(self, one: TrialId, other: TrialId) -> int:
        """In how many values of their configurations they differ: what is much alike gains most by company."""
        mine, others = self.view.trials[one].config, self.view.trials[other].config
        return sum(1 for name, value in others.items() if mine.get(name) != value)

    def _saves(self, one: TrialId, other: TrialId) -> bool:
        slot = next(iter(self.view.slots.values()))
        return self._speed(slot, (one, other)) > 1 + GAIN

    def _graph(self, trial: TrialId) -> tuple[Value, ...]:
        """Equal for trials that may share a slot."""
        if self.view.deaths.get(trial, 0) >= ALONE:
            return (trial,)
        return tuple(self.view.trials[trial].config.get(name) for name in self.rule.same)

    def _groups(self, trials: Sequence[TrialId], slot: Slot, most: int) -> list[list[TrialId]]:
        rule, seed = self.rule, (self.rule.seed, self.view.turn)
        groups: Groups
        if rule.grouping == "contiguous":
            members = [Member(self._memory(t), self._steps(t)) for t in trials]
            groups = cheapest(members, slot.memory, most, lambda g: self._span(slot, [trials[i] for i in sorted(g)]))
        elif rule.grouping == "nearest":
            groups = nearest(self._placed(trials), slot.memory, most, seed)
        elif rule.grouping == "random":
            groups = at_random([Member(self._memory(t)) for t in trials], slot.memory, most, seed)
        else:
            groups = equal_length([Member(self._memory(t), self._batch(t)) for t in trials], slot.memory, most)
        return [[trials[i] for i in group] for group in groups]

    def _placed(self, trials: Sequence[TrialId]) -> list[Member]:
        """Each with its place: the index of each number among all values that the study has of it; texts as they are."""
        names = sorted({name for t in trials for name in self.view.trials[t].config})
        seen = {n: sorted({_number(t.config[n]) for t in self.view.known.values() if n in t.config} - {None}) for n in names}
        index = {n: {v: i for i, v in enumerate(values)} for n, values in seen.items()}
        configs = [self.view.trials[t].config for t in trials]
        places = [tuple(index[n].get(_number(c.get(n)), repr(c.get(n))) for n in names) for c in configs]
        return [Member(self._memory(t), place=place) for t, place in zip(trials, places, strict=True)]

    def _gains(self, slot: Slot, runs: Gang, lanes: Sequence[TrialId], joining: Sequence[TrialId]) -> bool:
        """They fit, and until the first is through the pack does more with them, what it costs to take them in (eq. 4) included.

        Each sample weighs what it takes the trial alone.
        """
        if slot.memory < inf and sum(map(self._memory, (*lanes, *joining))) > slot.memory:
            return False
        fewer, more = (_gang(self.view, slot, some, self.rule.fuse) for some in (lanes, (*lanes, *joining)))
        rates, before = self.view.profile.rates(more), self._speed(slot, lanes) * (1 + 1e-6)
        after = self._sum(rates)
        if after <= before:
            return False
        together = min(self._left(t) / rate for t, rate in rates.items())
        others = self.view.profile.switch(runs, fewer) if len(lanes) > len(runs.lanes) else 0.0  # of those that join already
        lost = self.view.profile.switch(runs, more) - others
        return after * together > before * (together + lost)

    def _speed(self, slot: Slot, trials: Sequence[TrialId]) -> float:
        key = (slot.id, tuple(trials))
        if key not in self.speeds:
            self.speeds[key] = self._sum(self.view.profile.rates(_gang(self.view, slot, trials, self.rule.fuse)))
        return self.speeds[key]

    def _sum(self, rates: Mapping[TrialId, float]) -> float:
        return sum(rate / self.view.profile.curve(t, 1)[0] for t, rate in rates.items())

    def _fair(self, slot: Slot, packs: Sequence[list[TrialId]], slots: int) -> list[TrialId]:
        """The pack that takes longest, without what keeps it at work when the other idle slots have none left."""
        chosen = max(packs, key=lambda pack: self._span(slot, pack))
        if slots > 1 and self.rule.grouping == "contiguous":
            share = sum(self._span(slot, pack) for pack in packs) / slots
            fair = max(share, *(self._span(slot, [t]) for t in chosen)) * (1 + GAIN)
            while len(chosen) > 1 and self._span(slot, chosen) > fair:
                chosen = [t for t in chosen if t != min(chosen, key=self._left)]
        return chosen

    def _span(self, slot: Slot, trials: Sequence[TrialId]) -> Seconds:
        """How long the pack takes, all of it: whoever is through leaves, and the others go on."""
        alone = [(self._left(t), self.view.profile.curve(t, 1)[0], self._memory(t)) for t in trials]
        key = (slot.id, self.kinds.get(trials[0]), tuple(sorted(alone)))  # trials of a kind that are alike in these count as one
        if key not in self.spans:
            profile, left, spent = self.view.profile, {t: self._left(t) for t in trials}, 0.0
            while left:
                gang = _gang(self.view, slot, list(left), self.rule.fuse)
                rates = profile.rates(gang)
                first = min(samples / rates[t] for t, samples in left.items())
                left = {t: rest for t, samples in left.items() if (rest := samples - first * rates[t]) > 1e-6 * samples}
                spent += first + (profile.switch(gang, _gang(self.view, slot, list(left), self.rule.fuse)) if left else 0.0)
            self.spans[key] = spent
        return self.spans[key]

    def _left(self, trial: TrialId) -> float:
        return self.view.trials[trial].samples - self.view.done[trial]

    def _form(self, trial: TrialId) -> Hashable:
        return self.view.profile.cost(trial).form

    def _memory(self, trial: TrialId) -> float:
        return self.view.profile.cost(trial).memory

    def _batch(self, trial: TrialId) -> float:
        batch = self.view.trials[trial].config.get(self.rule.batch, 1)
        return float(batch) if isinstance(batch, (int, float)) and batch > 0 else 1.0

    def _steps(self, trial: TrialId) -> float:
        return self._left(trial) / self._batch(trial)


def _number(value: Value) -> Any:
    """The value, if it has an order; else None."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
