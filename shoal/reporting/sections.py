"""The sections of the report's page as data: notes, tables and places of drawings.

A section is a row of `SECTIONS`; the table of trials is made of `Column`s. What blocks look like is
known to the template page.html.j2 alone, which also escapes every text.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from shoal.core.profile import SHARED
from shoal.core.trial import Seconds, Value
from shoal.reporting import score_charts
from shoal.reporting.accounting import BEST, Account, given_rows
from shoal.reporting.charts import CAUSES, painted_by
from shoal.reporting.facts import is_simulated, rescales_line
from shoal.reporting.format import (
    DASH,
    config,
    count,
    duration,
    exact,
    number,
    plural,
    printable,
    score,
    share,
    signed,
    size,
    status_words,
    value,
)
from shoal.reporting.gantt import waiting
from shoal.reporting.harvest import Yield, hours
from shoal.reporting.parameters import Parameter, parameters
from shoal.reporting.tally import TrialRow

GIB = 2**30
LISTED = 10_000  # rows of one table: of more the page gets slow
SHOWN = 20  # rows shown at once (page.css has it, too): of trials the best, of others all or none
CHANGES = 200  # of width that the page lists
FUSED = "fused:"  # begins the names of figures: seconds of one common step of so many trials
Figures = Mapping[str, float]  # measured, by name


# -- blocks ----------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A part of a section. `kind`: the macro of the template that shows it."""

    kind: str
    body: Any
    title: str = ""
    opened: bool = False


class Cell(NamedTuple):
    """A cell of a table. `key`: what it sorts by; None comes last.

    `look`: code, dot (`extra`: its colour), chip (its class) or link (its address; none: no link).
    `exact`: what the table's CSV has; None: the key. `unit`: of that, as "s".
    """

    text: str
    key: Any
    look: str = ""
    extra: str = ""
    exact: str | None = None
    unit: str = ""

    @property
    def value(self) -> str:
        """What the table's CSV has of the cell: nothing shortened, and no unit."""
        if self.exact is not None:
            return self.exact
        return "" if self.key is None else str(self.key)


Cells = Sequence[Cell | str]


@dataclass(frozen=True)
class Rows:
    """A table's heads and rows; a plain text is a cell that sorts by itself.

    `title`: what the table is called where it is not seen, as in the name of its CSV file. `few`:
    how many rows are shown until somebody asks for all; 0: all. `chosen`: whether the page lets
    people choose its columns.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sortable: bool
    title: str
    few: int = 0
    chosen: bool = False

    @cached_property
    def numeric(self) -> list[bool]:
        """For each column, whether no cell sorts by a text; such columns stand right."""
        columns = range(len(self.heads))
        return [not any(isinstance(row[at].key, str) for row in self.rows) for at in columns]

    @cached_property
    def units(self) -> list[str]:
        """For each column, the unit of the values in its CSV; empty if they have none."""
        columns = range(len(self.heads))
        return [next((row[at].unit for row in self.rows if row[at].unit), "") for at in columns]


def table(
    title: str, heads: Sequence[str], rows: Iterable[Cells], sortable: bool = False, **more: Any
) -> Block:
    """A table, of `LISTED` rows at most. `title` and `more`: see `Rows`."""
    cells = [[Cell(c, c) if isinstance(c, str) else c for c in row] for row in islice(rows, LISTED)]
    return Block("table", Rows(heads, cells, sortable, title, **more))


def note(text: str) -> Block:
    """A paragraph."""
    return Block("note", text)


def heading(text: str) -> Block:
    """A heading within a section."""
    return Block("heading", text)


def drawing(name: str) -> Block:
    """The place of a drawing."""
    return Block("drawing", name)


def details(title: str, *blocks: Block, opened: bool = False) -> Block:
    """Blocks that are folded away unless they are opened."""
    return Block("details", blocks, title, opened)


def folded(title: str, whole: Block) -> Block:
    """A table, folded away if it has many rows."""
    return details(title, whole, opened=len(whole.body.rows) <= SHOWN)


def of_time(seconds: Seconds | None) -> Cell:
    """A cell with a length of time."""
    return Cell(duration(seconds), seconds, unit="s")


def of_count(things: float | None) -> Cell:
    """A cell with a number of things."""
    return Cell(count(things), things)


def of_number(whole: int) -> Cell:
    """A cell with a small whole number."""
    return Cell(str(whole), whole)


def of_share(part: float, whole: float) -> Cell:
    """A cell with a part of the whole; it sorts by the part."""
    return Cell(share(part, whole), part, exact=str(part / whole) if whole > 0 else "")


def of_size(held: float | None, unit: Literal["bytes", "GiB"] = "bytes") -> Cell:
    """A cell with an amount of memory; a dash for None."""
    factor = GIB if unit == "GiB" else 1
    return Cell(DASH if held is None else size(held * factor), held, unit=unit)


def of_config(values: Mapping[str, Value]) -> Cell:
    """A cell with a whole configuration."""
    return Cell(*2 * (config(values),), exact=config(values, shown=exact))


def of_code(text: str) -> Cell:
    """A cell with a signature."""
    return Cell(text, text, "code")


# -- trials ----------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of the table of trials.

    `key`: what a trial is sorted and searched by, in the `unit`; `text`: what is shown. `shown`:
    whether the table of such a study has the column. `ranged`: the text says more than the key.
    """

    head: str
    key: Callable[[TrialRow], Any]
    text: Callable[[TrialRow], str]
    shown: Callable[[Account], bool] = lambda account: True
    look: str = ""
    unit: str = ""
    ranged: bool = False

    def cell(self, row: TrialRow) -> Cell:
        """The trial's cell."""
        text = self.text(row)
        exact = text if self.ranged else None
        key = self.key(row)
        return Cell(text, key, self.look, str(key) if self.look else "", exact, self.unit)


