"""The random generators: each trial has its own, and who is outside never notices."""

import random
import warnings
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from train_kit import copied

from shoal.train.rng import Rng, global_state


def draw(count: int = 1) -> list[float]:
    """From all three; an odd count of normal numbers leaves one waiting in NumPy and in Python."""
    normal = [f() for _ in range(count) for f in (np.random.randn, lambda: random.gauss(0, 1))]
    return [*normal, np.random.rand(), random.random(), float(torch.rand(()))]


def seeded(seed: int) -> None:
    np.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1, 2), (0, 3, 1)])
def test_a_trial_draws_as_if_alone(counts: Any) -> None:
    seeded(7)
    alone = [draw(count) for count in counts]
    rng, other = Rng(7, HERE), Rng(8, HERE)
    for expected, count in zip(alone, counts, strict=True):
        with rng:
            assert draw(count) == expected
        with other:
            draw(1)
        draw(1)
        moved = Rng(9, HERE)
        moved.load(copied(rng.state()))
        rng = moved


@pytest.mark.parametrize("bits", [np.random.MT19937, np.random.PCG64])
def test_the_global_state_tells_whether_anybody_drew(bits: Any) -> None:
    """Also the normal number that NumPy holds back, and with a generator that a user has set."""
    seeded(5)
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    np.random.set_bit_generator(bits(3))  # type: ignore[attr-defined]
    try:
        seen = [global_state(HERE)]
        draws: list[Any] = [np.random.randn, np.random.randn, np.random.rand]
        for draw_one in (*draws, random.random, lambda: torch.rand(())):
            draw_one()
            seen.append(global_state(HERE))
            assert seen[-1] == global_state(HERE)
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]
    assert all(one != other for one, other in pairwise(seen))


def test_who_is_outside_never_notices() -> None:
    seeded(5)
    expected = [draw(1) for _ in range(6)]
    seeded(5)
    found = [draw(1)]  # leaves a normal number waiting
    rng = Rng(7, HERE)
    found.append(draw(1))
    for count in (0, 1, 2):
        with rng:
            draw(count)
        found.append(draw(1))
    with suppress(KeyError), rng:
        draw(1)
        raise KeyError
    found.append(draw(1))
    assert found == expected


def test_another_global_generator_is_respected() -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        expected = [np.random.randn() for _ in range(4)]
        np.random.set_bit_generator(np.random.PCG64(3))
        found = []
        rng = Rng(7, HERE)
        for _ in range(4):
            found.append(np.random.randn())
            with rng:
                draw(1)
        assert found == expected
    finally:
        np.random.set_bit_generator(before)


def test_torchs_global_modes_are_each_trials_own() -> None:
    """A recipe that sets them changes no other trial, and finds them again at its next step."""

    def modes() -> tuple[torch.dtype, bool]:
        return torch.get_default_dtype(), torch.is_grad_enabled()

    rng, other = Rng(7, HERE), Rng(8, HERE)
    try:
        with rng:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
        for _ in range(2):
            assert modes() == (torch.float32, True)
            with other:
                assert modes() == (torch.float32, True)
            with rng:
                assert modes() == (torch.float64, False)
            with rng.untouched():
                torch.set_default_dtype(torch.bfloat16)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)


def test_filters_of_warnings_are_each_trials_own() -> None:
    """A trial that makes errors of warnings makes none of its neighbours', or of Shoal's own."""
    rng, other = Rng(7, HERE), Rng(8, HERE)
    outer = list(warnings.filters)
    with rng:
        warnings.simplefilter("error")
    for _ in range(2):
        with other, pytest.warns(UserWarning, match="the neighbour's"):
            warnings.warn("the neighbour's", stacklevel=1)
        with rng, pytest.raises(UserWarning):
            warnings.warn("its own", stacklevel=1)
        with rng.untouched():
            warnings.simplefilter("ignore")
        assert list(warnings.filters) == outer


def test_untouched_draws_the_same_and_leaves_the_state() -> None:
    rng = Rng(7, HERE)
    with rng:
        draw(1)
    with rng.untouched():
        first = draw(1)
    with rng.untouched():
        assert draw(1) == first
    with rng:
        assert draw(1) == first  # with a normal number waiting
    with rng.untouched():
        draw(0)
        second = draw(1)
    with rng:
        draw(0)
        assert draw(1) == second
