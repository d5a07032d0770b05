"""Small studies drawn at random: shards, slots that come and go, unequal trials."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event, Joined, Left, Opened
from shoal.core.fold import fold
from shoal.core.ports import Policy, Searcher
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import Stalled, run
from shoal.profile.table import Row, Table
from shoal.search.grid import Grid
from shoal.search.space import grid

Happening = tuple[Seconds, Event]
Script = tuple[Happening, ...]


@dataclass(frozen=True)
class World:
    """A study that can be finished.

    At the end of its script all slots are there, and each shard lies at a slot with much memory.
    """

    shards: dict[ShardId, int]
    slots: tuple[Slot, ...]
    script: Script
    table: Table
    searcher: Searcher[Any]
    seed: int
    checkpoint_every: Seconds

    def run(
        self, policy: Policy[Any], searcher: Searcher[Any] | None = None
    ) -> tuple[list[Line], State, bool]:
        """Simulate the study.

        `searcher`: instead of the world's own. Returns the journal, the last state, and whether
        the study stalled.
        """
        if searcher is None:
            searcher = self.searcher
        sim = Sim(
            self.table.of,
            self.slots,
            self.script,
            shards=self.shards,
            seed=self.seed,
            checkpoint_every=self.checkpoint_every,
        )
        journal = Journal()
        opened = Opened(1, self.shards)
        journal.append(0.0, opened)
        state = fold(State(), [opened])
        try:
            state = run(searcher, policy, sim, self.table.believe, journal, state)
        except Stalled:
            return journal.lines, replay(journal.lines), True
        return journal.lines, state, False


def in_random_worlds(examples: int, holds: Callable[[World], None]) -> None:
    """Call the function with so many random worlds, which are the same ones each time."""
    always = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    test = always(given(worlds())(holds))
    test()


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to 5 slots, 4 shards with replicas, 7 trials and 6 losses of slots.

    One slot may be too small for some trials.
    """
    shards = draw(_shards())
    slots = draw(_slots(tuple(shards)))
    count = draw(st.integers(1, 7))
    rows = tuple([draw(_rows(x)) for x in range(count)])
    at_once = draw(st.one_of(st.none(), st.integers(1, count)))
    epochs = draw(st.integers(1, 3))
    searcher = Grid({"x": grid(range(count))}, epochs, at_once)
    script = draw(_churn(slots))
    seed = draw(st.integers(0, 3))
    checkpoint_every = draw(st.sampled_from([0.0, 1.0, 30.0]))
    return World(shards, slots, script, Table(rows), searcher, seed, checkpoint_every)


@st.composite
def _shards(draw: st.DrawFn) -> dict[ShardId, int]:
    """Up to 4 shards, and their samples."""
    count = draw(st.integers(1, 4))
    samples = st.integers(1, 60)
    return {ShardId(f"s{number:03d}"): draw(samples) for number in range(count)}


@st.composite
def _rows(draw: st.DrawFn, x: int) -> Row:
    """The figures of the trial with this x."""
    rate = draw(st.floats(1.0, 100.0))
    return Row(
        (rate,),
        {"x": x},
        memory=draw(st.sampled_from([0.0, 1.0, 3.0])),
        build=draw(st.sampled_from([0.0, 0.5])),
        switch=draw(st.sampled_from([0.0, 0.25])),
        evaluate=draw(st.sampled_from([0.0, 0.125])),
    )


@st.composite
def _slots(draw: st.DrawFn, shards: tuple[ShardId, ...]) -> tuple[Slot, ...]:
    """Up to 5 slots, two on a node. The last one may have little memory."""
    count = draw(st.integers(1, 5))
    small = draw(st.booleans()) and count > 1
    memory = [16.0] * count
    roomy = count
    if small:
        memory[-1] = 2.0
        roomy -= 1
    lying = draw(_lying(shards, count, roomy))
    slots: list[Slot] = []
    for number in range(count):
        name = SlotId(f"slot{number}")
        node = f"n{number // 2}"
        slots.append(Slot(name, node, memory=memory[number], shards=lying[number]))
    return tuple(slots)


@st.composite
def _lying(
    draw: st.DrawFn, shards: Sequence[ShardId], count: int, roomy: int
) -> list[frozenset[ShardId]]:
    """The shards that lie at each of so many slots.

    Each shard lies at one of the first slots, which are `roomy`, and has up to two replicas.
    """
    lying: list[set[ShardId]] = [set() for _ in range(count)]
    for shard in shards:
        first = draw(st.integers(0, roomy - 1))
        lying[first].add(shard)
        for place in draw(st.sets(st.integers(0, count - 1), max_size=2)):
            lying[place].add(shard)
    return [frozenset(here) for here in lying]


@st.composite
def _absence(draw: st.DrawFn, slot: Slot, every: Sequence[ShardId]) -> tuple[Happening, Happening]:
    """The slot goes and comes back, perhaps with one more of `every` shard."""
    gone = draw(st.floats(0.0, 30.0))
    back = gone + draw(st.floats(0.125, 10.0))
    shards = slot.shards
    if every:
        shards |= draw(st.frozensets(st.sampled_from(every), max_size=1))
    left = Left(frozenset({slot.id}), died=draw(st.booleans()))
    joined = Joined((replace(slot, shards=shards),))
    return (gone, left), (back, joined)


@st.composite
def _churn(draw: st.DrawFn, slots: tuple[Slot, ...]) -> Script:
    """Slots that go and come back. Some of them die, some have one shard more than before."""
    script: list[Happening] = []
    every = [shard for slot in slots for shard in slot.shards]
    for slot in draw(st.lists(st.sampled_from(slots), max_size=6)):
        script += draw(_absence(slot, every))
    script.sort(key=lambda happening: happening[0])
    if script:
        end, _ = script[-1]
        script.append((end + 1.0, Joined(slots)))
    return tuple(script)
