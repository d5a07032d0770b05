"""What people ask of a study while it runs: it comes through the inbox, and the journal says it."""

import json
import shutil
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_kit import Steady, lines_of

import shoal
from shoal.core.event import Advanced, Kept, Retired, Submitted
from shoal.core.trial import TrialId
from shoal.policy import Pack
from shoal.study import inbox
from shoal.study.inbox import AddNote, Inbox, StopNote
from shoal.train.lane.checkpoints import Checkpoints

OPTIONS = {"max_epochs": 3, "checkpoint_every": 0, "progress": False}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "EVERY", 0.02)


@pytest.mark.parametrize("former", [signal.default_int_handler, signal.SIG_IGN])
def test_a_second_interrupt_ends_a_run_in_a_shells_background_too(former: Any) -> None:
    """There SIGINT is ignored from the start."""
    told: list[Any] = []
    outside = signal.signal(signal.SIGINT, former)
    try:
        with inbox.stop_signals(told.append):
            signal.raise_signal(signal.SIGINT)
            assert [each.why for each in told] == ["SIGINT"]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == former
    finally:
        signal.signal(signal.SIGINT, outside)


@contextmanager
def running(study: shoal.Study, **options: Any) -> Iterator[Callable[[Callable[[], Any]], None]]:
    """The study of `slow` runs in a thread; gives a way to wait for something. At the end it has
    ended: its steps take no time any more once all notes were taken.
    """
    failed: list[BaseException] = []

    def optimize() -> None:
        try:
            study.optimize(**OPTIONS | options)
        except BaseException as error:  # noqa: BLE001 shown by the test
            failed.append(error)

    def until(met: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while not met():
            assert thread.is_alive() and time.monotonic() < deadline, failed or "waited in vain"
            time.sleep(0.005)

    thread = threading.Thread(target=optimize)
    thread.start()
    try:
        yield until
        while Inbox(study.folder.path) and thread.is_alive():
            time.sleep(0.005)
    finally:
        Path(study.recipe.until).touch()
        thread.join(60)
    assert not failed


def slow(folder: Path) -> Steady:
    """It takes half a minute and more, so that whatever is asked for comes before its end."""
    return Steady(slow=0.2, until=str(folder / "go"))


def visits(folder: Path) -> int:
    return sum(
        len(v) for _, e in lines_of(folder) if isinstance(e, Advanced) for v in e.visits.values()
    )


def told(study: shoal.Study) -> list[Any]:
    return [
        e
        for _, e in study.lines()
        if isinstance(e, Retired) or (isinstance(e, Submitted) and e.trial.id[0] != "t")
    ]


@pytest.mark.parametrize("policy", ["hop", Pack("random", most=3)], ids=["hop", "pack"])
def test_a_running_study_takes_in_trials_and_gives_up_others(
    tmp_path: Path, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Checkpoints, "delete", lambda self, name: None
    )  # a study that is cut needs the states of then
    folder = tmp_path / "s"
    study = shoal.create_study(slow(tmp_path), storage=folder)
    with running(study, policy=policy) as until:
        until(lambda: visits(folder) >= 2 and any(isinstance(e, Kept) for _, e in lines_of(folder)))
        other = shoal.load_study(folder)  # as another process would
        assert other.enqueue({"width": 9}, max_epochs=2) == "added1"
        assert other.enqueue({"width": 10}, max_epochs=2) == "added2"
        other.stop("t003")
        other.stop("added2")
        with pytest.raises(shoal.StudyError, match="there is no trial t009"):
            other.stop("t009")
        until(lambda: not Inbox(folder))
        assert [type(e).__name__ for e in told(other)] == [
            "Submitted",
            "Submitted",
            "Retired",
            "Retired",
        ]
    found = {t.id: (t.status, t.epochs) for t in study.trials}
    assert found["added1"] == ("finished", 2) and found["t000"] == ("finished", 3)
    assert found["t003"][0] == found["added2"][0] == "retired" and found["added2"][1] < 2
    assert not study.state.plan.gangs
    assert all(row["equal"] for row in study.replay())
    resumed(study, tmp_path, policy)


def resumed(study: shoal.Study, folder: Path, policy: Any) -> None:
    """Cut just after the journal had what was asked for, and gone on with: the same."""
    lines = study.folder.journal.read_bytes().splitlines(keepends=True)
    cut = max(i for i, line in enumerate(lines) if b'"e":"Retired"' in line) + 1
    again = shoal.create_study(study.recipe, storage=folder / "again", load_if_exists=True)
    shutil.copytree(study.folder.path / "checkpoints", folder / "again" / "checkpoints")
    again.folder.journal.write_bytes(b"".join(lines[:cut]))
    again.optimize(policy=policy, **OPTIONS)
    assert {t.id: t.status for t in again.trials} == {t.id: t.status for t in study.trials}
    for trial in (t.id for t in study.trials if t.status == "finished"):
        one, two = (s.load_model(trial).state_dict() for s in (study, again))
        assert all(np.array_equal(one[k].numpy(), two[k].numpy()) for k in one), trial


def test_a_copy_of_a_trial_that_runs(tmp_path: Path) -> None:
    study = shoal.create_study(slow(tmp_path), storage=tmp_path / "s")
    with running(study, policy="fifo") as until:
        until(lambda: any(isinstance(e, Kept) for _, e in lines_of(tmp_path / "s")))
        assert study.clone("t000", {"width": 4}, max_epochs=4) == "t000-c1"
        assert study.clone("t003", warm_start=False) == "t003-c1"
        with pytest.raises(shoal.StudyError, match="nothing of trial t003-c1 is durable yet"):
            study.clone("t003-c1")
    found = {t.id: (t.status, t.epochs) for t in study.trials}
    assert found["t000-c1"] == ("finished", 4) and found["t003-c1"] == ("finished", 3)
    assert study.state.known["t000-c1"].start[0] == "t000"  # type: ignore[index]
    assert all(row["equal"] for row in study.replay(["t000-c1", "t003-c1"]))


def test_a_trial_is_extended_while_it_runs_and_after_its_end(tmp_path: Path) -> None:
    study = shoal.create_study(slow(tmp_path), storage=tmp_path / "s")
    with running(study, policy="fifo") as until:
        until(lambda: visits(tmp_path / "s") >= 2)
        study.extend("t000", 5)  # it runs
        study.extend("t003", 4)  # it waits
        study.stop("t002")
        with pytest.raises(shoal.StudyError, match="to train 5 epochs already"):
            study.extend("t000", 2)
        with pytest.raises(shoal.StudyError, match="there is no trial t009"):
            study.extend("t009", 4)
    assert {t.id: (t.status, t.epochs) for t in study.trials if t.id != "t002"} == {
        "t000": ("finished", 5),
        "t001": ("finished", 3),
        "t003": ("finished", 4),
    }
    with pytest.raises(shoal.StudyError, match="t002 was stopped early, and only"):
        study.extend("t002", 9)
    study.extend("t001", 4)
    study.extend("t001", 4)  # asked for twice, it is the same
    study.resume(progress=False)
    assert study.trials[1].status == "finished" and study.trials[1].epochs == 4
    assert all(row["equal"] for row in study.replay(["t000", "t001", "t003"]))


def test_a_trial_whose_state_is_gone_is_not_extended(tmp_path: Path) -> None:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    study.optimize(**OPTIONS | {"max_epochs": 1})
    shutil.rmtree(tmp_path / "s" / "checkpoints" / "t001")
    with pytest.raises(shoal.StudyError, match="make a cold copy"):
        study.extend("t001", 2)


def test_a_run_is_stopped_and_goes_on(tmp_path: Path) -> None:
    study = shoal.create_study(slow(tmp_path), storage=tmp_path / "s")
    with running(study, policy="fifo") as until:
        until(lambda: visits(tmp_path / "s") >= 2)
        study.stop()
    assert study.state.stopped == "asked for" and study.state.trials
    study.resume(progress=False)
    assert all(t.status == "finished" for t in study.trials) and len(study.trials) == 4


def test_what_no_run_has_read_is_read_first(tmp_path: Path) -> None:
    """A note of a run that died, one that was taken before, one that cannot be done, and one
    that is none.
    """
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    study.optimize(**OPTIONS | {"max_epochs": 1})
    box = Inbox(tmp_path / "s")
    added = AddNote(TrialId("added1"), {"width": 9}, 1, (1, 1))
    stops = [StopNote(TrialId("t009")), StopNote(None), StopNote(TrialId("t000"))]
    with box.writing():
        for note in (added, added, *stops):
            box.leave(note)
        (box.folder / "000099.json").write_text("{")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        study.resume(progress=False)
    texts = [str(w.message) for w in said]
    assert any("there is no trial t009" in text for text in texts) and any(
        "not a note to a study" in text for text in texts
    )
    assert not box and study.state.stopped is None
    assert [t.status for t in study.trials] == ["finished"] * 5 and study.trials[-1].config == {
        "width": 9
    }


def test_names_of_notes_that_wait_are_taken(tmp_path: Path) -> None:
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    study.optimize(**OPTIONS | {"max_epochs": 1})
    with study.folder.lock():  # somebody runs it, and looks at nothing
        assert [study.enqueue({"width": w}, max_epochs=1) for w in (9, 10)] == ["added1", "added2"]
        study.stop("added1")
        assert study.trials[-1].id == "t003"
    assert study.enqueue({"width": 11}, max_epochs=1) == "added3", "what was left is taken in first"
    assert not Inbox(tmp_path / "s")
    assert {t.id: t.status for t in study.trials if t.id[0] == "a"} == {
        "added1": "retired",
        "added2": "running",
        "added3": "running",
    }


class Reader(Steady):
    """Reads more of a configuration."""

    def configure_model(self, config: Any) -> Any:
        for name in ("layers", "act", "none", "inf"):
            config.get(name)
        return super().configure_model(config)


def test_values_come_as_they_were_given(tmp_path: Path) -> None:
    study = shoal.create_study(Reader(slow=0), storage=tmp_path / "s")
    study.optimize(**OPTIONS | {"max_epochs": 1})
    config = {
        "width": 4,
        "lr": 1e-30,
        "layers": (1, (2, 3)),
        "act": "relu",
        "none": None,
        "inf": float("inf"),
    }
    with study.folder.lock():
        study.enqueue(config, max_epochs=1)
    study.enqueue(config, max_epochs=1)
    one, two = (study.state.known[name].config for name in ("added1", "added2"))  # type: ignore[index]
    assert one == two == config


def test_a_note_that_is_taken_while_others_are_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Inbox(tmp_path)
    with notes.writing():
        notes.leave(StopNote(TrialId("t001")))
        notes.leave(StopNote(TrialId("t002")))
    first = min(notes.read())
    listed = [first, max(notes.read())]
    first.unlink()
    monkeypatch.setattr(Inbox, "paths", lambda self: listed)
    assert list(notes.read().values()) == [StopNote(TrialId("t002"))]


def nested(deep: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(deep):
        found = [found]
    return found


@pytest.mark.parametrize(
    "asked",
    [
        {"add": "added1", "config": {"width": {"of": "it"}}},
        {"add": "added1", "config": ["width", 9]},
        {"add": "added1", "config": None},
        {"add": "../../x", "config": {"width": 9}},
        {"extend": "t000", "max_epochs": 1e300},
        {"stop": nested(450)},
    ],
    ids=str,
)
def test_a_note_of_a_stranger_leaves_the_journal_as_one_that_can_be_read(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    """Whoever may write to a shared folder may leave a note, whatever it says."""
    study = shoal.create_study(Steady(slow=0), storage=tmp_path / "s")
    study.optimize(**OPTIONS | {"max_epochs": 1})
    box = Inbox(tmp_path / "s")
    with box.writing():
        note = {"max_epochs": 1, "widths": [1, 1], **asked}
        (box.folder / "000001.json").write_text(json.dumps(note))
    with pytest.warns(UserWarning, match="and cannot do it|is not a note to a study"):
        study.resume(progress=False)
    assert not box
    again = shoal.load_study(tmp_path / "s")
    assert [t.status for t in again.trials] == ["finished"] * 4


def test_a_note_that_cannot_be_done_is_told_without_its_secrets(tmp_path: Path) -> None:
    notes = Inbox(tmp_path)
    with notes.writing():
        config = {"api_key": "hidden", "more": "y" * 10**5}
        notes.leave(AddNote(TrialId("x"), config, 1, (1, 1)))

    def refuse(*_: object) -> None:
        raise ValueError("z" * 10**5)

    with pytest.warns(UserWarning, match="cannot do it") as told:
        inbox.note_entries(notes, None, refuse)  # type: ignore[arg-type]
    said = str(told[0].message)
    assert "hidden" not in said and len(said) < 1000
