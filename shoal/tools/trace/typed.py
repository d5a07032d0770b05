"""What can be typed after `shoal trace`."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from shoal.tools.arguments import AsJson

IdleLog = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="an idle-node log: CSV, Parquet, or sacct's text"),
]
TraceOut = Annotated[Path, typer.Option(help="the log that is written, events as CSV")]
SacctFile = Annotated[
    Path | None,
    typer.Option(help="what `sacct -P -a -X -o NodeList,Start,End` printed", metavar="FILE"),
]
NodesFile = Annotated[
    Path | None,
    typer.Option(
        "--nodes",
        help="what `sinfo -h -N -o '%N %T'` printed, or names, one a line",
        metavar="FILE",
    ),
]
Since = Annotated[str, typer.Option(help="how far back: 7days, 12hours, or a date as 2026-01-31")]
Partition = Annotated[str | None, typer.Option(help="only nodes of this partition of Slurm's")]
IgnoredPartition = Annotated[
    str | None,
    typer.Option(
        "--ignore",
        help="a partition whose allocations do not count, as they are pilots",
    ),
]
WatchNodes = Annotated[
    bool, typer.Option("--watch", help="record what is idle from now on, by sinfo")
]
Tick = Annotated[
    float, typer.Option("--every", min=0.1, help="seconds between two looks of --watch")
]
TraceHours = Annotated[
    float | None,
    typer.Option("--hours", min=0.0, help="how long to --watch [default: until Ctrl-C]"),
]


def _commands() -> ModuleType:
    """What the commands do; it needs NumPy and the simulator."""
    return import_module("shoal.tools.trace.commands")


trace = typer.Typer(help="Logs of slots that come and go.", no_args_is_help=True)


@trace.command("slurm")
def trace_slurm(
    out: TraceOut = Path("site.csv"),
    sacct: SacctFile = None,
    nodes: NodesFile = None,
    since: Since = "7days",
    partition: Partition = None,
    ignored: IgnoredPartition = None,
    watch: WatchNodes = False,
    every: Tick = 10.0,
    hours: TraceHours = None,
    as_json: AsJson = False,
) -> None:
    """Write a log of this site's idle nodes: from Slurm's accounting, or from now on."""
    _commands().slurm(**locals())


@trace.command("stats")
def trace_stats(file: IdleLog, as_json: AsJson = False) -> None:
    """Joins and leaves an hour, idle ratio, equivalent nodes, fragments, and the hazard of
    departure.
    """
    _commands().stats(file, as_json)
