"""Which slots hold the shards of placed data: those whose nodes do."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from shoal.backend.ray.slots import Events, SlotProcess
from shoal.core.check import PlanError
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Joined
from shoal.core.plan import Gang
from shoal.train.data.catalogue import Catalogue


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

    def first(self, ready: Sequence[SlotProcess]) -> tuple[Slot, ...]:
        """The first slots, with their shards."""
        return self._give(ready)

    def again(self, ready: Sequence[SlotProcess], fresh: Container[SlotProcess]) -> Events:
        """Tell of `fresh` slots. No shard goes elsewhere when slots come or go."""
        news = [process for process in ready if process in fresh]
        if not news:
            return []
        return [Joined(self._give(news))]

    def missing(self, ready: Sequence[SlotProcess]) -> list[str]:
        """The training shards that none of these holds, with the nodes at which they lie."""
        there = frozenset[ShardId]().union(*(process.holds for process in ready))
        return [
            f"{shard}, which lies at {', '.join(sorted(places))}"
            for shard, places in sorted(self._catalogue.train.items())
            if shard not in there
        ]

    def bar(self, process: SlotProcess, shard: ShardId) -> None:
        """The process cannot read the shard: it counts as without it."""
        process.holds -= {shard}
        process.slot = replace(process.known, shards=process.known.shards - {shard})

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
            if process is None or wanted <= process.known.shards:
                continue
            lacks = sorted(wanted - process.known.shards)
            raise PlanError(
                f"a gang of {', '.join(gang.trials)} on {slot} is to read {', '.join(lacks[:5])}, "
                f"which {process.known.node} does not hold: data that stays at its nodes needs a "
                'policy that hops, such as policy="hop"'
            )

    def _give(self, processes: Iterable[SlotProcess]) -> tuple[Slot, ...]:
        slots: list[Slot] = []
        for process in processes:
            process.slot = replace(process.known, shards=process.holds)
            slots.append(process.slot)
        return tuple(slots)
