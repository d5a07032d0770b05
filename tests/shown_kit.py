"""What a page shows: files, commands, and what these print.

Blocks of a page, in their order:

- `python` with a title is a file of that name, in the folder where the page begins empty;
- `bash` is run there, each block by a shell of its own, which ends at the first command that fails;
- one without a language, behind a `bash` block, has lines that were printed, in their order, though
  not all of them. "…" stands for what is left out. Numbers with a point or a unit are measured, and
  so are names of trials, which policy was chosen and why: only their places count;
- `sh` is for machines that no test has, and is not run.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from page_kit import fences, without_fences

# Measured, or drawn by what was measured: times, rates, scores, which trial was best by a hair.
NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
UNIT = r" ?(?:ms|s|min|h|%|[kMGT]i?B|epochs|samples|moves|a second)(?![a-z])"
CHOICE = r"(?<=: )\S+(?=, because )|(?<=, because ).*"
POINT = r"-?\d[\d,]*\.\d[\de+-]*|\d[\d,]*,\d{3}"  # or a comma before thousands
MEASURED = re.compile(
    rf"(?<![\w.=])(?:{NUMBER}{UNIT}|{POINT})|\bt\d{{3}}\b|{CHOICE}|[\d-]+ [\d:]+ UTC"
)
CONFIGURED = re.compile(r"(?<![\w-])([a-z_][\w.]*)=[\w.+-]+")  # as lr=0.03, and not --nodes=2


def words(page: Path) -> int:
    """How many words of prose a page has, without links' addresses and titles of folds."""
    text = without_fences(page.read_text())
    text = re.sub(r"^\?\?\?.*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"[A-Za-z0-9][\w'’.=/-]*", text))


def stable(line: str) -> str:
    """The line without what is measured."""
    line = re.sub(r" +\(\S+ after epoch \d+\)", "", line)  # where a former score was better
    return MEASURED.sub("#", CONFIGURED.sub(r"\1=#", " ".join(line.split())))


def missing(shown: str, printed: str) -> list[str]:
    """The lines of `shown` that do not come in `printed`, in their order."""
    left = iter([stable(line) for line in printed.splitlines()])
    wanted = [line for line in shown.splitlines() if line.strip() not in ("", "…")]
    return [line for line in wanted if not any(_is(line, other) for other in left)]


def _is(line: str, other: str) -> bool:
    """Whether a shown line is this printed one, whose measured parts are out."""
    parts = [re.escape(stable(part)) for part in line.split("…")]
    return re.fullmatch(".*".join(parts), other) is not None


def run_page(page: Path, folder: Path, slurm: bool = False) -> None:
    """Do what a page shows, and compare what it shows as printed.

    Blocks that begin with `sbatch` are left out unless `slurm`.
    """
    printed: str | None = None
    for block in fences(page.read_text()):
        if block.language == "python" and block.title:
            (folder / block.title).write_text(block.text)
        elif block.language == "bash":
            needs_slurm = block.text.startswith("sbatch ")
            printed = None if needs_slurm and not slurm else run(block.text, folder)
        elif block.language == "" and printed is not None:
            lost = missing(block.text, printed)
            assert not lost, f"{page.name} shows {lost}; printed was {printed[-3000:]}"
        if block.language not in ("bash", ""):
            printed = None


def run(commands: str, folder: Path) -> str:
    """What a shell prints for these commands; `shoal` and `python` are those of the tests."""
    programs = folder.parent / f"{folder.name}-programs"
    programs.mkdir(exist_ok=True)
    for name, before in (("python", ""), ("shoal", " -m shoal.cli")):
        file = programs / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{before} "$@"\n')
        file.chmod(0o755)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, f"{commands}: exit {done.returncode}: {done.stdout[-3000:]}"
    return done.stdout
