"""How packs come about and end: which trials stay together, and whom a new trial joins."""

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.pack.company import (
    Packs,
    Together,
    by_key,
    form,
    gains,
    have_room,
    must_be_alone,
    parts_with_room,
    smallest_memory,
    state,
)

Kind = tuple[Hashable, Hashable]  # a key and a form
Waiting = dict[Hashable, Packs]  # packs by key


# -- packs of before


def kept(view: View, packs: Packs, fuse: bool) -> Packs:
    """The packs as they were, without trials that ended.

    They are parted where trials differ by now or turned out not to gain. Packs that wait are
    parted, too, where they turned out to need more memory than a slot has.
    """
    found: Packs = []
    for pack in packs:
        for part in _parted(view, pack):
            found += _worth_keeping(view, part, fuse)
    return found


def _parted(view: View, pack: Together) -> Packs:
    """The trials of the pack that have work left, in parts that stay together."""
    alive = [trial for trial in pack if trial in view.trials]
    parts = by_key(alive, lambda trial: _company(view, trial))
    return list(parts.values())


def _company(view: View, trial: TrialId) -> tuple[Any, ...]:
    """Equal for trials of one pack that stay together: in one gang, or with the same visits."""
    gang = view.running.get(trial)
    if gang is not None:
        return gang.since, gang.trials[0]
    alone = (trial,) if must_be_alone(view, trial) else ()
    return (*state(view, trial), *alone)


def _if_it_gains(view: View, pack: Together, fuse: bool) -> Packs:
    """The pack; each of its trials alone where they gain nothing together."""
    if len(pack) == 1 or gains(view, pack, fuse):
        return [pack]
    return [[trial] for trial in pack]


def _worth_keeping(view: View, part: Together, fuse: bool) -> Packs:
    """The part as it is where it runs; else in packs that have room and gain by it."""
    if part[0] in view.running:
        return [part]
    packs: Packs = []
    for pack in parts_with_room(view, part, smallest_memory(view)):
        packs += _if_it_gains(view, pack, fuse)
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
        at = packs.index(largest)
        packs[at : at + 1] = [largest[:half], largest[half:]]
    return packs


# -- trials that are in none


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
        waiting = self._waiting(packs)
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
        """What must be equal for trials of one pack."""
        return self.order(trial), state(self.view, trial)

    def _waiting(self, packs: Packs) -> Waiting:
        """Packs that do not run, by key; the first trial of a pack stands for it."""
        waiting: Waiting = {}
        for pack in packs:
            if pack[0] not in self.view.running:
                waiting.setdefault(self._key(pack[0]), []).append(pack)
        return waiting

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
            mine = form(self.view, trial)
            for pack in open_:
                if form(self.view, pack[0]) == mine:
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
