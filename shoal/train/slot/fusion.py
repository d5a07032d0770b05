"""Lanes that take the same batches, and how many of them are fused in one step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import ceil, inf
from statistics import fmean
from weakref import WeakKeyDictionary

from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId
from shoal.core.visits import EPS
from shoal.profile.pace import FUSED
from shoal.train.fuse.gauge import Gauge, evenly
from shoal.train.fuse.graph import graph_key
from shoal.train.fuse.optimizers import formula_key
from shoal.train.lane.blame import Spent, no_room
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import Meter
from shoal.train.recipe.unit import Part, TrialError, Unit
from shoal.train.stream.stream import Batches


@dataclass(eq=False, slots=True)
class Pass:
    """A lane's visit while it is made."""

    unit: Unit
    lane: TrainingLane
    spent: Spent
    # sums of the values that its steps noted
    totals: dict[str, Sum] = field(default_factory=dict)
    # for chunks of data
    waited: Seconds = 0.0
    failed: bool = False
    done: bool = False
    # after how many of its batches to evaluate within it, and which part of it these are
    stops: dict[int, float] = field(default_factory=dict)
    # whether to evaluate at its end
    evaluate: bool = False

    @classmethod
    def begun(cls, unit: Unit, lane: TrainingLane, spent: Spent, samples: int) -> Pass:
        """The visit of so many samples, about to be made."""
        each = cls(unit, lane, spent, evaluate=unit.evaluate)
        steps = _steps_in(samples, lane)
        for step, part in _evaluated(unit, lane, samples).items():
            if step < steps:
                each.stops[step * lane.settings.accumulate_grad_batches] = part
            else:
                each.evaluate = True
        return each

    @property
    def trial(self) -> TrialId:
        """The trial whose visit it is."""
        return self.unit.trial.id


News = tuple[Pass, Part | TrialError]


@dataclass(eq=False, slots=True)
class BatchGroup:
    """A crew: lanes that take the same batches.

    `graph`: the key of the graph that all of them have; None if they may not be fused. `mix`:
    which optimizers they have, in the lanes' order.
    """

    passes: list[Pass]
    cut: Batches
    graph: str | None
    mix: str = ""
    made: int = 0  # batches of the pass so far
    reported: Seconds = 0.0  # when the crew last reported, by the clock
    most: float = inf  # of its lanes, by the memory that a step of each takes

    @property
    def at_once(self) -> int:
        """The lanes that may be in one step, where all are parted evenly: those that have room."""
        return evenly(len(self.passes), self.most)


