import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.search.space import (
    Combinations,
    GridDomain,
    choice,
    describe_space,
    draw,
    grid,
    independent,
    loguniform,
    randint,
    rebuild_space,
    uniform,
    validated,
)


def drawn(space: Any, seed: int, index: int, fixed: Any) -> Any:
    return draw(space, fixed, independent(seed, index))[0]


def grids(space: Any) -> list[Any]:
    found = Combinations(space)
    made = [found[number] for number in range(found.count)]
    for number, each in enumerate(made):
        first = found.place(each)
        assert first is not None and first <= number and found[first] == each
    return made


SPACE = {
    "lr": loguniform(1e-4, 1e-1),
    "width": grid([64, 128]),
    "p": uniform(0.0, 0.5),
    "n": randint(1, 4),
    "act": choice(["a", None]),
    "k": 7,
}


def test_draws_lie_in_their_domains() -> None:
    configs = [drawn(SPACE, 3, i, {"width": 64}) for i in range(400)]
    for c in configs:
        assert (
            1e-4 <= c["lr"] < 1e-1
            and 0.0 <= c["p"] < 0.5
            and c["n"] in (1, 2, 3)
            and c["act"] in ("a", None)
        )
        assert (c["width"], c["k"]) == (64, 7) and list(c) == list(SPACE)
        assert [type(v) for v in (c["lr"], c["p"], c["n"])] == [float, float, int], (
            "plain Python numbers, which JSON keeps"
        )
    assert set(Counter(c["n"] for c in configs)) == {1, 2, 3}
    below = sum(c["lr"] < 10**-2.5 for c in configs)
    assert 160 <= below <= 240, "loguniform is even in the logarithm"
    assert 160 <= sum(c["p"] < 0.25 for c in configs) <= 240


def test_a_draw_is_a_function_of_seed_number_and_name() -> None:
    assert drawn(SPACE, 1, 5, {}) == drawn(SPACE, 1, 5, {})
    assert (
        drawn(SPACE, 1, 5, {})["lr"] != drawn(SPACE, 1, 6, {})["lr"] != drawn(SPACE, 2, 5, {})["lr"]
    )
    alone = drawn({"lr": SPACE["lr"]}, 1, 5, {})
    assert alone["lr"] == drawn(SPACE, 1, 5, {})["lr"], (
        "a dimension more changes nothing of the others"
    )
    two = drawn({"a": uniform(0, 1), "b": uniform(0, 1)}, 0, 0, {})
    assert two["a"] != two["b"], "dimensions are drawn independently"


def test_grids_are_crossed_the_last_fastest() -> None:
    assert grids({"a": grid([1, 2]), "c": grid([3, 4])}) == [
        {"a": 1, "c": 3},
        {"a": 1, "c": 4},
        {"a": 2, "c": 3},
        {"a": 2, "c": 4},
    ]
    assert grids({"b": 3}) == [{}]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: uniform(1, 1), "finite low < high"),
        (lambda: uniform(0, float("inf")), "finite low < high"),
        (lambda: loguniform(0, 1), "loguniform needs low > 0"),
        (lambda: randint(3, 3), "finite low < high"),
        (lambda: randint(1.5, 3), "whole numbers"),
        (lambda: choice([]), "at least one value"),
        (lambda: grid([]), "at least one value"),
        (lambda: grid("abc"), r"write grid\(\['abc'\]\)"),
        (lambda: choice([object()]), "a configuration holds"),
        (lambda: grid([{1}]), "a configuration holds"),
    ],
)
def test_wrong_domains_cannot_be_built(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_wrong_spaces() -> None:
    with pytest.raises(ValueError, match=r"there are two of opt\.lr"):
        validated({"opt": {"lr": uniform(0, 1)}, "opt.lr": 3})
    with pytest.raises(ValueError, match=r"there are two of opt\.lr"):
        validated({"opt": choice({"sgd": {"lr": uniform(0, 1)}}), "opt.lr": 3})
    with pytest.raises(ValueError, match="needs a dict, or None, for each value"):
        choice({"sgd": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"dimension 'opt' is a choice with a grid under it"):
        grids({"opt": choice({"sgd": {"m": grid([1, 2])}, "adam": None})})
    with pytest.raises(ValueError, match="dimension 'f'"):
        validated({"f": lambda: 1})
    with pytest.raises(ValueError, match="name must be a text"):
        validated({3: grid([1])})  # type: ignore[dict-item]


def test_values_become_plain() -> None:
    values = grid([np.int64(3), np.float32(0.5), np.bool_(True), [1, [2]]]).values
    assert values == (3, 0.5, True, (1, (2,)))
    assert [type(v) for v in values[:3]] == [int, float, bool]


VALUE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
VALUES = st.lists(VALUE | st.lists(VALUE, max_size=2), min_size=1, max_size=4)
LOW = st.floats(-1e6, 1e6)
DOMAIN = st.one_of(
    st.builds(grid, VALUES),
    st.builds(choice, VALUES),
    st.builds(lambda a, d: uniform(a, a + d), LOW, st.floats(1, 9)),
    st.builds(lambda a, f: loguniform(a, a * f), st.floats(1e-9, 1e9), st.floats(1.5, 9)),
    st.builds(lambda a, d: randint(a, a + d), st.integers(-99, 99), st.integers(1, 9)),
    VALUE,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=6), DOMAIN, max_size=5))
