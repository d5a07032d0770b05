"""Unlike lanes that train in one step: their losses are differentiated in one backward pass.

Source: Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 3.1: packed models are differentiated as one, whatever they are, and each
keeps its optimizer. The gradient of a sum of losses that have no parameter in common is each
lane's own, to the bit: a lane's operations are differentiated in the order that they have alone.

Forward passes run one after the other, each under its lane's random states, and so do optimizers'
steps. Only what is in the backward pass has no lane: code of a recipe's there (a hook, a function
with a backward of its own, a forward pass computed again) may draw no random numbers, for they
would not be the lane's. It is looked at after each step. Where it happens, or where the backward
pass raises, the units are void, and these kinds of lanes are never summed again.

Whether it is quicker than turns is measured, as the width of fused steps is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from time import perf_counter

import torch
from torch import Tensor

from shoal.core.trial import Seconds
from shoal.train.fuse.gauge import Gauge, evenly
from shoal.train.lane.blame import blaming
from shoal.train.lane.measure import Meter
from shoal.train.recipe.unit import OutOfMemory, PackRefused, TrialError
from shoal.train.rng import global_state
from shoal.train.slot import pass_events
from shoal.train.slot.context import SlotContext
from shoal.train.slot.fusion import LaneStacks
from shoal.train.slot.pass_events import PassEvents, let_go
from shoal.train.slot.passes import Pass
from shoal.train.stream.stream import Batch


class Summation:
    """Which lanes are summed, by measured steps: so many in one step, or 1 where turns are quicker.

    What was measured holds for lanes of the same signatures, however many there are of each.
    """

    def __init__(self, meter: Meter, paced: bool) -> None:
        self._meter = meter
        self._paced = paced  # nothing is timed, and lanes take turns
        self.gauge = Gauge()
        # lanes in one step, by the memory that a step of each takes
        self.most: float = inf

    def wants(self, passes: Sequence[Pass], left: float) -> int | None:
        """The number of lanes whose step in one is to be timed next; None: enough is known.

        `left`: steps that each lane has still to take; nothing is tried for a few of them.
        """
        if not self._may_be_summed(passes):
            return None
        return self.gauge.wants(kind_of(passes), self._at_once(passes), left=left)

    def missing(self, passes: Sequence[Pass], width: int) -> int:
        """How many such steps are still to be timed."""
        return self.gauge.missing(kind_of(passes), width)

    def width(self, passes: Sequence[Pass]) -> int:
        """How many lanes are to be in one step."""
        if not self._may_be_summed(passes):
            return 1
        return self.gauge.choose(kind_of(passes), self._at_once(passes))

    def timed(self, passes: Sequence[Pass], width: int, took: Sequence[Sequence[Seconds]]) -> None:
        """Take the times of steps at this width: by lane or sum of lanes, the seconds of each."""
        kind = kind_of(passes)
        least = [accumulate(each, min) for each in took]
        for steps in zip(*least, strict=False):
            new = self.gauge.took(kind, width, sum(steps) / len(passes) * width)
            if new and width > 1:
                self._report(passes, kind)

    def _report(self, passes: Sequence[Pass], kind: str) -> None:
        """Tell the meter what a lane's step takes in a sum over what it takes alone, at best.

        That is 1 where lanes take turns because no sum is quicker.
        """
        ratio = 1.0
        if self.gauge.choose(kind, len(passes)) > 1:
            ratio = min(self.gauge.ratios(kind).values())
        for signature in {each.lane.signature for each in passes}:
            self._meter.tell(signature, summed=ratio)

    def _at_once(self, passes: Sequence[Pass]) -> int:
        """The lanes that have room in one step, where all are parted evenly."""
        return evenly(len(passes), self.most)

    def _may_be_summed(self, passes: Sequence[Pass]) -> bool:
        """Whether the lanes may be summed: each was measured alone, and Shoal takes their steps."""
        if self._paced or len(passes) < 2:
            return False
        return all(
            not each.lane.hooks.steps_itself and self._meter.step(each.lane.signature) is not None
            for each in passes
        )


def kind_of(passes: Sequence[Pass]) -> str:
    """The kind of these lanes: equal for lanes of the same signatures."""
    return " ".join(sorted({each.lane.signature for each in passes}))


class SummedWork:
    """Steps of several lanes in one. What a lane's own code raises ends that lane only.

    `work`: the batches of each lane; a lane with fewer leaves the sum before. `kind`: of the lanes
    that these are a part of. `took`: where the seconds of steps go; None: take no times.
    """

    def __init__(
        self,
        context: SlotContext,
        stacks: LaneStacks,
        events: PassEvents,
        summation: Summation,
        work: Mapping[Pass, Sequence[Batch]],
        kind: str,
        took: list[Seconds] | None,
    ) -> None:
        self._context = context
        self._stacks = stacks
        self._events = events
        self._summation = summation
        self._meter = context.meter
        self._lanes = len(work)
        self._left = {each: deque(batches) for each, batches in work.items()}
        self._kind = kind
        self._took = took

    def advance(self) -> bool:
        """Take steps for about `PART_SECONDS`, and report; returns whether any are left.

        Raises:
            PackRefused: they cannot be differentiated in one; all visits are void.
        """
        self._context.set_threads()
        for each in self._left:
            self._stacks.release(each.lane)
        if not any(self._left.values()):
            return False
        try:
            begin = perf_counter()
            going = list(self._left)
            for each, error in self._steps():
                del self._left[each]
                self._events.fail([each], error)
            self._events.spend(going, "train", perf_counter() - begin)
            self._events.report(self._left)
        except OutOfMemory as error:
            let_go(error)
            self._summation.gauge.crowded(self._kind, self._lanes)
            raise PackRefused(f"no room for {self._lanes} trials in one step") from None
        except _NotInOne as error:
            let_go(error)
            self._summation.gauge.never(self._kind, str(error))
            raise PackRefused(str(error)) from None
        self._left = {each: more for each, more in self._left.items() if not each.failed}
        return any(self._left.values())

    def _steps(self) -> list[tuple[Pass, TrialError]]:
        """Take steps for about `PART_SECONDS`, each to its end; returns what lanes raised.

        Between two backward passes each lane makes its optimizer's step and the next forward pass
        without leaving its random states.
        """
        left, took = self._left, self._took
        errors: list[tuple[Pass, TrialError]] = []
        going = list(left)
        samples: dict[Pass, int] = {}  # of the batch whose gradient was added
        due = perf_counter() + pass_events.PART_SECONDS
        over = False  # no lane is to begin another step
        marks = [] if took is None else [self._meter.now()]
        while True:
            losses: list[Tensor] = []
            for each in list(going):
                try:
                    self._advance(each, samples, None if over else left[each], losses)
                except OutOfMemory:
                    raise
                except TrialError as error:
                    going.remove(each)
                    errors.append((each, error))
            if losses:
                _differentiate(losses, self._context.device)
            if took is not None:
                marks.append(self._meter.now())
            if over:
                break
            over = perf_counter() >= due or not any(left[each] for each in going)
        if took is not None:
            took += _of_steps(marks)
        return errors

    def _advance(
        self,
        lane_pass: Pass,
        samples: dict[Pass, int],
        left: deque[Batch] | None,
        losses: list[Tensor],
    ) -> None:
        """Take the lane's optimizer step on the batch before, and its loss on the next, if any.

        Raises:
            TrialError: its code raised.
        """
        lane = lane_pass.lane
        self._context.turn_of(lane_pass.trial)
        with blaming(("train", lane.signature)), lane.rng:
            if lane_pass in samples:
                lane.complete(samples.pop(lane_pass))
            if not left:
                return
            batch, count = left.popleft()
            loss = lane.loss(batch, count)
            samples[lane_pass] = count
            if loss.requires_grad and loss.numel() == 1:
                losses.append(loss)
            else:
                loss.backward()  # type: ignore[no-untyped-call]  # says what is wrong


def _of_steps(marks: Sequence[Seconds]) -> list[Seconds]:
    """The seconds of each step, by when the round began and when each of its turns was over.

    A turn makes the optimizers' steps of the one before. The first makes none, the last only those.
    """
    if len(marks) == 3:  # one step
        return [marks[2] - marks[0]]
    return [end - start for start, end in pairwise(marks[1:-1])]


class _NotInOne(Exception):  # noqa: N818
    """Raised where losses cannot be differentiated in one backward pass."""


def _differentiate(losses: Sequence[Tensor], device: torch.device) -> None:
    """Add the gradient of the sum of the losses.

    Raises:
        OutOfMemory: memory ran out.
        _NotInOne: the backward pass raised, or drew random numbers.
    """
    before = global_state(device)
    try:
        with blaming("summed"):
            torch.autograd.backward(losses)
    except OutOfMemory:
        raise
    except TrialError as error:
        raise _NotInOne(f"their backward pass raised {error}") from error
    if global_state(device) != before:
        raise _NotInOne("their backward pass draws random numbers")
