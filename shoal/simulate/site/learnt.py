"""What a log of idle nodes says to `elastic`: how soon nodes leave, and which ones together."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.objective import forward_time
from shoal.policy.elastic.placement import Spatial, rack_of
from shoal.policy.named import SPATIAL
from shoal.simulate.read import read_log
from shoal.simulate.trace import IdleLog, Ids

Chances = tuple[tuple[float, float, float], ...]  # as `Spatial.table`
Counts = NDArray[np.float64]  # [joined together or apart, distance, left along or all]

# Racks between two nodes, from which on another row of the table holds.
DISTANCES = (0, 1, 2, 3, 4, 6, 9, 13, 20, 40, 80)
# Of the nodes that leave at a time, so many are looked at: all of them would say little more.
LOOKED_AT = 6
# What is believed before anything is seen counts as much as so many pairs of nodes.
BELIEVED = 20.0
MOST = 0.99  # a chance that `Spatial` can take the logarithm of


def elastic_for(log: IdleLog, **others: Any) -> Elastic:
    """The policy for slots that come and go as in this log. `others`: more of its arguments.

    Raises:
        ValueError: an argument that cannot be.
    """
    return Elastic(**{**learnt(log), **others})


def learnt(log: IdleLog) -> dict[str, Any]:
    """The arguments of `elastic` that the log gives: the horizon, and the placement."""
    return {"horizon": horizon(log), "placement": Spatial(table=together(log))}


def horizon(log: IdleLog) -> Seconds:
    """The mean time from one departure of nodes to the next: BFTrainer's forward time."""
    leaves = sum(len(went) > 0 for _, _, went in log.changes())
    return forward_time(log.span, leaves)


def together(log: IdleLog) -> Chances:
    """How likely a node is to leave together with another one, by the racks between them.

    Rows are as `Spatial` takes them: from so many racks on, the chance if the two joined apart,
    and if they joined together. Where a log shows few such pairs, the formula of `Spatial` has its
    say. Racks are read from the nodes' names.
    """
    seen = _counted(log)
    usual = Spatial()
    rows = []
    for place, distance in enumerate(DISTANCES):
        believed = usual.chance * np.exp(-distance / usual.reach)
        row = [float(distance)]
        for joined in (0, 1):
            left, pairs = seen[joined, place]
            chance = (left + BELIEVED * believed) / (pairs + BELIEVED)
            row.append(round(min(MOST, float(chance)), 4))
        rows.append((row[0], row[1], row[2]))
    return tuple(rows)


def _counted(log: IdleLog) -> Counts:
    """How many of the idle nodes left along with one that left, and how many there were."""
    rack = np.array([rack_of(name) for name in log.nodes], float)
    rng = np.random.default_rng(0)
    seen = np.zeros((2, len(DISTANCES), 2))
    for idle, joined, went in _departures(log):
        leaving = np.isin(idle, went)
        for node in rng.permutation(went)[:LOOKED_AT]:
            others = idle != node
            far = np.abs(rack[idle] - rack[node])[others]
            bins = np.searchsorted(DISTANCES, far, side="right") - 1
            same = (joined[idle] == joined[node])[others].astype(int)
            np.add.at(seen, (same, bins, 1), 1.0)
            along = leaving[others]
            np.add.at(seen, (same[along], bins[along], 0), 1.0)
    return seen


def _departures(log: IdleLog) -> Iterator[tuple[Ids, Ids, Ids]]:
    """For each time at which nodes leave: the idle nodes, when each joined, and those that go."""
    since = np.full(len(log.nodes), -1, np.int64)
    for number, (_, came, went) in enumerate(log.changes()):
        idle = np.flatnonzero(since >= 0)
        # A node may have joined and left at once: it was not there to be seen.
        gone = went[since[went] >= 0]
        if len(gone):
            yield idle, since, gone
        since[went] = -1
        since[came] = number


# -- policies by name ------------------------------------------------------------------------------


def with_log(described: Mapping[str, Any]) -> dict[str, Any]:
    """What a policy is described by, with what its `log` says in place of the log's name.

    So `elastic(log="site.csv")` stands in a journal with numbers, and nobody needs the file again.
    Other policies have no log. What is given beside the log stays.

    Raises:
        TraceError: the log breaks a rule.
        OSError: as `open`.
    """
    given = dict(described)
    if given.get("name") != "elastic" or "log" not in given:
        return given
    seconds, table = _read(Path(str(given.pop("log"))).absolute())
    placement = {"name": SPATIAL, "table": table}
    return {"horizon": seconds, "placement": placement, **given}


@lru_cache(maxsize=4)
def _read(path: Path) -> tuple[Seconds, Chances]:
    """What the log in this file says."""
    log = read_log(path)
    return horizon(log), together(log)
