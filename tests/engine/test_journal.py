from dataclasses import fields, is_dataclass
from math import isnan
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simkit import study

from shoal.core.cluster import ShardId, Slot, SlotId, is_name
from shoal.core.event import (
    Advanced,
    Commanded,
    Decided,
    Ended,
    Entry,
    Evaluated,
    Event,
    Failed,
    Fed,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Remembered,
    Retired,
    Submitted,
    Unread,
)
from shoal.core.fold import step
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import (
    SCHEMA,
    Journal,
    JournalError,
    Line,
    decode,
    encode,
    newest,
    read,
    replay,
)
from shoal.policy.hop.hop import Hop

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAME = TEXT.filter(is_name)
FLOAT = st.floats()
COUNT = st.integers(0, 2**53)
TRIAL = st.builds(TrialId, NAME)
SLOTS = st.lists(st.builds(SlotId, NAME), min_size=1, max_size=3, unique=True).map(tuple)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FLOAT | TEXT,
    lambda x: st.lists(x, max_size=3).map(tuple),
    max_leaves=5,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FLOAT | TEXT,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(TEXT, x, max_size=3),
    max_leaves=6,
)
SUM = st.tuples(FLOAT, FLOAT)
VISIT = st.builds(Visit, COUNT, st.builds(ShardId, TEXT), COUNT, COUNT)
CONFIG = st.dictionaries(TEXT, VALUE, max_size=3)
LANES = st.lists(
    st.builds(Lane, TRIAL, SLOTS), min_size=1, max_size=3, unique_by=lambda lane: lane.trial
).map(tuple)
POSITIVE = st.floats(1e-9, 1e12)
GANG = st.builds(
    Gang,
    LANES,
    st.lists(st.builds(ShardId, TEXT), max_size=2).map(tuple),
    st.none() | POSITIVE,
    st.booleans(),
    st.integers(0, 99),
)
SLOT = st.builds(
    Slot,
    st.builds(SlotId, NAME),
    NAME,
    TEXT,
    POSITIVE | st.just(float("inf")),
    st.frozensets(st.builds(ShardId, TEXT), max_size=2),
)
ENTRIES: dict[type[Any], st.SearchStrategy[Any]] = {
    Opened: st.builds(
        Opened,
        COUNT,
        st.dictionaries(st.builds(ShardId, TEXT), COUNT, max_size=3),
        st.dictionaries(TEXT, PLAIN, max_size=3),
    ),
    Submitted: st.builds(
        Submitted,
        st.builds(
            Trial,
            TRIAL,
            POSITIVE,
            CONFIG,
            st.just((1, 3)),
            st.frozensets(st.builds(ShardId, TEXT), max_size=3),
        ),
    ),
    Retired: st.builds(Retired, TRIAL),
    Advanced: st.builds(
        Advanced,
        st.dictionaries(TRIAL, FLOAT, max_size=2),
        st.dictionaries(TRIAL, st.dictionaries(TEXT, SUM, max_size=2), max_size=2),
        st.dictionaries(TRIAL, st.lists(VISIT, max_size=2).map(tuple), max_size=2),
        st.dictionaries(TRIAL, st.dictionaries(TEXT, FLOAT, max_size=2), max_size=2),
        st.dictionaries(TRIAL, COUNT, max_size=2),
    ),
    Kept: st.builds(Kept, TRIAL, COUNT, FLOAT, NAME),
    Fell: st.builds(Fell, TRIAL, COUNT, FLOAT),
    Evaluated: st.builds(Evaluated, TRIAL, FLOAT, st.dictionaries(TEXT, FLOAT, max_size=2)),
    Measured: st.builds(Measured, TRIAL, TEXT, st.dictionaries(TEXT, FLOAT, max_size=2)),
    Ended: st.builds(Ended, GANG),
    Finished: st.builds(Finished, TRIAL),
    Failed: st.builds(Failed, TRIAL, TEXT),
    Joined: st.builds(Joined, st.lists(SLOT, max_size=2).map(tuple)),
    Left: st.builds(Left, st.frozensets(st.builds(SlotId, NAME), max_size=2), st.booleans(), TEXT),
    Unread: st.builds(
        Unread, st.builds(SlotId, NAME), st.builds(ShardId, TEXT), TEXT, st.tuples(TRIAL)
    ),
    Decided: st.builds(Decided, FLOAT),
    Fed: st.builds(Fed, NAME, st.dictionaries(TEXT, FLOAT, max_size=3)),
    Commanded: st.builds(Commanded, TEXT, TEXT),
    Planned: st.builds(
        Planned, st.lists(GANG, max_size=2).map(tuple), st.lists(GANG, max_size=2).map(tuple)
    ),
    Remembered: st.builds(Remembered, TEXT, PLAIN),
}


