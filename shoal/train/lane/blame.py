"""Whose fault it is when something raises: the recipe's, and so its trial's, or the study's."""

from __future__ import annotations

import os
import re
import signal
import threading
import traceback
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from shoal.core.site import page
from shoal.train.data.columns import DataError
from shoal.train.lane import device
from shoal.train.lane.checkpoints import StaleRun
from shoal.train.overdue import in_time
from shoal.train.recipe.unit import RAISED, DeviceLost, Diverged, OutOfMemory, Overdue, TrialError

# The folder of this package.
SHOAL = str(Path(__file__).parents[2]) + os.sep


@contextmanager
def blaming(kind: Hashable = None, watched: bool = True) -> Iterator[None]:
    """Turns what the recipe's code raises into a TrialError; errors of the whole study pass.

    Code that does not return is ended, too: `kind` as of `in_time`; not `watched`: it may wait.
    """
    try:
        with in_time(kind) if watched else nullcontext():
            yield
    except (DataError, DeviceLost, StaleRun, TrialError):
        raise
    except GeneratorExit:  # of a generator of Shoal's that is not wanted any more
        raise
    # The recipe's own, whatever it is: asyncio's CancelledError and a library in Rust that panics
    # raise no Exception.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _may_be_ctrl_c():
            raise
        line = str(error).strip().split("\n")[0]
        if no_room(error):
            raise OutOfMemory(_why(error, line), _traceback(error)) from error
        if isinstance(error, RuntimeError) and not device.works():
            raise DeviceLost(
                f"the GPU does not work any more in this process, after {line} (perhaps of an "
                "earlier step, of any trial there: with CUDA_LAUNCH_BLOCKING=1 the traceback tells "
                "which); a trial that does it again can be stopped by name"
            ) from error
        raise TrialError(_why(error, line), _traceback(error)) from error


# Begins what `noting_rest` adds to an error.
_REST = "it was the last batch of a pass"


@contextmanager
def noting_rest(samples: int, size: int, of: int) -> Iterator[None]:
    """Adds to errors of a step on a smaller last batch a note that says so, and what helps.

    The batch has `samples` where others have `size`, at the end of a pass over `of` samples.
    """
    try:
        yield
    except RAISED as error:
        # The pass may have no other batch: then its size is not what is wrong with it.
        if samples < size <= of and not rest_note(error):
            error.add_note(rest_remedy(samples, size, of))
        raise


def rest_remedy(samples: int, size: int, of: int) -> str:
    """The remedy for a smaller last batch that cannot be trained."""
    rest = "1 sample" if samples == 1 else f"{samples} samples"
    return (
        f"{_REST} over {of} samples, with {rest} instead of {size}: set drop_last = True to leave "
        "such batches out, or another batch_size (or number of shards) that leaves more"
    )


def rest_note(error: BaseException) -> str:
    """The note that `noting_rest` added to the error; empty if none."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if note.startswith(_REST)), "")


def _may_be_ctrl_c() -> bool:
    """Whether a KeyboardInterrupt may come from Ctrl-C, and not from the recipe's own code.

    Python raises it in the main thread alone, and only while nothing else takes the signal: a run
    that was asked to stop once takes it no more.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _traceback(error: BaseException) -> str:
    """The traceback from the recipe's code on: Shoal's frames that called it are left out."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(SHOAL):
        first = first.tb_next
    return "".join(traceback.format_exception(type(error), error, first or error.__traceback__))


def explained(error: TrialError) -> str:
    """Why the trial cannot go on, and in which line of the recipe's file, where that is known."""
    frames = re.findall(r'^  File "(.+)", line (\d+), in (\S+)', error.text, re.MULTILINE)
    if not frames or frames[0][0].startswith(SHOAL):
        return error.why
    file = frames[0][0]  # the traceback begins in the recipe's code
    _, line, name = next(each for each in reversed(frames) if each[0] == file)
    return f"{error.why}, in {name} ({file}, line {line})"


def _why(error: BaseException, line: str) -> str:
    """One line for people: the error's class and its first line."""
    if isinstance(error, Diverged | Overdue):
        return line
    text = f"{type(error).__name__}: {line}".removesuffix(": ")
    if rest := rest_note(error):
        text += f"; {rest}"
    if any(words in line for words in _OF_THREADS):
        text += (
            ". Shoal calls a trial's function, and on Ray all of a trial's code, in a thread that "
            "is not the main one, where Python sets no signal handlers: do that in a process of "
            f"its own, as a trial of command= is ({page('functions', 'threads-signals-processes')})"
        )
    return text


# In messages of what Python does in the main thread alone.
_OF_THREADS = ("main thread", "no current event loop in thread")


_NO_ROOM = (  # in messages of errors that have no type of their own
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)


def no_room(error: BaseException) -> bool:
    """Whether memory ran out, on a device or in this process."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(words in text for words in _NO_ROOM)
