"""Search spaces: a dict from names to domains, constants or further dicts, as in Ray Tune.

A dict within a dict is flattened: {"model": {"width": grid([64, 128])}} makes a dimension
"model.width". A value may bring dimensions with it: choice({"sgd": {"momentum": uniform(0, 1)},
"adam": {}}) as "optimizer" makes some configurations with "optimizer": "sgd" and an
"optimizer.momentum", and others with "optimizer": "adam" and no momentum.

A space can be written as plain data for the journal, and rebuilt from that.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Protocol, cast
from zlib import crc32

import numpy as np

from shoal.core.trial import Value, shown
from shoal.search.sobol import Source

LARGEST = 2**63  # bounds of whole numbers
Space = Mapping[str, Any]  # name -> Domain, GridDomain, or a constant
Config = dict[str, Value]
Pick = Callable[[str, Any, str], Value]  # (full name, domain, label) -> the value of a dimension


class Domain(Protocol):
    """A dimension that is drawn from."""

    def sample(self, rng: Source) -> Value: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Floats in [low, high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _take_range(self, "uniform")

    def sample(self, rng: Source) -> Value:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True, slots=True)
class LogUniform:
    """Floats in [low, high), even in their logarithm."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _take_range(self, "loguniform")
        if self.low <= 0:
            raise ValueError(
                f"loguniform needs low > 0; got low={self.low!r}: "
                "use uniform for ranges that reach 0"
            )

    def sample(self, rng: Source) -> Value:
        exponent = rng.uniform(math.log(self.low), math.log(self.high))
        # Rounding may lead out of the range.
        return float(min(max(math.exp(exponent), self.low), self.high))


@dataclass(frozen=True, slots=True)
class RandInt:
    """Integers low, low + 1, …, high - 1, as in NumPy and Ray Tune."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _take_range(self, "randint")
        if int(self.low) != self.low or int(self.high) != self.high:
            raise ValueError(
                f"randint needs whole numbers; got low={self.low!r}, high={self.high!r}"
            )
        if not -LARGEST <= self.low < self.high <= LARGEST:
            raise ValueError(
                f"randint needs bounds within 2**63; got low={self.low!r}, high={self.high!r}: "
                "search a smaller range, and make the large number of it where it is used"
            )

    def sample(self, rng: Source) -> Value:
        return int(rng.integers(self.low, self.high))


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values, each as likely.

    `under`: for each value the space that comes with it; empty if no value brings dimensions.
    """

    values: tuple[Value, ...]
    under: tuple[Space, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values("choice", self.values))

    def sample(self, rng: Source) -> Value:
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True, slots=True)
class GridDomain:
    """Each of these values, combined with every value of the other grids.

    `under`: as for `Choice`.
    """

    values: tuple[Value, ...]
    under: tuple[Space, ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _values("grid", self.values))


def uniform(low: float, high: float) -> Uniform:
    """Floats in [low, high), each as likely.

    Args:
        low: the least.
        high: above the largest.

    Raises:
        ValueError: the bounds are not finite, or not low < high.
    """
    return Uniform(low, high)


def loguniform(low: float, high: float) -> LogUniform:
    """Floats in [low, high), even in their logarithm.

    Args:
        low: the least, above 0.
        high: above the largest.

    Raises:
        ValueError: the bounds are not finite, or not 0 < low < high.
    """
    return LogUniform(low, high)


def randint(low: int, high: int) -> RandInt:
    """Whole numbers from low to high - 1, each as likely.

    Args:
        low: the least.
        high: one more than the largest.

    Raises:
        ValueError: the bounds are no whole numbers, not low < high, or beyond 2**63.
    """
    return RandInt(low, high)


def choice(values: Iterable[Value] | Mapping[Any, Space | None]) -> Choice:
    """One of these values, each as likely.

    Args:
        values: the values; or a dict of values, each with the dimensions that belong to it, as
            {"sgd": {"momentum": uniform(0, 1)}, "adam": {}}.

    Raises:
        ValueError: there are no values, or JSON cannot hold one of them.
    """
    return Choice(_values("choice", values), _under("choice", values))


