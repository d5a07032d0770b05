"""How many lanes of a slot to train in one fused step, by measured steps; which are fused now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from math import inf
from statistics import fmean
from weakref import WeakKeyDictionary, WeakSet

from shoal.core.trial import Seconds
from shoal.profile.pace import FUSED
from shoal.train.fuse.fused import Fused
from shoal.train.fuse.gauge import Gauge
from shoal.train.fuse.graph import graph_key
from shoal.train.fuse.optimizers import formula_key
from shoal.train.lane.blame import blaming, no_room
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import Meter
from shoal.train.recipe.unit import OutOfMemory
from shoal.train.slot.context import SlotContext
from shoal.train.slot.passes import BatchGroup, Pass
from shoal.train.stream.stream import Batches


class Fusion:
    """Divides the lanes of a slot into groups of the same batches, and says how many to fuse.

    `paced`: nothing is timed, and all lanes of a group are fused.
    """

    def __init__(self, meter: Meter, paced: bool) -> None:
        self._meter = meter
        self._paced = paced
        self._graphs: WeakKeyDictionary[TrainingLane, str | None] = WeakKeyDictionary()
        self._reported: set[tuple[str, str]] = set()  # (signature, name of a figure)
        self.gauge = Gauge()

    def groups(self, passes: Sequence[Pass], fuse: bool) -> list[BatchGroup]:
        """The groups of lanes that see the same chunks: by batch size and, to fuse, by graph."""
        groups: dict[tuple[int, str | None], BatchGroup] = {}
        may_fuse = fuse and len(passes) > 1
        for each in passes:
            size = each.lane.settings.batch_size
            graph = None
            if may_fuse:
                graph = self.graph(each.lane)
            key = (size, graph)
            if key not in groups:
                groups[key] = BatchGroup([], Batches(size), graph)
            groups[key].passes.append(each)

        for group in groups.values():
            if group.graph is not None:
                # side by side whose optimizers have one formula, for these step together
                formulas = {each: repr(formula_key(each.lane.optimizer)) for each in group.passes}
                group.passes.sort(key=formulas.__getitem__)
                group.mix = " ".join(formulas[each] for each in group.passes)
                self._report(group, group.graph)
            elif may_fuse:
                for each in group.passes:
                    self.note_unfusable(each.lane)
        return list(groups.values())

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

    def trying(self, group: BatchGroup, left: float = inf) -> tuple[int, int] | None:
        """The number of lanes whose fused step is to be timed next, and how many such steps.

        None if enough is known. `left`: steps that each lane has still to take; nothing is tried
        for a few of them.
        """
        graph = self._fusable(group)
        if graph is None or self._paced:
            return None
        width = self.gauge.wants(graph, group.at_once, group.mix, left)
        if width is None:
            return None
        return width, self.gauge.missing(graph, width, group.mix)

    def width(self, group: BatchGroup) -> int:
        """How many lanes are to be fused in one step."""
        graph = self._fusable(group)
        if graph is None:
            return 1
        choose = self.gauge.choose
        if self._paced:
            choose = self.gauge.room
        return choose(graph, group.at_once)

    def unmeasured(self, group: BatchGroup) -> bool:
        """Whether the time of a step alone is unknown for any of the lanes.

        Fused steps are compared with those times.
        """
        if self._paced:
            return False
        signatures = [each.lane.signature for each in group.passes]
        return any(self._meter.step(signature) is None for signature in signatures)

    def timed(self, group: BatchGroup, width: int, took: Iterable[Sequence[Seconds]]) -> None:
        """Take the times of steps at this width: by lane or stack, the seconds of each step.

        The mean of the least seconds of each counts, since optimizers cost unequally.
        """
        assert group.graph is not None, "only lanes that may be fused are timed"
        least = [accumulate(each, min) for each in took]

        for steps in zip(*least, strict=False):
            new = self.gauge.took(group.graph, width, fmean(steps), group.mix)
            if new and width > 1:
                # a round compares widths, so that any ratio may differ now: all are reported anew
                for measured_width in self.gauge.ratios(group.graph):
                    for signature in _signatures(group):
                        self._reported.discard((signature, f"{FUSED}{measured_width}"))
                self._report(group, group.graph)

    def give_up(self, group: BatchGroup, error: BaseException, lanes: int) -> None:
        """Never again fuse such lanes; if only memory was short, not so many of them."""
        if group.graph is None:
            return
        if _is_short_of_memory(error):
            self.gauge.crowded(group.graph, lanes)
        else:
            self.gauge.never(group.graph, f"{type(error).__name__}: {error}")
            self._report(group, group.graph)

    def _fusable(self, group: BatchGroup) -> str | None:
        """The key of the group's graph; None if its lanes cannot be fused."""
        if group.graph is None or self.gauge.why(group.graph) is not None:
            return None
        return group.graph

    # -- figures for the meter -----------------------------------------------------------------

    def _report(self, group: BatchGroup, graph: str) -> None:
        """Report to the meter what is known of the graph and was not reported before."""
        for signature in _signatures(group):
            figures: dict[str, float] = {}
            step = self._meter.step(signature)
            if step:  # seconds of fused steps by width, in terms of the signature's step alone
                for width, ratio in self.gauge.ratios(graph).items():
                    figures[f"{FUSED}{width}"] = width * ratio * step
            if self.gauge.why(graph) is not None:
                figures["unfusable"] = 1.0
            news = {
                name: figure
                for name, figure in figures.items()
                if (signature, name) not in self._reported
            }
            self._reported.update((signature, name) for name in news)
            if news:
                self._meter.tell(signature, **news)


