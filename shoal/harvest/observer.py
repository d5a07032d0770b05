"""Which nodes to take and which pilots to end, decided from one look at the batch system.

As in BFTrainer (Liu et al., 2021, section 2.1), nodes that are idle only between two jobs are left
alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.trial import Seconds
from shoal.harvest.scheduler import Pilot, Sighting, Waiting

# What a pilot's end and a batch system's clock may take: a pilot ends so long before its window.
MARGIN: Seconds = 10.0
# Before the second look at nodes that were just seen idle, if that is less than a tick. Between two
# jobs a node is idle for less.
SECOND: Seconds = 2.0


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered from one look to the next.

    `seen`: in how many looks in a row each node was idle. `since`: when each pilot was first seen
    waiting. `shorter`: minutes that the next pilot of a node may have, after one never began.
    """

    seen: Mapping[str, int] = field(default_factory=dict)
    since: Mapping[str, Seconds] = field(default_factory=dict)
    shorter: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PilotOrders:
    """What is to be done: nodes to submit a pilot for, with its minutes, and pilots to cancel.

    `again`: nodes are idle that were not so at the look before, and will be taken if they stay.
    """

    submit: tuple[tuple[str, int], ...] = ()
    cancel: tuple[str, ...] = ()
    again: bool = False


@dataclass(frozen=True, slots=True)
class Observer:
    """Decides which pilots begin and end, from what is seen and remembered alone.

    `min_ticks`: looks in a row in which a node must be idle before it is taken. `most`: pilots at
    once; None: no limit. `longest`, `shortest`: minutes of a pilot. `yields`: the batch system does
    not preempt pilots, so that they are cancelled here once another job waits for their nodes.
    `patience`: seconds that a pilot may wait for its node.

    Raises:
        ValueError: one of them is out of its range.
    """

    min_ticks: int = 2
    most: int | None = None
    longest: int = 60
    shortest: int = 2
    yields: bool = False
    patience: Seconds = 90.0

    def __post_init__(self) -> None:
        if self.min_ticks < 1:
            raise ValueError(f"min_ticks must be >= 1; got {self.min_ticks}")
        if self.most is not None and self.most < 1:
            raise ValueError(f"most must be a number of nodes >= 1; got {self.most}")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                "a pilot's minutes must be whole numbers with 1 <= shortest <= longest; got "
                f"shortest {self.shortest}, longest {self.longest}"
            )

    def start(self) -> Memory:
        """The memory before the first look: nothing was seen yet."""
        return Memory()

    def decide(self, sighting: Sighting, memory: Memory) -> tuple[PilotOrders, Memory]:
        """What to do after this look, and what to remember until the next."""
        late, since = self._late(sighting, memory)
        shorter = self._shorter(sighting, memory, late)
        seen = {name: memory.seen.get(name, 0) + 1 for name in sighting.idle}
        gone = _unwanted(sighting, memory)
        giving_way, left_alone = self._giving_way(sighting, gone | late.keys())
        cancel = gone | late.keys() | giving_way
        usable = self._usable(sighting, shorter, left_alone)
        room = len(usable)
        if self.most is not None:
            room = max(0, self.most - len(sighting.pilots))
        submit = [(node, end) for node, end in usable if seen[node] >= self.min_ticks][:room]
        fresh = any(seen[node] == 1 < self.min_ticks for node, _ in usable)
        remembered = Memory(seen, since, shorter)
        again = fresh and len(submit) < room
        order = [pilot.id for pilot in sighting.pilots if pilot.id in cancel]
        return PilotOrders(tuple(submit), tuple(order), again), remembered

    # -- pilots that wait ----------------------------------------------------------------------

    def _late(
        self, sighting: Sighting, memory: Memory
    ) -> tuple[dict[str, Pilot], dict[str, Seconds]]:
        """The pilots that waited too long for an idle node, and since when each pilot waits."""
        waits = [pilot for pilot in sighting.pilots if not pilot.running]
        since = {pilot.id: memory.since.get(pilot.id, sighting.now) for pilot in waits}
        late = {
            pilot.id: pilot for pilot in waits if sighting.now - since[pilot.id] > self.patience
        }
        return late, since

    def _shorter(
        self, sighting: Sighting, memory: Memory, late: Mapping[str, Pilot]
    ) -> dict[str, int]:
        """Minutes that the next pilots may have, of nodes whose last pilot never began.

        A batch system keeps a pilot waiting that could run into something planned later, such as
        a maintenance that no look shows. So the next one for that node asks for half the time.
        """
        began = {pilot.node for pilot in sighting.pilots if pilot.running}
        shorter = {node: most for node, most in memory.shorter.items() if node not in began}
        for pilot in late.values():
            half = min(pilot.minutes, self.longest) // 2
            shorter[pilot.node] = max(self.shortest, int(half))
        return shorter

    # -- giving way ----------------------------------------------------------------------------

    def _giving_way(
        self, sighting: Sighting, gone: Iterable[str]
    ) -> tuple[set[str], frozenset[str]]:
        """The pilots that end for jobs that wait, and the idle nodes left alone for them."""
        if not self.yields:
            return set(), frozenset()
        free = set(sighting.idle)
        ours = {pilot.node: pilot.id for pilot in sighting.pilots if pilot.id not in gone}
        giving_way: set[str] = set()
        left_alone: set[str] = set()
        for job in sighting.waiting:
            nodes = _nodes_for(job, free - ours.keys(), ours)
            free -= nodes
            left_alone |= nodes
            giving_way |= {ours.pop(node) for node in nodes if node in ours}
        return giving_way, frozenset(left_alone)

    # -- taking --------------------------------------------------------------------------------

    def _usable(
        self, sighting: Sighting, shorter: Mapping[str, int], left_alone: frozenset[str]
    ) -> list[tuple[str, int]]:
        """The idle nodes that a pilot may have, with its minutes; the longest first."""
        taken = left_alone | {pilot.node for pilot in sighting.pilots}
        usable = []
        for node in sighting.idle.values():
            fits = min(node.longest, (node.window - MARGIN) / 60)
            minutes = int(min(fits, self.longest, shorter.get(node.name, self.longest)))
            if node.name not in taken and minutes >= self.shortest:
                usable.append((node.name, minutes))
        usable.sort(key=lambda pair: (-pair[1], pair[0]))
        return usable


def _unwanted(sighting: Sighting, memory: Memory) -> set[str]:
    """Pilots that a former harvest left behind, and those that wait and should not any more.

    One whose node is no longer idle would begin at some time when nobody looks. One that is longer
    than a window that shows by now would not begin at all.
    """
    unwanted = set()
    for pilot in sighting.pilots:
        # Seen to wait for the first time, it may be about to begin.
        waits = not pilot.running and pilot.id in memory.since
        node = sighting.idle.get(pilot.node)
        fits = node is not None and pilot.minutes * 60 <= node.window
        if pilot.stale or (waits and not fits):
            unwanted.add(pilot.id)
    return unwanted


def _nodes_for(job: Waiting, free: set[str], ours: Mapping[str, str]) -> set[str]:
    """The nodes at which a job could begin if pilots left: idle ones first, then ours.

    There are none if it could not begin even then: other jobs hold what it needs.
    """
    nodes: Sequence[str] = [*sorted(free), *sorted(ours)]
    if job.planned:
        nodes = [node for node in nodes if node in job.planned]
    if len(nodes) < job.nodes:
        return set()
    return set(nodes[: job.nodes])
