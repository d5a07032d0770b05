"""A log being read: where it is, which nodes there are, and what is wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np

from shoal.simulate.trace import IdleLog, TraceError

Fragment = tuple[str, float, float]  # node, start, end


@dataclass(frozen=True)
class Source:
    """A log being read: its file, how places in it are counted, and the names of all nodes, if they are known."""

    path: Path
    nodes: Sequence[str] | None
    counts: str = "line"

    def wrong(self, line: int | None, rule: str) -> TraceError:
        return TraceError(self.path, line, rule, self.counts)

    def require(self, names: Iterable[str], columns: Iterable[str]) -> None:
        """Raise TraceError unless all these columns are there."""
        missing = [c for c in columns if c not in names]
        if missing:
            header = 1 if self.counts == "line" else None
            there = ", ".join(sorted(names)) or "none"
            raise self.wrong(header, f"missing column {', '.join(missing)}; there are {there}")

    def number(self, line: int, name: str, value: Any) -> float:
        """Seconds; an end may be infinite."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if isnan(number) or (name != "end" and not isfinite(number)):
            raise self.wrong(line, f"{name} must be a number of seconds; got {value!r}")
        return number

    def node(self, line: int, given: Any) -> str:
        """A node's name; where all are known, from its name or its number."""
        name = given.strip() if isinstance(given, str) else "" if given is None else str(given)
        found = name if self.nodes is None else self._known.get(name)
        if not found:
            raise self.wrong(line, f"unknown node {given!r}")
        return found

    @cached_property
    def _known(self) -> dict[str, str]:
        return {str(i): name for i, name in enumerate(self.nodes or ())} | {name: name for name in self.nodes or ()}

    def log(self, fragments: list[Fragment], racks: Mapping[str, str], finish: float | None = None) -> IdleLog:
        """The log of these fragments; with all nodes, idle or not, where they are known."""
        if not fragments:
            raise self.wrong(None, "no intervals: the log is empty")
        log = replace(IdleLog.of(fragments, finish), racks=racks)
        if self.nodes is None:
            return log
        number = {name: i for i, name in enumerate(self.nodes)}
        order = np.array([number[name] for name in log.nodes])
        return replace(log, nodes=tuple(self.nodes), node=order[log.node], machine=len(self.nodes))