def _epochs(row: TrialRow) -> str:
    """The epochs that a trial trained, and of how many, unless it is over."""
    if row.epochs is None:
        return f"{count(row.samples)} samples"
    trained = number(row.epochs, 3)
    if row.status in ("running", "waiting") and row.samples:
        return f"{trained} of {number(row.epochs * row.asked / row.samples, 3)}"
    return trained


def _training(row: TrialRow) -> Seconds | None:
    """How long a trial trained."""
    return row.spent.get("train")


def _has_metric(account: Account) -> bool:
    return bool(account.metric)


NAME = Column("trial", lambda row: str(row.id), lambda row: row.id)
STATUS = Column("status", lambda row: row.status, lambda row: status_words(row.status), look="chip")
FIGURES = (  # behind the metric; then comes the configuration
    Column("epochs", lambda row: row.epochs, _epochs),
    Column("training", _training, lambda row: duration(_training(row)), unit="s"),
)
AFTER = (
    Column("best", lambda row: row.best, lambda row: score(row.best), _has_metric),
    Column(
        "at epoch", lambda row: row.best_epoch, lambda row: number(row.best_epoch, 3), _has_metric
    ),
    Column(
        "slots",
        lambda row: row.widths[1],
        lambda row: "–".join(map(str, dict.fromkeys(row.widths))),
        lambda account: any(row.widths != (1, 1) for row in account.trials),
        ranged=True,
    ),
    Column(
        "priority",
        lambda row: row.priority,
        lambda row: number(row.priority),
        lambda account: any(row.priority != 1.0 for row in account.trials),
    ),
    Column("from", lambda row: row.start, lambda row: duration(row.start), unit="s"),
)
# What trials are sorted and searched by, by the heads of the columns.
KEYS: Mapping[str, Callable[[TrialRow], Any]] = {
    column.head: column.key for column in (NAME, STATUS, *FIGURES, *AFTER)
}


class TrialTable:
    """A line for each trial, the best first. `names`: the parts of the configuration to show.

    The columns stand in the order of their worth: a page shows as many as it has room for.
    """

    def __init__(self, account: Account, names: Sequence[str]) -> None:
        self._ranked = account.ranked()
        self._painted = painted_by(account)
        self._before = [STATUS, *FIGURES]
        if account.metric:
            metric = Column(account.metric, lambda row: row.last, lambda row: score(row.last))
            self._before.insert(1, metric)
        self._names = names
        self._after = [column for column in AFTER if column.shown(account)]

    def whole(self, title: str = "trials", few: int = 0) -> Block:
        """The table of all trials. `few`: rows that are shown until somebody asks for all."""
        rows = [self.cells(row, place) for place, row in enumerate(self._ranked, 1)]
        few = few if len(rows) > few else 0
        return table(title, self.heads(), rows, sortable=True, few=few, chosen=True)

    def heads(self) -> list[str]:
        """The heads of the columns."""
        before = [column.head for column in self._before]
        return [NAME.head, *before, *self._names, *(c.head for c in self._after), "#"]

    def cells(self, row: TrialRow, place: int) -> list[Cell]:
        """The line of one trial."""
        cells = [Cell(row.id, str(row.id), "dot", self._painted[row.id])]
        cells += [column.cell(row) for column in self._before]
        cells += [_config_cell(row, name) for name in self._names]
        cells += [column.cell(row) for column in self._after]
        return [*cells, of_number(place)]


