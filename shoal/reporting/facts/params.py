"""What the configurations of a study vary, and on which axes that is best drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log10
from statistics import median
from typing import Any

from shoal.core.trial import TrialId, Value
from shoal.reporting.facts.format import DASH, value
from shoal.reporting.facts.metrics import Account
from shoal.reporting.facts.rows import TrialRow

Rows = Sequence[TrialRow]
Values = Mapping[TrialId, Value]  # of one parameter

SPAN = 8.0  # values of a smaller ratio stay on a linear axis


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of the configurations. `scale`: "log", "linear" or "category".

    The values of a category are texts.
    """

    name: str
    scale: str
    values: Mapping[TrialId, float | str]
    categories: tuple[str, ...] = ()  # in the order they are drawn
    places: Mapping[str, int] = field(init=False)  # of each in that order

    def __post_init__(self) -> None:
        places = {text: place for place, text in enumerate(self.categories)}
        object.__setattr__(self, "places", places)

    def place(self, trial: TrialId) -> float:
        """Where the trial's value lies on a linear axis.

        log10, the number itself, or the index of the category.
        """
        at = self.values[trial]
        if isinstance(at, str):
            return float(self.places[at])
        if self.scale == "log":
            return log10(at)
        return at


def parameters(account: Account) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters that vary, and those that have one value in all trials, as text."""
    rows = account.trials
    varying: list[Parameter] = []
    same: dict[str, str] = {}
    for name in _names(rows):
        given = {row.id: row.config[name] for row in rows if name in row.config}
        texts = {value(item) for item in given.values()}
        if len(texts) == 1 and len(given) == len(rows):
            same[name] = texts.pop()
        else:
            varying.append(_parameter(name, given, rows))
    return varying, same


def _names(rows: Rows) -> list[str]:
    """All names of the configurations."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row.config))
    return list(names)


def _parameter(name: str, given: Values, rows: Rows) -> Parameter:
    """A parameter that varies: of numbers, if all trials have one."""
    numbers = _numbers(given)
    if len(numbers) == len(rows):
        return Parameter(name, _scale(sorted(numbers.values())), numbers)

    texts = {}
    order = {}
    for row in rows:
        text = DASH
        if name in row.config:
            text = value(row.config[name])
        texts[row.id] = text
        order[text] = *_order(given.get(row.id)), text
    categories = sorted(order, key=lambda text: order[text])
    return Parameter(name, "category", texts, tuple(categories))


def _numbers(given: Values) -> dict[TrialId, float]:
    """The values that are numbers."""
    numbers = {}
    for trial, item in given.items():
        if _is_number(item):
            numbers[trial] = float(item)  # type: ignore[arg-type]
    return numbers


def _scale(ordered: Sequence[float]) -> str:
    """The axis on which the values' median lies nearer to the middle."""
    low, high = ordered[0], ordered[-1]
    if low <= 0 or high < SPAN * low:
        return "linear"

    middle = median(ordered)
    on_linear = (middle - low) / (high - low)
    on_log = log10(middle / low) / log10(high / low)
    if abs(on_log - 0.5) < abs(on_linear - 0.5):
        return "log"
    return "linear"


def _is_number(item: Any) -> bool:
    """Whether this is a finite number."""
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return False
    return isfinite(item)


def _order(item: Any) -> tuple[int, float]:
    """Numbers before the rest, by size."""
    if _is_number(item):
        return 0, float(item)
    return 1, 0.0
