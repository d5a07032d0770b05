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
        known = sorted(names)
        unknown = sorted(self.data.keys() - set(known))
        if unknown:
            rule = f"there is no field {', '.join(unknown)}; there are {', '.join(known)}"
            raise self._whole_wrong(rule)
        return self

    def one_of(self, *names: str) -> str | None:
        """The one of these fields that is there, or None. Two of them are an error."""
        present = [name for name in names if name in self.data]
        if not present:
            return None
        if len(present) > 1:
            rule = f"give one of {', '.join(names)}; got {', '.join(present)}"
            raise self._whole_wrong(rule)
        return present[0]

    # -- values ------------------------------------------------------------------------------------

    def get(self, key: str, default: Any = NONE) -> Any:
        """The value of a field, whatever it is."""
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
        value = self.get(key)
        if not _is_whole(value) or value < least:
            raise self.must_be(key, f"a whole number >= {least}", value)
        if value > most:
            raise self.must_be(key, f"a whole number <= {most:.0f}", value)
        return int(value)

    def numbers(self, key: str, least: float = -inf, above: float = -inf) -> list[float]:
        """A list of at least one number."""
        values = self.get(key)
        if not values or not isinstance(values, list):
            raise self.must_be(key, "a list of numbers", values)
        return [self._number(key, value, least, above, inf) for value in values]

    def text(self, key: str, default: Any = NONE) -> str:
        """A text; a default is taken as it is."""
        value = self.get(key, default)
        if not isinstance(value, str) and value is not default:
            raise self.must_be(key, "a text", value)
        return str(value)

    def table(self, key: str, default: Any = NONE) -> "Fields":
        """The table below this one."""
        value = self.get(key, default)
        if not isinstance(value, Mapping):
            raise self.must_be(key, f"a table, [{key}]", value)
        return Fields(self.file, self._below(key), value)

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
        value = self.data.get(key, [])
        if isinstance(value, Mapping):
            return [Fields(self.file, f"[{key}]", value)]
        if not (isinstance(value, list) and all(isinstance(table, Mapping) for table in value)):
            raise self.must_be(key, f"tables, [[{key}]]", value)
        if len(value) == 1:
            return [Fields(self.file, f"[[{key}]]", value[0])]
        return [
            Fields(self.file, f"[[{key}]] {number}", table) for number, table in enumerate(value, 1)
        ]

    def build(self, key: str, make: Callable[[], T]) -> T:
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
        limits = ((">=", least), (">", above), ("<=", most))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in limits if isfinite(bound))
        raise self.must_be(key, f"a number {bounds}".strip(), value)


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
