"""Fixtures of what trains."""

import gc
import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

# Folders whose tests train on the device that SHOAL_TEST_DEVICE names.
ON_DEVICE = {"fuse", "lane", "recipe", "slot", "stream", "tools", "workers"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what tells something about a device; `make gpu` runs it on a GPU."""
    if item.path.parent.name in ON_DEVICE or hasattr(item.module, "HERE"):
        item.add_marker(pytest.mark.device)


@pytest.fixture(autouse=True)
def only_its_own_is_collected() -> Iterator[None]:
    """A trainer collects garbage; other tests' objects need not be looked at for it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def quiet() -> Iterator[None]:
    """A fused step neither warns nor moves a global generator."""
    torch.manual_seed(1)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index, union-attr]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index, union-attr]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
