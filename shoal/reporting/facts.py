"""The facts of a study: what its JSON, its lines and the tiles of its pages say of each figure.

A new figure is counted in `accounting`, unless it follows from what is counted there, and is said
here: a value in `VALUES` (the JSON), and where it is worth it a line in `LINES` and a tile in
`TILES`. `text` and the pages go through these tables and know no single figure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePath
from re import compile as pattern
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.reporting.accounting import Account, given_rows
from shoal.reporting.format import (
    DASH,
    config,
    count,
    described,
    duration,
    number,
    plural,
    score,
    share,
    size,
    status_words,
)
from shoal.reporting.gantt import KINDS, waiting
from shoal.reporting.harvest import Yield
from shoal.reporting.rescales import WidthChange
from shoal.reporting.slots import asked_lines, standing_lines
from shoal.reporting.tally import TrialRow

FactValues = Mapping[str, Any]  # by the keys of the facts

TOP = 5  # trials, configurations or reasons that are named
SHORT = 1.0  # seconds of waiting that are not worth a word
FOLD = "fold"  # the key of a configuration that says which fold a trial validates on
ABSENT = object()  # the value of a key that this study's JSON does not have


class Bare(str):
    """A line that stands as it is, without the label of its fact."""

    __slots__ = ()


class Tile(NamedTuple):
    """A figure at a glance, on a page."""

    label: str
    figure: str
    note: str = ""


# -- the study -------------------------------------------------------------------------------------

# A status in a word or two, on a page.
MEANING = {
    "open": "at work, or cut off",
    "empty": "no trials",
    "added": "finished; trials were added since",
}
ALL_FAILED = "every trial failed"
DATE = pattern(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(?::\d\d(?:\.\d+)?)?(Z|\+00:00)?")


def standing(account: Account, status: str) -> tuple[str, str]:
    """A study's status in words for a page, and the kind by which it is coloured."""
    if status == "finished" and account.count()["failed"] == len(account.trials):
        return ALL_FAILED, "failed"
    return MEANING.get(status, status), status.partition(":")[0]


def about(account: Account, folder: str | None) -> dict[str, str]:
    """What the study was, by name, for the head of a page; texts may be empty."""
    head = account.head
    policy = described(head.get("policy"))
    if account.choice is not None:
        policy += f": {account.choice.follows}"
    backend = described(head.get("backend"))
    if is_simulated(account):
        backend += ", simulated"
    return {
        "recipe": _recipe_and_file(head.get("recipe")),
        "wanted": account.goal,
        "searcher": described(head.get("searcher")),
        "policy": policy,
        "backend": backend,
        "started": _date(described(head.get("started") or head.get("date"))),
        "folder": folder or "",
    }


def is_simulated(account: Account) -> bool:
    """Whether the study ran in virtual time."""
    return account.head.get("backend") == "sim" or bool(account.head.get("simulated"))


def _recipe_and_file(recipe: Any) -> str:
    """The recipe's name, and the file that it is in."""
    if not isinstance(recipe, Mapping):
        return described(recipe)
    text = described({"name": recipe.get("name")})
    if recipe.get("file"):
        text += f" in {PurePath(str(recipe['file'])).name}"
    return text


def _date(text: str) -> str:
    """2026-03-02T14:05:11+00:00 as 2026-03-02 14:05 UTC; anything else as it is."""
    date = DATE.fullmatch(text)
    if date is None:
        return text
    return f"{date[1]} {date[2]}" + (" UTC" if date[3] else "")


def _recipe(account: Account) -> Any:
    """The recipe's name."""
    recipe = account.head.get("recipe")
    return recipe.get("name") if isinstance(recipe, Mapping) else recipe


def _policy(account: Account) -> dict[str, str] | None:
    """What the automatic policy makes short, which policy it follows, and why."""
    choice = account.choice
    if choice is None:
        return None
    return {"objective": account.objective, "follows": choice.follows, "why": choice.why}


def _stopped(account: Account) -> str | None:
    """Why the last run was stopped; None if it was not."""
    if not account.runs:
        return None
    how, _, why = account.runs[-1].how.partition(": ")
    if not how.startswith("stop"):
        return None
    return why or "on request"


def _study_line(facts: FactValues) -> Iterator[str]:
    """The name, and the status in words."""
    status = str(facts["status"])
    trials = facts["trials"]
    if status == "finished" and trials.get("failed") == trials["all"]:
        status = ALL_FAILED
    words = {
        "open": _process(facts.get("process", {})),
        "empty": "no trial was submitted",
        "added": "finished, and trials were added since: shoal resume trains them",
    }
    yield f"{facts['study'] or 'without a name'}: {words.get(status, status)}"


