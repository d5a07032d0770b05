"""`shoal slots`: a run gets more or fewer slots while it trains."""

import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_kit import Commands, ended, until
from fault_kit import Steady

import shoal
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Commanded, Joined, Left
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.study import inbox
from shoal.study.control import SlotResizer, slot_count, slot_entries
from shoal.study.folder import Folder
from shoal.study.watchers import SlotBoard


def with_slots(count: int) -> State:
    slots = tuple(Slot(SlotId(f"slot{i}"), "n", "cpu") for i in range(count))
    return fold(State(), [Joined(slots)])


def of_run(backend: str = "ray", board: Any = None, **options: Any) -> Any:
    """The part of a study that the meaning of a note looks at."""
    head = {"backend": backend, "options": options}
    folder = SimpleNamespace(head=lambda: head, slots=lambda: board)
    return SimpleNamespace(folder=folder)


def test_a_reader_learns_how_many_slots_there_is_room_for(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    backend = SimpleNamespace(size=lambda: SimpleNamespace(asked=2, room=4))
    board = SlotBoard(folder.board, backend)
    board(0.0, (), with_slots(2))
    try:
        until(folder.board.exists, 60)
        found = folder.slots()
    finally:
        board.close()
    assert (found["asked"], found["room"], len(found["slots"])) == (2, 4, 2)


def test_what_is_asked_for_is_written_into_the_journal() -> None:
    state = with_slots(2)
    board = {"asked": 2, "room": 4}
    for change in ("+2", "-1", "4"):
        found = slot_entries(of_run(board=board), state, change)
        assert found == (Commanded("slots", change),)


def test_what_cannot_be_is_one_clear_error() -> None:
    state = with_slots(2)
    board = {"asked": 3, "room": 4}  # one is starting
    with pytest.raises(StudyError, match="has 2 slots, and one must stay: remove"):
        slot_entries(of_run(board=board), state, "-3")
    with pytest.raises(StudyError, match="room for 4 slots of this .* would be 5: ask for fewer"):
        slot_entries(of_run(board=board), state, "+2")
    with pytest.raises(StudyError, match="backend local.*again with --backend ray"):
        slot_entries(of_run("local"), state, "+1")
    with pytest.raises(StudyError, match="lent by the pool in /p, which divides them"):
        slot_entries(of_run(address="pool:/p"), state, "+1")
    lost = {"asked": 3, "room": 1}  # a node has gone: the slots that are there may stay
    assert slot_entries(of_run(board=lost), state, "2")


def test_numbers_of_slots() -> None:
    assert slot_count("+2", 3) == 5
    assert slot_count("-1", 3) == 2
    assert slot_count("7", 3) == 7
    with pytest.raises(ValueError, match="'many' is not"):
        slot_count("many", 3)


class Noting:
    """A backend that notes what it is told."""

    def __init__(self, asked: int) -> None:
        self.asked, self.told = asked, list[int]()

    def size(self) -> Any:
        return SimpleNamespace(asked=self.asked, room=9)

    def resize(self, n: int) -> None:
        self.told.append(n)


def test_the_last_slot_stays_though_two_people_ask() -> None:
    backend = Noting(3)
    watcher = SlotResizer(backend)
    watcher(0.0, (Commanded("stop", "asked for"),), State())
    assert backend.told == []
    watcher(1.0, (Commanded("slots", "-2"), Commanded("slots", "-2")), State())
    watcher(2.0, (Commanded("slots", "+2"), Commanded("slots", "-1")), State())
    assert backend.told == [1, 4]


def test_a_study_that_nobody_runs(tmp_path: Path) -> None:
    study = shoal.create_study(Steady(), storage=tmp_path / "s")
    with pytest.raises(StudyError, match="has not begun"):
        study.slots(add=1)
    study.optimize(max_epochs=1, progress=False)
    lines = len(study.lines())
    with pytest.raises(StudyError, match="is not running: say how many .* slots="):
        study.slots(add=1)
    for wrong in ({}, {"add": 1, "remove": 1}):
        with pytest.raises(StudyError, match="one of the three"):
            study.slots(**wrong)
    with pytest.raises(StudyError, match="above 0; got 0. To end the run, use stop"):
        study.slots(remove=0)
    assert len(study.lines()) == lines and not inbox.Inbox(tmp_path / "s")


def test_a_local_run_says_that_it_has_one_slot(tmp_path: Path) -> None:
    study = shoal.create_study(Steady(), storage=tmp_path / "s")
    said: list[str] = []

    def ask(study: shoal.Study, trial: Any) -> None:
        try:
            study.slots(add=1)
        except StudyError as error:
            said.append(str(error))

    study.optimize(max_epochs=1, progress=False, callbacks=[ask])
    assert said and all("backend local" in text for text in said)


# -- on real slots -------------------------------------------------------------------------------


@pytest.fixture
def shoal_(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    commands.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(platform.system() != "Linux", reason="slots of Ray on Linux")
def test_slots_are_added_and_removed_while_a_study_trains(tmp_path: Path, shoal_: Commands) -> None:
    pytest.importorskip("ray", reason="more than one slot needs Ray")
    values = ",".join(str((i + 1) / 20) for i in range(16))
    study = shoal_(
        *("run", "recipe.py", "--space", f"lr=grid([{values}])", "--policy", "fifo"),
        *("--max-epochs", "40", "--storage", "s", "--backend", "ray", "--slots", "2"),
    )
    folder = Folder(tmp_path / "s")

    def there() -> int:
        return len(fold(State(), [line.entry for line in folder.lines()]).slots)

    until(lambda: folder.journal.exists() and there() == 2)
    until(lambda: (folder.slots() or {}).get("room", 0) > 0)
    assert "slots:   add 1" in ended(shoal_("slots", "s", "add", "1"))
    until(lambda: there() == 3)
    assert "room for" in ended(shoal_("slots", "s", "add", "5000"), 2)
    until(lambda: len((folder.slots() or {"slots": ()})["slots"]) == 3)
    assert "one must stay" in ended(shoal_("slots", "s", "remove", "3"), 2)
    ended(shoal_("slots", "s", "set", "1"))
    until(lambda: there() == 1)
    assert ended(shoal_("status", "s")).count(": gone;") == 2
    shoal_.hurry()
    ended(study)

    entries = [line.entry for line in folder.lines()]
    asked = [entry.why for entry in entries if isinstance(entry, Commanded)]
    assert asked == ["+1", "1"]
    left = [entry for entry in entries if isinstance(entry, Left)]
    assert sum(len(entry.slots) for entry in left) == 2
    assert not any(entry.died for entry in left)
    found = shoal.load_study(tmp_path / "s")
    assert {trial.status for trial in found.trials} == {"finished"}
    assert "16 of 16 trials equal" in ended(shoal_("replay", "s"))
