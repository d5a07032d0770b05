"""Which slots and trials wait, in order, kept by change.

To go through all slots for the few idle ones, at each moment, would take time for all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.core.cluster import Slot, SlotId
from shoal.core.overlay import SPREAD, writable
from shoal.core.plan import Gang
from shoal.core.trial import Trial, TrialId

K = TypeVar("K")
Stand = tuple[int, K]  # a place, and who stands there


class Queue(Generic[K]):
    """Keys in a queue, of which some are away: whoever comes back stands where it stood.

    Like an `Overlay` it is kept as changes over a base that many versions share, so that a copy
    costs what changed since. Only `copy` is written to, before anybody else sees it.
    """

    __slots__ = ("_base", "_gone", "_more", "_next", "_places", "_shared")

    def __init__(self, keys: Iterable[K] = ()) -> None:
        # Where each key stands, also while it is away; and whether other queues use this table.
        self._places: MutableMapping[K, int] = {key: i for i, key in enumerate(keys)}
        self._shared = False
        self._next = len(self._places)
        # Those that are here: of the base all but `_gone`, and `_more`; both by place.
        self._base: list[Stand[K]] = [(i, key) for key, i in self._places.items()]
        self._gone: set[int] = set()
        self._more: list[Stand[K]] = []

    def copy(self) -> Queue[K]:
        """The same queue, to be written to."""
        new: Queue[K] = Queue.__new__(Queue)
        new._places, new._shared, new._next = self._places, True, self._next
        if (len(self._gone) + len(self._more)) ** 2 > SPREAD * len(self._base):
            new._base, new._gone, new._more = [*self._stands()], set(), []
        else:
            new._base = self._base
            new._gone, new._more = self._gone.copy(), self._more.copy()
        return new

    def __len__(self) -> int:
        return len(self._base) - len(self._gone) + len(self._more)

    def __iter__(self) -> Iterator[K]:
        return (key for _, key in self._stands())

    def _stands(self) -> Iterator[Stand[K]]:
        """Places and keys of those that are here, in order."""
        gone = self._gone
        begin = 0
        for more in (*self._more, None):
            end = len(self._base)
            if more is not None:
                end = bisect_left(self._base, more[0], begin, key=_place)
            for number in range(begin, end):
                if self._base[number][0] not in gone:
                    yield self._base[number]
            begin = end
            if more is not None:
                yield more

    # -- writing ---------------------------------------------------------------------------------

    def add(self, key: K) -> None:
        """The key stands at the end; one that has a place stays there."""
        if key not in self._places:
            self._own()[key] = self._next
            self._more.append((self._next, key))
            self._next += 1

    def remove(self, key: K) -> None:
        """The key loses its place, if it has one."""
        if key in self._places:
            self.leave(key)
            del self._own()[key]

    def _own(self) -> MutableMapping[K, int]:
        """The places, to be written to."""
        if self._shared:
            self._places = writable(self._places)
            self._shared = False
        return self._places

    def leave(self, key: K) -> None:
        """The key is away, if it has a place."""
        place = self._places.get(key)
        if place is None:
            return
        index = _index(self._more, place)
        if index is not None:
            del self._more[index]
        elif _index(self._base, place) is not None:
            self._gone.add(place)

    def come(self, key: K) -> None:
        """The key is back where it stood, if it has a place."""
        place = self._places.get(key)
        if place is None:
            return
        if place in self._gone:
            self._gone.remove(place)
        elif _index(self._base, place) is None and _index(self._more, place) is None:
            insort(self._more, (place, key), key=_place)


def _index(stands: list[Stand[K]], place: int) -> int | None:
    """The index of this place among those in order; None: it is not there."""
    index = bisect_left(stands, place, key=_place)
    return index if index < len(stands) and stands[index][0] == place else None


def _place(pair: tuple[int, object]) -> int:
    return pair[0]


@dataclass(frozen=True, slots=True)
class Queues:
    """The slots in no gang in the order in which they joined; the trials in none, the oldest first.

    It belongs to these four tables of a state: whoever has others must count anew.
    """

    slots: Mapping[SlotId, Slot]
    busy: Mapping[SlotId, Gang]
    trials: Mapping[TrialId, Trial]
    running: Mapping[TrialId, Gang]
    idle: Queue[SlotId]
    waiting: Queue[TrialId]

    @classmethod
    def of(
        cls,
        slots: Mapping[SlotId, Slot],
        busy: Mapping[SlotId, Gang],
        trials: Mapping[TrialId, Trial],
        running: Mapping[TrialId, Gang],
    ) -> Queues:
        """Who waits by these tables."""
        idle, waiting = Queue(slots), Queue(trials)
        for slot in busy:
            idle.leave(slot)
        for trial in running:
            waiting.leave(trial)
        return cls(slots, busy, trials, running, idle, waiting)
