"""Small studies on the simulator, for tests of everything that needs a state or a journal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Ended, Entry, Event, Joined, Opened, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang
from shoal.core.ports import Policy, Searcher
from shoal.core.state import State, View, view
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import reopened, run
from shoal.profile.table import Row, Table
from shoal.search.grid import Grid
from shoal.search.space import grid

SHARDS = {ShardId(f"s{i}"): 10 for i in range(3)}


def slots(shards: Mapping[ShardId, int], copies: int = 1) -> tuple[Slot, ...]:
    """One slot a shard; with copies, each also holds the shards that follow."""
    names = list(shards)
    n = len(names)
    return tuple(
        Slot(SlotId(f"w{i}"), shards=frozenset(names[(i + k) % n] for k in range(copies)))
        for i in range(n)
    )


def trial(
    name: str, samples: float = 30.0, shards: Iterable[ShardId] = SHARDS, **config: Any
) -> Trial:
    return Trial(TrialId(name), samples, config, shards=frozenset(shards))


def state_of(*entries: Entry, shards: Mapping[ShardId, int] = SHARDS) -> State:
    return fold(State(), [Opened(1, shards), *entries])


def view_of(state: State, table: Table = Table(), now: float = 0.0) -> View:
    return view(state, now, table.of(state.known))


def started(
    *trials: Trial, at: Sequence[Slot] | None = None, shards: Mapping[ShardId, int] = SHARDS
) -> State:
    """A study with these trials waiting, and one slot a shard."""
    return state_of(Joined(tuple(at or slots(shards))), *map(Submitted, trials), shards=shards)


def study(
    policy: Policy[Any],
    table: Table = Table(),
    *,
    searcher: Searcher[Any] | None = None,
    shards: Mapping[ShardId, int] = SHARDS,
    at: Sequence[Slot] | None = None,
    count: int = 4,
    epochs: int = 1,
    former: Sequence[Line] = (),
    deadline: float | None = None,
    **options: Any,
) -> tuple[list[Line], State]:
    """Run a study, or go on with a former one; the whole journal and the last state."""
    since = max((line.time for line in former), default=0.0)
    journal = Journal()
    journal.lines += former
    state = fold(State(), (line.entry for line in former))
    for entry in reopened(state, shards, {}):
        journal.append(since, entry)
        state = fold(state, [entry])
    search = searcher or Grid({"x": grid(range(count))}, epochs)
    sim = Sim(
        table.of,
        slots(shards) if at is None else at,
        shards=shards,
        former=(state, since),
        **options,
    )
    state = run(search, policy, sim, table.believe, journal, state, deadline)
    return journal.lines, state


def rates(*values: float, **costs: float) -> Table:
    """Trial number i of a grid over x trains this many samples a second."""
    return Table(tuple(Row((rate,), {"x": i}, **costs) for i, rate in enumerate(values)))


def units(lines: Iterable[Line]) -> list[tuple[float, TrialId, SlotId, ShardId]]:
    """When each unit with a quota ended, whose it was, where, and over which shard."""
    return [(time, *_unit(entry.gang)) for time, entry in lines if isinstance(entry, Ended)]


def _unit(gang: Gang) -> tuple[TrialId, SlotId, ShardId]:
    return gang.lanes[0].trial, gang.lanes[0].slots[0], gang.shards[0]


def moments(
    sim: Sim, act: Callable[[float, tuple[Event, ...]], None], most: int = 99
) -> list[tuple[float, tuple[Event, ...]]]:
    """All moments; `act` is called at each, and changes things."""
    seen = []
    for now, events in sim.moments():
        seen.append((now, events))
        act(now, events)
        assert len(seen) < most, "it never ends"
    return seen


def alone(
    table: Table, gang: Gang, *trials: Trial, **options: Any
) -> list[tuple[float, tuple[Event, ...]]]:
    """Moments of one gang that is left alone."""
    sim = Sim(table.of, slots(SHARDS), **{"shards": SHARDS, **options})

    def act(now: float, events: tuple[Event, ...]) -> None:
        if now == 0:
            for each in trials:
                sim.submit(each)
            sim.change(None, gang)

    return moments(sim, act)


def kinds(events: tuple[Event, ...]) -> list[str]:
    return [type(event).__name__ for event in events]
