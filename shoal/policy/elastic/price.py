"""The Lagrangian dual of the knapsack: a price per slot at which trials ask for what there is.

At a price each trial takes the count that gains most less what its slots cost. As a function of the
price, the sum of these plus what all slots cost is convex and piecewise linear. Its least value is
a bound on every solution.
"""

from typing import NamedTuple

import numpy as np

from shoal.policy.elastic.table import Counts, Table

COARSE = 8  # steps of a gain curve from which the first price is guessed
STEP, WIDER = 0.02, 5.0  # from the guess to the next price, and how much farther each time


class DualLine(NamedTuple):
    """A tangent of the dual: `height + price * rise`. `counts`: what trials ask for there."""

    height: float
    rise: int  # slots left over at this price
    counts: Counts


class Bracket(NamedTuple):
    """Two tangents of the dual. At `low` too many slots are asked for, at `high` not."""

    low: DualLine
    high: DualLine

    def meeting(self) -> float:
        """The price at which the tangents meet."""
        height = self.high.height - self.low.height
        return height / (self.low.rise - self.high.rise)

    def narrowed(self, line: DualLine) -> "Bracket":
        """The bracket with this tangent instead of the one on its side."""
        if line.rise >= 0:
            return Bracket(self.low, line)
        return Bracket(line, self.high)


class Demand:
    """Rows of a gain table, asked for the counts that they take at a price."""

    def __init__(self, gain: Table, free: int) -> None:
        trials, columns = gain.shape
        self.gain = gain
        self.free = free
        self.columns = np.arange(float(columns))
        self.starts = np.arange(trials) * columns  # of each row in the flat table
        self.reduced = np.empty_like(gain)  # gains less the price; written anew by `reduce`

    def reduce(self, price: float) -> Table:
        """The gains less what the slots cost at this price."""
        return np.subtract(self.gain, price * self.columns, out=self.reduced)

    def at(self, price: float) -> DualLine:
        """The dual's tangent at this price."""
        return self.line(self.reduce(price).argmax(1))

    def line(self, counts: Counts) -> DualLine:
        """The dual's tangent where trials ask for these counts."""
        height = float(np.add.reduce(self.gain.take(counts + self.starts)))
        rise = self.free - int(np.add.reduce(counts))
        return DualLine(height, rise, counts)


def balanced(demand: Demand, most: Counts) -> tuple[float, Counts, Counts]:
    """The best price, and two demands at it: one that leaves slots over or none, and one too large.

    `most`: what is asked for where slots cost nothing. The next price is where the tangents on both
    sides meet, until the dual lies on them. The two demands are the same where one meets the
    supply.
    """
    price, bracket = _bracket(demand, most)
    over = bracket.low.counts
    base = bracket.high.counts
    if bracket.high.rise == 0:
        return price, base, base
    # Trials that ask for the same at both prices ask for it at each price between.
    moving = (over != base).nonzero()[0]
    part, bracket = _restricted(demand, bracket, moving)
    price, bracket = _descended(part, bracket)
    base[moving] = bracket.high.counts
    over[moving] = bracket.low.counts
    return price, base, over


def _restricted(demand: Demand, bracket: Bracket, rows: Counts) -> tuple[Demand, Bracket]:
    """The demand of these rows for what the others leave over, and its tangents."""
    low = bracket.low.counts[rows]
    high = bracket.high.counts[rows]
    free = int(np.add.reduce(high)) + bracket.high.rise
    part = Demand(demand.gain[rows], free)
    return part, Bracket(part.line(low), part.line(high))


def _descended(demand: Demand, bracket: Bracket) -> tuple[float, Bracket]:
    """The price at which the dual is least, and the tangents on its two sides."""
    while True:
        price = bracket.meeting()
        line = demand.at(price)
        if not bracket.low.rise < line.rise < bracket.high.rise:
            return price, bracket  # on one of the tangents, or beyond by rounding
        bracket = bracket.narrowed(line)
        if line.rise == 0:
            return price, bracket


def _bracket(demand: Demand, most: Counts) -> tuple[float, Bracket]:
    """A price, and tangents near two prices as close as can be guessed, one on either side."""
    guess = _guess(demand.gain, demand.free)
    price = guess
    line = demand.at(price)
    low = high = line
    dear = line.rise >= 0  # the guess leaves slots over: go down, else up
    step = STEP
    while True:
        price = guess * (1.0 - step if dear else 1.0 + step)
        if price > 0.0:
            line = demand.at(price)
        else:
            line = demand.line(most)
        if line.rise < 0:
            low = line
        else:
            high = line
        if low.rise < 0 <= high.rise:
            return price, Bracket(low, high)
        step *= WIDER


def _guess(gain: Table, free: int) -> float:
    """About the price at which the demand is met, from every eighth column or so."""
    width = int(gain.shape[1]) - 1
    steps = min(COARSE, width)
    columns = np.arange(steps + 1) * width // steps
    coarse = np.maximum(gain.take(columns, 1), 0.0)
    # What each trial gains per slot from each of these columns to the next; flat.
    rises: Table = np.diff(coarse) / np.diff(columns)
    slopes = rises.ravel()
    met = max(0, len(slopes) - 1 - free * steps // width)
    slopes.partition(met)
    guess = slopes.item(met)
    if guess > 0.0:
        return guess
    # Of all columns: the few above may be counts that nobody can have.
    highest = float(gain.max())
    return highest / width
