"""The importance of hyper-parameters: what matters comes first, and noise is called noise."""

import random
import sys
from collections.abc import Callable, Mapping
from math import log10
from time import process_time
from typing import Any

import numpy as np
import pytest

from shoal.core.event import Entry, Evaluated, Opened, Submitted
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.reporting import importance as module
from shoal.reporting.accounting import Account, account
from shoal.reporting.forest import permutation_importance
from shoal.reporting.importance import FANOVA, LEAST, Importance, Memory, importance

Config = Mapping[str, Any]
Score = Callable[[Config, random.Random], float]


def drawn(draw: random.Random) -> dict[str, Any]:
    """A configuration: numbers on two scales, categories, a constant, a nested hyper-parameter."""
    config: dict[str, Any] = {
        "lr": 10 ** draw.uniform(-5, -1),
        "width": draw.choice([32, 64, 128]),
        "act": draw.choice(["relu", "tanh", "gelu"]),
        "wd": 10 ** draw.uniform(-6, -2),
        "opt": draw.choice(["sgd", "adam"]),
        "drop": draw.uniform(0, 0.5),
        "constant": 3,
    }
    if config["opt"] == "sgd":
        config["momentum"] = draw.uniform(0.0, 0.95)
    return config


def study(count: int, score: Score, mode: str = "max") -> Account:
    draw = random.Random(0)
    entries: list[Entry] = [Opened(1, {}, {"metric": "m", "mode": mode})]
    for number in range(count):
        config = drawn(draw)
        trial = TrialId(f"t{number}")
        entries.append(Submitted(Trial(trial, 1.0, config)))
        entries.append(Evaluated(trial, 1.0, {"m": score(config, draw)}))
    return account(Line(0.0, entry) for entry in entries)


def told(told_of: Account, optuna: bool = True) -> Importance:
    with pytest.MonkeyPatch.context() as patch:
        if not optuna:
            patch.setattr(module, "find_spec", lambda name: None)
        found = importance(told_of)
    assert found is not None
    return found


def only_lr(config: Config, draw: random.Random) -> float:
    return -((log10(config["lr"]) + 3) ** 2) + draw.gauss(0, 0.1)


def noise(config: Config, draw: random.Random) -> float:
    return draw.random()


BOTH = pytest.mark.parametrize("optuna", [False, True])


@BOTH
@pytest.mark.parametrize("count", [30, FANOVA, 300])
def test_where_only_lr_matters_it_comes_first(count: int, optuna: bool) -> None:
    if optuna:
        pytest.importorskip("optuna")
        pytest.importorskip("sklearn")
    found = told(study(count, only_lr), optuna)
    assert next(iter(found.parts)) == "lr"
    assert found.parts["lr"] > 0.7
    assert sum(found.parts.values()) == pytest.approx(1)
    assert ("Optuna" in found.by) == (optuna and count <= FANOVA)
    assert not found.unclear
    assert found.trials == count
    assert "constant" not in found.parts


@BOTH
@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("act", lambda config, draw: "rtg".index(config["act"][0]) + draw.gauss(0, 0.2)),
        ("opt", lambda config, draw: (config["opt"] == "sgd") + draw.gauss(0, 0.2)),
        ("momentum", lambda config, draw: config.get("momentum", 0.5) + draw.gauss(0, 0.05)),
        ("width", lambda config, draw: -config["width"] + draw.gauss(0, 10)),
    ],
)
def test_categories_and_nested_ones_are_found(name: str, score: Score, optuna: bool) -> None:
    found = told(study(100, score), optuna)
    assert next(iter(found.parts)) == name, found.parts


@BOTH
def test_that_a_parameter_is_missing_is_none_of_its_importance(optuna: bool) -> None:
    """The optimizer decides; momentum, which only one of them has, does not."""
    found = told(study(100, lambda config, draw: float(config["opt"] == "sgd")), optuna)
    assert found.parts["opt"] > 0.85
    assert found.parts["momentum"] < 0.1


