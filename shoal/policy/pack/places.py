"""Where configurations lie among each other, for the paper's kNN grouping.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 5.3: numbers lie at the index of their level in the search space, texts are
equal or not. From [batch size 20, SGD, rate 0.01, ReLu] to [40, Adagrad, 0.01, ReLu] it is 4 + 1,
where batch sizes come in steps of 5.
"""

from collections.abc import Iterable, Mapping, Sequence

from shoal.core.trial import Value
from shoal.policy.pack.grouping import Place

Levels = Mapping[str, Sequence[Value]]  # the values that a name may have, in order
Config = Mapping[str, Value]
Ranks = Mapping[Value, int]


def places(configs: Sequence[Config], levels: Levels, others: Iterable[Config]) -> list[Place]:
    """The place of each configuration, a dimension for each name.

    A name without `levels` has as levels the numbers that it has in `others`.
    """
    names = sorted({name for config in configs for name in config})
    seen = [*configs, *others]
    index = {}
    for name in names:
        values = levels[name] if name in levels else _values(seen, name)
        index[name] = _index(values)
    return [_place(config, index) for config in configs]


def _place(config: Config, index: Mapping[str, Ranks]) -> Place:
    """The place of the configuration. `index`: the rank of each number, by names in order."""
    return tuple(_at(ranks, config.get(name)) for name, ranks in index.items())


def _values(configs: Iterable[Config], name: str) -> list[Value]:
    """The values that the configurations have under this name."""
    return [config[name] for config in configs if name in config]


def _index(levels: Iterable[Value]) -> Ranks:
    """Numbers by rank."""
    numbers = sorted({level for level in levels if _is_number(level)})  # type: ignore[type-var]
    return {number: rank for rank, number in enumerate(numbers)}


def _at(index: Ranks, value: Value) -> int | str:
    """The rank of a number; a text of anything without order, and of a number that is no level."""
    if _is_number(value) and value in index:
        return index[value]
    return repr(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
