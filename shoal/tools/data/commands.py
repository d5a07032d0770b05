"""What `shoal data …` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.options import number_in
from shoal.reporting.format import size
from shoal.study.folder import StudyError
from shoal.tools.data.speeds import speeds_of
from shoal.tools.outcome import errors, show
from shoal.train.data.data import Data


@errors()
def data_shard(
    source: list[str],
    folder: Path,
    drop: list[str] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write shards. `options`: what else `shard_files` takes."""
    names = [name.strip() for each in drop or () for name in each.split(",")]
    made = shard_files(source, folder, drop=names, **options)
    show(made, as_json, shard_lines)


def shard_files(
    source: Sequence[str],
    folder: Path,
    nodes: str | None,
    proportional: str | None,
    validation: str | None,
    **options: Any,
) -> dict[str, Any]:
    """Make the shards; what was made. `options`: what else `Data.make_shards` takes."""
    names = [name.strip() for name in nodes.split(",")] if nodes else []
    speeds = None
    if proportional is not None:
        if not names:
            raise StudyError("--proportional needs the nodes whose speeds differ: --nodes a,b,c")
        speeds = speeds_of(proportional, names)
    apart: Any = validation
    if validation is not None and isinstance(number_in(validation), float):
        apart = number_in(validation)
    files = source[0] if len(source) == 1 else list(source)
    made = Data.make_shards(files, folder, nodes=names, speeds=speeds, validation=apart, **options)
    return {**made, "speeds": speeds}


def shard_lines(made: Mapping[str, Any]) -> list[str]:
    """What was made, in words."""
    rows: Mapping[str, int] = made["rows"]
    lines = [f"shards:    {len(rows)}, {sum(rows.values()):,} rows, {size(made['bytes'])} written"]
    if made["speeds"]:
        given = ", ".join(f"{node} {speed:.3g}" for node, speed in made["speeds"].items())
        lines.append(f"speeds:    {given}")
    return [*lines, f"catalogue: {made['catalogue']}"]
