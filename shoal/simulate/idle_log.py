"""An idle-node log: when each node was idle, and what it is like in figures.

The log is a list of intervals; the simulator reads it as a script of slots that join and leave.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Event, Joined, Left
from shoal.core.trial import Seconds

Times = NDArray[np.float64]
Ids = NDArray[np.int64]
Fragment = tuple[str, Seconds, Seconds]  # node, start, end
Change = tuple[Seconds, Ids, Ids]  # time, nodes that join, nodes that leave
LONGEST_RULE = 1000  # characters


def shown(rule: str) -> str:
    """The rule as far as one reads it: a file may hold a name of a million letters."""
    if len(rule) <= LONGEST_RULE:
        return rule
    return f"{rule[:LONGEST_RULE]} …"


class TraceError(ValueError):
    """A log breaks a rule: which file, which line, which rule.

    In a Parquet file it is a row instead of a line, counted from 1.
    """

    def __init__(self, file: object, line: int | None, rule: str, counts: str = "line") -> None:
        place = str(file)
        if line is not None:
            place = f"{file}, {counts} {line}"
        super().__init__(f"{place}: {shown(rule)}")
        self.file = str(file)
        self.line = line
        self.rule = rule


@dataclass(frozen=True)
class IdleLog:
    """Fragments, each an interval [start, end) in seconds during which a node is idle.

    An `end` of inf means that the node is still idle when the log ends. `node`: for each fragment
    the index of its node in `nodes`. `begin`, `finish`: the span observed, in seconds; a fragment
    that was there at `begin` starts no later. `machine`: how many nodes the whole machine has,
    idle or not.
    """

    nodes: tuple[str, ...]
    node: Ids
    start: Times
    end: Times
    begin: Seconds
    finish: Seconds
    racks: Mapping[str, str] = field(default_factory=dict)
    machine: int = 0

    @classmethod
    def of(cls, fragments: Iterable[Fragment], finish: Seconds | None = None) -> "IdleLog":
        """The log of these fragments, which may come in any order.

        `finish`: when it ends; None: with the last time in the fragments.
        """
        listed = sorted(fragments, key=lambda fragment: (fragment[1], fragment[0]))
        names = tuple(dict.fromkeys(name for name, _, _ in listed))
        numbers = {name: number for number, name in enumerate(names)}
        node = np.array([numbers[name] for name, _, _ in listed], np.int64)
        start = np.array([since for _, since, _ in listed], float)
        end = np.array([until for _, _, until in listed], float)
        if finish is None:
            # The last time that is known; 0 if there is none.
            known = [*end[np.isfinite(end)].tolist(), *start.tolist()]
            finish = max(known, default=0.0)

        begin = float(start.min(initial=finish))
        return cls(names, node, start, end, begin, float(finish), machine=len(names))

    @property
    def span(self) -> Seconds:
        """How long the log is."""
        return self.finish - self.begin

    def window(self, begin: Seconds, finish: Seconds) -> "IdleLog":
        """Only what is seen from `begin` to `finish`.

        Fragments that began before keep their start, and so their age.
        """
        seen = (self.end > begin) & (self.start <= finish)
        end = np.where(self.end > finish, inf, self.end)[seen]
        return replace(
            self,
            node=self.node[seen],
            start=self.start[seen],
            end=end,
            begin=begin,
            finish=min(finish, self.finish),
        )

    def subset(self, first: int, count: int) -> "IdleLog":
        """Only `count` nodes from number `first` on."""
        nodes = self.nodes[first : first + count]
        seen = (self.node >= first) & (self.node < first + count)
        return replace(
            self,
            nodes=nodes,
            node=self.node[seen] - first,
            start=self.start[seen],
            end=self.end[seen],
            machine=len(nodes),
        )

    def changes(self) -> Iterator[Change]:
        """When nodes join and leave, oldest first.

        The first says which nodes are idle at `begin`.
        """
        joined = np.maximum(self.start, self.begin)
        joins = _by_time(joined, self.node, joined <= self.finish)
        leaves = _by_time(self.end, self.node, self.end <= self.finish)
        none = np.zeros(0, np.int64)
        for at in sorted({self.begin, *joins, *leaves}):
            yield at, joins.get(at, none), leaves.get(at, none)

    def script(self, known: bool = False) -> list[tuple[Seconds, Event]]:
        """What happens to the slots, one for each node, in seconds since `begin`.

        At one time slots leave before others join. `known`: whether it is known of each slot that
        joins when it will leave.
        """
        ends: Mapping[tuple[int, Seconds], Seconds] = {}
        if known:
            # When each node leaves that joins at a time; in seconds since `begin`.
            joined = np.maximum(self.start, self.begin).tolist()
            pairs = zip(self.node.tolist(), joined, strict=True)
            ends = dict(zip(pairs, (self.end - self.begin).tolist(), strict=True))
        events: list[tuple[Seconds, Event]] = []
        for at, came, went in self.changes():
            since = at - self.begin
            if len(went):
                events.append((since, Left(frozenset(SlotId(self.nodes[node]) for node in went))))
            if len(came):
                events.append((since, self._joined(came, at, ends)))
        return events

    def _joined(
        self, nodes: Ids, at: Seconds, ends: Mapping[tuple[int, Seconds], Seconds]
    ) -> Joined:
        """These nodes' slots join. `ends`: when they leave, as far as it is known."""
        slots = [self.slots[node] for node in nodes]
        if not ends:
            return Joined(tuple(slots))
        until = [ends[node, at] for node in nodes.tolist()]
        pairs = zip(slots, until, strict=True)
        return Joined(tuple(replace(slot, until=end) for slot, end in pairs))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """A slot for each node."""
        return tuple(Slot(SlotId(name), name, "node") for name in self.nodes)

    @property
    def node_seconds(self) -> float:
        """Idle time of all nodes together."""
        ends = np.minimum(self.end, self.finish)
        starts = np.maximum(self.start, self.begin)
        return float(np.maximum(ends - starts, 0.0).sum())


