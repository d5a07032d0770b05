"""What the configurations of a study vary, and on which axes that is best drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from statistics import median
from typing import Any

from shoal.core.trial import TrialId, Value
from shoal.report.format import DASH, value
from shoal.report.metrics import Account, TrialRow

SPAN = 8.0  # values of a smaller ratio stay on a linear axis


@dataclass(frozen=True, slots=True)
class Parameter:
    """One name of the configurations. `scale`: "log", "linear" or "category" (then its values are texts)."""

    name: str
    scale: str
    values: Mapping[TrialId, float | str]
    categories: tuple[str, ...] = ()  # in the order they are drawn

    def place(self, trial: TrialId) -> float:
        """Where the trial's value lies on a linear axis: log10, the number itself, or the category's index."""
        at = self.values[trial]
        if isinstance(at, str):
            return float(self.categories.index(at))
        return log10(at) if self.scale == "log" else at


def parameters(account: Account) -> tuple[list[Parameter], dict[str, str]]:
    """The parameters that vary, and those that have one value in all trials, as text."""
    rows = account.trials
    names = dict.fromkeys(name for row in rows for name in row.config)
    varying, same = [], {}
    for name in names:
        given = {row.id: row.config[name] for row in rows if name in row.config}
        texts = {value(item) for item in given.values()}
        if len(texts) == 1 and len(given) == len(rows):
            same[name] = texts.pop()
        else:
            varying.append(_parameter(name, given, rows))
    return varying, same


def _parameter(name: str, given: Mapping[TrialId, Value], rows: Sequence[TrialRow]) -> Parameter:
    numbers = {trial: float(item) for trial, item in given.items() if _is_number(item)}  # type: ignore[arg-type]
    if len(numbers) == len(rows):
        return Parameter(name, _scale(sorted(numbers.values())), numbers)
    texts = {row.id: value(row.config[name]) if name in row.config else DASH for row in rows}
    ordered = {text: _order(given.get(trial)) for trial, text in texts.items()}
    return Parameter(name, "category", texts, tuple(sorted(ordered, key=lambda text: (*ordered[text], text))))


def _scale(ordered: Sequence[float]) -> str:
    """The axis on which the values' median lies nearer to the middle."""
    low, middle, high = ordered[0], median(ordered), ordered[-1]
    if low <= 0 or high < SPAN * low:
        return "linear"
    plain = abs((middle - low) / (high - low) - 0.5)
    return "log" if abs(log10(middle / low) / log10(high / low) - 0.5) < plain else "linear"


def _is_number(item: Any) -> bool:
    return isinstance(item, (int, float)) and not isinstance(item, bool) and isfinite(item)


def _order(item: Any) -> tuple[int, float]:
    """Numbers before the rest, by size."""
    return (0, float(item)) if _is_number(item) else (1, 0.0)
