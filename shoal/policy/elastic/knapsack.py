"""How many slots each trial should have: the allocation of BFTrainer, solved exactly over counts.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes",
2021, section 3. Its node-level MILP depends on the map of nodes only through how many each trial
has: shrinking trials keep any of theirs, growing ones take any free node, and nothing migrates. So
the problem is a multiple-choice knapsack: choose a column of each row of a gain table, the columns
adding up to no more than the slots there are.

`best_counts_dp` is the textbook max-plus recursion. `best_counts` finds the same optimum in three
steps: a price per slot (`price`), trials that gain as much with more slots at that price, and a
small recursion over what could still be better (`core`).
"""

import numpy as np

from shoal.policy.elastic.core import repair
from shoal.policy.elastic.price import Demand, balanced
from shoal.policy.elastic.table import EXACT, FORBIDDEN, Counts, Table


def best_counts(gain: Table, free: int) -> Counts:
    """An optimum: `counts[j]` with the largest sum of `gain[j, counts[j]]`, at most `free` in all.

    `gain[j, n]` is FORBIDDEN or lower where trial j cannot have n; every trial can have none.
    Relaxing the limit with a price per slot gives a bound, and a base solution that leaves a few
    slots over. Only choices whose reduced loss is below the gap between the two can be in a better
    solution; a recursion over those few settles it.
    """
    most: Counts = gain.argmax(1)
    if int(np.add.reduce(most)) <= free:
        return most
    demand = Demand(gain, free)
    price, base, over = balanced(demand, most)
    left = free - int(np.add.reduce(base))
    slack = _take_ties(base, over, left)
    if slack:
        rows, moves = repair(demand, base, price, slack)
        base[rows] += moves
    return base


def _take_ties(base: Counts, over: Counts, slack: int) -> int:
    """Give slots that are left to trials that gain as much with more at this price.

    Changes `base` in place, towards `over`, and returns how many slots are then left.
    """
    if slack == 0:
        return 0
    more = over - base
    tied = (more > 0).nonzero()[0]
    fewest_first = more[tied].argsort(kind="stable")
    tied = tied[fewest_first]
    taken = more[tied].cumsum()
    fits = int(taken.searchsorted(slack, side="right"))
    if not fits:
        return slack
    base[tied[:fits]] = over[tied[:fits]]
    return slack - int(taken[fits - 1])


def steady(gain: Table, counts: Counts, held: Counts) -> Counts:
    """A solution as good as `counts` in which equal trials exchange no slots.

    Where two trials could have each other's counts for as much gain, and fewer slots would then
    change hands, they do.
    """
    steadied = counts.copy()
    changed = (counts != held).nonzero()[0]
    crossed = np.subtract.outer(held[changed], held[changed]) * np.subtract.outer(
        counts[changed], counts[changed]
    )
    for a, b in np.argwhere(np.triu(crossed < 0)):
        _uncross(gain, steadied, held, changed[[a, b]])
    return steadied


def _uncross(gain: Table, counts: Counts, held: Counts, pair: Counts) -> None:
    """Exchange the counts of two trials, if that moves fewer slots and gains no less."""
    crossed = counts[pair]
    straight = crossed[::-1]
    moved = np.abs(crossed - held[pair]).sum() - np.abs(straight - held[pair]).sum()
    more = gain[pair, straight].sum() - gain[pair, crossed].sum()
    if moved > 0 and more >= -EXACT * np.abs(gain[pair, crossed]).sum():
        counts[pair] = straight


# -- the reference


def best_counts_dp(gain: Table, free: int) -> Counts:
    """An optimum by dynamic programming over the trials: the reference for `best_counts`.

    Takes time in the order of trials x slots x widths.
    """
    best = np.zeros(free + 1)  # best[k]: the most that the trials so far gain on k slots
    choices = []
    for row in gain:
        best, choice = _with_trial(best, row)
        choices.append(choice)
    # The counts of all trials, from the last one's choice back to the first one's.
    counts = np.zeros(len(choices), np.int64)
    left = free
    for j in reversed(range(len(choices))):
        counts[j] = choices[j][left]
        left -= counts[j]
    return counts


def _with_trial(best: Table, row: Table) -> tuple[Table, Counts]:
    """`best` with one trial more, and this trial's count on each number of slots."""
    size = len(best)
    fresh = np.full(size, -np.inf)
    choice = np.zeros(size, np.int64)
    for n in np.flatnonzero(row[:size] > FORBIDDEN):
        with_n = best[: size - n] + row[n]
        better = with_n > fresh[n:]
        fresh[n:][better] = with_n[better]
        choice[n:][better] = n
    return fresh, choice