def test_described_as_json_and_rebuilt_in_order(space: dict[str, Any]) -> None:
    data = json.loads(json.dumps(describe_space(space), sort_keys=True))
    back = rebuild_space(data)
    assert back == validated(space)
    assert list(back) == list(space), (
        "the order of a grid's dimensions decides which trial is which"
    )
    fixed = grids(space)[-1]
    assert drawn(back, 4, 2, fixed) == drawn(space, 4, 2, fixed)


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="kind is one of"):
        rebuild_space({"dimensions": [["a", {"kind": "normal"}]]})
    assert isinstance(grid([1]), GridDomain)


NESTED = {
    "model": {"width": grid([8, 16]), "act": "relu"},
    "optimizer": choice(
        {
            "sgd": {"lr": uniform(0.5, 1), "momentum": uniform(0, 1)},
            "adam": {"lr": loguniform(1e-4, 1e-2)},
        }
    ),
}


def test_nested_dicts_are_flattened() -> None:
    assert list(validated(NESTED)) == ["model.width", "model.act", "optimizer"]
    assert grids(validated({"a": {"b": {"c": grid([1, 2])}}})) == [{"a.b.c": 1}, {"a.b.c": 2}]


def test_dimensions_that_come_with_a_value() -> None:
    space = validated(NESTED)
    configs = [drawn(space, 7, i, {"model.width": 8}) for i in range(60)]
    for c in configs:
        inner = (
            ["optimizer.lr", "optimizer.momentum"] if c["optimizer"] == "sgd" else ["optimizer.lr"]
        )
        assert list(c) == ["model.width", "model.act", "optimizer", *inner]
        assert (c["optimizer.lr"] >= 0.5) == (c["optimizer"] == "sgd")
    assert {c["optimizer"] for c in configs} == {"sgd", "adam"}
    back = rebuild_space(json.loads(json.dumps(describe_space(NESTED))))
    assert [drawn(back, 7, i, {"model.width": 8}) for i in range(60)] == configs


def test_grids_under_a_grid() -> None:
    space = {
        "opt": grid(
            {
                "sgd": {"m": grid([0, 1])},
                "adam": None,
                3: {"deep": grid({True: {"x": grid(["ab"])}})},
            }
        ),
        "n": grid([1, 2]),
    }
    assert [tuple(c.values()) for c in grids(space)] == [
        *(("sgd", m, n) for m in (0, 1) for n in (1, 2)),
        *(("adam", n) for n in (1, 2)),
        *((3, True, "ab", n) for n in (1, 2)),
    ]
    assert grids(space)[-1] == {"opt": 3, "opt.deep": True, "opt.deep.x": "ab", "n": 2}


@pytest.mark.parametrize(
    "make", [lambda v: choice([1.0, v]), lambda v: grid([v]), lambda v: grid([[0.5, v]])]
)
def test_nan_is_no_value(make: Any) -> None:
    with pytest.raises(ValueError, match="holds no NaN"):
        validated({"x": make(float("nan"))})
    with pytest.raises(ValueError, match="holds no NaN"):
        validated({"x": np.float32("nan")})
