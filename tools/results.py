"""Reads benchmarks/results and papers/results."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]


@cache
def benchmark(name: str) -> Row:
    """The results of benchmarks/NAME.py."""
    found: Row = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


@cache
def paper(name: str) -> Row:
    """The results of papers/NAME/run.py in its full form."""
    found: Row = json.loads((ROOT / "papers" / "results" / f"{name}.json").read_text())
    return found


def rows(name: str, **given: Any) -> list[Row]:
    """The rows of a benchmark that have these values.

    Raises:
        LookupError: there are none.
    """
    found = [row for row in benchmark(name)["rows"] if given.items() <= row.items()]
    if not found:
        raise LookupError(f"benchmarks/results/{name}.json has no row with {given}")
    return found


def row(name: str, **given: Any) -> Row:
    """The row of a benchmark that has these values.

    Raises:
        LookupError: there is none, or there are several.
    """
    found = rows(name, **given)
    if len(found) > 1:
        raise LookupError(f"benchmarks/results/{name}.json has {len(found)} rows with {given}")
    return found[0]


def ratio(name: str, key: str) -> Any:
    """A benchmark's ratio."""
    return benchmark(name)["ratios"][key]


def paper_row(name: str, what: str) -> Row:
    """The row of a paper's results of that name, or the only one whose name begins so.

    Raises:
        LookupError: there is none, or several begin so.
    """
    listed = paper(name)["rows"]
    found = [row for row in listed if row["what"] == what]
    found = found or [row for row in listed if row["what"].startswith(what)]
    if len(found) != 1:
        raise LookupError(f"papers/results/{name}.json has {len(found)} rows with {what!r}")
    return dict(found[0])


def goal(name: str, key: str) -> float:
    """The figure of a paper's goal."""
    figure: float = paper(name)["goals"][key]["figure"]
    return figure
