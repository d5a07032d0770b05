"""Lanes that take the same batches, and by how many of them are fused in one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import fmean
from weakref import WeakKeyDictionary

from shoal.core.event import Sum
from shoal.core.trial import Seconds
from shoal.train.account import Spent, no_room
from shoal.train.batched import formula
from shoal.train.batches import Batches
from shoal.train.gauge import Gauge
from shoal.train.graph import graph_key
from shoal.train.lane import Lane
from shoal.train.measure import Meter
from shoal.train.unit import Part, TrialError, Unit


@dataclass(eq=False, slots=True)
class Pass:
    """A lane's visit under way."""

    unit: Unit
    lane: Lane
    spent: Spent
    totals: dict[str, Sum] = field(default_factory=dict)  # of the values noted
    waited: Seconds = 0.0  # for chunks
    failed: bool = False
    done: bool = False


News = tuple[Pass, Part | TrialError]


@dataclass(eq=False, slots=True)
class Crew:
    """Lanes that take the same batches. `graph`: their graph key, where they may be fused; `mix`: which optimizers they have."""

    passes: list[Pass]
    cut: Batches
    graph: str | None
    mix: str = ""
    reported: Seconds = 0.0  # when, by the clock


class Crews:
    """The crews of a slot. `paced`: nothing is timed; all of a crew are fused."""

    def __init__(self, meter: Meter, paced: bool) -> None:
        self._meter, self._paced = meter, paced
        self._graphs: WeakKeyDictionary[Lane, str | None] = WeakKeyDictionary()
        self._told: set[tuple[str, str]] = set()  # signatures, and figures that they were told
        self.gauge = Gauge()

    def of(self, passes: Sequence[Pass], fuse: bool) -> list[Crew]:
        """Of lanes that see the same chunks: by batch size, and by graph where they may be fused."""
        crews: dict[tuple[object, ...], Crew] = {}
        for each in passes:
            size = each.lane.settings.batch_size
            graph = self.graph(each.lane) if fuse and len(passes) > 1 else None
            crews.setdefault((size, graph), Crew([], Batches(size), graph)).passes.append(each)
        for crew in crews.values():
            if crew.graph is not None:  # optimizers of one formula step together where they follow each other
                formulas = {each: repr(formula(each.lane.optimizer)) for each in crew.passes}
                crew.passes.sort(key=formulas.__getitem__)
                crew.mix = " ".join(formulas[each] for each in crew.passes)
                self._tell(crew, crew.graph)
        return list(crews.values())

    def graph(self, lane: Lane) -> str | None:
        """The lane's graph key, found once: a model whose graph changes as it trains cannot be fused. None: it has none."""
        if lane not in self._graphs:
            try:
                self._graphs[lane] = graph_key(lane)
            except Exception:  # noqa: BLE001 the model's attributes may be of any kind
                self._graphs[lane] = None
        return self._graphs[lane]

    def trying(self, crew: Crew) -> tuple[int, int] | None:
        """The width whose time is to be found out, and by how many steps; None: enough is known."""
        if crew.graph is None or self._paced or self.gauge.why(crew.graph) is not None:
            return None
        width = self.gauge.wants(crew.graph, len(crew.passes), crew.mix)
        return None if width is None else (width, self.gauge.missing(crew.graph, width, crew.mix))

    def width(self, crew: Crew) -> int:
        """How many are to be fused in one."""
        if crew.graph is None or self.gauge.why(crew.graph) is not None:
            return 1
        lanes = len(crew.passes)
        return self.gauge.room(crew.graph, lanes) if self._paced else self.gauge.choose(crew.graph, lanes)

    def timed(self, crew: Crew, width: int, took: Iterable[Sequence[Seconds]]) -> None:
        """What steps took at this width: of each that was tried, one after the other.

        The mean of each one's least counts: lanes' optimizers cost unequally.
        """
        assert crew.graph is not None, "only of lanes that may be fused"
        for steps in zip(*(accumulate(each, min) for each in took), strict=False):
            if self.gauge.took(crew.graph, width, fmean(steps), crew.mix) and width > 1:
                known = self.gauge.ratios(crew.graph)  # any may have changed: a round compares widths with each other
                self._told -= {(each.lane.signature, f"fused:{w}") for each in crew.passes for w in known}
                self._tell(crew, crew.graph)

    def unmeasured(self, crew: Crew) -> bool:
        """Whether there are lanes of which is not known what a step takes alone, by which others like them are judged."""
        return not self._paced and any(self._meter.step(each.lane.signature) is None for each in crew.passes)

    def give_up(self, crew: Crew, error: BaseException, lanes: int) -> None:
        """Never again fuse such lanes; or not so many of them, where that only took too much memory."""
        if crew.graph is not None and _short(error):
            self.gauge.crowded(crew.graph, lanes)
        elif crew.graph is not None:
            self.gauge.never(crew.graph, f"{type(error).__name__}: {error}")
            self._tell(crew, crew.graph)

    def _tell(self, crew: Crew, graph: str) -> None:
        """What is known of the graph, to each signature in terms of its own step, once."""
        for signature in {each.lane.signature for each in crew.passes}:
            step = self._meter.step(signature)
            figures = {f"fused:{w}": w * ratio * step for w, ratio in self.gauge.ratios(graph).items()} if step else {}
            figures |= {"unfusable": 1.0} if self.gauge.why(graph) is not None else {}
            news = {name: figure for name, figure in figures.items() if (signature, name) not in self._told}
            if news:
                self._told |= {(signature, name) for name in news}
                self._meter.tell(signature, **news)


def _short(error: BaseException | None) -> bool:
    """Whether it came of a lack of memory."""
    return error is not None and (no_room(error) or _short(error.__cause__))


def parted(passes: Sequence[Pass], width: int) -> list[list[Pass]]:
    """In equal parts of at most `width`, in order; one by one there is no need to part them."""
    if width <= 1:
        return [list(passes)]
    parts = -(-len(passes) // width)
    cuts = [len(passes) * i // parts for i in range(parts + 1)]
    return [list(passes[a:b]) for a, b in pairwise(cuts)]
