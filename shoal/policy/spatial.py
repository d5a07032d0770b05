"""Which slots: nodes that leave together should serve the same trial.

Idle nodes leave in groups, and the nearer their racks the likelier together: when all that leave belong
to one trial, only that one is interrupted. With the counts given, a growing trial takes the free slots with the smallest
sum of log(1 - p) over its own, p being the chance that two slots leave at the same time; a shrinking one releases those
with the largest.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

Stock = NDArray[np.int64]  # slots by class: nodes at one rack that joined together
Near = NDArray[np.float64]  # log(1 - p) of two slots, by their classes
Table = Sequence[tuple[float, float, float]]

ROW = 37  # racks in a row of racks, where names say row and rack
_NAMED = re.compile(r"^(?P<row>\D*)(?P<rack>\d+)\D+\d+")
_NUMBERED = re.compile(r"(\d+)\D*$")


@lru_cache(maxsize=65536)
def rack_of(node: str) -> float:
    """Where the node's rack stands, counted in racks along the rows, read from its name.

    "c05n06" is rack 5 of row c; "nid00123" (one number) stands in rack 123 / 16; a name without numbers in rack 0.
    """
    host = node.split(".", 1)[0]
    named = _NAMED.match(host)
    if named:
        letters = [ord(c) - 96 for c in named["row"].lower() if c.isalpha()][-1:]
        return float(int(named["rack"]) + ROW * sum(letters))
    numbered = _NUMBERED.search(host)
    return float(int(numbered[1]) // 16) if numbered else 0.0


@dataclass(frozen=True, slots=True)
class Spatial:
    """How likely two nodes are to leave together: `chance` at one rack, falling by e every `reach` racks.

    `table`: measured instead, as rising (from so many racks on, p if they joined apart, p if they joined together).
    `position`: where a node's rack stands, in racks; read from its name by default.

    Raises:
        ValueError: a chance not within 0 … 1, a reach not positive, or a table whose distances do not rise from 0.
    """

    chance: float = 0.6
    reach: float = 6.0
    table: Table | None = None
    position: Callable[[str], float] = rack_of

    def __post_init__(self) -> None:
        chances = [self.chance] if self.table is None else [p for row in self.table for p in row[1:]]
        if not all(0.0 <= p < 1.0 for p in chances) or not self.reach > 0:
            raise ValueError(f"chances must be within 0 <= p < 1 and reach > 0; got {chances!r}, {self.reach!r}")
        starts = [row[0] for row in self.table or ((0.0, 0.0, 0.0),)]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"a table's distances must rise from 0; got {starts!r}")

    @property
    def by_cohort(self) -> bool:
        """It matters which nodes joined together."""
        return self.table is not None

    def near(self, racks: NDArray[np.float64], cohorts: Stock) -> Near:
        """log(1 - p) for each pair of classes at these racks, joined at these times."""
        far = np.abs(racks[:, None] - racks)
        if self.table is None:
            return np.asarray(np.log1p(-self.chance * np.exp(-far / self.reach)))
        starts, apart, together = (np.array(column) for column in zip(*self.table, strict=True))
        step = np.searchsorted(starts, far, side="right") - 1
        return np.asarray(np.log1p(-np.where(cohorts[:, None] == cohorts, together[step], apart[step])))


def take(own: Stock, stock: Stock, need: int, near: Near) -> Stock:
    """How many of each class of free slots a trial with `own` slots should take, `need` in all.

    One by one the slot with the least sum over the trial's slots; a trial that has none yet begins where most free slots
    are near. A slot makes its own class the likeliest next, so that classes are taken whole.
    """
    score = near @ own.astype(float)
    if need > 0 and not own.any():
        begin = int(np.where(stock > 0, near @ stock.astype(float), np.inf).argmin())
        score[begin] -= 1e-9
    left, taken = stock.copy(), np.zeros_like(stock)
    while need > 0:
        best = int(np.where(left > 0, score, np.inf).argmin())
        many = min(need, int(left[best]))
        taken[best] += many
        left[best] -= many
        need -= many
        score += many * near[best]
    return taken


def release(own: Stock, excess: int, near: Near) -> Stock:
    """How many of each class of its slots a trial should release, `excess` in all: those with the largest sum first."""
    left, given = own.copy(), np.zeros_like(own)
    score = near @ own.astype(float) - np.diag(near)
    while excess > 0:
        worst = int(np.where(left > 0, score, -np.inf).argmax())
        many = min(excess, int(left[worst]))
        given[worst] += many
        left[worst] -= many
        excess -= many
        score -= many * near[worst]
    return given


def exposure(own: Stock, stock: Stock, need: int, near: Near) -> float:
    """Expected interruptions that the `need` best free slots would add, each against the trial's present slots."""
    score = near @ own.astype(float)
    total = 0.0
    for i in np.argsort(score, kind="stable"):
        many = min(need, int(stock[i]))
        total += many * exp(score[i])
        need -= many
        if need == 0:
            break
    return total
