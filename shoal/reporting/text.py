"""How a study stands: as plain data, and as a table for a terminal."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from shoal.engine.journal import Line
from shoal.engine.snapshot import Snapshot
from shoal.reporting.accounting import Account, account, given_rows
from shoal.reporting.folds import over_folds
from shoal.reporting.format import (
    DASH,
    config,
    duration,
    number,
    printable,
    score,
)
from shoal.reporting.gantt import waiting
from shoal.reporting.harvest import Yield
from shoal.reporting.tally import TrialRow

if TYPE_CHECKING:
    from rich.table import Table

TOP = 5  # trials in a summary
COLOURS = {"failed": "red", "finished": "green", "running": "cyan"}  # of a status


# -- as plain data ---------------------------------------------------------------------------------


def summary(
    lines: Iterable[Line],
    metric: str | None = None,
    mode: str | None = None,
    since: Snapshot | None = None,
) -> dict[str, Any]:
    """How the study stands, JSON-able; `metric` and `mode` as the journal says, unless given.

    Its keys:

    - study, recipe, metric, mode;
    - policy: what the automatic policy makes short, which policy it follows, and why; None: it
      is another policy;
    - status: empty, finished, added, open, or "stopped: why"; stopped: why, or None;
    - trials: how many by status, and `all`;
    - best: the best trial, or None without a score; top: the best few;
    - folds: the best means of configurations over their folds, if there are folds;
    - seconds, runs; starting: seconds in which runs waited for their first slots;
    - slots: seconds by kind of each slot; used: slot seconds by kind; idle: slot seconds by what
      idle slots waited for;
    - training: the share of slot time that went to it;
    - shares: as of `Account.shares`; waiting: seconds that each slot waited; formed: what the
      policy started at one time, and how long that ran, for `flotilla` and `rounds`;
    - harvest: of slots that came and went, the whole and bins: slot-seconds offered, used, useful,
      of the reference, preempted, rescaled; slots (eq. 18), efficiency (U), returned (Fig. 8);
    - rescales: what each change of a running trial's width cost and gained, in seconds;
    - samples; throughput: samples/s while there were slots;
    - repeated: falls, visits, samples, seconds, and the same by trial;
    - hops, moved_bytes; dealt_bytes: of samples that were dealt to shards of other nodes;
    - failures; splits: packs that had no room;
    - feeders: what they did, by run and node;
    - entries; since: of a long journal of which `lines` are the newest: entries, those that were
      not counted, and the time of the last of them; else None. `since` (the argument): what these
      come to. What is no part of a study's state is counted from then on: slots, used, idle,
      training, shares, waiting, formed, harvest, rescales, repeated, hops, bytes and splits;
    - figures: measured ones by signature; given: those given instead, by configuration.

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    facts = account(lines, metric, mode, since)
    found = {**_head(facts), **_trials(facts), **_work(facts), **_profile(facts)}
    return {key: _plain(part) for key, part in found.items()}


def _head(facts: Account) -> dict[str, Any]:
    """What the study is, and whether it is over."""
    recipe = facts.head.get("recipe")
    if isinstance(recipe, Mapping):
        recipe = recipe.get("name")
    policy = None
    choice = facts.choice
    if choice is not None:
        policy = {
            "objective": facts.objective,
            "follows": choice.follows,
            "why": choice.why,
        }
    return {
        "study": facts.head.get("study"),
        "recipe": recipe,
        "policy": policy,
        "metric": facts.metric,
        "mode": facts.mode,
        "status": facts.status,
        "stopped": _stopped(facts),
    }


def _harvest(facts: Account) -> dict[str, Any] | None:
    """What came of slots that came and went; None: they stayed."""
    found = facts.harvest
    if found is None:
        return None
    bins = [_yield(each) for each in found.bins]
    return {**_yield(found.whole), "nodes": found.nodes, "bins": bins}


def _yield(each: Yield) -> dict[str, Any]:
    """One part's figures, also those that follow from others."""
    return {
        **each._asdict(),
        "slots": each.slots,
        "efficiency": each.efficiency,
        "returned": each.returned,
    }


def _stopped(facts: Account) -> str | None:
    """Why the last run was stopped; None if it was not."""
    if not facts.runs:
        return None
    how, _, why = facts.runs[-1].how.partition(": ")
    if not how.startswith("stop"):
        return None
    return why or "on request"


def _trials(facts: Account) -> dict[str, Any]:
    """How many trials there are, and the best of them."""
    folds = over_folds(facts.trials, facts.mode)
    own = {
        name: {"metric": each.metric, "mode": each.mode, **_top(each)}
        for name, each in facts.by_recipe.items()
    }
    return {
        "trials": {"all": len(facts.trials), **facts.count()},
        **_top(facts),
        **({"best_by_recipe": own} if own else {}),
        **({"folds": folds} if folds else {}),
    }


