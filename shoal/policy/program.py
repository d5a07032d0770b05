"""Building blocks of BFTrainer's linear programs, and their solution by HiGHS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds
from shoal.policy.knapsack import EXACT, FORBIDDEN, Counts, Table

Terms = Mapping[int, float]  # coefficients by column


class Solved(NamedTuple):
    """`counts`: of the best solution found, None without one; `optimal`: it was proved to be the best."""

    counts: Counts | None
    objective: float
    optimal: bool


@dataclass(slots=True)
class Program:
    """A mixed-integer program that is written row by row. Columns are numbered from 0; the objective is maximised."""

    profit: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)
    blocks: list[tuple[Any, NDArray[np.float64], NDArray[np.float64]]] = field(default_factory=list)

    def _columns(self, count: int, most: float, whole: bool) -> NDArray[np.int64]:
        first = len(self.profit)
        self.profit += [0.0] * count
        self.most += [most] * count
        self.whole += [whole] * count
        return np.arange(first, first + count)

    def binaries(self, count: int) -> NDArray[np.int64]:
        return self._columns(count, 1.0, True)

    def integers(self, count: int, most: float) -> NDArray[np.int64]:
        return self._columns(count, most, True)

    def fractions(self, count: int) -> NDArray[np.int64]:
        return self._columns(count, 1.0, False)

    def row(self, terms: Terms, lower: float = -np.inf, upper: float = np.inf) -> None:
        self.rows.append((terms, lower, upper))

    def exclusive_or(self, x: NDArray[np.int64], u: NDArray[np.int64], c: NDArray[np.float64]) -> None:
        """u = x XOR c for constants c (eq. 9), all pairs at once."""
        n = len(x)
        at = np.arange(n)
        for sign, lower, upper in ((-1.0, -c, c), (1.0, c, 2.0 - c)):  # u - x within -c … c, u + x within c … 2 - c
            cells = (np.concatenate([np.ones(n), np.full(n, sign)]), np.concatenate([at, at]), np.concatenate([u, x]))
            self.blocks.append((cells, lower, upper))

    def sizes(self, count: Terms, curve: Table, m: float) -> None:
        """None, or within the widths that the curve allows (eq. 4)."""
        allowed = np.flatnonzero(curve > FORBIDDEN)
        fewest, most = (float(allowed[1]), float(allowed[-1])) if len(allowed) > 1 else (0.0, 0.0)
        low, high = (int(k) for k in self.binaries(2))
        self.row({**count, low: m}, lower=fewest)
        self.row({**count, low: m}, upper=m)
        self.row({**count, high: -m}, upper=most)
        self.row({**count, high: m}, upper=m)

    def gained(self, count: Terms, curve: Table, horizon: Seconds) -> None:
        """The curve as straight pieces between its corners (eq. 11, 12)."""
        points = corners(curve)
        weights, pieces = self.fractions(len(points)), self.binaries(max(1, len(points) - 1))
        for w, n in zip(weights, points, strict=True):
            self.profit[int(w)] = horizon * float(curve[n])
        self.row({int(w): 1.0 for w in weights}, 1.0, 1.0)
        self.row({int(k): 1.0 for k in pieces}, 1.0, 1.0)
        for i, w in enumerate(weights):
            beside = [pieces[e] for e in (i - 1, i) if 0 <= e < len(pieces)]
            self.row({int(w): 1.0, **{int(k): -1.0 for k in beside}}, upper=0.0)
        self.row({**count, **{int(w): -float(n) for w, n in zip(weights, points, strict=True)}}, 0.0, 0.0)

    def rescaled(self, count: Terms, held: int, m: float, up: float, down: float) -> None:
        """What growing beyond `held`, or shrinking, costs (eq. 15, 16)."""
        grows, shrinks = (int(k) for k in self.binaries(2))
        self.profit[grows], self.profit[shrinks] = -up, -down
        self.row({**count, grows: -(m - held)}, upper=held)
        self.row({**count, grows: -(held + 1.0)}, lower=0.0)
        self.row({**count, shrinks: m - (held - 1.0)}, upper=m)
        self.row({**count, shrinks: float(held)}, lower=held)

    def solve(
        self, counts: Callable[[NDArray[np.float64]], Counts], nodes: int | None, gap: float, limit: Seconds | None
    ) -> Solved:
        """Maximise; end at so many nodes, this relative gap, or so many seconds."""
        from scipy.optimize import Bounds, milp

        options: dict[str, Any] = {"mip_rel_gap": gap}
        if nodes is not None:
            options["node_limit"] = nodes
        if limit is not None:
            options["time_limit"] = limit
        found = milp(
            -np.array(self.profit),
            integrality=np.array(self.whole, int),
            bounds=Bounds(0.0, np.array(self.most)),
            constraints=list(self._constraints()),
            options=options,
        )
        if found.x is None:
            return Solved(None, -np.inf, False)
        return Solved(counts(found.x), -float(found.fun), found.status == 0)

    def _constraints(self) -> Any:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        lengths = [len(terms) for terms, _, _ in self.rows]
        at = np.repeat(np.arange(len(self.rows)), lengths)
        columns = np.fromiter((k for terms, _, _ in self.rows for k in terms), np.int64, sum(lengths))
        cells = np.fromiter((v for terms, _, _ in self.rows for v in terms.values()), float, sum(lengths))
        lower, upper = np.array([r[1] for r in self.rows]), np.array([r[2] for r in self.rows])
        for (values, rows, cols), low, high in [((cells, at, columns), lower, upper), *self.blocks]:
            yield LinearConstraint(coo_array((values, (rows, cols)), shape=(len(low), len(self.profit))).tocsr(), low, high)


def corners(curve: Table) -> NDArray[np.int64]:
    """The allowed counts between which the curve is straight, none and the ends included: the paper's discretisation."""
    allowed = np.flatnonzero(curve > FORBIDDEN)
    ends = {0, *allowed[1:2].tolist(), *allowed[-1:].tolist()}
    inner = allowed[2:-1]
    bend = np.abs(2.0 * curve[inner] - curve[inner - 1] - curve[inner + 1]) > EXACT * 1e3 * (np.abs(curve[inner]) + 1.0)
    return np.array(sorted(ends | set(inner[bend].tolist())))