def grid(values: Iterable[Value] | Mapping[Any, Space | None]) -> GridDomain:
    """Each of these values, combined with every value of the other grids.

    Args:
        values: the values; or a dict of values, each with the dimensions that belong to it, as for
            `choice`.

    Raises:
        ValueError: there are no values, or JSON cannot hold one of them.
    """
    return GridDomain(_values("grid", values), _under("grid", values))


def _under(name: str, values: Any) -> tuple[Space, ...]:
    if not isinstance(values, Mapping):
        return ()
    for value, space in values.items():
        if not isinstance(space, Mapping | None):
            raise ValueError(
                f"{name}({{value: dimensions}}) needs a dict, or None, for each value; "
                f"got {shown(space)} for {shown(value)}"
            )
    return tuple(dict(space or {}) for space in values.values())


def _take_range(domain: Any, name: str) -> None:
    """Take the bounds as Python's numbers.

    Raises:
        ValueError: they are no finite numbers, the lower one first, or too far apart.
    """
    for bound in ("low", "high"):
        value = getattr(domain, bound)
        if isinstance(value, np.generic):
            value = value.item()
            object.__setattr__(domain, bound, value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} needs numbers; got {bound}={shown(value)}")
    try:
        fits = math.isfinite(float(domain.high) - float(domain.low))
    except OverflowError:
        fits = False
    if not fits or not domain.low < domain.high:
        raise ValueError(
            f"{name} needs finite low < high, not too large for a float; got "
            f"low={shown(domain.low)}, high={shown(domain.high)}"
        )


def _values(name: str, values: Any) -> tuple[Value, ...]:
    if isinstance(values, str | bytes):
        raise ValueError(
            f"{name} needs a list of values; got the text {shown(values)}: "
            f"write {name}([{shown(values)}])"
        )
    if isinstance(values, set | frozenset):
        raise ValueError(
            f"{name} needs values in an order that stays; got {shown(values)}: write a list"
        )
    try:
        listed = list(values)
    except TypeError:
        raise ValueError(
            f"{name} needs a list of values; got {shown(values)}: write {name}([{shown(values)}])"
        ) from None
    plain = tuple(value_of(value) for value in listed)
    if not plain:
        raise ValueError(f"{name} needs at least one value; got none")
    return plain


def value_of(value: Any) -> Value:
    """The value as a configuration holds it: NumPy scalars as Python's, lists as tuples.

    Raises:
        ValueError: JSON cannot hold the value, or it is NaN, which equals nothing.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(
            "a configuration holds no NaN: it equals nothing, not even itself; say None"
        )
    if value is None or isinstance(value, bool):
        return value
    # Of an enumeration or another class of a user's, what is stored is the plain value.
    if isinstance(value, int):
        if not -LARGEST <= value < 2 * LARGEST:
            raise ValueError(
                f"a configuration holds whole numbers of 64 bits; got {shown(value)}: "
                "write it as a text or a float"
            )
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, (list, tuple)):
        try:
            return tuple(value_of(item) for item in value)
        except RecursionError:
            raise ValueError("a configuration holds no list that is so deep") from None
    raise ValueError(
        "a configuration holds bool, int, float, str, None and lists of them; got "
        f"{shown(value)}: give a name or a number, and make the object of it in configure_model"
    )


def _text(text: str) -> str:
    """The text; ValueError if it cannot be written down."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"a configuration holds texts that UTF-8 can hold; got {shown(text)}, which has half "
            "of a character (a surrogate)"
        ) from None
    return text


def is_domain(value: Any) -> bool:
    """Whether this is a domain of this module, and not a constant."""
    return isinstance(value, tuple(_KINDS.values()))


def validated(space: Space) -> dict[str, Any]:
    """The space with nested dicts flattened and constants made plain.

    Raises:
        ValueError: a name is not a text or comes twice, or a configuration cannot hold a constant.
    """
    try:
        return _validated(space)
    except RecursionError:
        raise ValueError(
            "a search space holds no dict that is so deep, or that holds itself"
        ) from None


