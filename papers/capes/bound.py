"""A mean completion time that no schedule beats, whatever it knows: a linear program over time
buckets.

In each bucket a trial may split its time between the widths. It ends no earlier than its
arrival plus its time at work; and no earlier than the mean time of its progress plus what the
rest of the work takes after that, at best: half its work, the slow widths first (the square of
the part done at slow widths is replaced by tangents below it).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

TANGENTS = (0.15, 0.35, 0.6, 0.8, 1.0)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Instance:
    """Trials by arrival and work, speeds (work per second) by width, and slots."""

    came: Floats
    work: Floats
    speed: dict[int, float]
    slots: int


def mean_completion(instance: Instance, bucket: float, until: float) -> float:
    """Seconds from arrival to end, on average, that no schedule ending by `until` beats.

    Raises:
        RuntimeError: the solver found no optimum.
    """
    n, widths = len(instance.came), sorted(instance.speed)
    speed = np.array([instance.speed[w] for w in widths])
    trial, slot_time, option = _cells(instance.came, bucket, until, len(widths))
    cells = len(trial)
    start = np.maximum(slot_time * bucket, instance.came[trial])
    room = (slot_time + 1) * bucket - start
    share = speed[option] / instance.work[trial]  # of the trial's work done per second in the cell
    by_trial = (trial, np.arange(cells))

    def cells_to(values: Floats, rows: Sequence[NDArray[np.int64]], count: int) -> csr_matrix:
        return csr_matrix((values, rows), shape=(count, cells))

    # columns: seconds in each cell, each trial's end, the squares z of each trial and slow width
    slow = len(widths) - 1
    ends, squares = csr_matrix((n, n)), csr_matrix((n, n * slow))
    minus_ends = -csr_matrix(np.eye(n))
    pair, in_pair = np.unique(trial * 10**7 + slot_time, return_inverse=True)
    slower = 1 / speed[:-1] - 1 / speed[1:]
    half = instance.work / 2
    rest = hstack([csr_matrix(np.diag(half * s)) for s in slower])
    rows = [
        _row(
            cells_to(
                np.array(widths, float)[option], (slot_time, np.arange(cells)), slot_time.max() + 1
            ),
            n,
            slow,
        ),
        _row(cells_to(np.ones(cells), (in_pair, np.arange(cells)), len(pair)), n, slow),
        hstack([cells_to(np.ones(cells), by_trial, n), minus_ends, squares]),
        hstack([cells_to(share * start, by_trial, n), minus_ends, rest]),
    ]
    limits = [
        np.full(slot_time.max() + 1, instance.slots * bucket),
        np.array([room[first] for first in np.unique(in_pair, return_index=True)[1]]),
        -instance.came,
        -half / speed[-1],
    ]
    for w in range(slow):
        done = cells_to(np.where(option <= w, share, 0.0), by_trial, n)
        pick = hstack(
            [csr_matrix(np.eye(n)) if v == w else csr_matrix((n, n)) for v in range(slow)]
        )
        for x in TANGENTS:
            rows.append(hstack([2 * x * done, ends, -pick]))
            limits.append(np.full(n, x * x))
    goal = np.concatenate([np.zeros(cells), np.ones(n), np.zeros(n * slow)])
    all_done = _row(cells_to(share, by_trial, n), n, slow)
    upper = np.concatenate([room, np.full(n, np.inf), np.ones(n * slow)])
    found = linprog(
        goal,
        A_ub=vstack(rows).tocsr(),
        b_ub=np.concatenate(limits),
        A_eq=all_done.tocsr(),
        b_eq=np.ones(n),
        bounds=np.stack([np.zeros_like(upper), upper], axis=1),
        method="highs-ipm",
        options={"ipm_optimality_tolerance": 1e-5},
    )
    if found.status != 0:
        raise RuntimeError(f"no bound: {found.message}")
    return float(found.fun - instance.came.sum()) / n


def _cells(
    came: Floats, bucket: float, until: float, options: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(trial, bucket, width option) of all that a schedule may use: buckets that end after the
    trial came.
    """
    last = int(np.ceil(until / bucket))
    cells = [(j, t) for j, at in enumerate(came) for t in range(int(at // bucket), last)]
    trial, time = np.array(cells, dtype=np.int64).T
    return (
        np.repeat(trial, options),
        np.repeat(time, options),
        np.tile(np.arange(options), len(cells)),
    )


def _row(cells: csr_matrix, n: int, slow: int) -> csr_matrix:
    return hstack([cells, csr_matrix((cells.shape[0], n * (1 + slow)))])
