"""What a user says of speeds and costs, laid over what is measured.

A figure that is given holds; the others are measured.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core.profile import Profile
from shoal.core.state import Figures
from shoal.core.trial import Value
from shoal.profile.table import Row, Table, points_of
from shoal.profile.widths import AT

COSTS = ("memory", "build", "first", "evaluate", "save", "switch", "up", "down")
# With these figures in every row, nothing is left to measure.
NEEDED = {"rate", "memory", "build", "evaluate", "save", "switch"}


@dataclass(frozen=True, slots=True)
class Given:
    """Figures by configuration, named as measured ones are (`rate`, `rate@2`, `memory`, `up` …).

    `rows`: pairs of (values, figures). A trial has the figures of the first row whose values its
    configuration has. If there is no such row, all figures of the trial are measured.
    """

    rows: tuple[tuple[Mapping[str, Value], Figures], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "Given":
        """All figures of a table's rows."""
        return cls(tuple((row.config, _all_figures(row)) for row in rows))

    def __call__(self, config: Mapping[str, Value]) -> Figures:
        """The figures that are given of a trial with this configuration."""
        for values, figures in self.rows:
            if values.items() <= config.items():
                return figures
        return {}

    @property
    def whole(self) -> bool:
        """Whether nothing is left to be measured, of any trial."""
        for_all = any(not values for values, _ in self.rows)
        return for_all and all(figures.keys() >= NEEDED for _, figures in self.rows)


def tells_of_hops(profile: object) -> bool:
    """Whether the profile (None: there is none) says of each trial it names what a hop costs."""
    if isinstance(profile, Given):
        return all("switch" in figures for _, figures in profile.rows)
    return profile is not None


def load(path: str | Path) -> Table | Given:
    """Read a profile, as `Table.load` does.

    Returns a table if the file says everything of all trials, else what it says.

    Raises:
        ValueError: as `Table.load`; OSError as `open` does.
    """
    table = Table.load(path)
    data = tomllib.loads(Path(path).read_text())
    rows = zip(table.rows, data.get("rows", [{}]), strict=True)
    given = Given(tuple((row.config, _written_figures(written)) for row, written in rows))
    if given.whole or table.speeds:
        return table
    return given


def _all_figures(row: Row) -> Figures:
    """All figures of a table's row, by name."""
    figures = _by_name(dict(enumerate(row.rates, 1)))
    for name in COSTS:
        value = getattr(row, name)
        if value is not None:
            figures[name] = value
    return figures


def _written_figures(written: Mapping[str, Any]) -> Figures:
    """The figures that a row of the file holds; those that it leaves out are measured."""
    rates = written.get("rates", [])
    if not isinstance(rates, list):
        rates = [rates]
    figures = _by_name(dict(enumerate(rates, 1)))
    if "points" in written:
        figures |= _by_name(points_of(written["points"]))
    for name in COSTS:
        if name in written:
            figures[name] = float(written[name])
    return figures


def _by_name(points: Mapping[int, float]) -> dict[str, float]:
    """Rates by width as figures. A given rate leaves nothing to wait for: `data` is 0."""
    figures = {"rate" if width == 1 else f"{AT}{width}": float(r) for width, r in points.items()}
    if figures:
        figures["data"] = 0.0
    return figures


def given_rows(given: Profile | Given | None) -> list[dict[str, Any]] | None:
    """The given figures for a journal's head, {"config": …, "figures": …} each.

    Returns None if they cannot be listed, or none were given.
    """
    rows: Any = given
    if isinstance(given, Table):
        rows = Given.of(given.rows)
    if not isinstance(rows, Given):
        return None
    listed = []
    for config, figures in rows.rows:
        numbers = dict(figures)
        numbers.pop("data", None)
        listed.append({"config": dict(config), "figures": numbers})
    return listed
