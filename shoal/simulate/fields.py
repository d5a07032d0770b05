"""A spec's tables, field by field.

Each value is checked as it is read, so that an error names the file, the key and the rule.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MANY = 10**6  # slots, trials or shards: what a simulation has at most
LARGEST = 1e18  # of a number in a spec
LONGEST = 1000  # characters of a key or rule that an error shows
NONE: Any = object()  # no default: the field must be there


class SpecError(ValueError):
    """A spec says what cannot be: which file, which key, which rule."""

    def __init__(self, file: object, key: str, rule: str) -> None:
        parts = [str(part) for part in (file, key, rule)]
        super().__init__(": ".join(part[:LONGEST] for part in parts if part))
        self.file = str(file)
        self.key = key
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Fields:
    """One table of a spec.

    `where`: the table's name as the file writes it ("[slots]", "[[trials]] 2"); empty for the
    file's top. Each method that reads a value raises SpecError if the value is missing and there is
    no default, or if it breaks the rule.
    """

    file: Path
    where: str
    data: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def key(self, key: str) -> str:
        """The key as errors name it: with its table."""
        return f"{self.where} {key}".strip()

    def wrong(self, key: str, rule: str) -> SpecError:
        """The error for this key."""
        return SpecError(self.file, self.key(key), rule)

    def must_be(self, key: str, wanted: str, got: Any) -> SpecError:
        """The error for a value of this key that is something else."""
        return self.wrong(key, f"it must be {wanted}; got {got!r}")

    def _whole_wrong(self, rule: str) -> SpecError:
        """The error for the whole table."""
        return SpecError(self.file, self.where, rule)

    # -- which fields there are --------------------------------------------------------------------

    def only(self, names: Iterable[str]) -> "Fields":
        """This table, if it has no other fields than these."""
        allowed = sorted(names)
        unknown = sorted(self.data.keys() - set(allowed))
        if unknown:
            there = ", ".join(allowed)
            rule = f"there is no field {', '.join(unknown)}; there are {there}"
            raise self._whole_wrong(rule)
        return self

    def one_of(self, *names: str) -> str | None:
        """The one of these fields that is there, or None. Two of them are an error."""
        given = [name for name in names if name in self.data]
        if not given:
            return None
        if len(given) > 1:
            rule = f"give one of {', '.join(names)}; got {', '.join(given)}"
            raise self._whole_wrong(rule)
        return given[0]

    # -- values ------------------------------------------------------------------------------------

    def get(self, key: str, default: Any = NONE) -> Any:
        """Any value."""
        if key in self.data:
            return self.data[key]
        if default is NONE:
            raise self.wrong(key, "it is missing")
        return default

    def number(
        self,
        key: str,
        default: Any = NONE,
        least: float = -inf,
        above: float = -inf,
        most: float = inf,
    ) -> float:
        """A finite number; a default is taken as it is."""
        if key not in self.data and default is not NONE:
            return default  # type: ignore[no-any-return]
        return self._number(key, self.get(key), least, above, most)

    def whole(self, key: str, default: Any = NONE, least: int = 0, most: float = inf) -> int:
        """A whole number within these bounds; a default is taken as it is."""
        if key not in self.data and default is not NONE:
            return default  # type: ignore[no-any-return]
        found = self.get(key)
        if not _is_whole(found) or found < least:
            raise self.must_be(key, f"a whole number >= {least}", found)
        if found > most:
            raise self.must_be(key, f"a whole number <= {most:.0f}", found)
        return int(found)

    def numbers(self, key: str, least: float = -inf, above: float = -inf) -> list[float]:
        """A list of at least one number."""
        return [self._number(key, value, least, above, inf) for value in self._list(key)]

    def _list(self, key: str) -> list[Any]:
        """A list of at least one value."""
        found = self.get(key)
        if not found or not isinstance(found, list):
            raise self.must_be(key, "a list of numbers", found)
        return found

    def text(self, key: str, default: Any = NONE) -> str:
        """A text."""
        found = self.get(key, default)
        if not isinstance(found, str) and found is not default:
            raise self.must_be(key, "a text", found)
        return str(found)

    def table(self, key: str, default: Any = NONE) -> "Fields":
        """The table below this one."""
        found = self.get(key, default)
        if not isinstance(found, Mapping):
            raise self.must_be(key, f"a table, [{key}]", found)
        return Fields(self.file, self._below(key), found)

    def _below(self, key: str) -> str:
        """How the file writes the name of a table below this one."""
        if not self.where:
            return f"[{key}]"
        if "]]" in self.where:
            return f"{self.where} {key}"
        return f"[{self.where.strip('[]')}.{key}]"

    def tables(self, key: str) -> "list[Fields]":
        """All tables of an array, [[key]]; empty if there are none.

        A single table stands for an array of one.
        """
        found = self.data.get(key, [])
        if isinstance(found, Mapping):
            return [Fields(self.file, f"[{key}]", found)]
        if not (isinstance(found, list) and all(isinstance(each, Mapping) for each in found)):
            raise self.must_be(key, f"tables, [[{key}]]", found)
        if len(found) == 1:
            return [Fields(self.file, f"[[{key}]]", found[0])]
        return [
            Fields(self.file, f"[[{key}]] {number}", table) for number, table in enumerate(found, 1)
        ]

    def made(self, key: str, make: Callable[[], T]) -> T:
        """What `make` returns; its ValueError or TypeError becomes an error of this key.

        An empty key stands for the whole table.
        """
        try:
            return make()
        except SpecError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            raise self.wrong(key, str(error)) from error

    def _number(self, key: str, value: Any, least: float, above: float, most: float) -> float:
        """The value, if it is a finite number within these bounds."""
        if _is_finite(value) and least <= value <= most and value > above:
            return float(value)
        bounds = _bounds((">=", least), (">", above), ("<=", most))
        raise self.must_be(key, f"a number {bounds}".strip(), value)


def _bounds(*limits: tuple[str, float]) -> str:
    """The finite ones of these limits, as a text."""
    texts = []
    for sign, bound in limits:
        if isfinite(bound):
            texts.append(f"{sign} {bound:g}")
    return " and ".join(texts)


def _is_whole(value: Any) -> bool:
    """Whether this is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return abs(value) <= LARGEST


def _is_finite(value: Any) -> bool:
    """Whether this is a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= LARGEST
