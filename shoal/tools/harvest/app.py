"""What can be typed after `shoal harvest`."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.tools.arguments import (
    POLICIES,
    AsJson,
    CheckpointEvery,
    CheckpointLimit,
    CommandLine,
    Concurrent,
    Epochs,
    Feeders,
    Fuse,
    Loggers,
    Metric,
    Mode,
    Priority,
    ProfileFile,
    RetryFailed,
    Samples,
    SearcherName,
    Seed,
    SlotMemory,
    Space,
    Storage,
    Timeout,
    Trust,
    ValidateEvery,
    Widths,
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE.py[:Recipe]|DIR]",
        help="a Python file with a recipe, or the folder of a study to go on with; "
        "or give --command",
    ),
]
BySlurm = Annotated[bool, typer.Option("--slurm", help="as --scheduler slurm")]
BatchSystem = Annotated[
    str | None,
    typer.Option(
        metavar="slurm|pbs|lsf",
        help="whose the nodes are [default: whose commands are installed here]",
    ),
]
Partition = Annotated[
    str,
    typer.Option(
        "--partition",
        "--queue",
        help="for the pilots, a queue of PBS or LSF: a preemptible one, best",
    ),
]
Watched = Annotated[
    list[str] | None,
    typer.Option(
        "--main-partition",
        "--main-queue",
        help="whose waiting jobs matter; repeat [default: all of them]",
    ),
]
NoPreemption = Annotated[
    bool,
    typer.Option(
        "--no-preemption",
        help="pilots are not preempted here: cancel them when others wait",
    ),
]
Tick = Annotated[float, typer.Option(min=0.1, help="seconds between two looks at the queue")]
MinTicks = Annotated[int, typer.Option(min=1, help="looks in a row in which a node must be idle")]
Most = Annotated[int | None, typer.Option(min=1, help="nodes at once [default: all idle ones]")]
Minutes = Annotated[int, typer.Option(min=1, help="time limit of a pilot, at most")]
NodeCpus = Annotated[
    int | None,
    typer.Option("--cpus-per-node", min=1, help="to use [default: those granted]"),
]
NodeGpus = Annotated[
    int | None,
    typer.Option("--gpus-per-node", min=0, help="to use [default: those found]"),
]
GpuNodes = Annotated[
    bool,
    typer.Option("--gpu-nodes", help="only nodes that have GPUs, as is said of them"),
]
Ip = Annotated[
    str | None,
    typer.Option(help="this machine's, as nodes reach it [default: found out]"),
]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch",
        "--submit",
        help='more for sbatch, qsub or bsub, as --sbatch "--account=x"; repeat',
    ),
]
PolicyOrNone = Annotated[
    str | None,
    typer.Option(
        help="as of shoal run [default: elastic, placed by which nodes leave together; of a "
        "folder its own]"
    ),
]
SiteLog = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="the site's log of idle nodes, from shoal trace slurm: the policy is then elastic, "
        "with what the log says",
    ),
]
ThreadsOrNone = Annotated[
    int | None,
    typer.Option(min=1, help="threads, and CPUs, of each slot [default: 1; a folder's own]"),
]


app = typer.Typer()


@app.command("harvest", epilog=POLICIES)
def harvest(
    target: Target = None,
    *,
    partition: Partition,
    slurm: BySlurm = False,
    scheduler: BatchSystem = None,
    main_partition: Watched = None,
    no_preemption: NoPreemption = False,
    tick: Tick = 10.0,
    min_ticks: MinTicks = 2,
    most: Most = None,
    minutes: Minutes = 60,
    cpus_per_node: NodeCpus = None,
    gpus_per_node: NodeGpus = None,
    gpu_nodes: GpuNodes = False,
    ip: Ip = None,
    sbatch: Sbatch = None,
    command: CommandLine = None,
    storage: Storage = None,
    space: Space = None,
    num_samples: Samples = None,
    max_epochs: Epochs = None,
    searcher: SearcherName = None,
    policy: PolicyOrNone = None,
    log: SiteLog = None,
    threads: ThreadsOrNone = None,
    widths: Widths = None,
    priority: Priority = None,
    metric: Metric = None,
    mode: Mode = None,
    max_concurrent: Concurrent = None,
    timeout: Timeout = None,
    checkpoint_every: CheckpointEvery = 30.0,
    max_checkpoint_gb: CheckpointLimit = None,
    slot_memory_gb: SlotMemory = None,
    fuse: Fuse = True,
    feeders: Feeders = "auto",
    validate_every: ValidateEvery = None,
    profile: ProfileFile = None,
    loggers: Loggers = None,
    retry_failed: RetryFailed = False,
    trust: Trust = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a study on nodes of a batch system that stand idle, until others need them.

    The same command goes on with it where it was stopped or killed.
    """
    given: dict[str, Any] = {**locals()}
    import_module("shoal.tools.harvest.command").harvested(**given)
