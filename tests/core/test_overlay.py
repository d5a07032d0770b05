import pickle
import tracemalloc
from collections.abc import Iterator, Mapping, MutableMapping
from copy import deepcopy
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import ENTRIES
from simkit import SHARDS

from shoal.core import overlay
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Entry, Joined, Left, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.overlay import SMALL, Overlay, writable
from shoal.core.plan import solo
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.policy import Hop, Pack
from shoal.policy.elastic.elastic import Elastic
from shoal.testing import World, worlds


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Tables are overlays from their first entry on, unless a test says otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "SMALL", 0)
        yield


KEYS = st.integers(0, 12)
WRITES = st.lists(
    st.tuples(st.sampled_from(["set", "pop", "del", "update", "read"]), KEYS, st.integers(0, 3)),
    max_size=8,
)


def written(table: MutableMapping[int, int], writes: list[Any]) -> None:
    for what, key, value in writes:
        match what:
            case "set":
                table[key] = value
            case "pop":
                table.pop(key, None)
            case "del" if key in table:
                del table[key]
            case "update":
                table.update({key: value, key + 1: value})
            case "read":
                list(table)


def same(table: Mapping[int, int], wanted: dict[int, int]) -> None:
    assert [table.get(key, "none") for key in range(14)] == [
        wanted.get(key, "none") for key in range(14)
    ]
    assert [key in table for key in range(14)] == [key in wanted for key in range(14)]
    assert list(overlay.leading(table)) == list(wanted)
    assert len(table) == len(wanted)
    for key in range(14):
        try:
            assert table[key] == wanted[key]
        except KeyError:
            assert key not in wanted
    assert list(table.items()) == list(wanted.items())


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 3), max_size=12),
    st.lists(WRITES, max_size=6),
    st.integers(0, 50),
    st.data(),
)
def test_is_a_dict_whose_versions_stay(
    begin: dict[int, int], versions: list[Any], spread: int, data: st.DataObject
) -> None:
    tables: list[Mapping[int, int]] = [begin]
    wanted = [dict(begin)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "SPREAD", spread)
        for writes in versions:
            parent = data.draw(st.integers(0, len(tables) - 1))
            table, plain = writable(tables[parent]), dict(wanted[parent])
            written(table, writes)
            written(plain, writes)
            tables.append(table)
            wanted.append(plain)
    for table, plain in zip(tables, wanted, strict=True):
        same(table, plain)
    same(tables[-1], wanted[-1])  # once more: by now it has been made whole


def test_speaks_like_a_dict() -> None:
    table = writable({"a": 1, "b": 2})
    assert isinstance(table, Overlay)
    table["c"] = 3
    del table["a"]
    plain = {"b": 2, "c": 3}
    assert table == plain and plain == table and table != {"b": 2} and table != [("b", 2), ("c", 3)]
    assert table == writable({"c": 3, "b": 2}), "order does not matter"
    assert repr(table) == "{'b': 2, 'c': 3}" and list(reversed(table)) == ["c", "b"]
    assert list(table.keys() & {"c", "d"}) == ["c"] and list(table.values()) == [2, 3]
    assert pickle.loads(pickle.dumps(table)) == deepcopy(table) == table
    for absent in ("a", "d"):
        for look in (table.__getitem__, table.pop, table.__delitem__):
            with pytest.raises(KeyError, match=absent):
                look(absent)


def test_small_tables_are_dicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "SMALL", SMALL)
    assert type(writable(dict.fromkeys(range(SMALL)))) is dict
    large = writable(dict.fromkeys(range(SMALL + 1)))
    assert type(large) is Overlay
    del large[0]
    assert type(writable(large)) is Overlay
    for key in range(1, SMALL // 2):
        del large[key]
    assert type(writable(large)) is dict and list(writable(large)) == list(
        range(SMALL // 2, SMALL + 1)
    )


def in_order(state: State) -> list[Any]:
    """All of a state, tables as lists: their order counts too."""
    every = (getattr(state, f.name) for f in fields(State) if f.compare)
    return [list(value.items()) if isinstance(value, Mapping) else value for value in every]


@settings(max_examples=50, deadline=None)
@given(st.lists(ENTRIES, max_size=30), st.sampled_from([0, 2, 50]))
def test_states_are_the_same_as_with_dicts(entries: list[Entry], spread: int) -> None:
    def states() -> list[State]:
        found = [State()]
        for entry in entries:
            found.append(fold(found[-1], [entry]))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "SPREAD", spread)
        layered = states()
        patch.setattr(overlay, "SMALL", SMALL)
        plain = states()
    assert layered == plain
    assert [state.plan for state in layered] == [state.plan for state in plain]
    assert list(map(in_order, layered)) == list(map(in_order, plain))
    assert pickle.loads(pickle.dumps(layered[-1])) == deepcopy(layered[-1]) == plain[-1]


@settings(max_examples=10, deadline=None)
@given(worlds(), st.sampled_from([Hop(), Hop("random"), Pack(), Elastic()]))
def test_runs_are_the_same_as_with_dicts(world: World, policy: Any) -> None:
    layered = world.run(policy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay, "SMALL", SMALL)
        assert world.run(policy)[:2] == layered[:2]


def test_states_share_what_they_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 states more of 5000 slots at work take an eighth of the first one's memory; with
    tables copied, seven times as much.
    """
    monkeypatch.setattr(overlay, "SMALL", SMALL)
    every = [Slot(SlotId(f"s{i:04d}")) for i in range(5000)]
    gangs = [solo(TrialId(f"t{i:04d}"), slot.id, 0) for i, slot in enumerate(every)]
    tracemalloc.start()
    state = fold(
        State(),
        [
            Joined(tuple(every)),
            *(Submitted(Trial(g.trials[0], 9.0, {}, shards=frozenset(SHARDS))) for g in gangs),
        ],
    )
    state = fold(state, [Planned((), tuple(gangs))])
    one, states = tracemalloc.get_traced_memory()[0], [state]
    for slot in every[:50]:
        states.append(fold(states[-1], [Left(frozenset((slot.id,)))]))
        states.append(fold(states[-1], [Joined((slot,))]))
    took = tracemalloc.get_traced_memory()[0] - one
    tracemalloc.stop()
    assert [len(s.busy) for s in (states[0], states[-1])] == [5000, 4950]
    assert took < one / 2, f"{took / one:.1f} times the first"
