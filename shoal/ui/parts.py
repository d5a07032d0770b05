"""The parts of the live page: what they hold is found here, page.html.j2 knows how they look."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from shoal.core.masking import MASK
from shoal.core.trial import Seconds
from shoal.engine.plain_files import open_file
from shoal.reporting import html, score_charts, sections
from shoal.reporting.accounting import Account
from shoal.reporting.facts import standing
from shoal.reporting.format import config, duration, number, score, status_words
from shoal.reporting.sections import Block, Cell, Cells, of_time
from shoal.reporting.tally import STATUSES, TrialRow
from shoal.ui.actions import LOG
from shoal.ui.studies import LiveStudy, Seen

TAIL = 24_000  # bytes at the end of a log that are shown
OPEN = ("running", "waiting")  # these can be stopped
ENDED_WELL = (*OPEN, "finished")  # these can be extended


def macros() -> Any:
    """The macros of the live page's template."""
    return html.environment().get_template("ui/page.html.j2").module


def shell() -> str:
    """The page before its script has asked for anything: it tells nothing of any study."""
    return str(macros().shell())


def study_frame(alone: bool) -> str:
    """The page of one study; its parts come afterwards. `alone`: there is no other."""
    scores = {
        section: {"title": title, "drawings": score_charts.titles(section)}
        for section, title in score_charts.SECTIONS.items()
    }
    statuses = {status: status_words(status) for status in STATUSES}
    return str(macros().study(alone, statuses, scores))


def list_frame(path: Path) -> str:
    """The page that lists the studies of a folder."""
    return str(macros().studies(path.name))


# -- parts of a study's page -----------------------------------------------------------------------


def heading(study: LiveStudy, seen: Seen, run: str) -> str:
    """Name, facts and figures, and what went wrong with following the journal or a run."""
    name = str(seen.account.head.get("study") or study.name)
    faults = [study.fault, "" if run in ("begun", "ended") else run]
    top = html.heading(seen.account, name, str(study.folder.path), seen.standing)
    return top + Markup(macros().faults(filter(None, faults)))


def decisions(study: LiveStudy, seen: Seen) -> str:
    """The runs, what auto chose and why, and the newest of all that was decided."""
    with study.lock:
        items = list(study.feed.items)
    rows: list[Cells] = [[of_time(item.time), item.who, item.text] for item in reversed(items)]
    newest = Block("tall", [sections.table("decisions", ["at", "who", "what"], rows)], "decisions")
    setup = sections.setup(seen.account)
    return html.shown([*setup, sections.heading("The newest first"), newest])


def failures(seen: Seen) -> str:
    """Trials that failed, and why; packs that had no room; work that was lost."""
    parts = (sections.failures, sections.splits, sections.repeated)
    blocks = [block for part in parts for block in part(seen.account)]
    return html.shown(blocks or [sections.note("None.")])


def log(study: LiveStudy) -> str:
    """The ends of the study's log and of the log of runs that the page began."""
    files = (study.folder.log, study.folder.path / LOG)
    tails = {file.name: tail_of(file) for file in files}
    blocks = [Block("log", tail, name) for name, tail in tails.items() if tail]
    return html.shown(blocks or [sections.note("Nothing was logged yet.")])


def tail_of(file: Path, root: Path | None = None) -> str:
    """The last whole lines of a file; empty if there is none, or it is no plain file."""
    try:
        with open_file(file, root=root) as opened:
            size = opened.seek(0, 2)
            opened.seek(max(0, size - TAIL))
            data: bytes = opened.read(TAIL)
    except OSError:
        return ""
    if size > TAIL:
        data = data[data.find(b"\n") + 1 :]
    return data.decode(errors="replace").replace("\r", "\n")


# -- one trial -------------------------------------------------------------------------------------


def trial(study: LiveStudy, row: TrialRow) -> str:
    """All of one trial, and what can be done to it."""
    facts = {
        "status": status_words(row.status),
        "score": score(row.last),
        "best": f"{score(row.best)} at epoch {number(row.best_epoch, 3)}",
        "epochs": number(row.epochs, 3),
        "training": duration(row.spent.get("train")),
        "configuration": config(row.config),
        "why it failed": row.why,
    }
    file = study.folder.path / "trials" / row.id / "error.txt"
    error = tail_of(file, study.folder.path)
    can = (row.status in OPEN, row.status in ENDED_WELL)
    return str(macros().trial(row.id, facts, error, *can, _fields(row)))


def new_trial(seen: Seen) -> str:
    """A form that adds a trial of one's own, with the names of the best trial's values."""
    return str(macros().new(_fields(seen.ranked[0]) if seen.ranked else {}))


def _fields(row: TrialRow) -> Mapping[str, str | None]:
    """The values of a configuration as they are typed; None: a secret."""
    return {key: None if item == MASK else repr(item) for key, item in row.config.items()}


# -- the list of studies ---------------------------------------------------------------------------


def studies(rows: Iterable[tuple[LiveStudy, Seen, Seconds]]) -> str:
    """The table of the studies. The seconds of `rows`: since each journal last grew."""
    heads = ["study", "state", "trials", "best", "last news", "ago"]
    return html.shown([sections.table("studies", heads, [_study_row(*each) for each in rows])])


def _study_row(study: LiveStudy, seen: Seen, quiet: Seconds) -> Cells:
    """A study's row of that table."""
    state, kind = standing(seen.account, seen.standing)
    news = study.fault
    if not news and study.feed.items:
        news = study.feed.items[-1].text
    count = len(seen.account.trials)
    return [
        Cell(study.name, study.name, "link", f"/?study={quote(study.name, safe='')}"),
        Cell(state, state, "chip", kind),
        Cell(f"{count:,}", count),
        _best(seen.account),
        news,
        Cell(duration(max(0, round(quiet))), quiet, unit="s"),
    ]


def _best(account: Account) -> str:
    """The study's best score; that of each recipe, where each has its own metric."""
    if account.by_recipe:
        scores = {name: _best(each) for name, each in account.by_recipe.items()}
        return "; ".join(f"{name}: {shown}" for name, shown in scores.items() if shown)
    best = account.best()
    if best is None:
        return ""
    return f"{account.metric} {score(best.last)} · {best.id}"
