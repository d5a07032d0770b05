"""What a unit's seconds went to, and whose fault it is when something raises."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

import torch

from shoal.core.event import Sum
from shoal.core.trial import Seconds
from shoal.train.checkpoint import StaleRun
from shoal.train.columns import DataError
from shoal.train.unit import RAISED, DeviceLost, Diverged, OutOfMemory, TrialError


class Spent:
    """Seconds by what they were spent on: by the clock, or, not `clocked`, only those that are added."""

    def __init__(self, clocked: bool) -> None:
        self._clocked = clocked
        self._open: dict[str, Seconds] = {}
        self.worked: Seconds = 0.0  # what the loss of the state would cost again

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """The seconds spent within count as `name`."""
        begin = perf_counter()
        try:
            yield
        finally:
            if self._clocked:
                self.add(name, perf_counter() - begin)

    def add(self, name: str, seconds: Seconds) -> None:
        """Count these as `name`."""
        self._open[name] = self._open.get(name, 0.0) + seconds
        if name in ("data", "train"):
            self.worked += seconds

    def take(self) -> dict[str, Seconds]:
        """Those since the last call."""
        spent, self._open = self._open, {}
        return spent


@contextmanager
def blaming() -> Iterator[None]:
    """What the recipe's code raises, as the trial's error; what concerns the whole study passes."""
    try:
        yield
    except (DataError, DeviceLost, StaleRun, TrialError):
        raise
    except RAISED as error:  # the recipe's own, whatever it is
        told = str(error).strip().split("\n")[0]
        if isinstance(error, RuntimeError) and not no_room(error) and not _works():
            raise DeviceLost(
                f"the GPU does not work any more in this process, after {told} (perhaps of an earlier step, of any trial there: "
                "with CUDA_LAUNCH_BLOCKING=1 the traceback tells which); a trial that does it again can be stopped by name"
            ) from error
        why = told if isinstance(error, Diverged) else f"{type(error).__name__}: {told}" if told else type(error).__name__
        kind = OutOfMemory if no_room(error) else TrialError
        raise kind(why, traceback.format_exc()) from error


_NO_ROOM = (  # in messages of errors that have no type of their own
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)


def _works() -> bool:
    """Whether a GPU in use still computes: after some errors it never does, in this process."""
    try:
        used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        return not used or bool(torch.ones(1, device="cuda").item() == 1)
    except torch.OutOfMemoryError:
        return True
    except RuntimeError:
        return False


def no_room(error: BaseException) -> bool:
    """Whether memory ran out, on a device or in this process."""
    told = str(error)
    short = any(words in told for words in _NO_ROOM)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (isinstance(error, RuntimeError) and short)


def add(totals: dict[str, Sum], values: Mapping[str, Sum]) -> None:
    """Add the sums to the totals."""
    for name, (total, count) in values.items():
        before, counted = totals.get(name, (0.0, 0.0))
        totals[name] = (before + total, counted + count)
