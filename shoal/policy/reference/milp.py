"""The allocation of BFTrainer as its authors wrote it: a mixed-integer linear program over nodes.

Liu et al., "BFTrainer", 2021, equations (4), (5), (9), (10), (11), (15), (16), solved by HiGHS
through SciPy; SOS2 sets become one binary per segment. Three misprints are put right: (4) says
M(1 - y), not M(i - y). R of (14) is one trial's. M of (10) must be 2|N| + 1: with the paper's
|N| + 1 a trial can change by half of the nodes at most.

For reference and for benchmarks: `policy/elastic/elastic.py` finds the same optimum some ten
thousand times faster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.plan import Plan
from shoal.core.state import View
from shoal.core.trial import Seconds
from shoal.policy.elastic.elastic import Elastic, Problem, free_slots, plan_of, wanted
from shoal.policy.elastic.objective import Objective, check_hysteresis, check_objective
from shoal.policy.elastic.placement import by_index
from shoal.policy.elastic.table import EXACT, FORBIDDEN, Counts, Table, gains, value

Terms = Mapping[int, float]  # coefficients by column
Columns = Sequence[int]  # the numbers of some columns
Floats = NDArray[np.float64]


class Solved(NamedTuple):
    """The result of a solve.

    `counts`: of the best solution, None without one. `optimal`: it was proved to be the best.
    """

    counts: Counts | None
    objective: float
    optimal: bool


class Effort(NamedTuple):
    """The limits of a solve: branch-and-bound nodes, a gap, a time."""

    nodes: int | None = None
    gap: float = 1e-9  # of the optimum
    limit: Seconds | None = None

    def options(self) -> dict[str, Any]:
        """The constraints as SciPy's `milp` takes them."""
        options: dict[str, Any] = {"mip_rel_gap": self.gap}
        if self.nodes is not None:
            options["node_limit"] = self.nodes
        if self.limit is not None:
            options["time_limit"] = self.limit
        return options


class _Block(NamedTuple):
    """Many rows at once: `lower <= A v <= upper`, A given by its cells that are not 0."""

    values: Floats
    rows: Counts
    columns: Counts
    lower: Floats
    upper: Floats


