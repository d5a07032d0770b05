"""Learning curves, read from a journal alone."""

from collections.abc import Iterable
from typing import Any

from shoal.engine.journal import Line
from shoal.reporting.tally import TRAINING, Tally

CURVE_COLUMNS = ("trial", "epoch", "name", "value", "split")


def curve_rows(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """A row for each value of each trial and epoch; see `Study.learning_curves`."""
    tally = Tally()
    for line in lines:
        tally.take(line.time, line.entry)
    rows = []
    for trial in tally.trials.values():
        for name, points in trial.points.items():
            plain = name.removesuffix(TRAINING)
            split = "validation" if plain == name else "train"
            for point in points:
                values = (trial.trial.id, point.epoch, plain, point.value, split)
                rows.append(dict(zip(CURVE_COLUMNS, values, strict=True)))
    return rows
