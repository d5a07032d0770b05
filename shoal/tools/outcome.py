"""What a command prints: figures as JSON or as lines, errors as one line."""

import json
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shoal import reporting
from shoal.core.check import PlanError
from shoal.core.errors import StudyError, warn
from shoal.engine.files import current_folder
from shoal.engine.journal import JournalError
from shoal.engine.run import Stalled
from shoal.harvest.head import HeadError
from shoal.harvest.scheduler import SchedulerError
from shoal.options import TYPED
from shoal.pool.folder import PoolError
from shoal.reporting.format import plural, printable
from shoal.reporting.progress import into_nothing
from shoal.study.code.recipe_file import function_in
from shoal.study.folder import StudyPaused, TrialsFailed

if TYPE_CHECKING:
    from shoal.study.study import Study

# Exit codes: of what a signal stopped, and of a run that ended before its work was done otherwise.
BY_SIGNAL = {"SIGINT": 130, "SIGTERM": 143}
WORK_LEFT = 3
LONGEST = 3000  # characters of an error
MENDABLE = (
    StudyError,
    StudyPaused,
    PoolError,
    SchedulerError,
    HeadError,
    JournalError,
    PlanError,
    Stalled,
    ValueError,
    OSError,
)


@contextmanager
def errors() -> Iterator[None]:
    """One clear line instead of a traceback, for what a user can mend.

    Raises:
        Exit: with 2 after such a line; with 130 or 143 after an interrupt.
    """

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {printable(as_typed(str(message)))}", err=True)

    warnings.showwarning = show
    try:
        yield
    except MENDABLE as error:
        line = printable(as_typed(str(error)))
        if len(line) > LONGEST:  # as of a forged journal, with a name of a megabyte
            line = f"{line[:LONGEST]} …"
        typer.echo(f"error: {line}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as interrupt:  # also of a second Ctrl-C, which ends a run at once
        typer.echo("interrupted", err=True)
        ended = isinstance(interrupt, Terminated)
        raise typer.Exit(BY_SIGNAL["SIGTERM" if ended else "SIGINT"]) from None


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it ends a command as Ctrl-C does."""


# Arguments in Python that are options here beside those of a run, with the hyphens of the command
# line.
OPTIONS = {
    *("storage", "space", "metric", "mode", "seed", "command"),
    *(name for name, each in TYPED.items() if not isinstance(each.default, bool)),
} - {"loggers"}
# Arguments with these values are options without one.
FLAGS = {
    "retry_failed=True": "--retry-failed",
    "optuna_log=True": "--optuna-log",
    "fuse=True": "--fuse",
    "fuse=False": "--no-fuse",
    "warm_start=False": "--cold",
    "loggers=": "--logger",
}
# As in a message for Python: "storage=", "fuse=False", 'mode="max"'. What stands in a call, as in
# "asha(mode='max')", is an argument of a searcher or a policy, which is typed in the same way.
ARGUMENT = re.compile(
    r"""\w\([^()]*\)|(?<![\w.'"])([a-z]\w*)=(?:"(\w+)"|True|False|(?=[\s,:;.)]|$))"""
)


def as_typed(message: str) -> str:
    """The message with options as they are typed here: "--storage" for "storage="."""

    def typed(match: re.Match[str]) -> str:
        name, text = match.groups()
        whole: str = match.group()
        if name not in OPTIONS:
            return FLAGS.get(whole, whole)
        return f"--{name.replace('_', '-')} {text or ''}".rstrip()

    return ARGUMENT.sub(typed, message).replace("optimize()", "shoal run")


def show(
    figures: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], Iterable[str]]
) -> None:
    """Figures as JSON, or as lines for people."""
    if as_json:
        echo(json.dumps(figures, indent=2, default=str))
    else:
        echo_lines(lines(figures))


def teller(as_json: bool) -> Callable[[str], None]:
    """A function that prints what a command is doing; beside figures as JSON it prints nothing."""

    def say(text: str) -> None:
        if not as_json:
            sys.stderr.write(f"{text}\n")

    return say


def on_terminal() -> bool:
    """Whether people read what is printed; with a closed stdout there is none."""
    return sys.stdout is not None and sys.stdout.isatty()


def echo(text: str) -> None:
    """Print it; nothing if nobody reads any more, as after `| head -1`."""
    try:
        typer.echo(printable(text))
    except BrokenPipeError:
        into_nothing(sys.stdout)


