"""Odd spaces and numbers: each works, or is one clear error of ours."""

import enum
import tempfile
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shoal
from shoal.options import Options, SearchArguments
from shoal.search import describe, parse, rebuild
from shoal.search.space import choice, grid, loguniform, randint, uniform


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def deep() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def looped() -> dict[str, Any]:
    space: dict[str, Any] = {"a": 1}
    space["b"] = space
    return space


BOUNDS = st.one_of(
    st.floats(),
    st.integers(-(10**400), 10**400),
    st.integers(-9, 9),
    st.sampled_from(
        [
            None,
            True,
            False,
            "1",
            b"1",
            1j,
            [],
            {},
            (1,),
            Fraction(1, 3),
            np.float32(0.5),
            np.int64(3),
            np.float64("nan"),
            np.array(1),
            np.array([1, 2]),
            np.bool_(True),
            Shy(),
            lambda: 1,
            Level.LOW,
            5e-324,
            1.7e308,
            -1.7e308,
            2**63,
            -(2**63),
            2**62,
            10**5000,
        ]
    ),
)
ODD = st.one_of(
    BOUNDS,
    st.text(),
    st.builds(deep),
    st.builds(looped),
    st.sampled_from(
        ["\ud800", "a\0b", "\n", "", Color.RED, {1}, {"x": lambda: 1}, object, range(3)]
    ),
)
VALUES = st.one_of(
    ODD,
    st.lists(ODD, max_size=3),
    st.builds(np.arange, st.integers(0, 3)),
    st.builds(lambda n: np.zeros((n, 2)), st.integers(0, 2)),
)
NAMES = st.one_of(
    st.text(max_size=3),
    st.sampled_from(["lr", "a.b", "\ud800", "", None, 3, ("a",), b"x", True, "seed"]),
)


@st.composite
def domains(draw: Any, depth: int = 2) -> Any:
    """A function that makes a domain, or raises."""
    kind = draw(st.sampled_from([uniform, loguniform, randint, choice, grid, "plain", "dict"]))
    if kind in (uniform, loguniform, randint):
        low, high = draw(BOUNDS), draw(BOUNDS)
        return lambda: kind(low, high)
    if kind == "dict" and depth:
        inner = draw(st.dictionaries(NAMES, domains(depth - 1), max_size=2))
        return lambda: {name: make() for name, make in inner.items()}
    if kind in (choice, grid):
        if depth and draw(st.booleans()):
            branches = draw(st.dictionaries(NAMES, domains(depth - 1), max_size=2))
            return lambda: kind({name: {"x": make()} for name, make in branches.items()})
        values = draw(VALUES)
        return lambda: kind(values)
    value = draw(ODD)
    return lambda: value


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, domains(), min_size=1, max_size=3))
def test_an_odd_space_works_or_is_one_clear_error(space: Any) -> None:
    try:
        made = {name: make() for name, make in space.items()}
        search = shoal.Random(made, num_samples=2)
    except (ValueError, shoal.StudyError) as caught:
        kind = type(caught)
        text = str(caught)
        assert kind in (ValueError, shoal.StudyError)
        text.encode()
        assert 0 < len(text) < 3000 and "\n" not in text.replace("\\n", "")
        return
    configs = [search.config(number) for number in range(3)]
    again: Any = rebuild(shoal.engine.journal.plain(describe(search)))
    assert [again.config(number) for number in range(3)] == configs


NUMBERS = st.one_of(BOUNDS, st.sampled_from(["two", [1], {"a": 1}, "auto"]))


@pytest.mark.parametrize(
    "name",
    ["halving", "asha", "hyperband", "pbt", "random", "grid", "median", "patience", "optuna"],
)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_odd_numbers_of_searchers(name: str, data: Any) -> None:
    fields = describe(parse(name))
    fields.pop("name")
    named = data.draw(
        st.sampled_from(
            sorted(fields.keys() - {"space", "inner", "first", "sampler", "options", "mutate"})
        )
    )
    value = data.draw(NUMBERS)
    kind = type(parse(name))
    try:
        made = kind(**{named: value})
    except ValueError as caught:
        text = str(caught)
        assert named in text or kind.__name__ in text
        return
    described = shoal.engine.journal.plain(describe(made))
    assert describe(rebuild(described)) == described


