"""The visits that lanes of a slot make: passes over a shard, and which take the same batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from statistics import fmean

from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId
from shoal.core.visits import EPS
from shoal.train.fuse.gauge import evenly
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.unit import Part, TrialError, Unit
from shoal.train.slot.context import Stopwatch
from shoal.train.stream.stream import Batches


@dataclass(eq=False, slots=True)
class Pass:
    """A lane's visit while it is made."""

    unit: Unit
    lane: TrainingLane
    spent: Stopwatch
    # sums of the values that its steps noted
    totals: dict[str, Sum] = field(default_factory=dict)
    # for chunks of data
    waited: Seconds = 0.0
    failed: bool = False
    # after how many of its batches to evaluate within it, and which part of it these are
    stops: dict[int, float] = field(default_factory=dict)
    # whether to evaluate at its end
    evaluate: bool = False

    @classmethod
    def begun(cls, unit: Unit, lane: TrainingLane, spent: Stopwatch, samples: int) -> Pass:
        """The pass of a visit of so many samples, about to be made."""
        lane_pass = cls(unit, lane, spent, evaluate=unit.evaluate)
        steps = _steps_in(samples, lane)
        for step, part in _evaluations_within(unit, lane, samples).items():
            if step < steps:
                lane_pass.stops[step * lane.settings.accumulate_grad_batches] = part
            else:
                lane_pass.evaluate = True
        return lane_pass

    @property
    def trial(self) -> TrialId:
        """The trial whose visit it is."""
        return self.unit.trial.id


News = tuple[Pass, Part | TrialError]


@dataclass(eq=False, slots=True)
class BatchGroup:
    """Lanes that take the same batches.

    `graph`: the key of the graph that all of them have; None if they may not be fused. `mix`:
    which optimizers they have, in the lanes' order.
    """

    passes: list[Pass]
    cut: Batches
    graph: str | None
    mix: str = ""
    batch_count: int = 0  # batches of the pass so far
    reported: Seconds = 0.0  # when its lanes last reported, by the clock
    most: float = inf  # of its lanes, by the memory that a step of each takes

    @property
    def at_once(self) -> int:
        """The lanes that may be in one step, where all are parted evenly: those that have room."""
        return evenly(len(self.passes), self.most)


def steps_left(passes: Sequence[Pass]) -> float:
    """Steps that each lane has still to take, this visit's included; the mean over the lanes."""
    steps = []
    for each in passes:
        samples = sum(visit.samples for visit in each.lane.visits)
        steps.append((each.unit.trial.samples - samples) / each.lane.settings.batch_size)
    return fmean(steps)


def _steps_in(samples: int, lane: TrainingLane) -> int:
    """Optimizer steps in a pass over so many samples."""
    settings = lane.settings
    batches = samples // settings.batch_size
    if not settings.drop_last:
        batches = -(-samples // settings.batch_size)
    return -(-batches // settings.accumulate_grad_batches)


def _evaluations_within(unit: Unit, lane: TrainingLane, samples: int) -> dict[int, float]:
    """The steps of the unit's pass after which to evaluate, and which part of the pass they make.

    A part of the pass is made with the first step that reaches it.
    """
    settings = lane.settings
    size = settings.batch_size * settings.accumulate_grad_batches
    part_by_step = {ceil(part * samples / size - EPS): part for part in unit.within}
    if unit.steps:
        steps_before = sum(_steps_in(int(visit.samples), lane) for visit in unit.visits)
        first = unit.steps - steps_before % unit.steps
        for step in range(first, _steps_in(samples, lane) + 1, unit.steps):
            part_by_step[step] = min(1.0, step * size / samples)
    return part_by_step


def split_evenly(passes: Sequence[Pass], width: int) -> list[list[Pass]]:
    """The passes in order, in equal parts of at most `width`; for width 1 all in one part."""
    count = len(passes)
    if width <= 1:
        return [list(passes)]

    parts = -(-count // width)
    cuts = [count * number // parts for number in range(parts + 1)]
    return [list(passes[start:stop]) for start, stop in pairwise(cuts)]
