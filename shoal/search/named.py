"""Searchers by name: plain data for a journal's head, and back from it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shoal.core.ports import Searcher
from shoal.search.grid import Grid
from shoal.search.halving import Halving, Hyperband
from shoal.search.random import Random
from shoal.search.space import describe_space, rebuild_space
from shoal.search.trace import Trace

KNOWN: Mapping[str, type[Any]] = {
    "grid": Grid,
    "random": Random,
    "trace": Trace,
    "halving": Halving,
    "hyperband": Hyperband,
}


def describe(searcher: Searcher[Any]) -> dict[str, Any]:
    """The searcher as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a searcher of one's own, which has no name here.
    """
    made: Any = type(searcher)
    for name, kind in KNOWN.items():
        if made is kind:
            data = {f.name: getattr(searcher, f.name) for f in fields(kind) if f.init}
            return {"name": name, **data, **({"space": describe_space(data["space"])} if "space" in data else {})}
    raise ValueError(f"{type(searcher).__name__} is not one of {', '.join(KNOWN)}: to resume the study, give the searcher again")


def rebuild(data: Mapping[str, Any]) -> Searcher[Any]:
    """The searcher that `describe` described.

    Raises:
        ValueError: no such name, or fields that do not fit it.
    """
    given = dict(data)
    name = given.pop("name", None)
    if name not in KNOWN:
        raise ValueError(f"no searcher is named {name!r}; there are {', '.join(KNOWN)}")
    if "space" in given:
        given["space"] = rebuild_space(given["space"])
    try:
        searcher: Searcher[Any] = KNOWN[name](**given)
    except TypeError as error:
        raise ValueError(f"searcher {name}: {error}") from error
    return searcher
