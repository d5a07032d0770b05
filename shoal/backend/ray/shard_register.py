"""Which slots hold which shards, of data that every node has or that stays at its nodes."""

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from shoal.backend.ray.slot_process import Events, Reading, SlotProcess
from shoal.core.check import PlanError
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Joined
from shoal.core.plan import Gang
from shoal.train.data.catalogue import Catalogue

ShardsAt = dict[SlotId, frozenset[ShardId]]  # the shards of each slot


class ShardRegister:
    """Which slots hold the shards: each of them `copies`, if there are so many."""

    def __init__(self, shards: tuple[ShardId, ...], copies: int) -> None:
        self._shards = shards
        self._copies = copies
        # The nodes, by name, that cannot read some shards.
        self._barred: set[tuple[str, ShardId]] = set()

    def bar(self, process: SlotProcess, shard: ShardId) -> None:
        """Count the process's node as without the shard in this run, as it cannot be read there."""
        self._barred.add((process.node, shard))
        process.slot = replace(process.ready_slot, shards=process.ready_slot.shards - {shard})

    def missing(self, ready: Sequence[SlotProcess]) -> list[str]:
        """The shards that only other nodes have: none, each node has all of the data."""
        return []

    def suits(self, names: Sequence[str]) -> bool:
        """Whether slots are of use at the node with these names: everywhere."""
        return True

    def check(self, gang: Gang | None, processes: Mapping[SlotId, SlotProcess]) -> None:
        """Check that the slots can read what the gang reads: each has all of the data."""

    def register(self, ready: Sequence[SlotProcess]) -> tuple[Slot, ...]:
        """Give the first slots their shards."""
        names = [process.id for process in ready]
        return self._assign(ready, spread(self._shards, names, self._copies))

    def update(self, ready: Sequence[SlotProcess], fresh: Container[SlotProcess]) -> Events:
        """Put every shard at enough slots, evenly; the event of what changed and of `fresh` slots.

        No shard is taken from where it is being read.
        """
        shards_at = {process.id: process.ready_slot.shards for process in ready}
        busy = {pair for process in ready for pair in process.reading()}
        placed = mend(self._shards, shards_at, self._copies, busy, self._barred_at(ready))
        changed: list[SlotProcess] = []
        for process in ready:
            slot = process.id
            if process in fresh or placed[slot] != shards_at[slot]:
                changed.append(process)

        if not changed:
            return []
        return [Joined(self._assign(changed, placed))]

    def _barred_at(self, ready: Iterable[SlotProcess]) -> set[Reading]:
        """The slots with the shards that they cannot read."""
        barred: set[Reading] = set()
        for process in ready:
            for node, shard in self._barred:
                if process.node == node:
                    barred.add((process.id, shard))
        return barred

    def _assign(self, processes: Iterable[SlotProcess], placed: ShardsAt) -> tuple[Slot, ...]:
        """The slots, with their shards."""
        slots: list[Slot] = []
        for process in processes:
            process.slot = replace(process.ready_slot, shards=placed[process.id])
            slots.append(process.slot)
        return tuple(slots)


def spread(shards: Sequence[ShardId], slots: Sequence[SlotId], copies: int) -> ShardsAt:
    """Shard i at slots i, i + 1, … modulo their number: the first placing.

    `copies`: slots that hold each shard.
    """
    shards_at: dict[SlotId, set[ShardId]] = {slot: set() for slot in slots}
    for i, shard in enumerate(shards):
        for k in range(min(copies, len(slots))):
            shards_at[slots[(i + k) % len(slots)]].add(shard)
    return _frozen(shards_at)


def mend(
    shards: Sequence[ShardId],
    shards_at: ShardsAt,
    copies: int,
    busy: Set[Reading],
    barred: Set[Reading] = frozenset(),
) -> ShardsAt:
    """Where the shards go after slots came or went, or could not read a shard.

    Every shard is at `copies` slots again, if there are so many. Then the shards are spread as
    evenly as can be without moving those that are `busy`, being read. `barred`: where shards cannot
    be.
    """
    new = {slot: set(held) for slot, held in shards_at.items()}
    for shard in shards:
        _supply(shard, new, copies, barred)

    move = _move(new, busy, barred)
    while move is not None:
        source, target, shard = move
        new[source].discard(shard)
        new[target].add(shard)
        move = _move(new, busy, barred)

    return _frozen(new)


