"""What is the process's belongs to one run: reports, random states, signals; and what forks do."""

import asyncio
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal

SPACE = {"k": shoal.grid([1.0, 2.0])}
FORK = multiprocessing.get_context("fork")


def ends_within(process: Any) -> bool:
    """Whether SIGTERM ends the process, as `Pool` waits for."""
    process.terminate()
    process.join(20)
    alive = process.is_alive()
    process.kill()
    process.join()
    return not alive


def function(call: Callable[[], Any], folder: Path) -> shoal.Study:
    """A study of a function that makes the call in each of its trials."""

    def train(config: Mapping[str, Any]) -> None:
        call()
        shoal.report({"loss": config["k"]})

    return shoal.create_study(train, storage=folder, metric="loss", mode="min", search_space=SPACE)


def recipe(call: Callable[[], Any], folder: Path, blobs: Any) -> shoal.Study:
    """A study of a recipe that makes the call in its steps, which are in the main thread."""

    class Calls(blobs):  # type: ignore[misc]
        def validation_step(self, model: Any, batch: Any) -> Any:
            call()
            return super().validation_step(model, batch)

    space = {"width": shoal.grid([8]), "lr": shoal.grid([0.1])}
    return shoal.create_study(
        Calls(), storage=folder, search_space=space, metric="accuracy", mode="max"
    )


@pytest.mark.parametrize("first", ["function", "recipe"])
@pytest.mark.parametrize("second", ["function", "recipe"])
@pytest.mark.parametrize("nested", [True, False], ids=["in a trial", "in a thread"])
def test_a_second_study_is_refused_before_anything_starts(
    tmp_path: Path, blobs: Any, first: str, second: str, nested: bool
) -> None:
    said: list[str] = []

    def begin() -> None:
        try:
            inner.optimize(progress=False, max_epochs=1)
        except shoal.StudyError as error:
            said.append(str(error))

    def call() -> None:
        if nested:
            begin()
        else:
            thread = threading.Thread(target=begin)
            thread.start()
            thread.join()

    def study(kind: str, name: str, call: Callable[[], Any]) -> shoal.Study:
        if kind == "function":
            return function(call, tmp_path / name)
        return recipe(call, tmp_path / name, blobs)

    inner = study(second, "second", lambda: None)
    outer = study(first, "first", call)
    outer.optimize(progress=False, max_epochs=1)
    assert {trial.status for trial in outer.trials} == {"finished"}
    assert said
    for text in said:
        assert f"while this process trains the study in {tmp_path / 'first'}" in text
        assert "in a process of its own" in text
    assert not (tmp_path / "second").exists()
    begin()  # the first has ended
    assert (tmp_path / "second" / "journal.jsonl").exists()


def test_a_replay_is_refused_while_a_study_trains(tmp_path: Path, blobs: Any) -> None:
    done = shoal.create_study(
        blobs(),
        storage=tmp_path / "done",
        search_space={"width": shoal.grid([8]), "lr": shoal.grid([0.1])},
    )
    done.optimize(progress=False, max_epochs=1)

    def call() -> None:
        with pytest.raises(shoal.StudyError, match="cannot begin while this process"):
            done.replay()

    study = function(call, tmp_path / "other")
    study.optimize(progress=False)
    assert {trial.status for trial in study.trials} == {"finished"}


@pytest.mark.parametrize("kind", ["function", "recipe"])
def test_forks_of_a_trial_end_by_sigterm_and_train_nothing(
    tmp_path: Path, blobs: Any, kind: str
) -> None:
    """`Pool` ends its workers so, and waits for them."""
    ended: list[bool] = []
    handlers: list[Any] = []
    before = signal.getsignal(signal.SIGTERM)

    def call() -> None:
        own, theirs = FORK.Pipe()
        process = FORK.Process(target=forked, args=(theirs,))
        process.start()
        handlers.append(own.recv())
        ended.append(ends_within(process))

    def forked(pipe: Any) -> None:
        pipe.send(signal.getsignal(signal.SIGTERM) == before)
        signal.pause()

    study = (
        function(call, tmp_path / "s")
        if kind == "function"
        else recipe(call, tmp_path / "s", blobs)
    )
    study.optimize(progress=False, max_epochs=1)
    assert {trial.status for trial in study.trials} == {"finished"}
    assert ended and all(ended) and all(handlers)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_comes_with_the_fork_ends_it_too(tmp_path: Path) -> None:
    """Before the fork has our handlers taken off, that is."""
    ended: list[int] = []

    def call() -> None:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.pause()
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            deadline = time.monotonic() + 20
            while not (got := os.waitpid(child, os.WNOHANG))[0]:
                if time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                time.sleep(0.001)
            ended.append(os.WTERMSIG(got[1]))

    # Ray leaves a handler of its own in a process that it was in.
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        function(call, tmp_path / "s").optimize(progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM] * 20


