"""What the slots of a node tell, which decides how many feeders it has."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import monotonic

from shoal.backend.ray.node.sharing.directory import ClusterDemand, Key, NodeDemand
from shoal.core.trial import Seconds
from shoal.profile.fleet import feeders_wanted

KNOWN = 5  # chunks to be prepared before their times count for anything
LAST = 3  # of them, whose median time counts if it is less: what is prepared once may be over
RECENT = 15  # chunks whose median time counts
FORGOTTEN = 60.0  # seconds after which a slot that asks for nothing does not count


@dataclass(eq=False, slots=True)
class SlotDemand:
    """What a slot told of itself last."""

    heard: float = 0.0  # when, by the monotonic clock
    trained: Seconds | None = None  # seconds of training per sample
    coming: Sequence[Key] = ()  # the chunks that it will ask for next


class FeederDemand:
    """What the slots of a node ask for, and how fast it is prepared."""

    def __init__(self) -> None:
        # Seconds per sample prepared, lately, with the feeders that there are now.
        self._times: deque[Seconds] = deque(maxlen=RECENT)
        self._slots: dict[str, SlotDemand] = {}
        self._asked: deque[Key] = deque(maxlen=256)  # lately, one for each time
        # What the slots of all nodes need, if they share chunks.
        self.together: ClusterDemand | None = None

    def hear(self, slot: str, keys: Sequence[Key], trained: Seconds | None) -> None:
        """The slot asks for the first of these chunks, and will ask for the others."""
        demand = self._slots.setdefault(slot, SlotDemand())
        demand.heard = monotonic()
        demand.trained = trained or demand.trained
        demand.coming = keys[1:]
        self._asked.append(keys[0])

    def prepared(self, seconds: Seconds) -> None:
        """A chunk took so long per sample."""
        self._times.append(seconds)

    def forget(self) -> None:
        """There are other feeders now: what was measured before does not count."""
        self._times.clear()

    def coming(self) -> Iterator[Key]:
        """The chunks that slots will ask for next."""
        for slot in self._live():
            yield from slot.coming

    @property
    def settled(self) -> bool:
        """Whether so many chunks were prepared that more would not change what is needed."""
        return len(self._times) == RECENT

    def feeders(self, cpus: int, threads: int) -> int:
        """The feeders that the slots need on a node of so many CPUs; 0 if not known yet.

        `threads`: CPUs that each slot takes itself.
        """
        own = self.own()
        if len(self._times) < KNOWN or own is None:
            return 0

        most = max(1, cpus - len(own.train) * threads)
        times = list(self._times)
        prepare = max(min(median(times), median(times[-LAST:])), 1e-9)
        all_in_all = self.together or ClusterDemand.of([own])
        wanted = feeders_wanted(
            prepare,
            all_in_all.train,
            all_in_all.different,
            most * all_in_all.nodes,
        )
        return min(most, -(-wanted // all_in_all.nodes))

    def own(self) -> NodeDemand | None:
        """What the node's slots need; None if that is not known yet."""
        slots = self._live()
        train = [slot.trained for slot in slots if slot.trained]
        if len(train) < len(slots) or len(self._asked) < 2 * len(slots):
            return None
        return NodeDemand(train, tuple(self._asked))

    def _live(self) -> list[SlotDemand]:
        """The slots that asked for something lately."""
        since = monotonic() - FORGOTTEN
        return [slot for slot in self._slots.values() if slot.heard > since]