class LaneStacks:
    """The lanes of one slot that are fused now, and with which others.

    Fused lanes share a stack: one piece of memory for the parameters of all. `fusion` learns which
    lanes can never be fused.
    """

    def __init__(self, context: SlotContext, fusion: Fusion) -> None:
        self._context = context
        self._fusion = fusion
        self._stacks: dict[TrainingLane, Fused] = {}
        # lanes that trained on a batch here
        self._trained: WeakSet[TrainingLane] = WeakSet()

    def trained(self, passes: Sequence[Pass]) -> None:
        """Note that these lanes have trained on a batch here."""
        self._trained.update(each.lane for each in passes)

    def of(self, lane: TrainingLane) -> Fused | None:
        """The stack that the lane is fused in; None if it owns its memory."""
        return self._stacks.get(lane)

    def release(self, lane: TrainingLane) -> None:
        """Give the lane, and those fused with it, memory of their own again.

        Raises:
            OutOfMemory: there is no room for that.
        """
        fused = self._stacks.get(lane)
        if fused is None:
            return
        self._forget(fused)
        with blaming():
            fused.split()

    def forsake(self, lanes: Collection[TrainingLane]) -> None:
        """Take lanes that are given up out of their stacks; they need no memory of their own."""
        for lane in lanes:
            fused = self._stacks.get(lane)
            if fused is not None and all(member in lanes for member in fused.lanes):
                self._forget(fused)
                for member in fused.lanes:
                    member.metrics.pending = None  # it held the others' memory
                continue
            # Without room the other members go on in the memory that they share.
            with suppress(OutOfMemory):
                self.release(lane)

    def _forget(self, fused: Fused) -> None:
        for member in fused.lanes:
            del self._stacks[member]

    def join(self, group: BatchGroup, passes: Sequence[Pass]) -> Fused | None:
        """Fuse these lanes; None if they cannot be fused."""
        lanes = tuple(each.lane for each in passes)
        present = self._stacks.get(lanes[0])
        if present is not None and present.lanes == lanes:
            return present

        meter = self._context.meter
        begin = meter.now()
        for lane in lanes:
            self.release(lane)
        try:
            fused = Fused(lanes)
        except Exception as error:  # noqa: BLE001 whatever it is: these lanes train one by one
            if self.settled(passes):
                self._fusion.give_up(group, error, len(passes))
            return None
        self._stacks.update(dict.fromkeys(lanes, fused))
        took = meter.now() - begin
        for signature in {lane.signature for lane in lanes}:
            meter.record(signature, "repack", took)
        return fused

    def settled(self, passes: Sequence[Pass]) -> bool:
        """Whether all these models have trained here: some get attributes with the first batch."""
        return all(each.lane in self._trained for each in passes)


def _signatures(group: BatchGroup) -> set[str]:
    return {each.lane.signature for each in group.passes}


def _is_short_of_memory(error: BaseException | None) -> bool:
    """Whether the error, or one that led to it, is a lack of memory."""
    while error is not None:
        if no_room(error):
            return True
        error = error.__cause__
    return False