def _validated(space: Space) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    taken: set[str] = set()
    for name, domain in space.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a dimension's name must be a text; got {shown(name)}")
        _text(name)
        branch = _flattened(name, domain)
        names = {full for full, _ in dimensions(branch)}
        twice = ", ".join(sorted(taken & names))
        if twice:
            raise ValueError(f"dimensions must have names of their own; there are two of {twice}")
        taken |= names
        flat |= branch
    return flat


def _flattened(name: str, domain: Any) -> dict[str, Any]:
    if isinstance(domain, Mapping):
        return {f"{name}.{key}": each for key, each in _validated(domain).items()}
    return {name: _checked(name, domain)}


def _checked(name: str, domain: Any) -> Any:
    if isinstance(domain, (Choice, GridDomain)) and domain.under:
        return type(domain)(domain.values, tuple(map(_validated, domain.under)))
    if is_domain(domain):
        return domain
    try:
        if isinstance(domain, list):
            return choice(domain)
        return value_of(domain)
    except ValueError as error:
        raise ValueError(
            f"dimension {name!r}: {error}; or give a domain, such as choice([…])"
        ) from error


def options(domain: Choice | GridDomain) -> Iterator[tuple[Value, Space]]:
    """Its values, each with the space that comes with it."""
    spaces = domain.under or ({},) * len(domain.values)
    return zip(domain.values, spaces, strict=True)


