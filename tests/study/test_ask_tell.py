"""Loops of the user's own: study.ask() and study.tell()."""

import json
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import preloaded
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.errors import StudyError
from shoal.core.event import Opened
from shoal.study.folder import StudyBusy

SPACE = {"x": shoal.uniform(-1.0, 1.0), "kind": shoal.choice(["a", "b"])}


def made(folder: Path, **given: Any) -> shoal.Study:
    """A study without a recipe."""
    return shoal.create_study(storage=folder, **{"search_space": SPACE, **given})


def value(config: Any) -> float:
    """What comes of a configuration."""
    return float((config["x"] - 0.3) ** 2 + (config["kind"] == "b"))


def looped(study: shoal.Study, trials: int) -> list[dict[str, Any]]:
    """Ask and tell so many times; returns the configurations."""
    found = []
    for _ in range(trials):
        trial = study.ask()
        study.tell(trial, value(trial.config))
        found.append(trial.config)
    return found


def test_what_was_told_is_what_a_study_shows(tmp_path: Path) -> None:
    study = made(tmp_path, direction="minimize")
    configs = looped(study, 5)
    assert [t.config for t in study.trials] == configs
    assert study.best_value == min(map(value, configs))
    assert study.best_params in configs
    assert [t.number for t in study.get_trials()] == [0, 1, 2, 3, 4]
    table = study.trials_dataframe()
    assert list(table["value"]) == list(map(value, configs))
    assert set(study.learning_curves()["name"]) == {"value"}
    assert study.report().exists()
    for command in ("status", "report"):
        assert CliRunner().invoke(app, [command, str(tmp_path)]).exit_code == 0
    done = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert done.exit_code == 2 and "a loop of your own" in done.output
    again = shoal.load_study(tmp_path)
    with pytest.raises(StudyError, match=r"study\.ask\(\)"):
        again.resume()
    assert again.trials == study.trials


def test_a_trial_told_no_finite_value_has_diverged(tmp_path: Path) -> None:
    study = made(tmp_path)
    study.tell(study.ask(), float("nan"))
    later = study.ask()
    later.report(0.5, 0)
    study.tell(later, float("nan"))
    assert [t.status for t in study.trials] == [
        "failed: diverged: none of its scores was finite",
        "finished",
    ]


def test_a_random_loop_draws_what_a_random_search_draws(tmp_path: Path) -> None:
    """With the studies' seeds; optimize() goes on where the loop ended."""

    def objective(trial: Any) -> float:
        kind = trial.suggest_categorical("kind", ["a", "b"])
        return value({"x": trial.suggest_float("x", -1, 1), "kind": kind})

    study = made(tmp_path / "loop", seed=3)
    configs = looped(study, 4)
    other = made(tmp_path / "other", seed=3)
    other.optimize(objective, n_trials=6, progress=False)
    assert [t.config for t in other.trials][:4] == configs

    study.optimize(objective, n_trials=6, progress=False)
    assert [t.config for t in study.trials] == [t.config for t in other.trials]
    assert all(t.value == value(t.config) for t in study.trials)
    assert looped(study, 1) and len(study.trials) == 7


def test_values_states_and_names(tmp_path: Path) -> None:
    study = made(tmp_path, metric="loss", mode="min")
    one, two, three, four = (study.ask() for _ in range(4))
    assert [one.number, four.id] == [0, "t003"] and one.params == one.config
    study.tell(one, {"loss": 1.0, "size": 3})
    study.tell(1, 2.0)
    study.tell("t002", state="fail")
    four.set_user_attr("note", 7)
    study.tell(four, 0.5, state="pruned")
    how = [t.status.partition(":")[0] for t in study.trials]
    assert how == ["finished", "finished", "failed", "retired"]
    assert study.trials[0].metrics == {"loss": 1.0, "size": 3.0}
    assert study.trials[3].metrics == {"loss": 0.5, "note": 7.0}
    assert three.id == "t002" and two.id == study.trials[1].id


@pytest.mark.parametrize(
    ("told", "error", "why"),
    [
        ((0, 1.0), StudyError, "t000 was told already: it finished"),
        ((7, 1.0), StudyError, "there is no trial 7; known: t000, t001"),
        ((1,), StudyError, "without a value"),
        ((1, {"other": 1.0}), StudyError, "without 'value', which the study ranks by"),
        ((1, "low"), TypeError, "takes numbers"),
        ((1, 1.0, "gone"), StudyError, "state must be one of complete, "),
    ],
)
def test_what_cannot_be_told(tmp_path: Path, told: Any, error: type[Exception], why: str) -> None:
    study = made(tmp_path)
    looped(study, 1)
    open_ = study.ask()
    with pytest.raises(error, match=why):
        study.tell(*told)
    study.tell(open_, 1.0)
    with pytest.raises(StudyError, match="t001 was told already"):
        open_.report(1.0)