def _config_cell(row: TrialRow, name: str) -> Cell:
    """A value of the trial's configuration; a dash if it lacks that name."""
    if name not in row.config:
        return Cell(DASH, None)
    item = row.config[name]
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return Cell(number(item), item)
    return Cell(value(item), value(item), exact=exact(item))


def trials(
    account: Account,
    varying: Sequence[Parameter],
    same: Mapping[str, str],
    title: str = "trials",
) -> list[Block]:
    """The table of the trials, the best ones until somebody asks for all."""
    if not account.trials:
        return [note("No trial was submitted.")]
    if account.by_recipe:
        blocks = []
        for name, of_recipe in account.by_recipe.items():
            blocks += [heading(name), *trials(of_recipe, *parameters(of_recipe), f"trials {name}")]
        return blocks

    names = [parameter.name for parameter in varying]
    blocks = []
    if len(account.trials) == 1:
        names += same
    elif same:
        blocks.append(note(f"The same in all trials: {config(same)}."))
    return [*blocks, TrialTable(account, names).whole(title, SHOWN)]


def since(account: Account, folder: str | None) -> list[Block]:
    """A note that says of what part of the journal the page is; none for the whole."""
    if account.since is None:
        return []
    counted = account.entries - account.since.entries
    text = (
        f"The journal has {account.entries:,} entries. Trials, their scores and their samples are "
        f"of all of them; slots, what trials spent there, hops, repeated work and training values "
        f"are of the newest {counted:,}, from {duration(account.since.time)} on."
    )
    if folder:
        text += f" shoal report {shlex.quote(folder)} --whole reads all, which takes longer."
    return [Block("since", text)]


def sampled(account: Account, sample: Account) -> list[Block]:
    """A note that says which trials are drawn and listed; none if all are."""
    if sample is account:
        return []
    return [
        note(
            f"Of {len(account.trials):,} trials, {len(sample.trials):,} are listed and drawn here "
            f"and below: the best {BEST:,}, and others spread evenly over the ranks."
        )
    ]


# -- slots, and what went on there -----------------------------------------------------------------


def slots(account: Account, bars: Sequence[int] | None, used: bool) -> list[Block]:
    """The place of the Gantt chart, and the use of the slots.

    `bars`: how many intervals there are, and how many bars are drawn; None: no slot was there.
    """
    if bars is None:
        return [note("No slot was ever there.")]
    text = "A row for each slot, coloured by trial; drag to zoom, double-click to see all."
    intervals, shown = bars
    if shown < intervals:
        text += (
            f" Of {intervals:,} intervals {shown:,} bars are drawn: "
            "short neighbours as one, in the colour of most of their time."
        )
    if hops := sum(row.hops for row in account.trials):
        text += f" Trials moved {plural(hops, 'time')} to other slots"
        if moved := sum(row.moved for row in account.trials):
            text += f", with {size(moved)} of state"
        if dealt := sum(row.dealt for row in account.trials):
            text += f"; {size(dealt)} of samples were dealt to other nodes"
        text += "."
    blocks = [note(text), drawing("gantt")]
    if used:
        blocks += [heading("Use of each slot"), drawing("use"), _causes(account)]
    return blocks


def _causes(account: Account) -> Block:
    """The slot time by cause, as a table that is folded away."""
    used = account.used
    whole = sum(used.values())
    rows: list[Cells] = [
        [cause.label, of_time(used[cause.kind]), of_share(used[cause.kind], whole)]
        for cause in CAUSES
        if used[cause.kind]
    ]
    return details(
        "slot time by cause", table("slot time by cause", ["cause", "slot time", "share"], rows)
    )


