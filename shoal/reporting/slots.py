"""Which slots a study has: those at work, those that fell silent, and those that are gone."""

from collections.abc import Iterable, Mapping
from typing import Any

from shoal.core.cluster import SlotId
from shoal.core.event import Entry, Joined, Left, Opened, Unread
from shoal.core.trial import Seconds
from shoal.engine.journal import Line
from shoal.reporting.format import duration, plural

# A slot that was heard of within so many seconds counts as alive: it speaks every few seconds.
ALIVE: Seconds = 15.0
SHOWN = 24  # slots that are listed for people
NAMED = 6  # trials or shards of a slot that are named


def standing(
    lines: Iterable[Line], board: Mapping[str, Any] | None, now: Seconds
) -> list[dict[str, Any]]:
    """A row for each slot of the newest run: slot, node, kind, state, silent, trials, shards, why.

    `board`: what `SlotBoard` wrote; None: the run is over, or wrote nothing. `now`: the time, as in
    the board. `state` is alive, silent, gone, or unknown; `silent`: for how many seconds nothing
    was heard.
    """
    known: dict[SlotId, dict[str, Any]] = {}
    for line in lines:
        _take(known, line.entry)
    age = 0.0 if board is None else max(0.0, now - board["written"])
    for live in board["slots"] if board else ():
        silent = live["silent"] + age
        row = {**live, "silent": silent, "state": "alive" if silent <= ALIVE else "silent"}
        former = known.get(row["slot"], {"why": ""})
        if former.get("state") != "gone":  # the journal is newer than the board
            known[row["slot"]] = {**former, **row}
    return list(known.values())


def _take(known: dict[SlotId, dict[str, Any]], entry: Entry) -> None:
    """Go on by one entry of the journal."""
    match entry:
        case Opened():
            known.clear()
        case Joined(slots):
            for slot in slots:
                known[slot.id] = {
                    "slot": slot.id,
                    "node": slot.node,
                    "kind": slot.kind,
                    "state": "unknown",
                    "silent": None,
                    "trials": [],
                    "shards": sorted(slot.shards),
                    "why": "",
                }
        case Left(slots, died, why):
            words = why or ("it died" if died else "it left")
            for name in slots & known.keys():
                known[name] |= {"state": "gone", "why": words, "trials": []}
        case Unread(slot, shard, why) if slot in known:
            known[slot]["why"] = why
            known[slot]["shards"] = [s for s in known[slot]["shards"] if s != shard]


def asked(board: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How many slots the run is to have, how many of them are open, and how many fit its nodes.

    None: nothing is known of that. `board`: as for `standing`.
    """
    if board is None or "asked" not in board:
        return None
    open_ = len(board["slots"])
    return {"slots": board["asked"], "open": open_, "room": board.get("room")}


def asked_lines(counts: Mapping[str, Any] | None) -> list[str]:
    """A line of how many slots are asked for and how many are open; none if all are open."""
    if not counts or counts["slots"] == counts["open"]:
        return []
    room = "" if counts["room"] is None else f", room for {counts['room']}"
    return [f"{plural(counts['slots'], 'slot')}; {counts['open']} open{room}"]


def standing_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The rows for people: slots that need a look first."""
    ordered = sorted(rows, key=lambda row: row["state"] in ("alive", "unknown"))
    texts = [f"{row['slot']:<8} {_described(row)}" for row in ordered[:SHOWN]]
    more = len(ordered) - SHOWN
    if more > 0:
        texts.append(f"         … and {plural(more, 'slot')} more")
    return texts


def _described(row: Mapping[str, Any]) -> str:
    """Where the slot is, how it is, what it does, and which shards it holds."""
    state = row["state"]
    if state == "silent":
        state = f"silent for {duration(round(row['silent']))}"
    elif state == "alive":
        state = f"alive, heard of {duration(round(row['silent']))} ago"
    does = ""
    if row["trials"]:
        does = f", at work for {_named(row['trials'])}"
    elif state.startswith("alive"):
        does = ", idle"
    text = f"{row['node']}, {row['kind']}: {state}{does}"
    if row["shards"]:
        text += f"; holds {_named(row['shards'])}"
    if row["why"]:
        text += f" ({row['why']})"
    return text


def _named(names: list[str]) -> str:
    """Some of the names, and how many others there are."""
    text = ", ".join(names[:NAMED])
    if len(names) > NAMED:
        text += f" and {len(names) - NAMED} more"
    return text
