"""The tables of the profile's figures, of what the policy cost, and of what feeders did."""

from collections.abc import Mapping
from typing import Any

from shoal.core.profile import SHARED
from shoal.reporting.facts.bars import waiting
from shoal.reporting.facts.format import (
    DASH,
    config,
    count,
    duration,
    escape,
    plural,
    share,
    signed,
    size,
)
from shoal.reporting.facts.metrics import Account, given_rows
from shoal.reporting.facts.rows import first_config
from shoal.reporting.lines import rescales_line
from shoal.reporting.packing import FUSED
from shoal.reporting.tables import SHOWN, details, folded, table

GIB = 2**30
UNITS = {"rate": "samples/s"}  # of figures that are no seconds
FIRST = ("rate",)
THEN = (
    "step",
    "memory",
    "transient",
    "crowded",
    "model",
    "batch",
    "build",
    "first",
    "evaluate",
    "save",
    "switch",
    "repack",
)
CHANGES = 200  # of width that the page lists
CHANGE_HEADS = (
    "at",
    "trial",
    "slots",
    "stood still",
    "samples/s before",
    "samples/s after",
    "saved",
)
TEXT = (
    "<p>Trials of one signature (model, optimizer, batch size, precision) share these figures.</p>"
)
# What a share is a part of; the others are of slot time.
OF = {"deciding": "run time", "profiling": "run time"}
TOGETHER = (
    "<p>The trials that the policy started at one moment, and how long they ran until they ended "
    "or got other slots.</p>"
)

FEEDER_HEADS = (
    "run",
    "node",
    "feeders",
    "chunks made",
    "received",
    "handed out",
    "not ready",
    "waited",
    "processor time",
    "ahead",
    "held",
)
FEEDER_TEXT = (
    "<p>Data that takes work to prepare was prepared once for all slots of a node. "
    "Received: chunks that another node made. "
    "Not ready: chunks that a slot asked for before they were made, "
    "and how long slots waited for them, all together. "
    "Ahead: samples made before they were asked for, at most. "
    "Held: for slots that come later, at most.</p>"
)


def overhead(account: Account) -> str:
    """What deciding, profiling, checkpointing, waiting and changes of width took.

    For flotillas also how long they ran.
    """
    if not account.use:
        return ""
    rows = []
    for name, part in account.shares.items():
        rows.append([name, OF.get(name, "slot time"), (share(part, 1.0), part)])
    text = table(["what", "of", "share"], rows) + _idle(account) + _waiting(account)
    formed = []
    for each in account.overhead.formed:
        deviation = "–"
        if len(each.trials) > 1:
            deviation = duration(each.deviation)
        formed.append(
            [
                (duration(each.start), each.start),
                (str(len(each.trials)), len(each.trials)),
                (str(each.slots), each.slots),
                (duration(each.mean), each.mean),
                (deviation, each.deviation),
            ]
        )
    if formed:
        heads = ["started at", "trials", "slots", "ran, mean", "deviation"]
        whole = table(heads, formed)
        if len(formed) > SHOWN:
            whole = details(f"all {len(formed):,} times", whole)
        text += "<h3>Started together</h3>" + TOGETHER + whole
    return text + _rescales(account)


def _rescales(account: Account) -> str:
    """What each change of a running trial's width cost and gained; nothing if there was none."""
    changes = account.rescales
    if not changes:
        return ""
    rows = []
    for each in sorted(changes, key=lambda each: -abs(each.saved or 0.0))[:CHANGES]:
        rows.append(
            [
                (duration(each.time), each.time),
                each.trial,
                (f"{each.before} → {each.after}", each.after - each.before),
                (duration(each.stood), each.stood),
                (count(each.old_rate), each.old_rate),
                (count(each.new_rate), each.new_rate),
                (signed(each.saved), each.saved),
            ]
        )
    text = f"<h3>Changes of width</h3><p>{rescales_line(changes)}.</p>"
    title = plural(len(changes), "change")
    if len(rows) < len(changes):
        title = f"the {len(rows)} of {title} that saved or lost most"
    return text + folded(title, table(CHANGE_HEADS, rows, sortable=True), len(rows))


def _idle(account: Account) -> str:
    """What idle slots waited for; nothing if none was idle."""
    whole = sum(account.used.values())
    rows = [
        [why, (duration(length), length), (share(length, whole), length)]
        for why, length in account.idle.items()
    ]
    if not rows:
        return ""
    heads = ["idle slots", "slot time", "share"]
    return details("what idle slots waited for", table(heads, rows))


