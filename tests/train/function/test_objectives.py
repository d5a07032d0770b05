"""Objectives as Optuna has them."""

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.errors import StudyError
from shoal.core.event import Submitted


class TrialPruned(Exception):  # noqa: N818 - Optuna's name
    """Optuna need not be there."""


def objective(trial: Any) -> float:
    """A bowl, with a step for each report."""
    x = trial.suggest_float("x", -1.0, 1.0)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    n = trial.suggest_int("n", 1, 9, step=2)
    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    assert 1e-4 <= rate <= 1e-1 and n in (1, 3, 5, 7, 9) and trial.params["x"] == x
    trial.set_user_attr("square", x * x)
    for step in range(3):
        trial.report(x * x + 1 / (step + 1), step)
        if trial.should_prune():
            raise TrialPruned
    return float(x * x) + (kind == "b")


def test_what_an_objective_draws_is_the_configuration(tmp_path: Path) -> None:
    study = shoal.create_study(storage=tmp_path / "s")
    study.optimize(objective, n_trials=4, progress=False)
    assert [t.status for t in study.trials] == ["finished"] * 4
    configs = [t.config for t in study.trials]
    assert len({config["x"] for config in configs}) == 4
    for trial in study.trials:
        x = trial.config["x"]
        assert trial.value == float(x * x) + (trial.config["kind"] == "b")
        assert trial.scores[0][1]["square"] == x * x
    assert list(study.trials_dataframe()["config.n"]) == [c["n"] for c in configs]
    again = shoal.create_study(objective, storage=tmp_path / "again")
    again.optimize(num_samples=4, progress=False)
    assert [t.config for t in again.trials] == configs
    study.report()


def test_searchers_prune_objectives(tmp_path: Path) -> None:
    study = shoal.create_study(objective, storage=tmp_path)
    study.optimize("asha", n_trials=9, max_epochs=3, progress=False)
    assert {t.epochs for t in study.trials} == {1.0, 3.0}
    assert all("x" in t.config for t in study.trials)


def test_an_objective_may_prune_itself_or_fail(tmp_path: Path) -> None:
    def fickle(trial: Any) -> float:
        value = trial.suggest_int("value", 0, 100)
        if trial.number == 0:
            raise TrialPruned
        if trial.number == 1:
            raise RuntimeError("no luck")
        return float(value)

    study = shoal.create_study(storage=tmp_path)
    study.optimize(fickle, n_trials=3, progress=False)
    how = [t.status for t in study.trials]
    assert how == ["retired", "failed: RuntimeError: no luck", "finished"]
    assert all("value" in t.config for t in study.trials)
    submitted = [e for _, e in study.lines() if isinstance(e, Submitted)]
    assert len(submitted) == 6


def test_a_space_comes_first(tmp_path: Path) -> None:
    """What a searcher or a person chose, `suggest` gives."""
    pytest.importorskip("optuna", reason="optuna is not installed")
    space = {"x": shoal.uniform(-1.0, -0.5)}
    study = shoal.create_study(objective, storage=tmp_path, search_space=space)
    study.optimize("optuna", n_trials=3, progress=False)
    assert all(-1.0 <= t.config["x"] <= -0.5 for t in study.trials)
    assert all("kind" in t.config for t in study.trials)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"searcher": "optuna", "n_trials": 3}, "search_space="),
        ({}, "n_trials="),
        ({"searcher": "asha", "n_trials": 3}, "max_epochs="),
    ],
)
def test_what_objectives_cannot_do_is_said(tmp_path: Path, asked: dict[str, Any], why: str) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    study = shoal.create_study(objective, storage=tmp_path / "s")
    with pytest.raises((StudyError, ValueError), match=why):
        study.optimize(progress=False, **asked)
    with pytest.raises(StudyError, match="nothing to train"):
        shoal.create_study(storage=tmp_path / "n").optimize(n_trials=3, progress=False)
    with pytest.raises(StudyError, match="create a study of it"):
        study.optimize(lambda trial: 0.0, n_trials=1, progress=False)


def test_a_note_that_is_no_number_is_not_kept_and_that_is_said(tmp_path: Path) -> None:
    def noting(trial: Any) -> float:
        trial.set_user_attr("size", 3)
        trial.set_user_attr("note", "hi")
        return float(trial.user_attrs["note"] == "hi")

    study = shoal.create_study(storage=tmp_path)
    with pytest.warns(UserWarning, match="'note' is str: it is not kept"):
        study.optimize(noting, n_trials=1, progress=False)
    assert study.trials[0].metrics == {"value": 1.0, "size": 3.0}


def test_a_function_without_a_checkpoint_is_made_longer(tmp_path: Path) -> None:
    """It begins again, and what it had trained is void."""

    def falling(trial: Any) -> float:
        trial.suggest_float("x", 0.0, 1.0)
        for step in range(9):
            trial.report(9 - step, step)
            if trial.should_prune():
                raise TrialPruned
        return 0.0

    study = shoal.create_study(storage=tmp_path)
    study.optimize(falling, n_trials=1, max_epochs=2, progress=False)
    study.extend("t000", max_epochs=4)
    study.resume(progress=False)
    (trial,) = study.trials
    assert (trial.epochs, len(trial.scores), trial.value) == (4.0, 4, 6.0)


def test_bounds_are_checked(tmp_path: Path) -> None:
    def wrong(trial: Any) -> float:
        return float(trial.suggest_float("x", 0.0, 1.0, log=True))

    study = shoal.create_study(storage=tmp_path)
    with pytest.raises(StudyError, match="log=True needs low > 0"):
        study.optimize(wrong, n_trials=2, progress=False)
