"""What `shoal status` and `shoal report` do: they read a study, and load nothing of it."""

import gc
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal import reporting
from shoal.core.errors import StudyError
from shoal.pool.folder import summary, summary_lines
from shoal.reporting.format import score
from shoal.study.folder import Folder, studies_in
from shoal.study.holder import is_held, process_of
from shoal.tools.outcome import errors, show


def collect_rarely() -> None:
    """Let Python's collector look for circular garbage rarely, in a process that only reads.

    A journal's entries and a report's rows are large trees without circles. The collector finds
    nothing in them, and takes a fifth of the time of a report of ten thousand trials.
    """
    gc.set_threshold(100_000, 50, 50)


@errors()
def status(directory: Path, as_json: bool, whole: bool = False) -> None:
    """Say how a study stands."""
    collect_rarely()
    folder = Folder(directory)
    since, lines = folder.snapshots.recent(whole)
    pooled = summary(directory)
    if not lines and pooled is not None:
        return show(pooled, as_json, summary_lines)
    if not lines:
        return _status_of_all(directory, whole, as_json)
    figures = _with_process(reporting.summary(lines, since=since), folder)
    if figures["status"] == "open" and figures["process"]["running"] is not False:
        board = folder.slots()
        begin = since.begin() if since else []
        now = time.time()
        figures["standing"] = reporting.standing([*begin, *lines], board, now)
        figures["asked"] = reporting.asked(board)
    show(figures, as_json, reporting.status_lines)


def _with_process(figures: dict[str, Any], folder: Folder) -> dict[str, Any]:
    """The summary, with who is at work on a study that is open."""
    if figures["status"] == "open":
        figures["process"] = process_of(folder, time.time())
    return figures


def _status_of_all(directory: Path, whole: bool, as_json: bool) -> None:
    """A line for each study below the folder.

    Raises:
        StudyError: there is none.
    """
    studies = {}
    for name, place in studies_in(directory).items():
        since, lines = Folder(place).snapshots.recent(whole)
        figures = reporting.summary(lines, since=since)
        studies[name] = _with_process(figures, Folder(place))
    if not studies and is_held(Folder(directory)):
        raise StudyError(
            f"the study in {directory} has not begun: the process that opened it reads the data "
            "and checks the recipe, so look again soon"
        )
    if not studies:
        raise StudyError(f"there is no study in {directory}: no journal.jsonl")
    show({"studies": studies}, as_json, studies_lines)


@errors()
def report(directory: Path, out: Path | None, as_json: bool, whole: bool = False) -> None:
    """Write the report."""
    collect_rarely()
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


def studies_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """A line for each of several studies, by name."""
    for name, study in figures["studies"].items():
        standing, trials, *_ = reporting.status_lines(study)
        line = f"{name}: {standing.partition(': ')[2]}; {trials.replace('   ', ' ')}"
        for best_of in study.get("best_by_recipe", {name: study}).values():
            best = best_of["best"]
            if best is not None:
                line += f"; best {best_of['metric']} {score(best['score'])} ({best['trial']})"
        yield line
