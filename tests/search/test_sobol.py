"""First draws cover the space; repetitions of a configuration have seeds of their own."""

from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

from shoal.search import ASHA, Random, describe, parse, rebuild
from shoal.search.draws import Draws
from shoal.search.sobol import DIMENSIONS, POINTS, Place, Point, source
from shoal.search.space import choice, grid, loguniform, randint, uniform

SEEDS = st.integers(0, 2**63 - 1)
PLANE = {"a": uniform(0, 1), "b": uniform(0, 1)}


def parts(values: Any, count: int) -> list[int]:
    """In which of so many equal parts of [0, 1) the values lie."""
    return [int(value * count) for value in values]


@given(SEEDS, st.sampled_from([1, 2, 4, 8, 16, 32]), st.integers(1, DIMENSIONS))
def test_so_many_draws_lie_in_as_many_parts_of_each_dimension(
    seed: int, count: int, dimensions: int
) -> None:
    draws = Draws({f"d{n}": uniform(0, 1) for n in range(dimensions)}, seed)
    configs = [draws(number) for number in range(count)]
    for name in draws.space:
        found = parts((config[name] for config in configs), count)
        assert sorted(found) == [*range(count)], name


@given(SEEDS)
def test_four_draws_lie_in_four_quarters_of_the_plane(seed: int) -> None:
    draws = Draws(PLANE, seed)
    cells = {tuple(parts(draws(number).values(), 2)) for number in range(4)}
    assert len(cells) == 4
    cells = {tuple(parts(draws(number).values(), 4)) for number in range(16)}
    assert len(cells) == 16


@given(SEEDS, st.integers(2, 9), st.sampled_from([1, 2, 4, 8]))
def test_each_combination_of_grids_is_covered(seed: int, groups: int, count: int) -> None:
    draws = Draws({"g": grid(range(groups)), **PLANE}, seed)
    of_group: dict[Any, list[Any]] = {}
    for number in range(groups * count):
        config = draws(number)
        of_group.setdefault(config["g"], []).append(config["a"])
    for values in of_group.values():
        assert sorted(parts(values, count)) == [*range(count)]
    # The first draws of all combinations cover the range, too.
    first = parts((values[0] for values in of_group.values()), 2)
    assert {0, 1} == set(first)


def test_the_sequence_is_that_of_scipy() -> None:
    """Shifted, and each point somewhere within its cell."""
    known = qmc.Sobol(DIMENSIONS, scramble=False).random_base2(10) * POINTS
    for dimension in (0, 1, 17, DIMENSIONS - 1):
        cells = []
        for number in range(POINTS):
            point = source(3, dimension, Place(number))
            assert isinstance(point, Point)
            cells.append(int(point.part * POINTS))
        shifts = np.array(cells) ^ known[:, dimension].astype(int)
        assert len(set(shifts)) == 1


def test_later_draws_and_dimensions_are_random_and_lie_in_their_domains() -> None:
    space: dict[str, Any] = {
        "lr": loguniform(1e-4, 1e-1),
        "n": randint(-3, 5),
        "act": choice(["a", "b", "c"]),
        **{f"d{number}": uniform(0, 1) for number in range(DIMENSIONS)},
    }
    draws = Draws(space, 1)
    for number in (*range(50), POINTS - 1, POINTS, POINTS + 7, 10**9):
        config = draws(number)
        assert config == Draws(space, 1)(number)
        assert 1e-4 <= config["lr"] < 1e-1 and config["n"] in range(-3, 5)
        assert all(0 <= config[f"d{each}"] < 1 for each in range(DIMENSIONS))
    acts = [draws(number)["act"] for number in range(300)]
    assert min(acts.count(act) for act in "abc") > 90


def test_the_first_rates_at_seed_0_keep_apart() -> None:
    draws = Draws({"lr": loguniform(1e-4, 1e-1)}, 0)
    rates = sorted(log(draws(number)["lr"]) for number in range(4))
    gaps = np.diff(rates)
    assert min(gaps) > log(1000) / 5


def test_repetitions_have_seeds_of_their_own() -> None:
    search = Random({"width": grid([4, 8]), "k": 1}, num_samples=3, seed=7)
    assert [search.config(number) for number in range(6)] == [
        {"width": 4, "k": 1},
        {"width": 8, "k": 1},
        {"width": 4, "k": 1, "seed": 8},
        {"width": 8, "k": 1, "seed": 8},
        {"width": 4, "k": 1, "seed": 9},
        {"width": 8, "k": 1, "seed": 9},
    ]
    drawn = Random({"width": grid([4, 8]), "lr": uniform(0, 1)}, num_samples=3)
    own = Random({"seed": grid([1, 2])}, num_samples=3)
    for search in (drawn, own):
        assert len({len(search.config(number)) for number in range(6)}) == 1
    branches = {"opt": grid({"sgd": {"m": uniform(0, 1)}, "adam": None})}
    configs = [Random(branches, num_samples=2).config(number) for number in range(4)]
    assert [config.get("seed") for config in configs] == [None, None, None, 1]


def test_what_was_described_before_draws_as_before() -> None:
    """The values are those of the version before."""
    space = {"lr": loguniform(1e-4, 1e-1)}
    said = describe(Random(space, 4, seed=0))
    assert said.pop("sampling") == "sobol"
    before: Any = rebuild(said)
    assert before.sampling is None
    rates = [before.config(number)["lr"] for number in range(4)]
    assert rates == pytest.approx([0.0187971, 0.0183003, 0.00038127, 0.00035992], rel=2e-2)
    grids: Any = rebuild({"name": "asha", "space": describe(Random({"a": grid([1])}))["space"]})
    assert grids._draws(1) == {"a": 1}
    inner: Any = parse("patience(inner='asha(num_samples=3)')")
    assert inner.inner == ASHA(num_samples=3) and inner.inner.sampling == "sobol"
    with pytest.raises(ValueError, match='sampling must be "sobol", or None'):
        Random(space, sampling="lhs")