@BOTH
@pytest.mark.parametrize("count", [30, 100, 400])
def test_noise_is_called_noise(count: int, optuna: bool) -> None:
    found = told(study(count, noise), optuna)
    assert found.unclear
    assert found.explained < 0.1


def test_of_many_categories_few_trials_tell_the_good_ones_and_names_tell_nothing() -> None:
    """A category stands where the trials put it that a tree is grown on, and those alone."""
    draw = np.random.default_rng(0)
    kind = draw.integers(8, size=40)
    columns = np.column_stack([kind, draw.random((40, 4))])
    scores = (kind * 5 % 8) + draw.normal(size=40) * 0.3
    found = permutation_importance(columns, [0], scores)
    assert found.parts[0] > 0.9 and found.explained > 0.8
    names = np.column_stack([np.arange(40.0), columns[:, 1:]])
    assert permutation_importance(names, [0], draw.random(40)).explained < 0.1


def test_equal_scores_say_nothing() -> None:
    found = told(study(40, lambda config, draw: 0.5))
    assert found.unclear
    assert set(found.parts) >= {"lr", "act"}


def test_few_scores_or_one_configuration_are_not_asked() -> None:
    assert importance(study(LEAST - 1, only_lr)) is None
    assert importance(study(LEAST, only_lr)) is not None
    entries: list[Entry] = [Opened(1, {}, {"metric": "m", "mode": "max"})]
    for number in range(LEAST):
        trial = TrialId(f"t{number}")
        entries.append(Submitted(Trial(trial, 1.0, {"lr": 0.1})))
        entries.append(Evaluated(trial, 1.0, {"m": number}))
    assert importance(account(Line(0.0, entry) for entry in entries)) is None


def test_a_diverged_trial_does_not_outweigh_the_others() -> None:
    def wild(config: Config, draw: random.Random) -> float:
        return 1e12 if config["act"] == "tanh" and draw.random() < 0.05 else -only_lr(config, draw)

    assert next(iter(told(study(200, wild, "min"), optuna=False).parts)) == "lr"


def test_the_same_trials_give_the_same_importances() -> None:
    first = told(study(50, only_lr))
    assert told(study(50, only_lr)) == first
    assert list(told(study(50, only_lr, "min")).parts) == list(first.parts)


def test_without_optuna_the_forest_answers() -> None:
    assert told(study(40, only_lr), optuna=False).by == "a forest of 32 regression trees"


def test_an_optuna_that_fails_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert told(study(40, only_lr)).by == "a forest of 32 regression trees"


def test_ten_thousand_trials_take_about_a_second() -> None:
    many = study(10_000, only_lr)
    begun = process_time()
    found = told(many)
    assert process_time() - begun < 5  # it takes 0.4 s on an idle machine
    assert (found.trials, found.scored) == (1000, 10_000)
    assert next(iter(found.parts)) == "lr"


def test_a_live_study_is_looked_at_again_only_when_it_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(of: Account) -> Importance | None:
        asked.append(len(of.trials))
        return importance(of)

    monkeypatch.setattr(module, "importance", counted)
    memory = Memory()
    for count in (100, 100, 103, 105, 106, 106, 112):
        assert memory.of("", study(count, only_lr)) is not None
    assert asked == [100, 106, 112]


def test_a_live_study_is_told_as_soon_as_it_has_enough_trials() -> None:
    """However few epochs the last of them has beside the others'."""

    def scored(count: int) -> Account:
        entries: list[Entry] = [Opened(1, {}, {"metric": "m", "mode": "max"})]
        for number in range(count):
            trial = TrialId(f"t{number}")
            entries.append(Submitted(Trial(trial, 50.0, {"lr": 0.1 * number})))
            epochs = 50 if number < LEAST - 1 else 1
            entries += [Evaluated(trial, float(epoch), {"m": number}) for epoch in range(epochs)]
        return account(Line(0.0, entry) for entry in entries)

    memory = Memory()
    assert memory.of("", scored(LEAST - 1)) is None
    assert memory.of("", scored(LEAST)) is not None