def echo_lines(lines: Iterable[str]) -> None:
    """Print lines for people: on a terminal folded. JSON and scripts are for `echo`."""
    text = "\n".join(lines)
    echo(folded(text, shutil.get_terminal_size().columns) if on_terminal() else text)


def folded(text: str, columns: int) -> str:
    """The text with lines that a terminal would cut inside of words broken between them.

    What goes on in the next line begins below what stands after the label.
    """
    lines = []
    for line in text.split("\n"):
        label = re.match(r"\S+\s{2,}|\s*", line)
        indent = min(label.end() if label else 0, columns // 2)
        lines += textwrap.wrap(
            line,
            columns,
            subsequent_indent=" " * indent,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [line]
    return "\n".join(lines)


@contextmanager
def concluded(study: "Study", as_json: bool, command: str | None = None) -> Iterator[None]:
    """Say what came out of a run, also if every trial failed.

    `command`: what goes on with it; None: `shoal resume`.

    Raises:
        Exit: with 1 when there are trials and all of them failed; else, of a run that was stopped,
            with 130 or 143 by a signal, and with 3 by a time limit or as asked.
    """
    with suppress(TrialsFailed):
        yield
    since, lines = study.folder.snapshots.recent()
    figures = reporting.summary(lines, since=since) | {"report": _report_of(study)}
    if not as_json and on_terminal():
        echo("")  # the display of the run stands above
    show(figures, as_json, reporting.status_lines)
    trials = study.trials
    failed = [trial.id for trial in trials if trial.status.startswith("failed")]
    if not as_json:
        echo_lines(next_steps(study, figures, failed, command))
    if len(failed) == len(trials) > 0:
        raise typer.Exit(1)
    why = figures["stopped"]
    if why is not None:  # nobody has asked the searcher since whether there is more to do
        raise typer.Exit(BY_SIGNAL.get(why, WORK_LEFT))


def _report_of(study: "Study") -> str | None:
    """Where the report is. None, and a warning, if it cannot be written: the study is not over."""
    try:
        return str(study.report())
    except OSError as error:
        warn(
            f"the report was not written ({error}); everything else is there: mend this, and "
            f"`shoal report {study.folder.path}` writes it"
        )
        return None


def as_seen_from_here(path: str | Path) -> str:
    """The path from the current folder, where it lies below that; else as it is."""
    here = current_folder()
    below = bool(here) and Path(path).is_relative_to(here)
    return str(Path(path).relative_to(here) if below else path)


def _best(study: "Study", figures: Mapping[str, Any]) -> str:
    """The call in Python that gives what the best trial has learnt."""
    load = f"shoal.load_study({as_seen_from_here(study.folder.path)!r})"
    best = figures["best"]
    if "best_by_recipe" in figures:
        return f"{load}.best_by_recipe   gives the best trial of each recipe"
    if best is None:
        return f"{load}.trials   gives the trials"
    if best["trial"] not in study.state.kept:
        return f"{load}.best_config   gives the best configuration"
    if function_in(study.recipe) is not None:
        return f"study = {load}; study.checkpoint(study.best_trial)   gives its files or state"
    return (
        f"{load}.best_model()   gives the best trial's last model, "
        'best_model(which="best") that of its best epoch,'
    )


def next_steps(
    study: "Study", figures: Mapping[str, Any], failed: Sequence[str], command: str | None = None
) -> Iterator[str]:
    """Where the report is, and what to do next; `command`: as of `concluded`."""
    folder = as_seen_from_here(study.folder.path)
    if command is None:
        command = f"shoal resume {folder}"
    report = figures["report"]
    yield f"\nreport:  {as_seen_from_here(report) if report else 'not written'}"
    if failed:
        text = Path(folder, "trials", failed[0], "error.txt")
        which = "its traceback" if len(failed) == 1 else "the traceback of the first of them"
        yield f"failed:  {text} has {which}"
        remain = "it stays" if len(failed) == 1 else f"the {plural(len(failed), 'trial')} stay"
        yield f"         {remain} failed; to try them again: {command} --retry-failed"
    if len(failed) < len(study.trials):
        if study.state.kept:
            yield (
                f"next:    shoal replay {folder}   trains every trial again as recorded, "
                "and compares the weights"
            )
        begin = "         " if study.state.kept else "next:    "
        yield f"{begin}{_best(study, figures)} in Python"
    if figures.get("stopped"):
        yield f"         {command}   goes on where this run stopped"
