"""What the page does to a study: the commands of the command line, each in a process of its own.

So whatever a recipe needs is loaded there, and what goes wrong there is one clear line.
"""

import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.core.trial import Seconds
from shoal.engine.plain_files import open_file
from shoal.engine.process import python_module
from shoal.study.folder import timestamp
from shoal.ui.studies import LiveStudy

PATIENCE: Seconds = 120.0  # how long a command may take
WHOLE = re.compile("[1-9][0-9]{0,8}")
LOG = "resume.log"  # in the study's folder: what a run that the page began has said


class Refused(ValueError):  # noqa: N818 - what the page is told
    """What was asked for cannot be done, and why."""


class Actions:
    """Does what is asked, and remembers the runs that it began."""

    def __init__(self) -> None:
        self._runs: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def do(self, study: LiveStudy, asked: Mapping[str, Any]) -> str:
        """Do it; returns what came of it, in words.

        Raises:
            Refused: it cannot be done.
        """
        if asked.get("do") == "resume":
            with self._lock:
                return self._resume(study)
        said = _run([*_command(asked), "--", str(study.folder.path), *_values(asked)])
        return said.strip() or "done"

    def _resume(self, study: LiveStudy) -> str:
        """Begin another run, which goes on when the page is closed."""
        former = self._runs.get(study.name)
        at_work = former is not None and former.poll() is None
        if at_work or study.seen().standing == "running":
            raise Refused(f"{study.name} is running already")
        folder = study.folder
        with open_file(folder.path / LOG, "ab") as log:
            log.write(f"\n{timestamp()} resumed from the page\n".encode())
            log.flush()
            self._runs[study.name] = _detached(["resume", "--", str(folder.path)], log)
        return f"resumed: what the run says goes to {LOG}"

    def run_of(self, study: LiveStudy) -> str:
        """How the run stands that the page began: begun, ended, or an error; else empty."""
        process = self._runs.get(study.name)
        if process is None:
            return ""
        code = process.poll()
        if code is None:
            return "begun"
        if code == 0:
            return "ended"
        return f"the run that was resumed here ended with code {code}: see {LOG}"


def _command(asked: Mapping[str, Any]) -> list[str]:
    """The command and its options.

    Raises:
        Refused: there is no such command, or an option is missing or wrong.
    """
    match asked.get("do"):
        case "stop":
            return ["stop"]
        case "pause":
            return ["stop"]
        case "extend":
            return ["extend", *_epochs(asked, needed=True)]
        case "add":
            return ["add", *_epochs(asked)]
        case "clone":
            options = [f"--from={_trial(asked)}", *_epochs(asked)]
            if asked.get("cold"):
                options.append("--cold")
            return ["add", *options]
    raise Refused(f"there is no action {asked.get('do')!r}")


def _values(asked: Mapping[str, Any]) -> list[str]:
    """What comes after the study's folder: a trial, or the values of a configuration."""
    if asked["do"] in ("stop", "extend"):
        return [_trial(asked)]
    if asked["do"] == "pause":
        return []
    values = asked.get("values") or {}
    if not isinstance(values, Mapping):
        raise Refused("values must be names with their values")
    given = []
    for name, item in values.items():
        if "=" in name or not name.strip():
            raise Refused(f"a name must not be empty or hold '=': {name!r}")
        given.append(f"{name}={item}")
    return given


def _trial(asked: Mapping[str, Any]) -> str:
    """The trial that is meant."""
    trial = asked.get("trial")
    if not isinstance(trial, str) or not trial:
        raise Refused("say which trial")
    return trial


def _epochs(asked: Mapping[str, Any], needed: bool = False) -> list[str]:
    """The option for epochs; none if they were left open."""
    epochs = str(asked.get("max_epochs") or "").strip()
    if not epochs and not needed:
        return []
    if not WHOLE.fullmatch(epochs):
        raise Refused(f"epochs must be a whole number above 0; got {epochs[:40]!r}")
    return [f"--max-epochs={epochs}"]


def _run(arguments: Sequence[str]) -> str:
    """What the command prints.

    Raises:
        Refused: it failed, with what it said last.
    """
    if any("\0" in argument for argument in arguments):
        raise Refused("no text may hold a NUL")
    try:
        "".join(arguments).encode()
    except UnicodeEncodeError as error:
        raise Refused("a text holds half a character") from error
    try:
        done = subprocess.run(
            [*python_module("shoal.cli"), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"shoal {arguments[0]} took over {PATIENCE:g} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"code {done.returncode}"]
        raise Refused(said[-1].removeprefix("error: "))
    return done.stdout


def _detached(arguments: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
    """A command in a process that does not end with this one."""
    options: dict[str, Any] = {"start_new_session": True}
    if os.name == "nt":
        flags = "CREATE_NEW_PROCESS_GROUP", "DETACHED_PROCESS"
        options = {"creationflags": sum(getattr(subprocess, flag) for flag in flags)}
    return subprocess.Popen(
        [*python_module("shoal.cli"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        **options,
    )
