"""A log being read: where it is, which nodes there are, and what is wrong with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np

from shoal.simulate.trace import Fragment, IdleLog, TraceError


def _text(given: Any) -> str:
    """The value as a text; empty for None."""
    if given is None:
        return ""
    return str(given).strip()


def _number(value: Any) -> float:
    """The value as a number; nan if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return nan


@dataclass(frozen=True)
class TraceSource:
    """A log being read: its file, the names of all nodes if they are known, and how places count.

    `counts`: what a place in the file is called in errors, "line" or "row".
    """

    path: Path
    nodes: Sequence[str] | None
    counts: str = "line"

    def wrong(self, line: int | None, rule: str) -> TraceError:
        """The error for that place in the file; None: for the whole file."""
        return TraceError(self.path, line, rule, self.counts)

    def require(self, names: Iterable[str], columns: Iterable[str]) -> None:
        """Raise TraceError unless all these columns are there."""
        missing = [column for column in columns if column not in names]
        if not missing:
            return

        there = ", ".join(sorted(names)) or "none"
        rule = f"missing column {', '.join(missing)}; there are {there}"
        raise self.wrong(self._header(), rule)

    def _header(self) -> int | None:
        """The line of the columns' names; None in a file without lines."""
        if self.counts == "line":
            return 1
        return None

    def number(self, line: int, name: str, value: Any) -> float:
        """Seconds; an end may be infinite."""
        number = _number(value)
        is_end = name == "end" and not isnan(number)
        if not isfinite(number) and not is_end:
            raise self.wrong(line, f"{name} must be a number of seconds; got {value!r}")
        return number

    def node(self, line: int, given: Any) -> str:
        """A node's name. If all names are known, `given` is a name or a number."""
        found = _text(given)
        if self.nodes is not None:
            found = self._known.get(found, "")
        if not found:
            raise self.wrong(line, f"unknown node {given!r}")
        return found

    @cached_property
    def _known(self) -> dict[str, str]:
        """The nodes' names, by number and by name."""
        names = self.nodes or ()
        known = {str(number): name for number, name in enumerate(names)}
        known |= {name: name for name in names}
        return known

    def log(
        self,
        fragments: list[Fragment],
        racks: Mapping[str, str],
        finish: float | None = None,
    ) -> IdleLog:
        """The log of these fragments; with all nodes, idle or not, where they are known."""
        if not fragments:
            raise self.wrong(None, "no intervals: the log is empty")
        log = replace(IdleLog.of(fragments, finish), racks=racks)
        if self.nodes is None:
            return log

        nodes = tuple(self.nodes)
        number = {name: place for place, name in enumerate(nodes)}
        order = np.array([number[name] for name in log.nodes])
        return replace(log, nodes=nodes, node=order[log.node], machine=len(nodes))
