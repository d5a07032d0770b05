"""What a user says of speeds and costs, laid over what is measured: a figure that is given holds, the others are measured."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.state import Figures
from shoal.core.trial import Value
from shoal.profile.table import Row, Table, points_of

SAID = ("memory", "build", "first", "evaluate", "save", "switch", "up", "down")
NEEDED = {"rate", "memory", "build", "evaluate", "save", "switch"}  # with these in every row nothing is left to measure


@dataclass(frozen=True, slots=True)
class Given:
    """Figures by configuration, named as measured ones are (`rate`, `rate@2`, `memory`, `up` …).

    `rows`: a trial has those of the first row whose values its configuration has; none: all of it is measured.
    """

    rows: tuple[tuple[Mapping[str, Value], Figures], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Given":
        """All figures of a table's rows."""
        figures = [{name: value for name in SAID if (value := getattr(row, name)) is not None} for row in rows]
        return cls(tuple((row.config, _rates(row.rates) | each) for row, each in zip(rows, figures, strict=True)))

    def __call__(self, config: Mapping[str, Value]) -> Figures:
        """What is given of a trial with this configuration."""
        return next((figures for values, figures in self.rows if values.items() <= config.items()), {})

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be measured, of any trial."""
        return any(not values for values, _ in self.rows) and all(figures.keys() >= NEEDED for _, figures in self.rows)


def load(path: str | Path) -> Table | Given:
    """Read a profile, as `Table.load` does: a table where it says everything of all trials, else what it says.

    Raises:
        ValueError: as `Table.load`; OSError as `open` does.
    """
    table = Table.load(path)
    data = tomllib.loads(Path(path).read_text())
    given = Given(tuple((row.config, _figures(said)) for row, said in zip(table.rows, data.get("rows", [{}]), strict=True)))
    return table if given.whole or table.speeds else given


def _figures(said: Mapping[str, Any]) -> Figures:
    """Those that a row of the file says."""
    rates = said.get("rates", ())
    points = points_of(said["points"]) if "points" in said else {}
    found = _rates(rates if isinstance(rates, list) else (rates,) if rates else ()) | _at(points)
    return found | {name: float(said[name]) for name in SAID if name in said}


def _rates(rates: Sequence[float]) -> dict[str, float]:
    return _at(dict(enumerate(rates, 1)))


def _at(points: Mapping[int, float]) -> dict[str, float]:
    """Rates by width; where one is given there is nothing more to wait for."""
    found = {"rate" if width == 1 else f"rate@{width}": float(rate) for width, rate in points.items()}
    return found | ({"data": 0.0} if found else {})
