"""What a log is like: BFTrainer's Table 1 and Figure 1, and how soon nodes leave as they age."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from shoal.simulate.trace import IdleLog, Times

AGES = (0, 60, 180, 600, 1800, 3600, 7200, 21600)  # seconds
SHORT = 600.0  # seconds; Figure 1's short fragments


def describe(log: IdleLog) -> dict[str, Any]:
    """Figures of the log over its span; times are in seconds unless their name says otherwise.

    Events are the times at which something changed, and the beginning. Fragments are those that
    begin within the span; of each, the part within the span counts.
    """
    hours = log.span / 3600.0 or float("nan")
    return {
        "hours": hours,
        "nodes": log.machine,
        **_events(log, hours),
        **_idle(log),
        **_fragments(log),
        "hazard_per_hour": hazard(log),
    }


def _events(log: IdleLog, hours: float) -> dict[str, float]:
    """How often nodes joined and left.

    The forward time is the mean time from one departure to the next.
    """
    changes = list(log.changes())
    joins = sum(len(came) > 0 for _, came, _ in changes[1:])
    leaves = sum(len(went) > 0 for _, _, went in changes)
    return {
        "events": len(changes),
        "join_events": joins,
        "leave_events": leaves,
        "joins_per_hour": joins / hours,
        "leaves_per_hour": leaves / hours,
        "forward_time_s": log.span / leaves if leaves else float("nan"),
    }


def _idle(log: IdleLog) -> dict[str, float]:
    """How much of the machine was idle."""
    equivalent = float("nan")
    if log.span:
        equivalent = log.node_seconds / log.span
    return {
        "idle_node_hours": log.node_seconds / 3600.0,
        "equivalent_nodes": equivalent,
        "idle_ratio": equivalent / log.machine,
    }


def _fragments(log: IdleLog) -> dict[str, float]:
    """How long nodes were idle at a time, and how much of that in short fragments."""
    length = _lengths(log)
    found = {
        "fragments": len(length),
        "fragment_median_s": 0.0,
        "fragment_mean_s": 0.0,
        "short_fragments": 0.0,
        "short_node_time": 0.0,
    }
    if len(length):
        short = length < SHORT
        whole = max(length.sum(), 1e-9)
        found["fragment_median_s"] = float(np.median(length))
        found["fragment_mean_s"] = float(length.mean())
        found["short_fragments"] = float(short.mean())
        found["short_node_time"] = float(length[short].sum() / whole)
    return found


def _lengths(log: IdleLog) -> Times:
    """Seconds of the fragments that begin within the log's span."""
    lengths: Times = np.minimum(log.end, log.finish) - log.start
    return lengths[log.start >= log.begin]


def hazard(log: IdleLog, ages: Sequence[float] = AGES) -> Mapping[str, float]:
    """Departures per node and hour at each age, by "from-to" in seconds.

    A fragment that is cut off at the end of the log counts for the part that is seen.
    """
    known = log.start > log.begin  # how old the others are is not known
    start = log.start[known]
    end = log.end[known]
    seen = np.minimum(end, log.finish) - start
    gone = (end - start)[end <= log.finish]  # ages at which nodes left

    found = {}
    for low, high in pairwise((*ages, np.inf)):
        exposed = np.clip(np.minimum(seen, high) - low, 0.0, None).sum()
        left = int(((gone > low) & (gone <= high)).sum())
        rate = 0.0
        if exposed > 0:
            rate = float(3600.0 * left / exposed)
        found[f"{low}-{high:g}"] = rate
    return found
