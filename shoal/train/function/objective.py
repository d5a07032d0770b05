"""Objectives as Optuna has them: a function of a trial, which draws its parameters as it runs."""

from __future__ import annotations

import re
from math import exp, floor, log
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from shoal.core.errors import warn
from shoal.core.site import page
from shoal.core.trial import TrialId, Value, is_number, shown
from shoal.search.sobol import Place, Source, source
from shoal.search.space import LARGEST
from shoal.train.function.session import Pruned, TrialContext, TrialStopped, Values, number, report

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# What Optuna's trials have, and what to use here.
_MEANT = {
    "suggest_uniform": "suggest_float(name, low, high)",
    "suggest_loguniform": "suggest_float(name, low, high, log=True)",
    "suggest_discrete_uniform": "suggest_float(name, low, high, step=…)",
    "set_system_attr": "set_user_attr(name, value)",
}
# Keys of a configuration that Shoal reads itself.
OF_SHOAL = frozenset({"seed", "fold", "priority"})
_NUMBERED = re.compile(r"t\d+")  # the names that searchers give
_PLAIN = (bool, int, float, str, type(None))


class ObjectiveTrial:
    """The trial that an objective gets: Optuna's `Trial`, as far as Shoal has it.

    A parameter that the configuration has already comes from there: a searcher or a person chose
    it. Others are drawn from (seed, number of the trial, which parameter it asks for), spread as
    those of `search.Draws`, and become part of the configuration. Trials of a study that also has a
    search space, or was begun before, draw each by itself from (seed, trial, name).
    """

    def __init__(self, context: TrialContext) -> None:
        self._context = context
        # The parameters that were asked for so far, from 0.
        self._numbers: dict[str, int] = {}
        self._stopped = False
        self.params: dict[str, Value] = {}
        self.user_attrs: dict[str, Any] = {}
        self.noted: Values = {}  # attributes that are numbers; they go with the next report

    def __getattr__(self, name: str) -> Any:
        hint = ""
        if name in _MEANT:
            hint = f": did you mean {_MEANT[name]}?"
        raise AttributeError(
            f"a trial of Shoal has no {name!r}{hint}; {page('functions', 'objectives')} "
            "lists what it has"
        )

    @property
    def number(self) -> int:
        """The trial's number, from 0."""
        return numbered(self._context.trial.id)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from `low` to `high`: even, in steps, or even in its logarithm.

        Raises:
            ValueError: the bounds are none, or `log` comes with a step or a bound <= 0.
        """
        _check_bounds(name, low, high, step, log)

        def draw(rng: Source) -> float:
            if step is not None:
                count = floor((high - low) / step + 1e-9)
                return low + step * int(rng.integers(count + 1))
            return _uniform(rng, low, high, log)

        return float(self._chosen(name, draw))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """A whole number from `low` to `high`, as `suggest_float` draws it.

        Raises:
            ValueError: as `suggest_float`.
        """
        _check_bounds(name, low, high, step if step != 1 else None, log)
        if any(each % 1 for each in (low, high, step)):
            raise ValueError(
                f"{name}: low, high and step must be whole; got {low!r}, {high!r}, {step!r}"
            )

        def draw(rng: Source) -> int:
            if log:
                drawn = _uniform(rng, low - 0.5, high + 0.5, log)
                return min(high, max(low, round(drawn)))
            return low + step * int(rng.integers((high - low) // step + 1))

        return int(self._chosen(name, draw))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices.

        Raises:
            ValueError: there are none, or one is no number, text, bool or None.
        """
        choices = list(choices)
        if not choices or not all(isinstance(each, _PLAIN) for each in choices):
            raise ValueError(
                f"{name}: choices are numbers, texts, True, False or None, one or more; "
                f"got {shown(choices)}: name larger things, and look them up by the name"
            )
        return self._chosen(name, lambda rng: choices[int(rng.integers(len(choices)))])

    def report(self, value: float, step: int) -> None:
        """Report an intermediate value. The trial's reports are its steps, in their order."""
        if self._stopped:
            raise TrialStopped
        noted, self.noted = self.noted, {}
        try:
            report({self._context.metric: value, **noted})
        except TrialStopped:
            self._stopped = True

    def should_prune(self) -> bool:
        """Whether the trial was stopped at its last report: raise `optuna.TrialPruned` then."""
        return self._stopped

    def set_user_attr(self, key: str, value: Any) -> None:
        """Note something of the trial. A number becomes a score of the next report.

        Anything else is known to the trial itself only, while it trains.
        """
        self.user_attrs[key] = value
        score = number(value)
        if score is not None:
            self.noted[key] = score
            return
        warn(
            f"set_user_attr: a study keeps notes that are numbers, and {key!r} is "
            f"{type(value).__name__}: it is not kept; put it into the checkpoint, or into a file"
        )

    def drew(self, name: str) -> None:
        """A parameter was drawn; it is in the configuration now."""

    def _chosen(self, name: str, draw: Callable[[Source], Value]) -> Any:
        """The configuration's value of that name, or one that is drawn and added to it."""
        chosen = self._context.chosen
        number = self._numbers.setdefault(name, len(self._numbers))
        if name not in chosen:
            chosen[name] = draw(self._source(name, number))
            self.drew(name)
        self.params[name] = chosen[name]
        return chosen[name]

    def _source(self, name: str, number: int) -> Source:
        """What the parameter is drawn from; `number` others were asked for before it."""
        seed = self._context.seed % 2**32
        trial = self._context.trial.id
        if self._context.spread and _NUMBERED.fullmatch(trial):
            return source(seed, number, Place(self.number))
        seeds = [seed, crc32(trial.encode()), crc32(name.encode())]
        return np.random.default_rng(seeds)


