"""Optuna's samplers, asked on a study rebuilt from the view; and Optuna's log of a study."""

from math import nan
from pathlib import Path
from statistics import fmean

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from search_kit import simulate, told

from shoal.core.fold import fold
from shoal.core.state import State
from shoal.reporting.optuna_log import OptunaLog
from shoal.search import Hyperband, Optuna
from shoal.search.optuna import Past, distribution, parameters
from shoal.search.space import choice, grid, loguniform, randint, uniform, validated
from shoal.testing import check_searcher

X = {"x": uniform(0, 1)}
GOAL = {"metric": "score", "mode": "max"}
MIXED = {
    "lr": loguniform(1e-4, 1e-1),
    "n": randint(1, 5),
    "width": grid([64, 128]),
    "shape": choice([(1, 2), (3,)]),
    "opt": choice({"sgd": {"m": uniform(0.5, 1)}, "adam": {"m": uniform(0, 0.4)}}),
    "k": 3,
}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_contract(sampler):
    check_searcher(
        lambda: Optuna(
            sampler,
            MIXED,
            4,
            1,
            {"n_startup_trials": 1} if sampler == "tpe" else {},
            "accuracy",
            "max",
        ),
        2,
    )


def test_distributions():
    assert distribution(uniform(0, 2)) == FloatDistribution(0, 2)
    assert distribution(loguniform(1, 2)) == FloatDistribution(1, 2, log=True)
    assert distribution(randint(1, 5)) == IntDistribution(1, 4)
    assert distribution(grid([1, "a", None])) == CategoricalDistribution((1, "a", None))
    config = {"lr": 0.01, "n": 4, "width": 64, "shape": (3,), "opt": "adam", "opt.m": 0.2, "k": 3}
    params, kinds = parameters(validated(MIXED), config)
    assert params == {
        "lr": 0.01,
        "n": 4,
        "width": 64,
        "shape": "(3,)",
        "opt": "adam",
        "opt[adam].m": 0.2,
    }
    assert kinds["opt[adam].m"] == FloatDistribution(0, 0.4)
    assert parameters(validated(MIXED), config | {"opt": "sgd"}) is None, (
        "0.2 is no momentum of sgd's"
    )
    assert parameters(validated(MIXED), {"x": 1}) is None, "another space"


def test_configurations_are_of_the_space():
    state, _ = simulate(
        Optuna("tpe", MIXED, 12, 1, {"n_startup_trials": 3}, **GOAL),
        curve=lambda c, e: {"score": -c["lr"]},
    )
    for trial in state.known.values():
        c = trial.config
        assert (
            parameters(validated(MIXED), c) is not None
            and c["shape"] in ((1, 2), (3,))
            and c["k"] == 3
        )
        assert (c["opt.m"] >= 0.5) == (c["opt"] == "sgd")