HARVEST = (
    "Slots came and went. Offered: the slot-hours that slots were there (eq. 17 of "
    "BFTrainer); used: that trials held them. The next column is how many slots that stay give as "
    "many slot-hours. U is what the trials made, over what the same trials would have made "
    "meanwhile on so many dedicated slots, by their measured speeds. Lost to preemption: units "
    "that were cut, work after the last durable state, and the standing still of trials that went "
    "on with fewer slots. Lost to rescaling: the standing still of trials that a plan gave more "
    "slots or fewer. The return on rescaling is the slot-hours of work for each slot-hour of that "
    "(Fig. 8)."
)
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


def harvest(account: Account) -> list[Block]:
    """What was made of slots that came and went: the whole, its drawing, and the bins."""
    harvested = account.harvest
    if harvested is None:
        return []
    whole = harvested.whole
    blocks = [note(HARVEST), table("harvest", HARVEST_HEADS, [_yield(whole)])]
    if abs(harvested.nodes - whole.offered) > 1e-6 * whole.offered:
        blocks.append(note(f"Node-hours with slots: {number(harvested.nodes / 3600.0, 4)}."))
    length = duration(harvested.bins[0].end - harvested.bins[0].start)
    bins = table("harvest in bins", HARVEST_HEADS, map(_yield, harvested.bins))
    return [*blocks, drawing("harvest"), folded(f"in bins of {length}", bins)]


def _yield(part: Yield) -> list[Cell]:
    """The figures of a harvest's part, as cells of a row."""
    efficiency = DASH if part.efficiency is None else share(part.efficiency, 1.0)
    returned = DASH if part.returned is None else number(part.returned, 3)
    return [
        of_time(part.start),
        of_time(part.end),
        _slot_hours(part.offered),
        _slot_hours(part.used, part.offered),
        Cell(number(part.slots, 4), part.slots),
        Cell(efficiency, part.efficiency),
        _slot_hours(part.preempted, part.offered),
        _slot_hours(part.rescaled, part.offered),
        Cell(returned, part.returned),
    ]


def _slot_hours(amount: Seconds, whole: Seconds | None = None) -> Cell:
    """Slot-hours, with their part of the whole."""
    text = f"{number(hours(amount) or 0.0, 4)} h"
    if whole:
        text += f", {share(amount, whole)}"
    return Cell(text, amount, unit="s")


# -- what the policy took --------------------------------------------------------------------------

# What a share is a part of; the others are of slot time.
OF = {"deciding": "run time", "profiling": "run time"}
TOGETHER = (
    "The trials that the policy started at one moment, and how long they ran until they ended "
    "or got other slots."
)


def overhead(account: Account) -> list[Block]:
    """What deciding, profiling, checkpointing, waiting and changes of width took."""
    if not account.use:
        return []
    shares: list[Cells] = [
        [name, OF.get(name, "slot time"), of_share(part, 1.0)]
        for name, part in account.shares.items()
    ]
    waited = waiting(account.use).items()
    waits: list[Cells] = [[str(slot), of_time(seconds)] for slot, seconds in waited]
    return [
        table("what the policy took", ["what", "of", "share"], shares),
        *_idle(account),
        details("waiting of each slot", table("waiting of each slot", ["slot", "waited"], waits)),
        *_started_together(account),
        *_rescales(account),
    ]


def _idle(account: Account) -> Iterator[Block]:
    """What idle slots waited for; nothing if none was idle."""
    whole = sum(account.used.values())
    rows: list[Cells] = [
        [why, of_time(length), of_share(length, whole)] for why, length in account.idle.items()
    ]
    if rows:
        idle = table("idle slots", ["idle slots", "slot time", "share"], rows)
        yield details("what idle slots waited for", idle)


def _started_together(account: Account) -> Iterator[Block]:
    """How long flotillas ran; nothing if the policy forms none."""
    rows = [
        [
            of_time(each.start),
            of_number(len(each.trials)),
            of_number(each.slots),
            of_time(each.mean),
            of_time(each.deviation if len(each.trials) > 1 else None),
        ]
        for each in account.overhead.formed
    ]
    if not rows:
        return
    heads = ["started at", "trials", "slots", "ran, mean", "deviation"]
    whole = table("started together", heads, rows)
    yield heading("Started together")
    yield note(TOGETHER)
    yield whole if len(rows) <= SHOWN else details(f"all {len(rows):,} times", whole)


