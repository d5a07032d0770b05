"""The arguments and options of the commands, with their help texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:Recipe]",
        help="a Python file with a shoal.Recipe in it, or with a dict `recipes` of several",
    ),
]
FileOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE.py[:Recipe]]",
        help="a Python file with a shoal.Recipe in it, or with a dict `recipes` of several; "
        "or give --command",
    ),
]
CommandLine = Annotated[
    str | None,
    typer.Option(
        "--command",
        help="a command line to train, with {names} of --space, e.g. 'python t.py --lr {lr}'",
    ),
]
Dir = Annotated[Path, typer.Argument(metavar="DIR", help="the study's folder")]
AsJson = Annotated[bool, typer.Option("--json", help="print figures as JSON")]
Whole = Annotated[
    bool,
    typer.Option(
        "--whole",
        help="count a long journal from its first entry on, which takes longer",
    ),
]
StoredIn = Annotated[Path, typer.Argument(metavar="DIR", help="where studies are to be stored")]
Storage = Annotated[Path | None, typer.Option(help="the study's folder [default: runs/<recipe>]")]
Space = Annotated[
    list[str] | None,
    typer.Option(
        "--space",
        help="a dimension, e.g. 'lr=loguniform(1e-4,1e-1)' or 'width=grid([64,128])'; repeat",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        "--num-samples",
        "--n-trials",
        help="configurations to draw",
        show_default=False,
    ),
]
Epochs = Annotated[int | None, typer.Option(help="epochs of each trial")]
SearcherName = Annotated[
    str | None,
    typer.Option(
        help="grid, random, halving, hyperband, asha, pbt, median, patience, optuna; "
        "or as 'asha(grace_period=2)'"
    ),
]
# These two are as `policy.named.NAMES`, whose import would take half a second. A test holds them
# together. The first line of the list keeps typer from joining the others.
POLICIES = """\b
Policies, and when to use each:
  auto       the default: simulates those that suit and follows the quickest
  fifo       one trial per slot, first come first served: what all others must beat
  pack       small models: several on one slot, over one stream of data
  hop        data spread over the slots: models move from shard to shard, data stays
  hop-packs  as hop, for small models: packs of them move together
  hybrid     hops while trials abound; the last ones read several shards at once
  doubling   trials of several widths: slots go where one more saves most time
  explore    as doubling, when nobody knows yet how trials scale: tries each width first
  equi       trials of several widths: equal shares for all, whatever their lengths
  waterfill  trials of several widths: ends all of them as early as can be
  mixed      small and large models: packs on some slots, wide trials on the others
  flotilla   trials of unlike speed over one costly stream: those of like pace together
  elastic    slots that come and go: best widths for the next while, at each change
  every      every(seconds=600, policy=doubling): changes at intervals only
