"""What `shoal slurm script` does: it makes the file that sbatch takes."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from shoal.core.errors import StudyError
from shoal.engine.process import python_module
from shoal.tools.arguments import file_and_name, parse_space
from shoal.tools.outcome import echo, errors

# Options of sbatch from which the backend follows, and what they are called here.
OWN = {"nodes": "--nodes", "gpus-per-node": "--gpus-per-node"}
# minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
NAME = re.compile(r"[a-z][a-z0-9-]*")
PLAIN = re.compile(r"[\w@%+=:,./\[\]*()&|!-]+", re.ASCII)  # sbatch reads it as it is


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a user asks Slurm for."""

    nodes: int
    time: str | None
    partition: str | None
    account: str | None
    gpus_per_node: int | None
    cpus_per_node: int | None
    mem: str | None
    job_name: str
    output: str | None
    requeue: bool
    sbatch: list[str] | None

    def directives(self) -> dict[str, str | None]:
        """The options of sbatch; those that the user gave by --sbatch come last.

        Raises:
            StudyError: one of these is an option of ours, too.
        """
        if self.time is not None:
            check_time(self.time)
        texts: dict[str, Any] = {
            "job-name": self.job_name,
            "nodes": self.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": self.cpus_per_node,
            "gpus-per-node": self.gpus_per_node,
            "mem": self.mem,
            "time": self.time,
            "partition": self.partition,
            "account": self.account,
            "output": self.output,
        }
        directives: dict[str, str | None] = {
            name: str(value) for name, value in texts.items() if value is not None
        }
        if self.requeue:
            # What the job printed before stays in its file.
            directives |= {"requeue": None, "open-mode": "append"}
        for option in self.sbatch or ():
            name, equals, value = option.removeprefix("--").partition("=")
            if name in OWN:
                raise StudyError(
                    f"--sbatch {option}: shoal slurm script has an option for that, and takes the "
                    f"backend from it: {OWN[name]}"
                )
            directives[name] = value if equals else None
        return directives


@errors()
def printed(
    context: typer.Context, arguments: list[str], before: list[str] | None, **typed: Any
) -> None:
    """Print the batch script."""
    request = BatchRequest(**typed)
    # By its full path, since the job's PATH may be another one.
    command = Path(sys.executable).with_name("shoal")
    program = [str(command)] if command.exists() else python_module("shoal.cli")
    words = [*program, "run", *_checked(context, request, arguments)]
    if request.requeue:
        words.append("--requeue")
    echo(batch_script(request.directives(), before or (), words).rstrip("\n"))


def _checked(context: typer.Context, request: BatchRequest, arguments: Sequence[str]) -> list[str]:
    """The arguments of `shoal run`, with its backend if several slots need one.

    Raises:
        StudyError: there is no such file, or the backend has one slot only.
        ValueError: a dimension of --space is none.
        UsageError: `shoal run` has no such option.
    """
    root: Any = context.find_root()
    run = root.command.commands["run"]
    parsed = run.make_context("run", list(arguments), parent=root)
    file = parsed.params["file"]
    if file is not None and not Path(file_and_name(file)[0]).is_file():
        raise StudyError(f"there is no file {file_and_name(file)[0]}")
    parse_space(parsed.params["space"])
    several = request.nodes > 1 or (request.gpus_per_node or 1) > 1
    is_ray = parsed.params["backend"] == "ray"
    typed = parsed.get_parameter_source("backend").name == "COMMANDLINE"
    if several and typed and not is_ray:
        raise StudyError(
            "the local backend uses one node, and one GPU of it: leave --backend out, or ask for "
            "one node and one GPU"
        )
    _check_used("ray" if several or is_ray else "local", parsed.params)
    if not several or is_ray:
        return [*arguments]
    return [*arguments, "--backend", "ray"]


def _check_used(backend: str, typed: Mapping[str, Any]) -> None:
    """Raise StudyError if the run would refuse an option, as one that its backend does not use."""
    from shoal.options import Options, check_used

    options: dict[str, Any] = {}
    for option in fields(Options):
        if option.metadata["backend"] and option.name in typed:
            value, parsed = typed[option.name], option.metadata["typed"]
            options[option.name] = parsed(value) if parsed else value
    check_used(Options.of(backend=backend, **options), typed["widths"])


# -- the file --------------------------------------------------------------------------------------


def batch_script(
    directives: Mapping[str, str | None], before: Sequence[str], command: Sequence[str]
) -> str:
    """A batch script. Slurm's signals reach the command itself, as it takes the shell's place.

    `directives`: options of sbatch without their hyphens; None: one without a value. `before`:
    lines of the shell that make the job's environment. `command`: what to run, word by word.

    Raises:
        ValueError: an option has no such form, or a text has several lines.
    """
    lines = ["#!/bin/bash"]
    for name, value in directives.items():
        lines.append(f"#SBATCH --{_directive(name, value)}")
    lines.append("")
    for line in before:
        _check_line(line)
        lines.append(line)
    for word in command:
        _check_line(word)
    lines.append(f"exec {shlex.join(command)}")
    return "\n".join(lines) + "\n"


def check_time(text: str) -> None:
    """Raise ValueError unless it is a time limit as Slurm reads it."""
    if TIME.fullmatch(text) is None or not text.isascii():
        raise ValueError(
            "--time takes minutes, hours:minutes:seconds or days-hours, as 90, 1:30:00 or 2-12; "
            f"got {text!r}"
        )


def _directive(name: str, value: str | None) -> str:
    """The option and its value, so that sbatch reads the same again."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"an option of sbatch is given as NAME or NAME=VALUE; got {name!r}")
    if value is None:
        return name
    _check_line(value)
    if PLAIN.fullmatch(value):
        return f"{name}={value}"
    inner = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{inner}"'


def _check_line(text: str) -> None:
    """Raise ValueError if the text does not fit one line of a script."""
    if any(not character.isprintable() for character in text):
        raise ValueError(f"a batch script takes texts of one line; got {text!r}")
