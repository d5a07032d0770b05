"""How a Gantt chart's bars are laid out for drawing: lanes of a pack stacked, and no more bars than draw quickly."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.core.trial import Seconds, TrialId
from shoal.report.gantt import Bar, Chart


class Drawn(NamedTuple):
    """A bar in the `row`th of `rows` equal parts of its slot's lane; `units`: the bars it stands for."""

    bar: Bar
    row: int
    rows: int
    units: int = 1


def drawn(chart: Chart, limit: int) -> list[Drawn]:
    """The chart's bars as they are to be drawn, at most about `limit` of them.

    When there are more, each bar shorter than some width is drawn together with its neighbours, as
    the trial and kind that most of their seconds went to, and as long as they are together.
    """
    rows = [row for bars in chart.bars.values() for row in _rows(stacked(bars))]
    if sum(map(len, rows)) <= limit:
        return [item for row in rows for item in row]
    width = 2 * sum(row[-1].bar.end - row[0].bar.start for row in rows) / limit
    return [item for row in rows for item in _coarse(row, width)]


def stacked(bars: Iterable[Bar]) -> list[Drawn]:
    """A row for each of the bars that overlap; one that overlaps none has the whole lane. `bars`: one slot's, by start."""
    laid: list[Drawn] = []
    seen: dict[TrialId | None, int] = {}
    cluster: list[Bar] = []
    end = 0.0
    for bar in bars:
        seen.setdefault(bar.trial, len(seen))
        if cluster and bar.start >= end:
            laid += _stack(cluster, seen)
            cluster = []
        end = max(end, bar.end) if cluster else bar.end
        cluster.append(bar)
    return laid + _stack(cluster, seen)


def _stack(cluster: Sequence[Bar], seen: dict[TrialId | None, int]) -> list[Drawn]:
    if len(cluster) == 1:
        return [Drawn(cluster[0], 0, 1)]
    free: list[Seconds] = []  # from when on each row is free
    home: dict[TrialId | None, int] = {}
    placed: list[tuple[Bar, int]] = []
    for bar in sorted(cluster, key=lambda bar: (bar.start, seen[bar.trial])):
        row = home.get(bar.trial, -1)
        if row < 0 or free[row] > bar.start:
            row = next((n for n, at in enumerate(free) if at <= bar.start), len(free))
            free.extend([0.0] * (row + 1 - len(free)))
            home[bar.trial] = row
        free[row] = bar.end
        placed.append((bar, row))
    return [Drawn(bar, row, len(free)) for bar, row in placed]


def _rows(laid: Iterable[Drawn]) -> Iterable[list[Drawn]]:
    rows: dict[tuple[int, int], list[Drawn]] = {}
    for item in laid:
        rows.setdefault((item.row, item.rows), []).append(item)
    return rows.values()


def _coarse(row: Sequence[Drawn], width: Seconds) -> list[Drawn]:
    done: list[Drawn] = []
    block: list[Drawn] = []
    for item in row:
        whole = item.bar.end - item.bar.start >= width
        if block and (whole or item.bar.end - block[0].bar.start > width):
            done.append(_merged(block))
            block = []
        block.append(item)
    return [*done, _merged(block)] if block else done


def _merged(block: Sequence[Drawn]) -> Drawn:
    if len(block) == 1:
        return block[0]
    share: dict[tuple[TrialId | None, str], Seconds] = {}
    for item in block:
        key = item.bar.trial, item.bar.kind
        share[key] = share.get(key, 0.0) + item.bar.end - item.bar.start
    trial, kind = max(share, key=lambda key: share[key])
    first = block[0]
    end = min(block[-1].bar.end, first.bar.start + sum(share.values()))
    return Drawn(Bar(first.bar.slot, first.bar.start, end, trial, kind), first.row, first.rows, len(block))
