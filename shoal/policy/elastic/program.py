"""A mixed-integer program written row by row, and the constraints of BFTrainer's programs in it.

Liu et al., "BFTrainer", 2021, section 3.3 and 3.4. Names of variables are the paper's; where it has
SOS2 sets, there is a binary for each segment. HiGHS solves the program, through SciPy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds
from shoal.policy.elastic.table import EXACT, FORBIDDEN, Counts, Table

Terms = Mapping[int, float]  # coefficients by column
Columns = Sequence[int]  # the numbers of some columns
Floats = NDArray[np.float64]


class Solved(NamedTuple):
    """What a solve found.

    `counts`: of the best solution, None without one. `optimal`: it was proved to be the best.
    """

    counts: Counts | None
    objective: float
    optimal: bool


class Effort(NamedTuple):
    """When a solve may end: after so many branch-and-bound nodes, within a gap, or after a time."""

    nodes: int | None = None
    gap: float = 1e-9  # of the optimum
    limit: Seconds | None = None

    def options(self) -> dict[str, Any]:
        """The same as SciPy's `milp` takes it."""
        found: dict[str, Any] = {"mip_rel_gap": self.gap}
        if self.nodes is not None:
            found["node_limit"] = self.nodes
        if self.limit is not None:
            found["time_limit"] = self.limit
        return found


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

        found = milp(
            -np.array(self.profit),
            integrality=np.array(self.whole, int),
            bounds=Bounds(0.0, np.array(self.most)),
            constraints=list(self._constraints()),
            options=effort.options(),
        )
        if found.x is None:
            return Solved(None, -np.inf, False)
        return Solved(counts(found.x), -float(found.fun), found.status == 0)

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
