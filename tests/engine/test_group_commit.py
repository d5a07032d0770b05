"""A journal that syncs once for a second: what lies on the disk at any time, and in which order."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.event import Finished, Kept
from shoal.core.trial import TrialId
from shoal.engine.journal import Grouping, Journal, read

SECONDS = 1.0
ACT = st.tuples(
    st.floats(0.0, 0.7),  # seconds since the one before
    st.sampled_from(["flush", "sync_soon", "sync"]),
)


def kept(number: int) -> Kept:
    return Kept(TrialId(f"t{number}"), 1, 1.0, f"t{number}/000001-1.pt")


class Disk:
    """The checkpoints that wait and those that are durable; and what the journal did in between."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: list[Kept] = []
        self.durable: list[Kept] = []
        self.replaced: list[Kept] = []  # to be deleted after the journal's next sync
        self.journal = Journal(path, Grouping(SECONDS, self.commit, self.sweep))

    def written(self) -> list[object]:
        if not self.path.read_bytes():
            return []
        return [line.entry for line in read(self.path)]

    def commit(self) -> None:
        self.durable += self.waiting
        self.waiting = []

    def sweep(self) -> None:
        """What is deleted only now was replaced by an entry that is on the disk."""
        there = self.written()
        assert all(entry in there for entry in self.replaced)
        self.replaced = []

    def check(self, appended: list[Kept]) -> None:
        there = self.written()
        assert there == appended[: len(there)], "the beginning of what was appended"
        assert all(entry in self.durable for entry in there), "no line before its checkpoint"


@given(st.lists(ACT, max_size=30))
def test_lines_follow_what_they_speak_of(acts: list[tuple[float, str]]) -> None:
    with TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "j")
        appended: list[Kept] = []
        times: list[float] = []
        for number, (pause, act) in enumerate(acts):
            entry = kept(number)
            times.append((times[-1] if times else 0.0) + pause)
            disk.waiting.append(entry)
            disk.journal.append(times[-1], entry)
            appended.append(entry)
            getattr(disk.journal, act)()
            disk.replaced.append(entry)
            disk.check(appended)
            late = [time for time in times[len(disk.written()) :] if time <= times[-1] - SECONDS]
            assert not late, "nothing waits for longer than a group"
            assert act != "sync" or disk.written() == appended
        disk.journal.close()
        disk.check(appended)
        assert disk.written() == appended


@given(st.integers(1, 12), st.data())
def test_a_torn_group_is_read_up_to_its_last_whole_line(count: int, data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        disk = Disk(Path(folder) / "j")
        for number in range(count):
            disk.journal.append(0.0, kept(number))
        disk.journal.close()
        content = disk.path.read_bytes()
        head = content.index(b"\n") + 1
        cut = data.draw(st.integers(head, len(content)))
        disk.path.write_bytes(content[:cut])
        whole = content[head:cut].count(b"\n")
        assert disk.written() == [kept(number) for number in range(whole)]
        again = Journal(disk.path)
        again.append(1.0, Finished(TrialId("x")))
        again.close()
        assert len(disk.written()) == whole + 1


def test_a_failed_commit_writes_no_line(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(28, "the disk is full")

    swept = []
    journal = Journal(tmp_path / "j", Grouping(SECONDS, fail, lambda: swept.append(1)))
    journal.append(0.0, kept(0))
    for act in (journal.sync, journal.sync, journal.close):
        with pytest.raises(OSError):
            act()
    assert (tmp_path / "j").read_bytes() == b"" and not swept
    assert list(read(tmp_path / "j")) == []


def test_a_journal_alone_syncs_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append(0.0, kept(0))
    journal.sync_soon()
    assert [line.entry for line in read(tmp_path / "j")] == [kept(0)]
    journal.append(0.0, kept(1))
    journal.flush()
    assert len(list(read(tmp_path / "j"))) == 2
