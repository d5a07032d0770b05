"""The command line: parse, wire, print."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.arguments import (
    AsJson,
    BackendName,
    Concurrent,
    Device,
    Dir,
    Epochs,
    File,
    PolicyName,
    Priority,
    ProfileFile,
    Samples,
    SearcherName,
    Seed,
    Slots,
    Space,
    Storage,
    Threads,
    Timeout,
    Widths,
    open_study,
    parse_config,
    recipe_of,
    space_of,
    whole_numbers,
)

if TYPE_CHECKING:
    from shoal.study import Study

app = typer.Typer(
    name="shoal",
    help="Train many models as one job: searches and ensembles on one GPU, a few, or a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help texts hold [brackets]
)


@contextmanager
def errors() -> Iterator[None]:
    """One clear line instead of a traceback, for what a user can mend."""
    from shoal.core.check import PlanError
    from shoal.engine.journal import JournalError
    from shoal.engine.run import Stalled
    from shoal.folder import StudyError
    from shoal.study import StudyPaused

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {message}", err=True)

    warnings.showwarning = show
    try:
        yield
    except (StudyError, StudyPaused, JournalError, PlanError, Stalled, ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


@app.command()
def run(
    file: File,
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
    address: Annotated[str | None, typer.Option(help="of a running Ray cluster")] = None,
    copies: Annotated[int, typer.Option(help="slots that hold each shard")] = 1,
    widths: Widths = None,
    priority: Priority = None,
    metric: Annotated[str | None, typer.Option(help="what to rank by")] = None,
    mode: Annotated[str | None, typer.Option(help="min or max")] = None,
    max_concurrent: Concurrent = None,
    timeout: Timeout = None,
    checkpoint_every: Annotated[float, typer.Option(help="seconds of training between durable states; 0: every unit")] = 30.0,
    max_checkpoint_gb: Annotated[float | None, typer.Option(help="limit for all checkpoints")] = None,
    slot_memory_gb: Annotated[float | None, typer.Option(help="limit for what a slot takes")] = None,
    fuse: Annotated[bool, typer.Option(help="packed trials may train in one step; --no-fuse: bit for bit as alone")] = True,
    feeders: Annotated[str, typer.Option(help="processes of each node that prepare data for all its slots (ray)")] = "auto",
    validate_every: Annotated[int, typer.Option(help="epochs between evaluations")] = 1,
    profile: ProfileFile = None,
    optuna_log: Annotated[bool, typer.Option("--optuna-log", help="write optuna.log, too, for optuna-dashboard")] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a search; the same command goes on with it where it was stopped or killed."""
    with errors():
        study = open_study(file, storage, space, metric, mode, seed)
        study.optimize(
            searcher,
            policy,
            num_samples=num_samples or getattr(study.recipe, "num_samples", None),
            max_epochs=max_epochs,
            max_concurrent=max_concurrent,
            widths=widths,
            priority=priority,
            timeout=timeout,
            profile=profile,
            optuna_log=optuna_log,
            progress=not as_json,
            backend=backend,
            slots=slots,
            threads=threads,
            device=device,
            address=address,
            copies=copies,
            checkpoint_every=checkpoint_every,
            max_checkpoint_gb=max_checkpoint_gb,
            slot_memory_gb=slot_memory_gb,
            fuse=fuse,
            feeders=int(feeders) if feeders.isdecimal() else feeders,
            validate_every=validate_every,
        )
        conclude(study, as_json)