def alike(one: Any, other: Any) -> bool:
    """Equal in type and value, nan with nan."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (isnan(one) and isnan(other))
    if isinstance(one, int) and isinstance(other, float) and not isinstance(one, bool):
        return one == other
    if type(one) is not type(other):
        return False
    if is_dataclass(one):
        return all(alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def test_every_kind_of_entry_is_tried() -> None:
    assert set(ENTRIES) == {*get_args(Event), Planned, Remembered}


@pytest.mark.parametrize("kind", ENTRIES, ids=lambda kind: kind.__name__)
def test_an_entry_is_read_back_as_it_was_written(kind: type[Any]) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.floats(0, 1e9), ENTRIES[kind])
    def holds(time: float, entry: Entry) -> None:
        line = encode(time, entry)
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        back = decode(line)
        assert alike(back.entry, entry), f"{entry}\nis read as\n{back.entry}"
        assert abs(back.time - time) <= 1e-6
        assert encode(*back) == line

    holds()


def test_numbers_keep_their_type() -> None:
    config = {
        "i": 1,
        "f": 1.0,
        "b": True,
        "big": 1e300,
        "tiny": 5e-324,
        "n": None,
        "t": (1, (2.0, "x")),
    }
    back = decode(encode(0.0, Submitted(Trial(TrialId("t"), 1.0, config)))).entry
    assert isinstance(back, Submitted)
    assert [(k, type(v)) for k, v in sorted(back.trial.config.items())] == [
        (k, type(v)) for k, v in sorted(config.items())
    ]
    assert back.trial.config == config


def written(path: Path, lines: list[Line]) -> None:
    journal = Journal(path)
    for line in lines:
        journal.append(*line)
    journal.close()


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return study(Hop(), epochs=2)[0]


def test_a_file_holds_what_was_appended(tmp_path: Path, lines: list[Line]) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, lines[:10])
    written(path, lines[10:])  # opened again, it goes on
    found = list(read(path))
    assert [line.entry for line in found] == [line.entry for line in lines]
    assert replay(found) == replay(lines)


def test_appended_lines_are_seen_after_flush(tmp_path: Path, lines: list[Line]) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(*lines[0])
    journal.flush()
    assert len(list(read(tmp_path / "journal.jsonl"))) == 1
    journal.close()


def test_a_torn_last_line_is_left_out_wherever_it_is_torn(
    tmp_path: Path, lines: list[Line]
) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, lines[:5])
    whole = path.read_bytes()
    before = whole[:-1].rfind(b"\n") + 1
    for cut in range(before, len(whole)):
        path.write_bytes(whole[:cut])
        assert [line.entry for line in read(path)] == [line.entry for line in lines[:4]], (
            f"torn after {cut - before} bytes"
        )
    path.write_bytes(whole[:-3])
    written(path, lines[4:6])  # who goes on cuts the torn line off
    assert [line.entry for line in read(path)] == [line.entry for line in lines[:6]]


def test_a_torn_head_is_an_empty_journal(tmp_path: Path, lines: list[Line]) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"shoal":"jou')
    assert list(read(path)) == []
    written(path, lines[:2])
    assert len(list(read(path))) == 2


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\x00\x00",
        b'{"t":1,"e":"Nothing","d":{}}',
        b'{"t":1,"e":"Finished","d":{}}',
        b'{"t":1}',
        b"",
    ],
)
def test_damage_in_the_middle_is_an_error_that_says_where(
    tmp_path: Path, lines: list[Line], damage: bytes
) -> None:
    path = tmp_path / "journal.jsonl"
    written(path, lines[:6])
    rows = path.read_bytes().split(b"\n")
    rows[3] = damage
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(
        JournalError, match=r"journal.jsonl, line 4: not a journal entry .* cut it before this line"
    ):
        list(read(path))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b'{"shoal":"journal","schema":999}', f"schema 999; this Shoal reads schema {SCHEMA}"),
        (b'{"shoal":"journal"}', "schema None"),
        (b'{"some":"file"}', "not a Shoal journal"),
        (b"hello", "not a Shoal journal"),
        (b"[1]", "not a Shoal journal"),
    ],
)
def test_files_of_another_schema_are_refused(tmp_path: Path, head: bytes, why: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(head + b"\n")
    with pytest.raises(JournalError, match=why):
        list(read(path))


def test_replay_of_every_prefix_is_the_state_then(lines: list[Line]) -> None:
    state = State()
    for count, line in enumerate(lines, 1):
        state = step(state, line.entry)
        assert replay([decode(encode(*x)) for x in lines[:count]]) == state


def test_the_newest_entry_of_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    assert newest(path, Opened) is None
    for run in (1, 2):
        journal.append(0.0, Opened(run, {}, {"study": '"e":"Opened"'}))
        journal.append(1.0, Commanded("note", 'it says "e":"Opened"'))
    journal.append(2.0, Remembered("searcher", {"e": "Opened"}))
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"d":{"run":3},"e":"Opened"')  # torn
    found = newest(path, Opened)
    assert found is not None
    assert found.run == 2
    path.write_bytes(b'{"shoal": "journal", "schema": 99}\n')
    with pytest.raises(JournalError, match="schema 99"):
        newest(path, Opened)
