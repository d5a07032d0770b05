"""The parts of the report's page beside its plain tables, as HTML.

Every text that comes from the journal is escaped.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from shoal.core.profile import SHARED
from shoal.core.trial import Seconds
from shoal.reporting.accounting import BEST, Account, given_rows
from shoal.reporting.charts import CAUSES
from shoal.reporting.facts import rescales_line
from shoal.reporting.format import (
    DASH,
    config,
    count,
    described,
    duration,
    escape,
    number,
    plural,
    score,
    share,
    signed,
    size,
    value,
)
from shoal.reporting.gantt import waiting
from shoal.reporting.harvest import Yield, hours
from shoal.reporting.tables import SHOWN, Cell, details, folded, table
from shoal.reporting.tally import first_config

# A status in words.
MEANING = {
    "open": "at work, or cut off",
    "empty": "no trials",
    "added": "finished; trials were added since",
}
DATE = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|\+00:00)?")
KNOWN = (
    "study",
    "metric",
    "mode",
    "space",
    "marks",
)  # parts of the head that stand elsewhere on the page

# -- the heading -----------------------------------------------------------------------------------


def heading(account: Account, name: str, folder: str | None, status: str | None = None) -> str:
    """Name, facts and figures of the study. `status`: as the journal says, unless given."""
    status = status or account.status
    kind = escape(status.partition(":")[0])
    chip = f'<span class="chip {kind}">{escape(MEANING.get(status, status))}</span>'

    facts = ""
    for key, text in _facts(account, folder).items():
        if text:
            facts += f"<span><i>{key}</i> {escape(text)}</span>"
    return (
        f'<header><div class="name"><h1>{escape(name)}</h1>{chip}</div>'
        f'<p class="facts">{facts}</p><div class="tiles">{_tiles(account)}</div></header>'
    )


def _facts(account: Account, folder: str | None) -> dict[str, str]:
    """What the study was, by name; texts may be empty."""
    head = account.head
    policy = described(head.get("policy"))
    choice = account.choice
    if choice is not None:
        policy += f": {choice.follows}"
    backend = described(head.get("backend"))
    if _simulated(account):
        backend += ", simulated"
    return {
        "recipe": _recipe(head.get("recipe")),
        "wanted": account.goal,
        "searcher": described(head.get("searcher")),
        "policy": policy,
        "backend": backend,
        "started": _date(described(head.get("started") or head.get("date"))),
        "folder": folder or "",
    }


def since(account: Account, folder: str | None) -> str:
    """What the page is of, if that is not the whole journal."""
    if account.since is None:
        return ""
    counted = account.entries - account.since.entries
    text = (
        f"The journal has {account.entries:,} entries. Trials, their scores and their samples are "
        f"of all of them; slots, what trials spent there, hops, repeated work and training values "
        f"are of the newest {counted:,}, from {duration(account.since.time)} on."
    )
    if folder:
        text += f" shoal report {shlex.quote(folder)} --whole reads all, which takes longer."
    return f'<div class="since"><p>{escape(text)}</p></div>'


def sampled(account: Account, some: Account) -> str:
    """Which trials are drawn and listed, if these are not all."""
    if some is account:
        return ""
    return (
        f"<p>Of {len(account.trials):,} trials, {len(some.trials):,} are listed and drawn here and "
        f"below: the best {BEST:,}, and others spread evenly over the ranks.</p>"
    )


def _recipe(recipe: Any) -> str:
    """The recipe's name, and the file that it is in."""
    if not isinstance(recipe, Mapping):
        return described(recipe)
    text = described({"name": recipe.get("name")})
    if recipe.get("file"):
        text += f" in {PurePath(str(recipe['file'])).name}"
    return text


def _simulated(account: Account) -> bool:
    """Whether the study ran in virtual time."""
    return account.head.get("backend") == "sim" or bool(account.head.get("simulated"))


def _date(text: str) -> str:
    """2026-03-02T14:05:11+00:00 as 2026-03-02 14:05 UTC; anything else as it is."""
    found = DATE.fullmatch(text)
    if found is None:
        return text
    date = f"{found[1]} {found[2]}"
    if found[3]:
        date += " UTC"
    return date


def _tiles(account: Account) -> str:
    """The figures at a glance."""
    tiles = (
        _best_tile,
        _trials_tile,
        _time_tile,
        _slots_tile,
        _samples_tile,
        _repeated_tile,
    )
    return "".join(tile(account) for tile in tiles)


