"""The parts of the report's page beside its tables, as HTML. Every text that comes from the journal is escaped."""

import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import PurePath
from typing import Any

from shoal.report.format import count, described, duration, number, plural, score, share, size, value
from shoal.report.metrics import Account
from shoal.report.palette import CAUSES
from shoal.report.tables import table


def heading(account: Account, name: str, folder: str | None) -> str:
    """The study's name, what it was, and its figures at a glance."""
    head = account.head
    recipe = head.get("recipe")
    file = recipe.get("file") if isinstance(recipe, Mapping) else None
    goal = f"{'highest' if account.mode == 'max' else 'lowest'} {account.metric}" if account.metric else ""
    facts = {
        "recipe": described({"name": recipe.get("name")}) + (f" in {PurePath(str(file)).name}" if file else "")
        if isinstance(recipe, Mapping)
        else described(recipe),
        "wanted": goal,
        "searcher": described(head.get("searcher")),
        "policy": described(head.get("policy")) + (f": {choice.follows}" if (choice := account.choice) else ""),
        "backend": described(head.get("backend")) + (", simulated" if _simulated(account) else ""),
        "started": _date(described(head.get("started") or head.get("date"))),
        "folder": folder or "",
    }
    told = "".join(f"<span><i>{key}</i> {escape(text)}</span>" for key, text in facts.items() if text)
    status = account.status
    kind = status.partition(":")[0]
    meaning = "at work, or cut off" if status == "open" else "no trials" if status == "empty" else status
    return (
        f'<header><div class="name"><h1>{escape(name)}</h1><span class="chip {escape(kind)}">{escape(meaning)}</span></div>'
        f'<p class="facts">{told}</p><div class="tiles">{_tiles(account)}</div></header>'
    )


def _simulated(account: Account) -> bool:
    return account.head.get("backend") == "sim" or bool(account.head.get("simulated"))


