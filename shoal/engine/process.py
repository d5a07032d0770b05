"""Processes of this machine."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# What this process trains now, in words; at most one thing.
_training: list[str] = []
_entering = threading.Lock()
# Signals that stop a study.
STOPPING = (signal.SIGINT, signal.SIGTERM)
# What is called in forks of this process; and for each thread, its signal mask before it forked.
_fork_calls: list[Callable[[], object]] = []
_forking = threading.local()


# -- where other processes of Python import from ---------------------------------------------------

# `python -m` and `python -c` import from the current folder before all others. A user may well have
# gone to a study's folder that a stranger made, where a file torch.py would be run.
_SAFE_PATH = "PYTHONSAFEPATH"
_OURS = "of-shoal"  # its value where it was set here
_starting = threading.Lock()


def python_module(name: str) -> list[str]:
    """The command that runs a module, and imports nothing from the current folder."""
    return [sys.executable, "-P", "-m", name]


@contextmanager
def away_from_folder() -> Iterator[None]:
    """Processes that `multiprocessing` starts within import nothing from the current folder.

    What this process imports from there, they do, too: they are told its sys.path.
    """
    with _starting:
        before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = before or _OURS
        try:
            yield
        finally:
            if before is None:
                del os.environ[_SAFE_PATH]
            else:
                os.environ[_SAFE_PATH] = before


# What the user's code starts in such a process is its own affair.
if os.environ.get(_SAFE_PATH) == _OURS:
    del os.environ[_SAFE_PATH]


# -- what a process trains -------------------------------------------------------------------------


class Training(RuntimeError):  # noqa: N818 - a state of the process
    """This process trains something already."""


@contextmanager
def training(what: str) -> Iterator[None]:
    """The process is this training's own: its random states, signal handlers and reports.

    `what`: in words. To fork from within gives a process that trains nothing.

    Raises:
        Training: another one has not ended, in this thread or in another one.
    """
    with _entering:
        if _training:
            raise Training(
                f"{what} cannot begin while this process trains {_training[0]}: reports, random "
                "states and signal handlers are the process's, so it trains one thing at a time. "
                "Wait for the other to end; or start this in a process of its own, with `shoal "
                'run` or multiprocessing.get_context("spawn")'
            )
        _training.append(what)
    try:
        yield
    finally:
        _training.clear()


def dedicate(what: str) -> None:
    """The process trains this as long as it lives."""
    _training[:] = [what]


def in_forks(call: Callable[[], object]) -> None:
    """Have this called in each process that is forked from this one, before any other code of it.

    Such a process has a copy of all that was set here, and none of the threads that belong to it.
    """
    _fork_calls.append(call)


def _block_signals() -> None:
    """A signal at a fork that is a moment old must find the child's handlers, not ours."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _begin_fork() -> None:
    try:
        for call in _fork_calls:
            call()
    finally:
        _unblock_signals()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_block_signals, after_in_parent=_unblock_signals, after_in_child=_begin_fork
    )


def _trains_nothing() -> None:
    global _entering  # noqa: PLW0603
    _training.clear()
    _entering = threading.Lock()  # another thread may have held it


in_forks(_trains_nothing)


def lives(pid: int) -> bool | None:
    """Whether the process is there and has not ended; None: this system cannot tell."""
    if os.name != "posix":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    except OverflowError:  # no process has such a number
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended, and only waits for its parent to notice."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] == ["Z"]


def cpus_here() -> int:
    """CPUs of this machine that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
