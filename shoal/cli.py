"""The command line: what can be typed. `shoal.tools.commands` does it."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from shoal import __version__
from shoal.core.install import NEEDED, install
from shoal.tools.arguments import (
    POLICIES,
    Address,
    AsJson,
    BackendName,
    CatalogueFile,
    CheckFiles,
    CheckpointEvery,
    CheckpointLimit,
    CheckpointPlace,
    Cold,
    CommandLine,
    Concurrent,
    Copies,
    CopyOf,
    Device,
    Dir,
    Epochs,
    Extended,
    Feeders,
    File,
    FileOrNone,
    ForValidation,
    Fuse,
    HeldFiles,
    Holder,
    Label,
    LeftOut,
    Loggers,
    MakingMemory,
    MakingSeed,
    Metric,
    Mode,
    MoreEpochs,
    Nodes,
    NumbersOnly,
    OptunaLog,
    Out,
    PartName,
    PictureSize,
    PlanPolicies,
    PolicyName,
    PoolDir,
    PoolObjective,
    Port,
    Priority,
    ProfiledAgain,
    ProfiledFeeders,
    ProfiledValues,
    ProfiledWidths,
    ProfileFile,
    ProfileOut,
    Proportional,
    ReplayTrials,
    Replicas,
    ReportFile,
    Requeue,
    RetryFailed,
    Samples,
    SearcherName,
    Seed,
    SetAside,
    ShardAddress,
    Sharded,
    ShardNumber,
    ShardsIn,
    SlotChange,
    SlotMemory,
    SlotNumber,
    Slots,
    Space,
    SpecPolicies,
    Specs,
    StopBefore,
    StopTrial,
    Storage,
    StoredIn,
    Target,
    Threads,
    Timeout,
    Trust,
    UiDir,
    UntilEmpty,
    ValidateEvery,
    Values,
    Whole,
    Widths,
    Workers,
)
from shoal.tools.harvest.app import app as harvest
from shoal.tools.slurm.typed import slurm
from shoal.tools.trace.typed import trace

app = typer.Typer(
    name="shoal",
    help="Train many models as one job: searches and ensembles on one GPU, a few, or a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts hold [brackets]
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_say_version,
            is_eager=True,
            help="Say which version of Shoal this is, and end.",
        ),
    ] = False,
) -> None:
    """Take what stands before a command."""


def _commands() -> ModuleType:
    """What the commands do; imported once one is typed, so that --help stays quick.

    A command with many options gives them all by name: `locals()` holds what was typed, and only
    that, if it is the first thing that the command asks for.
    """
    from shoal.tools import commands

    return commands


@app.command(epilog=POLICIES)
def run(
    file: FileOrNone = None,
    command: CommandLine = None,
    storage: Storage = None,
    space: Space = None,
    num_samples: Samples = None,
    max_epochs: Epochs = None,
    searcher: SearcherName = None,
    policy: PolicyName = "auto",
    backend: BackendName = "local",
    slots: Slots = None,
    threads: Threads = 1,
    device: Device = "auto",
    address: Address = None,
    copies: Copies = 1,
    widths: Widths = None,
    priority: Priority = None,
    metric: Metric = None,
    mode: Mode = None,
    max_concurrent: Concurrent = None,
    timeout: Timeout = None,
    stop_before: StopBefore = None,
    requeue: Requeue = False,
    checkpoint_every: CheckpointEvery = 30.0,
    max_checkpoint_gb: CheckpointLimit = None,
    slot_memory_gb: SlotMemory = None,
    fuse: Fuse = True,
    workers: Workers = "auto",
    feeders: Feeders = "auto",
    validate_every: ValidateEvery = None,
    profile: ProfileFile = None,
    optuna_log: OptunaLog = False,
    loggers: Loggers = None,
    retry_failed: RetryFailed = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a search; the same command goes on with it where it was stopped or killed."""
    _commands().run(**locals())


