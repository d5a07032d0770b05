"""The allocation of BFTrainer as its authors wrote it: a mixed-integer linear program over nodes.

Liu et al., "BFTrainer", 2021, equations (4), (5), (9), (10), (11), (15), (16), solved by HiGHS
through SciPy; SOS2 sets become one binary per segment. Three misprints are put right: (4) says
M(1 - y), not M(i - y). R of (14) is one trial's. M of (10) must be 2|N| + 1: with the paper's
|N| + 1 a trial can change by half of the nodes at most.

For reference and for benchmarks: `policy/elastic/elastic.py` finds the same optimum some ten
thousand times faster.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds
from shoal.policy.elastic.elastic import Elastic, plan_of, wanted
from shoal.policy.elastic.objective import Objective, check_hysteresis, check_objective
from shoal.policy.elastic.problem import Problem, free_slots
from shoal.policy.elastic.program import Columns, Effort, Program, Solved, Terms
from shoal.policy.elastic.settle import Claim, by_index
from shoal.policy.elastic.table import FORBIDDEN, Counts, Table, gains, value

BigM = Literal["repaired", "paper"]
Map = NDArray[np.int64]  # (trials, nodes): 1 where the trial has the node
UNBOUNDED = Effort()


@dataclass(frozen=True, slots=True)
class NodeMilp:
    """`Elastic` by the paper's program; the better of its solution and what runs now (section 3.6).

    Each solve ends at `nodes` branch-and-bound nodes, or within `gap` of the optimum. `limit`:
    seconds, for benchmarks only: journals are then no longer repeatable. `bigm`: "paper" for the
    program as printed. `objective`, `hysteresis`: as of `Elastic`. The program as printed charges
    `down` alone for shrinking: that is hysteresis=0, but for a thousandth of the horizon.

    Raises:
        ValueError: an objective or hysteresis that cannot be.
    """

    horizon: Seconds = 120.0
    up: Seconds | None = None
    down: Seconds | None = None
    admit: int | None = None
    nodes: int | None = 20000
    gap: float = 1e-9
    limit: Seconds | None = None
    bigm: BigM = "repaired"
    objective: Objective = "throughput"
    hysteresis: float = 0.01

    def __post_init__(self) -> None:
        check_objective("milp", self.objective)
        check_hysteresis("milp", self.hysteresis)

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        claims = self._claims(view)
        if not claims:
            return view.plan, None
        moved = by_index(claims, free_slots(view), view.slots)
        return plan_of(view, moved), None

    def _claims(self, view: View) -> list[Claim]:
        """How many slots each trial should have by the program; nothing where none changes."""
        rule = Elastic(
            self.horizon,
            self.up,
            self.down,
            self.admit,
            self.objective,
            hysteresis=self.hysteresis,
        )
        return wanted(rule, view, self.horizon, self._counts)

    def _counts(self, asked: Problem) -> Counts:
        return self.counts(asked.curve, asked.held, asked.up, asked.down, asked.free)

    def counts(self, curve: Table, held: Counts, up: Table, down: Table, free: int) -> Counts:
        """The better of the solution found and the present counts, if those are allowed."""
        table = gains(curve, held, up, down, self.horizon)
        present = table[np.arange(len(held)), held]
        stay = np.where(present > FORBIDDEN, held, 0)

        c = first_map(held, free)
        effort = Effort(self.nodes, self.gap, self.limit)
        found = node_milp(curve, c, up, down, self.horizon, effort, self.bigm)
        if found.counts is None or value(table, found.counts) < value(table, stay):
            return stay
        return found.counts


def first_map(held: Counts, free: int) -> Map:
    """c of the paper, (trials, nodes): the first nodes are the first trial's."""
    nodes = np.arange(free)
    ends = np.cumsum(held)[:, None]
    starts = ends - held[:, None]
    mine = (nodes >= starts) & (nodes < ends)
    return mine.astype(np.int64)


