"""The parts of the page as HTML. Every text that comes from a journal or a file is escaped."""

from collections.abc import Iterable, Mapping
from html import escape as exact
from pathlib import Path
from urllib.parse import quote

from shoal.core.masking import MASK
from shoal.core.trial import Seconds
from shoal.engine.plain_files import open_file
from shoal.reporting import sections, tables
from shoal.reporting.accounting import Account
from shoal.reporting.format import config, duration, escape, number, score
from shoal.reporting.tally import TrialRow
from shoal.ui.actions import LOG
from shoal.ui.live import LiveStudy, Seen
from shoal.ui.table import ENDED_WELL, OPEN

TAIL = 24_000  # bytes at the end of a log that are shown
CHIPS = {"finished": "finished", "running": "running", "added": "open", "open": "open"}
SECTIONS = {
    "trials": "Trials",
    "curves": "Learning curves",
    "slots": "Slots",
    "decisions": "Decisions",
    "failures": "Failures",
    "log": "Log",
}
STATUSES = ("running", "waiting", "finished", "retired", "failed")


# -- whole pages -----------------------------------------------------------------------------------

SHELL = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Shoal</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="icon" href="data:,">'
    '<link rel="stylesheet" href="/static/page.css">'
    '<link rel="stylesheet" href="/static/ui.css">'
    '<script src="/static/ui.js" defer></script>'
    '<script src="/static/plotly.js" async></script></head><body></body></html>\n'
)
THEME = '<button id="theme" type="button" title="light or dark"></button>'


def study_frame(alone: bool) -> str:
    """The page of one study; its parts come afterwards. `alone`: there is no other."""
    links = "".join(f'<a href="#{key}">{title}</a>' for key, title in SECTIONS.items())
    back = ""
    if not alone:
        back = '<a href="/">&#8592; all studies</a>'
    body = "".join(
        f'<section id="{key}"><h2>{title}</h2>{_places(key)}</section>'
        for key, title in SECTIONS.items()
    )
    return (
        f'<div id="heading" class="fill"></div>'
        f"{_controls()}<nav>{back}{links}{THEME}</nav><main>{body}</main>"
        '<dialog id="dialog" aria-label="trial"></dialog>'
    )


def list_frame(path: Path) -> str:
    """The page that lists the studies of a folder."""
    heading = f'<header><div class="name"><h1>{escape(path.name)}</h1></div></header>'
    return (
        f"{heading}<nav>{THEME}</nav><main><section><h2>Studies</h2>"
        '<div id="list" class="fill"></div></section></main>'
    )


def _controls() -> str:
    """What is done to the whole study, and what came of the last action."""
    return (
        '<div class="controls doing">'
        '<button type="button" data-do="pause" id="pause">Pause</button>'
        '<button type="button" data-do="resume" id="resume">Resume</button>'
        '<button type="button" data-do="new" id="new">Add a trial…</button>'
        '<output id="said" role="status"></output></div>'
    )


def _places(key: str) -> str:
    """What a section holds before its data has come."""
    fill = f'<div id="{key}-part" class="fill"></div>'
    if key == "trials":
        return _filters() + f'{fill}<p class="controls pages" id="pages"></p>'
    if key == "curves":
        return (
            '<p class="controls"><label>value <select id="curve-name"></select></label>'
            '<label>over <select id="curve-x"><option>epochs</option>'
            "<option>time</option></select></label>"
            '<label><input type="checkbox" id="curve-log"> log axis</label>'
            '<span id="curve-note"></span></p><div class="drawing" id="curves-drawing"></div>'
        )
    if key == "slots":
        return (
            "<p>A lane for each slot, coloured by trial; drag to zoom, double-click to see "
            'all.</p><div class="drawing" id="gantt"></div><h3>Use of each slot</h3>'
            '<div class="drawing" id="use"></div>'
        )
    return fill


def _filters() -> str:
    """What chooses among the trials."""
    options = "".join(f"<option>{status}</option>" for status in STATUSES)
    return (
        '<p class="controls"><label>find <input type="search" id="find" '
        'placeholder="t003, relu, lr&lt;0.01 …" autocomplete="off" spellcheck="false"></label>'
        f'<label>status <select id="status"><option value="">all</option>{options}'
        '</select></label><span id="count"></span></p>'
    )


# -- parts of a study's page -----------------------------------------------------------------------


def heading(study: LiveStudy, seen: Seen, run: str) -> str:
    """Name, facts and figures, and what went wrong with following the journal or a run."""
    name = str(seen.account.head.get("study") or study.name)
    text = sections.heading(seen.account, name, str(study.folder.path), seen.standing)
    faults = [study.fault]
    if run not in ("", "begun", "ended"):
        faults.append(run)
    for fault in filter(None, faults):
        text += f'<p class="fault" role="alert">{escape(fault)}</p>'
    return text


def decisions(study: LiveStudy, seen: Seen) -> str:
    """The runs, what auto chose and why, and the newest of all that was decided."""
    rows = []
    with study.lock:
        items = list(study.feed.items)
    for item in reversed(items):
        rows.append([(duration(item.time), item.time), item.who, item.text])
    newest = tables.table(["at", "who", "what"], rows)
    text = sections.setup(seen.account)
    return f'{text}<h3>The newest first</h3><div class="tall">{newest}</div>'


