"""Which slots: nodes that leave together should serve the same trial.

Idle nodes leave in groups, and the nearer their racks the likelier together: when all that leave
belong to one trial, only that one is interrupted. With the counts given, a growing trial takes the
free slots with the smallest sum of log(1 - p) over its own, p being the chance that two slots leave
at the same time; a shrinking one releases those with the largest.
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
NODES = 16  # nodes in a rack, where names have one number
FIRST = 1e-9  # what makes a class the first choice among those that are equal
_NAMED = re.compile(r"^(?P<row>\D*)(?P<rack>\d+)\D+\d+")
_NUMBERED = re.compile(r"(\d+)\D*$")


@lru_cache(maxsize=65536)
def rack_of(node: str) -> float:
    """Where the node's rack stands, counted in racks along the rows, read from its name.

    "c05n06" is rack 5 of row c; "nid00123" (one number) stands in rack 123 / 16; a name without
    numbers in rack 0.
    """
    host = node.split(".", 1)[0]
    named = _NAMED.match(host)
    if named:
        return float(int(named["rack"]) + ROW * _row_number(named["row"]))
    return _rack_by_number(host)


def _rack_by_number(host: str) -> float:
    """The rack of a node whose name ends in one number; 0 without a number."""
    numbered = _NUMBERED.search(host)
    if numbered:
        return float(int(numbered[1]) // NODES)
    return 0.0


def _row_number(text: str) -> int:
    """1 for a row named a, 2 for b, and so on, by the last letter; 0 without one."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    if not letters:
        return 0
    return ord(letters[-1]) - ord("a") + 1


@dataclass(frozen=True, slots=True)
class Spatial:
    """How likely two nodes are to leave together.

    `chance`: p at one rack; it falls by e every `reach` racks.
    `table`: measured instead, as rising (from so many racks on, p if they joined apart, p if they
    joined together). `position`: where a node's rack stands, in racks; read from its name by
    default.

    Raises:
        ValueError: a chance not within 0 … 1, a reach not positive, or a table whose distances do
            not rise from 0.
    """

    chance: float = 0.6
    reach: float = 6.0
    table: Table | None = None
    position: Callable[[str], float] = rack_of

    def __post_init__(self) -> None:
        if self.table is not None:
            table = tuple(map(tuple, self.table))  # of lists, if from a journal
            object.__setattr__(self, "table", table)
        self._check_chances()
        self._check_distances()

    def _check_distances(self) -> None:
        """Raise ValueError unless the table's distances rise from 0."""
        starts = [row[0] for row in self._rows]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"a table's distances must rise from 0; got {starts!r}")

    @property
    def _rows(self) -> Table:
        """The table's rows; without a table one that is like the formula at a rack."""
        if self.table is None:
            return ((0.0, self.chance, self.chance),)
        return self.table

    def _check_chances(self) -> None:
        """Raise ValueError unless the chances and the reach can be."""
        chances = [p for _, *row in self._rows for p in row]
        possible = all(0.0 <= p < 1.0 for p in chances)
        if not possible or not self.reach > 0:
            raise ValueError(
                f"chances must be within 0 <= p < 1 and reach > 0; got {chances!r}, {self.reach!r}"
            )

    @property
    def by_cohort(self) -> bool:
        """It matters which nodes joined together."""
        return self.table is not None

    def near(self, racks: NDArray[np.float64], cohorts: Stock) -> Near:
        """log(1 - p) for each pair of classes at these racks, joined at these times."""
        far = np.abs(racks[:, None] - racks)
        if self.table is None:
            chance = self.chance * np.exp(-far / self.reach)
        else:
            starts, apart, together = np.array(self.table).T
            step = np.searchsorted(starts, far, side="right") - 1
            same = cohorts[:, None] == cohorts
            chance = np.where(same, together[step], apart[step])
        return np.asarray(np.log1p(-chance))


def take(own: Stock, stock: Stock, need: int, near: Near) -> Stock:
    """How many of each class of free slots a trial should take, `need` in all.

    One by one the slot with the least sum of `near` over the trial's slots; a trial that has none
    yet begins where most free slots are near. A slot makes its own class the likeliest next, so
    that classes are taken whole.

    Args:
        own: the trial's slots, by class.
        stock: the free slots, by class.
        need: how many to take.
        near: log(1 - p) of two slots, by their classes.
    """
    score = _sums(near, own)
    if need > 0 and not own.any():
        score[_crowded(near, stock)] -= FIRST
    left = stock.copy()
    while need > 0:
        best = int(np.where(left > 0, score, np.inf).argmin())
        many = min(need, int(left[best]))
        left[best] -= many
        need -= many
        score += many * near[best]
    return stock - left


def _sums(near: Near, slots: Stock) -> Near:
    """For each class, the sum of log(1 - p) over these slots."""
    sums: Near = near @ slots.astype(float)
    return sums


def _crowded(near: Near, stock: Stock) -> int:
    """The class in stock that has most of the stock near it."""
    crowd = _sums(near, stock)
    return int(np.where(stock > 0, crowd, np.inf).argmin())


def release(own: Stock, excess: int, near: Near) -> Stock:
    """How many of each class of its slots a trial should release, `excess` in all.

    The slots with the largest sum over the trial's other slots go first.
    """
    score = _sums(near, own) - np.diag(near)
    left = own.copy()
    while excess > 0:
        worst = int(np.where(left > 0, score, -np.inf).argmax())
        many = min(excess, int(left[worst]))
        left[worst] -= many
        excess -= many
        score -= many * near[worst]
    return own - left


def exposure(own: Stock, stock: Stock, need: int, near: Near) -> float:
    """Expected interruptions that the `need` best free slots would add.

    Each slot counts against the trial's present slots, not against the others that it takes.
    """
    score = _sums(near, own)
    total = 0.0
    for i in np.argsort(score, kind="stable"):
        many = min(need, int(stock[i]))
        total += many * exp(score[i])
        need -= many
        if need == 0:
            break
    return total