@pytest.mark.parametrize(("sampler", "count"), [("tpe", 30), ("gp", 8)])
def test_it_learns(sampler, count):
    """A parabola: the later half is nearer to its top than the first four drawn at random, from
    the same seed always the same.
    """

    def curve(config, epochs):
        return {"score": -((config["x"] - 0.3) ** 2)}

    search = Optuna(sampler, X, count, 1, {"n_startup_trials": 4}, max_concurrent=1, **GOAL)
    state, _ = simulate(search, curve=curve)
    xs = [t.config["x"] for t in state.known.values()]
    off = [abs(x - 0.3) for x in xs]
    assert fmean(off[count // 2 :]) < 0.7 * fmean(off[:4])
    assert xs == [t.config["x"] for t in simulate(search, curve=curve)[0].known.values()]
    assert xs[:4] != [
        t.config["x"] for t in simulate(Optuna(sampler, X, 4, 1, seed=1, **GOAL))[0].known.values()
    ]


def test_what_optuna_is_told():
    view = told(
        {
            "t000": (2, [0.1, 0.2], "finished"),
            "t001": (2, [0.1, nan], "finished"),
            "t002": (2, [0.3], "failed"),
            "t003": (2, [0.4], ""),
        },
        configs={f"t00{i}": {"x": i / 10} for i in range(4)},
    )
    past = Past(X, GOAL["metric"], GOAL["mode"])
    past.look(view)
    trials = past.study(view).trials
    assert [(t.state.name, t.value, t.params["x"]) for t in trials] == [
        ("COMPLETE", 0.2, 0.0),
        ("FAIL", None, 0.1),
        ("FAIL", None, 0.2),
        ("RUNNING", None, 0.3),
    ]


def test_as_many_at_once_as_slots():
    _, lines = simulate(Optuna("random", X, 9, 1, **GOAL), slots=3)
    first = [e.trial.id for time, e in lines if type(e).__name__ == "Submitted" and time == 0]
    assert first == ["t000", "t001", "t002"]


def test_wrong_samplers():
    with pytest.raises(ValueError, match="no sampler is named 'cmaes': there are tpe, gp, random"):
        Optuna("cmaes", X, 9, 1)
    with pytest.raises(
        ValueError,
        match="CmaEsSampler cannot be used: it keeps notes of its own in Optuna's storage",
    ):
        Optuna("optuna.samplers:CmaEsSampler", X, 9, 1)
    for name, options in (
        ("optuna.samplers:Nope", {}),
        ("no_such_module:Nope", {}),
        ("tpe", {"starup": 3}),
    ):
        with pytest.raises(ValueError, match=f"sampler '{name}' cannot be made with .*: "):
            Optuna(name, X, 9, 1, options)
    with pytest.raises(ValueError, match="all would ask alike: say seed= instead"):
        Optuna("tpe", X, 9, 1, {"seed": 42})
    made = Optuna("optuna.samplers:TPESampler", X, 2, 1, **GOAL)
    assert len(simulate(made)[0].known) == 2


# -- the log
# ----------------------------------------------------------------------------------------------


def load(path: Path) -> list:
    study = optuna.load_study(
        study_name="study", storage=JournalStorage(JournalFileBackend(str(path)))
    )
    assert [d.name for d in study.directions] == ["MAXIMIZE"]
    return [
        (t.user_attrs["trial"], t.state, t.value, t.params, t.intermediate_values)
        for t in study.trials
    ]


def logged(path: Path, lines, until: int | None = None, close: bool = True) -> State:
    """Play a journal to the log, a line a moment."""
    log, state = OptunaLog(path, "study", X, "score", "max", 4), State()
    for time, entry in lines[:until]:
        state = fold(state, [entry])
        log(time, (entry,), state)
    if close:
        log.close()
    return state


def test_the_log_tells_what_the_journal_does(tmp_path):
    def fault(trial, visits):
        return "breaks" if trial.id == "t001" else None

    search = Hyperband(X, 4, 2, **GOAL, num_samples=6)
    state, lines = simulate(search, fault=fault, curve=lambda c, e: {"score": c["x"] + e})
    logged(tmp_path / "log", lines)
    rows = load(tmp_path / "log")
    assert [row[0] for row in rows] == list(state.known)
    for name, how, value, params, steps in rows:
        scores = state.scores[name]
        assert params == state.known[name].config and steps == {
            int(e): v["score"] for e, v in scores
        }
        if name == "t001":
            assert how == TrialState.FAIL
        else:
            whole = state.known[name].samples == 400
            assert (how, value) == (
                TrialState.COMPLETE if whole else TrialState.PRUNED,
                scores[-1][1]["score"],
            )
    assert {how for _, how, *_ in rows} == {TrialState.FAIL, TrialState.PRUNED, TrialState.COMPLETE}


def test_a_log_that_goes_on_has_nothing_twice(tmp_path):
    search = Hyperband(X, 4, 2, **GOAL, num_samples=6)
    _, lines = simulate(search, curve=lambda c, e: {"score": c["x"] + e})
    logged(tmp_path / "whole", lines)
    for cut in range(5, len(lines), 9):
        path = tmp_path / f"cut{cut}"
        logged(path, lines, cut, close=cut % 2 == 0)
        assert all(how in (TrialState.RUNNING, TrialState.COMPLETE) for _, how, *_ in load(path)), (
            "the study is not over"
        )
        logged(path, lines)
        assert load(path) == load(tmp_path / "whole")


def test_the_log_needs_a_metric(tmp_path):
    with pytest.raises(ValueError, match="needs the study's metric"):
        OptunaLog(tmp_path / "log", "study", X, None, "max")