def test_a_report_of_a_fork_is_refused_and_a_study_of_a_fork_trains(tmp_path: Path) -> None:
    said: list[Any] = []

    def call() -> None:
        own, theirs = FORK.Pipe()
        process = FORK.Process(target=forked, args=(theirs,))
        process.start()
        said.append(own.recv() if own.poll(60) else "it hangs")
        process.kill()
        process.join()

    def forked(pipe: Any) -> None:
        try:
            shoal.report(1.0)
        except RuntimeError as error:
            inner = function(lambda: None, tmp_path / f"inner-{os.getpid()}")
            inner.optimize(progress=False)
            pipe.send((str(error), [trial.status for trial in inner.trials]))

    function(call, tmp_path / "outer").optimize(progress=False)
    assert len(said) == 2
    for text, statuses in said:
        assert "in the process in which Shoal calls the function" in text
        assert statuses == ["finished", "finished"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL),
        lambda: asyncio.new_event_loop().add_signal_handler(signal.SIGALRM, print),
    ],
    ids=["signal", "asyncio"],
)
def test_a_function_that_sets_a_signal_handler_is_told_why_it_cannot(
    tmp_path: Path, call: Callable[[], Any]
) -> None:
    with pytest.raises(shoal.StudyError, match="in a thread that is not the main one"):
        function(call, tmp_path / "s").optimize(progress=False)


class Moves:
    """A callback that changes the folder of the process."""

    def on_epoch(self, study: Any, trial: Any, epoch: float, values: Any) -> None:
        os.chdir(tempfile.mkdtemp(dir=Path(study.folder.path).parent))


@pytest.mark.parametrize(
    "name", ["runs/s", "~/s", "odd::name/s", "~nosuchuser/s"], ids=["plain", "~", "::", "~x"]
)
@pytest.mark.parametrize("kind", ["function", "recipe"])
def test_a_study_stays_in_one_folder_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: Any, kind: str, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name.replace("~/", "home/")
    seen: list[str] = []

    def call() -> None:
        seen.append(os.getcwd())
        os.chdir(tempfile.mkdtemp(dir=tmp_path))
        if kind == "function":
            shoal.report({"loss": 1.0}, checkpoint={"a": 1})

    if kind == "function":
        study = function(call, Path(name))
        study.optimize(progress=False)
        assert seen == [str(tmp_path)] * 2  # each trial begins where the study did
    else:
        study = recipe(lambda: None, Path(name), blobs)
        study.optimize(progress=False, callbacks=[Moves()], max_epochs=3)
    assert {trial.status for trial in study.trials} == {"finished"}
    assert {"journal.jsonl", "checkpoints"} <= {each.name for each in folder.iterdir()}
    assert shoal.load_study(folder).trials[0].status == "finished"


def test_two_studies_whose_folders_share_an_ending_keep_their_weights(
    tmp_path: Path, blobs: Any
) -> None:
    """fsspec takes what stands behind `::` for another place."""
    for name in ("a::x", "b::x"):
        study = recipe(lambda: None, tmp_path / name / "s", blobs)
        study.optimize(progress=False, max_epochs=1)
    for name in ("a::x", "b::x"):
        shoal.load_study(tmp_path / name / "s").best_model()


def test_data_of_another_folder_is_said_to_be_where_the_study_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: Any
) -> None:
    began, other = tmp_path / "began", tmp_path / "other"
    for folder in (began, other):
        folder.mkdir()
    np.save(began / "y.npy", np.arange(120) % 3)

    class Relative(blobs):  # type: ignore[misc]
        def data(self) -> Any:
            y = np.load("y.npy")
            x = np.ones((len(y), 5), "float32")
            return shoal.Data.arrays(x, y, shards=2, validation=0.25)

    monkeypatch.chdir(began)
    space = {"width": 8, "lr": shoal.grid([0.1])}
    shoal.create_study(Relative(), storage="s", search_space=space).optimize(
        progress=False, max_epochs=1
    )
    monkeypatch.chdir(other)
    study = shoal.load_study(began / "s")
    for read in (lambda: study.resume(progress=False), study.replay, study.data):
        with pytest.raises(shoal.StudyError, match=f"begun in {began}, and this process"):
            read()
    monkeypatch.chdir(began)
    study.resume(progress=False)
    assert [row["verdict"] for row in study.replay()] == ["equal"]
