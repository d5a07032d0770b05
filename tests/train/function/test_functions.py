"""Functions as trials: reports are epochs, checkpoints are states."""

import asyncio
import functools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
import torch
from function_kit import losses, train

import shoal
from shoal.core.errors import StudyError
from shoal.core.event import Fell
from shoal.reporting import account, status_lines, summary
from shoal.reporting.facts import tiles
from shoal.train.function.recipe import returns_value
from shoal.train.lane.checkpoints import Checkpoints

SPACE = {"lr": shoal.grid([0.1, 0.01, 0.001])}


def made(folder: Path, function: Any = train, space: Any = None) -> shoal.Study:
    """A study of a function."""
    return shoal.create_study(function, storage=folder, metric="loss", search_space=space or SPACE)


def test_reports_are_epochs_and_trials_are_as_alone(tmp_path: Path) -> None:
    study = made(tmp_path / "s")
    study.optimize(max_epochs=4, progress=False)
    assert [t.status for t in study.trials] == ["finished"] * 3
    assert [t.epochs for t in study.trials] == [4.0] * 3
    alone = made(tmp_path / "alone", space={"lr": shoal.grid([0.01])})
    alone.optimize(max_epochs=4, progress=False)
    assert losses(alone)[0] == losses(study)[1]
    best = study.best_trial
    assert best.value == min(t.value for t in study.trials)
    assert study.checkpoint(best)["epoch"] == 4
    with pytest.raises(StudyError, match="study.checkpoint"):
        study.best_model()


def test_a_function_that_returns_ends_its_trial(tmp_path: Path) -> None:
    def short(config: dict[str, Any]) -> Any:
        for step in range(config["n"]):
            shoal.report(float(step))
        return {"loss": -1.0, "history": [1, 2]} if config["n"] == 2 else None

    study = made(tmp_path, short, {"n": shoal.grid([0, 1, 2])})
    study.optimize(progress=False)
    assert [t.status for t in study.trials] == [
        "failed: the function ended without a score: report one, as "
        "shoal.report({'loss': value}), or return it",
        "finished",
        "finished",
    ]
    assert losses(study) == [[], [0.0], [0.0, 1.0, -1.0]]
    assert [t.epochs for t in study.trials] == [0, 1, 2]


def epochs_and_losses(study: shoal.Study) -> list[list[tuple[float, float]]]:
    """The epoch and the loss of each score, by trial."""
    return [[(epoch, values["loss"]) for epoch, values in t.scores] for t in study.trials]


@pytest.mark.parametrize("max_epochs", [None, 3, 2])
def test_what_is_returned_is_the_score_of_the_last_report(
    tmp_path: Path, max_epochs: int | None
) -> None:
    made_reports: list[int] = []

    def best(config: dict[str, Any]) -> float:
        for step in range(config["n"]):
            made_reports.append(step)
            shoal.report({"loss": 3.0 - step})
        return 0.5

    study = made(tmp_path, best, {"n": shoal.grid([1, 3])})
    study.optimize(progress=False, max_epochs=max_epochs)
    study = shoal.load_study(tmp_path, trust=True)
    study.resume(progress=False)  # there is nothing more to do
    short, long = epochs_and_losses(study)
    assert short == [(1.0, 3.0), (1.0, 0.5)]
    assert [t.status for t in study.trials] == ["finished"] * 2
    if max_epochs is None:
        assert long == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0), (3.0, 0.5)]
    elif max_epochs == 3:  # it is not stopped at its last report
        assert long == [(1.0, 3.0), (2.0, 2.0), (3.0, 0.5)]
    else:  # it is, at the report after that
        assert long == [(1.0, 3.0), (2.0, 2.0)]
    assert study.trials[1].epochs == min(3, max_epochs or 3)
    again = made(tmp_path / "again", lambda config: 2.0, {"n": shoal.grid([1])})
    again.optimize(progress=False, max_epochs=max_epochs)
    assert epochs_and_losses(again) == [[(1.0, 2.0)]], "what only returns has one epoch"


