"""One process at a time, also where the file system has no locks or locks mean nothing.

Network file systems may lack locks, or have such as reach no other machine. So whoever holds a
thing also says so in a file, which it writes again every few seconds (docs/decisions/0039).
"""

import json
import os
import platform
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from errno import EACCES, EAGAIN, ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from filelock import FileLock, SoftFileLock, Timeout

from shoal.core.trial import Seconds
from shoal.engine.files import write_whole
from shoal.engine.ownership import file_mode
from shoal.engine.plain_files import check_plain, descriptor, read_file
from shoal.engine.process import in_forks, lives
from shoal.engine.small import HolderFile, decoded

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What file systems without locks answer.
WITHOUT_LOCKS = frozenset({ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP})
# A holder writes its file again after so many seconds.
BEAT: Seconds = 3.0
# Who does not within these is not there any more.
WATCHED: Seconds = 3 * BEAT
UNKNOWN = "an unknown process"
# Between two tries to get a lock that another process has.
_AGAIN: Seconds = 0.05
# What this process holds now, by the keys in the holders' files.
_HERE: set[str] = set()
# The open files of the locks that this process has.
_LOCKED: set[int] = set()


class Taken(TimeoutError):  # noqa: N818 - a state of the thing
    """Another process holds it. `who`: which, in words. `remedy`: what to do if it is gone."""

    def __init__(self, path: Path, who: str, remedy: str = "") -> None:
        super().__init__(f"{path} is held by {who}{remedy}")
        self.who = who
        self.remedy = remedy


@contextmanager
def alone(path: Path, timeout: Seconds, root: Path | None = None) -> Iterator[None]:
    """Hold the lock of this file. Without locks, a file beside it that only one can make is it.

    `timeout`: seconds to wait for it. `root`: see `engine.plain_files`.

    Raises:
        Taken: another process holds it.
    """
    let_go = _acquired(path, timeout, root)
    try:
        yield
    finally:
        let_go()


def _acquired(path: Path, timeout: Seconds, root: Path | None) -> Callable[[], object]:
    """Take the lock, or what stands for it; what lets go of it again."""
    try:
        if fcntl is not None:
            opened = _locked(path, timeout, root)
            return lambda: _unlock(opened)
        check_plain(path, root)
        return _by_path(FileLock, path, timeout)
    except Timeout:
        raise Taken(path, UNKNOWN) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    made = path.with_name(path.name + ".made")
    check_plain(made, root or path.parent)
    try:
        return _by_path(SoftFileLock, made, timeout)
    except Timeout:
        raise Taken(
            made,
            UNKNOWN,
            f"; this file system has no locks: if that process has ended, delete {made}",
        ) from None


def _locked(path: Path, timeout: Seconds, root: Path | None) -> int:
    """The open file of the lock, which no other process has.

    Raises:
        Timeout: another process has it.
    """
    late = monotonic() + timeout
    while True:
        opened = descriptor(path, os.O_RDWR | os.O_CREAT, root)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(opened).st_nlink:
                _LOCKED.add(opened)
                return opened
        except OSError as error:
            if error.errno not in (EACCES, EAGAIN):
                raise
        finally:
            if opened not in _LOCKED:
                os.close(opened)
        # Another has it, or has removed the file meanwhile.
        if monotonic() >= late:
            raise Timeout(str(path))
        sleep(_AGAIN)


def _unlock(opened: int) -> None:
    if opened in _LOCKED:  # this process is no fork of the one that took it
        _LOCKED.discard(opened)
        fcntl.flock(opened, fcntl.LOCK_UN)  # a fork may not have closed its copy yet
        os.close(opened)


def _close_copies() -> None:
    """A fork holds nothing: what its parent has locked would stay so until both have ended."""
    for opened in _LOCKED:
        os.close(opened)
    _LOCKED.clear()


in_forks(_close_copies)


def _by_path(kind: Any, path: Path, timeout: Seconds) -> Callable[[], object]:
    """Take a lock that opens its file by path; what lets go of it again."""
    # Another thread may let go of it: a loop of the user's own may have several.
    lock = kind(path, timeout, mode=file_mode(path.parent), thread_local=False)
    lock.acquire()
    release: Callable[[], object] = lock.release
    return release


@contextmanager
def held(lock: Path, holder: Path) -> Iterator[None]:
    """Hold a thing alone, and say so in the file `holder`.

    Raises:
        Taken: another process holds it, on this machine or on another one.
    """
    with ExitStack() as open_:
        try:
            open_.enter_context(alone(lock, timeout=0))
        except Taken as taken:
            raise Taken(lock, _said(_about(holder)), taken.remedy) from None
        _check_quiet(holder)
        beat = Heartbeat(holder)
        open_.callback(beat.end)
        yield


def is_released(about: Mapping[str, Any]) -> bool:
    """Whether the holder of a thing has let go of it."""
    return "until" in about


def _check_quiet(holder: Path) -> None:
    """Raise Taken if whoever held it last is still there, as locks may not reach that one."""
    about = _about(holder)
    if "beat" not in about or is_released(about):
        return
    if about.get("host") == platform.node():
        if about.get("pid") == os.getpid():
            if about.get("key") in _HERE:
                raise Taken(holder, _said(about))
            return  # it could not write that it had let go
        if lives(about["pid"]) is False:
            return
    late = monotonic() + WATCHED
    while monotonic() < late:
        sleep(0.1)
        now = _about(holder)
        if is_released(now):
            return
        if now != about:
            raise Taken(holder, _said(now), "; locks of this file system do not reach it")


def _about(holder: Path) -> dict[str, Any]:
    """What the file says; empty if there is none."""
    with suppress(OSError, ValueError):
        return {**decoded(read_file(holder), HolderFile)}
    return {}


def _said(about: Mapping[str, Any]) -> str:
    """Who that is, for people."""
    if "pid" not in about:
        return UNKNOWN
    said = f"process {about['pid']}"
    for word, key in (("on", "host"), ("since", "since")):
        if key in about:
            said += f" {word} {about[key]}"
    return said


class Heartbeat:
    """Says in a file that this process holds a thing, again and again until `end`."""

    def __init__(self, holder: Path) -> None:
        self._holder = holder
        self._about: dict[str, Any] = {
            "pid": os.getpid(),
            "host": platform.node(),
            "since": _now(),
            "key": uuid4().hex,
            "beat": 0,
        }
        self._over = threading.Event()
        self._write()
        _HERE.add(self._about["key"])
        self._thread = threading.Thread(target=self._go_on, name="shoal-holder", daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        while not self._over.wait(BEAT):
            if not self._is_own():
                return
            self._about["beat"] += 1
            with suppress(OSError):  # the study itself says what is wrong with its folder
                self._write()

    def _is_own(self) -> bool:
        """Whether nobody has taken the thing over."""
        there = _about(self._holder)
        own = self._about["key"]
        return bool(there.get("key", own) == own)

    def _write(self) -> None:
        write_whole(self._holder, json.dumps(self._about).encode())

    def end(self) -> None:
        """The thing is free from now on."""
        self._over.set()
        self._thread.join()
        _HERE.discard(self._about["key"])
        if self._is_own():
            self._about["until"] = _now()
            with suppress(OSError):
                self._write()


def _now() -> str:
    """Now, as ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
