"""Mean and spread of each configuration over its folds, of a study with k-fold validation."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from shoal.reporting.format import config, score
from shoal.reporting.tally import TrialRow

FOLD = "fold"  # the key of a configuration that says which fold a trial validates on
TOP = 5  # configurations in a summary


def over_folds(rows: Sequence[TrialRow], mode: str) -> list[dict[str, Any]]:
    """The configurations with the best mean of their trials' last scores, best first.

    Each with `config` without its fold, `mean`, `std` and `folds`, their number. Configurations
    with a score in one fold only are left out.
    """
    alike: dict[str, dict[Any, TrialRow]] = {}
    for row in rows:
        if row.scored and FOLD in row.config:
            of_folds = alike.setdefault(repr(sorted(_rest(row).items())), {})
            of_folds.setdefault(row.config[FOLD], row)
    found = [_summed(list(folds.values())) for folds in alike.values() if len(folds) > 1]
    return sorted(found, key=lambda each: each["mean"], reverse=mode == "max")[:TOP]


def _rest(row: TrialRow) -> dict[str, Any]:
    """The trial's configuration without its fold."""
    return {name: value for name, value in row.config.items() if name != FOLD}


def _summed(rows: Sequence[TrialRow]) -> dict[str, Any]:
    """Mean and spread of trials of one configuration."""
    scores = [row.last for row in rows if row.last is not None]
    return {
        "config": _rest(rows[0]),
        "mean": mean(scores),
        "std": stdev(scores),
        "folds": len(scores),
    }


def fold_lines(found: Mapping[str, Any]) -> list[str]:
    """The configurations with the best means as lines for people."""
    start = f"folds    mean {found['metric']} "
    lines = []
    for row in found.get("folds", ()):
        figures = f"{score(row['mean'])} ± {score(row['std'])} of {row['folds']}"
        lines.append(f"{start}{figures}  {config(row['config'], 80)}")
        start = " " * len(start)
    return lines