def test_only_what_may_return_a_value_goes_on_after_the_last_report(tmp_path: Path) -> None:
    begun: list[int] = []

    def endless(config: dict[str, Any]) -> None:
        for step in range(9):
            begun.append(step)
            shoal.report({"loss": float(step)})

    made(tmp_path / "s", endless, {"n": shoal.grid([0])}).optimize(progress=False, max_epochs=3)
    assert begun == [0, 1, 2]


class Called:
    def __call__(self, config: Any) -> Any:
        return config

    def nothing(self, config: Any) -> None:
        self.given = config


def nothing_from_a_loop(config: Any) -> None:
    with suppress(ValueError):
        for each in config:
            if each:
                return


def value_or_none(config: Any) -> Any:
    return config["x"] if config else None


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (nothing_from_a_loop, False),
        (Called().nothing, False),
        (functools.partial(functools.partial(nothing_from_a_loop)), False),
        ("python train.py", False),
        (value_or_none, True),
        (lambda config: config or None, True),
        (lambda config: 0, True),
        (Called(), True),
        (Called().__call__, True),
        (functools.partial(value_or_none), True),
        (len, True),
    ],
)
def test_code_tells_whether_a_function_may_return_a_value(function: Any, may: bool) -> None:
    assert returns_value(function) is may


def test_killed_before_its_end_is_noted_it_has_the_same_scores(tmp_path: Path) -> None:
    def returning(config: dict[str, Any]) -> float:
        for step in range(shoal.restore() or 0, 2):
            shoal.report({"loss": config["lr"] - step}, checkpoint=step + 1)
        return -config["lr"]

    def scores(folder: Path) -> list[list[tuple[float, float]]]:
        study = shoal.create_study(
            returning, storage=folder, metric="loss", search_space=SPACE, load_if_exists=True
        )
        study.optimize(progress=False)
        return epochs_and_losses(study)

    whole = scores(tmp_path / "whole")
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if '"Finished"' in line]
    assert len(ends) == 3
    for end in ends:
        killed = shutil.copytree(tmp_path / "whole", tmp_path / str(end))
        (killed / "journal.jsonl").write_text("".join(lines[:end]))
        assert scores(killed) == whole


def test_a_function_that_returns_is_made_longer_where_it_waits(tmp_path: Path) -> None:
    begun: list[int] = []

    class Longer(shoal.Callback):
        def on_trial_end(self, study: shoal.Study, trial: Any) -> None:
            if trial.epochs < 4:
                study.extend(trial, 4)

    def returning(config: dict[str, Any]) -> float:
        for step in range(9):
            begun.append(step)
            shoal.report({"loss": float(step)})
        return 0.0

    study = made(tmp_path / "s", returning, {"n": shoal.grid([0])})
    study.optimize(progress=False, max_epochs=2, callbacks=[Longer()])
    assert epochs_and_losses(study) == [[(n + 1.0, float(n)) for n in range(4)]]
    assert begun == [0, 1, 2, 3, 4]


def test_a_rung_that_is_not_the_last_is_no_end(tmp_path: Path) -> None:
    begun: list[int] = []

    def returning(config: dict[str, Any]) -> float:
        for step in range(config.get("n", 4)):
            begun.append(step)
            shoal.report({"loss": config["x"] + 4 - step})
        return -config["x"]

    study = made(tmp_path, returning, {"x": shoal.uniform(0.0, 1.0)})
    study.optimize("halving(reduction_factor=2)", num_samples=4, max_epochs=4, progress=False)
    assert sorted(begun) == [0] * 4 + [1] * 2 + [2, 3], "none goes on at a rung"
    assert study.best_trial.epochs == 4 and study.best_trial.value == -study.best_trial.config["x"]


def test_an_error_after_the_last_report_fails_the_trial(tmp_path: Path) -> None:
    def broken(config: dict[str, Any]) -> float:
        shoal.report({"loss": 1.0})
        if config["n"]:
            raise ValueError("no test data")
        return 0.5

    study = made(tmp_path, broken, {"n": shoal.grid([0, 1])})
    study.optimize(progress=False, max_epochs=1)
    assert [t.status for t in study.trials] == ["finished", "failed: ValueError: no test data"]