def _supply(
    shard: ShardId, shards_at: dict[SlotId, set[ShardId]], copies: int, barred: Set[Reading]
) -> None:
    """Have the shard at so many slots, each time at the one that holds fewest."""
    copies_there = sum(shard in held for held in shards_at.values())
    able = [slot for slot in shards_at if (slot, shard) not in barred]
    for _ in range(min(copies, len(able)) - copies_there):
        others = [slot for slot in able if shard not in shards_at[slot]]
        emptiest = min(others, key=lambda slot: len(shards_at[slot]))
        shards_at[emptiest].add(shard)


def _move(
    shards_at: Mapping[SlotId, Set[ShardId]], busy: Set[Reading], barred: Set[Reading]
) -> tuple[SlotId, SlotId, ShardId] | None:
    """From which slot to which one a shard should move; None if none should."""
    if not shards_at:
        return None

    target = min(shards_at, key=lambda slot: len(shards_at[slot]))
    for source in sorted(shards_at, key=lambda slot: -len(shards_at[slot])):
        if len(shards_at[source]) - len(shards_at[target]) < 2:
            return None
        free = _free(source, shards_at[source] - shards_at[target], busy)
        free = _free(target, free, barred)
        if free:
            return source, target, max(free)

    return None


def _free(slot: SlotId, shards: Iterable[ShardId], busy: Set[Reading]) -> list[ShardId]:
    """Those of the shards that are not paired with the slot in `busy`."""
    return [shard for shard in shards if (slot, shard) not in busy]


def _frozen(shards_at: Mapping[SlotId, Set[ShardId]]) -> ShardsAt:
    return {slot: frozenset(shards) for slot, shards in shards_at.items()}


# -- data that stays at its nodes ---------------------------------------------------------------


class NodeShards:
    """The shards of each slot are those that its process found at its node when it opened.

    So a slot's shards follow from the catalogue and the slot's node, also of a node that comes
    later, or comes back. `whole`: only nodes that hold all shards have slots.
    """

    def __init__(self, catalogue: Catalogue, whole: bool) -> None:
        self._catalogue = catalogue
        self._whole = whole

    def suits(self, names: Sequence[str]) -> bool:
        """Whether slots are of use at the node with these names."""
        if self._whole:
            return self._catalogue.is_whole_at(names)
        return bool(self._catalogue.shards_at(names))

    def register(self, ready: Sequence[SlotProcess]) -> tuple[Slot, ...]:
        """The first slots, with their shards."""
        return self._assign(ready)

    def update(self, ready: Sequence[SlotProcess], fresh: Container[SlotProcess]) -> Events:
        """The event of `fresh` slots. No shard goes elsewhere when slots come or go."""
        joined = [process for process in ready if process in fresh]
        if not joined:
            return []
        return [Joined(self._assign(joined))]

    def missing(self, ready: Sequence[SlotProcess]) -> list[str]:
        """The training shards that none of these holds, with the nodes at which they lie."""
        held = frozenset[ShardId]().union(*(process.holds for process in ready))
        return [
            f"{shard}, which lies at {', '.join(sorted(places))}"
            for shard, places in sorted(self._catalogue.train.items())
            if shard not in held
        ]

    def bar(self, process: SlotProcess, shard: ShardId) -> None:
        """Count the process as without the shard, as it cannot be read there."""
        process.holds -= {shard}
        process.slot = replace(process.ready_slot, shards=process.ready_slot.shards - {shard})

    def check(self, gang: Gang | None, processes: Mapping[SlotId, SlotProcess]) -> None:
        """Check that each slot of the gang holds all that the gang reads.

        Raises:
            PlanError: one does not.
        """
        if gang is None:
            return
        everything = frozenset(gang.shards) or frozenset(self._catalogue.train)
        reads = dict.fromkeys(gang.slots, everything)
        if gang.joint:  # each slot reads its own shard
            lane = gang.lanes[0]
            reads = {
                slot: frozenset((shard,))
                for slot, shard in zip(lane.slots, gang.shards, strict=True)
            }
        for slot, wanted in reads.items():
            process = processes.get(slot)
            if process is None or wanted <= process.ready_slot.shards:
                continue
            slot_node = process.ready_slot.node
            lacks = sorted(wanted - process.ready_slot.shards)
            raise PlanError(
                f"the group {', '.join(gang.trials)} on {slot} is to read {', '.join(lacks[:5])}, "
                f"which {slot_node} does not hold: data that stays at its nodes needs a "
                'policy that hops, such as policy="hop"'
            )

    def _assign(self, processes: Iterable[SlotProcess]) -> tuple[Slot, ...]:
        slots: list[Slot] = []
        for process in processes:
            process.slot = replace(process.ready_slot, shards=process.holds)
            slots.append(process.slot)
        return tuple(slots)
