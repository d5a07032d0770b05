"""How a study stands: as plain data, as lines, and as a table for a terminal."""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from shoal.engine.journal import Line
from shoal.report.format import config, count, duration, number, plural, score, share, size
from shoal.report.gantt import KINDS
from shoal.report.metrics import Account, TrialRow, account, given_rows

if TYPE_CHECKING:
    from rich.table import Table

TOP = 5  # trials in a summary


def summary(lines: Iterable[Line], metric: str | None = None, mode: str | None = None) -> dict[str, Any]:
    """How the study stands, JSON-able; `metric` and `mode` as the journal says, unless given.

    Keys: study, recipe, metric, mode, status (empty, finished, open, "stopped: why"), stopped (why, or None), trials
    (by status, and `all`), best (None: no score), top, seconds, runs, slots (seconds by kind each), used (seconds by
    kind), policy (what the automatic one follows, and why; None: it is another), training (its share of slot time),
    samples, throughput (samples/s), repeated (falls, visits, samples, seconds, and by trial), hops, moved_bytes, failures,
    splits (of packs that had no room), feeders (what they did, by run and node), figures (by signature), given (instead of
    measured, by configuration).

    Raises:
        ValueError: the mode is neither "min" nor "max".
    """
    told = account(lines, metric, mode)
    recipe = told.head.get("recipe")
    status, used = told.status, told.used
    whole = sum(used.values())
    found = {
        "study": told.head.get("study"),
        "recipe": recipe.get("name") if isinstance(recipe, Mapping) else recipe,
        "policy": None if (choice := told.choice) is None else {"follows": choice.follows, "why": choice.why},
        "metric": told.metric,
        "mode": told.mode,
        "status": status,
        "stopped": told.runs[-1].how.partition(": ")[2] or "on request"
        if told.runs and told.runs[-1].how.startswith("stop")
        else None,
        "trials": {"all": len(told.trials), **told.count()},
        "best": None if (best := told.best()) is None else _trial(best),
        "top": [_trial(row) for row in told.ranked()[:TOP] if row.last is not None and row.status != "failed"],
        "seconds": told.seconds,
        "runs": [run._asdict() for run in told.runs],
        "slots": told.use,
        "used": used,
        "training": used["train"] / whole if whole else None,
        "samples": told.trained,
        "throughput": told.throughput,
        "repeated": _repeated(told),
        "hops": sum(row.hops for row in told.trials),
        "moved_bytes": sum(row.moved for row in told.trials),
        "failures": [{"trial": row.id, "why": row.why, "epochs": row.epochs} for row in told.trials if row.status == "failed"],
        "splits": [split._asdict() for split in told.splits],
        "feeders": [{"run": run, "node": node, **figures} for (run, node), figures in told.feeders.items()],
        "figures": told.figures,
        "given": [{"config": values, "figures": figures} for values, figures in given_rows(told.head)],
    }
    plain = _plain(found)
    assert isinstance(plain, dict)
    return plain


def _trial(row: TrialRow) -> dict[str, Any]:
    return {
        "trial": row.id,
        "score": row.last,
        "best_score": row.best,
        "best_epoch": row.best_epoch,
        "epochs": row.epochs,
        "status": row.status,
        "train_seconds": row.spent.get("train", 0.0),
        "config": dict(row.config),
        **({"priority": row.priority} if row.priority != 1.0 else {}),
    }


def _repeated(told: Account) -> dict[str, Any]:
    by_trial = {row.id: row.repeated._asdict() for row in told.trials if row.repeated.falls}
    names = ("falls", "visits", "samples", "seconds")
    return {**{name: sum(void[name] for void in by_trial.values()) for name in names}, "trials": by_trial}


def _plain(item: Any) -> Any:
    """What JSON can hold: no number that it lacks, tuples as lists."""
    if isinstance(item, float):
        return item if isfinite(item) else None
    if isinstance(item, Mapping):
        return {str(key): _plain(part) for key, part in item.items()}
    return [_plain(part) for part in item] if isinstance(item, (list, tuple)) else item


