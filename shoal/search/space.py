"""Search spaces: a dict from names to domains, constants or further dicts, as in Ray Tune; and plain data for the journal.

A dict within a dict is flattened: {"model": {"width": grid([64, 128])}} makes a dimension "model.width". Values may bring
dimensions with them: choice({"sgd": {"momentum": uniform(0, 1)}, "adam": {}}) as "optimizer" makes configurations with
"optimizer": "sgd" and an "optimizer.momentum", and others with "optimizer": "adam" and none.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, cast
from zlib import crc32

import numpy as np

from shoal.core.trial import Value

Space = Mapping[str, Any]  # name -> Domain, GridDomain, or a constant
Config = dict[str, Value]


class Domain(Protocol):
    """A dimension that is drawn from."""

    def sample(self, rng: np.random.Generator) -> Value: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Floats in [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range("uniform", self.low, self.high)

    def sample(self, rng: np.random.Generator) -> Value:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Floats in [low, high), even in their logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range("loguniform", self.low, self.high)
        if self.low <= 0:
            raise ValueError(f"loguniform needs low > 0; got low={self.low!r}: use uniform for ranges that reach 0")

    def sample(self, rng: np.random.Generator) -> Value:
        return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True, slots=True)
class RandInt:
    """Integers low, low + 1, …, high - 1, as in NumPy and Ray Tune."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("randint", self.low, self.high)
        if int(self.low) != self.low or int(self.high) != self.high:
            raise ValueError(f"randint needs whole numbers; got low={self.low!r}, high={self.high!r}")

    def sample(self, rng: np.random.Generator) -> Value:
        return int(rng.integers(self.low, self.high))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values, each as likely. `under`: for each value the space that comes with it; empty: none for any."""

    values: tuple[Value, ...]
    under: tuple[Space, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values("choice", self.values))

    def sample(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class GridDomain:
    """Each of these values, with every value of the other grids. `under`: as for `Choice`."""

    values: tuple[Value, ...]
    under: tuple[Space, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values("grid", self.values))


def uniform(low: float, high: float) -> Uniform:
    """Floats in [low, high). Raises ValueError unless both are finite and low < high."""
    return Uniform(low, high)


def loguniform(low: float, high: float) -> LogUniform:
    """Floats in [low, high), even in their logarithm. Raises ValueError unless finite and 0 < low < high."""
    return LogUniform(low, high)


def randint(low: int, high: int) -> RandInt:
    """Integers from low to high - 1. Raises ValueError unless low < high."""
    return RandInt(low, high)


def choice(values: Iterable[Value] | Mapping[Any, Space | None]) -> Choice:
    """One of these values; or one of a dict's keys, with the dimensions that belong to it: {"sgd": {"momentum": …}, "adam": {}}.

    Raises:
        ValueError: none, or one that JSON cannot hold.
    """
    return Choice(_values("choice", values), _under("choice", values))


def grid(values: Iterable[Value] | Mapping[Any, Space | None]) -> GridDomain:
    """Each of these values; or each of a dict's keys, with the dimensions that belong to it, as for `choice`.

    Raises:
        ValueError: none, or one that JSON cannot hold.
    """
    return GridDomain(_values("grid", values), _under("grid", values))


def _under(name: str, values: Any) -> tuple[Space, ...]:
    if not isinstance(values, Mapping):
        return ()
    for value, space in values.items():
        if not isinstance(space, Mapping | None):
            raise ValueError(f"{name}({{value: dimensions}}) needs a dict, or None, for each value; got {space!r} for {value!r}")
    return tuple(dict(space or {}) for space in values.values())


def _check_range(name: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{name} needs finite low < high; got low={low!r}, high={high!r}")


def _values(name: str, values: Iterable[Any]) -> tuple[Value, ...]:
    if isinstance(values, str):
        raise ValueError(f"{name} needs a list of values; got the text {values!r}: write {name}([{values!r}])")
    plain = tuple(value_of(value) for value in values)
    if not plain:
        raise ValueError(f"{name} needs at least one value; got none")
    return plain


def value_of(value: Any) -> Value:
    """The value as a configuration holds it: NumPy scalars as Python's, lists as tuples.

    Raises:
        ValueError: something that JSON cannot hold, or NaN, which equals nothing.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("a configuration holds no NaN: it equals nothing, not even itself; say None")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(value_of(item) for item in value)
    raise ValueError(f"a configuration holds bool, int, float, str, None and lists of them; got {value!r}")


def validated(space: Space) -> dict[str, Any]:
    """The space with nested dicts flattened and constants made plain.

    Raises:
        ValueError: a name that is no text or comes twice, or a constant that a configuration cannot hold.
    """
    made: dict[str, Any] = {}
    taken: set[str] = set()
    for name, domain in space.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a dimension's name must be a text; got {name!r}")
        if isinstance(domain, Mapping):
            flat = {f"{name}.{key}": each for key, each in validated(domain).items()}
        else:
            flat = {name: _checked(name, domain)}
        names = {full for full, _ in dimensions(flat)}
        if taken & names:
            raise ValueError(f"dimensions must have names of their own; there are two of {', '.join(sorted(taken & names))}")
        taken |= names
        made |= flat
    return made


