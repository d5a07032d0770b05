"""How a study stands: as plain data, as lines, and as a table for a terminal."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from shoal.engine.journal import Line
from shoal.reporting.facts.bars import KINDS
from shoal.reporting.facts.folds import fold_lines, over_folds
from shoal.reporting.facts.format import (
    DASH,
    config,
    count,
    duration,
    number,
    plural,
    score,
    share,
    size,
)
from shoal.reporting.facts.metrics import Account, account, given_rows
from shoal.reporting.facts.rows import TrialRow

if TYPE_CHECKING:
    from rich.table import Table

TOP = 5  # trials in a summary
COLOURS = {"failed": "red", "finished": "green", "running": "cyan"}  # of a status


# -- as plain data ---------------------------------------------------------------------------------


def summary(
    lines: Iterable[Line], metric: str | None = None, mode: str | None = None
) -> dict[str, Any]:
    """How the study stands, JSON-able; `metric` and `mode` as the journal says, unless given.

    Its keys:

    - study, recipe, metric, mode;
    - policy: what the automatic policy follows, and why; None: it is another policy;
    - status: empty, finished, added, open, or "stopped: why"; stopped: why, or None;
    - trials: how many by status, and `all`;
    - best: the best trial, or None without a score; top: the best few;
    - folds: the best means of configurations over their folds, if there are folds;
    - seconds, runs; slots: seconds by kind of each slot; used: slot seconds by kind;
    - training: the share of slot time that went to it;
    - samples; throughput: samples/s;
    - repeated: falls, visits, samples, seconds, and the same by trial;
    - hops, moved_bytes;
    - failures; splits: packs that had no room;
    - feeders: what they did, by run and node;
    - figures: measured ones by signature; given: those given instead, by configuration.

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    facts = account(lines, metric, mode)
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
        policy = {"follows": choice.follows, "why": choice.why}
    return {
        "study": facts.head.get("study"),
        "recipe": recipe,
        "policy": policy,
        "metric": facts.metric,
        "mode": facts.mode,
        "status": facts.status,
        "stopped": _stopped(facts),
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
    top = [_trial(row) for row in facts.ranked()[:TOP] if row.scored]
    folds = over_folds(facts.trials, facts.mode)
    return {
        "trials": {"all": len(facts.trials), **facts.count()},
        "best": next(iter(top), None),
        "top": top,
        **({"folds": folds} if folds else {}),
    }


def _work(facts: Account) -> dict[str, Any]:
    """Where time went, and what was done in it."""
    used = facts.used
    whole = sum(used.values())
    training = None
    if whole:
        training = used["train"] / whole
    return {
        "seconds": facts.seconds,
        "runs": [run._asdict() for run in facts.runs],
        "slots": facts.use,
        "used": used,
        "training": training,
        "samples": facts.trained,
        "throughput": facts.throughput,
        "repeated": _repeated(facts),
        "hops": sum(row.hops for row in facts.trials),
        "moved_bytes": sum(row.moved for row in facts.trials),
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
    by_trial = {
        row.id: row.repeated._asdict() for row in facts.trials if row.repeated.falls
    }
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


# -- as lines --------------------------------------------------------------------------------------


def status_lines(found: Mapping[str, Any]) -> list[str]:
    """A summary as lines for people."""
    return [
        f"study    {found['study'] or 'without a name'}: {_standing(found)}",
        _trials_line(found),
        *_best_lines(found),
        *fold_lines(found),
        _time_line(found),
        *_slot_lines(found),
        *_feeder_lines(found),
        *_given_lines(found),
        *_policy_lines(found),
        *_sample_lines(found),
        *_repeated_lines(found),
        *_split_lines(found),
        *_failed_lines(found),
    ]


def _standing(found: Mapping[str, Any]) -> str:
    """The status in words."""
    text = {
        "open": "at work, or cut off",
        "empty": "no trial was submitted",
        "added": "finished, and trials were added since: shoal resume trains them",
    }
    status = str(found["status"])
    return text.get(status, status)


def _trials_line(found: Mapping[str, Any]) -> str:
    """How many trials there are, by status."""
    states = []
    for status, trials in found["trials"].items():
        if trials and status != "all":
            states.append(f"{trials} {status}")
    line = f"trials   {found['trials']['all']}"
    if not states:
        return line
    return f"{line}: {', '.join(states)}"


def _best_lines(found: Mapping[str, Any]) -> list[str]:
    """The best trials with their scores."""
    metric = found["metric"]
    if not metric:
        return []
    if found["best"] is None:
        return [f"best     no trial has a score {metric!r} yet"]
    lines = []
    start = f"best     {metric} "
    for row in found["top"]:
        lines.append(
            f"{start}{score(row['score']):<7} {row['trial']}  {config(row['config'], 90)}"
        )
        start = " " * (10 + len(metric))
    return lines


def _time_line(found: Mapping[str, Any]) -> str:
    """How long the runs took together."""
    length = duration(found["seconds"])
    runs = len(found["runs"])
    if runs > 1:
        length += f" in {runs} runs"
    return f"time     {length}"


def _slot_lines(found: Mapping[str, Any]) -> list[str]:
    """What slot time went to, and what moved between slots."""
    parts = _slot_shares(found["used"])
    if not parts:
        return []
    line = f"slots    {len(found['slots'])}: {', '.join(parts)}"
    if found["hops"]:
        line += f"; {plural(found['hops'], 'move')} between slots"
    if found["moved_bytes"]:
        line += f", {size(found['moved_bytes'])} of state"
    return [line]


def _slot_shares(used: Mapping[str, float]) -> list[str]:
    """The share of each kind in the slots' time, as texts."""
    whole = sum(used.values())
    shares = []
    for kind in KINDS:
        length = used.get(kind, 0)
        if length and length >= 0.001 * whole:
            shares.append(f"{share(length, whole)} {kind}")
    return shares


def _feeder_lines(found: Mapping[str, Any]) -> list[str]:
    """What the feeders of the newest runs did."""
    lines = []
    for row in found.get("feeders", ())[-TOP:]:
        if row["served"]:
            lines.append(
                f"feeders  {row['feeders']:g}: {count(row['made'])} chunks made, "
                f"{count(row['served'])} handed out, "
                f"{share(row['waits'], row['served'])} of them waited for"
            )
    return lines


def _given_lines(found: Mapping[str, Any]) -> list[str]:
    """The names of the figures that were given."""
    names = dict.fromkeys(
        name for row in found.get("given", ()) for name in row["figures"]
    )
    if not names:
        return []
    return [f"given    {', '.join(names)}; the rest is measured"]


def _policy_lines(found: Mapping[str, Any]) -> list[str]:
    """What the automatic policy follows."""
    choice = found.get("policy")
    if not choice:
        return []
    return [f"policy   auto: {choice['follows']}, because {choice['why']}"]


def _sample_lines(found: Mapping[str, Any]) -> list[str]:
    """How many samples were trained, and how fast."""
    if not found["throughput"]:
        return []
    return [
        f"samples  {count(found['samples'])}, {count(found['throughput'])} a second"
    ]


def _repeated_lines(found: Mapping[str, Any]) -> list[str]:
    """How much work was lost."""
    void = found["repeated"]
    if not void["falls"]:
        return []
    part = share(void["samples"], found["samples"])
    samples = f"{count(void['samples'])} samples ({part})"
    lost = f"{samples}, {duration(void['seconds'])} of slot time"
    return [f"repeated {lost}, in {plural(len(void['trials']), 'trial')}"]


def _split_lines(found: Mapping[str, Any]) -> list[str]:
    """Packs that had no room."""
    lines = []
    for split in found["splits"][:TOP]:
        line = f"split    {split['why']}, at {duration(split['time'])}"
        needs = ", ".join(size(need * 2**30) for need in split["needs"].values())
        if needs:
            line += f": each is believed to need {needs}"
        lines.append(line)
    return lines


def _failed_lines(found: Mapping[str, Any]) -> list[str]:
    """The first failures."""
    failed = found["failures"]
    lines = [f"failed   {item['trial']}: {item['why']}" for item in failed[:TOP]]
    if len(failed) > TOP:
        lines.append(f"         … and {len(failed) - TOP} more")
    return lines


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

    made = Table("#", "trial", header_style="bold", box=None, pad_edge=False)
    for head in heads:
        made.add_column(escape(head), justify="right")
    made.add_column("status")
    for place, row in enumerate(rows, 1):
        cells = [row.id, *_cells(row, names, bool(facts.metric))]
        colour = COLOURS.get(row.status, "default")
        status = f"[{colour}]{row.status}[/]"
        made.add_row(str(place), *map(escape, cells), status)
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
