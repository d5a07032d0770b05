"""What can be typed after `shoal slurm`."""

from typing import Annotated, Any

import typer

slurm = typer.Typer(help="Batch jobs of Slurm.", no_args_is_help=True)

RunArguments = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE.py[:Recipe] …",
        help="what `shoal run` takes, its options included",
        show_default=False,
    ),
]
JobNodes = Annotated[int, typer.Option(min=1, help="nodes of the job")]
Time = Annotated[
    str | None,
    typer.Option(help="time limit, as 90 (minutes), 1:30:00 or 2-12 (days-hours)"),
]
Partition = Annotated[str | None, typer.Option(help="partition")]
Account = Annotated[str | None, typer.Option(help="account to charge")]
NodeGpus = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs")]
NodeCpus = Annotated[int | None, typer.Option("--cpus-per-node", min=1, help="CPUs of each node")]
Memory = Annotated[str | None, typer.Option("--mem", help="of each node, as 64G")]
JobName = Annotated[str, typer.Option("--job-name", help="name of the job")]
Printed = Annotated[
    str | None, typer.Option("--output", help="file for what it prints, as out-%j.txt")
]
Requeue = Annotated[
    bool,
    typer.Option("--requeue", help="start it again after its time limit, until the study is done"),
]
Others = Annotated[
    list[str] | None,
    typer.Option("--sbatch", metavar="NAME=VALUE", help="any other option of sbatch; repeat"),
]
Before = Annotated[
    list[str] | None,
    typer.Option(help="a line to run first, as 'module load cuda'; repeat"),
]


@slurm.command(
    "script",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def script(
    context: typer.Context,
    arguments: RunArguments,
    nodes: JobNodes = 1,
    time: Time = None,
    partition: Partition = None,
    account: Account = None,
    gpus_per_node: NodeGpus = None,
    cpus_per_node: NodeCpus = None,
    mem: Memory = None,
    job_name: JobName = "shoal",
    output: Printed = None,
    requeue: Requeue = False,
    sbatch: Others = None,
    before: Before = None,
) -> None:
    """Print the file for sbatch that runs `shoal run` with these arguments."""
    given: dict[str, Any] = {**locals()}
    del given["context"]
    from shoal.tools.slurm.script import printed

    printed(context, **given)