def _process(process: Mapping[str, Any]) -> str:
    """Whether a process runs the study, as far as that can be told."""
    if not process or process["running"] is None:
        return "at work, or cut off"
    if process["running"]:
        return "running"
    when = datetime.fromtimestamp(process["heard"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    ago = duration(round(process["silent"]))
    return (
        f"cut off: no process runs it, since {when} UTC ({ago} ago); "
        f"{process['again']} goes on with it"
    )


def _policy_line(facts: FactValues) -> Iterator[str]:
    """What the automatic policy follows."""
    choice = facts.get("policy")
    if choice:
        yield f"auto ({choice['objective']}): {choice['follows']}, because {choice['why']}"


# -- trials ----------------------------------------------------------------------------------------


def _by_status(facts: FactValues) -> list[str]:
    """The number of trials of each status, as far as there are any."""
    counts = facts["trials"].items()
    return [f"{n} {status_words(status)}" for status, n in counts if n and status != "all"]


def _trials_line(facts: FactValues) -> Iterator[str]:
    """How many trials there are, by status."""
    states = ", ".join(_by_status(facts))
    yield f"{facts['trials']['all']}: {states}" if states else f"{facts['trials']['all']}"


def _trials_tile(facts: FactValues) -> Iterator[Tile]:
    """How many trials there are, by status."""
    note = " · ".join(_by_status(facts)) or "none was submitted"
    yield Tile("trials", f"{facts['trials']['all']:,}", note)


def _best(account: Account) -> dict[str, Any] | None:
    """The best trial; None without a score."""
    best = account.best()
    return None if best is None else _trial(best)


def _top(account: Account) -> list[dict[str, Any]]:
    """The best few trials."""
    return [_trial(row) for row in account.ranked()[:TOP] if row.scored]


def _trial(row: TrialRow) -> dict[str, Any]:
    """A trial as a value."""
    trial = {
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
        trial["priority"] = row.priority
    return trial


def _by_recipe(account: Account) -> Any:
    """The best trials of each recipe, where each has its own metric."""
    if not account.by_recipe:
        return ABSENT
    return {
        name: {"metric": part.metric, "mode": part.mode, "best": _best(part), "top": _top(part)}
        for name, part in account.by_recipe.items()
    }


def _best_lines(facts: FactValues) -> Iterator[str]:
    """The best trials with their scores."""
    recipes = facts.get("best_by_recipe", {})
    for recipe in recipes.values():
        yield from _best_lines(recipe)
    if recipes:
        return
    metric = facts["metric"]
    if not metric:
        return
    if facts["best"] is None:
        yet = "" if facts["status"] == "finished" else " yet"
        yield f"no trial has a score {metric!r}{yet}"
        return
    scores = [score(row["score"]) for row in facts["top"]]
    width = max(map(len, scores))
    for reached, row in zip(scores, facts["top"], strict=True):
        text = f"{reached:<{width}} {row['trial']}  {config(row['config'], 90)}"
        if row["best_score"] != row["score"]:  # its last one is not as good
            text += f"  ({score(row['best_score'])} after epoch {row['best_epoch']:g})"
        yield f"{metric} {text}" if row is facts["top"][0] else below(f"{metric} ", text)


def below(start: str, text: str) -> Bare:
    """A line below one of the same fact whose label is followed by `start`."""
    return Bare(" " * (LABEL + len(start)) + text)


def _best_tiles(facts: FactValues) -> Iterator[Tile]:
    """The best score, of each recipe where each has its own metric; none without a metric."""
    recipes = facts.get("best_by_recipe", {})
    for recipe in recipes.values():
        yield from _best_tiles(recipe)
    if recipes or not facts["metric"]:
        return
    label = f"best {facts['metric']}"
    best = facts["best"]
    if best is None:
        yield Tile(label, DASH, "no trial has a score")
    else:
        epochs = best["epochs"]
        length = "an unknown number of epochs"
        if epochs is not None:
            length = f"{number(epochs, 3)} {'epoch' if epochs == 1 else 'epochs'}"
        yield Tile(label, score(best["score"]), f"trial {best['trial']}, after {length}")


def _folds(account: Account) -> Any:
    """The configurations with the best mean of their trials' last scores over their folds.

    Each with `config` without its fold, `mean`, `std` and `folds`, their number, best first.
    Configurations with a score in one fold only are left out.
    """
    alike: dict[str, dict[Any, TrialRow]] = {}
    for row in account.trials:
        if row.scored and FOLD in row.config:
            of_folds = alike.setdefault(repr(sorted(_without_fold(row).items())), {})
            of_folds.setdefault(row.config[FOLD], row)
    means: list[dict[str, Any]] = []
    for rows in [[*folds.values()] for folds in alike.values() if len(folds) > 1]:
        scores = [row.last for row in rows if row.last is not None]
        figures = {"mean": mean(scores), "std": stdev(scores), "folds": len(scores)}
        means.append({"config": _without_fold(rows[0]), **figures})
    best = sorted(means, key=lambda each: each["mean"], reverse=account.mode == "max")
    return best[:TOP] or ABSENT


def _without_fold(row: TrialRow) -> dict[str, Any]:
    """The trial's configuration without its fold."""
    return {name: value for name, value in row.config.items() if name != FOLD}


def _fold_lines(facts: FactValues) -> Iterator[str]:
    """The configurations with the best means."""
    start = f"mean {facts['metric']} "
    for place, row in enumerate(facts.get("folds", ())):
        figures = f"{score(row['mean'])} ± {score(row['std'])} of {row['folds']}"
        text = f"{figures}  {config(row['config'], 80)}"
        yield below(start, text) if place else start + text


def _failures(account: Account) -> list[dict[str, Any]]:
    """The trials that failed, and why."""
    failed = [row for row in account.trials if row.status == "failed"]
    return [{"trial": row.id, "why": row.why, "epochs": row.epochs} for row in failed]


def _failure_lines(facts: FactValues) -> Iterator[str]:
    """The first reasons of failures, each once."""
    by_reason: dict[str, list[str]] = {}
    for failure in facts["failures"]:
        by_reason.setdefault(failure["why"], []).append(failure["trial"])
    for why, trials in [*by_reason.items()][:TOP]:
        who = trials[0] if len(trials) == 1 else f"{len(trials)} trials, {trials[0]} first"
        yield f"{who}: {why}"
    if len(by_reason) > TOP:
        yield below("", f"… and {len(by_reason) - TOP} other reasons")


# -- time and slots --------------------------------------------------------------------------------


def _time_line(facts: FactValues) -> Iterator[str]:
    """How long the runs took together."""
    length = duration(facts["seconds"])
    if len(facts["runs"]) > 1:
        length += f" in {len(facts['runs'])} runs"
    if facts["starting"] >= SHORT:
        length += f", {duration(facts['starting'])} of it until slots were open"
    yield length


def _time_tile(facts: FactValues) -> Iterator[Tile]:
    """How long the runs took together."""
    yield Tile("time", duration(facts["seconds"]), plural(len(facts["runs"]), "run"))


def _since_line(facts: FactValues) -> Iterator[str]:
    """Of which part of the journal the lines below are; nothing if of the whole."""
    since = facts.get("since")
    if since is not None:
        counted = facts["entries"] - since["entries"]
        yield (
            f"{duration(since['time'])}: use of slots and repeated work are of the newest "
            f"{counted:,} of {facts['entries']:,} entries; --whole counts all"
        )


def _training(account: Account) -> float | None:
    """The share of slot time that went to training."""
    used = account.used
    whole = sum(used.values())
    return used["train"] / whole if whole else None


def _slots_line(facts: FactValues) -> Iterator[str]:
    """What slot time went to, and what moved between slots."""
    parts = _slot_shares(facts["used"], facts.get("idle", {}))
    if not parts:
        return
    line = f"{len(facts['slots'])}: {', '.join(parts)}"
    if facts["hops"]:
        line += f"; {plural(facts['hops'], 'move')} between slots"
    if facts["moved_bytes"]:
        line += f", {size(facts['moved_bytes'])} of state"
    if facts["dealt_bytes"]:
        line += f", {size(facts['dealt_bytes'])} of samples dealt"
    yield line


def _slot_shares(
    used: Mapping[str, float], idle: Mapping[str, float] = MappingProxyType({})
) -> list[str]:
    """The share of each kind in the slots' time, as texts; `idle`: by what slots waited for."""
    whole = sum(used.values())
    shares = []
    for kind in KINDS:
        length = used.get(kind, 0)
        if length and length >= 0.001 * whole:
            shares.append(f"{share(length, whole)} {kind}")
    causes = {why: each for why, each in idle.items() if each >= 0.001 * whole}
    if shares and causes:  # idle is the last kind
        texts = [f"{share(length, whole)} {why}" for why, length in causes.items()]
        shares[-1] += f" ({', '.join(causes if len(causes) == 1 else texts)})"
    return shares


def _slots_tile(facts: FactValues) -> Iterator[Tile]:
    """How many slots there were, and the part of their time that went to training."""
    used = facts["used"]
    whole = sum(used.values())
    note = f"{share(used['train'], whole)} of slot time in training" if whole else "none was there"
    yield Tile("slots", str(len(facts["slots"])), note)


def _harvest(account: Account) -> dict[str, Any] | None:
    """What came of slots that came and went; None: they stayed."""
    harvest = account.harvest
    if harvest is None:
        return None
    bins = [_yield(each) for each in harvest.bins]
    return {**_yield(harvest.whole), "nodes": harvest.nodes, "bins": bins}


def _yield(part: Yield) -> dict[str, Any]:
    """The figures of a harvest's part, also those that follow from others."""
    return {
        **part._asdict(),
        "slots": part.slots,
        "efficiency": part.efficiency,
        "returned": part.returned,
    }


def _harvest_line(facts: FactValues) -> Iterator[str]:
    """What came of slots that came and went."""
    whole = facts.get("harvest")
    if not whole:
        return
    offered = whole["offered"]
    line = (
        f"{duration(offered)} of slots offered, {share(whole['used'], offered)} used; "
        f"as {number(whole['slots'], 3)} slots that stay"
    )
    if whole["efficiency"] is not None:
        line += f"; U {share(whole['efficiency'], 1.0)}"
    yield (
        f"{line}; lost {share(whole['preempted'], offered)} to preemption, "
        f"{share(whole['rescaled'], offered)} to rescaling"
    )


def _rescales_line(facts: FactValues) -> Iterator[str]:
    """What changes of width cost and gained."""
    changes = [WidthChange(**change) for change in facts.get("rescales", ())]
    if changes:
        yield rescales_line(changes)


def rescales_line(changes: Sequence[WidthChange]) -> str:
    """How often running trials got more or fewer slots, and what that cost and gained in all."""
    stood = sum(change.stood or 0.0 for change in changes)
    line = f"{plural(len(changes), 'change')} of width, {duration(stood)} without training"
    known = [change.saved for change in changes if change.saved is not None]
    if known:
        saved = sum(known)
        word = "saved" if saved >= 0 else "lost"
        those = "in all"
        if len(known) < len(changes):
            those = f"by {len(known)} of them"
        line += f", {duration(abs(saved))} {word} {those}"
    return line


# -- samples, and work that was lost ---------------------------------------------------------------


def _trained_line(unit: str, facts: FactValues) -> Iterator[str]:
    """How many samples or reports there were, and how fast; nothing if their unit is another."""
    if facts["throughput"] and facts["unit"] == unit:
        yield f"{count(facts['samples'])}, {count(facts['throughput'])} a second"


def _samples_tile(facts: FactValues) -> Iterator[Tile]:
    """How many samples were trained, and how fast."""
    rate = facts["throughput"]
    note = f"{count(rate)} a second" if rate else ""
    what = "samples trained" if facts["unit"] == "samples" else "reports"
    yield Tile(what, count(facts["samples"]), note)


def _repeated(account: Account) -> dict[str, Any]:
    """The work that was lost, in all and by trial."""
    by_trial = {row.id: row.repeated._asdict() for row in account.trials if row.repeated.falls}
    names = ("falls", "visits", "samples", "seconds")
    sums = {name: sum(void[name] for void in by_trial.values()) for name in names}
    return {**sums, "trials": by_trial}


def _repeated_line(facts: FactValues) -> Iterator[str]:
    """How much work was lost."""
    void = facts["repeated"]
    if void["falls"]:
        samples = f"{count(void['samples'])} samples ({share(void['samples'], facts['samples'])})"
        lost = f"{samples}, {duration(void['seconds'])} of slot time"
        yield f"{lost}, in {plural(len(void['trials']), 'trial')}"


def _repeated_tile(facts: FactValues) -> Iterator[Tile]:
    """How much work was lost."""
    lost = facts["repeated"]["samples"]
    if lost:
        part = share(lost, facts["samples"])
        yield Tile("repeated work", part, f"{count(lost)} samples")
    else:
        yield Tile("repeated work", "none", "nothing was lost")


def _split_lines(facts: FactValues) -> Iterator[str]:
    """Packs that had no room."""
    for split in facts["splits"][:TOP]:
        line = f"{split['why']}, at {duration(split['time'])}"
        needs = ", ".join(size(need * 2**30) for need in split["needs"].values())
        yield f"{line}: each is believed to need {needs}" if needs else line


# -- feeders and measured figures ------------------------------------------------------------------


def _feeders(account: Account) -> list[dict[str, Any]]:
    """What feeders did, by run and node."""
    return [
        {"run": run, "node": node, **figures} for (run, node), figures in account.feeders.items()
    ]


def _feeder_lines(facts: FactValues) -> Iterator[str]:
    """What the feeders of the newest runs did."""
    for row in facts.get("feeders", ())[-TOP:]:
        if row["served"]:
            received = ""
            if row.get("received"):
                received = f"{count(row['received'])} received from other nodes, "
            yield (
                f"{row['feeders']:g}: {count(row['made'])} chunks made, {received}"
                f"{count(row['served'])} handed out, "
                f"{share(row['waits'], row['served'])} of them waited for"
            )


def _given(account: Account) -> list[dict[str, Any]]:
    """The figures that were given instead of measured ones."""
    return [{"config": config, "figures": figures} for config, figures in given_rows(account.head)]


def _given_line(facts: FactValues) -> Iterator[str]:
    """The names of the figures that were given."""
    names = dict.fromkeys(name for row in facts.get("given", ()) for name in row["figures"])
    if names:
        yield f"{', '.join(names)}; the rest is measured"


# -- the tables ------------------------------------------------------------------------------------

VALUES: Mapping[str, Callable[[Account], Any]] = {
    "study": lambda account: account.head.get("study"),
    "recipe": _recipe,
    "policy": _policy,
    "metric": lambda account: account.metric,
    "mode": lambda account: account.mode,
    "status": lambda account: account.status,
    "stopped": _stopped,
    "trials": lambda account: {"all": len(account.trials), **account.count()},
    "best": _best,
    "top": _top,
    "best_by_recipe": _by_recipe,
    "folds": _folds,
    "seconds": lambda account: account.seconds,
    "entries": lambda account: account.entries,
    "since": lambda account: None if account.since is None else account.since._asdict(),
    "starting": lambda account: account.starting,
    "runs": lambda account: [run._asdict() for run in account.runs],
    "slots": lambda account: account.use,
    "used": lambda account: account.used,
    "idle": lambda account: account.idle,
    "training": _training,
    "shares": lambda account: account.shares,
    "waiting": lambda account: waiting(account.use),
    "formed": lambda account: [formed._asdict() for formed in account.overhead.formed],
    "harvest": _harvest,
    "rescales": lambda account: [change._asdict() for change in account.rescales],
    "samples": lambda account: account.trained,
    "throughput": lambda account: account.throughput,
    "unit": lambda account: account.unit,
    "repeated": _repeated,
    "hops": lambda account: sum(row.hops for row in account.trials),
    "moved_bytes": lambda account: sum(row.moved for row in account.trials),
    "dealt_bytes": lambda account: sum(row.dealt for row in account.trials),
    "failures": _failures,
    "splits": lambda account: [split._asdict() for split in account.splits],
    "feeders": _feeders,
    "figures": lambda account: account.figures,
    "given": _given,
}
"""The values of the JSON by their keys, in its order; their meanings: `text.summary`."""

LABEL = 9  # columns of the label of a line
LINES: Sequence[tuple[str, Callable[[FactValues], Iterable[str]]]] = (
    ("study", _study_line),
    ("trials", _trials_line),
    ("best", _best_lines),
    ("folds", _fold_lines),
    ("time", _time_line),
    ("since", _since_line),
    ("slots", _slots_line),
    ("asked", lambda facts: asked_lines(facts.get("asked"))),  # added by `shoal status`
    ("", lambda facts: map(Bare, standing_lines(facts.get("standing", ())))),  # likewise
    ("feeders", _feeder_lines),
    ("given", _given_line),
    ("policy", _policy_line),
    ("harvest", _harvest_line),
    ("rescaled", _rescales_line),
    ("samples", partial(_trained_line, "samples")),
    ("reports", partial(_trained_line, "reports")),
    ("repeated", _repeated_line),
    ("split", _split_lines),
    ("failed", _failure_lines),
)
"""What stands on a terminal, from above: the label of a fact's lines, and their texts."""

TILES: Sequence[Callable[[FactValues], Iterable[Tile]]] = (
    _best_tiles,
    _trials_tile,
    _time_tile,
    _slots_tile,
    _samples_tile,
    _repeated_tile,
)
"""What stands at the top of the report's page and of the live page, from the left."""


class Facts(Mapping[str, Any]):
    """The values of a study by the keys of `VALUES`, each computed when it is first asked for."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._known: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._known:
            self._known[key] = VALUES[key](self._account)
        value = self._known[key]
        if value is ABSENT:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        return (key for key in VALUES if key in self)

    def __len__(self) -> int:
        return len(list(iter(self)))


def tiles(account: Account) -> list[Tile]:
    """The study's figures at a glance."""
    facts = Facts(account)
    return [tile for make in TILES for tile in make(facts)]
