"""Search spaces: a dict from names to domains (or constants), as in Ray Tune; and plain data for the journal."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
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
    """One of these values, each as likely."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values("choice", self.values))

    def sample(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class GridDomain:
    """Each of these values, with every value of the other grids."""

    values: tuple[Value, ...]

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


def choice(values: Iterable[Value]) -> Choice:
    """One of these values. Raises ValueError for none, or one that JSON cannot hold."""
    return Choice(_values("choice", values))


def grid(values: Iterable[Value]) -> GridDomain:
    """Each of these values. Raises ValueError for none, or one that JSON cannot hold."""
    return GridDomain(_values("grid", values))


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
        ValueError: something that JSON cannot hold.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(value_of(item) for item in value)
    raise ValueError(f"a configuration holds bool, int, float, str, None and lists of them; got {value!r}")


def validated(space: Space) -> dict[str, Any]:
    """The space with its constants made plain.

    Raises:
        ValueError: a name that is no text, or a constant that a configuration cannot hold.
    """
    made: dict[str, Any] = {}
    for name, domain in space.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a dimension's name must be a text; got {name!r}")
        try:
            made[name] = domain if isinstance(domain, tuple(_KINDS.values())) else value_of(domain)
        except ValueError as error:
            remedy = "flatten it: {'optimizer.lr': …}" if isinstance(domain, Mapping) else "or give a domain, such as choice([…])"
            raise ValueError(f"dimension {name!r}: {error}; {remedy}") from error
    return made


def grids(space: Space) -> list[Config]:
    """All combinations of the space's grids, the last dimension running fastest; one empty one without grids."""
    combined: list[Config] = [{}]
    for name, domain in space.items():
        if isinstance(domain, GridDomain):
            combined = [{**config, name: value} for config in combined for value in domain.values]
    return combined


def draw(space: Space, seed: int, index: int, fixed: Config) -> Config:
    """Configuration number `index`: grids from `fixed`, the rest drawn.

    A function of its arguments; a dimension's draw depends on (seed, index, its name) only.
    """
    config: Config = {}
    for name, domain in space.items():
        if name in fixed:
            config[name] = fixed[name]
        elif hasattr(domain, "sample"):
            config[name] = cast(Domain, domain).sample(np.random.default_rng([seed, index, crc32(name.encode())]))
        else:
            config[name] = domain
    return config


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
            return {"kind": kind, **asdict(domain)}
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
    return _KINDS[kind](**{f.name: data[f.name] for f in fields(_KINDS[kind])})
