"""A table of all trials' scores, one row an evaluation: scores.csv."""

import csv
import io
from math import inf
from pathlib import Path
from typing import Any

from shoal.callbacks.logger import apart
from shoal.core.masking import masked_config
from shoal.engine.csv_cells import cells, text_of
from shoal.engine.files import replaced
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import is_there, open_file, read_file

LARGEST_TABLE = 2**30  # bytes
FIRST = ("trial", "epoch")
CONFIG = "config."


class CsvFile:
    """The file `scores.csv`: trial, epoch, config.<name> and each metric.

    A metric of the name of another column is called metric.<name>. A text that a spreadsheet would
    take for a formula has a ' in front.
    A column that comes later makes the file anew.
    """

    def open(self, study: Any, folder: Path) -> None:
        # Its own folder in the study's is a plain one whenever the table is opened.
        root = study.folder.path
        self._root = root if folder.is_relative_to(root) else None
        make_folder(folder, self._root)
        self._path = folder / "scores.csv"
        self._columns: list[str] = []
        self._epochs: dict[str, float] = {}
        rows: list[dict[str, Any]] = []
        try:
            if is_there(self._path, self._root):
                rows = _whole_rows(self._path, self._root)
            for row in rows:
                self._epochs[row["trial"]] = float(row["epoch"])
        except (csv.Error, ValueError) as error:
            raise ValueError(
                f"{self._path} is no table of scores ({str(error)[:200]}): move it away"
            ) from error
        if rows:
            self._begin(list(rows[0]), rows)

    def logged(self, trial: Any) -> float:
        return self._epochs.get(trial.id, -inf)

    def write(self, trial: Any, epoch: float, values: Any) -> None:
        row: dict[str, Any] = {"trial": trial.id, "epoch": epoch}
        row |= {f"{CONFIG}{name}": value for name, value in masked_config(trial.config).items()}
        row |= apart(values, FIRST, CONFIG)
        more = [name for name in row if name not in self._columns]
        if more:
            rows = _whole_rows(self._path, self._root) if self._columns else []
            self._begin([*self._columns, *more], rows)
        with open_file(self._path, "a", self._root, newline="") as file:
            csv.writer(file).writerow(cells(map(row.get, self._columns)))

    def _begin(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        """Write the file anew, with these columns."""
        self._columns = columns
        with (
            replaced(self._path, self._root) as beside,
            open_file(beside, "w", self._root, newline="") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(cells(columns))
            writer.writerows(cells(map(row.get, columns)) for row in rows)

    def end(self, trial: Any) -> None:
        """Nothing is to be done."""

    def close(self) -> None:
        """Nothing is to be done: each row is written at once."""


def _whole_rows(path: Path, root: Path | None) -> list[dict[str, Any]]:
    """The rows of the file; a last line that a crash cut short is left out."""
    text = read_file(path, LARGEST_TABLE, root).decode(errors="replace")
    whole = text[: text.rfind("\n") + 1]
    rows = []
    for row in csv.DictReader(io.StringIO(whole, newline="")):
        if all(row.get(name) for name in FIRST):
            row.pop(None, None)  # more cells than columns
            rows.append({text_of(key): text_of(row[key] or "") for key in row})
    return rows
