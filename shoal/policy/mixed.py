"""Packs of small trials on some slots and wide lanes on the others, at one moment.

Ours: Pack (Liu et al. 2020) and water-fill (after FLEET, Guan et al. 2020) in one plan. Which
trials are wide, and how many slots packs have, is what ends the last trial first by the profile.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from heapq import heapreplace
from math import frexp, inf
from typing import Any, NamedTuple

from shoal.core.cluster import Slot, SlotId
from shoal.core.plan import Gang, Plan, prune
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.combine import part, rest
from shoal.policy.pack.company import parts_with_room
from shoal.policy.pack.figures import THROUGH, Figures
from shoal.policy.pack.pack import Pack
from shoal.policy.width.ask import Ask, all_widths, asks, ends_by_itself
from shoal.policy.width.waterfill import WaterFill, level
from shoal.profile.measure import measured

# Of more small trials an even part is looked at, so that a decision's time has a bound.
SOME = 256
FEW = 32  # of more wide trials it is not foreseen how they widen as others end
Trials = Sequence[TrialId]


class Sides(NamedTuple):
    """The trials that may be wide; and how many slots the others have, alone or in packs."""

    wide: tuple[TrialId, ...]
    packed: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """The longest trials are wide, as under `WaterFill`; the others are packed, as under `Pack`.

    Both sides end at about the same time. A wide trial stays wide until it has nothing left to
    train. A trial in a pack leaves the pack for that. Where packing gains nothing, the trials of
    that side have a slot each, one after the other.

    Args:
        gain: a trial becomes wide if all trials then end earlier by more than this part of the time
            left.
        most: trials in a pack, at most.
        fuse: trials of one graph may train in one step, equal to rounding.

    Raises:
        ValueError: gain below 0, or packs of less than one.
    """

    gain: float = 0.05
    most: int = 32
    fuse: bool = False

    def __post_init__(self) -> None:
        if not self.gain >= 0:
            raise ValueError(f"gain must be >= 0; got {self.gain!r}")
        self._pack()

    def _pack(self) -> Pack:
        """The policy of the trials that are not wide."""
        return Pack(most=self.most, fuse=self.fuse)

    def start(self) -> dict[str, Any]:
        return {"wide": [], "packed": 0, "seen": "", "pack": self._pack().start()}

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        units = frozenset(filter(ends_by_itself, view.plan.gangs))
        free = rest(view, Plan(units))
        split, digest = self._split(free, memory)
        packs, pack = self._packs(free, split, memory["pack"])
        gangs = units | packs | self._lanes(free, split, packs)
        after: Mapping[str, Any] = {
            "wide": [*split.wide],
            "packed": split.packed,
            "seen": digest,
            "pack": pack,
        }
        return Plan(gangs), after

    def _split(self, view: View, memory: Mapping[str, Any]) -> tuple[Sides, str]:
        """The sides now, and the digest they were chosen for; those of before if that is equal."""
        digest = _digest(view)
        wide = tuple(trial for trial in memory["wide"] if trial in view.trials)
        if digest == memory["seen"]:
            return Sides(wide, memory["packed"]), digest
        return _Choice(view, self).best(wide), digest

    def _packs(self, view: View, split: Sides, memory: str) -> tuple[frozenset[Gang], str]:
        """The gangs of the trials that are not wide, on as many slots as they have."""
        wide = frozenset(split.wide)
        small = [trial for trial in view.trials if trial not in wide]
        running = _going_on(view, trials=wide)
        # The slots of the trials that are not wide: where they run, and more up to so many, idle
        # ones first. No slot is taken that no trial waits for.
        at_work = {slot for gang in running for slot in gang.slots}
        in_gangs = {trial for gang in running for trial in gang.trials}
        waiting = sum(trial not in in_gangs for trial in small)
        others = [slot for slot in view.slots if slot not in at_work]
        others.sort(key=lambda slot: slot in view.busy)
        more = max(0, min(split.packed - len(at_work), waiting))
        slots = [*at_work, *others[:more]]
        plan, memory = self._pack().decide(part(view, slots, small, running), memory)
        return plan.gangs, memory

    def _lanes(self, view: View, split: Sides, packs: Collection[Gang]) -> frozenset[Gang]:
        """The gangs of the wide trials, on the slots that the packs leave."""
        taken = frozenset[SlotId]().union(*(gang.slots for gang in packs))
        slots = [slot for slot in view.slots if slot not in taken]
        wide = frozenset(split.wide)
        running = _going_on(view, frozenset(view.running) - wide, taken)
        plan, _ = WaterFill().decide(part(view, slots, split.wide, running), None)
        return plan.gangs


# -- views of a part


def _going_on(
    view: View, trials: frozenset[TrialId] = frozenset(), slots: frozenset[SlotId] = frozenset()
) -> list[Gang]:
    """The gangs without these trials and slots; new ones if they had some of them."""
    gangs: list[Gang] = []
    for gang in view.plan.gangs:
        left = prune(gang, trials, slots)
        if left == gang:
            gangs.append(gang)
        elif left is not None:
            gangs.append(replace(left, since=view.turn))
    return gangs


def _digest(view: View) -> str:
    """A few letters that change with trials, slots, and what is known of their speeds."""
    curve = view.profile.curve
    trials = [
        (name, trial.samples, frexp(curve(name, 1)[0])[1]) for name, trial in view.trials.items()
    ]
    figures = sorted(measured(view.profile) or {})
    facts = (trials, sorted(view.slots), figures)
    return blake2b(repr(facts).encode(), digest_size=6).hexdigest()


# -- the split


@dataclass(frozen=True)
class _Choice:
    """The splits that are considered at one decision, and when the last trial ends with each."""

    view: View
    rule: Mixed

    def best(self, before: Trials) -> Sides:
        """The best split: who must be wide is, and more are, if all then end earlier by `gain`."""
        if self._room < 2:
            return Sides((), self._room)
        must = [ask.trial for ask in self._asks.values() if ask.least > 1]
        wide = tuple(dict.fromkeys((*before, *must)))
        wide = tuple(trial for trial in wide if trial in self._asks)
        best = self._shared_out(wide)
        end = self._end(best)
        for more in self._candidates(wide):
            wider = self._shared_out((*wide, *more))
            wider_end = self._end(wider)
            if wider_end < end * (1.0 - self.rule.gain):
                best, end = wider, wider_end
        return best

    @cached_property
    def _asks(self) -> dict[TrialId, Ask]:
        """The ask of each trial that could run here."""
        return {ask.trial: ask for ask in asks(self.view, all_widths)}

    @property
    def _room(self) -> int:
        """The slots that there are."""
        return len(self.view.slots)

    @cached_property
    def _figures(self) -> Figures:
        return Figures(self.view, self.rule.fuse)

    def _candidates(self, wide: Trials) -> Iterator[Trials]:
        """Trials to make wide as well: the longest 1, 2, 3, 4, 6, 9 … of those that may be."""
        able = [ask for ask in self._asks.values() if ask.widths[-1] > 1]
        able = [ask for ask in able if ask.trial not in wide]
        able.sort(key=lambda ask: -ask.seconds())
        most = min(len(able), self._room - len(wide))
        for count in _counts(most):
            yield [ask.trial for ask in able[:count]]

    def _shared_out(self, wide: Trials) -> Sides:
        """The slots shared out so that both sides end early."""
        small = self._small(wide)
        if not wide:
            return Sides((), self._room)
        if not small:
            return Sides(tuple(wide), 0)
        fewest = min(self._asks[trial].least for trial in wide)
        if fewest >= self._room:  # one side after the other
            runs = any(trial in self.view.running for trial in wide)
            return Sides(tuple(wide), 0 if runs else self._room)
        most = self._room - fewest
        counts = {*_counts(most), *(most + 1 - count for count in _counts(most))}
        splits = [Sides(tuple(wide), count) for count in sorted(counts)]
        return min(splits, key=self._end)

    def _small(self, wide: Trials) -> Trials:
        """The trials that are not wide."""
        chosen = set(wide)
        return [trial for trial in self._asks if trial not in chosen]

    # -- when the last trial ends

    def _end(self, split: Sides) -> Seconds:
        """Seconds until all trials end; the wide ones get the slots of packs that are over."""
        small = self._small(split.wide)
        packed = split.packed
        if split.wide and small and packed in (0, self._room):
            first = self._packs(small, self._room)
            return first + self._lanes(split.wide, self._room, inf)
        over = self._packs(small, packed)
        return max(over, self._lanes(split.wide, self._room - packed, over))

    def _lanes(self, wide: Trials, slots: int, until: Seconds) -> Seconds:
        """Seconds until the wide trials end: on so many slots at first, later on all."""
        wanting = [self._asks[trial] for trial in wide]
        fewest = sum(ask.least for ask in wanting)
        if fewest > slots:
            work = sum(ask.seconds() * ask.least for ask in wanting)
            return max(work / max(slots, 1), *(ask.seconds() for ask in wanting))
        if len(wanting) > FEW:
            widths = level(wanting, slots)
            return max(ask.seconds_at(widths[ask.trial]) for ask in wanting)
        now = 0.0
        while wanting:
            widths = level(wanting, slots)
            step = min(ask.seconds_at(widths[ask.trial]) for ask in wanting)
            if slots < self._room and now + step > until:
                step = until - now
                slots = self._room
            now += step
            later = [_after(ask, step, widths[ask.trial]) for ask in wanting]
            wanting = [ask for ask in later if ask is not None]
        return now

    def _packs(self, small: Trials, slots: int) -> Seconds:
        """Seconds until the other trials end on so many slots, in packs where that is faster."""
        if not small:
            return 0.0
        if not slots:
            return inf
        every = -(-len(small) // SOME)
        alone = self._figures.alone
        loads = [(0.0, number) for number in range(slots)]
        piles: list[list[TrialId]] = [[] for _ in loads]
        for trial in sorted(small, key=alone, reverse=True)[::every]:
            load, number = loads[0]
            heapreplace(loads, (load + alone(trial), number))
            piles[number].append(trial)
        return every * max(map(self._pile, piles))

    def _pile(self, trials: Trials) -> Seconds:
        """Seconds that these trials take on one slot: one pack after the other."""
        most = self.rule.most
        total = 0.0
        for start in range(0, len(trials), most):
            together = trials[start : start + most]
            for pack in parts_with_room(self.view, together, self._smallest.memory):
                total += self._seconds(pack)
        return total

    @cached_property
    def _smallest(self) -> Slot:
        """The slot with the least memory."""
        return min(self.view.slots.values(), key=lambda slot: slot.memory)

    def _seconds(self, pack: Trials) -> Seconds:
        """Seconds that the trials take as a pack, or one after the other if that is faster."""
        in_turn = sum(map(self._figures.alone, pack))
        if len(pack) == 1:
            return in_turn
        return min(in_turn, self._figures.span(self._smallest, pack))


def _after(ask: Ask, seconds: Seconds, width: int) -> Ask | None:
    """The trial's ask after so many seconds at this width; None if it is through."""
    left = ask.left - seconds * ask.rates[ask.widths.index(width)]
    if left <= THROUGH * ask.left:
        return None
    return replace(ask, left=left)


def _counts(most: int) -> Iterator[int]:
    """The counts to try: 1, 2, 3, 4, 6, 9, 13 … and `most`."""
    count = 1
    while count < most:
        yield count
        count = max(count + 1, count * 3 // 2)
    if most:
        yield most
