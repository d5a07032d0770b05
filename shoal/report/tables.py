"""The tables of the report's page, as HTML. Every text that comes from the journal is escaped."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from shoal.report.format import config, count, duration, number, plural, score, share, size, value
from shoal.report.metrics import Account, TrialRow, given_rows
from shoal.report.palette import painted_by
from shoal.report.params import Parameter

SHOWN = 20  # rows shown at once: of trials the best, of others all or, folded away, more
UNITS = {"rate": "samples/s"}


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], sortable: bool = False) -> str:
    """A table. A cell is a text, or (what is shown, what it sorts by), or (HTML, key, "html"). Columns of numbers stand right."""
    body = [[cell if isinstance(cell, tuple) else (cell, cell) for cell in row] for row in rows]
    right = [all(not isinstance(row[n][1], str) for row in body) for n in range(len(heads))]
    top = "".join(f'<th scope="col"{_side(right[n])}>{escape(text)}</th>' for n, text in enumerate(heads))
    lines = "".join(f"<tr>{''.join(_cell(cell, right[n]) for n, cell in enumerate(row))}</tr>" for row in body)
    kind = ' class="sortable"' if sortable else ""
    return f'<div class="wide"><table{kind}><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _side(right: bool) -> str:
    return ' class="r"' if right else ""


def _cell(cell: Sequence[Any], right: bool) -> str:
    text = cell[0] if len(cell) > 2 else escape(str(cell[0]))
    key = "" if cell[1] is None else escape(str(cell[1]))
    return f'<td{_side(right)} data-k="{key}">{text}</td>'


def trials(account: Account, varying: Sequence[Parameter], same: Mapping[str, str]) -> str:
    """The best trials, and all of them folded away."""
    if not account.trials:
        return "<p>No trial was submitted.</p>"
    ranked = account.ranked()
    note = f"<p>The same in all trials: {escape(config(same))}.</p>" if same and len(account.trials) > 1 else ""
    names = [parameter.name for parameter in varying] + ([] if len(account.trials) > 1 else list(same))
    first = _trial_table(account, ranked[:SHOWN], names)
    if len(ranked) <= SHOWN:
        return note + first
    return f"{note}{first}<details><summary>all {len(ranked):,} trials</summary>{_trial_table(account, ranked, names)}</details>"


def _trial_table(account: Account, rows: Sequence[TrialRow], names: Sequence[str]) -> str:
    painted = painted_by(account)
    place = {row.id: n for n, row in enumerate(account.ranked(), 1)}
    scored = [account.metric, "best", "at epoch"] if account.metric else []
    more = _asked(account)
    heads = ["#", "trial", *scored, *names, *more, "epochs", "training", "from", "status"]
    return table(heads, [_trial_cells(account, row, names, more, painted[row.id], place[row.id]) for row in rows], sortable=True)


def _asked(account: Account) -> dict[str, Callable[[TrialRow], tuple[str, Any]]]:
    """What was asked for beside the configuration, where it is not as usual in all trials."""
    found: dict[str, Callable[[TrialRow], tuple[str, Any]]] = {}
    if any(row.widths != (1, 1) for row in account.trials):
        found["slots"] = lambda row: ("–".join(map(str, dict.fromkeys(row.widths))), row.widths[1])
    if any(row.priority != 1.0 for row in account.trials):
        found["priority"] = lambda row: (number(row.priority), row.priority)
    return found


def _trial_cells(
    account: Account,
    row: TrialRow,
    names: Sequence[str],
    more: Mapping[str, Callable[[TrialRow], tuple[str, Any]]],
    colour: str,
    place: int,
) -> list[Any]:
    scores = [(score(row.last), row.last), (score(row.best), row.best), (number(row.best_epoch, 3), row.best_epoch)]
    missing = object()
    values = [row.config.get(name, missing) for name in names]
    return [
        (str(place), place),
        (f'<i class="dot" style="background:{colour}"></i>{escape(row.id)}', str(row.id), "html"),
        *(scores if account.metric else []),
        *(("–", None) if item is missing else _config_cell(item) for item in values),
        *(cell(row) for cell in more.values()),
        (_done(row), row.epochs),
        (duration(row.spent.get("train")), row.spent.get("train")),
        (duration(row.start), row.start),
        (f'<span class="chip {row.status}">{row.status}</span>', row.status, "html"),
    ]


def _config_cell(item: Any) -> tuple[str, Any]:
    plain = isinstance(item, (int, float)) and not isinstance(item, bool)
    return (number(item), item) if plain else (value(item), value(item))


def _done(row: TrialRow) -> str:
    if row.epochs is None:
        return f"{count(row.samples)} samples"
    if row.status in ("running", "waiting") and row.samples:
        return f"{number(row.epochs, 3)} of {number(row.epochs * row.asked / row.samples, 3)}"
    return number(row.epochs, 3)


def failures(account: Account) -> str:
    """Which trials failed, and why; equal reasons together. Nothing if none did."""
    failed = [row for row in account.trials if row.status == "failed"]
    if not failed:
        return ""
    reasons: dict[str, list[TrialRow]] = {}
    for row in failed:
        reasons.setdefault(row.why or "no reason given", []).append(row)
    lines = "".join(
        f"<li><b>{escape(plural(len(rows), 'trial'))}</b>: <code>{escape(why)}</code></li>"
        for why, rows in sorted(reasons.items(), key=lambda item: -len(item[1]))
    )
    cells = [
        [
            row.id,
            row.why or "no reason given",
            (number(row.epochs, 3), row.epochs),
            (duration(row.end), row.end),
            config(row.config, 90),
        ]
        for row in failed
    ]
    whole = table(["trial", "why", "epochs", "at", "configuration"], cells, sortable=True)
    title = plural(len(failed), "failed trial")
    return f'<ul class="reasons">{lines}</ul><details{_open(len(failed))}><summary>{title}</summary>{whole}</details>'


def _open(rows: int) -> str:
    return " open" if rows <= SHOWN else ""


def splits(account: Account) -> str:
    """Which packs ran out of memory, when, and what their trials are believed to need since. Nothing if none did."""
    if not account.splits:
        return ""
    cells = [
        [
            (duration(split.time), split.time),
            ", ".join(split.trials),
            split.why,
            "; ".join(f"{signature}: {size(need * 2**30)}" for signature, need in split.needs.items()) or "not known",
        ]
        for split in account.splits
    ]
    text = f"<p>{escape(plural(len(cells), 'pack'))} had no room: split, and gone on with in smaller packs.</p>"
    return text + table(["at", "trials", "why", "each trial's memory, by signature, since"], cells, sortable=True)


def feeders(account: Account) -> str:
    """What the processes did that prepare data for the slots of a node, run by run. Nothing if there were none."""
    rows = [
        [
            (str(run), run),
            node,
            (str(int(f["feeders"])), f["feeders"]),
            (count(f["made"]), f["made"]),
            (count(f["served"]), f["served"]),
            (share(f["waits"], f["served"]) if f["served"] else "–", f["waits"]),
            (duration(f["waited"]), f["waited"]),
            (duration(f["cpu"]), f["cpu"]),
            (count(f["ahead"]), f["ahead"]),
            (size(f["bytes"]), f["bytes"]),
        ]
        for (run, node), f in account.feeders.items()
    ]
    if not rows:
        return ""
    heads = ["run", "node", "feeders", "chunks made", "handed out", "not ready", "waited", "processor time", "ahead", "held"]
    text = (
        "<p>Data that takes work to prepare was prepared once for all slots of a node. Not ready: chunks that a slot asked for "
        "before they were made, and how long slots waited for them, all together. Ahead: samples made before they were asked "
        "for, at most. Held: for slots that come later, at most.</p>"
    )
    return text + table(heads, rows, sortable=True)


def repeated(account: Account) -> str:
    """What was trained and then lost, trial by trial. Nothing if nothing was."""
    rows = [row for row in account.trials if row.repeated.falls]
    if not rows:
        return ""
    total = sum(row.repeated.samples for row in rows)
    text = (
        f"<p>{escape(plural(len(rows), 'trial'))} went back to a durable state: {count(total)} samples, "
        f"{share(total, account.trained)} of all that was trained, were void.</p>"
    )
    cells = [
        [
            row.id,
            (str(v.falls), v.falls),
            (str(v.visits), v.visits),
            (count(v.samples), v.samples),
            (duration(v.seconds), v.seconds),
        ]
        for row in sorted(rows, key=lambda row: -row.repeated.samples)
        for v in [row.repeated]
    ]
    body = table(["trial", "times", "visits void", "samples void", "slot time void"], cells, sortable=True)
    return f"{text}<details{_open(len(rows))}><summary>by trial</summary>{body}</details>"


def packs(account: Account) -> str:
    """What packing gained on this machine, by signature and number of trials. Nothing if none were tried.

    Liu et al. 2020: improvement IMPV (eq. 3) against the same trials one after the other, and what a switch costs (eq. 4).
    """
    rows: list[list[Any]] = []
    shared = account.chart.shared
    for signature, figures in account.figures.items():
        having = [row for row in account.trials if row.signature == signature]
        first = [(f"<code>{escape(signature)}</code>", signature, "html"), config(having[0].config, 60) if having else ""]
        step, switch = figures.get("step"), figures.get("switch", figures.get("build"))
        last = [(duration(seconds), seconds) for seconds in (switch, figures.get("repack"))]
        wait = figures.get("data", 0.0) * figures.get("rate", 0.0) * (step or 0.0)  # of a batch for its data
        if "unfusable" in figures and step:
            rows.append([*first, ("1", 1), (duration(step + wait), step + wait), ("steps cannot be fused", None), *last])
        together = {f"{name[6:]} in a step": (int(name[6:]), took) for name, took in figures.items() if name.startswith("fused:")}
        if step and wait and shared:
            together |= {f"{width} in turn": (width, width * step) for width in {2, *(width for width, _ in together.values())}}
        for told, (width, took) in sorted(together.items(), key=lambda each: each[1][0]):
            gain = 1.0 - (took + wait) / (width * (step + wait)) if step else None
            impv = "–" if gain is None else f"{100 * gain:+.0f} %"
            rows.append([*first, (told, width), (duration(took + wait), took + wait), (impv, gain), *last])
    if not rows:
        return ""
    heads = ["signature", "for example", "trials together", "seconds a step", "IMPV", "seconds a switch", "seconds a re-packing"]
    text = (
        "<p>Trials that share a slot share its chunks of data, and wait for them once; they take turns, or those of one graph "
        "train in one step. IMPV: the part of the time saved against training them one after the other, by what was measured on "
        "their own first steps, the wait for data included; where a common step does not take 3 % less than theirs, the wait "
        "aside, they take turns. A switch: to put a trial's state onto a slot, as between trials that are not packed. A "
        "re-packing: to fuse the trials of a pack anew when one came or went.</p>"
    )
    body = table(heads, rows, sortable=True)
    return f"{text}<details{_open(len(rows))}><summary>{plural(len(rows), 'way')} to train them</summary>{body}</details>"


def given(account: Account) -> str:
    """The figures that the last run was given, a line for each kind of trial; nothing if it was given none."""
    rows = given_rows(account.head)
    if not rows:
        return ""
    names = list(dict.fromkeys(name for _, figures in rows for name in figures))
    cells = [
        [config(values, 60) or "any other", *((_figure(name, figures.get(name)), figures.get(name)) for name in names)]
        for values, figures in rows
    ]
    path = account.head.get("profile")
    by = f" by <code>{escape(str(path))}</code>" if path else ""
    rest = "What it leaves open was measured." if account.figures else "Nothing was measured."
    return f"<p>Given{by}, and believed instead of what is measured. {rest}</p>{table(['trials', *map(_named, names)], cells)}"


def measured(account: Account) -> str:
    """The figures of the profile: those given, and those measured, a line for each signature."""
    return given(account) + _measured(account)


def _measured(account: Account) -> str:
    if not account.figures:
        return ""
    seen = {name for figures in account.figures.values() for name in figures if name[:6] != "fused:" and name != "unfusable"}
    widths = sorted((name for name in seen if name.startswith("rate@")), key=lambda name: int(name[5:]))
    order = ("rate", *widths, "step", "memory", "crowded", "build", "first", "evaluate", "save", "switch", "repack")
    names = [name for name in order if name in seen] + sorted(seen - set(order))
    rows = []
    for signature, figures in account.figures.items():
        having = [row for row in account.trials if row.signature == signature]
        example = config(having[0].config, 60) if having else ""
        cells = [(_figure(name, figures.get(name)), figures.get(name)) for name in names]
        rows.append([(f"<code>{escape(signature)}</code>", signature, "html"), (str(len(having)), len(having)), example, *cells])
    heads = ["signature", "trials", "for example", *map(_named, names)]
    text = "<p>Trials of one signature (model, optimizer, batch size, precision) share these figures.</p>"
    if len(rows) <= SHOWN:
        return text + table(heads, rows, sortable=True)
    return f"{text}<details><summary>all {len(rows):,} signatures</summary>{table(heads, rows, sortable=True)}</details>"


def _named(name: str) -> str:
    """A figure's name, with its unit where it is no time."""
    unit = UNITS.get(name.partition("@")[0])
    return f"{name} ({unit})" if unit else name


def _figure(name: str, figure: float | None) -> str:
    if name == "batch_size" and figure is not None:
        return count(figure)
    if "bytes" in name and figure is not None:
        return size(figure)
    if name in ("memory", "crowded") and figure is not None:
        return size(figure * 2**30)
    return count(figure) if name.partition("@")[0] in UNITS or figure is None else duration(figure)