class Trainers(NamedTuple):
    """The trials of a program, a row or an entry for each.

    `curve`: O_j(n), FORBIDDEN outside a trial's widths. `held`: C_j, the nodes that it has now.
    `up`, `down`: R_j^up and R_j^dw, seconds. `horizon`: T_fwd, seconds.
    """

    curve: Table
    held: Counts
    up: Table
    down: Table
    horizon: Seconds

    def add(self, p: Program, j: int, count: Terms, m: float) -> None:
        """Add trial j: its sizes, what it gains, what rescaling costs.

        `count`: N_j in the program. `m`: M of the paper.
        """
        curve = self.curve[j]
        held = int(self.held[j])
        p.sizes(count, curve, m)  # (4)
        p.gained(count, curve, self.horizon)  # (11), (12)
        rate = max(float(curve[held]), 0.0)  # O_j(C_j)
        p.rescaled(count, held, m, self.up[j] * rate, self.down[j] * rate)  # (15), (16)


def node_milp(
    curve: Table,
    c: Map,
    up: Table,
    down: Table,
    horizon: Seconds,
    effort: Effort = UNBOUNDED,
    bigm: BigM = "repaired",
) -> Solved:
    """The best map x of nodes to trials, from the present map `c`; section 3.5 of the paper.

    Args:
        curve: O_j(n), as in `table.gains`.
        c: (trials, nodes), 1 where the trial has the node.
        up: R_j^up, seconds.
        down: R_j^dw, seconds.
        horizon: T_fwd, seconds.
        effort: when the solve may end.
        bigm: M of eq. (10), repaired or as in the paper.
    """
    trials, nodes = c.shape
    p = Program()
    x = [p.binaries(nodes) for _ in range(trials)]
    u = [p.binaries(nodes) for _ in range(trials)]
    for owners in zip(*x, strict=True):  # of one node
        p.row(dict.fromkeys(owners, 1.0), upper=1.0)  # (5)
    p.exclusive_or(_joined(x), _joined(u), c.ravel().astype(float))  # (9)

    trainers = Trainers(curve, c.sum(axis=1), up, down, horizon)  # C_j: (1)
    m = nodes + 1
    big = m if bigm == "paper" else 2 * nodes + 1
    for j in range(trials):
        _no_migration(p, x[j], u[j], float(trainers.held[j]), big)  # (10)
        trainers.add(p, j, dict.fromkeys(x[j], 1.0), m)  # N_j: (2)
    return p.solve(lambda v: _whole(v, x).sum(axis=1), effort)


def _joined(columns: list[Columns]) -> list[int]:
    """The columns of all trials, one after the other."""
    return [column for row in columns for column in row]


def _whole(values: Table, columns: Columns | list[Columns]) -> Counts:
    """The values of these columns, as whole numbers."""
    whole: Counts = np.rint(values[np.array(columns)]).astype(np.int64)
    return whole


def _no_migration(p: Program, x: Columns, u: Columns, held: float, m: float) -> None:
    """Eq. (10): the trial gains nodes and loses none, or the other way round (z_j = 1)."""
    (z,) = p.binaries(1)
    count = dict.fromkeys(x, 1.0)
    lost = dict.fromkeys(u, -1.0)
    moved = dict.fromkeys(u, 1.0)
    p.row({**count, **lost, z: float(m)}, lower=held)
    p.row({**count, **moved, z: float(m)}, upper=held + m)


def count_milp(
    curve: Table,
    held: Counts,
    up: Table,
    down: Table,
    horizon: Seconds,
    free: int,
    effort: Effort = UNBOUNDED,
) -> Solved:
    """The same problem over counts only: the fair opponent of `knapsack.best_counts`.

    Args:
        curve: O_j(n), as in `table.gains`.
        held: C_j, the slots that each trial has now.
        up: R_j^up, seconds.
        down: R_j^dw, seconds.
        horizon: T_fwd, seconds.
        free: slots to be shared out, those held included.
        effort: when the solve may end.
    """
    p = Program()
    most = max(free, int(held.max(initial=0)))
    x = p.integers(len(held), float(most))
    p.row(dict.fromkeys(x, 1.0), upper=float(free))
    trainers = Trainers(curve, held, up, down, horizon)
    for j, column in enumerate(x):
        trainers.add(p, j, {column: 1.0}, most + 1)
    return p.solve(lambda v: _whole(v, x), effort)
