"""The allocation of BFTrainer as its authors wrote it: a mixed-integer linear program over nodes.

Liu et al., "BFTrainer", 2021, equations (4), (5), (9), (10), (11), (15), (16), solved by HiGHS through SciPy; SOS2 sets
become one binary per segment. Misprints put right: (4) says M(1 - y), not M(i - y); R of (14) is one trial's; and M of
(10) must be 2|N| + 1: with the paper's |N| + 1 a trial can change by half of the nodes at most.
For reference and for benchmarks: `policy/elastic.py` finds the same optimum some ten thousand times faster.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds
from shoal.policy.elastic import Elastic, Problem, plan_of, wanted
from shoal.policy.knapsack import FORBIDDEN, Counts, Table, gains, value
from shoal.policy.program import Program, Solved
from shoal.policy.settle import by_index

BigM = Literal["repaired", "paper"]


@dataclass(frozen=True, slots=True)
class NodeMilp:
    """`Elastic` by the paper's program. Each solve ends at `nodes` branch-and-bound nodes, or within `gap` of the optimum.

    When it ends early, the better of the best found and what runs now is taken (section 3.6). `limit`: seconds, for
    benchmarks only: journals are then no longer repeatable. `bigm`: "paper" for the program as printed.
    """

    horizon: Seconds = 120.0
    up: Seconds | None = None
    down: Seconds | None = None
    admit: int | None = None
    nodes: int | None = 20000
    gap: float = 1e-9
    limit: Seconds | None = None
    bigm: BigM = "repaired"

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        rule = Elastic(self.horizon, self.up, self.down, self.admit)

        def solve(asked: Problem) -> Counts:
            return self.counts(asked.curve, asked.held, asked.up, asked.down, asked.free)

        claims = wanted(rule, view, solve)
        if not claims:
            return view.plan, None
        busy = view.busy.keys()
        return plan_of(view, by_index(claims, [s for s in view.slots if s not in busy], view.slots)), None

    def counts(self, curve: Table, held: Counts, up: Table, down: Table, free: int) -> Counts:
        """The better of the solution found and the present counts, if those are allowed."""
        found = node_milp(curve, first_map(held, free), up, down, self.horizon, self.nodes, self.gap, self.limit, self.bigm)
        table = gains(curve, held, up, down, self.horizon)
        stay = np.where(table[np.arange(len(held)), held] > FORBIDDEN, held, 0)
        return stay if found.counts is None or value(table, found.counts) < value(table, stay) else found.counts


def first_map(held: Counts, free: int) -> NDArray[np.int64]:
    """c of the paper, (trials, nodes): the first nodes are the first trial's."""
    nodes = np.arange(free)
    ends = np.cumsum(held)
    return ((nodes >= (ends - held)[:, None]) & (nodes < ends[:, None])).astype(np.int64)


def node_milp(
    curve: Table,
    present: NDArray[np.int64],
    up: Table,
    down: Table,
    horizon: Seconds,
    nodes: int | None = None,
    gap: float = 1e-9,
    limit: Seconds | None = None,
    bigm: BigM = "repaired",
) -> Solved:
    """The best map of nodes to trials from the map `present`, (trials, nodes) of 0 and 1.

    `curve`: objective per second at each count, FORBIDDEN outside a trial's widths, as in `knapsack.gains`.
    """
    trials, size = present.shape
    held, m = present.sum(1), size + 1
    p = Program()
    x = p.binaries(trials * size).reshape(trials, size)
    u = p.binaries(trials * size).reshape(trials, size)
    for n in range(size):
        p.row({int(k): 1.0 for k in x[:, n]}, upper=1.0)  # (5)
    c = present.ravel().astype(float)
    p.exclusive_or(x.ravel(), u.ravel(), c)  # (9)
    big = 2 * size + 1 if bigm == "repaired" else m
    for j in range(trials):
        mine = {int(k): 1.0 for k in x[j]}
        moved = {int(k): 1.0 for k in u[j]}
        z = int(p.binaries(1)[0])
        p.row(mine | {k: -v for k, v in moved.items()} | {z: float(big)}, lower=float(held[j]))  # (10)
        p.row(mine | moved | {z: float(big)}, upper=float(held[j] + big))
        p.sizes(mine, curve[j], m)  # (4)
        p.gained(mine, curve[j], horizon)  # (11), (12)
        p.rescaled(mine, int(held[j]), m, *_charges(curve[j], int(held[j]), float(up[j]), float(down[j])))  # (15), (16)
    return p.solve(lambda v: np.rint(v[x]).astype(np.int64).sum(1), nodes, gap, limit)


def count_milp(
    curve: Table,
    held: Counts,
    up: Table,
    down: Table,
    horizon: Seconds,
    free: int,
    nodes: int | None = None,
    gap: float = 1e-9,
    limit: Seconds | None = None,
) -> Solved:
    """The same problem over counts only: the fair opponent of `knapsack.best_counts`."""
    p = Program()
    most = max(free, int(held.max(initial=0)))
    x = p.integers(len(held), float(most))
    p.row({int(k): 1.0 for k in x}, upper=float(free))
    for j, k in enumerate(x):
        mine = {int(k): 1.0}
        p.sizes(mine, curve[j], most + 1)
        p.gained(mine, curve[j], horizon)
        p.rescaled(mine, int(held[j]), most + 1, *_charges(curve[j], int(held[j]), float(up[j]), float(down[j])))
    return p.solve(lambda v: np.rint(v[x]).astype(np.int64), nodes, gap, limit)


def _charges(curve: Table, held: int, up: float, down: float) -> tuple[float, float]:
    rate = max(float(curve[held]), 0.0)
    return up * rate, down * rate
