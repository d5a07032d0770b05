"""A search space in Optuna's terms: distributions by label, and a configuration's parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import CRITICAL, getLogger
from typing import Any
from warnings import catch_warnings, simplefilter

from shoal.core.install import install
from shoal.core.trial import Value
from shoal.search.space import (
    LogUniform,
    RandInt,
    Space,
    Uniform,
    build,
)
from shoal.search.within import holds


def optuna() -> Any:
    """The package.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import optuna as package
    except ImportError as error:
        raise ValueError(f"this needs Optuna: {install('optuna')}") from error
    return package


@contextmanager
def quietly() -> Iterator[None]:
    """Without Optuna's log lines and warnings of what is experimental."""
    log = getLogger("optuna")
    level = log.level
    log.setLevel(CRITICAL)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def distribution(domain: Any) -> Any:
    """The Optuna distribution of a dimension; a grid's is that of a choice."""
    made = optuna().distributions
    if isinstance(domain, (Uniform, LogUniform)):
        return made.FloatDistribution(domain.low, domain.high, log=isinstance(domain, LogUniform))
    if isinstance(domain, RandInt):
        return made.IntDistribution(domain.low, domain.high - 1)
    return made.CategoricalDistribution(tuple(map(_told, domain.values)))


def _told(value: Value) -> Any:
    if isinstance(value, tuple):  # Optuna's choices are plain values
        return repr(value)
    return value


def suggested(trial: Any, label: str, domain: Any) -> Value:
    """The configuration's value of this dimension, asked of an Optuna trial."""
    found: Any
    if isinstance(domain, (Uniform, LogUniform)):
        found = trial.suggest_float(
            label, domain.low, domain.high, log=isinstance(domain, LogUniform)
        )
    elif isinstance(domain, RandInt):
        found = trial.suggest_int(label, domain.low, domain.high - 1)
    else:
        told = trial.suggest_categorical(label, list(map(_told, domain.values)))
        found = next(value for value in domain.values if _told(value) == told)
    return found  # type: ignore[no-any-return]


def parameters(
    space: Space, config: Mapping[str, Value]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The configuration's parameters and their distributions, by label.

    None if the configuration is not of this space.
    """
    params: dict[str, Any] = {}
    kinds: dict[str, Any] = {}

    def pick(name: str, domain: Any, label: str) -> Value:
        value = config[name]
        if not holds(domain, value):
            raise KeyError(name)
        kinds[label] = distribution(domain)
        params[label] = _told(value)
        return value

    try:
        build(space, pick)
    except (KeyError, ValueError):
        return None
    return params, kinds
