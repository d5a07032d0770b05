"""Slots of which the end is known, in virtual time: they leave before it, and nothing is lost."""

from collections.abc import Mapping, Sequence
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event, Fell, Joined, Kept, Left
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Seconds
from shoal.engine.journal import Journal, Line, replay
from shoal.engine.run import reopened, run
from shoal.policy import Elastic, Fifo, Hop
from shoal.profile.table import Row, Table
from shoal.search.trace import Trace
from shoal.simulate.idle_log import IdleLog

SHARDS = {ShardId(f"s{i}"): 30 for i in range(3)}
RATE = 10.0  # 3 s for a shard
A, B = SlotId("a"), SlotId("b")


def played(
    ends: Mapping[SlotId, Seconds],
    known: bool = True,
    policy: object = Fifo(),
    shards: Mapping[ShardId, int] = SHARDS,
    trials: int = 1,
    samples: float = 900.0,
    save: Seconds = 0.5,
) -> list[Line]:
    """Trials on slots that leave at these times, and one that comes at 100 s and stays."""
    lying = frozenset(shards)
    slots = [Slot(n, n, shards=lying, until=end if known else inf) for n, end in ends.items()]
    script: list[tuple[Seconds, Event]] = [
        (end, Left(frozenset((name,)), died=True)) for name, end in ends.items()
    ]
    script.append((100.0, Joined((Slot(SlotId("stays"), "z", shards=lying),))))
    table = Table((Row((RATE, 1.8 * RATE), save=save),))
    sim = Sim(table.of, slots, script, shards=shards, checkpoint_every=1e6)
    arrivals = [(0.0, {"n": i}, samples) for i in range(trials)]
    journal = Journal()
    state = fold(State(), reopened(State(), shards, {}))
    run(Trace(arrivals), policy, sim, table.believe, journal, state)  # type: ignore[arg-type]
    return journal.lines


def times(lines: Sequence[Line], kind: type) -> list[Seconds]:
    return [at for at, entry in lines if isinstance(entry, kind)]


def test_a_slot_begins_no_visit_that_it_could_not_end_and_keep() -> None:
    lines = played({A: 10.0})
    assert times(lines, Left) == [pytest.approx(9.0)]
    assert times(lines, Kept)[0] == pytest.approx(9.0)
    assert not times(lines, Fell)
    left = next(line.entry for line in lines if isinstance(line.entry, Left))
    assert not left.died


def test_with_too_little_time_for_the_save_it_leaves_a_visit_earlier() -> None:
    assert times(played({A: 10.0}, save=1.5), Left) == [pytest.approx(6.0)]


def test_data_that_is_not_divided_is_trained_up_to_the_save() -> None:
    lines = played({A: 10.0}, shards={})
    assert times(lines, Kept)[0] == pytest.approx(10.0)
    assert not times(lines, Fell)
    done = replay([line for line in lines if line.time <= 10.0]).done
    assert list(done.values()) == [pytest.approx(95.0)]


@pytest.mark.parametrize("shards", [SHARDS, {}], ids=["divided", "whole"])
def test_what_would_be_lost_otherwise(shards: Mapping[ShardId, int]) -> None:
    assert times(played({A: 10.0}, known=False, shards=shards), Fell) == [10.0]


def test_a_slot_that_ends_at_once_is_of_no_use_and_harms_nobody() -> None:
    lines = played({A: 1.0})
    assert times(lines, Left) == [0.0]
    assert not times(lines, Fell)


@given(
    st.lists(st.floats(0.1, 60.0), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([Fifo(), Hop(), Elastic(horizon=20.0)]),
    st.booleans(),
)
def test_no_work_is_lost_whatever_the_ends(
    ends: list[float], trials: int, policy: object, divided: bool
) -> None:
    if isinstance(policy, Hop) and not divided:
        return
    shards = SHARDS if divided else {}
    named = {SlotId(f"n{i}"): end for i, end in enumerate(ends)}
    lines = played(named, policy=policy, shards=shards, trials=trials, samples=180.0)
    assert not times(lines, Fell)
    for at, entry in lines:
        if isinstance(entry, Left):
            assert all(at <= named[slot] + 1e-6 for slot in entry.slots)


def test_a_log_may_say_when_nodes_leave() -> None:
    log = IdleLog.of([("a", 0.0, 50.0), ("b", 20.0, inf), ("a", 70.0, 90.0)], 100.0)
    joined = [
        (at, slot.id, slot.until)
        for at, event in log.window(10.0, 100.0).script(known=True)
        if isinstance(event, Joined)
        for slot in event.slots
    ]
    assert joined == [(0.0, "a", 40.0), (10.0, "b", inf), (60.0, "a", 80.0)]
    plain = log.script()
    assert all(s.until == inf for _, e in plain if isinstance(e, Joined) for s in e.slots)
