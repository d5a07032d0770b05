"""The hyper-parameters of a study: which vary, on which scale, and where a trial lies on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, log10
from statistics import median
from typing import Any, TypeGuard

from shoal.core.trial import TrialId, Value
from shoal.reporting.accounting import Account
from shoal.reporting.format import DASH, value
from shoal.reporting.tally import TrialRow

SPAN = 8.0  # values of a smaller ratio stay on a linear axis
Values = Mapping[TrialId, Value]  # of one parameter
Rows = Sequence[TrialRow]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of the configurations. `scale`: "log", "linear" or "category".

    The values of a category are texts, one of them for trials without the name. Of numbers such
    trials have none.
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
        item = self.values[trial]
        if isinstance(item, str):
            return float(self.places[item])
        if self.scale == "log":
            return log10(item)
        return item


def parameters(account: Account) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters that vary, and those that have one value in all trials, as text."""
    return parameters_of(account.trials)


def parameters_of(rows: Rows) -> tuple[list[Parameter], dict[str, str]]:
    """Likewise, of these trials."""
    varying: list[Parameter] = []
    same: dict[str, str] = {}
    for name in dict.fromkeys(name for row in rows for name in row.config):
        values = {row.id: row.config[name] for row in rows if name in row.config}
        texts = {value(item) for item in values.values()}
        if len(texts) == 1 and len(values) == len(rows):
            same[name] = texts.pop()
        else:
            varying.append(_parameter(name, values, rows))
    return varying, same


def _parameter(name: str, values: Values, rows: Rows) -> Parameter:
    """A parameter that varies: of numbers, if all trials that have it have one."""
    numbers = {trial: float(item) for trial, item in values.items() if _is_number(item)}
    if len(numbers) == len(values) and len(set(numbers.values())) > 1:
        return Parameter(name, _scale(sorted(numbers.values())), numbers)

    texts = {}
    order: dict[str, tuple[bool, float, str]] = {}  # numbers before the rest, by size
    for row in rows:
        item = values.get(row.id)
        text = value(item) if row.id in values else DASH
        texts[row.id] = text
        order[text] = (False, float(item), text) if _is_number(item) else (True, 0.0, text)
    categories = sorted(order, key=lambda text: order[text])
    return Parameter(name, "category", texts, tuple(categories))


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


def _is_number(item: Any) -> TypeGuard[float]:
    """Whether this is a finite number."""
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return False
    try:
        return isfinite(item)
    except OverflowError:  # a whole number of hundreds of digits
        return False
