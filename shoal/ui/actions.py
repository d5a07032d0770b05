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
    """Does the actions of the page, and remembers the runs that it began."""

    def __init__(self) -> None:
        self._runs: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def do(self, study: LiveStudy, action: Mapping[str, Any]) -> str:
        """Do the action to the study; returns what came of it, in words.

        Raises:
            Refused: it cannot be done.
        """
        if action.get("do") == "resume":
            with self._lock:
                return self._resume(study)
        output = _run([*_command(action), "--", str(study.folder.path), *_values(action)])
        return output.strip() or "done"

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


def _command(action: Mapping[str, Any]) -> list[str]:
    """The command of the action, and its options.

    Raises:
        Refused: there is no such command, or an option is missing or wrong.
    """
    match action.get("do"):
        case "stop" | "pause":
            return ["stop"]
        case "extend":
            return ["extend", *_epochs(action, needed=True)]
        case "add":
            return ["add", *_epochs(action)]
        case "clone":
            options = [f"--from={_trial(action)}", *_epochs(action)]
            if action.get("cold"):
                options.append("--cold")
            return ["add", *options]
    raise Refused(f"there is no action {action.get('do')!r}")


def _values(action: Mapping[str, Any]) -> list[str]:
    """What comes after the study's folder: a trial, or the values of a configuration."""
    if action["do"] in ("stop", "extend"):
        return [_trial(action)]
    if action["do"] == "pause":
        return []
    values = action.get("values") or {}
    if not isinstance(values, Mapping):
        raise Refused("values must be names with their values")
    pairs = []
    for name, item in values.items():
        if "=" in name or not name.strip():
            raise Refused(f"a name must not be empty or hold '=': {name!r}")
        pairs.append(f"{name}={item}")
    return pairs


def _trial(action: Mapping[str, Any]) -> str:
    """The trial that is meant."""
    trial = action.get("trial")
    if not isinstance(trial, str) or not trial:
        raise Refused("say which trial")
    return trial


def _epochs(action: Mapping[str, Any], needed: bool = False) -> list[str]:
    """The option for epochs; none if they were left open."""
    epochs = str(action.get("max_epochs") or "").strip()
    if not epochs and not needed:
        return []
    if not WHOLE.fullmatch(epochs):
        raise Refused(f"epochs must be a whole number above 0; got {epochs[:40]!r}")
    return [f"--max-epochs={epochs}"]


def _run(arguments: Sequence[str]) -> str:
    """Run the command; returns what it prints.

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
        result = subprocess.run(
            [*python_module("shoal.cli"), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"shoal {arguments[0]} took over {PATIENCE:g} s") from error
    if result.returncode:
        errors = result.stderr.strip().splitlines() or [f"code {result.returncode}"]
        raise Refused(errors[-1].removeprefix("error: "))
    return result.stdout


def _detached(arguments: Sequence[str], log: Any) -> "subprocess.Popen[bytes]":
    """Start the command in a process that does not end with this one."""
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
