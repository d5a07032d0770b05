"""What users of Optuna write: it works, or one clear error says what to write."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.core.errors import StudyError

optuna = pytest.importorskip("optuna", reason="optuna is not installed")


def objective(trial: Any) -> float:
    """A bowl that falls step by step."""
    x = float(trial.suggest_float("x", -1.0, 1.0))
    for step in range(3):
        trial.report(x * x + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    if trial.number == 3:
        raise ValueError("three")
    return x * x


def made(folder: Path, **given: Any) -> shoal.Study:
    """A study without a recipe."""
    return shoal.create_study(storage=folder / "s", **given)


@pytest.mark.parametrize(
    ("by_place", "by_name"),
    [
        ((20,), {}),
        ((), {"n_trials": 20}),
        (("median",), {"n_trials": 20}),
        ((shoal.MedianStopping(),), {"n_trials": 20}),
        (("asha(stopping=True)",), {"n_trials": 20, "max_epochs": 3}),
    ],
)
def test_objectives_with_a_number_or_a_searcher(
    tmp_path: Path, by_place: Any, by_name: dict[str, int]
) -> None:
    study = made(tmp_path)
    study.optimize(objective, *by_place, progress=False, **by_name)
    how = [t.status.partition(":")[0] for t in study.trials]
    assert len(how) == 20
    assert ("retired" in how) == bool(by_place and by_place != (20,))


def test_the_searcher_of_the_study(tmp_path: Path) -> None:
    study = made(tmp_path, searcher="median")
    study.optimize(objective, n_trials=12, progress=False)
    assert "retired" in [t.status for t in study.trials]


def test_enqueued_trials_come_first(tmp_path: Path) -> None:
    """Also those that were enqueued before the study began."""
    study = made(tmp_path)
    first = study.enqueue({"x": 0.25})
    second = study.enqueue({"x": -0.5})
    seen: list[float] = []

    def tell(study: shoal.Study, trial: Any) -> None:
        seen.append(trial.params["x"])

    study.optimize(objective, n_trials=2, progress=False, callbacks=[tell])
    assert (first, second) == ("added1", "added2")
    assert seen[:2] == [0.25, -0.5] and len(study.trials) == 4
    loop = shoal.create_study(storage=tmp_path / "loop")
    name = loop.enqueue({"x": 0.125})
    trial = loop.ask()
    assert (trial.id, trial.suggest_float("x", -1, 1)) == (name, 0.125)


def test_callbacks_stop_a_study_and_time_limits_do(tmp_path: Path) -> None:
    def once(study: shoal.Study, trial: Any) -> None:
        if trial.number == 1:
            study.stop()

    study = made(tmp_path)
    study.optimize(objective, n_trials=50, progress=False, callbacks=[once])
    done = sum(t.status == "finished" for t in study.trials)
    assert 2 <= done < 10
    study.optimize(objective, n_trials=50, progress=False, timeout=0)
    study.optimize(objective, n_trials=50, progress=False)
    assert "running" not in [t.status for t in study.trials]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"catch": (ValueError,)}, "leave it out: a trial that raises fails"),
        ({"n_jobs": 2}, "backend='ray' with slots=N"),
        ({"gc_after_trial": True}, "leave it out"),
        ({"show_progress_bar": True}, "did you mean progress=?"),
        ({"func": objective}, "give the function first"),
    ],
)
def test_other_arguments_of_optimize(tmp_path: Path, given: dict[str, Any], says: str) -> None:
    study = made(tmp_path)
    with pytest.raises(StudyError) as caught:
        study.optimize(objective, n_trials=2, **given)
    assert says in str(caught.value)
    with pytest.raises(StudyError, match="two names of one number"):
        study.optimize(objective, 3, n_trials=2)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sampler", "did you mean searcher='optuna'"),
        ("pruner", "did you mean searcher='median'"),
        ("directions", "did you mean metric= and direction="),
        ("n_trials", "did you mean optimize(n_trials=)"),
        ("metrc", "did you mean metric="),
        ("qqq", "has no argument qqq="),
    ],
)
def test_other_arguments_of_create_study(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(StudyError) as caught:
        made(tmp_path, **{name: 1})
    assert says in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_other_names_of_trials(tmp_path: Path) -> None:
    study = made(tmp_path)

    def old(trial: Any) -> float:
        return float(trial.suggest_loguniform("x", 0.1, 1.0))

    with pytest.raises(StudyError, match="did you mean suggest_float"):
        study.optimize(old, n_trials=1, progress=False)
    with pytest.raises(AttributeError, match="a trial has no 'state': did you mean s"):
        study.trials[0].state
    with pytest.raises(AttributeError, match="a trial has no 'qqq'$"):
        study.trials[0].qqq
    tuned = made(tmp_path / "two")
    with pytest.raises(StudyError, match="an objective returns one number"):
        tuned.optimize(lambda trial: (1.0, 2.0), n_trials=1, progress=False)


def test_the_state_may_be_optunas(tmp_path: Path) -> None:
    study = made(tmp_path)
    for state in ("COMPLETE", "PRUNED", "FAIL"):
        study.tell(study.ask(), 1.0, state=getattr(optuna.trial.TrialState, state))
    how = [t.status.partition(":")[0] for t in study.trials]
    assert how == ["finished", "retired", "failed"]


SPACE = {"x": shoal.uniform(0.0, 1.0)}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            lambda new: new().optimize(lambda t: t.suggest_float("x", 0, 1), 2),
            "of lambda is called 't': call it trial",
        ),
        (
            lambda new: new(searcher=optuna.samplers.TPESampler()).optimize(objective, 2),
            r'write searcher=shoal.Optuna\("tpe"',
        ),
        (
            lambda new: new(searcher=optuna.pruners.MedianPruner()).optimize(objective, 2),
            'MedianPruner write searcher="median"',
        ),
        (
            lambda new: new(searcher="tpe").optimize(objective, 2),
            r"write \"optuna\(sampler='tpe'\)\"",
        ),
        (
            lambda new: new(searcher="cmaes").optimize(objective, 2),
            "keeps notes of its own in Optuna's storage",
        ),
        (
            lambda new: shoal.Optuna("optuna.samplers:CmaEsSampler"),
            "CmaEsSampler cannot be used: it keeps notes",
        ),
        (
            lambda new: shoal.Optuna(optuna.samplers.TPESampler()),  # type: ignore[arg-type]
            r'write searcher=shoal.Optuna\("tpe"',
        ),
        (
            lambda new: new(
                search_space={"x": optuna.distributions.FloatDistribution(1, 9, log=True)}
            ),
            r"write shoal.loguniform\(1.0, 9.0\)",
        ),
        (
            lambda new: new(search_space={"x": optuna.distributions.IntDistribution(1, 9)}),
            r"write shoal.randint\(1, 10\)",
        ),
        (
            lambda new: new(
                search_space={"x": optuna.distributions.CategoricalDistribution(["a", 2])}
            ),
            r"write shoal.choice\(\['a', 2\]\)",
        ),
    ],
)
def test_what_optuna_has_says_what_to_write(tmp_path: Path, call: Any, why: str) -> None:
    def new(**given: Any) -> shoal.Study:
        return made(tmp_path, **{"search_space": SPACE, **given})

    with pytest.raises((StudyError, ValueError), match=why):
        call(new)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


def test_another_function_with_another_argument(tmp_path: Path) -> None:
    study = made(tmp_path)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 1, progress=False)
    with pytest.raises(StudyError, match="call its first argument trial"):
        study.optimize(lambda t: 1.0, 1, progress=False)


def test_what_an_objective_never_asks_for_is_warned_of(tmp_path: Path) -> None:
    space = {
        "optimizer": shoal.choice({"sgd": {"lr": shoal.uniform(0.0, 1.0)}}),
        "seed": shoal.randint(0, 9),
    }

    def asks(trial: Any) -> float:
        trial.suggest_categorical("optimizer", ["sgd"])
        return float(trial.suggest_float(name, 0, 1))

    name = "optimizer.lr"
    study = made(tmp_path, search_space=space)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study.optimize(asks, 1, progress=False)
    assert [t.status for t in study.trials] == ["finished"]
    name = "lr"
    study = made(tmp_path / "other", search_space=space)
    with pytest.warns(UserWarning, match="never asked for optimizer.lr.*ask for 'optim"):
        study.optimize(asks, 1, progress=False)
