"""A snapshot and the rest of the journal come to what the whole journal comes to."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from math import inf, nan
from pathlib import Path
from typing import Any, get_args

import journal_kit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simkit import SHARDS, slots, study, trial

from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Decided,
    Entry,
    Evaluated,
    Event,
    Fell,
    Finished,
    Joined,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Remembered,
    Submitted,
    Unread,
)
from shoal.core.fold import fold, step
from shoal.core.plan import solo
from shoal.core.state import State
from shoal.core.trial import TrialId, Visit
from shoal.engine import snapshot
from shoal.engine.journal import Journal, JournalError, Line, as_read, read, replay
from shoal.engine.mend import mend
from shoal.engine.snapshot import Snapshot, Snapshots, packed, runs_in, unpacked
from shoal.policy.hop.hop import Hop
from shoal.testing import World, worlds

A, B, C = TrialId("a"), TrialId("b"), TrialId("c")
W0, W1 = SlotId("w0"), SlotId("w1")
S0, S1, S2 = SHARDS
# Also values that no other equals.
OF_KIND: dict[type[Any], st.SearchStrategy[Any]] = {
    **journal_kit.OF_KIND,
    Evaluated: journal_kit.OF_KIND[Evaluated]
    | st.builds(Evaluated, st.just(A), st.floats(0, 3), st.just({"loss": nan, "acc": -inf})),
}
BEGIN: list[Entry] = [
    Opened(1, SHARDS, {"study": "s"}),
    Joined(slots(SHARDS)),
    Submitted(trial("a")),
    Submitted(trial("b")),
]


def same(one: State, other: State) -> bool:
    """Equal in types and values, nan with nan, and each table in the same order."""
    return all(
        _form(getattr(one, name)) == _form(getattr(other, name))
        for name in (f.name for f in fields(State) if f.compare)
    )


def _form(value: Any) -> Any:
    """What two values must have in common to be the same."""
    if is_dataclass(value):
        return type(value), [_form(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, Mapping):
        return [(_form(key), _form(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_form(each) for each in value]
    if isinstance(value, frozenset):
        return value
    return type(value), repr(value)


def test_every_kind_of_entry_is_tried() -> None:
    assert set(OF_KIND) == {*get_args(Event), Planned, Remembered}


@pytest.mark.parametrize("kind", OF_KIND, ids=lambda kind: kind.__name__)
def test_a_snapshot_before_and_after_each_kind_of_entry(kind: type[Any]) -> None:
    """Of random entries around one of this kind, with a snapshot at any place."""

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(st.one_of(*OF_KIND.values()), max_size=12),
        OF_KIND[kind],
        st.lists(st.one_of(*OF_KIND.values()), max_size=6),
        st.integers(0, 20),
    )
    def holds(before: list[Any], entry: Any, after: list[Any], cut: int) -> None:
        all_ = [as_read(each) for each in [*BEGIN, *before, entry, *after]]
        half = unpacked(packed(fold(State(), all_[:cut])))
        assert same(half, fold(State(), all_[:cut]))
        assert same(fold(half, all_[cut:]), fold(State(), all_))

    holds()


@settings(max_examples=30, deadline=None)
@given(worlds(), st.data())
def test_a_snapshot_at_any_moment_of_a_random_run(world: World, data: Any) -> None:
    lines = [Line(time, as_read(entry)) for time, entry in world.run(Hop())[0]]
    cut = data.draw(st.integers(0, len(lines)))
    half = unpacked(packed(replay(lines[:cut])))
    assert same(replay(lines[cut:], half), replay(lines))


# Entries after which each table of a state holds something, its own default nowhere.
FULL: list[Entry] = [
    *BEGIN,
    Submitted(replace(trial("c"), config={"priority": 3.0})),
    Planned((), (solo(A, W0, 0, S0), solo(B, W1, 0, S1))),
    Measured(A, "m", {"rate": 2.0}),
    Advanced({A: 10.0}, {}, {A: (Visit(0, S0, 0, 10),)}, {A: {"train": 1.0}}),
    Evaluated(A, 1.0, {"loss": 0.5}),
    Kept(A, 1, 10.0, "a/1-1.pt"),
    Advanced({A: 10.0}, {}, {A: (Visit(0, S1, 0, 10),)}),
    Kept(A, 2, 20.0, "a/1-2.pt"),
    Evaluated(A, 2.0, {"loss": 0.4}),
    Fell(A, 2, 20.0),
    Left(frozenset([W1]), died=True),
    Unread(SlotId("w2"), S2, "gone", (C,)),
    Submitted(trial("d")),
    Finished(TrialId("d")),
    Remembered("policy", {"x": 1}),
    Commanded("stop", "enough"),
]


@pytest.mark.parametrize("name", snapshot.TABLES)
def test_a_snapshot_that_lacks_a_table_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above can fail for each of them: a mutant that drops one."""
    state = fold(State(), FULL)
    assert same(unpacked(packed(state)), state)
    (table,) = [f for f in fields(State) if f.name == name]
    assert getattr(state, name) != getattr(State(), table.name), "it holds something"
    kept = [each for each in snapshot.TABLES if each != name]
    monkeypatch.setattr(snapshot, "TABLES", tuple(kept))
    monkeypatch.setattr(snapshot, "Tables", snapshot.tables_type(kept))
    monkeypatch.setattr(snapshot, "BY_GANG", [each for each in snapshot.BY_GANG if each != name])
    try:
        half = unpacked(packed(state))
    except KeyError:  # without `gangs` nothing can be named by its place there
        assert name == "gangs"
        return
    assert not same(half, state)