"""
POLICY_HELP = (
    "auto, fifo, pack, hop, hop-packs, hybrid, doubling, explore, equi, waterfill, mixed, "
    "flotilla, elastic or every, with arguments as in explore(seconds=60); auto:fifo,pack chooses "
    "among these (below: when to use which)"
)
PolicyName = Annotated[str, typer.Option(help=POLICY_HELP)]
BackendName = Annotated[str, typer.Option(help="local (this process) or ray")]
Slots = Annotated[int | None, typer.Option(help="slots of the ray backend")]
Threads = Annotated[int, typer.Option(help="threads of each slot")]
Device = Annotated[str, typer.Option(help="of the local backend: auto, cpu, cuda, mps")]
ProfileFile = Annotated[
    Path | None, typer.Option(help="given speeds (TOML) instead of measured ones")
]
Seed = Annotated[int, typer.Option(help="the study's seed")]
Timeout = Annotated[
    float | None, typer.Option(help="stop after so many seconds; run again to go on")
]
Widths = Annotated[
    tuple[int, int] | None,
    typer.Option(help="fewest and most slots of a trial [default: 1 1]"),
]
Priority = Annotated[float | None, typer.Option(help="of a trial against others [default: 1]")]
Concurrent = Annotated[int | None, typer.Option(help="trials under way at once")]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE …", help="the trial's configuration"),
]
Out = Annotated[Path | None, typer.Option(help="write each simulated journal and report there")]

# Of `run` and `resume`.
Requeue = Annotated[
    bool,
    typer.Option(
        "--requeue",
        help="in a batch job of Slurm that its time limit stops: have Slurm start it again",
    ),
]
RetryFailed = Annotated[
    bool,
    typer.Option(
        "--retry-failed",
        help="failed trials go on from their newest durable state, or begin again",
    ),
]

# Of what loads a study's recipe.
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="the study's recipe is not yours, and you have looked at it: run its code from now on",
    ),
]

CheckpointPlace = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        help="where the study's weights lie, if they are not in its folder and it was moved, or is "
        "not yours: a path or a URL",
    ),
]

# Of `run` alone.
StopBefore = Annotated[
    float | None,
    typer.Option(
        help="in an allocation of Slurm: stop so many seconds before its end "
        "[default: 60, or more where visits take longer]",
        show_default=False,
    ),
]
Address = Annotated[
    str | None, typer.Option(help="of a running Ray cluster, or pool:DIR (shoal pool)")
]
ShardAddress = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="of a Ray cluster whose nodes hold the shards: the one with most of them works, and "
        "the others read for it",
    ),
]
PoolDir = Annotated[Path, typer.Argument(metavar="DIR", help="the pool's folder")]
PoolObjective = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.py:NAME",
        help="what all studies together are to make most of: throughput, efficiency, priority, or "
        "a function of a claim and its samples/s on 1, 2, … slots [default: slots go by priority]",
    ),
]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="end when the last study has gone")]
Copies = Annotated[int, typer.Option(help="slots that hold each shard")]
Metric = Annotated[str | None, typer.Option(help="what to rank by")]
Mode = Annotated[str | None, typer.Option(help="min or max")]
CheckpointEvery = Annotated[
    float,
    typer.Option(help="seconds of training between durable states; 0: every unit"),
]
CheckpointLimit = Annotated[float | None, typer.Option(help="limit for all checkpoints")]
SlotMemory = Annotated[float | None, typer.Option(help="limit for what a slot takes")]
Fuse = Annotated[
    bool,
    typer.Option(help="packed trials may train in one step; --no-fuse: bit for bit as alone"),
]
Workers = Annotated[
    str,
    typer.Option(help="processes that read, prepare and augment data (local): a number, or auto"),
]
Feeders = Annotated[
    str,
    typer.Option(help="processes of each node that prepare data for all its slots (ray)"),
]
ValidateEvery = Annotated[
    str | None,
    typer.Option(
        help="epochs between evaluations, as 1 or 0.25, or optimizer steps, as '200 steps' "
        "[default: the recipe's, or 1]"
    ),
]
OptunaLog = Annotated[
    bool,
    typer.Option("--optuna-log", help="write optuna.log, too, for optuna-dashboard"),
]
Loggers = Annotated[
    list[str] | None,
    typer.Option(
        "--logger",
        help="csv, tensorboard, mlflow or wandb, perhaps with a place as csv:FOLDER; repeat",
    ),
]

# Of `add`, `extend` and `stop`.
Extended = Annotated[str, typer.Argument(metavar="TRIAL", help="the trial")]
MoreEpochs = Annotated[
    int, typer.Option("--max-epochs", help="epochs in all, more than it was to train")
]
CopyOf = Annotated[
    str | None,
    typer.Option("--from", help="a trial to copy, with these values changed"),
]
Cold = Annotated[bool, typer.Option("--cold", help="copy the configuration alone, not the weights")]
StopTrial = Annotated[
    str | None, typer.Argument(metavar="TRIAL", help="a trial [default: the whole run]")
]
SlotChange = Annotated[
    Literal["add", "remove", "set"],
    typer.Argument(metavar="add|remove|set", help="what to do", show_choices=False),
]
SlotNumber = Annotated[
    int, typer.Argument(metavar="N", help="how many slots", min=1, show_default=False)
]

# Of `plan` and `simulate`.
PlanPolicies = Annotated[
    list[str] | None,
    typer.Option(help="policies to compare; repeat [default: auto, fifo, hop …]"),
]
SpecPolicies = Annotated[
    list[str] | None,
    typer.Option(help="of the spec, or by name; repeat [default: all of the spec]"),
]
Specs = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC.toml …", help="what to simulate; a spec never executes code"),
]

# Of `profile`.
Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:Recipe]|DIR",
        help="a Python file with a recipe, or a study's folder",
    ),
]
ProfiledValues = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME=VALUE …", help="one configuration [default: all]"),
]
ProfiledWidths = Annotated[
    str | None,
    typer.Option(help="slots of a trial, or all [default: 1,2,4 … up to --slots]"),
]
ProfiledAgain = Annotated[
    bool, typer.Option("--again", help="time also what the study's run has measured")
]
ProfiledFeeders = Annotated[str, typer.Option(help="numbers of processes that prepare data")]
ProfileOut = Annotated[Path, typer.Option(help="the profile")]

# Of `replay` and `report`.
ReplayTrials = Annotated[list[str] | None, typer.Option(help="only these trials; repeat")]
ReportFile = Annotated[Path | None, typer.Option(help="the HTML file [default: DIR/report.html]")]

# Of `ui`.
UiDir = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="a study's folder, or one that holds studies"),
]
Port = Annotated[int | None, typer.Option(help="of 127.0.0.1 [default: 8765, or any that is free]")]


Sharded = Annotated[
    list[str],
    typer.Argument(
        metavar="SRC…",
        help="CSV, Parquet, Arrow, npz, npy or tar files, a folder of such, or a folder of "
        "pictures by class",
    ),
]
ShardsIn = Annotated[Path, typer.Argument(metavar="DST", help="a new folder for the shards")]
ShardNumber = Annotated[int, typer.Option("--shards", help="shards to write")]
Replicas = Annotated[int, typer.Option(help="copies of each shard, on different nodes")]
Nodes = Annotated[
    str | None,
    typer.Option(help="nodes that hold shards, in turn: a,b,c [default: this machine]"),
]
Proportional = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|NODE=SPEED,…",
        help="sizes by the nodes' speeds: as a study's folder has them, or given",
    ),
]
SetAside = Annotated[
    str | None,
    typer.Option("--validation", help="fraction to validate on, or other files"),
]
Label = Annotated[str | None, typer.Option(help="the column of a table that is the label")]
LeftOut = Annotated[
    list[str] | None,
    typer.Option("--drop", help="columns of a table to leave out, as a,b; or repeat"),
]
NumbersOnly = Annotated[
    bool,
    typer.Option("--numeric-only", help="leave out columns of text and of times"),
]
PictureSize = Annotated[int | None, typer.Option("--size", help="side of pictures")]
MakingSeed = Annotated[int, typer.Option(help="of the order of the rows")]
MakingMemory = Annotated[
    float, typer.Option("--memory-gb", help="GiB to hold in memory at most, about")
]
CatalogueFile = Annotated[
    Path, typer.Argument(metavar="CATALOGUE", help="a TOML file, such as shards.toml")
]
HeldFiles = Annotated[
    list[str], typer.Argument(metavar="PATH…", help="files or URLs, one for each shard")
]
Holder = Annotated[str, typer.Option("--node", help='the node that holds them; "*": every node')]
ForValidation = Annotated[
    bool, typer.Option("--valid", help="they are to validate on, not to train on")
]
PartName = Annotated[str | None, typer.Option("--name", help="of the shard [default: the file's]")]
CheckFiles = Annotated[
    bool, typer.Option("--check", help="look at the files, which lie on this machine")
]
