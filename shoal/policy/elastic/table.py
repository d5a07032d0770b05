"""The gain table of BFTrainer: what trials gain from each count of slots, less what changes cost.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes",
2021, section 3.4. Rows are trials (the paper's Trainers j), columns are counts (its N_j).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Counts = NDArray[np.int64]

FORBIDDEN = -1e30  # gain of a count that a trial cannot have
EXACT = 1e-12  # what counts as equal, against the size of the optimum


def gains(curve: Table, held: Counts, up: Table, down: Table, horizon: float) -> Table:
    """Equation (16): T_fwd * O_j(N_j) - O_j(C_j) * R_j for each trial j and each count N_j.

    R_j is the cost of rescaling (eq. 13). It is charged at the present rate, so a start is free.

    Args:
        curve: O_j(n), objective per second of trial j on n slots: 0 at n = 0, FORBIDDEN where the
            trial cannot run.
        held: C_j, the slots that each trial has now, perhaps too few to run.
        up: R_j^up, seconds that a trial's slots stand still when it grows.
        down: R_j^dw, the same when it shrinks.
        horizon: T_fwd, seconds.
    """
    trials = np.arange(len(held))
    n = np.arange(curve.shape[1])
    present = np.minimum(held, curve.shape[1] - 1)
    rate = np.maximum(curve[trials, present], 0.0)

    table = curve * horizon
    before = held[:, None]
    table -= np.where(n > before, (up * rate)[:, None], 0.0)
    table -= np.where(n < before, (down * rate)[:, None], 0.0)

    np.maximum(table, FORBIDDEN, out=table)
    table[curve <= FORBIDDEN] = FORBIDDEN
    return table


def value(gain: Table, counts: Counts) -> float:
    """The sum of what these counts gain."""
    trials = np.arange(len(counts))
    return float(gain[trials, counts].sum())


# -- slots of which the ends are known


def lasting(present: Sequence[float], others: Sequence[float], columns: int) -> Table:
    """The parts of the horizon for which a trial's slots last: [n, k], the k-th longest of n.

    A trial that shrinks keeps the slots that last longest; one that grows takes these first.

    Args:
        present: the parts of the horizon for which the trial's present slots last.
        others: the same of the slots that it may take, in the order in which it would.
        columns: how many counts there are, from 0 on.
    """
    longest = sorted(present, reverse=True)
    parts = np.ones((columns, columns - 1))
    for n in range(1, columns):
        more = others[: max(0, n - len(longest))]
        slots = sorted([*longest[:n], *more], reverse=True)
        parts[n, : len(slots)] = slots
    return parts


def shortened(curve: Table, parts: Sequence[Table]) -> Table:
    """The loss of O_j(n) on average over the horizon, because slots leave within it.

    A trial goes on with those slots that stay. So its k-th longest lasting slot makes
    O_j(k) - O_j(k - 1) for as long as it lasts. `parts`: for each trial, see `lasting`.
    """
    steps = np.diff(np.maximum(curve, 0.0))
    return np.stack([(1.0 - lasts) @ step for lasts, step in zip(parts, steps, strict=True)])
