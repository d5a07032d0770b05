"""A trial's process: its lines, and its end together with the processes that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Lock, Thread
from typing import IO

from shoal.engine.printed import PrintedLog, study_of

# Characters of a line that are read at once; lines that wait to be looked at; lines of an error.
LONGEST, WAITING, SHOWN = 65_536, 1_000, 20
# Seconds that a process may take to end; and those in which lines that it printed arrive.
GRACE, ARRIVAL = 5.0, 0.02

_POSIX = os.name == "posix"


class OutputLog:
    """What a process prints: in files, and the newest lines in memory."""

    def __init__(self, place: Path | None) -> None:
        self._file = None if place is None else PrintedLog(place, study_of(place))
        self._lock = Lock()
        self.newest: deque[str] = deque(maxlen=SHOWN)
        self.errors: deque[str] = deque(maxlen=SHOWN)  # of them, those of its stderr

    def write(self, line: str, is_error: bool = False) -> None:
        """Append a line. `is_error`: it came on the standard error."""
        with self._lock:
            self.newest.append(line)
            if is_error:
                self.errors.append(line)
            if self._file is not None:
                with suppress(OSError):  # not worth a trial
                    self._file.write(line)
                self._file.close()


class TrialProcess:
    """A program at work, without a shell, in a process group of its own.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        folder: str | None,
        log: Path | None,
    ) -> None:
        self.log = OutputLog(log)
        self._process = subprocess.Popen(
            list(words),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            process_group=0 if _POSIX else None,
        )
        self._lines: Queue[str | None] = Queue(WAITING)
        self._over = False
        process = self._process
        assert process.stdin and process.stdout and process.stderr
        self._input = process.stdin.fileno()
        with suppress(AttributeError, OSError):
            os.set_blocking(self._input, False)
        self._readers = [
            Thread(target=self._read, args=(stream, told), daemon=True)
            for stream, told in ((process.stdout, True), (process.stderr, False))
        ]
        for reader in self._readers:
            reader.start()

    def lines(self) -> Iterator[str]:
        """The lines of its output as they come, up to its end."""
        while (line := self._lines.get()) is not None:
            yield line

    def ended(self) -> int:
        """How it ended: its exit status, or minus the number of a signal."""
        status: int = self._process.wait()
        for reader in self._readers:
            reader.join(GRACE)
        return status

    def pause(self) -> bool:
        """Have it stand still, where that can be; whether it has printed nothing more by then."""
        self._signal("SIGSTOP")
        time.sleep(ARRIVAL)
        return self._lines.empty()

    def go_on(self) -> None:
        """After `pause`. It gets a line to read, for which it may have waited."""
        with suppress(OSError):  # nobody reads them
            os.write(self._input, b"go\n")
        self._signal("SIGCONT")

    def stop(self) -> None:
        """End it and what it started: politely at first."""
        if self._process.poll() is None:
            self._signal("SIGTERM")
            self._signal("SIGCONT")
            if not _POSIX:
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE)
        self._signal("SIGKILL")
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        self._over = True
        with suppress(Empty):  # a reader may wait for room
            while True:
                self._lines.get_nowait()

    def _signal(self, name: str) -> None:
        """Signal all processes of the group, if there are any."""
        if _POSIX:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, getattr(signal, name))

    def _read(self, stream: IO[str], told: bool) -> None:
        """Log what comes; `told`: and give it to `lines`."""
        with suppress(ValueError, OSError), stream:
            while line := stream.readline(LONGEST):
                self.log.write(line, is_error=not told)
                if told and not self._over:
                    self._lines.put(line)
        if told and not self._over:
            self._lines.put(None)
