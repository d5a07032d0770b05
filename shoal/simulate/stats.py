"""What a log is like: BFTrainer's Table 1 and Figure 1, and how likely nodes are to leave as they age."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.simulate.trace import IdleLog

AGES = (0, 60, 180, 600, 1800, 3600, 7200, 21600)  # seconds
SHORT = 600.0  # seconds; Figure 1's short fragments


def describe(log: IdleLog) -> dict[str, Any]:
    """Figures of the log over its span: times in seconds unless their name says otherwise.

    Events are the times at which something changed, and the beginning. Fragments are those that begin within the span,
    with what is seen of them.
    """
    changes = list(log.changes())
    joins = sum(len(came) > 0 for _, came, _ in changes[1:])
    leaves = sum(len(went) > 0 for _, _, went in changes)
    hours = log.span / 3600.0 or float("nan")
    length, share = _fragments(log)
    equivalent = log.node_seconds / log.span if log.span else float("nan")
    return {
        "hours": hours,
        "nodes": log.machine,
        "events": len(changes),
        "join_events": joins,
        "leave_events": leaves,
        "joins_per_hour": joins / hours,
        "leaves_per_hour": leaves / hours,
        "idle_node_hours": log.node_seconds / 3600.0,
        "equivalent_nodes": equivalent,
        "idle_ratio": equivalent / log.machine,
        "fragments": len(length),
        "fragment_median_s": float(np.median(length)) if len(length) else 0.0,
        "fragment_mean_s": float(length.mean()) if len(length) else 0.0,
        "short_fragments": share[0],
        "short_node_time": share[1],
        "hazard_per_hour": hazard(log),
    }


def _fragments(log: IdleLog) -> tuple[Any, tuple[float, float]]:
    inside = log.start >= log.begin
    length = np.minimum(log.end, log.finish)[inside] - log.start[inside]
    if not len(length):
        return length, (0.0, 0.0)
    short = length < SHORT
    return length, (float(short.mean()), float(length[short].sum() / max(length.sum(), 1e-9)))


def hazard(log: IdleLog, ages: Sequence[float] = AGES) -> Mapping[str, float]:
    """Departures per node and hour at each age; fragments cut off at either end count for what is seen of them."""
    known = log.start > log.begin  # the age of what was there before is not known
    start, end = log.start[known], log.end[known]
    seen = np.minimum(end, log.finish) - start
    found = {}
    for low, high in zip(ages, (*ages[1:], np.inf), strict=True):
        exposed = np.clip(np.minimum(seen, high) - low, 0.0, None).sum()
        left = int(((end - start > low) & (end - start <= high) & (end <= log.finish)).sum())
        found[f"{low}-{high:g}"] = float(3600.0 * left / exposed) if exposed > 0 else 0.0
    return found
