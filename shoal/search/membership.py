"""Whether a configuration is one that a search space could give."""

from collections.abc import Mapping
from typing import Any

from shoal.core.masking import masked
from shoal.core.trial import Value
from shoal.search.draws import SEED
from shoal.search.space import Choice, GridDomain, RandInt, Space, build, validated


class _OutsideError(Exception):
    """The configuration has a value that the space could not give."""


def holds(domain: Any, value: Value) -> bool:
    """Whether the value lies within the dimension; both ends of a range belong to it."""
    if isinstance(domain, (Choice, GridDomain)):
        return value in domain.values
    if not isinstance(value, (int, float)):
        return False
    if isinstance(domain, RandInt):
        return value % 1 == 0 and domain.low <= value < domain.high
    return bool(domain.low <= value <= domain.high)


def outside(space: Space | None, config: Mapping[str, Value]) -> str | None:
    """What of this configuration the space could not give, in words; None: nothing."""

    def pick(name: str, domain: Any, _: str) -> Value:
        if name not in config:
            raise _OutsideError(f"no {name}")
        if not holds(domain, config[name]):
            raise _OutsideError(f"{name}={masked(name, config[name])!r}")
        return config[name]

    try:
        given = build(validated(space or {}), pick)
    except _OutsideError as error:
        return str(error)
    names = [*given, *config]
    if SEED not in given:  # a repetition has a seed of its own
        names = [name for name in names if name != SEED]
    for name in names:
        if name not in given or name not in config or given[name] != config[name]:
            return f"{name}={masked(name, config.get(name))!r}"
    return None
