"""Tables of figures in papers/*/README.md: each row names a row of the results, each cell a value.

    | what | how | paper | ours |
    | --- | --- | --- | --- |
    | Fig. 9, 120, authors' accounting | simulated | 80 % | 83.2 % |
    | goal E-2 U | simulated | | 0.089 |
    | `benchmarks/elastic.py`, milp_over_elastic | measured | | 480 |

`what` is a row of papers/results/NAME.json, "goal KEY" for a goal's figure, or "`benchmarks/X.py`,
KEY" for one of the ratios of benchmarks/results/X.json. Every other column but `how` is a key of
that row; a goal has the key `ours` only, and a ratio also `paper`, where the benchmark wrote what
the paper has. A cell shows the value with as many decimals
as it likes, and a part as per cent if it ends so. `?` stands for a figure that
`figures.py --write` is to fill in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from results import benchmark, goal, paper_row

NUMBER = re.compile(r"([-+]?\d+(?: \d{3})*(?:\.(\d+))?)( %)?|(\?)( %)?")
HOW = ("simulated", "measured", "impossible")


@dataclass(frozen=True, slots=True)
class Tables:
    """All tables of a paper's page. `name`: the paper, as in papers/results/NAME.json."""

    page: str
    name: str

    def brought_up_to_date(self, text: str) -> tuple[str, list[str]]:
        """The page's text with the results' figures, and what was different."""
        lines, differences = text.splitlines(keepends=True), []
        header: list[str] = []
        for at, line in enumerate(lines):
            if not line.startswith("|"):
                header = []
            elif not header:
                header = cells(line)
            elif not set(line.strip()) <= set("|-: "):
                lines[at], found = self._row(header, line)
                differences += found
        return "".join(lines), differences

    def _row(self, header: list[str], line: str) -> tuple[str, list[str]]:
        """A table's row with the results' figures, and what is wrong with it."""
        if len(cells(line)) != len(header):
            return line, [f"{len(header)} columns, but other cells: {line.strip()}"]
        row = dict(zip(header, cells(line), strict=True))
        if row.get("how") not in HOW:
            return line, [f"`how` is none of {', '.join(HOW)}: {line.strip()}"]
        if header[0] != "what":
            return line, []
        try:
            values = self._values(row["what"])
        except LookupError:
            return line, [f"no result is called {row['what']!r}"]
        differences = []
        for key in header:
            if key not in ("what", "how"):
                wanted = shown(row[key], values.get(key))
                if wanted != row[key]:
                    differences.append(f"{row[key]} should be {wanted}: {line.strip()}")
                    row[key] = wanted
        return f"| {' | '.join(row.values())} |\n", differences

    def _values(self, what: str) -> dict[str, Any]:
        """The result that a row names.

        Raises:
            LookupError: there is none.
        """
        if what.startswith("goal "):
            return {"ours": goal(self.name, what.removeprefix("goal "))}
        if measured := re.fullmatch(r"`benchmarks/(\w+)\.py`, (\w+)", what):
            found, key = benchmark(measured[1]), measured[2]
            return {"ours": found["ratios"][key], "paper": found.get("paper", {}).get(key)}
        return paper_row(self.name, what)


def cells(line: str) -> list[str]:
    """The cells of a table's line."""
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def shown(cell: str, value: Any) -> str:
    """The value as this cell should show it: with the cell's own digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    match = NUMBER.fullmatch(cell)
    if not isinstance(value, int | float):
        return str(value)
    percent = " %" if match and (match[3] or match[5]) else ""
    value = 100.0 * value if percent else value
    decimals = len(match[2] or "") if match and match[1] else _decimals(value)
    figure = f"{value:_.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"
    return figure.replace("_", " ") + percent


def _decimals(value: float) -> int:
    """Decimals for three digits or more."""
    size = abs(value)
    return next((n for n, limit in ((0, 100), (1, 10), (2, 1)) if size >= limit), 3)