def failures(seen: Seen) -> str:
    """Trials that failed, and why; packs that had no room; work that was lost."""
    account = seen.account
    text = tables.failures(account) + tables.splits(account) + tables.repeated(account)
    return text or "<p>None.</p>"


def log(study: LiveStudy) -> str:
    """The ends of the study's log and of the log of runs that the page began."""
    text = ""
    for file in (study.folder.log, study.folder.path / LOG):
        tail = tail_of(file)
        if tail:
            text += f'<h3>{escape(file.name)}</h3><pre class="tall">{escape(tail)}</pre>'
    return text or "<p>Nothing was logged yet.</p>"


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
        "status": row.status,
        "score": score(row.last),
        "best": f"{score(row.best)} at epoch {number(row.best_epoch, 3)}",
        "epochs": number(row.epochs, 3),
        "training": duration(row.spent.get("train")),
        "configuration": config(row.config),
        "why it failed": row.why,
    }
    listed = ""
    for key, text in facts.items():
        if text:
            listed += f"<dt>{key}</dt><dd>{escape(text)}</dd>"
    file = study.folder.path / "trials" / row.id / "error.txt"
    error = tail_of(file, study.folder.path)
    if error:
        listed += f'</dl><h3>error.txt</h3><pre class="tall">{escape(error)}</pre><dl>'
    return (
        f'<div class="name"><h2>{escape(row.id)}</h2>{_close()}</div><dl>{listed}</dl>'
        f"{_does(row, exact(row.id))}{_clone_form(row, exact(row.id))}"
    )


def _close() -> str:
    return '<button type="button" data-do="close" aria-label="close">&#10005;</button>'


def _does(row: TrialRow, name: str) -> str:
    """Stopping and extending, where they are possible."""
    text = ""
    if row.status in OPEN:
        text += (
            f'<p class="controls"><button type="button" data-do="stop" data-trial="{name}">'
            "Stop</button><span>takes it out; its durable state stays</span></p>"
        )
    if row.status in ENDED_WELL:
        text += (
            f'<form class="controls" data-form="extend" data-trial="{name}">'
            '<label>train for <input name="max_epochs" type="number" min="1" step="1" required>'
            ' epochs in all</label> <button type="submit">Extend</button></form>'
        )
    return text


def _clone_form(row: TrialRow, name: str) -> str:
    """A form that makes a copy with other values."""
    return (
        f'<form data-form="clone" data-trial="{name}"><h3>A copy with other values</h3>'
        f"{_fields({key: repr(item) for key, item in row.config.items()})}"
        '<p class="controls"><label>epochs in all <input name="max_epochs" type="number" '
        'min="1" step="1" placeholder="as this one"></label>'
        '<label><input type="checkbox" name="cold"> cold: from the beginning, without its '
        'weights</label> <button type="submit">Copy</button></p></form>'
    )


def new_trial(seen: Seen) -> str:
    """A form that adds a trial of one's own."""
    names: dict[str, str] = {}
    for row in seen.ranked[:1]:
        names = {key: repr(item) for key, item in row.config.items()}
    return (
        f'<div class="name"><h2>Add a trial</h2>{_close()}</div>'
        f'<form data-form="add">{_fields(names)}<p class="controls"><label>epochs '
        '<input name="max_epochs" type="number" min="1" step="1" '
        'placeholder="the recipe\'s"></label> <button type="submit">Add</button></p></form>'
    )


def _fields(values: Mapping[str, str]) -> str:
    """A field for each value of a configuration."""
    text = ""
    for key, item in values.items():
        shown = f'value="{exact(item)}"'
        if item == repr(MASK):  # empty, and left out of what is sent unless somebody fills it
            shown = 'data-secret placeholder="not shown"'
        text += (
            f'<label><span>{escape(key)}</span><input data-value="{exact(key)}" '
            f'{shown} autocomplete="off" spellcheck="false"></label>'
        )
    return f'<div class="fields">{text}</div>'


# -- the list of studies ---------------------------------------------------------------------------


def studies(found: Iterable[tuple[LiveStudy, Seen, Seconds]]) -> str:
    """The studies with how they stand. The seconds: since each journal last grew."""
    rows = []
    for study, seen, quiet in found:
        rows.append(_study_row(study, seen, quiet))
    heads = ["study", "state", "trials", "best", "last news", "ago"]
    return tables.table(heads, rows)


def _study_row(study: LiveStudy, seen: Seen, quiet: Seconds) -> list[object]:
    """One study's row."""
    from_here = quote(study.name, safe="")
    link = f'<a href="/?study={from_here}">{escape(study.name)}</a>'
    kind = CHIPS.get(seen.standing.partition(":")[0], "")
    state = escape(sections.MEANING.get(seen.standing, seen.standing))
    news = study.fault
    if not news and study.feed.items:
        news = study.feed.items[-1].text
    return [
        (link, study.name, "html"),
        (f'<span class="chip {kind}">{state}</span>', state, "html"),
        (f"{len(seen.account.trials):,}", len(seen.account.trials)),
        _best(seen.account),
        news[:120],
        (duration(max(0, round(quiet))), quiet),
    ]


def _best(account: Account) -> str:
    """The study's best score; that of each recipe, where each has its own metric."""
    if account.by_recipe:
        own = {name: _best(each) for name, each in account.by_recipe.items()}
        return "; ".join(f"{name}: {shown}" for name, shown in own.items() if shown)
    best = account.best()
    if best is None:
        return ""
    return f"{account.metric} {score(best.last)} · {best.id}"