def _rescales(account: Account) -> Iterator[Block]:
    """What each change of a running trial's width cost and gained; nothing if there was none."""
    changes = account.rescales
    if not changes:
        return
    most = sorted(changes, key=lambda change: -abs(change.saved or 0.0))[:CHANGES]
    rows: list[Cells] = [
        [
            of_time(change.time),
            change.trial,
            _width(change.before, change.after),
            of_time(change.stood),
            of_count(change.old_rate),
            of_count(change.new_rate),
            Cell(signed(change.saved), change.saved, unit="s"),
        ]
        for change in most
    ]
    heads = ("at", "trial", "slots", "stood still", "samples/s before", "samples/s after", "saved")
    title = plural(len(changes), "change")
    if len(rows) < len(changes):
        title = f"the {len(rows)} of {title} that saved or lost most"
    yield heading("Changes of width")
    yield note(f"{rescales_line(changes)}.")
    yield folded(title, table("changes of width", heads, rows, sortable=True))


def _width(before: int, after: int) -> Cell:
    """A cell with a change of width; it sorts by how many slots were gained."""
    text = f"{before} → {after}"
    return Cell(text, after - before, exact=text)


# -- feeders ---------------------------------------------------------------------------------------

FEEDERS = (
    "Data that takes work to prepare was prepared once for all slots of a node. "
    "Received: chunks that another node made. "
    "Not ready: chunks that a slot asked for before they were made, "
    "and how long slots waited for them, all together. "
    "Ahead: samples made before they were asked for, at most. "
    "Held: for slots that come later, at most."
)
FEEDER_COLUMNS: Mapping[str, Callable[[Figures], Cell]] = {
    "feeders": lambda row: Cell(str(int(row["feeders"])), row["feeders"]),
    "chunks made": lambda row: of_count(row["made"]),
    "received": lambda row: Cell(_received(row), row.get("received", 0.0)),
    "handed out": lambda row: of_count(row["served"]),
    "not ready": lambda row: Cell(
        share(row["waits"], row["served"]) if row["served"] else DASH, row["waits"]
    ),
    "waited": lambda row: of_time(row["waited"]),
    "processor time": lambda row: of_time(row["cpu"]),
    "ahead": lambda row: of_count(row["ahead"]),
    "held": lambda row: of_size(row["bytes"]),
}


def feeders(account: Account) -> list[Block]:
    """What the processes did that prepare data for the slots of a node, run by run."""
    rows: list[Cells] = [
        [of_number(run), node, *(cell(row) for cell in FEEDER_COLUMNS.values())]
        for (run, node), row in account.feeders.items()
    ]
    if not rows:
        return []
    whole = table("feeders", ["run", "node", *FEEDER_COLUMNS], rows, sortable=True)
    return [note(FEEDERS), whole]


def _received(row: Figures) -> str:
    """Chunks that came from another node, and what was sent."""
    if not row.get("received"):
        return "0"
    return f"{count(row['received'])} ({size(row['received_bytes'])})"


# -- curves and scores -----------------------------------------------------------------------------


def curves(names: Sequence[str]) -> list[Block]:
    """The place of the learning curves, with what chooses among them."""
    if not names:
        return [note("No value was recorded.")]
    return [Block("curves", names)]


def of_scores(section: str, page: "Page") -> list[Block]:
    """The places of a section's drawings of scores, as far as there are any."""
    blocks = []
    for name, title in score_charts.titles(section, page.drawings).items():
        blocks += [heading(title)] if title else []
        blocks.append(drawing(name))
    return blocks


# -- what went wrong -------------------------------------------------------------------------------


def failures(account: Account) -> list[Block]:
    """Which trials failed, and why; equal reasons together. Nothing if none did."""
    failed = [row for row in account.trials if row.status == "failed"]
    if not failed:
        return []
    why = {row.id: row.why or "no reason given" for row in failed}
    times = sorted(Counter(why.values()).items(), key=lambda item: -item[1])
    reasons = [(plural(trials, "trial"), reason) for reason, trials in times]
    rows: list[Cells] = [
        [
            row.id,
            why[row.id],
            Cell(number(row.epochs, 3), row.epochs),
            of_time(row.end),
            of_config(row.config),
        ]
        for row in failed
    ]
    heads = ["trial", "why", "epochs", "at", "configuration"]
    whole = table("failed trials", heads, rows, sortable=True)
    return [Block("reasons", reasons), folded(plural(len(failed), "failed trial"), whole)]