def test_a_function_without_a_finite_score_has_diverged(tmp_path: Path) -> None:
    scores = {"never": [nan, inf, nan], "once": [0.5, 0.4, nan], "late": [nan, 0.3]}

    def unsteady(config: dict[str, Any]) -> Any:
        for value in scores[config["kind"]]:
            shoal.report({"loss": value, "other": 1.0})

    study = made(tmp_path, unsteady, {"kind": shoal.grid([*scores])})
    study.optimize(progress=False)
    assert [t.status for t in study.trials] == [
        "failed: diverged: of its scores of 'loss', 3 in all, none was finite",
        "finished",
        "finished",
    ]
    assert study.best_trial.config["kind"] == "late"


def test_scores_that_are_there_but_not_finite_are_said(tmp_path: Path) -> None:
    def falls(config: dict[str, Any]) -> Any:
        for value in (0.5, 0.4, nan):
            shoal.report({"loss": value})

    study = made(tmp_path, falls, {"k": shoal.grid([1, 2])})
    study.optimize(progress=False)
    why = r"there are 6 scores 'loss', 4 of them finite, .* not finite .*\(t000 nan, t001 nan\)"
    with pytest.raises(shoal.StudyError, match=why):
        _ = study.best_trial


def test_rungs_go_on_without_a_restart(tmp_path: Path) -> None:
    notes = str(tmp_path / "notes")
    space = {"lr": shoal.loguniform(1e-3, 1e-1), "notes": notes}
    study = made(tmp_path / "s", space=space)
    study.optimize("asha", num_samples=6, max_epochs=9, progress=False)
    lines = Path(notes).read_text().split("\n")
    assert lines.count("from 0") == 6 and not any(
        line.startswith("from") and line != "from 0" for line in lines
    )
    assert lines.count("over") == 6  # `finally` ran, of those that were stopped, too
    assert max(t.epochs for t in study.trials) == 9.0


