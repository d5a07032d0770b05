"""How a copy's configuration differs from that of the trial it is a copy of."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import nextafter
from typing import Any

import numpy as np

from shoal.core.trial import Value
from shoal.search.space import (
    Choice,
    Config,
    GridDomain,
    LogUniform,
    RandInt,
    Space,
    Uniform,
    build,
)

FACTORS = {True: 1.2, False: 0.8}  # up, down
STEPS = {True: 1, False: -1}


def check_mutable(domains: Mapping[str, Any], names: Collection[str] | None) -> None:
    """Check that copies can change something.

    `names`: what they are to change; None: whatever is continuous.

    Raises:
        ValueError: nothing in the space is continuous, or a name cannot be changed.
    """
    changeable = sorted(name for name, domain in domains.items() if _varies(domain))
    if names is None:
        if not any(map(_is_continuous, domains.values())):
            listed = ", ".join(changeable) or "dimensions that are not constant"
            raise ValueError(
                "PBT: copies change what is uniform or loguniform, and nothing is in this "
                "space: they would repeat their models; name what they may change, "
                f"mutate=[…], of {listed}"
            )
        return
    wrong = sorted(set(names).difference(changeable))
    if wrong:
        raise ValueError(
            f"PBT: mutate names {', '.join(wrong)}; the space has "
            f"{', '.join(changeable) or 'constants only'}"
        )


@dataclass(frozen=True, slots=True)
class Mutation:
    """A way to change configurations.

    `names`: what changes; None: whatever is `uniform` or `loguniform`. `anew`: the probability
    that a value is drawn anew, and not from near the old one.
    """

    names: Collection[str] | None
    anew: float
    rng: np.random.Generator

    def of(self, config: Mapping[str, Value], space: Space) -> Config:
        """A changed copy of a configuration of the space."""

        def pick(name: str, domain: Any, _: str) -> Value:
            return self._changed(config, name, domain)

        return build(space, pick)

    def _changed(self, config: Mapping[str, Value], name: str, domain: Any) -> Value:
        """The copy's value of one dimension."""
        free = self._is_free(name, domain)
        if isinstance(domain, GridDomain):
            domain = Choice(domain.values)
        # Another branch of the space may have another domain by this name.
        has = name in config and _within(domain, config[name])
        if has and not free:
            return config[name]
        if not has or self.rng.random() < self.anew:
            drawn: Value = domain.sample(self.rng)
            return drawn
        return self._near(domain, config[name])

    def _is_free(self, name: str, domain: Any) -> bool:
        """Whether copies may change this dimension."""
        if self.names is None:
            return _is_continuous(domain)
        return name in self.names

    def _near(self, domain: Any, value: Any) -> Value:
        """Near the value, within the domain: up or down, or the other way at its end.

        The value itself only if there is no other.
        """
        up = self._goes_up()
        near = _shifted(domain, value, up)
        if near != value:
            return near
        return _shifted(domain, value, not up)

    def _goes_up(self) -> bool:
        """Up or down, by lot."""
        return bool(self.rng.integers(2))


def _is_continuous(domain: Any) -> bool:
    return isinstance(domain, Uniform | LogUniform)


def _varies(domain: Any) -> bool:
    return hasattr(domain, "sample") or isinstance(domain, GridDomain)


def _within(domain: Any, value: Any) -> bool:
    if isinstance(domain, Choice):
        return value in domain.values
    return isinstance(value, int | float) and bool(domain.low <= value < domain.high)


def _shifted(domain: Any, value: Any, up: bool) -> Value:
    """The next value of a choice, or a fifth more or less, within the domain."""
    if isinstance(domain, Choice):
        return _neighbour(domain.values, value, STEPS[up])
    if isinstance(domain, RandInt):
        return _near_integer(domain, value, up)
    last = nextafter(domain.high, domain.low)
    near: float = min(max(value * FACTORS[up], domain.low), last)
    return near


def _neighbour(values: Sequence[Value], value: Value, step: int) -> Value:
    """The value so many places further, or the last one in that direction."""
    last = len(values) - 1
    place = values.index(value) + step
    return values[min(max(place, 0), last)]


def _near_integer(domain: RandInt, value: int, up: bool) -> int:
    """A fifth more or less, at least one, within the domain."""
    return min(max(_another(value, up), domain.low), domain.high - 1)


def _another(value: int, up: bool) -> int:
    """The whole number a fifth above or below, at least one away."""
    whole = round(value * FACTORS[up])
    if whole == value:
        whole += STEPS[up]
    return whole