@app.command()
def resume(
    directory: Dir,
    timeout: Timeout = None,
    requeue: Requeue = False,
    retry_failed: RetryFailed = False,
    trust: Trust = False,
    checkpoints: CheckpointPlace = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study that was stopped or killed, as its last run was set up."""
    _commands().resume(directory, timeout, requeue, retry_failed, trust, checkpoints, as_json)


@app.command()
def add(
    directory: Dir,
    values: Values = None,
    max_epochs: Epochs = None,
    copy: CopyOf = None,
    cold: Cold = False,
    widths: Widths = None,
    priority: Priority = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Add a trial to a study: at once if it runs, else when it is resumed."""
    _commands().beside().add(**locals())


@app.command()
def extend(
    directory: Dir, trial: Extended, max_epochs: MoreEpochs, as_json: AsJson = False
) -> None:
    """Have a trial train for more epochs: at once if the study runs, else when it is resumed."""
    _commands().beside().extend(directory, trial, max_epochs, as_json)


@app.command()
def stop(directory: Dir, trial: StopTrial = None, as_json: AsJson = False) -> None:
    """Take a trial out before its end; without a trial, end the run after the units under way."""
    _commands().beside().stop(directory, trial, as_json)


@app.command()
def slots(directory: Dir, change: SlotChange, number: SlotNumber, as_json: AsJson = False) -> None:
    """Give a running study more or fewer slots, or so many; one that goes ends its visit first."""
    _commands().beside().slots(directory, change, number, as_json)


@app.command()
def status(directory: Dir, whole: Whole = False, as_json: AsJson = False) -> None:
    """Say how a study stands, also while it runs."""
    _commands().status(directory, as_json, whole)


@app.command(epilog=POLICIES)
def plan(
    file: File,
    space: Space = None,
    num_samples: Samples = None,
    max_epochs: Epochs = None,
    policy: PlanPolicies = None,
    backend: BackendName = "local",
    slots: Slots = None,
    threads: Threads = 1,
    device: Device = "auto",
    widths: Widths = None,
    profile: ProfileFile = None,
    address: ShardAddress = None,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long a search would take under each policy, after a short probe."""
    _commands().plan(**locals())


@app.command()
def profile(
    target: Target,
    values: ProfiledValues = None,
    widths: ProfiledWidths = None,
    slots: Slots = None,
    threads: Threads = 1,
    device: Device = "auto",
    feeders: ProfiledFeeders = "1,2,4",
    space: Space = None,
    num_samples: Samples = None,
    seed: Seed = 0,
    again: ProfiledAgain = False,
    out: ProfileOut = Path("profile.toml"),
    address: ShardAddress = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Time every kind of trial at several widths, rescales and feeders, and write a profile for
    --profile and simulate.
    """
    _commands().profile(**locals())


@app.command()
def check(
    file: File,
    space: Space = None,
    device: Device = "cpu",
    address: ShardAddress = None,
    as_json: AsJson = False,
) -> None:
    """Train three steps of a recipe alone and beside another model, and compare."""
    _commands().check(file, space, device, address, as_json)


@app.command()
def replay(
    directory: Dir,
    trial: ReplayTrials = None,
    address: ShardAddress = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Train each trial again, alone, over its recorded visits, and compare the checkpoints."""
    _commands().replay(directory, trial, address, trust, as_json)


@app.command()
def repair(directory: Dir, as_json: AsJson = False) -> None:
    """Cut a damaged journal before its first bad line, keeping a copy; name damaged checkpoints."""
    _commands().repair(directory, as_json)


@app.command()
def report(
    directory: Dir,
    out: ReportFile = None,
    whole: Whole = False,
    as_json: AsJson = False,
) -> None:
    """Write the report, one HTML file that opens offline."""
    _commands().report(directory, out, as_json, whole)


@app.command()
def ui(directory: UiDir, port: Port = None) -> None:
    """Serve the live page of a study, or of a folder of studies, to a browser of this machine."""
    _commands().ui(directory, port)


@app.command()
def pool(
    directory: PoolDir,
    slots: Slots = None,
    threads: Threads = 1,
    address: Address = None,
    until_empty: UntilEmpty = False,
    objective: PoolObjective = None,
) -> None:
    """Lend one cluster's slots to several studies, by priority or an objective, until Ctrl-C."""
    _commands().pool(**locals())


app.add_typer(harvest)


@app.command()
def doctor(directory: StoredIn = Path("runs"), as_json: AsJson = False) -> None:
    """Say what this machine has: versions, devices, memory, disk, Ray, Slurm; what is missing."""
    _commands().doctor(directory, as_json)


@app.command(epilog=POLICIES)
def simulate(
    specs: Specs,
    policy: SpecPolicies = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Run studies in virtual time under one policy or several, side by side."""
    _commands().simulate(specs, policy, out, as_json)


data = typer.Typer(help="Data in shards.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("shard")
def data_shard(
    source: Sharded,
    folder: ShardsIn,
    shards: ShardNumber,
    seed: MakingSeed = 0,
    replicas: Replicas = 1,
    nodes: Nodes = None,
    proportional: Proportional = None,
    validation: SetAside = None,
    label: Label = None,
    drop: LeftOut = None,
    numeric_only: NumbersOnly = False,
    size: PictureSize = None,
    memory_gb: MakingMemory = 1.0,
    as_json: AsJson = False,
) -> None:
    """Shuffle the rows of files once, and write them as shards with a catalogue."""
    _commands().data("commands").data_shard(**locals())


@data.command("register")
def data_register(
    file: CatalogueFile,
    paths: HeldFiles,
    node: Holder = "local",
    validation: ForValidation = False,
    name: PartName = None,
    as_json: AsJson = False,
) -> None:
    """Write into a catalogue that a node holds these files; each is the shard of its name."""
    _commands().data("catalogue").data_register(file, paths, node, validation, name, as_json)


@data.command("list")
def data_list(
    file: CatalogueFile,
    address: Address = None,
    check: CheckFiles = False,
    as_json: AsJson = False,
) -> None:
    """Say which node holds which shard; with --check or --address the holders look at them."""
    _commands().data("catalogue").data_list(file, address, check, as_json)


app.add_typer(trace, name="trace")


app.add_typer(slurm, name="slurm")


def main() -> None:
    """The entry point `shoal`; where a package that Shoal needs is missing, one line and 2."""
    try:
        app(prog_name="shoal")
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        typer.echo(
            f"error: Shoal needs {error.name}, which is not installed here: {install(error.name)}",
            err=True,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