def test_functions_that_are_too_many_start_again_from_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trials that gave none the reports are void, and said to be."""
    monkeypatch.setattr("shoal.train.function.trainer.AT_REST", 0)
    usual = made(tmp_path / "usual", space={"lr": shoal.grid([0.1, 0.01, 0.001])})
    usual.optimize(max_epochs=9, progress=False)
    for every, fallen in ((1, False), (100, True)):
        space = {"lr": shoal.grid([0.1, 0.01, 0.001]), "every": every}
        study = made(tmp_path / f"s{every}", space=space)
        study.optimize("halving(num_samples=3)", max_epochs=9, progress=False)
        found = max(losses(study), key=len)
        assert found in losses(usual)
        assert any(isinstance(e, Fell) for _, e in study.lines()) == fallen


def test_an_error_is_the_trials_own(tmp_path: Path) -> None:
    def fragile(config: dict[str, Any]) -> None:
        shoal.report(1.0)
        if config["lr"] == 0.01:
            raise RuntimeError("no luck")
        state = {"lr": config["lr"]} if config["lr"] < 0.01 else {"object": object()}
        shoal.report(0.5, checkpoint=state)

    study = made(tmp_path, fragile)
    study.optimize(progress=False, max_epochs=2)
    how = [t.status for t in study.trials]
    assert how[0].startswith("failed: TypeError") and "no luck" in how[1]
    text = (tmp_path / "trials" / "t001" / "error.txt").read_text()
    assert "in fragile" in text and "no luck" in text


@pytest.mark.parametrize(
    "raised", [asyncio.CancelledError(), type("Panic", (BaseException,), {})("!")]
)
def test_what_is_no_exception_is_the_trials_own_too(tmp_path: Path, raised: BaseException) -> None:
    def bad(config: dict[str, Any]) -> float:
        if config["lr"] == 0.01:
            raise raised
        return 1.0

    study = made(tmp_path, bad)
    study.optimize(progress=False)
    statuses = [trial.status for trial in study.trials]
    assert statuses[0] == statuses[2] == "finished"
    assert type(raised).__name__ in statuses[1]


def test_an_odd_name_is_the_trials_own_error(tmp_path: Path) -> None:
    def odd(config: dict[str, Any]) -> dict[str, float]:
        return {"\ud800": 1.0} if config["lr"] == 0.01 else {"loss": 1.0}

    study = made(tmp_path, odd)
    study.optimize(progress=False)
    statuses = [trial.status for trial in study.trials]
    assert statuses[0] == statuses[2] == "finished"
    assert "names of values are texts that UTF-8 can hold" in statuses[1]


async def coroutine(config: dict[str, Any]) -> float:
    return 1.0


def generator(config: dict[str, Any]) -> Any:
    yield 1.0


async def async_generator(config: dict[str, Any]) -> Any:
    yield 1.0


class AsyncCall:
    async def __call__(self, config: dict[str, Any]) -> float:
        return 1.0


def keywords(*, lr: float) -> float:
    return lr


def two(config: dict[str, Any], other: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (coroutine, "asyncio.run"),
        (functools.partial(coroutine), "asyncio.run"),
        (AsyncCall(), "asyncio.run"),
        (generator, "a generator yields"),
        (async_generator, "a generator yields"),
        (keywords, r"one argument.* keywords takes \(\*, lr"),
        (two, "one argument.* two takes"),
        (lambda: 1.0, "one argument"),
    ],
)
def test_a_function_that_no_call_can_run_is_refused(
    tmp_path: Path, function: Any, match: str
) -> None:
    with pytest.raises(StudyError, match=match):
        made(tmp_path / "s", function).optimize(progress=False)
    assert not (tmp_path / "s" / "journal.jsonl").exists()
    study = shoal.create_study(storage=tmp_path / "t", search_space=SPACE)
    with pytest.raises(StudyError, match=match):
        study.optimize(function, progress=False)


def test_what_came_instead_of_a_score_is_said(tmp_path: Path) -> None:
    def odd(config: dict[str, Any]) -> Any:
        return coroutine(config) if config["lr"] == 0.1 else [config["lr"]]

    study = made(tmp_path, odd)
    with pytest.raises(StudyError, match=r"returned a coroutine.*it returned \[0.01\]"):
        study.optimize(progress=False)


def test_a_decorator_may_give_what_it_wraps_more(tmp_path: Path) -> None:
    @functools.wraps(two)
    def wrapper(config: dict[str, Any]) -> float:
        return two(config, 3)

    study = made(tmp_path, wrapper)
    study.optimize(progress=False)
    assert [trial.value for trial in study.trials] == [1.0] * 3


def test_random_states_are_the_trials(tmp_path: Path) -> None:
    def draws(config: dict[str, Any]) -> None:
        for _ in range(3):
            drawn = torch.rand(1).item() + np.random.rand() + random.random()
            shoal.report(drawn)

    random.seed(5)
    before = random.random()
    random.seed(5)
    study = made(tmp_path, draws, {"seed": shoal.grid([1, 2, 1])})
    study.optimize(max_epochs=3, progress=False)
    assert random.random() == before
    one, two, three = losses(study)
    assert one == three != two


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_checkpoint_may_be_a_path(tmp_path: Path, kind: str) -> None:
    def files(config: dict[str, Any]) -> None:
        place = Path(config["place"])
        restored = shoal.restore()
        count = 0
        if restored is not None:
            file = restored / "deep" / "n.txt" if restored.is_dir() else restored
            count = int(file.read_text())
        while count < 3:
            count += 1
            file = place / "deep" / "n.txt" if config["kind"] == "folder" else place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(str(count))
            shoal.report(float(count), checkpoint=place)
            if config["once"]:
                return

    space = {"place": str(tmp_path / "c"), "kind": kind, "once": False}
    study = made(tmp_path / "s", files, space)
    study.optimize(max_epochs=2, progress=False)
    found = study.checkpoint("t000")
    file = found / "deep" / "n.txt" if kind == "folder" else found
    assert file.read_text() == "2" and file != tmp_path / "c"
    study.extend("t000", max_epochs=3)
    study.resume(progress=False)
    assert losses(study) == [[1.0, 2.0, 3.0]]


def test_the_copy_of_a_file_goes_with_the_process(tmp_path: Path) -> None:
    def file(config: dict[str, Any]) -> None:
        (tmp_path / "c").write_text("1")
        shoal.report(0.0, checkpoint=tmp_path / "c")

    made(tmp_path / "s", file, {"a": 1}).optimize(progress=False)
    found = (
        "import os, shoal, sys; place = shoal.load_study(sys.argv[1]).checkpoint('t000');"
        "child = os.fork(); sys.exit() if child == 0 else os.waitpid(child, 0);"
        "print(place.read_text(), place)"
    )
    command = [sys.executable, "-c", found, str(tmp_path / "s")]
    done = preloaded.run(command, capture_output=True, text=True, check=True)
    text, place = done.stdout.split()
    assert text == "1", "a fork's end deletes nothing"
    assert not Path(place).parent.exists()


def test_a_metric_that_no_report_gives_is_an_error_of_the_study(tmp_path: Path) -> None:
    study = shoal.create_study(
        train, storage=tmp_path, metric="accuracy", mode="max", search_space=SPACE
    )
    with pytest.raises(
        StudyError, match="have no metric 'accuracy'; evaluations give loss"
    ) as error:
        study.optimize(max_epochs=1, progress=False)
    assert isinstance(error.value, ValueError)


def test_values_by_keyword_are_told_how_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r'write shoal.report\({"val_loss": …}\), with checkpoint='):
        shoal.report(val_loss=1.0)
    with pytest.raises(TypeError, match="report takes numbers by name"):
        shoal.report()


def test_status_counts_reports(tmp_path: Path) -> None:
    study = made(tmp_path)
    study.optimize(max_epochs=4, progress=False)
    figures = summary(study.lines())
    assert any(line.startswith("reports  12, ") for line in status_lines(figures))
    assert (figures["unit"], figures["samples"]) == ("reports", 12)
    assert "reports" in [tile.label for tile in tiles(account(study.lines()))]


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "by Ctrl-C"), (signal.SIGTERM, "by SIGTERM")]
)
def test_what_was_stopped_says_so_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals, said: str
) -> None:
    study = made(tmp_path)
    assert not study.finished
    inside: list[bool] = []

    def stop(study: shoal.Study, _trial: Any) -> None:
        inside.append(study.finished)
        if len(inside) == 1:  # a second one would end it at once
            signal.raise_signal(number)

    study.optimize(max_epochs=1, callbacks=[stop])
    done = len(study.state.ended)
    assert 0 < done < 3 and not study.finished and not any(inside)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"stopped {said}: {done} of 3 trials are done; run it again to go on"
    study.optimize(max_epochs=1)
    assert study.finished
    assert "stopped" not in capsys.readouterr().out
    study.extend("t000", max_epochs=2)
    assert not study.finished, "there is more to do"
    assert shoal.load_study(tmp_path).finished is False


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    given = {
        "tensor": torch.arange(3, dtype=torch.bfloat16),
        "array": np.arange(4),
        1: [True, None, (2.5, "text")],
        "bytes": b"\x00\xff",
    }

    def one(config: dict[str, Any]) -> None:
        shoal.report(0.0, checkpoint=given)

    study = made(tmp_path, one, {"a": 1})
    study.optimize(progress=False)
    found = study.checkpoint("t000")
    assert torch.equal(found.pop("tensor"), given["tensor"])
    array = found.pop("array")
    assert isinstance(array, np.ndarray) and array.tolist() == [0, 1, 2, 3]
    assert found == {key: given[key] for key in (1, "bytes")}


def test_outside_of_a_trial_a_function_runs_as_it_is() -> None:
    assert shoal.restore() is None
    train({"lr": 0.1, "epochs": 2})
    with pytest.raises(TypeError, match="numbers by name"):
        shoal.report({"loss": "low"})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"policy": "pack"}, "one slot for itself"),
        ({"policy": "hop"}, "one slot for itself"),
        ({"widths": (1, 2)}, "one slot for itself"),
        ({"searcher": "asha", "num_samples": 3}, "max_epochs="),
    ],
)
def test_what_functions_cannot_do_is_said(
    tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    study = made(tmp_path / "s")
    given = dict(options)
    if "widths" in given:
        given["backend"] = "ray"
    with pytest.raises(StudyError, match=why):
        study.optimize(given.pop("searcher", None), **given, progress=False)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


def test_replay_calls_the_function_again(tmp_path: Path) -> None:
    def loose(config: dict[str, Any]) -> None:
        shoal.report(1.0, checkpoint={"time": time.monotonic()})

    study = made(tmp_path / "s", space={"lr": shoal.grid([0.1, 0.01]), "every": 2})
    study.optimize(max_epochs=5, progress=False)
    rows = study.replay()
    assert [(row["visits"], row["equal"]) for row in rows] == [(4, True), (4, True)], rows
    other = made(tmp_path / "o", loose, {"lr": 0.1})
    other.optimize(progress=False)
    assert other.replay()[0]["verdict"] == "differs"


def test_one_missing_checkpoint_of_a_function_is_a_row(tmp_path: Path) -> None:
    study = made(tmp_path / "s", space={"lr": shoal.grid([0.1, 0.01]), "every": 2})
    study.optimize(max_epochs=4, progress=False)
    vault = Checkpoints(study.folder.checkpoints, 1)
    states = {kept.name: vault.load(kept.name) for kept in study.state.kept.values()}
    for pack in Path(study.folder.checkpoints).glob("*.zip"):
        pack.unlink()
    first, second = states
    (Path(study.folder.checkpoints) / first).unlink(missing_ok=True)
    Checkpoints(study.folder.checkpoints, 1).save(second, states[second])
    assert [row["verdict"] for row in study.replay()] == ["missing", "equal"]


@pytest.mark.parametrize("whole", [True, False])
def test_where_a_temporary_checkpoint_lay_is_not_compared(tmp_path: Path, whole: bool) -> None:
    """Folders and files with names that are new each time, as `tempfile` makes them."""

    def temporary(config: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file, path = tempfile.mkstemp(dir=folder, suffix="" if whole else ".txt")
            os.write(file, str(config["lr"] + torch.rand(()).item()).encode())
            os.close(file)
            inner = os.path.join(folder, "weights")
            os.rename(path, inner if whole else path)
            shoal.report(1.0, checkpoint=folder if whole else path)

    study = made(tmp_path / "s", temporary, {"lr": 0.1})
    study.optimize(progress=False)
    assert [row["equal"] for row in study.replay()] == [True]


SCRIPT = """
import sys, time
sys.path.insert(0, sys.argv[1])
import shoal
from function_kit import train