def _waiting(account: Account) -> str:
    """How long each slot waited."""
    rows = []
    for slot, seconds in waiting(account.use).items():
        rows.append([str(slot), (duration(seconds), seconds)])
    return details("waiting of each slot", table(["slot", "waited"], rows))


def measured(account: Account) -> str:
    """The figures of the profile: those given, and those measured, a line for each signature."""
    return given(account) + _measured(account)


def given(account: Account) -> str:
    """The figures that the last run was given, a line for each kind of trial.

    Nothing if the run was given none.
    """
    rows = given_rows(account.head)
    if not rows:
        return ""

    names = list(dict.fromkeys(name for _, figures in rows for name in figures))
    cells = []
    for values, figures in rows:
        kind = config(values, 60) or "any other"
        cells.append([kind, *_cells(names, figures)])

    by = ""
    path = account.head.get("profile")
    if path:
        by = f" by <code>{escape(str(path))}</code>"
    rest = "Nothing was measured."
    if account.figures:
        rest = "What it leaves open was measured."
    text = f"<p>Given{by}, and believed instead of what is measured. {rest}</p>"
    return text + table(["trials", *map(_named, names)], cells)


def _measured(account: Account) -> str:
    """A line for each signature; nothing if nothing was measured."""
    if not account.figures:
        return ""

    names = _names(account)
    trials_of = account.by_signature()
    rows = []
    for signature, figures in account.figures.items():
        own = trials_of.get(signature, ())
        first = [
            (f"<code>{escape(signature)}</code>", signature, "html"),
            (str(len(own)), len(own)),
            first_config(own, 60),
        ]
        rows.append([*first, *_cells(names, figures)])

    heads = ["signature", "trials", "for example", *map(_named, names)]
    whole = table(heads, rows, sortable=True)
    if len(rows) > SHOWN:
        whole = details(f"all {len(rows):,} signatures", whole)
    return TEXT + whole


def _names(account: Account) -> list[str]:
    """The names of the figures, in the order of the columns."""
    seen = set()
    for figures in account.figures.values():
        for name in figures:
            if not name.startswith(FUSED) and name not in ("unfusable", "rings"):
                seen.add(name)

    widths = [name for name in seen if name.startswith("rate@")]
    widths.sort(key=lambda name: int(name.removeprefix("rate@")))
    order = (*FIRST, *widths, *THEN)
    known = [name for name in order if name in seen]
    return known + sorted(seen.difference(order))


def _cells(names: list[str], figures: Mapping[str, float]) -> list[tuple[str, Any]]:
    """One cell for each of the names."""
    cells = []
    for name in names:
        figure = figures.get(name)
        cells.append((_shown(name, figure), figure))
    return cells


def _named(name: str) -> str:
    """A figure's name, with its unit where it is not a time."""
    unit = UNITS.get(name.partition("@")[0])
    if unit is None:
        return name
    return f"{name} ({unit})"


def _shown(name: str, figure: float | None) -> str:
    """A figure as text, in its unit; a dash for None."""
    if name == "summed" and figure is not None:
        return f"{figure:.2f}"
    if figure is None or name in ("batch", "batch_size") or name.partition("@")[0] in UNITS:
        return count(figure)
    if "bytes" in name:
        return size(figure)
    sizes = ("memory", "transient", "crowded", "model")
    if name.startswith(SHARED) or name in sizes:
        return size(figure * GIB)
    return duration(figure)


def feeders(account: Account) -> str:
    """What the processes did that prepare data for the slots of a node, run by run.

    Nothing if there were none.
    """
    rows = []
    for (run, node), figures in account.feeders.items():
        rows.append([(str(run), run), node, *_feeder_cells(figures)])
    if not rows:
        return ""
    return FEEDER_TEXT + table(FEEDER_HEADS, rows, sortable=True)


def _feeder_cells(figures: Mapping[str, float]) -> list[tuple[str, float]]:
    """The figures of one node in one run, in the order of the table's heads."""
    late = DASH
    if figures["served"]:
        late = share(figures["waits"], figures["served"])
    shown = {
        "feeders": str(int(figures["feeders"])),
        "made": count(figures["made"]),
        "received": _received(figures),
        "served": count(figures["served"]),
        "waits": late,
        "waited": duration(figures["waited"]),
        "cpu": duration(figures["cpu"]),
        "ahead": count(figures["ahead"]),
        "bytes": size(figures["bytes"]),
    }
    return [(text, figures.get(name, 0.0)) for name, text in shown.items()]


def _received(figures: Mapping[str, float]) -> str:
    """Chunks that came from another node, and what was sent."""
    if not figures.get("received"):
        return "0"
    return f"{count(figures['received'])} ({size(figures['received_bytes'])})"
