"""The drawings of scores: the best so far, importances, configurations against scores."""

import sys
from typing import Any

import pytest

from shoal.core.cluster import RECIPE
from shoal.core.event import Entry, Evaluated, Failed, Opened, Submitted
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.reporting.accounting import account
from shoal.reporting.html import page_of
from shoal.reporting.score_charts import (
    CHARTS,
    SHADES,
    Drawing,
    View,
    history,
    importances,
    parallel,
    slices,
)

SCORES = (0.2, 0.5, 0.4, 0.9, 0.1)


def study(
    mode: str, scores: tuple[float, ...] = SCORES, failed: int = 0, **head: Any
) -> list[Line]:
    """Trials that come to these scores one after the other, the last one first submitted."""
    lines = [Line(0.0, Opened(1, {}, {"metric": "m", "mode": mode, **head}))]
    ids = [TrialId(f"t{number}") for number in range(len(scores) + failed)]
    for number, trial in enumerate(ids):
        config = {"lr": 10.0**-number, "act": "ab"[number % 2]}
        lines.append(Line(0.0, Submitted(Trial(trial, 1.0, config))))
    for number, score in enumerate(scores):
        trial = ids[len(scores) - 1 - number]
        lines.append(Line(number + 1.0, Evaluated(trial, 1.0, {"m": score})))
    lines += [Line(9.0, Failed(trial, "why <not>")) for trial in ids[len(scores) :]]
    return lines


def made(make: Any, lines: list[Line], most: int = 1000) -> Drawing:
    drawing = make(View(account(lines), most))
    assert drawing is not None
    return dict(drawing)


def trace(panel: Any, name: str) -> Any:
    return next(each for each in panel["figure"]["data"] if each["name"] == name)