def slow(config):
    report, began_again, reports = shoal.report, shoal.restore() is not None, []
    def later(values, checkpoint=None):
        reports.append(values)
        if len(reports) == 7 and not began_again:
            time.sleep(600)  # it is killed before
        report(values, checkpoint=checkpoint)
    shoal.report = later
    try:
        train(config)
    finally:
        shoal.report = report

study = shoal.create_study(slow, storage=sys.argv[2], metric="loss", load_if_exists=True,
                           search_space={"lr": 0.1, "every": 2, "notes": sys.argv[3]})
study.optimize(max_epochs=9, progress=False, checkpoint_every=0)
"""


@pytest.mark.slow
def test_killed_and_resumed_it_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    kit = str(Path(__file__).parent)
    folder = tmp_path / "s"
    notes = tmp_path / "notes"
    command = [sys.executable, str(script), kit, str(folder), str(notes)]
    process = preloaded.Popen(command)
    journal = folder / "journal.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b'"Evaluated"') >= 5:
            break
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    study = shoal.load_study(folder)
    study.resume(progress=False)
    whole = made(tmp_path / "w", space={"lr": 0.1, "every": 2})
    whole.optimize(max_epochs=9, progress=False)
    assert losses(study) == losses(whole)
    begun = [line for line in notes.read_text().split("\n") if line.startswith("from")]
    assert begun[0] == "from 0" and begun[-1] in ("from 4", "from 6")