def splits(account: Account) -> list[Block]:
    """Which packs ran out of memory, and when; nothing if none did."""
    if not account.splits:
        return []
    packs = plural(len(account.splits), "pack")
    rows: list[Cells] = []
    for split in account.splits:
        needs = (f"{signature}: {size(need * GIB)}" for signature, need in split.needs.items())
        believed = "; ".join(needs) or "not known"
        rows.append([of_time(split.time), ", ".join(split.trials), split.why, believed])
    heads = ["at", "trials", "why", "each trial's memory, by signature, since"]
    return [
        note(f"{packs} had no room: split, and gone on with in smaller packs."),
        table("packs out of memory", heads, rows, sortable=True),
    ]


def repeated(account: Account) -> list[Block]:
    """What was trained and then lost, trial by trial. Nothing if nothing was."""
    lost = [row for row in account.trials if row.repeated.falls]
    if not lost:
        return []
    lost.sort(key=lambda row: -row.repeated.samples)
    rows: list[Cells] = [
        [
            row.id,
            of_number(row.repeated.falls),
            of_number(row.repeated.visits),
            of_count(row.repeated.samples),
            of_time(row.repeated.seconds),
        ]
        for row in lost
    ]
    heads = ["trial", "times", "passes void", "samples void", "slot time void"]
    total = sum(row.repeated.samples for row in lost)
    text = (
        f"{plural(len(lost), 'trial')} went back to a durable state: {count(total)} samples, "
        f"{share(total, account.trained)} of all that was trained, were void."
    )
    return [note(text), folded("by trial", table("repeated work", heads, rows, sortable=True))]


# -- packing ---------------------------------------------------------------------------------------

Ways = dict[str, tuple[int, Seconds]]  # how many trials, and what their steps take
PACKING = (
    "Trials that share a slot share its chunks of data, and wait for them once; "
    "they take turns, or those of one graph train in one step. "
    "IMPV: the part of the time saved against training them one after the other, "
    "by what was measured on their own first steps, the wait for data included; "
    "where a common step does not take 3 % less than theirs, the wait aside, they take turns. "
    "A switch: to put a trial's state onto a slot, as between trials that are not packed. "
    "A re-packing: to fuse the trials of a pack anew when one came or went."
)
PACKING_HEADS = (
    "signature",
    "for example",
    "trials together",
    "seconds a step",
    "IMPV",
    "seconds a switch",
    "seconds a re-packing",
)
CANNOT = "steps cannot be fused"
UNFUSABLE = Cell(CANNOT, None, exact=CANNOT)


def packs(account: Account) -> list[Block]:
    """What packing gained on this machine; nothing if none was tried.

    A row for each signature and number of trials. Liu et al. 2020: the improvement IMPV (eq. 3)
    against the same trials one after the other, and what a switch costs (eq. 4).
    """
    rows: list[Cells] = []
    alike = account.by_signature()
    for signature, figures in account.figures.items():
        first = (of_code(signature), _example(alike.get(signature, ())))
        switch = figures.get("switch", figures.get("build"))
        last = (of_time(switch), of_time(figures.get("repack")))
        rows += [
            [*first, *middle, *last] for middle in _packed_steps(figures, account.chart.shared)
        ]
    if not rows:
        return []
    body = table("packing", PACKING_HEADS, rows, sortable=True)
    return [note(PACKING), folded(f"{plural(len(rows), 'way')} to train them", body)]


def _packed_steps(figures: Figures, shared: bool) -> Iterator[list[Cell]]:
    """How many trials step together, how long that takes and what it saves, the fewest first.

    `shared`: trials shared a slot.
    """
    step = figures.get("step")
    # How long a step waits for its batch of data.
    wait = figures.get("data", 0.0) * figures.get("rate", 0.0) * (step or 0.0)
    if step and "unfusable" in figures:
        yield [of_number(1), of_time(step + wait), UNFUSABLE]
    ways: Ways = {}  # the common steps that were measured
    for name, took in figures.items():
        if name.startswith(FUSED):
            width = int(name.removeprefix(FUSED))
            ways[f"{width} in a step"] = (width, took)
    if shared and step and wait:
        for width in {2, *(width for width, _ in ways.values())}:
            ways[f"{width} in turn"] = (width, width * step)
    for name, (width, took) in sorted(ways.items(), key=lambda way: way[1][0]):
        gain = Cell(DASH, None)
        if step:
            saved = 1.0 - (took + wait) / (width * (step + wait))
            gain = Cell(f"{100 * saved:+.0f} %", saved)
        yield [Cell(name, width, exact=name), of_time(took + wait), gain]