OPTIONS = [each.name for each in fields(Options)]
ARGUMENTS = [each.name for each in fields(SearchArguments)]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(OPTIONS), NUMBERS)
def test_odd_options(name: str, value: Any) -> None:
    try:
        options = Options.of(**{name: value})
    except shoal.StudyError as caught:
        text = str(caught)
        assert name in text
        return
    if value is None:
        assert options == Options()


def train(config: dict[str, Any]) -> float:
    return float(config["k"])


def test_none_means_the_default(tmp_path: Path) -> None:
    study = shoal.create_study(
        train,
        storage=tmp_path / "s",
        study_name=None,
        metric="value",
        mode=None,
        direction=None,
        search_space={"k": grid([1, 2])},
        searcher=None,
        seed=None,
        checkpoints=None,
    )
    nothing: Any = dict.fromkeys(("n_trials", *ARGUMENTS, *OPTIONS))
    study.optimize(**{**nothing, "progress": False})
    assert [trial.value for trial in study.trials] == [1, 2]
    study.resume(callbacks=None, progress=False)  # type: ignore[arg-type]
    for made in (shoal.ASHA(grace_period=None, stopping=None), shoal.PBT(asynchronous=None)):  # type: ignore[arg-type]
        assert made == type(made)()


@pytest.mark.parametrize(
    "given_",
    [
        {"seed": -1},
        {"seed": 1.5},
        {"seed": "a"},
        {"seed": True},
        {"seed": float("nan")},
        {"study_name": 3},
        {"study_name": "\ud800"},
        {"study_name": "a\0"},
        {"study_name": ".."},
        {"study_name": "a/../../b"},
        {"study_name": "/a"},
        {"storage": 3},
        {"storage": b"a"},
        {"storage": "a\0"},
        {"storage": "\ud800"},
        {"storage": "x" * 300},
        {"checkpoints": 3},
        {"checkpoints": "nothing://a"},
        {"metric": 3},
        {"metric": "\ud800"},
        {"mode": ["max"]},
        {"mode": 1},
        {"direction": {}},
        {"search_space": [1]},
    ],
)
def test_odd_arguments_of_a_study(given_: Any) -> None:
    with pytest.raises(shoal.StudyError):
        shoal.create_study(train, **{"storage": tempfile.mkdtemp() + "/s", **given_})


@pytest.mark.parametrize(
    "given_",
    [
        {"callbacks": 3},
        {"loggers": [3]},
        {"loggers": 3},
        {"profile": "no such file"},
        {"max_checkpoint_gb": -1},
        {"data_memory_gb": -1},
        {"state_memory_gb": -1},
        {"slot_memory_gb": -1},
        {"stuck_after": -1},
    ],
)
def test_odd_arguments_of_a_run(given_: Any, tmp_path: Path) -> None:
    study = shoal.create_study(train, storage=tmp_path / "s", metric="value")
    with pytest.raises((shoal.StudyError, ValueError)):
        study.optimize(progress=False, **given_)
    assert not (tmp_path / "s" / "journal.jsonl").exists()


@pytest.mark.parametrize("name", [1, None, ("a", 1), "\ud800"])
@pytest.mark.parametrize("step", ["training_step", "validation_step"])
def test_odd_names_of_values(name: Any, step: str, blobs: Any, tmp_path: Path) -> None:
    kind = blobs

    class Named(kind):  # type: ignore[misc]
        pass

    def named(self: Any, model: Any, batch: Any) -> Any:
        values = getattr(kind, step)(self, model, batch)
        values = values if isinstance(values, dict) else {"loss": values}
        return {**values, name: 1.0}

    setattr(Named, step, named)
    study = shoal.create_study(Named(), storage=tmp_path / "s")
    with pytest.raises(shoal.StudyError, match="names of values are texts"):
        study.optimize(progress=False, workers=0)


@pytest.mark.parametrize("whole", [int, np.int64, torch.tensor])
def test_a_whole_number_that_ranks_is_exact(whole: Any, tmp_path: Path) -> None:
    def large(config: dict[str, Any]) -> Any:
        if config["k"] == 1:
            shoal.report({"value": whole(2**53 + 1)})
        return whole(2**53 + 1 if config["k"] == 2 else 3)

    study = shoal.create_study(
        large, storage=tmp_path / "s", metric="value", search_space={"k": grid([1, 2, 3])}
    )
    study.optimize(progress=False)
    statuses = [trial.status for trial in study.trials]
    assert all("beyond 2**53" in status for status in statuses[:2])
    assert statuses[2] == "finished"
