"""The command line: what can be typed, in tables. `shoal.tools` does it.

Each command is one entry: its name, what it says of itself, the function that does it and its
parameters. The function's module is imported once the command is typed, so that --help stays quick.
Options of a study's run are made from the fields of `shoal.options.Options`; other parameters that
several commands have stand first.
"""

import sys
from collections.abc import Iterable
from dataclasses import Field, fields
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from shoal import __version__
from shoal.core.install import NEEDED, install
from shoal.options import TYPED, Options, SearchArguments, typed_default
from shoal.policy.registry import SHOWN

# The first line of the list keeps typer from joining the others.
POLICIES = "\b\nPolicies, and when to use each:\n" + "".join(
    f"  {name:10} {use}\n" for name, use in SHOWN.items()
)


app = typer.Typer(
    name="shoal",
    help="Train many models as one job: searches and ensembles on one GPU, a few, or a cluster.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts hold [brackets]
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(typed: bool) -> None:
    if typed:
        typer.echo(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def begin(
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
    """Take the options that stand before a command."""


# -- how entries are made --------------------------------------------------------------------------


def argument(
    name: str,
    kind: Any,
    help: str,
    metavar: str | None = None,
    default: Any = Parameter.empty,
    **more: Any,
) -> Parameter:
    """What is typed at its place, a must without a default. `more`: for `typer.Argument`."""
    about = typer.Argument(metavar=metavar, help=help, **more)
    return _parameter(name, Annotated[kind, about], default)


def option(
    name: str, kind: Any, help: str, *flags: str, default: Any = None, **more: Any
) -> Parameter:
    """What is typed after a flag, by default one of the option's name. `more`: for `typer.Option`.

    `default` None: it may be left out, and help names no default.
    """
    if default is None:
        kind = kind | None
    return _parameter(name, Annotated[kind, typer.Option(*flags, help=help, **more)], default)


def flag(name: str, help: str, *flags: str) -> Parameter:
    """A flag that takes no value."""
    return option(name, bool, help, *(flags or [f"--{name.replace('_', '-')}"]), default=False)


def _parameter(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def run_options(names: Iterable[str]) -> list[Parameter]:
    """The options of a study's run with these names, as `shoal.options` has them."""
    kinds = get_type_hints(SearchArguments) | get_type_hints(Options)

    def parameter(field: Field[Any]) -> Parameter:
        about = field.metadata
        # What is no plain number may be a word as well: it is text until it is parsed.
        kind = str if about["typed"] else about["typed_as"] or kinds[field.name]
        default = typed_default(field)
        return option(field.name, kind, about["help"], *about["flags"], default=default)

    return [parameter(TYPED[name]) for name in names]


def command(
    place: typer.Typer, name: str, help: str, done_by: str, *parameters: Parameter, **more: Any
) -> None:
    """Add a command. `done_by`: module and function, which gets what was typed by name."""
    module, _, function = done_by.partition(":")

    def call(**typed: Any) -> None:
        getattr(import_module(f"shoal.tools.{module}"), function)(**typed)

    call.__doc__ = help
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    place.command(name, **more)(call)


# -- parameters of several commands ----------------------------------------------------------------

# In the order in which help lists them; an option that is new comes last.
OF_PLACE = ("backend", "slots", "threads", "device", "address", "copies")
OF_TRAINING: tuple[str, ...] = (
    "checkpoint_every",
    "max_checkpoint_gb",
    "slot_memory_gb",
    "fuse",
    "workers",
    "feeders",
    "validate_every",
)
OF_TRAINING += tuple(
    field.name
    for field in fields(Options)
    if field.name in TYPED and field.name not in (*OF_PLACE, "stop_before", *OF_TRAINING)
)
SLOTS, THREADS, DEVICE, ADDRESS = run_options(("slots", "threads", "device", "address"))
NUM_SAMPLES, MAX_EPOCHS, SEARCHER = run_options(("num_samples", "max_epochs", "searcher"))
WIDTHS, PRIORITY, MAX_CONCURRENT = run_options(("widths", "priority", "max_concurrent"))
TIMEOUT, PROFILE = run_options(("timeout", "profile"))
LOGGERS, RETRY_FAILED = run_options(("loggers", "retry_failed"))

FILE = argument(
    "file",
    str,
    "a Python file with a shoal.Recipe in it, or with a dict `recipes` of several",
    "FILE.py[:Recipe]",
)
COMMAND_LINE = option(
    "command", str, "a command line to train, with {names} of --space, e.g. 'python t.py --lr {lr}'"
)
DIRECTORY = argument("directory", Path, "the study's folder", "DIR")
STORAGE = option("storage", Path, "the study's folder [default: runs/<recipe>]")
SPACE = option(
    "space",
    list[str],
    "a dimension, e.g. 'lr=loguniform(1e-4,1e-1)' or 'width=grid([64,128])'; repeat",
)
METRIC = option("metric", str, "what to rank by")
MODE = option("mode", str, "min or max")
SEED = option("seed", int, "the study's seed", default=0)
OUT = option("out", Path, "write each simulated journal and report there")
SHARD_ADDRESS = option(
    "address",
    str,
    "of a Ray cluster whose nodes hold the shards: the one with most of them works, and the "
    "others read for it",
)
VALUES = argument("values", list[str] | None, "the trial's configuration", "NAME=VALUE …", None)
CATALOGUE = argument("file", Path, "a TOML file, such as shards.toml", "CATALOGUE")
REQUEUE = flag(
    "requeue", "in a batch job of Slurm that its time limit stops: have Slurm start it again"
)
TRUST = flag(
    "trust", "the study's recipe is not yours, and you have looked at it: run its code from now on"
)
WHOLE = flag("whole", "count a long journal from its first entry on, which takes longer")
JSON = flag("as_json", "print figures as JSON", "--json")


# -- studies ---------------------------------------------------------------------------------------

command(
    app,
    "run",
    "Train a search; the same command goes on with it where it was stopped or killed.",
    "run:run",
    argument(
        "file",
        str | None,
        "a Python file with a shoal.Recipe in it, or with a dict `recipes` of several; "
        "or give --command",
        "[FILE.py[:Recipe]]",
        None,
    ),
    COMMAND_LINE,
    STORAGE,
    SPACE,
    NUM_SAMPLES,
    MAX_EPOCHS,
    SEARCHER,
    *run_options(("policy", *OF_PLACE)),
    WIDTHS,
    PRIORITY,
    METRIC,
    MODE,
    MAX_CONCURRENT,
    TIMEOUT,
    *run_options(("stop_before",)),
    REQUEUE,
    *run_options(OF_TRAINING),
    PROFILE,
    *run_options(("optuna_log",)),
    LOGGERS,
    RETRY_FAILED,
    SEED,
    JSON,
    epilog=POLICIES,
)
command(
    app,
    "resume",
    "Go on with a study that was stopped or killed, as its last run was set up.",
    "run:resume",
    DIRECTORY,
    TIMEOUT,
    REQUEUE,
    RETRY_FAILED,
    TRUST,
    option(
        "checkpoints",
        str,
        "where the study's weights lie, if they are not in its folder and it was moved, or is "
        "not yours: a path or a URL",
    ),
    JSON,
)
command(
    app,
    "add",
    "Add a trial to a study: at once if it runs, else when it is resumed.",
    "control:add",
    DIRECTORY,
    VALUES,
    MAX_EPOCHS,
    option("copy", str, "a trial to copy, with these values changed", "--from"),
    flag("cold", "copy the configuration alone, not the weights"),
    WIDTHS,
    PRIORITY,
    TRUST,
    JSON,
)
command(
    app,
    "extend",
    "Have a trial train for more epochs: at once if the study runs, else when it is resumed.",
    "control:extend",
    DIRECTORY,
    argument("trial", str, "the trial", "TRIAL"),
    option("max_epochs", int, "epochs in all, more than it was to train", default=Parameter.empty),
    JSON,
)
command(
    app,
    "stop",
    "Take a trial out before its end; without a trial, end the run after the units under way.",
    "control:stop",
    DIRECTORY,
    argument("trial", str | None, "a trial [default: the whole run]", "TRIAL", None),
    JSON,
)
command(
    app,
    "slots",
    "Give a running study more or fewer slots, or so many; one that goes ends its pass first.",
    "control:slots",
    DIRECTORY,
    argument(
        "change",
        Literal["add", "remove", "set"],
        "what to do",
        "add|remove|set",
        show_choices=False,
    ),
    argument("number", int, "how many slots", "N", min=1, show_default=False),
    JSON,
)
command(
    app,
    "status",
    "Say how a study stands, also while it runs.",
    "status:status",
    DIRECTORY,
    WHOLE,
    JSON,
)
command(
    app,
    "plan",
    "Predict how long a search would take under each policy, after a short probe.",
    "plan:plan",
    FILE,
    SPACE,
    NUM_SAMPLES,
    MAX_EPOCHS,
    option("policy", list[str], "policies to compare; repeat [default: auto, fifo, hop …]"),
    *run_options(("backend", "slots", "threads", "device")),
    WIDTHS,
    PROFILE,
    SHARD_ADDRESS,
    SEED,
    OUT,
    JSON,
    epilog=POLICIES,
)
command(
    app,
    "profile",
    "Time every kind of trial at several widths, rescales and feeders, and write a profile for "
    "--profile and simulate.",
    "profile:profile",
    argument(
        "target", str, "a Python file with a recipe, or a study's folder", "FILE.py[:Recipe]|DIR"
    ),
    argument("values", list[str] | None, "one configuration [default: all]", "NAME=VALUE …", None),
    option("widths", str, "slots of a trial, or all [default: 1,2,4 … up to --slots]"),
    SLOTS,
    THREADS,
    DEVICE,
    option("feeders", str, "numbers of processes that prepare data", default="1,2,4"),
    SPACE,
    NUM_SAMPLES,
    SEED,
    flag("again", "time also what the study's run has measured"),
    option("out", Path, "the profile", default=Path("profile.toml")),
    SHARD_ADDRESS,
    TRUST,
    JSON,
)
command(
    app,
    "check",
    "Train three steps of a recipe alone and beside another model, and compare.",
    "check:check",
    FILE,
    SPACE,
    option("device", str, TYPED["device"].metadata["help"], default="cpu"),
    SHARD_ADDRESS,
    JSON,
)
command(
    app,
    "replay",
    "Train each trial again, alone, as it is recorded, and compare the checkpoints.",
    "check:replay",
    DIRECTORY,
    option("trial", list[str], "only these trials; repeat"),
    SHARD_ADDRESS,
    TRUST,
    JSON,
)
command(
    app,
    "repair",
    "Cut a damaged journal before its first bad line, keeping a copy; name damaged checkpoints.",
    "repair:repair",
    DIRECTORY,
    JSON,
)
command(
    app,
    "report",
    "Write the report, one HTML file that opens offline.",
    "status:report",
    DIRECTORY,
    option("out", Path, "the HTML file [default: DIR/report.html]"),
    WHOLE,
    JSON,
)
command(
    app,
    "ui",
    "Serve the live page of a study, or of a folder of studies, to a browser of this machine.",
    "serve:ui",
    argument("directory", Path, "a study's folder, or one that holds studies", "DIR"),
    option("port", int, "of 127.0.0.1 [default: 8765, or any that is free]"),
)
command(
    app,
    "pool",
    "Lend one cluster's slots to several studies, by priority or an objective, until Ctrl-C.",
    "serve:pool",
    argument("directory", Path, "the pool's folder", "DIR"),
    SLOTS,
    THREADS,
    ADDRESS,
    flag("until_empty", "end when the last study has gone"),
    option(
        "objective",
        str,
        "what all studies together are to make most of: throughput, efficiency, priority, or "
        "a function of a claim and its samples/s on 1, 2, … slots [default: slots go by priority]",
        metavar="NAME|FILE.py:NAME",
    ),
)
command(
    app,
    "doctor",
    "Say what this machine has: versions, devices, memory, disk, Ray, Slurm; what is missing.",
    "doctor:doctor",
    argument("directory", Path, "where studies are to be stored", "DIR", Path("runs")),
    JSON,
)
command(
    app,
    "simulate",
    "Run studies in virtual time under one policy or several, side by side.",
    "simulate:simulate",
    argument("specs", list[Path], "what to simulate; a spec never executes code", "SPEC.toml …"),
    option("policy", list[str], "of the spec, or by name; repeat [default: all of the spec]"),
    OUT,
    JSON,
    epilog=POLICIES,
)
command(
    app,
    "harvest",
    "Train a study on nodes of a batch system that stand idle, until others need them.\n\n"
    "The same command goes on with it where it was stopped or killed.",
    "harvest:harvested",
    argument(
        "target",
        str | None,
        "a Python file with a recipe, or the folder of a study to go on with; or give --command",
        "[FILE.py[:Recipe]|DIR]",
        None,
    ),
    option(
        "partition",
        str,
        "for the pilots, a queue of PBS or LSF: a preemptible one, best",
        "--partition",
        "--queue",
        default=Parameter.empty,
    ),
    flag("slurm", "as --scheduler slurm"),
    option(
        "scheduler",
        str,
        "whose the nodes are [default: whose commands are installed here]",
        metavar="slurm|pbs|lsf",
    ),
    option(
        "main_partition",
        list[str],
        "whose waiting jobs matter; repeat [default: all of them]",
        "--main-partition",
        "--main-queue",
    ),
    flag("no_preemption", "pilots are not preempted here: cancel them when others wait"),
    option("tick", float, "seconds between two looks at the queue", default=10.0, min=0.1),
    option("min_ticks", int, "looks in a row in which a node must be idle", default=2, min=1),
    option("most", int, "nodes at once [default: all idle ones]", min=1),
    option("minutes", int, "time limit of a pilot, at most", default=60, min=1),
    option("cpus_per_node", int, "to use [default: those granted]", min=1),
    option("gpus_per_node", int, "to use [default: those found]", min=0),
    flag("gpu_nodes", "only nodes that have GPUs, as is said of them"),
    option("ip", str, "this machine's, as nodes reach it [default: found out]"),
    option(
        "sbatch",
        list[str],
        'more for sbatch, qsub or bsub, as --sbatch "--account=x"; repeat',
        "--sbatch",
        "--submit",
    ),
    COMMAND_LINE,
    STORAGE,
    SPACE,
    NUM_SAMPLES,
    MAX_EPOCHS,
    SEARCHER,
    option(
        "policy",
        str,
        "as of shoal run [default: elastic, placed by which nodes leave together; of a folder its "
        "own]",
    ),
    option(
        "log",
        Path,
        "the site's log of idle nodes, from shoal trace slurm: the policy is then elastic, with "
        "what the log says",
        metavar="FILE",
    ),
    option("threads", int, "threads, and CPUs, of each slot [default: 1; a folder's own]", min=1),
    WIDTHS,
    PRIORITY,
    METRIC,
    MODE,
    MAX_CONCURRENT,
    TIMEOUT,
    *run_options(name for name in OF_TRAINING if TYPED[name].metadata["backend"] != "local"),
    PROFILE,
    LOGGERS,
    RETRY_FAILED,
    TRUST,
    SEED,
    JSON,
    epilog=POLICIES,
)


# -- data ------------------------------------------------------------------------------------------

data = typer.Typer(help="Data in shards.", no_args_is_help=True)
app.add_typer(data, name="data")
command(
    data,
    "shard",
    "Shuffle the rows of files once, and write them as shards with a catalogue.",
    "data:data_shard",
    argument(
        "source",
        list[str],
        "CSV, Parquet, Arrow, npz, npy or tar files, a folder of such, or a folder of pictures "
        "by class",
        "SRC…",
    ),
    argument("folder", Path, "a new folder for the shards", "DST"),
    option("shards", int, "shards to write", default=Parameter.empty),
    option("seed", int, "of the order of the rows", default=0),
    option("replicas", int, "copies of each shard, on different nodes", default=1),
    option("nodes", str, "nodes that hold shards, in turn: a,b,c [default: this machine]"),
    option(
        "proportional",
        str,
        "sizes by the nodes' speeds: as a study's folder has them, or given",
        metavar="DIR|NODE=SPEED,…",
    ),
    option("validation", str, "fraction to validate on, or other files"),
    option("label", str, "the column of a table that is the label"),
    option("drop", list[str], "columns of a table to leave out, as a,b; or repeat"),
    flag("numeric_only", "leave out columns of text and of times"),
    option("size", int, "side of pictures"),
    option("memory_gb", float, "GiB to hold in memory at most, about", default=1.0),
    JSON,
)
command(
    data,
    "register",
    "Write into a catalogue that a node holds these files; each is the shard of its name.",
    "data:data_register",
    CATALOGUE,
    argument("paths", list[str], "files or URLs, one for each shard", "PATH…"),
    option("node", str, 'the node that holds them; "*": every node', default="local"),
    flag("validation", "they are to validate on, not to train on", "--valid"),
    option("name", str, "of the shard [default: the file's]"),
    JSON,
)
command(
    data,
    "list",
    "Say which node holds which shard; with --check or --address the holders look at them.",
    "data:data_list",
    CATALOGUE,
    ADDRESS,
    flag("check", "look at the files, which lie on this machine"),
    JSON,
)


# -- logs of idle nodes ----------------------------------------------------------------------------

trace = typer.Typer(help="Logs of slots that come and go.", no_args_is_help=True)
app.add_typer(trace, name="trace")
command(
    trace,
    "slurm",
    "Write a log of this site's idle nodes: from Slurm's accounting, or from now on.",
    "simulate:trace_slurm",
    option("out", Path, "the log that is written, events as CSV", default=Path("site.csv")),
    option("sacct", Path, "what `sacct -P -a -X -o NodeList,Start,End` printed", metavar="FILE"),
    option(
        "nodes", Path, "what `sinfo -h -N -o '%N %T'` printed, or names, one a line", metavar="FILE"
    ),
    option("since", str, "how far back: 7days, 12hours, or a date as 2026-01-31", default="7days"),
    option("partition", str, "only nodes of this partition of Slurm's"),
    option(
        "ignored", str, "a partition whose allocations do not count, as they are pilots", "--ignore"
    ),
    flag("watch", "record what is idle from now on, by sinfo"),
    option("every", float, "seconds between two looks of --watch", default=10.0, min=0.1),
    option("hours", float, "how long to --watch [default: until Ctrl-C]", min=0.0),
    JSON,
)
command(
    trace,
    "stats",
    "Joins and leaves an hour, idle ratio, equivalent nodes, fragments, and the hazard of "
    "departure.",
    "simulate:trace_stats",
    argument("file", Path, "an idle-node log: CSV, Parquet, or sacct's text", "FILE"),
    JSON,
)


# -- batch jobs ------------------------------------------------------------------------------------

slurm = typer.Typer(help="Batch jobs of Slurm.", no_args_is_help=True)
app.add_typer(slurm, name="slurm")
command(
    slurm,
    "script",
    "Print the file for sbatch that runs `shoal run` with these arguments.",
    "slurm:printed",
    Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
    argument(
        "arguments",
        list[str],
        "what `shoal run` takes, its options included",
        "FILE.py[:Recipe] …",
        show_default=False,
    ),
    option("nodes", int, "nodes of the job", default=1, min=1),
    option("time", str, "time limit, as 90 (minutes), 1:30:00 or 2-12 (days-hours)"),
    option("partition", str, "partition"),
    option("account", str, "account to charge"),
    option("gpus_per_node", int, "GPUs", min=1),
    option("cpus_per_node", int, "CPUs of each node", min=1),
    option("mem", str, "of each node, as 64G"),
    option("job_name", str, "name of the job", default="shoal"),
    option("output", str, "file for what it prints, as out-%j.txt"),
    flag("requeue", "start it again after its time limit, until the study is done"),
    option("sbatch", list[str], "any other option of sbatch; repeat", metavar="NAME=VALUE"),
    option("before", list[str], "a line to run first, as 'module load cuda'; repeat"),
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)


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
