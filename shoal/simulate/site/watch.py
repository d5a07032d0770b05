"""Idle nodes as a harvester sees them: `sinfo` at each tick, written down as it changes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from shoal.core.trial import Seconds
from shoal.simulate.read import read_log
from shoal.simulate.site.slurm import idle_in
from shoal.simulate.site.written import HEAD, event
from shoal.simulate.trace import TraceError

# A line that says that nothing changed: if the recorder is killed, the log ends there.
AT_LEAST_EVERY: Seconds = 600.0

Ask = Callable[[], str]  # what `sinfo` says; raises TraceError if Slurm does not answer
Say = Callable[[str], None]


class IdleRecorder:
    """Writes the events of an idle-node log, in seconds since 1970, as they happen.

    A file that is there is continued: what was idle at its end counts as busy until now, as nobody
    looked. A tick at which Slurm does not answer changes nothing.

    Raises:
        TraceError: the file is no log of events.
    """

    def __init__(self, path: Path, ask: Ask, say: Say) -> None:
        self._ask = ask
        self._say = say
        self._last: Seconds = 0.0
        self._idle: frozenset[str] = frozenset()
        self.joins = 0
        begun = path.exists() and path.stat().st_size > 0
        idle_before = frozenset[str]()
        if begun:
            self._last, idle_before = _end_of(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")
        if not begun:
            self._file.write(HEAD)
        if idle_before:
            self._write(self._last, frozenset(), idle_before)

    def tick(self, now: Seconds) -> None:
        """Look at the nodes, and write what changed."""
        now = max(now, self._last)  # the clock may be set back
        try:
            idle = idle_in(self._ask())
        except TraceError as error:
            self._say(f"warning: {error}")
            return
        came, went = idle - self._idle, self._idle - idle
        if came or went or now - self._last >= AT_LEAST_EVERY:
            self._write(now, came, went)
        self.joins += len(came)
        self._idle = idle

    def close(self, now: Seconds) -> None:
        """The log ends now."""
        self._write(max(now, self._last), frozenset(), frozenset())
        self._file.close()

    def _write(self, at: Seconds, came: frozenset[str], went: frozenset[str]) -> None:
        self._file.write(event(round(at, 1), sorted(came), sorted(went)))
        self._file.flush()
        self._last = round(at, 1)


def _end_of(path: Path) -> tuple[Seconds, frozenset[str]]:
    """When the log ends, and what is idle then."""
    if path.read_text(encoding="utf-8").splitlines()[:1] != [HEAD.strip()]:
        rule = "it is there, and no log that --watch wrote: give another --out"
        raise TraceError(path, 1, rule)
    if len(path.read_text(encoding="utf-8").splitlines()) == 1:
        return 0.0, frozenset()
    log = read_log(path)
    still = log.node[log.end == float("inf")]
    return log.finish, frozenset(log.nodes[node] for node in still)


def record(
    path: Path,
    ask: Ask,
    every: Seconds,
    hours: float | None,
    say: Say,
    clock: Callable[[], Seconds] = time.time,
    wait: Callable[[Seconds], None] = time.sleep,
) -> int:
    """Record until Ctrl-C, or for so many hours; how often nodes became idle.

    Raises:
        TraceError: as `IdleRecorder`; or Slurm does not answer the first time.
    """
    idle_in(ask())
    recorder = IdleRecorder(path, ask, say)
    begin = clock()
    try:
        while True:
            recorder.tick(clock())
            if hours is not None and clock() - begin >= hours * 3600.0:
                break
            wait(every)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        recorder.close(clock())
    return recorder.joins