class Fusion:
    """Divides the lanes of a slot into crews, and says how many of a crew to fuse.

    `paced`: nothing is timed, and all lanes of a crew are fused.
    """

    def __init__(self, meter: Meter, paced: bool) -> None:
        self._meter = meter
        self._paced = paced
        self._graphs: WeakKeyDictionary[TrainingLane, str | None] = WeakKeyDictionary()
        self._reported: set[tuple[str, str]] = set()  # (signature, name of a figure)
        self.gauge = Gauge()

    def of(self, passes: Sequence[Pass], fuse: bool) -> list[BatchGroup]:
        """The crews of lanes that see the same chunks: by batch size and, to fuse, by graph."""
        crews: dict[tuple[int, str | None], BatchGroup] = {}
        may_fuse = fuse and len(passes) > 1
        for each in passes:
            size = each.lane.settings.batch_size
            graph = None
            if may_fuse:
                graph = self.graph(each.lane)
            key = (size, graph)
            if key not in crews:
                crews[key] = BatchGroup([], Batches(size), graph)
            crews[key].passes.append(each)

        for crew in crews.values():
            if crew.graph is not None:
                _sort(crew)
                self._report(crew, crew.graph)
            elif may_fuse:
                for each in crew.passes:
                    self.note_unfusable(each.lane)
        return list(crews.values())

    def note_unfusable(self, lane: TrainingLane) -> None:
        """Report once that such lanes cannot be fused, if they have no graph.

        Else they would be taken to gain by company for ever, though nothing can be measured of it.
        """
        report = (lane.signature, "unfusable")
        if self._paced or report in self._reported:
            return
        if self.graph(lane) is None:
            self._reported.add(report)
            self._meter.tell(lane.signature, unfusable=1.0)

    def graph(self, lane: TrainingLane) -> str | None:
        """The key of the lane's graph; None if it has no such key.

        The key is found once: a model whose graph changes as it trains cannot be fused.
        """
        if lane not in self._graphs:
            try:
                self._graphs[lane] = graph_key(lane)
            except Exception:  # noqa: BLE001 the model's attributes may be of any kind
                self._graphs[lane] = None
        return self._graphs[lane]

    # -- widths --------------------------------------------------------------------------------

    def trying(self, crew: BatchGroup, left: float = inf) -> tuple[int, int] | None:
        """The number of lanes whose fused step is to be timed next, and how many such steps.

        None if enough is known. `left`: steps that each lane has still to take; nothing is tried
        for a few of them.
        """
        graph = self._fusable(crew)
        if graph is None or self._paced:
            return None
        width = self.gauge.wants(graph, crew.at_once, crew.mix, left)
        if width is None:
            return None
        return width, self.gauge.missing(graph, width, crew.mix)

    def width(self, crew: BatchGroup) -> int:
        """How many lanes are to be fused in one step."""
        graph = self._fusable(crew)
        if graph is None:
            return 1
        choose = self.gauge.choose
        if self._paced:
            choose = self.gauge.room
        return choose(graph, crew.at_once)

    def unmeasured(self, crew: BatchGroup) -> bool:
        """Whether the time of a step alone is unknown for any of the lanes.

        Fused steps are compared with those times.
        """
        if self._paced:
            return False
        signatures = [each.lane.signature for each in crew.passes]
        return any(self._meter.step(signature) is None for signature in signatures)

    def timed(self, crew: BatchGroup, width: int, took: Iterable[Sequence[Seconds]]) -> None:
        """Steps at this width took so long: by lane or stack, the seconds of each of its steps.

        The mean of the least seconds of each counts, since optimizers cost unequally.
        """
        assert crew.graph is not None, "only lanes that may be fused are timed"
        least = [accumulate(each, min) for each in took]

        for steps in zip(*least, strict=False):
            new = self.gauge.took(crew.graph, width, fmean(steps), crew.mix)
            if new and width > 1:
                self._forget_reports(crew, crew.graph)
                self._report(crew, crew.graph)

    def give_up(self, crew: BatchGroup, error: BaseException, lanes: int) -> None:
        """Never again fuse such lanes; if only memory was short, not so many of them."""
        if crew.graph is None:
            return
        if _is_short_of_memory(error):
            self.gauge.crowded(crew.graph, lanes)
        else:
            self.gauge.never(crew.graph, f"{type(error).__name__}: {error}")
            self._report(crew, crew.graph)

    def _fusable(self, crew: BatchGroup) -> str | None:
        """The key of the crew's graph; None if its lanes cannot be fused."""
        if crew.graph is None or self.gauge.why(crew.graph) is not None:
            return None
        return crew.graph

    # -- figures for the meter -----------------------------------------------------------------

    def _report(self, crew: BatchGroup, graph: str) -> None:
        """Report to the meter what is known of the graph and was not reported before."""
        for signature in _signatures(crew):
            news: dict[str, float] = {}
            for name, figure in self._figures(signature, graph).items():
                if (signature, name) not in self._reported:
                    self._reported.add((signature, name))
                    news[name] = figure
            if news:
                self._meter.tell(signature, **news)

    def _figures(self, signature: str, graph: str) -> dict[str, float]:
        """Seconds of fused steps by width, in terms of the signature's step alone."""
        figures: dict[str, float] = {}
        step = self._meter.step(signature)
        if step:
            for width, ratio in self.gauge.ratios(graph).items():
                figures[f"{FUSED}{width}"] = width * ratio * step
        if self.gauge.why(graph) is not None:
            figures["unfusable"] = 1.0
        return figures

    def _forget_reports(self, crew: BatchGroup, graph: str) -> None:
        """Let all ratios be reported anew: a round compares widths, so that any may differ."""
        for width in self.gauge.ratios(graph):
            for signature in _signatures(crew):
                self._reported.discard((signature, f"{FUSED}{width}"))


def _sort(crew: BatchGroup) -> None:
    """Put lanes side by side whose optimizers have one formula, for these step together."""
    formulas = {each: repr(formula_key(each.lane.optimizer)) for each in crew.passes}
    crew.passes.sort(key=formulas.__getitem__)
    crew.mix = " ".join(formulas[each] for each in crew.passes)


def _signatures(crew: BatchGroup) -> set[str]:
    return {each.lane.signature for each in crew.passes}


def _is_short_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or one that led to it, is a lack of memory."""
    while error is not None:
        if no_room(error):
            return True
        error = error.__cause__
    return False


def steps_left(passes: Sequence[Pass]) -> float:
    """Steps that each lane has still to take, this visit's included; the mean over the lanes."""
    return fmean([_steps_of(each) for each in passes])


def _steps_of(each: Pass) -> float:
    """Steps that the lane has still to take."""
    lane = each.lane
    made = sum(visit.samples for visit in lane.visits)
    samples = each.unit.trial.samples - made
    return samples / lane.settings.batch_size


def _steps_in(samples: int, lane: TrainingLane) -> int:
    """Optimizer steps in a pass over so many samples."""
    settings = lane.settings
    batches = samples // settings.batch_size
    if not settings.drop_last:
        batches = -(-samples // settings.batch_size)
    return -(-batches // settings.accumulate_grad_batches)


def _evaluated(unit: Unit, lane: TrainingLane, samples: int) -> dict[int, float]:
    """The steps of the unit's pass after which to evaluate, and which part of it they make.

    A part of the pass is made with the first step that reaches it.
    """
    settings = lane.settings
    size = settings.batch_size * settings.accumulate_grad_batches
    found = {ceil(part * samples / size - EPS): part for part in unit.within}
    if unit.steps:
        before = sum(_steps_in(int(visit.samples), lane) for visit in unit.visits)
        first = unit.steps - before % unit.steps
        for step in range(first, _steps_in(samples, lane) + 1, unit.steps):
            found[step] = min(1.0, step * size / samples)
    return found


def parted(passes: Sequence[Pass], width: int) -> list[list[Pass]]:
    """The passes in order, in equal parts of at most `width`; for width 1 all in one part."""
    count = len(passes)
    if width <= 1:
        return [list(passes)]

    parts = -(-count // width)
    cuts = [count * number // parts for number in range(parts + 1)]
    return [list(passes[start:stop]) for start, stop in pairwise(cuts)]
