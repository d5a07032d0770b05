"""What a study fills in where a searcher leaves it open."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from shoal.core.ports import Searcher


def completed(searcher: Searcher[Any], given: Mapping[str, Any], usual: Callable[[], Searcher[Any]]) -> Searcher[Any]:
    """The searcher with those of its fields that are None set to what is given under their names.

    Given are space, metric, mode, seed, num_samples, max_epochs, max_concurrent and per_slot; a user's own dataclass may have
    such fields, too. A searcher within it (`inner`) is completed likewise; where it has none, it gets the `usual` one.
    """
    if not is_dataclass(searcher) or isinstance(searcher, type):
        return searcher
    found = {}
    for name in (f.name for f in fields(searcher) if f.init):
        value = getattr(searcher, name)
        if name == "inner":
            found[name] = usual() if value is None else completed(value, given, usual)
        elif value is None and given.get(name) is not None:
            found[name] = given[name]
    changed = {name: value for name, value in found.items() if value is not getattr(searcher, name)}
    return replace(searcher, **changed) if changed else searcher


def nested(searcher: Any) -> Iterator[Any]:
    """The searcher, and those within it."""
    while searcher is not None:
        yield searcher
        searcher = getattr(searcher, "inner", None)