def test_each_table_of_a_state_is_in_a_snapshot() -> None:
    """But what follows from the others, and what was new to whom."""
    follows = {f.name for f in fields(State) if not f.init}
    assert set(snapshot.TABLES) == {f.name for f in fields(State)} - follows - {"news"}


# -- the file --------------------------------------------------------------------------------------


def key(secret: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What signs with this key, and what knows its marks."""

    def sign(content: bytes) -> Mapping[str, str]:
        return {secret: blake2b(content, key=secret.encode()).hexdigest()}

    def is_own(content: bytes, marks: Mapping[str, str]) -> bool:
        return sign(content)[secret] == marks.get(secret)

    return sign, is_own


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal with a snapshot in the middle, and one before that."""
    lines, _ = _lines()
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    own = Snapshots(path, *key("mine"))
    for number, line in enumerate(lines, 1):
        journal.append(*line)
        if number in (len(lines) // 3, len(lines) // 2):
            journal.sync()
            assert own.write(_snapshot(journal))
    journal.close()
    return tmp_path


def _lines() -> tuple[list[Line], State]:
    return study(Hop(), count=4)


def _snapshot(journal: Journal) -> Snapshot:
    assert journal.path is not None
    lines = list(read(journal.path))
    return Snapshot(
        journal.number, journal.size, lines[-1].time, runs_in(lines), replay(lines), {"best": [1]}
    )


def _own(folder: Path) -> Snapshots:
    return Snapshots(folder / "journal.jsonl", *key("mine"))


def test_the_past_is_that_of_the_whole_journal(folder: Path) -> None:
    whole = list(read(folder / "journal.jsonl"))
    past = _own(folder).past()
    assert past.since is not None and past.since.learnt == {"best": [1]}
    assert same(past.state, replay(whole))
    assert [*past.runs] == runs_in(whole) and past.runs
    assert (past.lines, past.time) == (len(whole) + 1, whole[-1].time)
    assert whole[-len(past.tail) :] == [*past.tail] and len(past.tail) < len(whole)


def test_without_a_snapshot_all_is_read(folder: Path) -> None:
    with_one = _own(folder).past()
    _own(folder).remove()
    past = _own(folder).past()
    assert past.since is None and len(past.tail) == past.lines - 1
    assert same(past.state, with_one.state)
    assert past[:3] == with_one[:3]
    assert _own(folder / "empty").past().state == State()


def test_damage_before_a_snapshot_costs_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "journal.jsonl"
    own = _own(folder)
    whole = list(read(path))
    newest = own.newest()
    assert newest is not None
    monkeypatch.setattr(snapshot, "ENDING", 100)  # this journal is small
    assert own.write(newest)
    content = bytearray(path.read_bytes())
    content[200] ^= 4
    path.write_bytes(content)
    with pytest.raises(JournalError, match="line 3"):
        list(read(path))
    assert same(own.past().state, replay(whole))


def test_damage_after_it_is_an_error_that_says_where(folder: Path) -> None:
    path = folder / "journal.jsonl"
    since = _own(folder).newest()
    assert since is not None
    content = bytearray(path.read_bytes())
    content[since.offset + 20] ^= 4
    path.write_bytes(content)
    with pytest.raises(JournalError, match=f"line {since.lines + 1}"):
        _own(folder).past()


def _cut(folder: Path) -> None:
    """The journal is cut before the snapshot, and goes on otherwise."""
    path = folder / "journal.jsonl"
    since = _own(folder).newest()
    assert since is not None
    lines = path.read_bytes()[: since.offset].splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 4]))
    journal = Journal(path)
    for number in range(2 * len(lines)):
        journal.append(1e6, Decided(float(number)))
    journal.close()