# -- measured figures ------------------------------------------------------------------------------

MEASURED = "Trials of one signature (model, optimizer, batch size, precision) share these figures."
UNITS = {"rate": "samples/s"}  # of figures that are no seconds
SIZES = ("memory", "transient", "crowded", "model")  # GiB
FIRST = ("rate",)
THEN = ("step", *SIZES, "batch", "build", "first", "evaluate", "save", "switch", "repack")


def measured(account: Account) -> list[Block]:
    """The figures of the profile: those given, and those measured, a line for each signature."""
    return [*_given(account), *_measured(account)]


def _given(account: Account) -> Iterator[Block]:
    """The figures that the last run was given, a line for each kind of trial."""
    given = given_rows(account.head)
    if not given:
        return
    names = list(dict.fromkeys(name for _, figures in given for name in figures))
    rows: list[Cells] = [
        [of_config(values) if values else "any other", *_figure_cells(names, figures)]
        for values, figures in given
    ]
    path = account.head.get("profile")
    by = Markup(" by <code>{}</code>").format(printable(str(path))) if path else ""
    rest = "What it leaves open was measured." if account.figures else "Nothing was measured."
    yield note(Markup("Given{}, and believed instead of what is measured. {}").format(by, rest))
    yield table("given figures", ["trials", *map(_with_unit, names)], rows)


def _measured(account: Account) -> Iterator[Block]:
    """The figures that were measured, a line for each signature; nothing if there are none."""
    if not account.figures:
        return
    names = _figure_names(account)
    alike = account.by_signature()
    rows: list[Cells] = []
    for signature, figures in account.figures.items():
        of_kind = alike.get(signature, ())
        first = (of_code(signature), of_number(len(of_kind)), _example(of_kind))
        rows.append([*first, *_figure_cells(names, figures)])
    heads = ["signature", "trials", "for example", *map(_with_unit, names)]
    whole = table("measured figures", heads, rows, sortable=True)
    yield note(MEASURED)
    yield whole if len(rows) <= SHOWN else details(f"all {len(rows):,} signatures", whole)


def _example(rows: Sequence[TrialRow]) -> Cell | str:
    """The configuration of the first of these trials."""
    return of_config(rows[0].config) if rows else ""


def _figure_names(account: Account) -> list[str]:
    """The names of the figures, in the order of the columns."""
    seen = {name for figures in account.figures.values() for name in figures}
    seen = {name for name in seen if not name.startswith(FUSED)} - {"unfusable", "rings"}
    widths = [name for name in seen if name.startswith("rate@")]
    widths.sort(key=lambda name: int(name.removeprefix("rate@")))
    order = (*FIRST, *widths, *THEN)
    known = [name for name in order if name in seen]
    return known + sorted(seen.difference(order))


def _figure_cells(names: Iterable[str], figures: Figures) -> list[Cell]:
    """One cell for each of the names."""
    return [_figure(name, figures.get(name)) for name in names]


def _with_unit(name: str) -> str:
    """A figure's name, with its unit where it is not a time."""
    unit = UNITS.get(name.partition("@")[0])
    return name if unit is None else f"{name} ({unit})"


def _figure(name: str, figure: float | None) -> Cell:
    """A figure as a cell, in its unit; a dash for None."""
    if name == "summed" and figure is not None:
        return Cell(f"{figure:.2f}", figure)
    if name in ("batch", "batch_size") or name.partition("@")[0] in UNITS:
        return of_count(figure)
    if "bytes" in name:
        return of_size(figure)
    if name.startswith(SHARED) or name in SIZES:
        return of_size(figure, "GiB")
    return of_time(figure)


# -- how it was run, and what comes next -----------------------------------------------------------

# Parts of the head that stand elsewhere on the page.
ELSEWHERE = ("study", "metric", "mode", "space", "marks")


def setup(account: Account) -> list[Block]:
    """The runs, what the automatic policy chose, the options and the versions."""
    source = note(f"Made from the journal alone: {plural(account.entries, 'entry')}.")
    return [*_runs(account), *_choices(account), *_options(account), source]


