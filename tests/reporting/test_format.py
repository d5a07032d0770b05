"""Figures as people read them, and what configurations vary."""

from math import inf, nan
from typing import Any

import pytest

from shoal.core.event import Opened, Submitted
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.reporting import format as form
from shoal.reporting.accounting import account
from shoal.reporting.charts import BASE, mix, painted_by
from shoal.reporting.parameters import Parameter, parameters


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (2.0, "2"),
        (1500.0, "1500"),
        (0.96990, "0.9699"),
        (1.5, "1.5"),
        (123456.0, "123456"),
        (1e-5, "1e-5"),
        (0.0576339, "0.05763"),
        (-0.25, "-0.25"),
        (1e7, "1e7"),
        (nan, "nan"),
        (inf, "inf"),
        (99.999, "100"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert form.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9699, "0.96990"),
        (1.0, "1.0000"),
        (0.0, "0.00000"),
        (0.983281, "0.98328"),
        (-12.5, "-12.500"),
    ],
)
def test_scores_stand_in_line(value: float, text: str) -> None:
    assert form.score(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0 s"),
        (-0.0, "0 s"),
        (0.0123, "12.3 ms"),
        (0.9999, "1 s"),
        (4.234, "4.23 s"),
        (99.99, "1 min 40 s"),
        (185.0, "3 min 05 s"),
        (7620.0, "2 h 07 min"),
        (3599.7, "1 h 00 min"),
        (200000.0, "2 d 07 h"),
        (inf, "–"),
    ],
)
def test_duration(value: float | None, text: str) -> None:
    assert form.duration(value) == text


def test_counts_shares_and_sizes() -> None:
    assert [form.count(x) for x in (None, 0, 950, 23100, 1.24e6, 66.7)] == [
        "–",
        "0",
        "950",
        "23,100",
        "1.24 M",
        "66.7",
    ]
    assert [form.share(*x) for x in ((1, 0), (0, 5), (1, 3), (0.05, 1), (1, 1))] == [
        "–",
        "0 %",
        "33 %",
        "5.0 %",
        "100 %",
    ]
    assert [form.size(x) for x in (300, 1200, 2.5e6, 3e9)] == ["300 B", "1.2 kB", "2.5 MB", "3 GB"]
    assert [form.plural(x, "trial") for x in (0, 1, 1200)] == [
        "0 trials",
        "1 trial",
        "1,200 trials",
    ]
    assert [form.plural(2, noun) for noun in ("pass", "entry", "key")] == [
        "2 passes",
        "2 entries",
        "2 keys",
    ]


def test_what_a_head_describes() -> None:
    assert (
        form.described(
            {"name": "hop", "rule": "lrw", "seed": 0, "barrier": False, "space": {"a": 1}}
        )
        == "hop (rule=lrw)"
    )
    assert [form.described(x) for x in (None, "fifo", {}, {"name": "grid"})] == [
        "",
        "fifo",
        "",
        "grid",
    ]


def varied(*configs: dict[str, Any]) -> dict[str, Parameter]:
    lines = [
        Line(0.0, Submitted(Trial(TrialId(f"t{n}"), 1.0, config)))
        for n, config in enumerate(configs)
    ]
    return {parameter.name: parameter for parameter in parameters(account(lines))[0]}


def test_what_varies_and_what_is_the_same() -> None:
    lines = [
        Line(0.0, Submitted(Trial(TrialId(x), 1.0, {"lr": lr, "layers": 2})))
        for x, lr in (("a", 0.1), ("b", 0.2))
    ]
    varying, same = parameters(account(lines))
    assert ([parameter.name for parameter in varying], same) == (["lr"], {"layers": "2"})


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ((1e-4, 1e-3, 1e-2), "log"),
        ((64, 128, 256, 512), "log"),
        ((0.01, 0.2, 0.4, 0.5), "linear"),
        ((1, 2, 3), "linear"),
        ((0, 1, 1000), "linear"),
        ((-1, 1, 100), "linear"),
        (("adam", "sgd"), "category"),
        ((True, False), "category"),
        ((1, None), "category"),
        ((0.1, nan), "category"),
    ],
)
def test_axes_suit_the_values(values: tuple[Any, ...], scale: str) -> None:
    assert varied(*({"p": value} for value in values))["p"].scale == scale


def test_parameters_come_in_the_order_of_the_search_space() -> None:
    space = {"dimensions": [["width", {"kind": "grid"}], ["lr", {"kind": "grid"}], ["unused", {}]]}
    trials = [Trial(TrialId(f"t{n}"), 1.0, {"lr": n, "also": n, "width": n}) for n in range(2)]
    for head, order in (
        ({"space": space}, ["width", "lr", "also"]),
        ({}, ["also", "lr", "width"]),
        ({"space": "?"}, ["also", "lr", "width"]),
    ):
        lines = [Line(0.0, Opened(1, {}, head)), *(Line(0.0, Submitted(trial)) for trial in trials)]
        assert [parameter.name for parameter in parameters(account(lines))[0]] == order


def test_categories_come_numbers_first_and_missing_values_are_one() -> None:
    found = varied({"p": "b"}, {"p": 10}, {"p": 9}, {})["p"]
    assert found.categories == ("9", "10", "b", "–")
    assert [found.place(TrialId(f"t{n}")) for n in range(4)] == [2.0, 1.0, 0.0, 3.0]


def test_numbers_that_only_some_trials_have_stay_numbers() -> None:
    found = varied({"lr": 0.1}, {"lr": 0.2}, {})["lr"]
    assert found.scale == "linear"
    assert found.values == {"t0": 0.1, "t1": 0.2}


def test_the_best_trials_have_colours_of_their_own(many: list[Line]) -> None:
    told = account(many)
    painted = painted_by(told)
    assert set(painted) == {row.id for row in told.trials}
    assert tuple(painted[row.id] for row in told.ranked()[: len(BASE)]) == BASE
    assert mix("#000000", "#ffffff", 0.5) == "#808080"
