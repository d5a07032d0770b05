"""The core of the knapsack: the few changes of the base solution that could still make it better.

The base is what trials ask for at the best price (`price`). A move takes one trial from its count
there to another. It loses some of the relaxed objective, and each slot left over in the end loses
the price. A better solution than the best known one loses less than its gap to the bound, so only
moves that lose less than that can be in it.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shoal.policy.elastic.price import Demand
from shoal.policy.elastic.table import EXACT, Counts, Table

PAIRS = 64  # moves of which all pairs are tried

Moves = tuple[Counts, Counts]  # rows, and how many slots more or fewer each should have


class _Change(NamedTuple):
    """Moves of some rows. `gap`: what a solution so changed is short of the bound."""

    gap: float
    rows: Counts
    moves: Counts


class _Core(NamedTuple):
    """Moves away from the base that could be in a better solution, by row."""

    rows: Counts
    moves: Counts
    losses: Table  # of the relaxed objective, >= 0
    price: float
    slack: int  # slots that the base leaves over
    enough: float  # what counts as no loss

    def below(self, gap: float) -> "_Core":
        """The moves that lose less than this gap."""
        near = (self.losses < gap).nonzero()[0]
        return self._replace(rows=self.rows[near], moves=self.moves[near], losses=self.losses[near])


def repair(demand: Demand, base: Counts, price: float, slack: int) -> Moves:
    """The moves by which the base becomes an optimum."""
    at = base + demand.starts  # where the base is in the flat table
    best = _one_row(demand.gain, base, price, slack, at)
    enough = EXACT * price * float(np.add.reduce(base) + slack)
    if best.gap > enough:
        rows, moves, losses = _near_moves(demand, at, price, best.gap)
        core = _Core(rows, moves, losses, price, slack, enough)
        best = _two_rows(core, best)
        if best.gap > enough:
            best = _any_rows(core.below(best.gap), best)
    return best.rows, best.moves


def _near_moves(
    demand: Demand, at: Counts, price: float, gap: float
) -> tuple[Counts, Counts, Table]:
    """Rows, moves and losses of the moves that lose less than the gap.

    `at`: where the base is in the flat table.
    """
    reduced = demand.reduce(price)
    top = reduced.take(at)
    reduced.put(at, -np.inf)  # the base itself is no move
    least = (top - gap)[:, None]
    flat = (reduced > least).ravel().nonzero()[0]
    rows = flat // len(demand.columns)
    losses = top[rows] - reduced.take(flat)
    return rows, flat - at[rows], np.maximum(losses, 0.0)


# -- changes of one row, and of two


def _one_row(gain: Table, base: Counts, price: float, slack: int, at: Counts) -> _Change:
    """All that is left to one trial, the one that gains most by it."""
    more = np.minimum(gain.shape[1] - 1 - base, slack)
    profit = gain.take(at + more) - gain.take(at)
    best = int(profit.argmax())
    gap = price * slack
    if profit[best] <= 0:
        none = np.zeros(0, np.int64)
        return _Change(gap, none, none)
    return _Change(gap - float(profit[best]), np.array([best]), more[[best]])


def _two_rows(core: _Core, known: _Change) -> _Change:
    """The best change of one or two rows, among the likeliest moves; else the known one."""
    likely = _likeliest(core)
    if len(likely) == 0:
        return known
    rows = core.rows[likely]
    moves = core.moves[likely]
    short = _short_by_pairs(core, likely)
    best = int(short.argmin())
    gap = short.item(best)
    if gap >= known.gap:
        return known
    pair = sorted(set(divmod(best, len(likely))))
    return _Change(gap, rows[pair], moves[pair])


def _short_by_pairs(core: _Core, likely: Counts) -> Table:
    """The loss of each pair of these moves, that of the slots then left over included; flat.

    A move's pair with itself stands for the move alone. Infinite where a pair is of one row, or
    takes more slots than there are.
    """
    rows = core.rows[likely]
    moves = core.moves[likely]
    losses = core.losses[likely]
    left = core.slack - (moves[:, None] + moves)
    short = losses[:, None] + losses + core.price * left
    impossible = (left < 0) | (rows[:, None] == rows)
    np.copyto(short, np.inf, where=impossible)

    alone = losses + core.price * (core.slack - moves)
    alone[moves > core.slack] = np.inf
    flat = short.ravel()
    flat[:: len(likely) + 1] = alone
    return flat


def _likeliest(core: _Core) -> Counts:
    """The moves to try in pairs: all, or of many the cheapest of each number of slots."""
    if len(core.rows) <= PAIRS:
        return np.arange(len(core.rows))
    least = int(core.moves.min())
    most = int(core.moves.max())
    best = np.full(most - least + 1, -1)
    dearest_first = core.losses.argsort()[::-1]
    # Of moves by as many slots the last one written, the cheapest, stays.
    best[core.moves[dearest_first] - least] = dearest_first
    return best[best >= 0]


# -- changes of any number of rows


class _Stage(NamedTuple):
    """Some rows of the recursion: the least loss for each deviation from the slots of the base."""

    losses: Table
    origin: int  # index of no deviation
    options: list[int]  # moves that the last of the rows had

    def at(self, deviation: int) -> float:
        """The least loss for this deviation; infinite where the rows cannot come to it."""
        i = deviation + self.origin
        if 0 <= i < len(self.losses):
            return self.losses.item(i)
        return np.inf

    def trimmed(self, gap: float) -> "_Stage":
        """The stage without the ends that lead nowhere."""
        alive = (self.losses < gap).nonzero()[0]
        first = alive.item(0)
        losses = self.losses[first : alive.item(-1) + 1]
        return _Stage(losses, self.origin - first, self.options)


class _Recursion:
    """A recursion over the rows of a core, as far as losses are below a gap.

    The gap falls with each better change on the way. Where a row changed nothing its moves are in
    vain from then on, whatever other rows add. They, and dearer ones of as many slots, are passed
    over: of many equal trials only the first few count.
    """

    def __init__(self, core: _Core, gap: float) -> None:
        self.core = core
        self.gap = gap
        self.moves: list[int] = core.moves.tolist()
        self.losses: list[float] = core.losses.tolist()
        # By number of slots: moves that lose as much as this are in vain.
        self.vain = dict.fromkeys(self.moves, np.inf)
        self.stages = [_Stage(np.zeros(1), 0, [])]
        self.end: int | None = None  # the deviation of the best change
        self.last = 0  # the stage at which it is complete

    def run(self) -> list[int]:
        """The moves of the best change; none where no change leaves less than the gap."""
        for options in self._options_by_row():
            stage = self._with_row(options)
            if stage is None:
                for i in options:
                    self.vain[self.moves[i]] = self.losses[i]
                continue
            if self._ends_better(stage):
                self.last = len(self.stages)
            else:  # an end may be where nothing else leads: only others are trimmed
                stage = stage.trimmed(self.gap)
            self.stages.append(stage)
            if self.gap <= self.core.enough:
                break
        if self.end is None:
            return []
        # The moves by which the last of these stages came to the deviation.
        stages = self.stages[: self.last + 1]
        deviation = self.end
        picks = []
        for after, before in pairwise(reversed(stages)):
            wanted = after.at(deviation)
            if before.at(deviation) == wanted:
                continue
            pick = next(
                i
                for i in after.options
                if before.at(deviation - self.moves[i]) + self.losses[i] == wanted
            )
            picks.append(pick)
            deviation -= self.moves[pick]
        return picks

    def _options_by_row(self) -> Iterator[list[int]]:
        """Row by row the moves that are worth trying, as things stand when the row's turn comes."""
        rows = self.core.rows
        changes = (rows[1:] != rows[:-1]).nonzero()[0] + 1
        cuts = [0, *changes.tolist(), len(rows)]
        for first, end in pairwise(cuts):
            options = [
                i
                for i in range(first, end)
                if self.losses[i] < self.gap and self.losses[i] < self.vain[self.moves[i]]
            ]
            if options:
                yield options

    def _with_row(self, options: list[int]) -> _Stage | None:
        """The last stage with one row more; None where the row changes nothing."""
        before = self.stages[-1]
        moves = [self.moves[i] for i in options]
        least = min(0, *moves)
        most = max(0, *moves)
        # The losses with places for deviations smaller by -least and larger by most.
        size = len(before.losses)
        old = np.empty(size + most - least)
        old.fill(self.gap)
        old[-least : size - least] = before.losses
        new = old.copy()
        for i, move in zip(options, moves, strict=True):
            first = move - least
            reached = new[first : first + len(before.losses)]
            np.minimum(reached, before.losses + self.losses[i], out=reached)
        if not np.count_nonzero(new < old):
            return None
        return _Stage(new, before.origin - least, options)

    def _ends_better(self, stage: _Stage) -> bool:
        """Whether less than the gap is lost if no other row moves.

        Notes that change, and what it loses as the new gap.
        """
        # What is lost with each deviation that there are slots for: its loss, and the price of
        # the slots left over.
        most = self.core.slack + stage.origin  # index at which no slot is left over
        fit = max(0, min(len(stage.losses), most + 1))
        unused = np.arange(most, most - fit, -1.0)
        lost = stage.losses[:fit] + self.core.price * unused
        if not len(lost):
            return False
        best = int(lost.argmin())
        if not lost[best] < self.gap:
            return False
        self.gap = lost.item(best)
        self.end = best - stage.origin
        return True


def _any_rows(core: _Core, known: _Change) -> _Change:
    """The best change of any number of rows, if it leaves less than the known one; else that."""
    recursion = _Recursion(core, known.gap)
    picks = recursion.run()
    if not picks:
        return known
    return _Change(recursion.gap, core.rows[picks], core.moves[picks])
