"""Fixtures of the tests that need a real Slurm."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from slurm_kit import SlurmLab, SlurmSetup, missing


@pytest.fixture
def start_slurm() -> Iterator[Callable[..., SlurmLab]]:
    """Starts a cluster with what is given of `SlurmSetup`; it ends with the test."""
    if missing():
        pytest.skip(f"Slurm is not installed here: no {', '.join(missing())}")
    with ExitStack() as stack:
        yield lambda **given: stack.enter_context(SlurmLab(SlurmSetup(**given)))


@pytest.fixture
def slurm(start_slurm: Callable[..., Any]) -> SlurmLab:
    """Four virtual nodes; a job of `main` preempts those of `scavenger`, without grace."""
    return start_slurm()
