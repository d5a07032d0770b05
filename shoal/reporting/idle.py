"""Why slots were idle, as far as the journal tells.

A slot is idle while no gang holds it. What it waited for is judged at the end of each moment, from
the state of the study then; whether a search went on to ask for more is known only later.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Entry, Opened, Submitted
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.reporting.gantt import Bar, Chart

NONE_LEFT = "no trial left"
RUNG = "waits for a rung"  # trials that had come to their end were then asked to go on
SEARCHER = "waits for the searcher"  # which then asked for new trials
SHARD = "waits for a shard"  # none of its shards is wanted by a trial that is free to come
NODE = "waits for a node"  # the trials that wait need more slots than are free
MEMORY = "waits for memory"  # the trials that wait need more than it has
PACK = "waits for a busy pack"  # the policy has trials wait for the end of one
POLICY = "held back by the policy"
STOPPING = "the run was stopping"
UNTOLD = "not told"

LOOKED_AT = 8  # trials or gangs of which one is asked why it is not here
FEW = 50  # so many idle slots are looked at in each moment; more, not as often


@dataclass(slots=True)
class Wait:
    """From `since` on an idle slot waited for this. "": whether anything came is not known yet."""

    since: Seconds
    why: str


class IdleTally:
    """Finds out along a journal what idle slots wait for."""

    def __init__(self) -> None:
        self._waits: dict[SlotId, list[Wait]] = {}
        self._idle: set[SlotId] = set()  # at the last look
        self._open: list[Wait] = []  # of which the reason comes later
        self._known: set[TrialId] = set()  # ever asked for
        self._skip = 0  # moments

    def take(self, entry: Entry) -> None:
        """Count one line: what is asked for later is what slots waited for before."""
        if isinstance(entry, Opened):
            self._resolve(NONE_LEFT)
            self._idle.clear()
        elif isinstance(entry, Submitted):
            self._resolve(RUNG if entry.trial.id in self._known else SEARCHER)
            self._known.add(entry.trial.id)

    def _resolve(self, why: str) -> None:
        for wait in self._open:
            wait.why = why
        self._open.clear()

    def is_due(self) -> bool:
        """Whether to look at the moment that came to its end now, with idle slots."""
        if self._skip:
            self._skip -= 1
            return False
        return True

    def look(self, time: Seconds, state: State) -> None:
        """A moment has come to its end with this state, in which some slot may be idle."""
        busy = state.busy.keys()
        idle = [slot for name, slot in state.slots.items() if name not in busy]
        self._skip = len(idle) // FEW
        waiting = _waiting(state)
        wanted = _wanted_by_running(state) if idle and not waiting else set()
        for slot in idle:
            why = _why(slot, state, waiting, wanted, len(idle))
            waits = self._waits.setdefault(slot.id, [])
            if slot.id in self._idle and waits[-1].why == why:
                continue
            wait = Wait(time, why)
            waits.append(wait)
            if not why:
                self._open.append(wait)
        self._idle = {slot.id for slot in idle}

    def explained(self, chart: Chart) -> tuple[Chart, Mapping[str, Seconds]]:
        """The chart with the reasons of its idle bars, and slot-seconds by reason, most first."""
        bars = {}
        totals: dict[str, Seconds] = {}
        for slot, drawn in chart.bars.items():
            waits = self._waits.get(slot, [])
            slot_bars: list[Bar] = []
            for bar in drawn:
                if bar.kind == "idle":
                    parts = list(_parts(bar, waits))
                    for why, seconds in parts:
                        totals[why] = totals.get(why, 0.0) + seconds
                    reasons = dict.fromkeys(why for why, _ in parts)
                    bar = bar._replace(why=", then ".join(reasons))
                slot_bars.append(bar)
            bars[slot] = tuple(slot_bars)
        most_first = sorted(totals.items(), key=lambda item: -item[1])
        return replace(chart, bars=bars), dict(most_first)


def _waiting(state: State) -> list[Trial]:
    """Some of the trials that have work left and are in no gang."""
    if len(state.trials) == len(state.running):
        return []
    running, held_back = state.running, state.held_back
    waiting = (
        trial
        for name, trial in state.trials.items()
        if name not in running and name not in held_back
    )
    return list(islice(waiting, LOOKED_AT))


def _why(
    slot: Slot, state: State, waiting: Sequence[Trial], wanted: Set[ShardId], idle: int
) -> str:
    """What an idle slot waits for; "" if that depends on what is asked for later."""
    if state.stopped is not None:
        return STOPPING
    if not waiting:
        if state.held_back or not wanted.isdisjoint(slot.shards):
            return SHARD
        return ""
    reasons = [_hindered(trial, slot, state, idle) for trial in waiting]
    if "" not in reasons:
        return reasons[0]
    gangs = islice(state.gangs, LOOKED_AT)
    return PACK if any(len(gang.lanes) > 1 for gang in gangs) else POLICY


def _wanted_by_running(state: State) -> set[ShardId]:
    """The shards that some of the trials at work have yet to visit elsewhere."""
    wanted: set[ShardId] = set()
    for name, gang in islice(state.running.items(), LOOKED_AT):
        if gang.shards:
            wanted |= state.pending.get(name, frozenset()).difference(gang.shards)
    return wanted


def _hindered(trial: Trial, slot: Slot, state: State, idle: int) -> str:
    """Why the trial cannot run on this slot now; "" if it could."""
    if trial.widths[0] > idle:
        return NODE
    figures = state.figures.get(state.signature.get(trial.id, ""), {})
    if slot.memory != inf and figures.get("memory", 0.0) > slot.memory:
        return MEMORY
    pending = state.pending.get(trial.id) or trial.shards
    if slot.shards and pending and slot.shards.isdisjoint(pending):
        return SHARD
    return ""


def _parts(bar: Bar, waits: Sequence[Wait]) -> Iterator[tuple[str, Seconds]]:
    """The reasons of an idle bar in their order, and for how long each held."""
    first = max(0, bisect_right(waits, bar.start, key=lambda wait: wait.since) - 1)
    start, why = bar.start, ""
    for wait in waits[first:]:
        if wait.since >= bar.end:
            break
        if wait.since > start and why:
            yield why, wait.since - start
            start = wait.since
        why = wait.why or NONE_LEFT
    yield why or UNTOLD, bar.end - start
