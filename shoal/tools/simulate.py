"""What `shoal simulate` and `shoal trace` do: studies in virtual time, logs of idle nodes."""

from pathlib import Path
from typing import Any

import typer

from shoal.core.errors import StudyError
from shoal.simulate import command
from shoal.tools.outcome import errors, show


@errors()
def simulate(specs: list[Path], policy: list[str] | None, out: Path | None, as_json: bool) -> None:
    """Run studies in virtual time."""
    figures, lines = command.simulate(specs, policy or (), out)
    show(figures, as_json, lambda _: lines)


@errors()
def trace_slurm(
    out: Path, partition: str | None, watch: bool, as_json: bool, **options: Any
) -> None:
    """Write a log of idle nodes, from Slurm's accounting or from now on.

    `options`: what else `trace_slurm` or `trace_watch` takes.

    Raises:
        StudyError: `watch` beside a file of accounts or of nodes.
    """
    every, hours = options.pop("every"), options.pop("hours")
    if not watch:
        figures, lines = command.trace_slurm(out, partition=partition, **options)
        return show(figures, as_json, lambda _: lines)
    if any(options[name] for name in ("sacct", "nodes", "ignored")):
        raise StudyError("--watch asks sinfo from now on: leave out --sacct, --nodes and --ignore")

    def say(text: str) -> None:
        typer.echo(text, err=True)

    say(f"recording idle nodes into {out} every {every:g} s; Ctrl-C ends it")
    figures, lines = command.trace_watch(out, partition, every, hours, say)
    return show(figures, as_json, lambda _: lines)


@errors()
def trace_stats(file: Path, as_json: bool) -> None:
    """Describe a log of idle nodes."""
    figures, lines = command.trace_stats(file)
    show(figures, as_json, lambda _: lines)
