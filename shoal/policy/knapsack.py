"""How many slots each trial should have: the allocation problem of BFTrainer, solved exactly over counts.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes", 2021, section 3. Its
node-level MILP depends on the map of nodes only through how many each trial has (shrinking trials keep any of theirs,
growing ones take any free node: nothing migrates), so that it is a multiple-choice knapsack: choose a column of each
row of a gain table, the columns adding up to no more than the slots there are. `best_counts_dp` is the textbook
max-plus recursion; `best_counts` gives the same optimum from the Lagrangian dual and a small core.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Counts = NDArray[np.int64]

FORBIDDEN = -1e30  # gain of a count that a trial cannot have
EXACT = 1e-12  # what counts as equal, against the size of the optimum
PAIRS = 64  # choices of which all pairs are tried


def gains(curve: Table, held: Counts, up: Table, down: Table, horizon: float) -> Table:
    """Equation (16): what each trial gains in `horizon` seconds from each count, less the cost of getting there.

    `curve[j, n]`: objective per second of trial j on n slots, 0 at n = 0, FORBIDDEN where it cannot run. `held[j]`:
    slots it has now, perhaps too few to run. `up`, `down`: seconds that its slots stand still when it grows or shrinks,
    charged at the present rate, so that a start is free.
    """
    n = np.arange(curve.shape[1])
    rate = np.maximum(curve[np.arange(len(held)), np.minimum(held, curve.shape[1] - 1)], 0.0)
    table = curve * horizon
    table -= np.where(n > held[:, None], (up * rate)[:, None], 0.0)
    table -= np.where(n < held[:, None], (down * rate)[:, None], 0.0)
    np.maximum(table, FORBIDDEN, out=table)
    table[curve <= FORBIDDEN] = FORBIDDEN
    return table


def value(gain: Table, counts: Counts) -> float:
    """The sum of what these counts gain."""
    return float(gain[np.arange(len(counts)), counts].sum())


def best_counts_dp(gain: Table, free: int) -> Counts:
    """An optimum by dynamic programming over the trials: the reference, in time (trials x slots x widths)."""
    best = np.zeros(free + 1)
    choices = []
    for row in gain:
        fresh = np.full(free + 1, -np.inf)
        choice = np.zeros(free + 1, np.int64)
        for n in np.flatnonzero(row[: free + 1] > FORBIDDEN):
            with_n = best[: free + 1 - n] + row[n]
            better = with_n > fresh[n:]
            fresh[n:][better] = with_n[better]
            choice[n:][better] = n
        best = fresh
        choices.append(choice)
    counts = np.zeros(len(gain), np.int64)
    left = free
    for j in range(len(gain) - 1, -1, -1):
        counts[j] = choices[j][left]
        left -= counts[j]
    return counts


def best_counts(gain: Table, free: int) -> Counts:
    """An optimum: `counts[j]` with the largest sum of `gain[j, counts[j]]` and at most `free` in all.

    `gain[j, n]` is FORBIDDEN or lower where trial j cannot have n; every trial can have none. Relaxing the limit with a
    price per slot gives a bound and a base solution that leaves a few slots over; only choices whose reduced loss is
    below the gap between them can be in a better one, and a recursion over those few settles it.
    """
    counts: Counts = gain.argmax(1)
    if int(np.add.reduce(counts)) <= free:
        return counts
    table = _Rows(gain, free)
    price, base, over = _dual(table, counts)
    slack = _take_ties(base, over, free - int(np.add.reduce(base)))
    if slack:
        rows, moves = _repair(table, base, price, slack)
        base[rows] += moves
    return base


# -- the dual: a price per slot at which the demand is what there is -------------------------------------------------------


class _Line(NamedTuple):
    """The dual near a price: `height + price * rise`; and the counts demanded there."""

    height: float
    rise: int  # slots left over at this price
    counts: Counts


class _Rows:
    """Rows of the table, asked what they demand at a price."""

    def __init__(self, gain: Table, free: int) -> None:
        self.gain, self.free = gain, free
        self.columns = np.arange(float(gain.shape[1]))
        self.starts = np.arange(len(gain)) * gain.shape[1]
        self.reduced = np.empty_like(gain)

    def at(self, price: float) -> _Line:
        counts = np.subtract(self.gain, price * self.columns, out=self.reduced).argmax(1)
        return self.line(counts)

    def line(self, counts: Counts) -> _Line:
        height = float(np.add.reduce(self.gain.take(counts + self.starts)))
        return _Line(height, self.free - int(np.add.reduce(counts)), counts)


def _dual(rows: _Rows, most: Counts) -> tuple[float, Counts, Counts]:
    """The best price; counts demanded there that leave slots over or none, and such that are too many.

    `most`: what is demanded for nothing. The dual is convex and piecewise linear: the next price is where the tangents on
    both sides meet, until the dual lies on them.
    """
    price, low, high = _bracket(rows, most)
    moving = (low.counts != high.counts).nonzero()[0]  # the others have made up their minds
    if high.rise == 0:
        return price, high.counts, high.counts
    part = _Rows(rows.gain[moving], int(np.add.reduce(high.counts[moving])) + high.rise)
    base, over = high.counts, low.counts
    low, high = part.line(over[moving]), part.line(base[moving])
    while True:
        price = (high.height - low.height) / (low.rise - high.rise)
        line = part.at(price)
        if not low.rise < line.rise < high.rise:  # on one of the tangents, or beyond by rounding
            break
        low, high = (low, line) if line.rise >= 0 else (line, high)
        if line.rise == 0:
            break
    base[moving], over[moving] = high.counts, low.counts
    return price, base, over


def _bracket(rows: _Rows, most: Counts) -> tuple[float, _Line, _Line]:
    """A price, and the dual near two prices, as close as can be guessed: one with too much demand, one without."""
    guess = _guess(rows.gain, rows.free)
    line = rows.at(guess)
    low, high = (line, None) if line.rise < 0 else (None, line)
    step, price = 0.02, guess
    while low is None or high is None:
        price = guess * (1.0 + step if high is None else 1.0 - step)
        line = rows.at(price) if price > 0.0 else rows.line(most)
        if line.rise < 0:
            low = line
        else:
            high = line
        step *= 5.0
    return price, low, high


def _guess(gain: Table, free: int) -> float:
    """About the price at which the demand is met, from every eighth column or so."""
    width = gain.shape[1] - 1
    steps = min(8, width)
    columns = np.arange(steps + 1) * width // steps
    coarse = np.maximum(gain.take(columns, 1), 0.0)
    slopes = ((coarse[:, 1:] - coarse[:, :-1]) / (columns[1:] - columns[:-1])).ravel()
    met = max(0, len(slopes) - 1 - free * steps // width)
    slopes.partition(met)
    guess = float(slopes[met])
    return guess if guess > 0.0 else float(coarse.max()) / width


def _take_ties(base: Counts, over: Counts, slack: int) -> int:
    """Give, in place, what is left to trials that gain as much with more at this price; return what is then left."""
    if slack == 0:
        return 0
    more = over - base
    tied = (more > 0).nonzero()[0]
    tied = tied[more[tied].argsort(kind="stable")]
    taken = more[tied].cumsum()
    fits = int(taken.searchsorted(slack, side="right"))
    base[tied[:fits]] = over[tied[:fits]]
    return slack - int(taken[fits - 1]) if fits else slack


# -- the core: what could still be better than the base ---------------------------------------------------------------------


class _Core(NamedTuple):
    """Moves away from the base that could be in a better solution. A move: that row has so many slots more, or fewer."""

    rows: Counts
    moves: Counts
    losses: Table  # of the relaxed objective, >= 0
    price: float
    slack: int
    enough: float  # what counts as no loss

    def below(self, gap: float) -> "_Core":
        near = (self.losses < gap).nonzero()[0]
        return self._replace(rows=self.rows[near], moves=self.moves[near], losses=self.losses[near])


Moves = tuple[Counts, Counts]  # rows, and slots more or fewer


def _repair(table: _Rows, base: Counts, price: float, slack: int) -> Moves:
    """What to change so that the base becomes an optimum."""
    at = base + table.starts
    gap, moves = _one_row(table.gain, base, price, slack, at)
    enough = EXACT * price * float(np.add.reduce(base) + slack)
    if gap <= enough:
        return moves
    reduced = np.subtract(table.gain, price * table.columns, out=table.reduced)
    top = reduced.take(at)
    reduced.put(at, -np.inf)
    flat = (reduced > (top - gap)[:, None]).ravel().nonzero()[0]
    rows = flat // len(table.columns)
    losses = np.maximum(top[rows] - reduced.take(flat), 0.0)
    core = _Core(rows, flat - at[rows], losses, price, slack, enough)
    gap, moves = _two_rows(core, gap, moves)
    return moves if gap <= enough else _settled(core.below(gap), gap, moves)


def _one_row(gain: Table, base: Counts, price: float, slack: int, at: Counts) -> tuple[float, Moves]:
    """All that is left to one trial, where that gains most; the gap that remains, and the move. `at`: where the base is."""
    more = np.minimum(gain.shape[1] - 1 - base, slack)
    profit = gain.take(at + more) - gain.take(at)
    best = int(profit.argmax())
    if profit[best] <= 0:
        none = np.zeros(0, np.int64)
        return price * slack, (none, none)
    return price * slack - float(profit[best]), (np.array([best]), more[[best]])


def _two_rows(core: _Core, gap: float, moves: Moves) -> tuple[float, Moves]:
    """The best change of one or two rows, among the likeliest; the gap that remains, and the change."""
    likely = np.arange(len(core.rows)) if len(core.rows) <= PAIRS else _cheapest(core)
    if len(likely) == 0:
        return gap, moves
    rows, steps, losses = core.rows[likely], core.moves[likely], core.losses[likely]
    left = core.slack - (steps[:, None] + steps)
    total = losses[:, None] + losses + core.price * left
    np.copyto(total, np.inf, where=(left < 0) | (rows[:, None] == rows))
    alone = losses + core.price * (core.slack - steps)
    alone[steps > core.slack] = np.inf
    total.ravel()[:: len(likely) + 1] = alone  # a row and itself: the row alone
    best = int(total.argmin())
    if total.ravel()[best] >= gap:
        return gap, moves
    pair = sorted(set(divmod(best, len(likely))))
    return float(total.ravel()[best]), (rows[pair], steps[pair])


def _cheapest(core: _Core) -> Counts:
    """The choice with the least loss, of each number of slots."""
    least = int(core.moves.min())
    best = np.full(int(core.moves.max()) - least + 1, -1)
    order = core.losses.argsort()[::-1]
    best[core.moves[order] - least] = order  # the last one written, the cheapest, stays
    return best[best >= 0]


class _Stage(NamedTuple):
    """Some rows of the recursion: the least loss for each deviation from the slots of the base."""

    losses: Table
    origin: int  # index of no deviation
    options: list[int]  # moves that the last of the rows had

    def at(self, deviation: int) -> float:
        i = deviation + self.origin
        return self.losses.item(i) if 0 <= i < len(self.losses) else np.inf


def _settled(core: _Core, gap: float, moves: Moves) -> Moves:
    """The best change of any number of rows, if one leaves less than `gap`; else `moves`.

    A recursion over rows, as far as losses are below the gap, which falls with each better change on the way. Where a row
    changed nothing its moves are in vain from then on, whatever other rows add; they, and dearer ones of as many slots,
    are passed over: of many equal trials only the first few count.
    """
    cuts = [0, *((core.rows[1:] != core.rows[:-1]).nonzero()[0] + 1).tolist(), len(core.rows)]
    steps, costs = core.moves.tolist(), core.losses.tolist()
    vain = dict.fromkeys(steps, np.inf)  # by number of slots: moves as dear as this
    stages, best = [_Stage(np.zeros(1), 0, [])], (0, 0)
    for a, b in pairwise(cuts):
        options = [i for i in range(a, b) if costs[i] < gap and costs[i] < vain[steps[i]]]
        if not options:
            continue
        stage = _with_row(stages[-1], options, steps, costs, gap)
        if stage is None:
            vain.update((steps[i], costs[i]) for i in options)
            continue
        gap, end = _ended(core, stage, gap)
        if end is not None:
            best = len(stages), end
        stages.append(stage if end is not None else _trimmed(stage, gap))  # an end may be where nothing else leads
        if gap <= core.enough:
            break
    picks = _traced(stages[: best[0] + 1], best[1], steps, costs)
    return (core.rows[picks], core.moves[picks]) if picks else moves


def _with_row(before: _Stage, options: list[int], steps: list[int], costs: list[float], gap: float) -> _Stage | None:
    """One row more, as far as losses are below the gap; None: that changes nothing."""
    moves = [steps[i] for i in options]
    least, most, size = min(0, *moves), max(0, *moves), len(before.losses)
    old = np.empty(size + most - least)
    old.fill(gap)
    old[-least : size - least] = before.losses
    new = old.copy()
    for i, move in zip(options, moves, strict=True):
        to = new[move - least : move - least + size]
        np.minimum(to, before.losses + costs[i], out=to)
    return _Stage(new, before.origin - least, options) if np.count_nonzero(new < old) else None


def _ended(core: _Core, stage: _Stage, gap: float) -> tuple[float, int | None]:
    """What is lost if no other row moves, where that is below the gap, and with which deviation."""
    fit = min(len(stage.losses), core.slack + stage.origin + 1)
    if fit <= 0:
        return gap, None
    unused = np.arange(core.slack + stage.origin, core.slack + stage.origin - fit, -1.0)
    left = stage.losses[:fit] + core.price * unused
    end = int(left.argmin())
    return (left.item(end), end - stage.origin) if left[end] < gap else (gap, None)


def _trimmed(stage: _Stage, gap: float) -> _Stage:
    """Without the ends that lead nowhere."""
    alive = (stage.losses < gap).nonzero()[0]
    first, last = alive.item(0), alive.item(-1) + 1
    return _Stage(stage.losses[first:last], stage.origin - first, stage.options)


def _traced(stages: list[_Stage], deviation: int, steps: list[int], costs: list[float]) -> list[int]:
    """The moves by which the last stage came to this deviation."""
    picks = []
    for after, before in pairwise(reversed(stages)):
        wanted = after.at(deviation)
        if before.at(deviation) == wanted:
            continue
        i = next(i for i in after.options if before.at(deviation - steps[i]) + costs[i] == wanted)
        picks.append(i)
        deviation -= steps[i]
    return picks
