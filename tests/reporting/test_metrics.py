"""The figures of a study."""

from dataclasses import replace
from math import nan

import pytest

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Entry,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Opened,
    Submitted,
)
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line, replay
from shoal.reporting.accounting import account
from shoal.reporting.tally import Point, Void

X = TrialId("x")


def test_a_trial_row(hopping: list[Line]) -> None:
    told = account(hopping)
    x, y = told.trials
    assert (x.id, x.status, x.samples, x.asked, x.epochs) == ("x", "finished", 200.0, 200.0, 1.0)
    assert (x.last, x.best, x.best_epoch, x.start, x.end) == (0.9, 0.9, 1.0, 0.0, 5.0)
    assert x.spent == {"train": 2.5, "switch": 0.5, "evaluate": 0.5, "save": 0.25}
    assert (x.hops, x.moved, y.hops, y.moved) == (1, 0, 1, 2_000_000)
    assert (x.signature, y.signature) == ("5f", "")
    assert told.figures == {"5f": {"rate": 66.0, "memory": 0.25, "step": 0.002}}


def test_totals(hopping: list[Line]) -> None:
    told = account(hopping)
    assert (told.metric, told.mode, told.status) == ("accuracy", "max", "finished")
    assert (told.seconds, told.trained, told.throughput) == (6.0, 400.0, 400 / 6)
    assert told.count() == {"running": 0, "waiting": 0, "finished": 2, "retired": 0, "failed": 0}
    assert told.used == {
        "train": 6.5,
        "evaluate": 0.5,
        "save": 0.25,
        "data": 0.5,
        "switch": 1.0,
        "lost": 0.0,
        "other": 1.25,
        "idle": 2.0,
    }
    assert sum(told.used.values()) == 12.0
    assert told.use[SlotId("b")]["idle"] == 1.0


def test_training_values_are_means_over_an_epoch(hopping: list[Line]) -> None:
    curves = account(hopping).curves
    assert curves["loss (training)"] == {"x": (Point(1.0, 5.0, 0.5),), "y": (Point(1.0, 6.0, 0.5),)}
    assert curves["accuracy"][X] == (Point(1.0, 5.0, 0.9),)
    assert curves["loss"][TrialId("y")] == (Point(1.0, 6.0, 0.5),)


@pytest.mark.parametrize(("mode", "best"), [("max", "x"), ("min", "y")])
def test_the_best_trial_is_the_one_with_the_best_last_score(
    hopping: list[Line], mode: str, best: str
) -> None:
    found = account(hopping, mode=mode).best()
    assert found is not None
    assert found.id == best


def test_trials_that_failed_or_have_no_score_come_last(hopping: list[Line]) -> None:
    more = [Submitted(replace(replay(hopping).known[X], id=TrialId(name))) for name in ("p", "q")]
    extra: list[Entry] = [
        *more,
        Evaluated(TrialId("p"), 1.0, {"accuracy": 1.0}),
        Failed(TrialId("p"), "boom"),
    ]
    told = account([*hopping, *(Line(7.0, entry) for entry in extra)])
    assert [row.id for row in told.ranked()] == ["x", "y", "q", "p"]
    assert [(row.status, row.why) for row in told.ranked()[2:]] == [
        ("waiting", ""),
        ("failed", "boom"),
    ]


def test_what_fell_is_counted_as_repeated_and_its_values_are_gone(killed: list[Line]) -> None:
    told = account(killed)
    (x,) = told.trials
    assert x.repeated == Void(falls=1, visits=2, samples=250.0, seconds=2.5)
    assert (x.samples, x.epochs, told.trained) == (400.0, 2.0, 650.0)
    assert told.curves["accuracy"] == {"x": (Point(1.0, 5.0, 0.6), Point(2.0, 7.0, 0.55))}
    assert (x.last, x.best, x.best_epoch) == (0.55, 0.6, 1.0)
    assert [point.epoch for point in told.curves["loss (training)"][X]] == [1.0, 2.0]


def test_falling_twice_to_one_place_counts_each_work_once(killed: list[Line]) -> None:
    twice = [line for line in killed if line.time <= 5.0] + [Line(5.5, Fell(X, 1, 100.0))]
    (x,) = account(twice).trials
    assert x.repeated == Void(falls=2, visits=3, samples=350.0, seconds=3.5)


def test_how_each_run_ended(killed: list[Line]) -> None:
    assert [(run.number, run.start, run.end, run.how) for run in account(killed).runs] == [
        (1, 0.0, 3.75, "cut off"),
        (2, 4.0, 7.0, "finished"),
    ]
    first = [line for line in killed if line.time < 4.0]
    assert account(first).status == "open"
    assert account([*first, Line(3.8, Commanded("stop", "timeout"))]).status == "stopped: timeout"
    again = [*killed, Line(7.0, Opened(3, {}))]
    assert [run.how for run in account(again).runs] == ["cut off", "finished", "finished"]


def test_a_trial_added_to_a_finished_study_waits_for_the_next_run(killed: list[Line]) -> None:
    added = Trial(TrialId("added1"), 200.0, {}, shards=frozenset())
    lines = [*killed, Line(7.0, Submitted(added))]
    found = account(lines)
    assert found.status == "added"
    assert [run.how for run in found.runs] == ["cut off", "finished"]
    again = [*lines, Line(7.0, Opened(3, {}))]
    assert [run.how for run in account(again).runs] == ["cut off", "finished", "open"]


def test_a_score_that_is_not_a_number_is_none(hopping: list[Line]) -> None:
    told = account([*hopping[:-1], Line(6.0, Evaluated(X, 2.0, {"accuracy": nan})), hopping[-1]])
    x = told.trials[0]
    assert (x.last, x.best) == (None, 0.9)
    assert [row.id for row in told.ranked()] == ["y", "x"]


def test_without_a_metric_there_is_no_rank(hopping: list[Line]) -> None:
    bare = [Line(0.0, Opened(1, {})), *hopping[1:]]
    told = account(bare)
    assert (told.metric, told.mode, told.best()) == (None, "min", None)
    assert [row.id for row in told.ranked()] == ["x", "y"]
    assert account(bare, "accuracy", "max").best() is not None


def test_a_wrong_mode_is_refused(hopping: list[Line]) -> None:
    with pytest.raises(ValueError, match='mode must be "min" or "max"; got \'up\''):
        account(hopping, mode="up")


def test_an_empty_study(empty: list[Line]) -> None:
    told = account(empty)
    assert (told.trials, told.status, told.throughput, told.seconds) == ((), "empty", None, 0.0)
    assert account([]).runs == ()


def test_the_rows_agree_with_the_fold_of_the_journal(many: list[Line], killed: list[Line]) -> None:
    for lines in (many, killed):
        state = replay(lines)
        for row in account(lines).trials:
            assert row.samples == state.done[row.id]
            assert row.epochs == len(state.visits[row.id]) / 2
            scores = [values["accuracy"] for _, values in state.scores[row.id]]
            assert row.last == (scores[-1] if scores else None)


def test_samples_of_a_trial_that_is_not_known_are_left_out() -> None:
    told = account(
        [Line(0.0, Opened(1, {})), Line(1.0, Advanced({X: 5.0})), Line(1.0, Finished(X))]
    )
    assert (told.trials, told.trained) == ((), 0.0)