def _checked(name: str, domain: Any) -> Any:
    if isinstance(domain, (Choice, GridDomain)) and domain.under:
        return type(domain)(domain.values, tuple(map(validated, domain.under)))
    try:
        return domain if isinstance(domain, tuple(_KINDS.values())) else value_of(domain)
    except ValueError as error:
        raise ValueError(f"dimension {name!r}: {error}; or give a domain, such as choice([…])") from error


def options(domain: Choice | GridDomain) -> Iterator[tuple[Value, Space]]:
    """Its values, each with the space that comes with it."""
    return zip(domain.values, domain.under or ({},) * len(domain.values), strict=True)


def dimensions(space: Space, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All dimensions of a validated space by full name, those that come with a value after it."""
    for name, domain in space.items():
        yield prefix + name, domain
        for under in getattr(domain, "under", ()):
            yield from dimensions(under, f"{prefix}{name}.")


def build(space: Space, pick: Callable[[str, Any, str], Value], prefix: str = "", label: str = "") -> Config:
    """The configuration that `pick(full name, domain, label)` leads to, dimension by dimension.

    It is asked only for dimensions that the values so far bring. A label is a name with those values in it, and so no other
    domain's: "optimizer[sgd].lr".
    """
    config: Config = {}
    for name, domain in space.items():
        full, kind = prefix + name, isinstance(domain, tuple(_KINDS.values()))
        config[full] = value = pick(full, domain, label + name) if kind else domain
        if isinstance(domain, (Choice, GridDomain)) and domain.under:
            config |= build(domain.under[domain.values.index(value)], pick, full + ".", f"{label}{name}[{value}].")
    return config


def as_grid(space: Space) -> dict[str, Any]:
    """The space with every `choice` made a `grid`."""
    return {
        name: GridDomain(domain.values, tuple(map(as_grid, domain.under))) if isinstance(domain, (Choice, GridDomain)) else domain
        for name, domain in space.items()
    }


def grids(space: Space, prefix: str = "") -> list[Config]:
    """All combinations of the space's grids, the last dimension running fastest; one empty one without grids.

    Raises:
        ValueError: a grid comes with a value that is drawn: how often it would be tried is anyone's guess.
    """
    combined: list[Config] = [{}]
    for name, domain in space.items():
        full = prefix + name
        if isinstance(domain, GridDomain):
            branches = [{full: value, **below} for value, under in options(domain) for below in grids(under, full + ".")]
            combined = [{**config, **branch} for config in combined for branch in branches]
        elif any(isinstance(each, GridDomain) for _, each in dimensions({name: domain})):
            raise ValueError(f"dimension {full!r} is a choice with a grid under it: make the inner one a choice, or both grids")
    return combined


def draw(space: Space, seed: int, index: int, fixed: Config) -> Config:
    """Configuration number `index`: dimensions in `fixed` (its grids, usually) as they are there, the rest drawn.

    A function of its arguments; a dimension's draw depends on (seed, index, its name) only.
    """

    def pick(name: str, domain: Any, _: str) -> Value:
        if name in fixed:
            return fixed[name]
        drawn = Choice(domain.values) if isinstance(domain, GridDomain) else cast(Domain, domain)
        return drawn.sample(np.random.default_rng([seed, index, crc32(name.encode())]))

    return build(space, pick)


_KINDS: Mapping[str, type[Any]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "randint": RandInt,
    "choice": Choice,
    "grid": GridDomain,
}


def describe_space(space: Space) -> dict[str, Any]:
    """The space as JSON-able data that keeps the order of its dimensions; `rebuild_space` reads it."""
    return {"dimensions": [[name, _describe(domain)] for name, domain in validated(space).items()]}


def _describe(domain: Any) -> dict[str, Any]:
    for kind, type_ in _KINDS.items():
        if type(domain) is type_:
            data = {f.name: getattr(domain, f.name) for f in fields(type_) if f.name != "under"}
            under = {"under": [describe_space(each) for each in domain.under]} if getattr(domain, "under", ()) else {}
            return {"kind": kind, **data, **under}
    return {"kind": "constant", "value": domain}


def rebuild_space(described: Mapping[str, Any]) -> dict[str, Any]:
    """The space that `describe_space` described."""
    return {name: _rebuild(dict(data)) for name, data in described["dimensions"]}


def _rebuild(data: dict[str, Any]) -> Any:
    kind = data.pop("kind")
    if kind == "constant":
        return value_of(data["value"])
    if kind not in _KINDS:
        raise ValueError(f"a dimension's kind is one of {', '.join(_KINDS)}, constant; got {kind!r}")
    if "under" in data:
        data["under"] = tuple(map(rebuild_space, data["under"]))
    return _KINDS[kind](**data)
