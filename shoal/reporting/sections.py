"""The parts of the report's page beside its tables, as HTML.

Every text that comes from the journal is escaped.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from shoal.reporting.charts.palette import CAUSES
from shoal.reporting.facts.format import (
    DASH,
    count,
    described,
    duration,
    escape,
    number,
    plural,
    score,
    share,
    size,
    value,
)
from shoal.reporting.facts.metrics import BEST, Account
from shoal.reporting.tables import details, table

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