@dataclass(slots=True)
class Program:
    """A mixed-integer program. Columns are numbered from 0; the objective is maximised."""

    profit: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)

    # -- columns and rows

    def binaries(self, count: int) -> Columns:
        """So many new variables, each 0 or 1."""
        return self._columns(count, 1.0, True)

    def integers(self, count: int, most: float) -> Columns:
        """So many new variables, each a whole number from 0 to `most`."""
        return self._columns(count, most, True)

    def fractions(self, count: int) -> Columns:
        """So many new variables from 0 to 1."""
        return self._columns(count, 1.0, False)

    def _columns(self, count: int, most: float, whole: bool) -> Columns:
        first = len(self.profit)
        self.profit += [0.0] * count
        self.most += [most] * count
        self.whole += [whole] * count
        return range(first, first + count)

    def row(self, terms: Terms, lower: float = -np.inf, upper: float = np.inf) -> None:
        """A constraint: the sum of the terms lies within these limits."""
        self.rows.append((terms, lower, upper))

    # -- the paper's constraints; `count` stands for N_j, the trial's number of nodes

    def exclusive_or(self, x: Columns, u: Columns, c: Floats) -> None:
        """Eq. (9): u = x XOR c for constants c, for all at once.

        The first and third line of (9) bound u - x from above and below, the others u + x.
        """
        self._pairs(u, x, -1.0, -c, c)
        self._pairs(u, x, 1.0, c, 2.0 - c)

    def _pairs(self, u: Columns, x: Columns, sign: float, lower: Floats, upper: Floats) -> None:
        """lower <= u + sign * x <= upper, element by element."""
        size = len(x)
        values = np.concatenate([np.ones(size), np.full(size, sign)])
        rows = np.tile(np.arange(size), 2)
        columns = np.concatenate([u, x])
        self.blocks.append(_Block(values, rows, columns, lower, upper))

    def sizes(self, count: Terms, curve: Table, m: float) -> None:
        """Eq. (4): N_j = 0, or N_min <= N_j <= N_max, the ends of what the curve allows."""
        allowed = np.flatnonzero(curve > FORBIDDEN)
        fewest = most = 0.0
        if len(allowed) > 1:
            fewest = float(allowed[1])
            most = float(allowed[-1])
        y_l, y_u = self.binaries(2)
        self.row({**count, y_l: m}, lower=fewest)
        self.row({**count, y_l: m}, upper=m)
        self.row({**count, y_u: -m}, upper=most)
        self.row({**count, y_u: m}, upper=m)

    def gained(self, count: Terms, curve: Table, horizon: Seconds) -> None:
        """Eqs. (11) and (12): O_j(N_j) as straight pieces between the corners of the curve.

        Weights w of the corners' counts add up to N_j, and of what they gain to O_j(N_j).
        """
        points = corners(curve)
        w = self.fractions(len(points))
        for weight, n in zip(w, points, strict=True):
            self.profit[weight] = horizon * float(curve[n])
        self._neighbours(w)
        at_points = {weight: -float(n) for weight, n in zip(w, points, strict=True)}
        self.row({**count, **at_points}, 0.0, 0.0)

    def _neighbours(self, w: Columns) -> None:
        """The weights add up to 1, and at most two of them, side by side, are above 0 (SOS2).

        There is a binary for each piece between two of them, and one piece is chosen.
        """
        pieces = self.binaries(max(1, len(w) - 1))
        self.row(dict.fromkeys(w, 1.0), 1.0, 1.0)
        self.row(dict.fromkeys(pieces, 1.0), 1.0, 1.0)
        for i, weight in enumerate(w):
            beside = pieces[max(0, i - 1) : i + 1]
            self.row({weight: 1.0, **dict.fromkeys(beside, -1.0)}, upper=0.0)

    def rescaled(self, count: Terms, held: int, m: float, up: float, down: float) -> None:
        """Eq. (15), and the costs in (16): what growing beyond C_j, or shrinking, costs.

        `held`: C_j. `up`, `down`: what is lost of the objective by each.
        """
        z_u, z_d = self.binaries(2)
        self.profit[z_u] = -up
        self.profit[z_d] = -down
        self.row({**count, z_u: -(m - held)}, upper=held)
        self.row({**count, z_u: -(held + 1.0)}, lower=0.0)
        self.row({**count, z_d: m - (held - 1.0)}, upper=m)
        self.row({**count, z_d: float(held)}, lower=held)

    # -- the solution

    def solve(self, counts: Callable[[Floats], Counts], effort: Effort) -> Solved:
        """The best solution found. `counts`: the trials' counts from the variables' values."""
        from scipy.optimize import Bounds, milp  # slow to import, and optional

        result = milp(
            -np.array(self.profit),
            integrality=np.array(self.whole, int),
            bounds=Bounds(0.0, np.array(self.most)),
            constraints=list(self._constraints()),
            options=effort.options(),
        )
        if result.x is None:
            return Solved(None, -np.inf, False)
        return Solved(counts(result.x), -float(result.fun), result.status == 0)

    def _constraints(self) -> Iterator[Any]:
        """The rows and blocks, as SciPy takes them."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        for block in (self._rows_as_block(), *self.blocks):
            cells = (block.values, (block.rows, block.columns))
            shape = (len(block.lower), len(self.profit))
            matrix = coo_array(cells, shape=shape).tocsr()
            yield LinearConstraint(matrix, block.lower, block.upper)

    def _rows_as_block(self) -> _Block:
        """All rows written one by one."""
        values: list[float] = []
        columns: list[int] = []
        lengths = []
        for terms, _, _ in self.rows:
            values.extend(terms.values())
            columns.extend(terms)
            lengths.append(len(terms))
        rows = np.repeat(np.arange(len(self.rows)), lengths)
        lower = np.array([low for _, low, _ in self.rows])
        upper = np.array([high for _, _, high in self.rows])
        return _Block(np.array(values), rows, np.array(columns), lower, upper)


def corners(curve: Table) -> Counts:
    """The counts between which the curve is straight: the paper's discretisation.

    They are counts that the curve allows; 0, the fewest and the most are always among them.
    """
    allowed = np.flatnonzero(curve > FORBIDDEN)
    ends = {0, *allowed[1:2].tolist(), *allowed[-1:].tolist()}
    inner = allowed[2:-1]
    bend = np.abs(2.0 * curve[inner] - curve[inner - 1] - curve[inner + 1])
    straight = EXACT * 1e3 * (np.abs(curve[inner]) + 1.0)
    bends = inner[bend > straight]
    return np.array(sorted(ends | set(bends.tolist())))


BigM = Literal["repaired", "paper"]
Map = NDArray[np.int64]  # (trials, nodes): 1 where the trial has the node
UNBOUNDED = Effort()


# -- the program of the paper


@dataclass(frozen=True, slots=True)
class NodeMilp:
    """`Elastic` by the paper's program; the better of its solution and what runs now (section 3.6).

    The program as printed charges `down` alone for shrinking: that is hysteresis=0, but for a
    thousandth of the horizon.

    Args:
        horizon: seconds.
        up: seconds that a trial's slots stand still when it grows. None: as the profile says.
        down: the same when it shrinks.
        admit: at most so many trials at a time. None: any number.
        nodes: branch-and-bound nodes at which each solve ends. None: no limit.
        gap: each solve ends within this part of the optimum.
        limit: seconds of each solve, for benchmarks only: journals are then no longer repeatable.
        bigm: "repaired", or "paper" for the program as printed.
        objective: as of `Elastic`.
        hysteresis: as of `Elastic`.

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
        # How many slots each trial should have by the program; nothing where none changes.
        rule = Elastic(
            self.horizon, self.up, self.down, self.admit, self.objective, hysteresis=self.hysteresis
        )
        claims = wanted(rule, view, self.horizon, self._counts)
        if not claims:
            return view.plan, None
        moved = by_index(claims, free_slots(view), view.slots)
        return plan_of(view, moved), None

    def _counts(self, problem: Problem) -> Counts:
        return self.counts(problem.curve, problem.held, problem.up, problem.down, problem.free)

    def counts(self, curve: Table, held: Counts, up: Table, down: Table, free: int) -> Counts:
        """The better of the solution found and the present counts, if those are allowed."""
        table = gains(curve, held, up, down, self.horizon)
        present = table[np.arange(len(held)), held]
        stay = np.where(present > FORBIDDEN, held, 0)

        c = first_map(held, free)
        effort = Effort(self.nodes, self.gap, self.limit)
        solved = node_milp(curve, c, up, down, self.horizon, effort, self.bigm)
        if solved.counts is None or value(table, solved.counts) < value(table, stay):
            return stay
        return solved.counts


def first_map(held: Counts, free: int) -> Map:
    """c of the paper, (trials, nodes): the first nodes are the first trial's."""
    nodes = np.arange(free)
    ends = np.cumsum(held)[:, None]
    starts = ends - held[:, None]
    return ((nodes >= starts) & (nodes < ends)).astype(np.int64)


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
    """The best counts by a MILP over counts only: the fair opponent of `knapsack.best_counts`.

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
