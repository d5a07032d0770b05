"""A spec's tables, field by field: each value is checked as it is read, so that an error names file, key and rule."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
NONE: Any = object()  # no default: the field must be there


class SpecError(ValueError):
    """A spec says what cannot be: which file, which key, which rule."""

    def __init__(self, file: object, key: str, rule: str) -> None:
        super().__init__(": ".join(str(part) for part in (file, key, rule) if str(part)))
        self.file, self.key, self.rule = str(file), key, rule


@dataclass(frozen=True, slots=True)
class Fields:
    """One table of a spec. `where`: as the file writes it ("[slots]", "[[trials]] 2"); the file's top has none.

    All readers raise SpecError where the value is missing (and there is no default) or breaks the rule.
    """

    file: Path
    where: str
    data: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def key(self, key: str) -> str:
        return f"{self.where} {key}".strip()

    def wrong(self, key: str, rule: str) -> SpecError:
        """The error for this key."""
        return SpecError(self.file, self.key(key), rule)

    def only(self, names: Iterable[str]) -> "Fields":
        """Itself, if it has no other fields than these."""
        listed = sorted(names)
        more = sorted(self.data.keys() - set(listed))
        if more:
            raise SpecError(self.file, self.where, f"there is no field {', '.join(more)}; there are {', '.join(listed)}")
        return self

    def one_of(self, *names: str) -> str | None:
        """Which of these fields is there; None: none of them. Two are one too many."""
        given = [name for name in names if name in self.data]
        if len(given) > 1:
            raise SpecError(self.file, self.where, f"give one of {', '.join(names)}; got {', '.join(given)}")
        return given[0] if given else None

    def get(self, key: str, default: Any = NONE) -> Any:
        if key in self.data:
            return self.data[key]
        if default is NONE:
            raise self.wrong(key, "it is missing")
        return default

    def number(self, key: str, default: Any = NONE, least: float = -inf, above: float = -inf, most: float = inf) -> float:
        """A finite number; a default is taken as it is."""
        if key not in self.data and default is not NONE:
            return default  # type: ignore[no-any-return]
        return self._number(key, self.get(key), least, above, most)

    def whole(self, key: str, default: Any = NONE, least: int = 0) -> int:
        """A whole number of at least so much; a default is taken as it is."""
        if key not in self.data and default is not NONE:
            return default  # type: ignore[no-any-return]
        found = self.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self.wrong(key, f"it must be a whole number >= {least}; got {found!r}")
        return found

    def numbers(self, key: str, least: float = -inf, above: float = -inf) -> list[float]:
        """A list of numbers, one at least."""
        found = self.get(key)
        if not isinstance(found, list) or not found:
            raise self.wrong(key, f"it must be a list of numbers; got {found!r}")
        return [self._number(key, value, least, above, inf) for value in found]

    def text(self, key: str, default: Any = NONE) -> str:
        found = self.get(key, default)
        if not isinstance(found, str) and found is not default:
            raise self.wrong(key, f"it must be a text; got {found!r}")
        return str(found)

    def table(self, key: str, default: Any = NONE) -> "Fields":
        """The table below this one."""
        found = self.get(key, default)
        if not isinstance(found, Mapping):
            raise self.wrong(key, f"it must be a table, [{key}]; got {found!r}")
        below = f"[{self.where.strip('[]')}.{key}]" if self.where and "]]" not in self.where else f"{self.where} {key}"
        return Fields(self.file, below if self.where else f"[{key}]", found)

    def tables(self, key: str) -> "list[Fields]":
        """All tables of an array, [[key]]; a single table stands for an array of one. None are there: an empty list."""
        found = self.data.get(key, [])
        if isinstance(found, Mapping):
            return [Fields(self.file, f"[{key}]", found)]
        if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
            raise self.wrong(key, f"it must be tables, [[{key}]]; got {found!r}")
        return [Fields(self.file, f"[[{key}]] {n}" if len(found) > 1 else f"[[{key}]]", each) for n, each in enumerate(found, 1)]

    def made(self, key: str, make: Callable[[], T]) -> T:
        """What this makes; a rule that it breaks is this key's ("": the table's)."""
        try:
            return make()
        except SpecError:
            raise
        except (ValueError, TypeError) as error:
            raise self.wrong(key, str(error)) from error

    def _number(self, key: str, value: Any, least: float, above: float, most: float) -> float:
        fine = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
        if not fine or not (value >= least and value > above and value <= most):
            bounds = [f"{sign} {bound:g}" for sign, bound in ((">=", least), (">", above), ("<=", most)) if isfinite(bound)]
            raise self.wrong(key, f"it must be a number{' ' if bounds else ''}{' and '.join(bounds)}; got {value!r}")
        return float(value)