def status_lines(found: Mapping[str, Any]) -> list[str]:
    """A summary as lines for people."""
    states = ", ".join(f"{n} {status}" for status, n in found["trials"].items() if n and status != "all")
    shown = [
        f"study    {found['study'] or 'without a name'}: {_standing(found)}",
        f"trials   {found['trials']['all']}" + (f": {states}" if states else ""),
        *_best_lines(found),
        f"time     {duration(found['seconds'])}" + (f" in {len(found['runs'])} runs" if len(found["runs"]) > 1 else ""),
        *_slot_lines(found),
        *_feeder_lines(found),
        *_given_lines(found),
        *([f"policy   auto: {choice['follows']}, because {choice['why']}"] if (choice := found.get("policy")) else []),
    ]
    if found["throughput"]:
        shown.append(f"samples  {count(found['samples'])}, {count(found['throughput'])} a second")
    void = found["repeated"]
    if void["falls"]:
        part = share(void["samples"], found["samples"])
        lost = f"{count(void['samples'])} samples ({part}), {duration(void['seconds'])} of slot time"
        shown.append(f"repeated {lost}, in {plural(len(void['trials']), 'trial')}")
    for split in found["splits"][:TOP]:
        needs = ", ".join(size(need * 2**30) for need in split["needs"].values())
        believed = f": each is believed to need {needs}" if needs else ""
        shown.append(f"split    {split['why']}, at {duration(split['time'])}{believed}")
    failed = found["failures"]
    shown += [f"failed   {item['trial']}: {item['why']}" for item in failed[:TOP]]
    return shown + ([f"         … and {len(failed) - TOP} more"] if len(failed) > TOP else [])


def _feeder_lines(found: Mapping[str, Any]) -> list[str]:
    return [
        f"feeders  {row['feeders']:g}: {count(row['made'])} chunks made, {count(row['served'])} handed out, "
        f"{share(row['waits'], row['served'])} of them waited for"
        for row in found.get("feeders", ())[-TOP:]
        if row["served"]
    ]


def _given_lines(found: Mapping[str, Any]) -> list[str]:
    names = dict.fromkeys(name for row in found.get("given", ()) for name in row["figures"])
    return [f"given    {', '.join(names)}; the rest is measured"] if names else []


def _standing(found: Mapping[str, Any]) -> str:
    text = {"open": "at work, or cut off", "empty": "no trial was submitted"}
    status = str(found["status"])
    return text.get(status, status)


def _best_lines(found: Mapping[str, Any]) -> list[str]:
    if not found["metric"]:
        return []
    if found["best"] is None:
        return [f"best     no trial has a score {found['metric']!r} yet"]
    lines = []
    for place, row in enumerate(found["top"]):
        start = f"best     {found['metric']} " if place == 0 else " " * (10 + len(found["metric"]))
        lines.append(f"{start}{score(row['score']):<7} {row['trial']}  {config(row['config'], 90)}")
    return lines


def _slot_lines(found: Mapping[str, Any]) -> list[str]:
    whole = sum(found["used"].values())
    if not whole:
        return []
    parts = ", ".join(
        f"{share(found['used'][kind], whole)} {kind}" for kind in KINDS if found["used"].get(kind, 0) >= 0.001 * whole
    )
    moved = f"; {plural(found['hops'], 'move')} between slots" if found["hops"] else ""
    moved += f", {size(found['moved_bytes'])} of state" if found["moved_bytes"] else ""
    return [f"slots    {len(found['slots'])}: {parts}{moved}"]


def table(lines: Iterable[Line], metric: str | None = None, mode: str | None = None, top: int = 20) -> "Table":
    """The best trials as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    told = account(lines, metric, mode)
    rows = told.ranked()[:top]
    names = list(dict.fromkeys(name for row in rows for name in row.config))
    made = Table("#", "trial", header_style="bold", box=None, pad_edge=False)
    for head in (*((told.metric, "best") if told.metric else ()), *names, "epochs", "training"):
        made.add_column(escape(head), justify="right")
    made.add_column("status")
    for place, row in enumerate(rows, 1):
        scores = (score(row.last), score(row.best)) if told.metric else ()
        values = [escape(config({"": row.config[name]})[1:]) if name in row.config else "–" for name in names]
        colour = {"failed": "red", "finished": "green", "running": "cyan"}.get(row.status, "default")
        ends = (number(row.epochs, 3), duration(row.spent.get("train")), f"[{colour}]{row.status}[/]")
        made.add_row(str(place), escape(row.id), *scores, *values, *ends)
    return made
