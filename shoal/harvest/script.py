"""The file that sbatch takes: what the job asks Slurm for, and what it runs."""

import re
import shlex
from collections.abc import Mapping, Sequence

# minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]
TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
NAME = re.compile(r"[a-z][a-z0-9-]*")
PLAIN = re.compile(r"[\w@%+=:,./\[\]*()&|!-]+", re.ASCII)  # sbatch reads it as it is


def batch_script(
    asked: Mapping[str, str | None], before: Sequence[str], command: Sequence[str]
) -> str:
    """The file. Slurm's signals reach the command itself, as it takes the shell's place.

    `asked`: options of sbatch without their hyphens; None: one without a value. `before`: lines of
    the shell that make the job's environment. `command`: what to run, word by word.

    Raises:
        ValueError: an option has no such form, or a text has several lines.
    """
    lines = ["#!/bin/bash"]
    for name, value in asked.items():
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
    if any(not each.isprintable() for each in text):
        raise ValueError(f"a batch script takes texts of one line; got {text!r}")
