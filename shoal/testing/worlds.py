"""Small studies drawn at random: shards, slots that come and go, trials of unlike speed and size."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from shoal.backend.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event, Joined, Left, Opened
from shoal.core.ports import Policy, Searcher
from shoal.core.state import State, fold
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import Stalled, run
from shoal.profile.table import Row, Table
from shoal.search.grid import Grid
from shoal.search.space import grid


@dataclass(frozen=True)
class World:
    """A study that can be finished: at the end of the script all slots are there, and each shard has a roomy holder."""

    shards: dict[ShardId, int]
    slots: tuple[Slot, ...]
    script: tuple[tuple[Seconds, Event], ...]
    table: Table
    searcher: Searcher[Any]
    seed: int
    checkpoint_every: Seconds

    def run(self, policy: Policy[Any], searcher: Searcher[Any] | None = None) -> tuple[list[Line], State, bool]:
        """Simulate it: the journal, the last state, and whether it stalled."""
        sim = Sim(
            self.table.of, self.slots, self.script, shards=self.shards, seed=self.seed, checkpoint_every=self.checkpoint_every
        )
        journal = Journal()
        opened = Opened(1, self.shards)
        journal.append(0.0, opened)
        state, stalled = fold(State(), [opened]), False
        try:
            state = run(searcher or self.searcher, policy, sim, self.table.believe, journal, state)
        except Stalled:
            state, stalled = replay(journal.lines), True
        return journal.lines, state, stalled


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to 5 slots, 4 shards with replicas, 7 trials, 6 losses; one slot may be too small for some trials."""
    shards = {ShardId(f"s{i:03d}"): draw(st.integers(1, 60)) for i in range(draw(st.integers(1, 4)))}
    slots = draw(_slots(tuple(shards)))
    count = draw(st.integers(1, 7))
    rows = tuple(
        Row(
            (draw(st.floats(1.0, 100.0)),),
            {"x": i},
            memory=draw(st.sampled_from([0.0, 1.0, 3.0])),
            build=draw(st.sampled_from([0.0, 0.5])),
            switch=draw(st.sampled_from([0.0, 0.25])),
            evaluate=draw(st.sampled_from([0.0, 0.125])),
        )
        for i in range(count)
    )
    most = draw(st.one_of(st.none(), st.integers(1, count)))
    searcher = Grid({"x": grid(range(count))}, draw(st.integers(1, 3)), most)
    script = draw(_churn(slots))
    return World(shards, slots, script, Table(rows), searcher, draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 1.0, 30.0])))


@st.composite
def _slots(draw: st.DrawFn, shards: tuple[ShardId, ...]) -> tuple[Slot, ...]:
    count = draw(st.integers(1, 5))
    held: list[set[ShardId]] = [set() for _ in range(count)]
    small = draw(st.booleans()) and count > 1
    for shard in shards:
        held[draw(st.integers(0, count - 1 - small))].add(shard)
        for other in draw(st.sets(st.integers(0, count - 1), max_size=2)):
            held[other].add(shard)
    memory = [2.0 if small and i == count - 1 else 16.0 for i in range(count)]
    return tuple(Slot(SlotId(f"slot{i}"), f"n{i // 2}", memory=memory[i], shards=frozenset(held[i])) for i in range(count))


@st.composite
def _churn(draw: st.DrawFn, slots: tuple[Slot, ...]) -> tuple[tuple[Seconds, Event], ...]:
    """Slots that go and come back, some of them dying, some holding one shard more than before."""
    script: list[tuple[Seconds, Event]] = []
    every = tuple(shard for slot in slots for shard in slot.shards)
    for slot in draw(st.lists(st.sampled_from(slots), max_size=6)):
        gone = draw(st.floats(0.0, 30.0))
        back = gone + draw(st.floats(0.125, 10.0))
        more = frozenset(draw(st.lists(st.sampled_from(every), max_size=1))) if every else frozenset()
        again = Slot(slot.id, slot.node, slot.kind, slot.memory, slot.shards | more)
        script += [(gone, Left(frozenset({slot.id}), draw(st.booleans()))), (back, Joined((again,)))]
    last = max((at for at, _ in script), default=0.0) + 1.0
    return (*sorted(script, key=lambda x: x[0]), *([(last, Joined(slots))] if script else []))