def _time_tile(account: Account) -> str:
    """How long the runs took together."""
    runs = plural(len(account.runs), "run")
    return _tile("time", duration(account.seconds), runs)


def _tile(label: str, figure: str, note: str) -> str:
    """One figure with its name and a note."""
    return (
        f'<div class="tile"><b>{escape(label)}</b><strong>{escape(figure)}</strong>'
        f"<small>{escape(note)}</small></div>"
    )


def _best_tile(account: Account) -> str:
    """The best score; nothing where there is no metric."""
    if account.by_recipe:
        return "".join(map(_best_tile, account.by_recipe.values()))
    if not account.metric:
        return ""
    label = f"best {account.metric}"
    best = account.best()
    if best is None:
        return _tile(label, DASH, "no trial has a score")
    return _tile(label, score(best.last), f"trial {best.id}, after {_epochs(best.epochs)}")


def _trials_tile(account: Account) -> str:
    """How many trials there are, by status."""
    note = _counted(account.count()) or "none was submitted"
    return _tile("trials", f"{len(account.trials):,}", note)


def _counted(trials: Mapping[str, int]) -> str:
    """The number of trials of each status, as far as there are any."""
    return " · ".join(f"{count} {name}" for name, count in trials.items() if count)


def _slots_tile(account: Account) -> str:
    """How many slots there were, and the part of their time that went to training."""
    note = "none was there"
    whole = sum(account.used.values())
    if whole:
        note = f"{share(account.used['train'], whole)} of slot time in training"
    return _tile("slots", str(len(account.use)), note)


def _samples_tile(account: Account) -> str:
    """How many samples were trained, and how fast."""
    note = ""
    rate = account.throughput
    if rate:
        note = f"{count(rate)} a second"
    return _tile("samples trained", count(account.trained), note)


def _repeated_tile(account: Account) -> str:
    """How much work was lost."""
    lost = sum(row.repeated.samples for row in account.trials)
    if not lost:
        return _tile("repeated work", "none", "nothing was lost")
    return _tile("repeated work", share(lost, account.trained), f"{count(lost)} samples")


def _epochs(epochs: float | None) -> str:
    """A number of epochs in words."""
    if epochs is None:
        return "an unknown number of epochs"
    if epochs == 1:
        return f"{number(epochs, 3)} epoch"
    return f"{number(epochs, 3)} epochs"


# -- places of drawings ----------------------------------------------------------------------------


def curves(drawings: Sequence[Mapping[str, Any]]) -> str:
    """The place of the learning curves, with what chooses among them."""
    if not drawings:
        return "<p>No value was recorded.</p>"

    across = "<option>epochs</option><option>time</option>"
    return (
        '<p class="controls">'
        f'<label>value <select id="curve-name">{_curve_names(drawings)}</select></label>'
        f'<label>over <select id="curve-x">{across}</select></label>'
        '<label><input type="checkbox" id="curve-log"> log axis</label>'
        '<span id="curve-note"></span></p>'
        '<div class="drawing" id="curves-drawing" data-drawing="curves"></div>'
    )


def _curve_names(drawings: Sequence[Mapping[str, Any]]) -> str:
    """What one chooses the value from whose curves are drawn."""
    options = ""
    for place, item in enumerate(drawings):
        options += f'<option value="{place}">{escape(item["name"])}</option>'
    return options


def slots(account: Account, bars: Sequence[int] | None, used: bool) -> str:
    """The place of the Gantt chart, and the use of the slots.

    `bars`: how many intervals there are, and how many bars are drawn; None: no slot was there.
    """
    if bars is None:
        return "<p>No slot was ever there.</p>"

    text = "A lane for each slot, coloured by trial; drag to zoom, double-click to see all."
    intervals, shown = bars
    if shown < intervals:
        text += (
            f" Of {intervals:,} intervals {shown:,} bars are drawn: "
            "short neighbours as one, in the colour of most of their time."
        )
    text += _moves(account)

    whole = f'<p>{text}</p><div class="drawing" data-drawing="gantt"></div>'
    if used:
        whole += '<h3>Use of each slot</h3><div class="drawing" data-drawing="use"></div>'
        whole += _causes(account)
    return whole


