"""Searchers by name, and what a study fills in where a searcher leaves it open.

A searcher becomes plain data for a journal's head, and is rebuilt from that.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

from shoal.core.ports import Searcher
from shoal.core.trial import parsed
from shoal.search.asha import ASHA
from shoal.search.grid import Grid
from shoal.search.halving import Hyperband, SuccessiveHalving
from shoal.search.optuna import Optuna, named_instead
from shoal.search.pbt import PBT
from shoal.search.random import Random
from shoal.search.space import describe_space, rebuild_space
from shoal.search.stopping import MedianStopping, Patience
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
# Arguments of other tools' searchers, and what they are called here.
MEANT = {
    **dict.fromkeys(("max_t", "max_iter", "max_resource", "max_budget", "epochs"), "max_epochs"),
    **dict.fromkeys(("min_t", "min_resource", "min_budget", "n_warmup_steps"), "grace_period"),
    **dict.fromkeys(("n_trials", "num_trials", "population_size"), "num_samples"),
    **dict.fromkeys(("n_startup_trials", "min_samples_required"), "min_trials"),
    "eta": "reduction_factor",
    "direction": "mode",
    "hyperparam_mutations": "mutate",
}
Usual = Callable[[], Searcher[Any]]  # makes the searcher of a study that names none


def describe(searcher: Searcher[Any]) -> dict[str, Any]:
    """The searcher as JSON-able data, {"name": …, its fields}; `rebuild` makes it again.

    Raises:
        ValueError: a searcher of one's own, which has no name here.
    """
    made: Any = type(searcher)
    for name, kind in KNOWN.items():
        if made is kind:
            return {"name": name, **_fields_of(searcher)}
    raise ValueError(
        f"{made.__name__} is not one of {', '.join(KNOWN)}: "
        "to resume the study, give the searcher again"
    )


def _fields_of(searcher: Any) -> dict[str, Any]:
    """The searcher's fields by name, as JSON holds them."""
    names = _arguments(searcher)
    return {name: _plain(name, getattr(searcher, name)) for name in names}


def _arguments(searcher: Any) -> list[str]:
    """The fields with which the searcher is made."""
    return [each.name for each in fields(searcher) if each.init]


def _plain(name: str, value: Any) -> Any:
    """The value of a field as JSON holds it."""
    if value is not None and name == "space":
        return describe_space(value)
    if value is not None and name == "inner":
        return describe(value)
    return value


def rebuild(data: Mapping[str, Any]) -> Searcher[Any]:
    """The searcher that `describe` described.

    What says nothing of `sampling` was described when all draws were independent.

    Raises:
        ValueError: no such name, or fields that do not fit it.
    """
    given = dict(data)
    kind = KNOWN.get(given.get("name", ""))
    if kind is not None and "sampling" in _arguments(kind):
        given.setdefault("sampling", None)
    if given.get("inner") is not None:
        given["inner"] = rebuild(given["inner"])
    return _made(given)


def _made(given: dict[str, Any]) -> Searcher[Any]:
    """The searcher with that name and these fields; see `rebuild`."""
    name = given.pop("name", None)
    if name not in KNOWN:
        raise ValueError(
            f"no searcher is named {name!r}{named_instead(str(name))}; there are {', '.join(KNOWN)}"
        )
    if given.get("space") is not None:
        given["space"] = rebuild_space(given["space"])
    try:
        searcher: Searcher[Any] = KNOWN[name](**given)
    except TypeError as error:
        takes = _arguments(KNOWN[name])
        hints = _hints([wrong for wrong in given if wrong not in takes], takes)
        raise ValueError(f"searcher {name}: {error}{hints}; it takes {', '.join(takes)}") from error
    return searcher


def _hints(wrong: Sequence[str], takes: Sequence[str]) -> str:
    """What the user may have meant by arguments that the searcher does not take."""
    meant = {name: _meant(name, takes) for name in wrong}
    if len(meant) == 1:
        return "".join(f" (did you mean {near}?)" for near in meant.values() if near)
    listed = ", ".join(f"{near} by {name}" for name, near in meant.items() if near)
    return f" (did you mean {listed}?)" if listed else ""


def _meant(wrong: str, takes: Sequence[str]) -> str:
    """What the user may have meant by one of them; empty if nobody knows."""
    meant = MEANT.get(wrong, "")
    if meant not in takes:
        begun = [name for name in takes if name.startswith(wrong)]
        meant = " or ".join(begun or get_close_matches(wrong, takes, 1))
    return meant


def parse(text: str) -> Searcher[Any]:
    """The searcher that a user names, as "asha" or "asha(grace_period=2)".

    Arguments are plain values. A searcher within it is named likewise, as in
    "patience(epochs=3, inner='random(num_samples=9)')".

    Raises:
        ValueError: no such name, or arguments that do not fit it.
    """
    data = _named(text)
    if isinstance(data.get("inner"), str):
        data["inner"] = parse(data["inner"])
    return _made(data)


def _named(text: str) -> dict[str, Any]:
    """The searcher that the text names, in the form of `describe`; ValueError if there is none."""
    try:
        # The name and the arguments that the text holds.
        call = parsed(text.strip())
        if not isinstance(call, ast.Call):
            call = ast.Call(call, [], [])
        named = all(keyword.arg is not None for keyword in call.keywords)
        if not isinstance(call.func, ast.Name) or call.args or not named:
            raise ValueError("not a name with named arguments")
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return {"name": call.func.id.lower(), **given}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f'a searcher is named as "asha" or "asha(grace_period=2)"; got {text[:200]!r}'
        ) from error


def is_searcher(value: Any) -> bool:
    """Whether it is a searcher, or the name of one, perhaps with arguments."""
    if isinstance(value, str):
        return value.partition("(")[0].strip().lower() in KNOWN
    return hasattr(value, "propose")


def compares(searcher: Any) -> bool:
    """Whether it is one of these that compare trials by their scores; of one's own nobody knows."""
    return type(searcher) in KNOWN.values() and hasattr(searcher, "metric")


def completed(searcher: Searcher[Any], given: Mapping[str, Any], usual: Usual) -> Searcher[Any]:
    """The searcher, with each field that is None set to what is given under the field's name.

    `given`: space, metric, mode, seed, num_samples, max_epochs, max_concurrent and per_slot. A
    user's own dataclass may have such fields, too. A searcher within it (`inner`) is completed
    likewise; if `inner` is None it becomes the `usual` one.
    """
    if not is_dataclass(searcher) or isinstance(searcher, type):
        return searcher
    # The fields that are filled in, with their new values.
    changed = {}
    for name in _arguments(searcher):
        value = getattr(searcher, name)
        filled = _filled(name, value, given, usual)
        if filled is not value:
            changed[name] = filled
    if not changed:
        return searcher
    return replace(searcher, **changed)


def _filled(name: str, value: Any, given: Mapping[str, Any], usual: Usual) -> Any:
    """The value of one field, filled in if it is None."""
    if name == "inner":
        # The searcher within another one, completed; the usual one if there is none.
        if value is None:
            return usual()
        return completed(value, given, usual)
    if value is None:
        return given.get(name)
    return value


def nested(searcher: Any) -> Iterator[Any]:
    """The searcher, and those within it."""
    while searcher is not None:
        yield searcher
        searcher = getattr(searcher, "inner", None)
