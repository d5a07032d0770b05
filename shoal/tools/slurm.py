"""What `shoal slurm script` does."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import typer

from shoal.core.errors import StudyError
from shoal.engine.process import python_module
from shoal.harvest.script import batch_script, check_time
from shoal.tools.arguments import file_and_name, parse_space
from shoal.tools.outcome import echo, errors

# Options of sbatch from which the backend follows, and what they are called here.
OWN = {"nodes": "--nodes", "gpus-per-node": "--gpus-per-node"}


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
        found: dict[str, str | None] = {
            name: str(value) for name, value in texts.items() if value is not None
        }
        if self.requeue:
            # What the job printed before stays in its file.
            found |= {"requeue": None, "open-mode": "append"}
        for each in self.sbatch or ():
            name, equals, value = each.removeprefix("--").partition("=")
            if name in OWN:
                raise StudyError(
                    f"--sbatch {each}: shoal slurm script has an option for that, and takes the "
                    f"backend from it: {OWN[name]}"
                )
            found[name] = value if equals else None
        return found


@errors()
def printed(
    context: typer.Context, arguments: list[str], before: list[str] | None, **asked: Any
) -> None:
    """Print the batch script."""
    wanted = BatchRequest(**asked)
    # By its full path, since the job's PATH may be another one.
    command = Path(sys.executable).with_name("shoal")
    program = [str(command)] if command.exists() else python_module("shoal.cli")
    words = [*program, "run", *_checked(context, wanted, arguments)]
    if wanted.requeue:
        words.append("--requeue")
    echo(batch_script(wanted.directives(), before or (), words).rstrip("\n"))


def _checked(context: typer.Context, asked: BatchRequest, arguments: Sequence[str]) -> list[str]:
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
    several = asked.nodes > 1 or (asked.gpus_per_node or 1) > 1
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

    given: dict[str, Any] = {}
    for each in fields(Options):
        if each.metadata["backend"] and each.name in typed:
            value, parsed = typed[each.name], each.metadata["typed"]
            given[each.name] = parsed(value) if parsed else value
    check_used(Options.of(backend=backend, **given), typed["widths"])