def dimensions(space: Space, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All dimensions of a validated space by full name; those that a value brings come after it."""
    for name, domain in space.items():
        yield prefix + name, domain
        for under in getattr(domain, "under", ()):
            yield from dimensions(under, f"{prefix}{name}.")


def build(space: Space, pick: Pick, prefix: str = "", label: str = "") -> Config:
    """The configuration that `pick(full name, domain, label)` leads to, dimension by dimension.

    `pick` is asked only for dimensions that the values so far bring. A label is a name with those
    values in it, such as "optimizer[sgd].lr", so that no other domain has the same label.
    """
    config: Config = {}
    for name, domain in space.items():
        full = prefix + name
        value = domain
        if is_domain(domain):
            value = pick(full, domain, label + name)
        config[full] = value
        if isinstance(domain, (Choice, GridDomain)) and domain.under:
            under = domain.under[domain.values.index(value)]
            config |= build(under, pick, full + ".", f"{label}{name}[{value}].")
    return config


def as_grid(space: Space) -> dict[str, Any]:
    """The space with every `choice` made a `grid`."""
    made: dict[str, Any] = {}
    for name, domain in space.items():
        if isinstance(domain, (Choice, GridDomain)):
            made[name] = GridDomain(domain.values, tuple(map(as_grid, domain.under)))
        else:
            made[name] = domain
    return made


class Combinations:
    """All combinations of a validated space's grids, the last dimension running fastest.

    A space without grids has one empty combination. Each is made when it is asked for, so that a
    grid of millions takes no room.

    Raises:
        ValueError: a grid comes with a value that is drawn: how often it would be tried is unclear.
    """

    def __init__(self, space: Space, prefix: str = "") -> None:
        self._grids = [
            _Grid(prefix + name, domain)
            for name, domain in space.items()
            if isinstance(domain, GridDomain)
        ]
        for name, domain in space.items():
            below = dimensions({name: domain})
            if not isinstance(domain, GridDomain) and any(
                isinstance(each, GridDomain) for _, each in below
            ):
                raise ValueError(
                    f"dimension {prefix + name!r} is a choice with a grid under it: "
                    "make the inner one a choice, or both grids"
                )
        # More than `len` may say.
        self.count: int = math.prod(grid.count for grid in self._grids)

    def __getitem__(self, number: int) -> Config:
        if not 0 <= number < self.count:
            raise IndexError(f"there are {self.count} combinations; got {number}")
        parts: list[Config] = []
        for grid in reversed(self._grids):
            number, own = divmod(number, grid.count)
            parts.append(grid.branch(own))
        config: Config = {}
        for part in reversed(parts):
            config |= part
        return config

    def place(self, config: Mapping[str, Any]) -> int | None:
        """The number of the first combination that the configuration has; None: it has none."""
        number = 0
        for grid in self._grids:
            own = grid.place(config)
            if own is None:
                return None
            number = number * grid.count + own
        return number


class _Grid:
    """One grid: its values, each with the combinations of the grids that come with it."""

    def __init__(self, name: str, domain: GridDomain) -> None:
        self._name = name
        self._values = domain.values
        self._below = [Combinations(under, name + ".") for under in domain.under]
        # The number of each value's first branch.
        self._firsts: Sequence[int] = range(len(domain.values) + 1)
        if self._below:
            counts = (below.count for below in self._below)
            self._firsts = list(accumulate(counts, initial=0))
        self.count: int = self._firsts[-1]

    def branch(self, number: int) -> Config:
        """The value of this number, with one combination of what comes with it."""
        value = bisect_right(self._firsts, number) - 1
        config: Config = {self._name: self._values[value]}
        if self._below:
            config |= self._below[value][number - self._firsts[value]]
        return config

    def place(self, config: Mapping[str, Any]) -> int | None:
        """The number of the branch that the configuration has."""
        if config.get(self._name, _NOTHING) not in self._values:
            return None
        value = self._values.index(config[self._name])
        below: int | None = 0
        if self._below:
            below = self._below[value].place(config)
        return None if below is None else self._firsts[value] + below


_NOTHING = object()


def draw(space: Space, fixed: Config, source: Callable[[str], Source]) -> tuple[Config, bool]:
    """A configuration: dimensions in `fixed` as they are there, the others drawn.

    `fixed` usually holds a combination of the space's grids. `source`: what the dimension of that
    name is drawn from. Also returns whether any was drawn.
    """
    drawn = False

    def pick(name: str, domain: Any, _: str) -> Value:
        nonlocal drawn
        if name in fixed:
            return fixed[name]
        if isinstance(domain, GridDomain):
            domain = Choice(domain.values)
        drawn = True
        return cast(Domain, domain).sample(source(name))

    return build(space, pick), drawn


def independent(seed: int, index: int) -> Callable[[str], Source]:
    """What configuration number `index` is drawn from where each draw is by itself.

    What is drawn for a dimension depends only on (seed, index, the dimension's name).
    """
    return lambda name: np.random.default_rng([seed, index, crc32(name.encode())])


_KINDS: Mapping[str, type[Any]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "randint": RandInt,
    "choice": Choice,
    "grid": GridDomain,
}


def describe_space(space: Space) -> dict[str, Any]:
    """The space as JSON-able data that keeps the order of dimensions; `rebuild_space` reads it."""
    return {"dimensions": [[name, _describe(domain)] for name, domain in validated(space).items()]}


def _describe(domain: Any) -> dict[str, Any]:
    for kind, type_ in _KINDS.items():
        if type(domain) is type_:
            described: dict[str, Any] = {"kind": kind}
            for each in fields(type_):
                if each.name != "under":
                    described[each.name] = getattr(domain, each.name)
            if getattr(domain, "under", ()):
                described["under"] = [describe_space(under) for under in domain.under]
            return described
    return {"kind": "constant", "value": domain}


def rebuild_space(described: Mapping[str, Any]) -> dict[str, Any]:
    """The space that `describe_space` described."""
    return {name: _rebuild(dict(data)) for name, data in described["dimensions"]}


def _rebuild(data: dict[str, Any]) -> Any:
    kind = data.pop("kind")
    if kind == "constant":
        return value_of(data["value"])
    if kind not in _KINDS:
        raise ValueError(
            f"a dimension's kind is one of {', '.join(_KINDS)}, constant; got {kind!r}"
        )
    if "under" in data:
        data["under"] = tuple(map(rebuild_space, data["under"]))
    return _KINDS[kind](**data)