def _top(facts: Account) -> dict[str, Any]:
    """The best trials."""
    top = [_trial(row) for row in facts.ranked()[:TOP] if row.scored]
    return {"best": next(iter(top), None), "top": top}


def _work(facts: Account) -> dict[str, Any]:
    """Where time went, and what was done in it."""
    used = facts.used
    whole = sum(used.values())
    training = None
    if whole:
        training = used["train"] / whole
    return {
        "seconds": facts.seconds,
        "entries": facts.entries,
        "since": None if facts.since is None else facts.since._asdict(),
        "starting": facts.starting,
        "runs": [run._asdict() for run in facts.runs],
        "slots": facts.use,
        "used": used,
        "idle": facts.idle,
        "training": training,
        "shares": facts.shares,
        "waiting": waiting(facts.use),
        "formed": [formed._asdict() for formed in facts.overhead.formed],
        "harvest": _harvest(facts),
        "rescales": [change._asdict() for change in facts.rescales],
        "samples": facts.trained,
        "throughput": facts.throughput,
        "repeated": _repeated(facts),
        "hops": sum(row.hops for row in facts.trials),
        "moved_bytes": sum(row.moved for row in facts.trials),
        "dealt_bytes": sum(row.dealt for row in facts.trials),
        "failures": _failures(facts),
        "splits": [split._asdict() for split in facts.splits],
    }


def _profile(facts: Account) -> dict[str, Any]:
    """What feeders did, and the figures of the profile."""
    feeders = []
    for (run, node), figures in facts.feeders.items():
        feeders.append({"run": run, "node": node, **figures})
    given = []
    for values, figures in given_rows(facts.head):
        given.append({"config": values, "figures": figures})
    return {"feeders": feeders, "figures": facts.figures, "given": given}


def _trial(row: TrialRow) -> dict[str, Any]:
    """A trial of the summary."""
    found = {
        "trial": row.id,
        "score": row.last,
        "best_score": row.best,
        "best_epoch": row.best_epoch,
        "epochs": row.epochs,
        "status": row.status,
        "train_seconds": row.spent.get("train", 0.0),
        "config": dict(row.config),
    }
    if row.priority != 1.0:
        found["priority"] = row.priority
    return found


def _failures(facts: Account) -> list[dict[str, Any]]:
    """The trials that failed, and why."""
    failed = [row for row in facts.trials if row.status == "failed"]
    return [{"trial": row.id, "why": row.why, "epochs": row.epochs} for row in failed]


def _repeated(facts: Account) -> dict[str, Any]:
    """The work that was lost, in all and by trial."""
    by_trial = {row.id: row.repeated._asdict() for row in facts.trials if row.repeated.falls}
    found: dict[str, Any] = {}
    for name in ("falls", "visits", "samples", "seconds"):
        found[name] = sum(void[name] for void in by_trial.values())
    found["trials"] = by_trial
    return found


def _plain(item: Any) -> Any:
    """What JSON can hold: no number that it lacks, tuples as lists."""
    if isinstance(item, float):
        if isfinite(item):
            return item
        return None
    if isinstance(item, Mapping):
        return {str(key): _plain(part) for key, part in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(part) for part in item]
    return item


# -- as a table ------------------------------------------------------------------------------------


def table(
    lines: Iterable[Line],
    metric: str | None = None,
    mode: str | None = None,
    top: int = 20,
) -> "Table":
    """The best trials as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    facts = account(lines, metric, mode)
    rows = facts.ranked()[:top]
    names = list(dict.fromkeys(name for row in rows for name in row.config))
    heads = [*names, "epochs", "training"]
    if facts.metric:
        heads = [facts.metric, "best", *heads]

    def cell(text: str) -> str:
        return escape(printable(text))

    made = Table("#", "trial", header_style="bold", box=None, pad_edge=False)
    for head in heads:
        made.add_column(cell(head), justify="right")
    made.add_column("status")
    for place, row in enumerate(rows, 1):
        cells = [row.id, *_cells(row, names, bool(facts.metric))]
        colour = COLOURS.get(row.status, "default")
        status = f"[{colour}]{row.status}[/]"
        made.add_row(str(place), *map(cell, cells), status)
    return made


def _cells(row: TrialRow, names: Iterable[str], scored: bool) -> list[str]:
    """What the table says of a trial. `scored`: the study has a metric."""
    cells = []
    if scored:
        cells += [score(row.last), score(row.best)]
    cells += [_config_cell(row, name) for name in names]
    return [*cells, number(row.epochs, 3), duration(row.spent.get("train"))]


def _config_cell(row: TrialRow, name: str) -> str:
    """A value of the trial's configuration; a dash if it lacks that name."""
    if name not in row.config:
        return DASH
    return config({"": row.config[name]})[1:]
