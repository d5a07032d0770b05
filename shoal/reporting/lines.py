"""How a study stands, as lines for people."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from shoal.reporting.folds import fold_lines
from shoal.reporting.format import (
    config,
    count,
    duration,
    number,
    plural,
    score,
    share,
    size,
)
from shoal.reporting.gantt import KINDS
from shoal.reporting.rescales import WidthChange
from shoal.reporting.slots import asked_lines, standing_lines

TOP = 5  # of a kind of line
SHORT = 1.0  # seconds of waiting that are not worth a word


def status_lines(found: Mapping[str, Any]) -> list[str]:
    """A summary as lines for people."""
    return [
        f"study    {found['study'] or 'without a name'}: {_standing(found)}",
        _trials_line(found),
        *_best_lines(found),
        *fold_lines(found),
        _time_line(found),
        *_since_lines(found),
        *_slot_lines(found),
        *asked_lines(found.get("asked")),
        *standing_lines(found.get("standing", ())),
        *_feeder_lines(found),
        *_given_lines(found),
        *_policy_lines(found),
        *_harvest_lines(found),
        *_rescale_lines(found),
        *_sample_lines(found),
        *_repeated_lines(found),
        *_split_lines(found),
        *_failed_lines(found),
    ]


def _standing(found: Mapping[str, Any]) -> str:
    """The status in words."""
    text = {
        "open": _process(found.get("process", {})),
        "empty": "no trial was submitted",
        "added": "finished, and trials were added since: shoal resume trains them",
    }
    status = str(found["status"])
    trials = found["trials"]
    if status == "finished" and trials.get("failed") == trials["all"]:
        return "every trial failed"
    return text.get(status, status)


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
    own = found.get("best_by_recipe", {})
    if own:
        return [line for each in own.values() for line in _best_lines(each)]
    metric = found["metric"]
    if not metric:
        return []
    if found["best"] is None:
        return [f"best     no trial has a score {metric!r} yet"]
    lines = []
    start = f"best     {metric} "
    scores = [score(row["score"]) for row in found["top"]]
    width = max(map(len, scores))
    for reached, row in zip(scores, found["top"], strict=True):
        text = f"{start}{reached:<{width}} {row['trial']}  {config(row['config'], 90)}"
        lines.append(f"{text}{_better_before(row)}")
        start = " " * (10 + len(metric))
    return lines


def _better_before(row: Mapping[str, Any]) -> str:
    """The trial's best score, if its last one is not as good."""
    if row["best_score"] == row["score"]:
        return ""
    return f"  ({score(row['best_score'])} after epoch {row['best_epoch']:g})"


def _since_lines(found: Mapping[str, Any]) -> list[str]:
    """What the lines below are of, if that is not the whole journal."""
    since = found.get("since")
    if since is None:
        return []
    counted = found["entries"] - since["entries"]
    return [
        f"since    {duration(since['time'])}: use of slots and repeated work are of the newest "
        f"{counted:,} of {found['entries']:,} entries; --whole counts all"
    ]


def _time_line(found: Mapping[str, Any]) -> str:
    """How long the runs took together."""
    length = duration(found["seconds"])
    runs = len(found["runs"])
    if runs > 1:
        length += f" in {runs} runs"
    if found["starting"] >= SHORT:
        length += f", {duration(found['starting'])} of it until slots were open"
    return f"time     {length}"


def _slot_lines(found: Mapping[str, Any]) -> list[str]:
    """What slot time went to, and what moved between slots."""
    parts = _slot_shares(found["used"], found.get("idle", {}))
    if not parts:
        return []
    line = f"slots    {len(found['slots'])}: {', '.join(parts)}"
    if found["hops"]:
        line += f"; {plural(found['hops'], 'move')} between slots"
    if found["moved_bytes"]:
        line += f", {size(found['moved_bytes'])} of state"
    if found["dealt_bytes"]:
        line += f", {size(found['dealt_bytes'])} of samples dealt"
    return [line]


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


def _feeder_lines(found: Mapping[str, Any]) -> list[str]:
    """What the feeders of the newest runs did."""
    lines = []
    for row in found.get("feeders", ())[-TOP:]:
        if row["served"]:
            received = ""
            if row.get("received"):
                received = f"{count(row['received'])} received from other nodes, "
            lines.append(
                f"feeders  {row['feeders']:g}: {count(row['made'])} chunks made, {received}"
                f"{count(row['served'])} handed out, "
                f"{share(row['waits'], row['served'])} of them waited for"
            )
    return lines


def _given_lines(found: Mapping[str, Any]) -> list[str]:
    """The names of the figures that were given."""
    names = dict.fromkeys(name for row in found.get("given", ()) for name in row["figures"])
    if not names:
        return []
    return [f"given    {', '.join(names)}; the rest is measured"]


def _policy_lines(found: Mapping[str, Any]) -> list[str]:
    """What the automatic policy follows."""
    choice = found.get("policy")
    if not choice:
        return []
    name = f"auto ({choice['objective']})"
    return [f"policy   {name}: {choice['follows']}, because {choice['why']}"]


def _harvest_lines(found: Mapping[str, Any]) -> list[str]:
    """What came of slots that came and went."""
    whole = found.get("harvest")
    if not whole:
        return []
    offered = whole["offered"]
    line = (
        f"harvest  {duration(offered)} of slots offered, {share(whole['used'], offered)} used; "
        f"as {number(whole['slots'], 3)} slots that stay"
    )
    if whole["efficiency"] is not None:
        line += f"; U {share(whole['efficiency'], 1.0)}"
    lost = (
        f"{share(whole['preempted'], offered)} to preemption, "
        f"{share(whole['rescaled'], offered)} to rescaling"
    )
    return [f"{line}; lost {lost}"]


def _rescale_lines(found: Mapping[str, Any]) -> list[str]:
    """What changes of width cost and gained."""
    changes = [WidthChange(**change) for change in found.get("rescales", ())]
    if not changes:
        return []
    return [f"rescaled {rescales_line(changes)}"]


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


def _sample_lines(found: Mapping[str, Any]) -> list[str]:
    """How many samples were trained, and how fast."""
    if not found["throughput"]:
        return []
    return [f"samples  {count(found['samples'])}, {count(found['throughput'])} a second"]


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
    """The first reasons of failures, each once."""
    by_reason: dict[str, list[str]] = {}
    for item in found["failures"]:
        by_reason.setdefault(item["why"], []).append(item["trial"])
    lines = []
    for why, trials in [*by_reason.items()][:TOP]:
        who = trials[0]
        if len(trials) > 1:
            who = f"{len(trials)} trials, {trials[0]} first"
        lines.append(f"failed   {who}: {why}")
    if len(by_reason) > TOP:
        lines.append(f"         … and {len(by_reason) - TOP} other reasons")
    return lines