def _moves(account: Account) -> str:
    """How often trials moved between slots; nothing if they stayed."""
    hops = sum(row.hops for row in account.trials)
    if not hops:
        return ""
    text = f" Trials moved {plural(hops, 'time')} to other slots"
    if moved := sum(row.moved for row in account.trials):
        text += f", with {size(moved)} of state"
    if dealt := sum(row.dealt for row in account.trials):
        text += f"; {size(dealt)} of samples were dealt to other nodes"
    return text + "."


def _causes(account: Account) -> str:
    """The slot time by cause, as a table that is folded away."""
    used = account.used
    whole = sum(used.values())
    rows = []
    for cause in CAUSES:
        length = used[cause.kind]
        if length:
            shown = (duration(length), length)
            rows.append([cause.label, shown, (share(length, whole), length)])
    return details("slot time by cause", table(["cause", "slot time", "share"], rows))


def configs(account: Account, lines: Any, dots: Any) -> str:
    """The places of the drawings of configuration against score."""
    text = ""
    if lines is not None:
        text += "<p>Every line is a trial; drag along an axis to pick a range.</p>"
        text += '<div class="drawing" data-drawing="parallel"></div>'
    if dots is not None:
        text += f"<p>{_dots_note(account)}</p>"
        text += '<div class="drawing" data-drawing="scatter"></div>'
    return text


def _dots_note(account: Account) -> str:
    """What the signs mean that are no plain dots."""
    note = "The star is the best trial."
    if any(row.status == "failed" for row in account.trials):
        note += " Crosses are trials that failed, without a score."
    return note


# -- how it was run, and what comes next -----------------------------------------------------------


def setup(account: Account) -> str:
    """The runs, what the automatic policy chose, the options and the versions."""
    entries = plural(account.entries, "entry").replace("entrys", "entries")
    made = f"<p>Made from the journal alone: {entries}.</p>"
    return _runs(account) + _choices(account) + _options(account) + made


def _runs(account: Account) -> str:
    """The runs, if there was more than one."""
    if len(account.runs) <= 1:
        return ""
    rows = []
    for run in account.runs:
        took = run.end - run.start
        rows.append(
            [
                (str(run.number), run.number),
                (duration(run.start), run.start),
                (duration(run.end), run.end),
                (duration(took), took),
                run.how,
            ]
        )
    return table(["run", "from", "to", "took", "how it ended"], rows)


def _choices(account: Account) -> str:
    """What the automatic policy chose, and why."""
    if not account.choices:
        return ""
    rows = []
    for choice in account.choices:
        rows.append([(duration(choice.time), choice.time), choice.follows, choice.why])
    return "<h3>What auto followed</h3>" + table(["from", "policy", "because"], rows)


def _options(account: Account) -> str:
    """What the journal's head says beside what stands elsewhere."""
    listed = ""
    for key, item in account.head.items():
        if key not in KNOWN and item not in (None, "", {}):
            listed += f"<dt>{escape(str(key))}</dt><dd>{escape(_flat(item))}</dd>"
    if not listed:
        return ""
    return details("options and versions", f"<dl>{listed}</dl>")


def _flat(item: Any) -> str:
    """A part of the head in one line."""
    if not isinstance(item, Mapping):
        return value(item)
    return ", ".join(f"{key} {_flat(part)}" for key, part in item.items() if part is not None)


def following(account: Account, folder: str | None) -> str:
    """Commands for the study's folder, and how to get at the models."""
    if folder is None or _simulated(account):
        return ""
    lines = ""
    for command, what in _commands(account, shlex.quote(folder)):
        lines += f"<tr><td><code>{escape(command)}</code></td><td>{escape(what)}</td></tr>"
    shell = f'<table class="commands"><tbody>{lines}</tbody></table>'
    return shell + f"<pre>{escape(_python(account, folder))}</pre>"


def _commands(account: Account, folder: str) -> list[tuple[str, str]]:
    """Commands, and what each does. `folder`: quoted for a shell."""
    commands = []
    if account.status != "finished":
        commands.append((f"shoal resume {folder}", "go on where the last run ended"))
    commands.append((f"shoal status {folder}", "how it stands, also while it runs"))
    best = account.best()
    if best is not None:
        replay = f"shoal replay {folder} --trial {shlex.quote(best.id)}"
        commands.append((replay, "train the best trial again from its record, and compare"))
    commands.append((f"shoal report {folder}", "write this page again"))
    return commands


