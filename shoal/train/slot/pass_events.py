"""The reports and errors of lanes at work, kept until the slot's loop hands them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from traceback import clear_frames
from typing import Protocol

from shoal.core.trial import Seconds
from shoal.train.lane.blame import blaming
from shoal.train.lane.training_metrics import add_sums
from shoal.train.recipe.unit import OutOfMemory, Part, TrialError
from shoal.train.slot.context import SlotContext
from shoal.train.slot.fusion import LaneStacks
from shoal.train.slot.passes import BatchGroup, News, Pass

PART_SECONDS = 1.0  # a chunk that takes longer is reported in pieces


class Work(Protocol):
    """Something that lanes of a slot have to do, done in pieces of about `PART_SECONDS`."""

    def advance(self) -> bool:
        """Do the next piece, and note what is to be reported; returns whether anything is left."""
        ...


class PassEvents:
    """The reports and errors of lanes at work, in the order in which they came.

    Whatever trains the lanes notes them here, however deep it lies in the work. Only the slot's
    loop hands them out.
    """

    def __init__(self, context: SlotContext, stacks: LaneStacks) -> None:
        self._stacks = stacks
        self._pace = context.setup.pace
        self._events: list[News] = []

    def take(self) -> list[News]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def note(self, lane_pass: Pass, event: Part | TrialError) -> None:
        """Note one event of a lane."""
        self._events.append((lane_pass, event))

    def fail(self, passes: Iterable[Pass], error: TrialError) -> None:
        """End these passes with the error.

        Raises:
            OutOfMemory: that is the error; all visits of the slot are then void.
        """
        if isinstance(error, OutOfMemory):
            raise error
        for each in passes:
            each.failed = True
            self.note(each, error)

    def report(self, passes: Iterable[Pass]) -> None:
        """Note what these lanes have done since their last reports; a lane may fail at that."""
        for each in passes:
            try:
                # On a GPU this waits for the steps.
                with each.spent.on("train"), blaming():
                    samples, values = each.lane.taken()
            except TrialError as error:
                self._stacks.release(each.lane)
                self.fail([each], error)
                continue

            if self._pace is not None:
                each.spent.add("train", self._pace(each.unit.trial, samples))
            if samples:
                add_sums(each.totals, values)
                self.note(each, Part(samples, values, each.spent.take()))

    def report_group(self, group: BatchGroup, at_once: bool) -> None:
        """Note what the group's lanes have done, unless they reported within `PART_SECONDS`.

        `at_once`: whenever that was.
        """
        if at_once or perf_counter() >= group.reported + PART_SECONDS:
            group.reported = perf_counter()
            self.report(group.passes)

    def spend(self, passes: Sequence[Pass], name: str, seconds: Seconds) -> None:
        """Add to each lane its share of the seconds that they spent together."""
        if self._pace is None:
            for each in passes:
                each.spent.add(name, seconds / len(passes))


def let_go(error: BaseException | None) -> None:
    """Free the local variables of the functions through which the error came.

    Most of that memory is activations. The error itself stays.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
