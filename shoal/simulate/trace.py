"""An idle-node log: when each node was idle, as intervals, and as the simulator's script of joining and leaving."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Event, Joined, Left
from shoal.core.trial import Seconds

Times = NDArray[np.float64]
Ids = NDArray[np.int64]


class TraceError(ValueError):
    """A log breaks a rule: which file, which line (of a Parquet file: which row, from 1), which rule."""

    def __init__(self, file: object, line: int | None, rule: str, counts: str = "line") -> None:
        super().__init__(f"{file}, {counts} {line}: {rule}" if line is not None else f"{file}: {rule}")
        self.file, self.line, self.rule = str(file), line, rule


@dataclass(frozen=True)
class IdleLog:
    """Fragments, each an interval [start, end) during which a node is idle; `end` inf: still idle when the log ends.

    `node`: index into `nodes`, of each fragment. `begin`, `finish`: the span observed, in seconds; fragments that were
    there at `begin` start no later than it. `machine`: nodes of the whole machine, idle or not. `rows`: times at which
    the log says that something changed.
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
    def of(cls, fragments: Iterable[tuple[str, float, float]], finish: Seconds | None = None) -> "IdleLog":
        """From (node, start, end) in any order."""
        listed = sorted(fragments, key=lambda f: (f[1], f[0]))
        names = tuple(dict.fromkeys(f[0] for f in listed))
        number = {name: i for i, name in enumerate(names)}
        start, end = (np.array([f[k] for f in listed], float) for k in (1, 2))
        last = max([*end[np.isfinite(end)].tolist(), *start.tolist()], default=0.0) if finish is None else finish
        node = np.array([number[f[0]] for f in listed], np.int64)
        return cls(names, node, start, end, float(start.min(initial=last)), float(last), machine=len(names))

    @property
    def span(self) -> Seconds:
        return self.finish - self.begin

    def window(self, begin: Seconds, finish: Seconds) -> "IdleLog":
        """Only what is seen from `begin` to `finish`; fragments that began before keep their start, and so their age."""
        seen = (self.end > begin) & (self.start <= finish)
        end = np.where(self.end > finish, inf, self.end)[seen]
        return replace(self, node=self.node[seen], start=self.start[seen], end=end, begin=begin, finish=min(finish, self.finish))

    def subset(self, first: int, count: int) -> "IdleLog":
        """Only `count` nodes from number `first` on."""
        seen = (self.node >= first) & (self.node < first + count)
        return replace(
            self,
            nodes=self.nodes[first : first + count],
            node=self.node[seen] - first,
            start=self.start[seen],
            end=self.end[seen],
            machine=len(self.nodes[first : first + count]),
        )

    def changes(self) -> Iterator[tuple[Seconds, Ids, Ids]]:
        """(time, nodes that join, nodes that leave), oldest first; the first is what is idle at `begin`."""
        there = np.maximum(self.start, self.begin)
        joins = _by_time(there, self.node, there <= self.finish)
        leaves = _by_time(self.end, self.node, self.end <= self.finish)
        none = np.zeros(0, np.int64)
        for at in sorted({self.begin, *joins, *leaves}):
            yield at, joins.get(at, none), leaves.get(at, none)

    def script(self) -> list[tuple[Seconds, Event]]:
        """What happens to the slots, one a node, in seconds since `begin`: leaving before joining."""
        found: list[tuple[Seconds, Event]] = []
        for at, came, went in self.changes():
            if len(went):
                found.append((at - self.begin, Left(frozenset(SlotId(self.nodes[n]) for n in went))))
            if len(came):
                found.append((at - self.begin, Joined(tuple(self.slots[n] for n in came))))
        return found

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(SlotId(name), name, "node") for name in self.nodes)

    @property
    def node_seconds(self) -> float:
        """Idle time of all nodes together."""
        ends = np.minimum(self.end, self.finish)
        return float(np.maximum(ends - np.maximum(self.start, self.begin), 0.0).sum())


def _by_time(at: Times, node: Ids, seen: NDArray[np.bool_]) -> dict[float, Ids]:
    """The nodes at each time."""
    times, nodes = at[seen], node[seen]
    order = np.lexsort((nodes, times))
    times, nodes = times[order], nodes[order]
    cuts = np.flatnonzero(np.diff(times)) + 1
    parts = np.split(nodes, cuts) if len(nodes) else []
    return dict(zip(times[np.concatenate([[0], cuts])].tolist() if len(nodes) else [], parts, strict=True))