def _python(account: Account, folder: str) -> str:
    """The same in Python."""
    text = f"import shoal\n\nstudy = shoal.load_study({folder!r})\n"
    if account.best() is not None:
        text += "study.best_trial.config\nmodel = study.best_model()\n"
    if account.by_recipe:
        text += "best = study.best_by_recipe\n"
    return text + "frame = study.trials_dataframe()\n"


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
        cells.append([kind, *_figure_cells(names, figures)])

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

    names = _figure_names(account)
    trials_of = account.by_signature()
    rows = []
    for signature, figures in account.figures.items():
        own = trials_of.get(signature, ())
        first = [
            (f"<code>{escape(signature)}</code>", signature, "html"),
            (str(len(own)), len(own)),
            first_config(own, 60),
        ]
        rows.append([*first, *_figure_cells(names, figures)])

    heads = ["signature", "trials", "for example", *map(_named, names)]
    whole = table(heads, rows, sortable=True)
    if len(rows) > SHOWN:
        whole = details(f"all {len(rows):,} signatures", whole)
    return TEXT + whole


def _figure_names(account: Account) -> list[str]:
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


def _figure_cells(names: list[str], figures: Mapping[str, float]) -> list[tuple[str, Any]]:
    """One cell for each of the names."""
    cells = []
    for name in names:
        figure = figures.get(name)
        cells.append((_figure_text(name, figure), figure))
    return cells


def _named(name: str) -> str:
    """A figure's name, with its unit where it is not a time."""
    unit = UNITS.get(name.partition("@")[0])
    if unit is None:
        return name
    return f"{name} ({unit})"


def _figure_text(name: str, figure: float | None) -> str:
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


Figures = Mapping[str, float]  # measured, by name
Ways = dict[str, tuple[int, Seconds]]  # how many trials, and what their steps take

FUSED = "fused:"  # begins the names of figures: seconds of one common step of so many trials
PACKING_HEADS = (
    "signature",
    "for example",
    "trials together",
    "seconds a step",
    "IMPV",
    "seconds a switch",
    "seconds a re-packing",
)
PACKING_TEXT = (
    "<p>Trials that share a slot share its chunks of data, and wait for them once; "
    "they take turns, or those of one graph train in one step. "
    "IMPV: the part of the time saved against training them one after the other, "
    "by what was measured on their own first steps, the wait for data included; "
    "where a common step does not take 3 % less than theirs, the wait aside, they take turns. "
    "A switch: to put a trial's state onto a slot, as between trials that are not packed. "
    "A re-packing: to fuse the trials of a pack anew when one came or went.</p>"
)


def packs(account: Account) -> str:
    """What packing gained on this machine; nothing if none was tried.

    A row for each signature and number of trials. Liu et al. 2020: the improvement IMPV (eq. 3)
    against the same trials one after the other, and what a switch costs (eq. 4).
    """
    rows: list[list[Any]] = []
    trials = account.by_signature()
    for signature in account.figures:
        example = first_config(trials.get(signature, ()), 60)
        rows += _rows(account, signature, example)
    if not rows:
        return ""

    body = table(PACKING_HEADS, rows, sortable=True)
    return PACKING_TEXT + folded(f"{plural(len(rows), 'way')} to train them", body, len(rows))


def _rows(account: Account, signature: str, example: str) -> list[list[Any]]:
    """The rows of one signature: its trials alone if they cannot be fused, then together."""
    figures = account.figures[signature]
    code = (f"<code>{escape(signature)}</code>", signature, "html")
    first = [code, example]
    switch = figures.get("switch", figures.get("build"))
    last = [_seconds(switch), _seconds(figures.get("repack"))]
    middles = [*_alone(figures), *_together(figures, account.chart.shared)]
    return [[*first, *middle, *last] for middle in middles]


UNFUSABLE = ("steps cannot be fused", None)


def _alone(figures: Figures) -> list[list[Any]]:
    """Steps of one trial, if they cannot be fused: the width, what a step takes, the gain."""
    step = figures.get("step")
    if not step or "unfusable" not in figures:
        return []
    took = _seconds(step + _wait(figures))
    return [[("1", 1), took, UNFUSABLE]]


