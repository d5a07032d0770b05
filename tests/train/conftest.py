"""Fixtures of what trains."""

import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture
def quiet() -> Iterator[None]:
    """A fused step neither warns nor moves a global generator."""
    torch.manual_seed(1)
    before = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )  # type: ignore[index, union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    after = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )  # type: ignore[index, union-attr]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
