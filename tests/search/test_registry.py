"""What a study fills in, searchers by name, and all of them as data."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.search import (
    ASHA,
    PBT,
    Grid,
    Hyperband,
    MedianStopping,
    Optuna,
    Random,
    SuccessiveHalving,
    completed,
    describe,
    parse,
    rebuild,
)
from shoal.search.space import choice, grid, uniform

SPACE = {"x": uniform(0, 1), "o": choice({"a": {"n": choice([1, 2])}, "b": None})}
GIVEN = {
    "space": SPACE,
    "metric": "loss",
    "mode": "min",
    "seed": 5,
    "num_samples": 9,
    "max_epochs": 4,
    "max_concurrent": None,
}


def usual() -> Random:
    return Random(SPACE, 3)


def test_what_is_left_open_is_given() -> None:
    found: Any = completed(ASHA(max_epochs=2, mode="max"), GIVEN, usual)
    assert (found.space, found.metric, found.mode, found.seed) == (SPACE, "loss", "max", 5)
    assert (found.num_samples, found.max_epochs, found.max_concurrent) == (9, 2, None)
    assert found._draws(3) == Random(SPACE, 9, seed=5).config(3)
    whole = ASHA(SPACE, 1, 1, metric="a", mode="min", seed=0, max_concurrent=1, per_slot=1)
    assert completed(whole, GIVEN, usual) is whole


def test_also_within_another_searcher() -> None:
    assert completed(MedianStopping(), GIVEN, usual) == MedianStopping(usual(), "loss", "min")
    assert completed(MedianStopping(Random(num_samples=2)), GIVEN, usual) == MedianStopping(
        Random(SPACE, 2, 4, 5), "loss", "min"
    )


def test_and_in_a_dataclass_of_ones_own() -> None:
    @dataclass(frozen=True)
    class Mine:
        seed: int | None = None
        other: int | None = None

    class Plain:
        seed = None

    mine: Any = completed(Mine(), GIVEN, usual)  # type: ignore[type-var]
    assert (mine.seed, mine.other) == (5, None)
    plain: Any = Plain()
    assert completed(plain, GIVEN, usual) is plain


def test_by_name() -> None:
    assert parse("asha") == ASHA()
    assert parse(" ASHA(grace_period=2, stopping=True) ") == ASHA(grace_period=2, stopping=True)
    assert parse("optuna(sampler='random')") == Optuna("random")
    assert (parse("grid"), parse("random(num_samples=3)")) == (Grid(), Random(num_samples=3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "best",
            "no searcher is named 'best'; there are grid, random, trace, "
            "halving, hyperband, asha, pbt, median, patience, optuna",
        ),
        ("asha(2)", 'named as "asha" or'),
        ("asha(grace_period=print())", 'named as "asha" or'),
        ("asha(grace=1)", "searcher asha: "),
        ("asha(", 'named as "asha" or'),
    ],
)
def test_wrong_names(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        parse(text)


@pytest.mark.parametrize(
    "made",
    [
        SuccessiveHalving(SPACE, 9, 9, metric="a"),
        Hyperband(SPACE, 9, num_samples=30),
        ASHA(SPACE, 9, 9, stopping=True),
        PBT(SPACE, 4, 8, mutate=["x"]),
        MedianStopping(ASHA(SPACE, 9, 9), "a", "max"),
        Optuna("tpe", SPACE, 9, 1, {"n_startup_trials": 3}),
        Grid({"o": grid({"a": {"n": grid([1, 2])}, "b": None})}, 2),
        ASHA(),
    ],
)
def test_described_as_json_and_rebuilt(made: Any) -> None:
    data = json.loads(json.dumps(describe(made)))
    back: Any = rebuild(data)
    assert back == made and describe(back) == describe(made)
