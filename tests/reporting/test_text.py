"""How a study stands, as data and as lines."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import reporting
from shoal.core.event import Commanded, Evaluated
from shoal.core.trial import TrialId
from shoal.engine.journal import Line


def test_a_summary_is_json_and_says_it_all(hopping: list[Line]) -> None:
    found = reporting.summary(hopping)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["best"] == {
        "trial": "x",
        "score": 0.9,
        "best_score": 0.9,
        "best_epoch": 1.0,
        "epochs": 1.0,
        "status": "finished",
        "train_seconds": 2.5,
        "config": {"lr": 0.1, "width": 64},
    }
    assert found["trials"]["all"] == found["trials"]["finished"] == 2
    assert (found["hops"], found["moved_bytes"], found["training"]) == (2, 2_000_000, 6.5 / 12)
    assert found["stopped"] is None


def test_lines_for_people(hopping: list[Line]) -> None:
    assert reporting.status_lines(reporting.summary(hopping)) == [
        "study    digits: finished",
        "trials   2: 2 finished",
        "best     accuracy 0.90000 x  lr=0.1, width=64",
        "                  0.80000 y  lr=0.001, width=64",
        "time     6 s",
        "slots    2: 54 % train, 4.2 % evaluate, 2.1 % save, 4.2 % data, 8.3 % "
        "switch, 10 % other, 17 % idle (8.3 % held back by the policy, 8.3 % no trial left); "
        "2 moves between slots, 2 MB of state",
        "samples  400, 66.7 a second",
    ]


def test_only_a_study_that_goes_on_may_get_a_score_yet(hopping: list[Line]) -> None:
    scored = [line for line in hopping if not isinstance(line.entry, Evaluated)]
    for lines, yet in ((scored, ""), (scored[:-2], " yet")):
        found = reporting.status_lines(reporting.summary(lines, "accuracy", "max"))
        assert f"best     no trial has a score 'accuracy'{yet}" in found


def test_names_of_the_best_trials_stand_in_line(hopping: list[Line]) -> None:
    found = reporting.summary(hopping)
    found["top"][0] |= {"score": 0.065983, "best_score": 0.065983}
    assert reporting.status_lines(found)[2:4] == [
        "best     accuracy 0.065983 x  lr=0.1, width=64",
        "                  0.80000  y  lr=0.001, width=64",
    ]


def test_lines_tell_of_repeated_work_and_of_runs(killed: list[Line]) -> None:
    lines = reporting.status_lines(reporting.summary(killed))
    assert "time     6.75 s in 2 runs" in lines
    assert "repeated 250 samples (38 %), 2.5 s of slot time, in 1 trial" in lines


def test_a_failure_is_told_once_with_the_number_of_trials(many: list[Line]) -> None:
    found = reporting.summary(many)
    assert reporting.status_lines(found)[-1] == (
        "failed   50 trials, t009 first: diverged: loss was not finite for 10 steps"
    )
    for number, row in enumerate(found["failures"]):
        row["why"] = f"reason {number}"
    assert reporting.status_lines(found)[-2:] == [
        "failed   t049: reason 4",
        "         … and 45 other reasons",
    ]


def test_a_stopped_study_says_why(killed: list[Line]) -> None:
    stopped = [line for line in killed if line.time < 4.0] + [
        Line(3.9, Commanded("stop", "timeout"))
    ]
    found = reporting.summary(stopped)
    assert (found["status"], found["stopped"]) == ("stopped: timeout", "timeout")
    assert reporting.status_lines(found)[0] == "study    digits: stopped: timeout"


@pytest.mark.parametrize("name", ["empty", "doomed", "packed", "many"])
def test_any_study_has_a_summary(name: str, request: Any) -> None:
    lines = request.getfixturevalue(name)
    found = reporting.summary(lines)
    json.dumps(found, allow_nan=False)
    assert reporting.status_lines(found)[1].startswith("trials")
    reporting.table(lines)


def test_what_json_lacks_is_none(hopping: list[Line]) -> None:
    lines = [*hopping, Line(6.0, Evaluated(TrialId("x"), 2.0, {"accuracy": float("inf")}))]
    found = reporting.summary(lines)
    json.dumps(found, allow_nan=False)
    assert found["best"]["trial"] == "y"


def test_a_table_for_a_terminal(hopping: list[Line], doomed: list[Line]) -> None:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, width=120)
    console.print(reporting.table(hopping))
    console.print(reporting.table(doomed))
    text = stream.getvalue().splitlines()
    assert text[0].split() == [
        "#",
        "trial",
        "accuracy",
        "best",
        "lr",
        "width",
        "epochs",
        "training",
        "status",
    ]
    assert text[1].split() == [
        "1",
        "x",
        "0.90000",
        "0.90000",
        "0.1",
        "64",
        "1",
        "2.5",
        "s",
        "finished",
    ]
    assert text[4].split() == ["1", "x", "–", "–", "0.1", "0", "–", "failed"]


def test_configurations_are_ranked_over_their_folds(tmp_path: Path) -> None:
    def train(config: Any) -> float:
        return float(config["gain"] * (config["fold"] + 1))

    space = {"gain": shoal.grid([1, 3, 2]), "fold": shoal.grid(range(3))}
    study = shoal.create_study(
        train, storage=tmp_path / "s", metric="score", mode="max", search_space=space
    )
    study.optimize(progress=False)
    study.enqueue({"gain": 9, "fold": 0})  # in one fold only
    study.resume(progress=False)
    found = reporting.summary(study.lines())
    assert found["folds"] == [
        {"config": {"gain": gain}, "mean": 2.0 * gain, "std": float(gain), "folds": 3}
        for gain in (3, 2, 1)
    ]
    assert found["best"]["score"] == 9
    lines = reporting.status_lines(found)
    assert "folds    mean score 6.0000 ± 3.0000 of 3  gain=3" in lines
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_better_score_before_the_last_is_told(hopping: list[Line]) -> None:
    found = reporting.summary(hopping)
    found["top"][0] |= {"best_score": 0.95, "best_epoch": 0.5}
    (line,) = [line for line in reporting.status_lines(found) if "0.95000" in line]
    assert line == "best     accuracy 0.90000 x  lr=0.1, width=64  (0.95000 after epoch 0.5)"


def test_a_new_figure_is_said_in_one_file(
    hopping: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON, lines and the heads of both pages go through the tables of `facts`."""
    from shoal.reporting import facts

    value = {"epochs": lambda account: sum(row.epochs or 0.0 for row in account.trials)}
    line = ("epochs", lambda told: [f"{told['epochs']:g} in all"])
    monkeypatch.setattr(facts, "VALUES", {**facts.VALUES, **value})
    monkeypatch.setattr("shoal.reporting.text.LINES", (*facts.LINES, line))
    tile = lambda told: [facts.Tile("epochs", f"{told['epochs']:g}", "in all")]  # noqa: E731
    monkeypatch.setattr(facts, "TILES", (*facts.TILES, tile))

    told = reporting.summary(hopping)
    assert told["epochs"] == 2.0
    assert reporting.status_lines(told)[-1] == "epochs   2 in all"
    assert "<b>epochs</b><strong>2</strong><small>in all</small>" in reporting.page(hopping)