def _together(figures: Figures, shared: bool) -> list[list[Any]]:
    """The ways to train trials together, the fewest trials first. `shared`: they shared a slot."""
    step = figures.get("step")
    wait = _wait(figures)
    cells = []
    ways = _ways(figures, shared)
    for name, (width, took) in sorted(ways.items(), key=lambda way: way[1][0]):
        gain = _gain(took + wait, width, step, wait)
        cells.append([(name, width), _seconds(took + wait), gain])
    return cells


def _wait(figures: Figures) -> Seconds:
    """How long a step waits for its batch of data."""
    step = figures.get("step") or 0.0
    return figures.get("data", 0.0) * figures.get("rate", 0.0) * step


def _ways(figures: Figures, shared: bool) -> Ways:
    """The ways to train trials together: how many trials, and the seconds of their steps."""
    ways = _fused(figures)
    step = figures.get("step")
    if shared and step and _wait(figures):
        widths = {2}
        widths.update(width for width, _ in ways.values())
        for width in widths:
            ways[f"{width} in turn"] = (width, width * step)
    return ways


def _fused(figures: Figures) -> Ways:
    """The common steps that were measured."""
    ways: Ways = {}
    for name, took in figures.items():
        if name.startswith(FUSED):
            width = int(name.removeprefix(FUSED))
            ways[f"{width} in a step"] = (width, took)
    return ways


def _gain(took: Seconds, width: int, step: Seconds | None, wait: Seconds) -> tuple[str, Any]:
    """The part of the time that is saved against `width` trials one after the other."""
    if not step:
        return DASH, None
    gain = 1.0 - took / (width * (step + wait))
    return f"{100 * gain:+.0f} %", gain


def _seconds(length: Seconds | None) -> tuple[str, Seconds | None]:
    """A cell of the table."""
    return duration(length), length


HARVEST_HEADS = (
    "from",
    "to",
    "offered",
    "used",
    "slots (eq. 18)",
    "U",
    "lost to preemption",
    "lost to rescaling",
    "return on rescaling",
)
HARVEST_TEXT = (
    "<p>Slots came and went. Offered: the slot-hours that slots were there (eq. 17 of "
    "BFTrainer); used: that trials held them. The next column is how many slots that stay give as "
    "many slot-hours. U is what the trials made, over what the same trials would have made "
    "meanwhile on so many dedicated slots, by their measured speeds. Lost to preemption: units "
    "that were cut, work after the last durable state, and the standing still of trials that went "
    "on with fewer slots. Lost to rescaling: the standing still of trials that a plan gave more "
    "slots or fewer. The return on rescaling is the slot-hours of work for each slot-hour of that "
    "(Fig. 8).</p>"
)
DRAWING = '<div class="drawing" data-drawing="harvest"></div>'


def harvest(account: Account) -> str:
    """The figures of the whole, their drawing, and the bins; nothing if slots stayed."""
    found = account.harvest
    if found is None:
        return ""
    whole = found.whole
    nodes = ""
    if abs(found.nodes - whole.offered) > 1e-6 * whole.offered:
        nodes = f"<p>Node-hours with slots: {number(found.nodes / 3600.0, 4)}.</p>"
    bins = table(HARVEST_HEADS, [_yield_cells(each) for each in found.bins])
    length = duration(found.bins[0].end - found.bins[0].start)
    return (
        HARVEST_TEXT
        + table(HARVEST_HEADS, [_yield_cells(whole)])
        + nodes
        + DRAWING
        + folded(f"in bins of {length}", bins, len(found.bins))
    )


def _yield_cells(each: Yield) -> list[Cell]:
    """One line of figures."""
    return [
        (duration(each.start), each.start),
        (duration(each.end), each.end),
        _hours(each.offered),
        _hours(each.used, each.offered),
        (number(each.slots, 4), each.slots),
        (_percent(each.efficiency), each.efficiency),
        _hours(each.preempted, each.offered),
        _hours(each.rescaled, each.offered),
        (_times(each.returned), each.returned),
    ]


def _hours(amount: Seconds, whole: Seconds | None = None) -> Cell:
    """Slot-hours, with their part of the whole."""
    text = f"{number(hours(amount) or 0.0, 4)} h"
    if whole:
        text += f", {share(amount, whole)}"
    return text, amount


def _percent(part: float | None) -> str:
    if part is None:
        return DASH
    return share(part, 1.0)


def _times(factor: float | None) -> str:
    if factor is None:
        return DASH
    return number(factor, 3)