def numbered(trial: TrialId) -> int:
    """The number in a trial's name."""
    digits = "".join(sign for sign in trial if sign.isdigit())
    return int(digits or 0)


def _check_bounds(name: str, low: float, high: float, step: float | None, log: bool) -> None:
    """Raise ValueError unless something can be drawn between these bounds."""
    bounds = [each for each in (low, high, step) if each is not None]
    if not all(is_number(each) and abs(each) < LARGEST for each in bounds):
        raise ValueError(
            f"{name}: low, high and step must be numbers within 2**63; got {shown(bounds)}"
        )
    if not low <= high:
        raise ValueError(f"{name}: low must be <= high; got {low!r} and {high!r}")
    if log and (step is not None or low <= 0):
        raise ValueError(
            f"{name}: log=True needs low > 0 and no step; got low={low!r}, step={step!r}"
        )
    if step is not None and not step > 0:
        raise ValueError(f"{name}: step must be > 0; got {step!r}")


def _uniform(rng: Source, low: float, high: float, logarithmic: bool) -> float:
    """A number between the bounds, even, or even in its logarithm."""
    if not logarithmic:
        return float(rng.uniform(low, high))
    return float(min(high, max(low, exp(rng.uniform(log(low), log(high))))))


def called(objective: Any, context: TrialContext) -> Values:
    """Call the objective; returns its value by the metric's name.

    Raises:
        Pruned: it gave the trial up, by an exception that is called TrialPruned.
        TypeError: it returned no number.
    """
    trial = ObjectiveTrial(context)
    try:
        result = objective(trial)
    except Exception as error:
        if any(kind.__name__ == "TrialPruned" for kind in type(error).__mro__):
            raise Pruned from error
        raise
    value = number(result)
    if value is None:
        raise TypeError(f"an objective returns one number; got {result!r}")
    _warn_of_unasked(context, trial.params)
    return {context.metric: value, **trial.noted}


def _warn_of_unasked(context: TrialContext, params: Mapping[str, Any]) -> None:
    """Warn of what the trial was given and its objective never asked for."""
    unasked = sorted(context.trial.config.keys() - params.keys() - OF_SHOAL)
    if not unasked:
        return
    ends = {name.rpartition(".")[2] for name in unasked if "." in name}
    hint = ""
    for name in sorted(ends & params.keys()):
        full = next(each for each in unasked if each.endswith(f".{name}"))
        hint = f". What belongs to a value has its dimension's name in front: ask for {full!r}"
    warn(
        f"the objective never asked for {', '.join(unasked)} of the search space, which is "
        f"searched in vain; it asked for {', '.join(params) or 'nothing'}{hint}"
    )