@app.command()
def resume(directory: Dir, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Go on with a study that was stopped or killed, as its last run was set up."""
    from shoal.study import load_study

    with errors():
        study = load_study(directory)
        study.resume(timeout=timeout, progress=not as_json)
        conclude(study, as_json)


@app.command()
def add(
    directory: Dir,
    values: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE …", help="the trial's configuration")] = None,
    max_epochs: Epochs = None,
    copy: Annotated[str | None, typer.Option("--from", help="a trial to copy, with these values changed")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="copy the configuration alone, not the weights")] = False,
    widths: Widths = None,
    priority: Priority = None,
    as_json: AsJson = False,
) -> None:
    """Add a trial to a study: at once if it runs, else when it is resumed."""
    from shoal.folder import StudyError
    from shoal.study import load_study

    with errors():
        study, config = load_study(directory), parse_config(values or [])
        if copy is None and (cold or not config):
            raise StudyError("a new trial needs its configuration, NAME=VALUE …; a copy needs --from TRIAL, and may be --cold")
        if copy is not None and (widths is not None or priority is not None):
            raise StudyError("a copy has widths and priority of the trial that it is made from: leave them out, or --from")
        if copy is None:
            name = study.enqueue(config, max_epochs=max_epochs, widths=widths, priority=1.0 if priority is None else priority)
        else:
            name = study.clone(copy, config, warm_start=not cold, max_epochs=max_epochs)
        show({"trial": name}, as_json, lambda x: [f"added:   {x['trial']}"])


@app.command()
def stop(
    directory: Dir,
    trial: Annotated[str | None, typer.Argument(metavar="TRIAL", help="a trial [default: the whole run]")] = None,
    as_json: AsJson = False,
) -> None:
    """Take a trial out before its end; without a trial, end the run after the units under way."""
    from shoal.study import load_study

    with errors():
        load_study(directory).stop(trial)
        show({"stopped": trial}, as_json, lambda x: [f"stopped: {x['stopped'] or directory}"])


@app.command()
def status(directory: Dir, as_json: AsJson = False) -> None:
    """Say how a study stands, also while it runs."""
    from shoal import report
    from shoal.folder import Folder, StudyError

    with errors():
        lines = Folder(directory).lines()
        if not lines:
            raise StudyError(f"there is no study in {directory}: no journal.jsonl")
        show(report.summary(lines), as_json, report.status_lines)


@app.command()
def plan(
    file: File,
    space: Space = None,
    num_samples: Samples = None,
    max_epochs: Epochs = None,
    policy: Annotated[list[str] | None, typer.Option(help="policies to compare; repeat [default: auto, fifo, hop …]")] = None,
    backend: BackendName = "local",
    slots: Slots = None,
    threads: Threads = 1,
    device: Device = "auto",
    widths: Widths = None,
    profile: ProfileFile = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="write each simulated journal and report there")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long a search would take under each policy, after a short probe."""
    from shoal.forecast import forecast, forecast_lines

    with errors():
        study = open_study(file, None, space, None, None, seed)
        wanted = tuple(policy or ())
        samples = num_samples or getattr(study.recipe, "num_samples", None)
        options = {"backend": backend, "slots": slots, "threads": threads, "device": device}
        found = forecast(study, wanted, samples, max_epochs, profile, options, out, widths)
        show(found, as_json, forecast_lines)


@app.command()
def profile(
    target: Annotated[
        str, typer.Argument(metavar="FILE.py[:Recipe]|DIR", help="a Python file with a recipe, or a study's folder")
    ],
    values: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE …", help="one configuration [default: all]")] = None,
    widths: Annotated[str | None, typer.Option(help="slots of a trial, or all [default: 1,2,4 … up to --slots]")] = None,
    slots: Slots = None,
    threads: Threads = 1,
    device: Device = "auto",
    feeders: Annotated[str, typer.Option(help="numbers of processes that prepare data")] = "1,2,4",
    space: Space = None,
    num_samples: Samples = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="the profile")] = Path("profile.toml"),
    as_json: AsJson = False,
) -> None:
    """Time every kind of trial at several widths, rescales and feeders, and write a profile for --profile and simulate."""
    from shoal import profiling
    from shoal.study import load_study

    with errors():
        study = load_study(target) if Path(target).is_dir() else open_study(target, None, space, None, None, seed)
        trials = profiling.trials_of(study, parse_config(values or []), num_samples)
        every = widths == "all"
        chosen = None if widths is None or every else whole_numbers(widths, "--widths")
        say = (lambda _: None) if as_json else (lambda text: typer.echo(text, err=True))
        fed = whole_numbers(feeders, "--feeders")
        found = profiling.profiled(
            study, trials, chosen, slots=slots, threads=threads, device=device, every=every, feeders=fed, say=say
        )
        found["profile"] = str(profiling.write(found, out))
        show(found, as_json, lambda x: [*profiling.lines(x), "", f"profile: {x['profile']}"])
        if all(kind["failed"] for kind in found["kinds"]):
            raise typer.Exit(1)


@app.command()
def check(file: File, space: Space = None, as_json: AsJson = False) -> None:
    """Train three steps of a recipe alone and beside another model, and compare."""
    from shoal.train.verify import check_recipe
    from shoal.wiring import data_of, first_config

    with errors():
        recipe = recipe_of(file)
        config = first_config(space_of(recipe, space))
        found = check_recipe(recipe, data_of(recipe), config)
        show(found, as_json, lambda x: [f"{'ok  ' if passed else 'FAIL'}  {name}: {text}" for name, passed, text in x["checks"]])
        if not found["ok"]:
            raise typer.Exit(1)