def _date(text: str) -> str:
    """2026-03-02T14:05:11+00:00 as 2026-03-02 14:05 UTC; anything else as it is."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|\+00:00)?", text)
    return f"{found[1]} {found[2]}{' UTC' if found[3] else ''}" if found else text


def _tiles(account: Account) -> str:
    best, counts, used = account.best(), account.count(), account.used
    whole = sum(used.values())
    tiles: list[tuple[str, str, str]] = []
    if account.metric and best is not None:
        tiles.append((f"best {account.metric}", score(best.last), f"trial {best.id}, after {_epochs(best.epochs)}"))
    elif account.metric:
        tiles.append((f"best {account.metric}", "–", "no trial has a score"))
    states = " · ".join(f"{n} {status}" for status, n in counts.items() if n)
    tiles.append(("trials", f"{len(account.trials):,}", states or "none was submitted"))
    tiles.append(("time", duration(account.seconds), plural(len(account.runs), "run")))
    tiles.append(
        (
            "slots",
            str(len(account.use)),
            f"{share(used['train'], whole)} of slot time in training" if whole else "none was there",
        )
    )
    rate = account.throughput
    tiles.append(("samples trained", count(account.trained), f"{count(rate)} a second" if rate else ""))
    lost = sum(row.repeated.samples for row in account.trials)
    tiles.append(
        (
            "repeated work",
            share(lost, account.trained) if lost else "none",
            f"{count(lost)} samples" if lost else "nothing was lost",
        )
    )
    return "".join(
        f'<div class="tile"><b>{escape(label)}</b><strong>{escape(figure)}</strong><small>{escape(note)}</small></div>'
        for label, figure, note in tiles
    )


def _epochs(epochs: float | None) -> str:
    return "an unknown number of epochs" if epochs is None else f"{number(epochs, 3)} epoch{'' if epochs == 1 else 's'}"


def curves(drawings: Sequence[Mapping[str, Any]]) -> str:
    """The place of the learning curves, with what chooses among them."""
    if not drawings:
        return "<p>No value was recorded.</p>"
    options = "".join(f'<option value="{n}">{escape(item["name"])}</option>' for n, item in enumerate(drawings))
    return (
        f'<p class="controls"><label>value <select id="curve-name">{options}</select></label>'
        '<label>over <select id="curve-x"><option>epochs</option><option>time</option></select></label>'
        '<label><input type="checkbox" id="curve-log"> log axis</label><span id="curve-note"></span></p>'
        '<div class="drawing" id="curves-drawing" data-drawing="curves"></div>'
    )


def slots(account: Account, bars: Sequence[int] | None, used: bool) -> str:
    """The place of the Gantt chart, and the use of the slots."""
    if bars is None:
        return "<p>No slot was ever there.</p>"
    capped = (
        f" Of {bars[0]:,} intervals {bars[1]:,} bars are drawn: short neighbours as one, in the colour of most of their time."
        if bars[1] < bars[0]
        else ""
    )
    hops, moved = sum(row.hops for row in account.trials), sum(row.moved for row in account.trials)
    went = (
        f" Trials moved {plural(hops, 'time')} to other slots" + (f", with {size(moved)} of state." if moved else ".")
        if hops
        else ""
    )
    text = f"<p>A lane for each slot, coloured by trial; drag to zoom, double-click to see all.{escape(capped)}{escape(went)}</p>"
    chart = '<div class="drawing" data-drawing="gantt"></div>'
    return (
        text
        + chart
        + ('<h3>Use of each slot</h3><div class="drawing" data-drawing="use"></div>' + _causes(account) if used else "")
    )


def _causes(account: Account) -> str:
    used = account.used
    whole = sum(used.values())
    rows = [
        [cause.label, (duration(used[cause.kind]), used[cause.kind]), (share(used[cause.kind], whole), used[cause.kind])]
        for cause in CAUSES
        if used[cause.kind]
    ]
    return f"<details><summary>slot time by cause</summary>{table(['cause', 'slot time', 'share'], rows)}</details>"


def configs(account: Account, lines: Any, dots: Any) -> str:
    """The places of the drawings of configuration against score."""
    if lines is None and dots is None:
        return ""
    failed = any(row.status == "failed" for row in account.trials)
    crosses = " Crosses are trials that failed, without a score." if failed else ""
    text = (
        "<p>Every line is a trial; drag along an axis to pick a range.</p>"
        + '<div class="drawing" data-drawing="parallel"></div>'
    )
    spread = f'<p>The star is the best trial.{crosses}</p><div class="drawing" data-drawing="scatter"></div>'
    return (text if lines is not None else "") + (spread if dots is not None else "")


def setup(account: Account) -> str:
    """The runs, what the automatic policy chose, the options and the versions."""
    rows = [[(str(n), n), (duration(a), a), (duration(b), b), (duration(b - a), b - a), how] for n, a, b, how in account.runs]
    runs = table(["run", "from", "to", "took", "how it ended"], rows) if len(rows) > 1 else ""
    known = ("study", "metric", "mode", "space")
    facts = {key: _flat(item) for key, item in account.head.items() if key not in known and item not in (None, "", {})}
    listed = "".join(f"<dt>{escape(str(key))}</dt><dd>{escape(text)}</dd>" for key, text in facts.items())
    chosen = [[(duration(c.time), c.time), c.follows, c.why] for c in account.choices]
    choices = "<h3>What auto followed</h3>" + table(["from", "policy", "because"], chosen) if chosen else ""
    made = f"<p>Made from the journal alone: {plural(account.entries, 'entry').replace('entrys', 'entries')}.</p>"
    said = f"<details><summary>options and versions</summary><dl>{listed}</dl></details>" if listed else ""
    return runs + choices + said + made


def _flat(item: Any) -> str:
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {_flat(part)}" for key, part in item.items() if part is not None)
    return value(item)


def following(account: Account, folder: str | None) -> str:
    """Commands for the study's folder, and how to get at the models."""
    if folder is None or _simulated(account):
        return ""
    at = shlex.quote(folder)
    going_on = account.status != "finished"
    best = account.best()
    commands = [
        *([(f"shoal resume {at}", "go on where the last run ended")] if going_on else []),
        (f"shoal status {at}", "how it stands, also while it runs"),
        *(
            [(f"shoal replay {at} --trial {shlex.quote(best.id)}", "train the best trial again from its record, and compare")]
            if best
            else []
        ),
        (f"shoal report {at}", "write this page again"),
    ]
    shell = "".join(f"<tr><td><code>{escape(command)}</code></td><td>{escape(what)}</td></tr>" for command, what in commands)
    python = f"import shoal\n\nstudy = shoal.load_study({folder!r})\n"
    python += "study.best_trial.config\nmodel = study.best_model()\n" if best else ""
    python += "frame = study.trials_dataframe()\n"
    return f'<table class="commands"><tbody>{shell}</tbody></table><pre>{escape(python)}</pre>'
