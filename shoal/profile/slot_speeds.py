"""How fast slots are against each other, from what was clocked on them. Ours.

The logarithm of a rate is taken to be the sum of two terms, one of what trains and one of the slot.
Both are least-squares fits over all places where something was clocked. So a trial's rate on a
slot where it never ran follows from its rate elsewhere, if both are linked: by trials that ran on
both slots, or by a chain of such trials and slots.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import exp, log
from typing import Any

from shoal.core.cluster import SlotId
from shoal.core.profile import Place

SWEEPS = 200  # of the fit, at most
EXACT = 1e-5  # a sweep that changes less is the last
Name = tuple[str, str]  # "kind" or "slot", and which


def are_comparable(speeds: Mapping[Place, float]) -> bool:
    """Whether the speeds compare anything: a slot with another, or a pack with its trials."""
    slots = set()
    for kind, slot in speeds:
        slots.add(slot)
        if len(slots) > 1 or "+" in kind:
            return True
    return False


class SlotSpeeds:
    """The speeds of slots.

    `speeds`: samples/s of each kind of gang on each slot, as clocked. `rated`: the slot on which
    the `rate` of a signature was measured. A slot of speed 1 is as fast as the geometric mean of
    those clocked.
    """

    def __init__(self, speeds: Mapping[Place, float], rated: Mapping[str, SlotId]) -> None:
        self._logs = {place: log(rate) for place, rate in speeds.items()}
        self._rated = rated
        self.have_packs = any("+" in kind for kind, _ in speeds)

    def __bool__(self) -> bool:
        """Whether more than one slot was clocked, so that there is something to compare."""
        return len(self._slots) > 1

    def of(self, slot: SlotId) -> float:
        """The slot's speed; 1 if nothing was clocked there."""
        return exp(self._slots.get(slot, 0.0))

    def of_kind(self, kind: str, slot: SlotId) -> float:
        """The speed of gangs of this kind on the slot, against a slot of speed 1."""
        clocked = self._logs.get((kind, slot))
        if clocked is None:
            return self.of(slot)
        return exp(clocked - self._kinds[kind])

    def of_pack(self, kind: str, slot: SlotId) -> float | None:
        """Samples/s of all lanes of such a pack on the slot; None: no such pack was clocked."""
        clocked = self._logs.get((kind, slot))
        if clocked is not None:
            return exp(clocked)
        if kind in self._kinds:
            return exp(self._kinds[kind]) * self.of(slot)
        return None

    def where_rated(self, signature: str) -> float:
        """The speed of this signature's trials on the slot where their rate was measured."""
        slot = self._rated.get(signature)
        if slot is None:
            return 1.0
        return self.of_kind(signature, slot)

    @cached_property
    def _fit(self) -> tuple[dict[str, float], dict[SlotId, float]]:
        """The logarithms of what each kind does on a slot of speed 1, and of the slots' speeds."""
        slots = dict.fromkeys((slot for _, slot in self._logs), 0.0)
        kinds: dict[str, float] = {}
        for _ in range(SWEEPS):
            before = slots
            kinds = _means((k, rate - slots[s]) for (k, s), rate in self._logs.items())
            slots = _means((s, rate - kinds[k]) for (k, s), rate in self._logs.items())
            middle = sum(slots.values()) / max(1, len(slots))
            slots = {slot: value - middle for slot, value in slots.items()}
            if all(abs(slots[slot] - before[slot]) < EXACT for slot in slots):
                break
        return kinds, slots

    @property
    def _kinds(self) -> dict[str, float]:
        return self._fit[0]

    @property
    def _slots(self) -> dict[SlotId, float]:
        return self._fit[1]

    def links(self) -> "Links":
        """Which kinds and slots can be compared; the caller may join more."""
        return Links(self._logs)


class Links:
    """Groups of kinds of gangs and slots that hang together by places."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._above: dict[Name, Name] = {}
        for kind, slot in places:
            self.join(kind, slot)

    def join(self, kind: str, slot: SlotId) -> None:
        """Note that this kind was clocked on this slot."""
        self._above[self._top(("kind", kind))] = self._top(("slot", slot))

    def knows(self, kind: str) -> bool:
        """Whether this kind was clocked anywhere."""
        return ("kind", kind) in self._above

    def apart(self, kind: str, slot: SlotId) -> bool:
        """Whether nothing links this kind to this slot."""
        return self._top(("kind", kind)) != self._top(("slot", slot))

    def hang_together(self, kinds: Iterable[str], slots: Iterable[SlotId]) -> bool:
        """Whether all these kinds and slots are in one group."""
        names: list[Name] = [("kind", kind) for kind in kinds]
        names += [("slot", slot) for slot in slots]
        return len({self._top(name) for name in names}) <= 1

    def _top(self, name: Name) -> Name:
        """The name that stands for the group of this name."""
        while name in self._above and self._above[name] != name:
            name = self._above[name]
        return name


def _means(values: Iterable[tuple[str, float]]) -> dict[Any, float]:
    """The mean of the values of each key."""
    gathered: dict[str, list[float]] = defaultdict(list)
    for key, value in values:
        gathered[key].append(value)
    return {key: sum(group) / len(group) for key, group in gathered.items()}
