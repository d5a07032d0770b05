"""Searchers by name: plain data for a journal's head, and back from it."""

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shoal.core.ports import Searcher
from shoal.search.asha import ASHA
from shoal.search.grid import Grid
from shoal.search.halving import Hyperband, SuccessiveHalving
from shoal.search.median import MedianStopping
from shoal.search.optuna import Optuna
from shoal.search.patience import Patience
from shoal.search.pbt import PBT
from shoal.search.random import Random
from shoal.search.space import describe_space, rebuild_space
from shoal.search.trace import Trace

KNOWN: Mapping[str, type[Any]] = {
    "grid": Grid,
    "random": Random,
    "trace": Trace,
    "halving": SuccessiveHalving,
    "hyperband": Hyperband,
    "asha": ASHA,
    "pbt": PBT,
    "median": MedianStopping,
    "patience": Patience,
    "optuna": Optuna,
}


def describe(searcher: Searcher[Any]) -> dict[str, Any]:
    """The searcher as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a searcher of one's own, which has no name here.
    """
    made: Any = type(searcher)
    for name, kind in KNOWN.items():
        if made is kind:
            return {"name": name, **{f.name: _plain(f.name, getattr(searcher, f.name)) for f in fields(kind) if f.init}}
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
    if given.get("space") is not None:
        given["space"] = rebuild_space(given["space"])
    if given.get("inner") is not None:
        given["inner"] = rebuild(given["inner"])
    try:
        searcher: Searcher[Any] = KNOWN[name](**given)
    except TypeError as error:
        raise ValueError(f"searcher {name}: {error}") from error
    return searcher


def parse(text: str) -> Searcher[Any]:
    """The searcher that a user names, as "asha" or "asha(grace_period=2)"; the arguments are plain values.

    A searcher within it is named likewise, as in "patience(epochs=3, inner='random(num_samples=9)')".

    Raises:
        ValueError: no such name, or arguments that do not fit it.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args or any(x.arg is None for x in call.keywords):
            raise ValueError("not a name with named arguments")
        given = {str(x.arg): ast.literal_eval(x.value) for x in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(f'a searcher is named as "asha" or "asha(grace_period=2)"; got {text!r}') from error
    if isinstance(given.get("inner"), str):
        given["inner"] = describe(parse(given["inner"]))
    return rebuild({"name": call.func.id.lower(), **given})


def compares(searcher: Any) -> bool:
    """Whether it is one of these that compare trials by their scores; of one's own nobody knows."""
    return type(searcher) in KNOWN.values() and hasattr(searcher, "metric")


def _plain(name: str, value: Any) -> Any:
    if name == "space" and value is not None:
        return describe_space(value)
    return describe(value) if name == "inner" and value is not None else value