@pytest.mark.parametrize(
    ("mode", "by_time", "by_number"),
    [
        ("max", [0.2, 0.5, 0.9, 0.9], [0.1, 0.9, 0.9]),
        ("min", [0.2, 0.1, 0.1], [0.1, 0.1]),
    ],
)
def test_the_best_so_far_steps_over_time_and_over_trials(
    mode: str, by_time: list[float], by_number: list[float]
) -> None:
    (panel,) = made(history, study(mode))["panels"]
    line = trace(panel, "best so far")
    assert line["y"] == by_time
    assert line["x"][0] == 1.0 and line["line"]["shape"] == "hv"
    assert [view["name"] for view in panel["views"]] == ["time", "trials"]
    assert panel["views"][1]["traces"][-1]["y"] == by_number
    dots = trace(panel, "trials")
    assert dots["x"] == [5.0, 4.0, 3.0, 2.0, 1.0]
    assert dots["y"] == list(reversed(SCORES))
    assert panel["views"][1]["traces"][0]["x"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_failed_trials_are_marked_where_the_bad_scores_are(mode: str) -> None:
    lines = study(mode, failed=2)
    drawing = made(history, lines)
    (panel,) = drawing["panels"]
    failed = trace(panel, "failed")
    assert failed["marker"]["symbol"] == "x-thin"
    assert all(y < 0.1 if mode == "max" else y > 0.9 for y in failed["y"])
    assert failed["x"] == [9.0, 9.0]
    assert "Crosses are trials that failed" in drawing["note"]
    assert "Crosses" not in made(history, study(mode))["note"]
    hover = View(account(lines), 1000).hover()
    assert "failed: why &lt;not&gt;" in hover["5"]
    assert len(hover) == 7


def of_two_recipes() -> list[Line]:
    aims = {"one": ["m", "max"], "two": ["loss", "min"]}
    lines = [Line(0.0, Opened(1, {}, {"aims": aims}))]
    for number in range(8):
        name = "one" if number % 2 else "two"
        config = {RECIPE: name, "lr": 0.1 * number}
        lines.append(Line(0.0, Submitted(Trial(TrialId(f"t{number}"), 1.0, config))))
        value: dict[str, float] = {"m" if number % 2 else "loss": float(number)}
        lines.append(Line(number + 1.0, Evaluated(TrialId(f"t{number}"), 1.0, value)))
    return lines


def test_each_recipe_has_a_panel_by_its_own_metric() -> None:
    panels = made(history, of_two_recipes())["panels"]
    assert [panel["title"] for panel in panels] == ["one", "two"]
    assert [trace(panel, "best so far")["y"] for panel in panels] == [
        [1.0, 3.0, 5.0, 7.0, 7.0],
        [0.0, 0.0],
    ]
    titles = [panel["figure"]["layout"]["yaxis"]["title"]["text"] for panel in panels]
    assert titles == ["m", "loss"]
    assert [panel["title"] for panel in made(slices, of_two_recipes())["panels"]] == ["one", "two"]
    note = made(importances, of_two_recipes())["note"]
    assert "one: To tell what matters takes 10 trials with a score; there are 4." in note


def test_diverged_scores_leave_the_picture_and_the_best_never_do() -> None:
    scores = (*(0.5 + 0.01 * number for number in range(60)), 1e9)
    drawing = made(history, study("min", scores))
    low, high = drawing["panels"][0]["figure"]["layout"]["yaxis"]["range"]
    assert low < 0.5 and high < 10
    assert "1 trial lie outside" not in drawing["note"]
    assert "1 trial lies outside; double-click to see all." in drawing["note"]
    best = made(history, study("max", (*scores[:-1], 50.0)))
    settings = best["panels"][0]["figure"]["layout"]["yaxis"]
    assert "range" not in settings or settings["range"][1] > 50


@pytest.mark.parametrize("odd", [0.0, -1e9, -sys.float_info.max])
@pytest.mark.parametrize("mode", ["max", "min"])
def test_one_odd_score_among_many_spoils_no_drawing(odd: float, mode: str) -> None:
    """The others span decades, on an axis that has no place for it if it is a log one."""
    lines = study(mode, (odd, *(0.01 + 0.011 * number for number in range(80))))
    for chart in CHARTS.values():
        assert chart.make(View(account(lines), 1000)) is not None
    (panel,) = made(parallel, lines)["panels"]
    assert all(0 <= at <= 1 for at in panel["lines"]["axes"][-1]["at"])


def test_what_has_no_score_has_no_drawing(hopping: list[Line], empty: list[Line]) -> None:
    for lines in (empty, [Line(0.0, Opened(1, {})), *hopping[1:]]):
        view = View(account(lines), 1000)
        assert [chart.make(view) for chart in CHARTS.values()] == [None] * len(CHARTS)
        assert 'id="configs"' not in page_of(account(lines), None, None)


def test_importances_say_who_says_so_and_what_is_too_little(many: list[Line]) -> None:
    drawing = made(importances, many)
    assert "by a forest of 32 regression trees, from the ranks of the scores of" in drawing["note"]
    (panel,) = drawing["panels"]
    (bars,) = panel["figure"]["data"]
    assert bars["x"] == sorted(bars["x"])
    names = panel["figure"]["layout"]["yaxis"]["ticktext"]
    assert sorted(names) == ["dropout", "lr", "optimizer", "width"]
    few = made(importances, study("max"))
    assert few["panels"] == []
    assert few["note"] == "To tell what matters takes 10 trials with a score; there are 5."


def test_equal_configurations_of_all_scored_trials_are_said() -> None:
    lines = [Line(0.0, Opened(1, {}, {"metric": "m", "mode": "max"}))]
    for number in range(12):
        trial = TrialId(f"t{number}")
        lines.append(Line(0.0, Submitted(Trial(trial, 1.0, {"lr": 0.1 * (number // 11)}))))
        lines.append(Line(1.0, Evaluated(trial, 1.0, {"m": 0.1 * number})))
    lines.append(Line(2.0, Failed(trial, "why")))
    drawing = made(importances, lines)
    assert drawing["note"].endswith("have the same hyper-parameters.")


def test_noise_has_a_warning() -> None:
    lines = study("max", tuple((n * 7919 % 101) / 100 for n in range(90)))
    note = made(importances, lines)["note"]
    assert "Read nothing into the order." in note


def test_parallel_lines_need_two_scored_trials_and_a_parameter(
    hopping: list[Line], killed: list[Line], doomed: list[Line]
) -> None:
    (panel,) = made(parallel, hopping)["panels"]
    assert [axis["name"] for axis in panel["lines"]["axes"]] == ["lr", "accuracy"]
    for lines in (killed, doomed):
        assert parallel(View(account(lines), 1000)) is None


def test_parallel_lines_cross_each_axis_and_the_best_is_on_top() -> None:
    for mode in ("max", "min"):
        (panel,) = made(parallel, study(mode))["panels"]
        lines = panel["lines"]
        act, lr, score = lines["axes"]
        assert lines["shades"][-1] == SHADES - 1 and lines["shades"][0] == 0
        assert score["at"][-1] == (1 if mode == "max" else 0)
        assert {0, 1} == set(act["at"]) and [text for _, text in act["ticks"]] == ["a", "b"]
        assert [text for _, text in lr["ticks"]] == ["0.0001", "0.001", "0.01", "0.1", "1"]
        assert [round(at, 2) for at, _ in lr["ticks"]] == [0, 0.25, 0.5, 0.75, 1]
        assert all(0 <= at <= 1 for axis in lines["axes"] for at in axis["at"])


def nested() -> list[Line]:
    lines = study("max", tuple(number / 10 for number in range(10)))
    changed = []
    for line in lines:
        entry: Entry = line.entry
        if isinstance(entry, Submitted):
            number = int(entry.trial.id[1:])
            more = {"momentum": 0.09 * number} if number % 2 else {}
            config = {**entry.trial.config, **more}
            entry = Submitted(Trial(entry.trial.id, 1.0, config))
        changed.append(Line(line.time, entry))
    return changed


def test_trials_that_lack_a_parameter_stand_below_or_are_left_out() -> None:
    (panel,) = made(parallel, nested())["panels"]
    momentum = next(axis for axis in panel["lines"]["axes"] if axis["name"] == "momentum")
    assert momentum["ticks"][0] == (0.0, "–")
    assert momentum["at"].count(0.0) == 5
    assert min(at for at in momentum["at"] if at) > 0.1
    panels = made(slices, nested())["panels"]
    by_name = {each["figure"]["layout"]["xaxis"]["title"]["text"]: each for each in panels}
    assert len(by_name["momentum"]["figure"]["data"][0]["x"]) == 5
    assert len(by_name["lr"]["figure"]["data"][0]["x"]) == 10


def test_slices_have_log_axes_categories_and_crosses(many: list[Line]) -> None:
    drawing = made(slices, many)
    axes = {}
    for panel in drawing["panels"]:
        shape = panel["figure"]["layout"]
        axes[shape["xaxis"]["title"]["text"]] = shape["xaxis"]
        (failed,) = [
            each for each in panel["figure"]["data"] if each["marker"].get("symbol") == "x-thin"
        ]
        assert len(failed["x"]) == 50
    assert {name: axis.get("type") for name, axis in axes.items()} == {
        "dropout": None,
        "lr": "log",
        "optimizer": None,
        "width": "log",
    }
    assert axes["optimizer"]["ticktext"] == ["adam", "sgd"]
    assert "The star is the best trial." in drawing["note"]


def test_of_many_trials_some_are_drawn_and_the_line_is_of_all(many: list[Line]) -> None:
    drawing = made(history, many, most=50)
    assert "Of 500 trials 50 are drawn" in drawing["note"]
    (panel,) = drawing["panels"]
    whole = made(history, many)["panels"][0]
    assert trace(panel, "best so far") == trace(whole, "best so far")
    assert len(View(account(many), 50).hover()) == 50


def test_every_trial_that_is_drawn_has_its_text(many: list[Line]) -> None:
    view = View(account(many), 60)
    hover = view.hover()
    for chart in CHARTS.values():
        drawing = chart.make(view)
        assert drawing is not None
        for panel in drawing["panels"]:
            traces = [panel["lines"]] if "lines" in panel else panel["figure"]["data"]
            for each in traces:
                assert {str(number) for number in each.get("customdata", ())} <= hover.keys()


def test_a_drawing_costs_one_row_of_the_table(
    many: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.reporting import score_charts

    new = score_charts.Chart("configs", "A new one", lambda view: {"note": "new", "panels": []})
    monkeypatch.setitem(score_charts.CHARTS, "new", new)  # type: ignore[arg-type]
    page = page_of(account(many), None, None)
    assert 'data-drawing="new"' in page and "A new one" in page