def _runs(account: Account) -> Iterator[Block]:
    """The runs, if there was more than one."""
    rows: list[Cells] = [
        [
            of_number(run.number),
            of_time(run.start),
            of_time(run.end),
            of_time(run.end - run.start),
            run.how,
        ]
        for run in account.runs
    ]
    if len(rows) > 1:
        yield table("runs", ["run", "from", "to", "took", "how it ended"], rows)


def _choices(account: Account) -> Iterator[Block]:
    """What the automatic policy chose, and why."""
    rows: list[Cells] = [
        [of_time(choice.time), choice.follows, choice.why] for choice in account.choices
    ]
    if rows:
        yield heading("What auto followed")
        yield table("what auto followed", ["from", "policy", "because"], rows)


def _options(account: Account) -> Iterator[Block]:
    """What the journal's head says beside what stands elsewhere."""
    pairs = [
        (str(key), _flat(item))
        for key, item in account.head.items()
        if key not in ELSEWHERE and item not in (None, "", {})
    ]
    if pairs:
        yield details("options and versions", Block("definitions", pairs))


def _flat(item: Any) -> str:
    """A part of the head in one line."""
    if not isinstance(item, Mapping):
        return value(item)
    return ", ".join(f"{key} {_flat(part)}" for key, part in item.items() if part is not None)


def following(account: Account, folder: str | None) -> list[Block]:
    """Commands for the study's folder, and how to get at the models."""
    if folder is None or is_simulated(account):
        return []
    commands = Block("commands", _commands(account, shlex.quote(folder)))
    text = f"import shoal\n\nstudy = shoal.load_study({folder!r})\n"
    if account.best() is not None:
        text += "study.best_trial.config\nmodel = study.best_model()\n"
    if account.by_recipe:
        text += "best = study.best_by_recipe\n"
    return [commands, Block("code", text + "frame = study.trials_dataframe()\n")]


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


# -- the whole -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Page:
    """What sections are made of.

    `sample`: the account of the trials that are listed and drawn; `varying` and `same`: what their
    configurations vary and share. `drawings`: figures for plotly, by name. `bars`: see `slots`.
    """

    account: Account
    sample: Account
    varying: Sequence[Parameter]
    same: Mapping[str, str]
    folder: str | None
    drawings: Mapping[str, Any]
    bars: Sequence[int] | None


class Section(NamedTuple):
    """A part of the page with a title. `key`: its anchor. It is left out if it has no blocks."""

    key: str
    title: str
    blocks: Sequence[Block]


def _best(page: Page) -> list[Block]:
    """The table of the trials that are listed, and which these are if not all."""
    listed = trials(page.sample, page.varying, page.same)
    return [*sampled(page.account, page.sample), *listed]


SECTIONS: Sequence[tuple[str, str, Callable[[Page], Sequence[Block]]]] = (
    ("best", "Trials", _best),
    ("history", score_charts.SECTIONS["history"], partial(of_scores, "history")),
    (
        "curves",
        "Learning curves",
        lambda page: curves([each["name"] for each in page.drawings.get("curves", ())]),
    ),
    ("configs", score_charts.SECTIONS["configs"], partial(of_scores, "configs")),
    ("slots", "Slots", lambda page: slots(page.account, page.bars, "use" in page.drawings)),
    ("harvest", "Harvest", lambda page: harvest(page.account)),
    ("overhead", "What the policy took", lambda page: overhead(page.account)),
    ("feeders", "Feeders", lambda page: feeders(page.account)),
    ("failures", "Failures", lambda page: failures(page.account)),
    ("splits", "Packs out of memory", lambda page: splits(page.account)),
    ("packs", "Packing", lambda page: packs(page.account)),
    ("repeated", "Repeated work", lambda page: repeated(page.account)),
    ("figures", "Measured figures", lambda page: measured(page.account)),
    ("run", "How it was run", lambda page: setup(page.account)),
    ("next", "What to do next", lambda page: following(page.account, page.folder)),
)
"""The sections of the page in their order: anchor, title, and what stands there."""


def sections(page: Page) -> list[Section]:
    """The sections that have anything to say."""
    parts = [Section(key, title, blocks(page)) for key, title, blocks in SECTIONS]
    return [part for part in parts if part.blocks]