def _by_time(at: Times, node: Ids, seen: NDArray[np.bool_]) -> dict[float, Ids]:
    """The nodes of the entries that are `seen`, by their time."""
    if not seen.any():
        return {}
    order = np.lexsort((node[seen], at[seen]))
    times = at[seen][order]
    cuts = np.flatnonzero(np.diff(times)) + 1  # where another time begins
    firsts = times[np.concatenate([[0], cuts])].tolist()
    return dict(zip(firsts, np.split(node[seen][order], cuts), strict=True))


AGES = (0, 60, 180, 600, 1800, 3600, 7200, 21600)  # seconds
SHORT = 600.0  # seconds; Figure 1's short fragments


def describe(log: IdleLog) -> dict[str, Any]:
    """Figures of the log over its span; times are in seconds unless their name says otherwise.

    Events are the times at which something changed, and the beginning. Fragments are those that
    begin within the span; of each, the part within the span counts.
    """
    hours = log.span / 3600.0 or float("nan")
    return {
        "hours": hours,
        "nodes": log.machine,
        **_events(log, hours),
        **_idle(log),
        **_fragments(log),
        "hazard_per_hour": hazard(log),
    }


def _events(log: IdleLog, hours: float) -> dict[str, float]:
    """How often nodes joined and left.

    The forward time is the mean time from one departure to the next.
    """
    changes = list(log.changes())
    joins = sum(len(came) > 0 for _, came, _ in changes[1:])
    leaves = sum(len(went) > 0 for _, _, went in changes)
    return {
        "events": len(changes),
        "join_events": joins,
        "leave_events": leaves,
        "joins_per_hour": joins / hours,
        "leaves_per_hour": leaves / hours,
        "forward_time_s": log.span / leaves if leaves else float("nan"),
    }


def _idle(log: IdleLog) -> dict[str, float]:
    """How much of the machine was idle."""
    equivalent = log.node_seconds / log.span if log.span else float("nan")
    return {
        "idle_node_hours": log.node_seconds / 3600.0,
        "equivalent_nodes": equivalent,
        "idle_ratio": equivalent / log.machine,
    }


def _fragments(log: IdleLog) -> dict[str, float]:
    """How long nodes were idle at a time, and how much of that in short fragments."""
    # Seconds of the fragments that begin within the log's span.
    lengths: Times = np.minimum(log.end, log.finish) - log.start
    length = lengths[log.start >= log.begin]
    figures = {
        "fragments": len(length),
        "fragment_median_s": 0.0,
        "fragment_mean_s": 0.0,
        "short_fragments": 0.0,
        "short_node_time": 0.0,
    }
    if len(length):
        short = length < SHORT
        whole = max(length.sum(), 1e-9)
        figures["fragment_median_s"] = float(np.median(length))
        figures["fragment_mean_s"] = float(length.mean())
        figures["short_fragments"] = float(short.mean())
        figures["short_node_time"] = float(length[short].sum() / whole)
    return figures


def hazard(log: IdleLog, ages: Sequence[float] = AGES) -> Mapping[str, float]:
    """Departures per node and hour at each age, by "from-to" in seconds.

    A fragment that is cut off at the end of the log counts for the part that is seen.
    """
    known = log.start > log.begin  # how old the others are is not known
    start = log.start[known]
    end = log.end[known]
    seen = np.minimum(end, log.finish) - start
    gone = (end - start)[end <= log.finish]  # ages at which nodes left

    rates = {}
    for low, high in pairwise((*ages, np.inf)):
        exposed = np.clip(np.minimum(seen, high) - low, 0.0, None).sum()
        left = int(((gone > low) & (gone <= high)).sum())
        rates[f"{low}-{high:g}"] = float(3600.0 * left / exposed) if exposed > 0 else 0.0
    return rates
