"""The tables of docs/benchmarks.md from results/model_selection.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Not from `common`: the folder papers/ has a module of that name, too.
RESULTS = Path(__file__).resolve().parent / "results"

WAYS = {
    "hop": "hopping",
    "copies": "whole copies, a model stays",
    "ddp": "DDP, one model at a time",
    "averaging": "averaging each epoch",
}
Rows = Sequence[Mapping[str, Any]]


def markdown() -> str:
    """Both tables: shards at hand, and shards that must be fetched."""
    found = json.loads((RESULTS / "model_selection.json").read_text())
    return f"{near(found['rows'])}\n\n{far(found['remote'])}"


def near(rows: Rows) -> str:
    """Times, bytes and scores of each way, the fewest slots first."""
    lines = [
        [
            str(row["slots"]),
            WAYS[row["way"]],
            f"{row['epoch_s']:.1f}",
            f"{row['sent_MB']:.1f}",
            f"{row['stored_MB']:.2f}",
            f"{row['read_MB']:.2f}",
            f"{row['peak_MB']:.0f}",
            f"{100 * row['utilisation']:.0f} %",
            ", ".join(f"{each:.3f}" for each in row["mean_accuracy"]),
        ]
        for row in sorted(rows, key=lambda row: row["slots"])
    ]
    heads = (
        "slots",
        "way",
        "seconds an epoch",
        "MB sent",
        "MB of shards stored",
        "MB read",
        "most memory, MB",
        "training",
        "mean accuracy by epoch",
    )
    return table(heads, lines)


def far(rows: Rows) -> str:
    """What is fetched where shards lie at fewer nodes than read them."""
    lines = [
        [
            WAYS[row["way"]],
            str(row["replicas"]),
            f"{row['fetched_MB']:.2f}",
            f"{row['fetch_s']:.1f}",
            f"{row['epoch_s']:.1f}",
        ]
        for row in rows
    ]
    heads = (
        "way",
        "nodes at which a shard lies",
        "MB fetched",
        "seconds of fetching",
        "seconds an epoch, with fetching",
    )
    return table(heads, lines)


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The lines as Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