def _flip(folder: Path) -> None:
    for file in folder.glob("*.snapshot"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)


def _shorten(folder: Path) -> None:
    for file in folder.glob("*.snapshot"):
        file.write_bytes(file.read_bytes()[:-7])


def _exchange(folder: Path) -> None:
    for file in folder.glob("*.snapshot"):
        file.unlink()
        file.mkdir()


@pytest.mark.parametrize("harm", [_cut, _flip, _shorten, _exchange])
def test_one_that_is_stale_or_damaged_is_not_used(
    folder: Path, harm: Callable[[Path], None]
) -> None:
    harm(folder)
    past = _own(folder).past()
    assert past.since is None
    assert same(past.state, replay(read(folder / "journal.jsonl")))


def test_a_strangers_is_not_even_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "unpacked", lambda _: pytest.fail("it was decoded"))
    other = Snapshots(folder / "journal.jsonl", *key("another"))
    assert other.past().since is None
    none = Snapshots(folder / "journal.jsonl", lambda _: {}, lambda *_: False)
    assert none.past().since is None


def test_one_that_other_code_folded_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "maker", lambda: "another version")
    assert _own(folder).past().since is None


def test_without_a_key_none_is_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append(0.0, Opened(1, {ShardId("s"): 1}))
    journal.sync()
    none = Snapshots(path, lambda _: {}, lambda *_: False)
    assert not none.write(Snapshot(2, journal.size, 0.0, (), State()))
    assert [each.name for each in tmp_path.iterdir()] == ["journal.jsonl"]


def test_a_number_that_it_cannot_hold_leaves_it_out(folder: Path) -> None:
    own = _own(folder)
    before = own.newest()
    assert before is not None
    state = step(before.state, Submitted(trial("big", x=2**70)))
    assert not own.write(before._replace(state=state))
    assert own.newest() == before


def test_a_crash_while_one_is_written_leaves_the_one_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _own(folder)
    newest = own.newest()
    assert newest is not None

    def crash(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(snapshot, "write_durably", crash)
    with pytest.raises(OSError, match="full"):
        own.write(newest)
    assert own.newest() == newest
    assert own.former.exists() and not own.file.exists()


def test_the_one_before_is_there_for_who_wants_more_of_the_journal(folder: Path) -> None:
    own = _own(folder)
    newest = own.newest()
    assert newest is not None
    former = own.newest(before=newest.lines - 1)
    assert former is not None and former.lines < newest.lines
    assert own.newest(before=3) is None


# -- mending ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["two bits", "a line's end", "a new end", "zeros"])
def test_mending_cuts_nothing_that_a_snapshot_knows(
    folder: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "ENDING", 100)  # this journal is small
    path = folder / "journal.jsonl"
    own = _own(folder)
    before = _own(folder).newest() or _rewritten(own)
    state = replay(read(path))
    content = bytearray(path.read_bytes())
    second = content.index(b"\n") + 1
    if harm == "two bits":
        content[second + 9] ^= 4
        content[second + 12] ^= 4
    elif harm == "a line's end":
        content[content.index(b"\n", second)] ^= 1
    elif harm == "a new end":
        content[second + 9 : second + 11] = b"\n\n"
    else:
        content[second + 5 : second + 300] = bytes(295)
    path.write_bytes(content)
    assert same(own.past().state, state)
    # A copy of a line after the snapshot is left out all the same, and the last one is bad.
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[-2], lines[-1][:-9] + b"!!!!!!!!\n"]))
    mended = mend(path, (before.offset, before.lines))
    assert mended.spared and (mended.doubled, mended.cut) == (1, 1), mended
    past = own.past()
    assert past.since is not None and len(past.tail) > 0
    journal = Journal(path)
    journal.append(1e6, Decided(1.0))
    journal.close()
    assert own.past().lines == past.lines + 1
    assert mend(path).cut, "what is not known to be in a snapshot is cut as before"


def _rewritten(own: Snapshots) -> Snapshot:
    """The newest one, once more: of less of what is before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "ENDING", 2**16)
        newest = own.newest()
    assert newest is not None and own.write(newest)
    return newest


def test_one_is_made_anew_if_it_is_gone_or_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _own(folder)
    assert not own.rebuild(), "this journal is short"
    monkeypatch.setattr(snapshot, "EVERY", 20)
    _flip(folder)
    assert own.newest() is None
    assert own.rebuild()
    past = own.past()
    assert past.since is not None and not past.tail
    assert same(past.state, replay(read(folder / "journal.jsonl")))
    assert not own.rebuild()
