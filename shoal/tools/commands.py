"""What the commands do. `shoal.cli` imports this once a command is typed.

Status and report need neither NumPy nor torch: what needs them is imported by the commands that
train or simulate, and `shoal.load_study` imports the study when it is used.
"""

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import typer

import shoal
from shoal import reporting
from shoal.core.install import install
from shoal.core.trial import is_in_file
from shoal.pool.folder import PoolFolder, summary, summary_lines
from shoal.study.folder import Folder, StudyError, StudyPaused, studies_in
from shoal.study.holder import command_to_go_on, process_of, was_harvested
from shoal.tools.outcome import (
    check_lines,
    concluded,
    errors,
    replay_code,
    replay_lines,
    show,
    studies_lines,
)
from shoal.tools.parse import (
    check_driven,
    open_study,
    parse_config,
    run_options,
    whole_numbers,
)
from shoal.tools.slurm.again import going_on


@errors()
def run(
    file: str | None,
    command: str | None,
    storage: Path | None,
    space: list[str] | None,
    metric: str | None,
    mode: str | None,
    seed: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a search. `options`: what else `Study.optimize` takes, some of it as text."""
    study = open_study(file, storage, space, metric, mode, seed, command)
    requeue = options.pop("requeue")
    with going_on(study, requeue), concluded(study, as_json):
        study.optimize(progress=not as_json, **run_options(study, options))


def _teller(as_json: bool) -> Callable[[str], None]:
    """Says what a command does meanwhile, wherever it is done; beside figures as JSON nothing."""

    def say(text: str) -> None:
        if not as_json:
            sys.stderr.write(f"{text}\n")

    return say


def _samples(study: "shoal.Study", given: int | None) -> int | None:
    """How many configurations to draw: as typed, else as the recipe says."""
    return given or getattr(study.recipe, "num_samples", None)


@errors()
def resume(
    directory: Path,
    timeout: float | None,
    requeue: bool,
    retry_failed: bool,
    trust: bool,
    checkpoints: str | None,
    as_json: bool,
) -> None:
    """Go on with a study that was stopped or killed."""
    study = shoal.load_study(directory, trust=trust, checkpoints=checkpoints)
    again = command_to_go_on(study.folder)
    with (
        going_on(study, requeue),
        _harvest_over(study.folder),
        concluded(study, as_json, again),
    ):
        study.resume(timeout=timeout, progress=not as_json, retry_failed=retry_failed)


@contextmanager
def _harvest_over(folder: Folder) -> Iterator[None]:
    """Say what to do if the cluster that does not answer was that of a harvest.

    Raises:
        StudyPaused: it was.
    """
    try:
        yield
    except StudyPaused as error:
        if isinstance(error.__cause__, ConnectionError) and was_harvested(folder):
            raise StudyPaused(
                f"the study in {folder.path} was harvested, and its cluster ended with that: go "
                f"on with {command_to_go_on(folder)}, or without harvesting with `shoal run "
                f"FILE.py --storage {folder.path}`"
            ) from error
        raise


def _collect_rarely() -> None:
    """Let Python's collector look for circular garbage rarely, in a process that only reads.

    A journal's entries and a report's rows are large trees without circles. The collector finds
    nothing in them, and takes a fifth of the time of a report of ten thousand trials.
    """
    gc.set_threshold(100_000, 50, 50)


@errors()
def status(directory: Path, as_json: bool, whole: bool = False) -> None:
    """Say how a study stands."""
    _collect_rarely()
    folder = Folder(directory)
    since, lines = folder.snapshots.recent(whole)
    pooled = summary(directory)
    if not lines and pooled is not None:
        return show(pooled, as_json, summary_lines)
    if not lines:
        return _status_of_all(directory, whole, as_json)
    found = _with_process(reporting.summary(lines, since=since), folder)
    if found["status"] == "open" and found["process"]["running"] is not False:
        board = folder.slots()
        begin = since.begin() if since else []
        now = time.time()
        found["standing"] = reporting.standing([*begin, *lines], board, now)
        found["asked"] = reporting.asked(board)
    show(found, as_json, reporting.status_lines)


def _with_process(found: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """The summary, with who is at work on a study that is open."""
    if found["status"] == "open":
        found["process"] = process_of(folder, time.time())
    return found


def _status_of_all(directory: Path, whole: bool, as_json: bool) -> None:
    """A line for each study below the folder.

    Raises:
        StudyError: there is none.
    """
    found = {}
    for name, place in studies_in(directory).items():
        since, lines = Folder(place).snapshots.recent(whole)
        summed = reporting.summary(lines, since=since)
        found[name] = _with_process(summed, Folder(place))
    if not found:
        raise StudyError(f"there is no study in {directory}: no journal.jsonl")
    show(
        {"studies": found},
        as_json,
        studies_lines,
    )


@errors()
def plan(file: str, space: list[str] | None, seed: int, as_json: bool, **wanted: Any) -> None:
    """Predict how long a search would take. `wanted`: what else `forecast` takes, and options."""
    from shoal.study.backends import at_holders
    from shoal.tools.forecast import forecast, forecast_lines

    study = open_study(file, None, space, None, None, seed)
    check_driven(study.recipe, "plan")
    wanted["policies"] = tuple(wanted.pop("policy") or ())
    wanted["num_samples"] = _samples(study, wanted["num_samples"])
    names = ("backend", "slots", "threads", "device")
    options = {name: wanted.pop(name) for name in names}
    with at_holders(wanted.pop("address"), _teller(as_json)) as perform:
        found = forecast(study, options=options, perform=perform, **wanted)
    show(found, as_json, forecast_lines)


@errors()
def profile(
    target: str,
    values: list[str] | None,
    space: list[str] | None,
    num_samples: int | None,
    seed: int,
    out: Path,
    trust: bool,
    as_json: bool,
    address: str | None,
    **wanted: Any,
) -> None:
    """Time every kind of trial, and write a profile. `wanted`: fields of a `ProfileRequest`.

    Raises:
        Exit: with 1 when every kind failed.
    """
    from shoal.study.backends import at_holders
    from shoal.study.setup import data_of
    from shoal.tools import profile as profiling
    from shoal.tools import profile_page as page

    if Path(target).is_dir():
        study = shoal.load_study(target, trust=trust)
    else:
        study = open_study(target, None, space, None, None, seed)
    check_driven(study.recipe, "profile")
    wanted["every"] = wanted["widths"] == "all"
    if wanted["every"]:
        wanted["widths"] = None
    if wanted["widths"] is not None:
        wanted["widths"] = whole_numbers(wanted["widths"], "--widths")
    wanted["feeders"] = whole_numbers(wanted["feeders"], "--feeders")
    given = parse_config(values or [])
    say = _teller(as_json)
    with at_holders(address, say) as perform:
        data = data_of(study.recipe)
        trials = profiling.trials_of(study, data, given, num_samples)
        request = profiling.ProfileRequest(**wanted)
        found = profiling.profiled(study, data, trials, request, say, perform)
    path = str(page.write(found, out))
    found["profile"] = path
    last = ["", f"profile: {path}"]
    chart = None
    if out.suffix == ".toml":
        chart = page.write_page(found, out.with_suffix(".html"))
    if chart is not None:
        found["chart"] = str(chart)
        last.append(f"rates against width: {chart}")
    show(found, as_json, lambda x: [*page.lines(x), *last])
    if all(kind["failed"] for kind in found["kinds"]):
        raise typer.Exit(1)


@errors()
def check(
    file: str,
    space: list[str] | None,
    device: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Do what a run does before its first trial; then train three steps, and compare.

    The steps are taken alone, again, beside another model, and around a move and a validation.

    Raises:
        Exit: with 1 when they differ.
    """
    from shoal.study.backends import at_holders
    from shoal.tools.probe import checked

    with TemporaryDirectory() as folder:  # where nothing is written
        study = open_study(file, Path(folder), space, None, None, 0)
        check_driven(study.recipe, "check")
        with at_holders(address, _teller(as_json)) as perform:
            found = checked(study, device, perform)
    show(found, as_json, check_lines)
    if not found["ok"]:
        raise typer.Exit(1)


@errors()
def replay(
    directory: Path,
    trial: list[str] | None,
    address: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Train each trial again, alone, and compare the checkpoints.

    Raises:
        Exit: with 1 when one of them differs or is missing, else with 4 when one could not be
            compared.
    """
    study = shoal.load_study(directory, trust=trust)
    found = {"trials": study.replay(trial, address=address)}
    show(found, as_json, replay_lines)
    code = replay_code(found)
    if code:
        raise typer.Exit(code)


@errors()
def report(directory: Path, out: Path | None, as_json: bool, whole: bool = False) -> None:
    """Write the report."""
    _collect_rarely()
    folder = Folder(directory)
    folder.check_begun()
    since, entries = folder.snapshots.recent(whole)
    facts = reporting.account(entries, since=since)
    path = reporting.save(
        facts, out or folder.report, None, str(folder.path), named=out is not None
    )
    lines = [f"report: {path}"]
    if facts.rescales:
        lines.append(reporting.rescales_line(facts.rescales))
    show({"report": str(path)}, as_json, lambda _: lines)


@errors()
def ui(directory: Path, port: int | None) -> None:
    """Serve the live page until Ctrl-C.

    Raises:
        StudyError: what serves pages is not installed.
    """
    why = f"the live page needs Starlette and uvicorn: {install('starlette', 'uvicorn')}"
    serve = _needing("shoal.ui.serve", ("starlette", "uvicorn"), why).serve
    _collect_rarely()
    serve(directory, port, lambda address: typer.echo(f"live page: {address}"))


@errors()
def pool(directory: Path, objective: str | None, **options: Any) -> None:
    """Lend slots to studies until Ctrl-C. `options`: what else `serve` takes.

    Raises:
        StudyError: Ray is not installed.
        ValueError: the objective is no name of one, and no function that could be one.
    """
    from shoal.pool.division import try_on_claim
    from shoal.simulate.policy_files import objective_in

    aim: Any = objective
    if is_in_file(objective):
        aim = objective_in(str(objective))
    if aim is not None:
        try_on_claim(aim)
    folder = PoolFolder(directory)
    folder.make()
    folder.begin()  # studies wait for it from now on: to import Ray takes a while, too
    why = f"a pool needs Ray: {install('ray')}"
    serve = _needing("shoal.pool.pool", ("ray",), why).serve
    serve(directory, say=typer.echo, objective=aim, **options)


def _needing(module: str, libraries: tuple[str, ...], why: str) -> ModuleType:
    """The module, which needs these libraries.

    Raises:
        StudyError: one of them is not installed; `why` says so.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in libraries:
            raise
        raise StudyError(why) from error


@errors()
def doctor(directory: Path, as_json: bool) -> None:
    """Say what this machine has, and what is missing."""
    from shoal.tools.doctor.doctor import examined, lines

    show(examined(directory), as_json, lines)


@errors()
def repair(directory: Path, as_json: bool) -> None:
    """Mend the study's journal, and look at its checkpoints."""
    from shoal.tools.doctor.repair import lines, repaired

    show(repaired(directory), as_json, lines)


def _simulations() -> ModuleType:
    """What needs NumPy and the simulator; imported when it is used."""
    from shoal.simulate import command

    return command


@errors()
def simulate(specs: list[Path], policy: list[str] | None, out: Path | None, as_json: bool) -> None:
    """Run studies in virtual time."""
    found, lines = _simulations().simulate(specs, policy or (), out)
    show(found, as_json, lambda _: lines)
