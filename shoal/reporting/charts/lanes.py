"""How a Gantt chart's bars are laid out for drawing.

Lanes of a pack are stacked, and there are no more bars than draw quickly.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.core.trial import Seconds, TrialId
from shoal.reporting.facts.bars import Bar, Chart

Who = TrialId | None  # None: no trial, the slot is idle


class Drawn(NamedTuple):
    """A bar in the `row`th of `rows` equal parts of its slot's lane.

    `units`: the number of bars it stands for.
    """

    bar: Bar
    row: int
    rows: int
    units: int = 1


Row = list[Drawn]  # in one part of one lane, by start


def drawn(chart: Chart, limit: int) -> list[Drawn]:
    """The chart's bars as they are to be drawn, at most about `limit` of them.

    When there are more, each bar shorter than some width is drawn together with its neighbours, as
    the trial and kind that most of their seconds went to, and as long as they are together.
    """
    rows: list[Row] = []
    for bars in chart.bars.values():
        rows += _by_row(stacked(bars))

    if sum(map(len, rows)) > limit:
        width = 2 * sum(map(_span, rows)) / limit
        rows = [_coarse(row, width) for row in rows]
    return [item for row in rows for item in row]


def _span(row: Row) -> Seconds:
    """From the row's first bar to its last."""
    return row[-1].bar.end - row[0].bar.start


# -- rows of bars that overlap ---------------------------------------------------------------------


def stacked(bars: Iterable[Bar]) -> list[Drawn]:
    """A row for each of the bars that overlap; one that overlaps none has the whole lane.

    `bars`: one slot's, by start.
    """
    laid: list[Drawn] = []
    seen: dict[Who, int] = {}
    cluster: list[Bar] = []
    end = 0.0
    for bar in bars:
        seen.setdefault(bar.trial, len(seen))
        if cluster and bar.start >= end:
            laid += _stack(cluster, seen)
            cluster = []
        if not cluster:
            end = bar.end
        end = max(end, bar.end)
        cluster.append(bar)
    return laid + _stack(cluster, seen)


def _stack(cluster: Sequence[Bar], seen: dict[Who, int]) -> list[Drawn]:
    """Bars that overlap, each in a row. `seen`: in which order trials came to the slot."""
    if len(cluster) == 1:
        return [Drawn(cluster[0], 0, 1)]

    free: list[Seconds] = []  # from when on each row is free
    home: dict[Who, int] = {}  # the row of each trial
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(cluster, key=lambda bar: (bar.start, seen[bar.trial])):
        row = home.get(bar.trial)
        if row is None or free[row] > bar.start:
            row = _free_row(free, bar.start)
            home[bar.trial] = row
        free[row] = bar.end
        placed.append((bar, row))
    return [Drawn(bar, row, len(free)) for bar, row in placed]


def _free_row(free: list[Seconds], start: Seconds) -> int:
    """The first row that is free at that time, a new one if there is none."""
    for row, at in enumerate(free):
        if at <= start:
            return row
    free.append(0.0)
    return len(free) - 1


def _by_row(laid: Iterable[Drawn]) -> Iterable[Row]:
    """The bars of each row of a lane."""
    rows: dict[tuple[int, int], Row] = {}
    for item in laid:
        rows.setdefault((item.row, item.rows), []).append(item)
    return rows.values()


# -- short neighbours as one -----------------------------------------------------------------------


def _coarse(row: Row, width: Seconds) -> Row:
    """The row with bars of about this width or more."""
    done: Row = []
    block: Row = []
    for item in row:
        bar = item.bar
        if block:
            is_wide = bar.end - bar.start >= width
            if is_wide or bar.end - block[0].bar.start > width:
                done.append(_merged(block))
                block = []
        block.append(item)
    if block:
        done.append(_merged(block))
    return done


def _merged(block: Row) -> Drawn:
    """One bar for several neighbours."""
    if len(block) == 1:
        return block[0]

    share = _shares(block)
    trial, kind = max(share, key=lambda key: share[key])
    first = block[0]
    start = first.bar.start
    end = min(block[-1].bar.end, start + sum(share.values()))
    whole = Bar(first.bar.slot, start, end, trial, kind)
    return Drawn(whole, first.row, first.rows, len(block))


def _shares(block: Row) -> dict[tuple[Who, str], Seconds]:
    """The seconds of each trial and kind."""
    share: dict[tuple[Who, str], Seconds] = {}
    for item in block:
        bar = item.bar
        key = bar.trial, bar.kind
        share[key] = share.get(key, 0.0) + bar.end - bar.start
    return share