@app.command()
def replay(
    directory: Dir,
    trial: Annotated[list[str] | None, typer.Option(help="only these trials; repeat")] = None,
    as_json: AsJson = False,
) -> None:
    """Train each trial again, alone, over its recorded visits, and compare the checkpoints."""
    from shoal.study import load_study

    with errors():
        found = load_study(directory).replay(trial)
        show({"trials": found}, as_json, replay_lines)
        if not all(row["agrees"] or row["random"] for row in found):
            raise typer.Exit(1)


@app.command()
def report(
    directory: Dir,
    out: Annotated[Path | None, typer.Option(help="the HTML file [default: DIR/report.html]")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report, one HTML file that opens offline."""
    from shoal import report as reports
    from shoal.folder import Folder

    with errors():
        folder = Folder(directory)
        folder.check_begun()
        path = reports.write(folder.journal, out or folder.report)
        show({"report": str(path)}, as_json, lambda x: [f"report: {x['report']}"])


@app.command()
def simulate(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC.toml …", help="what to simulate; a spec never executes code")],
    policy: Annotated[list[str] | None, typer.Option(help="of the spec, or by name; repeat [default: all of the spec]")] = None,
    out: Annotated[Path | None, typer.Option(help="write each simulated journal and report there")] = None,
    as_json: AsJson = False,
) -> None:
    """Run studies in virtual time under one policy or several, side by side."""
    from shoal.simulate.command import simulate as simulated

    with errors():
        found, lines = simulated(specs, policy or (), out)
        show(found, as_json, lambda _: lines)


trace = typer.Typer(help="Logs of slots that come and go.", no_args_is_help=True)
app.add_typer(trace, name="trace")


@trace.command("stats")
def trace_stats(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="an idle-node log: CSV, Parquet, or sacct's text")],
    as_json: AsJson = False,
) -> None:
    """Joins and leaves an hour, idle ratio, equivalent nodes, fragments, and the hazard of departure."""
    from shoal.simulate.command import trace_stats as stats

    with errors():
        found, lines = stats(file)
        show(found, as_json, lambda _: lines)


def conclude(study: "Study", as_json: bool) -> None:
    """What came out, where the report is, and what to do next.

    Raises:
        Exit: with 1 when there are trials and all of them failed.
    """
    from shoal import report

    path = study.report()
    found = report.summary(study.lines()) | {"report": str(path)}
    show(found, as_json, report.status_lines)
    trials = study.trials
    failed = [trial.id for trial in trials if trial.status.startswith("failed")]
    if not as_json:
        folder = study.folder.path
        typer.echo(f"\nreport:  {path}")
        if failed:
            typer.echo(f"failed:  {folder / 'trials' / failed[0] / 'error.txt'} has the traceback of the first of {len(failed)}")
        if len(failed) < len(trials):
            typer.echo(
                f"next:    shoal replay {folder}   trains every trial again over its recorded visits and compares the weights"
            )
            typer.echo(f"         shoal.load_study({str(folder)!r}).best_model()   gives the best model in Python")
        if found.get("stopped"):
            typer.echo(f"         shoal resume {folder}   goes on where this run stopped")
    if len(failed) == len(trials) > 0:
        raise typer.Exit(1)


def replay_lines(found: dict[str, Any]) -> list[str]:
    """The comparison, a line a trial."""
    rows = found["trials"]
    lines = []
    for row in rows:
        verdict = "equal bit for bit" if row["equal"] else f"DIFFERS by up to {row['difference']:.3g}"
        if row["agrees"] and not row["equal"]:
            how = "on several slots" if row["wide"] else "in a fused pack"
            verdict = f"agrees up to {row['difference']:.3g} (trained {how}, which rounds otherwise)"
        if row["random"] and not row["agrees"]:
            verdict = f"other by up to {row['difference']:.3g} (fuse_random: trained in a fused pack, equal in distribution only)"
        lines.append(f"{row['trial']}: {verdict} after {row['visits']} visits")
    rounded = sum(row["agrees"] and not row["equal"] for row in rows)
    also = f", {rounded} more agree" if rounded else ""
    return [*lines, f"{sum(row['equal'] for row in rows)} of {len(rows)} trials equal{also}"]


def show(found: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    """Figures as JSON, or as lines for people."""
    typer.echo(json.dumps(found, indent=2, default=str) if as_json else "\n".join(lines(found)))


def main() -> None:
    """The entry point `shoal`."""
    app(prog_name="shoal")


if __name__ == "__main__":
    main()