def test_reports_and_rules_that_stop(tmp_path: Path) -> None:
    study = made(tmp_path, searcher=shoal.MedianStopping(min_trials=1))
    stopped = []
    for number in range(4):
        trial = study.ask()
        for step in range(3):
            trial.report(float(number), step)
            if trial.should_prune():
                break
        stopped.append(trial.should_prune())
        study.tell(trial, float(number))
    assert stopped == [False, True, True, True]
    assert [len(t.scores) for t in study.trials] == [4, 2, 2, 2]
    assert [t.status for t in study.trials] == ["finished"] + ["retired"] * 3


def test_parameters_are_suggested_and_written_down(tmp_path: Path) -> None:
    study = made(tmp_path, search_space=None)
    trial = study.ask()
    x = trial.suggest_float("x", 0.0, 1.0)
    width = trial.suggest_int("width", 1, 8)
    assert trial.config == trial.params == {"x": x, "width": width}
    assert shoal.load_study(tmp_path).trials[0].config == {"x": x, "width": width}
    study.tell(trial, x)
    assert study.ask().suggest_float("x", 0.0, 1.0) != x


def test_a_grid_comes_to_its_end(tmp_path: Path) -> None:
    space = {"x": shoal.grid([0.1, 0.2]), "kind": "a"}
    study = made(tmp_path, search_space=space)
    assert [c["x"] for c in looped(study, 2)] == [0.1, 0.2]
    with pytest.raises(StudyError, match="no more trials to give, after 2"):
        study.ask()
    limited = made(tmp_path / "r", searcher="random(num_samples=3)")
    looped(limited, 3)
    with pytest.raises(StudyError, match="no more trials"):
        limited.ask()


