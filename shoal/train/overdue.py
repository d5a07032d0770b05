"""Ends calls of the recipe's code that do not return: endless loops, and waits without an end.

A thread looks at the calls under way. Where one takes far longer than such calls did before, it
raises `Overdue` in the thread of the call. Code in C is not reached by that, unless it waits in
the main thread and can be interrupted there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from shoal.core.errors import warn
from shoal.core.trial import Seconds
from shoal.engine.process import in_forks
from shoal.train.private import frame_of, raise_in
from shoal.train.recipe.unit import CallLimits, Overdue

# The folder of this package.
SHOAL = str(Path(__file__).parents[1]) + os.sep
# A signal that does nothing by itself. It interrupts what waits in the main thread.
NUDGE: int = getattr(signal, "SIGURG", 0)
MOST_TICK: Seconds = 1.0  # between two looks
# Modules of debuggers: where one of them stands in the code, somebody looks at it.
DEBUGGERS = ("bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy")


@dataclass(eq=False, slots=True)
class _Call:
    """A call under way in a thread, and the one around it."""

    kind: Hashable
    begun: Seconds
    around: _Call | None
    # Seconds in which the thread could work: not those in which the whole process stood still.
    lasted: Seconds = 0.0
    allowed: Seconds = 0.0
    interrupts: int = 0  # how often it was asked to end
    over: bool = False


class _Watch:
    """The calls under way in this process, and the thread that looks at them."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}  # the innermost one of each thread
        self._longest: dict[Hashable, Seconds] = {}
        self._over = threading.Event()
        self._former = self._listen_for_nudges()
        self._thread = threading.Thread(target=self._run, name="shoal-overdue", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more, and give the signal back."""
        self._over.set()
        self._thread.join()
        if self._former is not None and signal.getsignal(NUDGE) == self._nudged:
            signal.signal(NUDGE, self._former)

    # -- the threads that make calls ---------------------------------------------------------------

    @contextmanager
    def call(self, kind: Hashable) -> Iterator[None]:
        """Watch a call of that kind, made within."""
        thread = threading.get_ident()
        call = _Call(kind, monotonic(), self._calls.get(thread))
        self._calls[thread] = call
        try:
            yield
            if kind is not None:
                took = monotonic() - call.begun
                self._longest[kind] = max(took, self._longest.get(kind, 0.0))
        except Overdue as error:
            error.args = error.args or (_why(call),)
            raise
        finally:
            try:
                self._leave(thread, call)
            except Overdue:  # it came too late: the call has returned
                self._leave(thread, call)

    def _leave(self, thread: int, call: _Call) -> None:
        """Note that the call has returned: from now on nothing is raised for it."""
        with self._lock:
            call.over = True
            if call.interrupts:
                raise_in(thread, None)
            around = call.around
            if around is None:
                self._calls.pop(thread, None)
            else:
                around.begun = monotonic()
                around.lasted = 0.0  # it went on
                self._calls[thread] = around

    # -- the thread that looks ---------------------------------------------------------------------

    def _run(self) -> None:
        before = monotonic()
        tick = min(MOST_TICK, (self._limits.fixed or inf) / 4)
        while not self._over.wait(tick):
            now = monotonic()
            # More than two ticks: the process, or the whole machine, stood still.
            passed = min(now - before, 2 * tick)
            before = now
            for thread, call in list(self._calls.items()):
                self._look(thread, call, passed)

    def _look(self, thread: int, call: _Call, passed: Seconds) -> None:
        """Raise `Overdue` in the thread, in the code at work there, if the call takes too long."""
        longest = None
        if call.kind is not None:
            longest = self._longest.get(call.kind)
        call.allowed = self._limits.allowed(longest)
        call.lasted += passed
        if call.lasted <= call.allowed:
            return
        frame = frame_of(thread)
        if frame is None or not _is_recipes(frame):
            return
        with self._lock:
            if call.over:
                return
            call.interrupts += 1
            main = threading.main_thread().ident
            if thread == main and signal.getsignal(NUDGE) == self._nudged:
                signal.pthread_kill(thread, NUDGE)
            else:
                raise_in(thread, Overdue)
        if call.interrupts == 10:
            _warn(call, frame)

    # -- waits of the main thread ------------------------------------------------------------------

    def _listen_for_nudges(self) -> Any:
        """Have the signal raise in the main thread; returns what it did before, None if it may not.

        The main thread alone may ask for signals, and another's use of it stays.
        """
        in_main = threading.current_thread() is threading.main_thread()
        if not NUDGE or not in_main or signal.getsignal(NUDGE) != signal.SIG_DFL:
            return None
        return signal.signal(NUDGE, self._nudged)

    def _nudged(self, _number: int, _frame: FrameType | None) -> None:
        """End the main thread's call, unless that has returned meanwhile."""
        call = self._calls.get(threading.get_ident())
        if call is not None and call.interrupts and not call.over:
            raise Overdue(_why(call))


def _why(call: _Call) -> str:
    """The message that the user gets about such a call."""
    return (
        f"the recipe's code did not return for {call.lasted:.0f} s, and {call.allowed:.0f} s are "
        "allowed (stuck_after): an endless loop, or a wait without an end"
    )


def _is_recipes(frame: FrameType) -> bool:
    """Whether the thread is in the recipe's code, or in what that calls; and nobody debugs it."""
    if frame.f_code.co_filename.startswith(SHOAL):
        return False
    caller: FrameType | None = frame
    while caller is not None:
        if str(caller.f_globals.get("__name__", "")).partition(".")[0] in DEBUGGERS:
            return False
        caller = caller.f_back
    return True


def _warn(call: _Call, frame: FrameType) -> None:
    """Tell of a call that cannot be ended."""
    place = f"{frame.f_code.co_filename}, line {frame.f_lineno}"
    warn(
        f"{_why(call)}. It cannot be ended from Python ({place}): end this "
        "process. The study goes on from there, and sets a trial aside that stops it three times"
    )


_watches: list[_Watch] = []
in_forks(_watches.clear)  # the thread that looks is not in a fork


def watch_calls(limits: CallLimits) -> Callable[[], None]:
    """End calls of the recipe's code that take too long, wherever this process makes them.

    Returns what ends the watch. A process has one watch at a time: the first counts.
    """
    if _watches or not limits.watched:
        return _nothing
    watch = _Watch(limits)
    _watches.append(watch)

    def close() -> None:
        _watches.remove(watch)
        watch.close()

    return close


def _nothing() -> None:
    """End nothing: no watch was begun."""


@contextmanager
def in_time(kind: Hashable = None) -> Iterator[None]:
    """Within it a call of the recipe's code is made, which may be ended; calls may be nested.

    `kind`: calls of one kind take about as long as one another; None: nothing is known of it.
    """
    if not _watches:
        yield
        return
    with _watches[0].call(kind):
        yield