def test_a_loop_has_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of samples grows with the number of trials, and no trial comes twice."""
    monkeypatch.setattr("shoal.study.ask_tell.DIGITS", 1)
    study = made(tmp_path)
    looped(study, 25)
    assert [t.number for t in study.trials] == list(range(25))
    assert len({t.config["x"] for t in study.trials}) == 25


@pytest.mark.parametrize(
    ("searcher", "why"),
    [
        ("hyperband(max_epochs=9)", r"study.ask\(\) gives each trial once"),
        ("pbt(num_samples=4, max_epochs=9)", "gives each trial once"),
        ("asha(max_epochs=9)", r"asha\(stopping=True"),
        ("asha(stopping=True)", "max_epochs="),
    ],
)
def test_searchers_that_schedule_are_refused(tmp_path: Path, searcher: str, why: str) -> None:
    study = made(tmp_path, searcher=searcher)
    with pytest.raises(StudyError, match=why):
        study.ask()
    assert not (tmp_path / "journal.jsonl").exists()


def test_only_a_study_without_a_recipe_is_asked(tmp_path: Path, blobs: Any) -> None:
    for recipe in (blobs(), lambda config: None):
        study = shoal.create_study(recipe, storage=tmp_path, metric="loss")
        with pytest.raises(StudyError, match="create a study without a recipe"):
            study.ask()


def test_others_stop_and_add_trials(tmp_path: Path) -> None:
    study = made(tmp_path)
    trial = study.ask()
    other = shoal.load_study(tmp_path)
    with pytest.raises(StudyBusy, match="open already"):
        other.ask()
    with pytest.raises(StudyBusy):
        other.optimize(lambda trial: 0.0, n_trials=1, progress=False)
    name = other.enqueue({"x": 0.5, "kind": "a"})
    other.stop("t000")
    trial.report(1.0)
    assert trial.should_prune()
    study.tell(trial, 1.0)
    added = study.ask()
    assert (added.id, added.config) == (name, {"x": 0.5, "kind": "a"})
    study.tell(added, 0.0)
    other.tell(other.ask(), 3.0)  # no trial of the first loop is out
    looped(study, 1)
    assert [t.status for t in study.trials][:2] == ["retired", "finished"]
    study.ask()
    other.stop()
    with pytest.raises(StudyError, match="told to stop"):
        study.ask()


def test_threads_share_a_loop(tmp_path: Path) -> None:
    study = made(tmp_path)

    def once(_: int) -> None:
        trial = study.ask()
        study.tell(trial, value(trial.config))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(once, range(20)))
    assert sorted(t.number for t in study.trials) == list(range(20))
    assert all(t.value == value(t.config) for t in study.trials)
    assert [t.config for t in study.trials] == looped(made(tmp_path / "b"), 20)
    other = shoal.load_study(tmp_path)  # whichever thread came last, it let go
    looped(other, 1)


KILLED = """
import os, signal, sys
import shoal
study = shoal.create_study(
    storage=sys.argv[1], searcher="optuna(options={'n_startup_trials': 3})",
    search_space={"x": shoal.uniform(-1.0, 1.0), "kind": shoal.choice(["a", "b"])},
)
for number in range(9):
    trial = study.ask()
    if number == 6:
        trial.report(5.0, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    study.tell(trial, (trial.config["x"] - 0.3) ** 2 + (trial.config["kind"] == "b"))
"""


@pytest.mark.slow
def test_killed_it_goes_on_as_undisturbed(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    searcher = "optuna(options={'n_startup_trials': 3})"
    whole = made(tmp_path / "whole", searcher=searcher)
    for number in range(9):
        trial = whole.ask()
        if number == 6:
            trial.report(5.0, 0)
        whole.tell(trial, value(trial.config))
    folder = tmp_path / "killed"
    done = preloaded.run([sys.executable, "-c", KILLED, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    shutil.copytree(folder, tmp_path / "copy")
    copy = shoal.load_study(tmp_path / "copy")
    assert copy.ask().id == "t007"  # what was never told stays open
    assert [t.status for t in copy.trials[5:]] == ["finished", "running", "running"]
    study = shoal.load_study(folder)
    assert [t.status for t in study.trials] == ["finished"] * 6 + ["running"]
    study.tell(6, value(study.trials[6].config))
    looped(study, 2)
    assert [t.config for t in study.trials] == [t.config for t in whole.trials]
    assert [t.scores for t in study.trials] == [t.scores for t in whole.trials]
    assert study.best_trial == whole.best_trial
    runs = [e for _, e in study.lines() if isinstance(e, Opened)]
    assert len(runs) == 2


LEFT = """
import sys
import shoal
space = {"x": shoal.uniform(0, 1)}
study = shoal.create_study(storage=sys.argv[1], search_space=space, metric="loss")
study.ask()
"""


def test_a_program_may_end_while_a_trial_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    command = [sys.executable, "-c", LEFT, str(folder)]
    done = preloaded.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((folder / "holder.json").read_text())["until"]


def test_trials_left_open_come_first_if_asked_so(tmp_path: Path) -> None:
    study = made(tmp_path)
    looped(study, 1)
    left = [study.ask() for _ in range(2)]
    study._loop().close()  # as a kill does
    again = made(tmp_path, load_if_exists=True)
    still = [t.id for t in again.trials if t.status == "running"]
    assert still == [t.id for t in left]
    new = again.ask()
    found = [again.ask(open_first=True) for _ in range(3)]
    assert [t.config for t in found[:2]] == [t.config for t in left]
    assert [t.id for t in (new, found[2])] == ["t003", "t004"]
    for trial in (new, *found):
        again.tell(trial, value(trial.config))
    assert {t.status for t in again.trials} == {"finished"}


def test_an_enqueued_configuration_comes_once(tmp_path: Path) -> None:
    config = {"x": 0.5, "kind": "a"}
    for _ in range(2):
        study = made(tmp_path, load_if_exists=True)
        names = [study.enqueue(config, skip_if_exists=True) for _ in range(2)]
        assert names == ["added1", "added1"]
        looped(study, 1)
    assert study.trials[0].config == config and len(study.trials) == 2
    assert study.enqueue(config) == "added2"
    partial = made(tmp_path / "o", search_space=None)
    for _ in range(2):
        assert partial.enqueue({"x": 0.5}, skip_if_exists=True) == "added1"
    partial.optimize(lambda trial: trial.suggest_int("n", 1, 3), 1, progress=False)
    assert partial.enqueue({"x": 0.5}, skip_if_exists=True) == "added1"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda s: s.ask({"x": 1}), r"create_study\(search_space="),
        (lambda s: s.ask(fixed_distributions={"x": 1}), r"create_study\(search_space="),
        (lambda s: s.ask(retry=True), "ask has no argument retry="),
        (lambda s: s.get_trials(states=("RUNNING",)), "t.status =="),
    ],
)
def test_optunas_arguments_say_what_to_write(tmp_path: Path, call: Any, why: str) -> None:
    with pytest.raises(StudyError, match=why):
        call(made(tmp_path))
