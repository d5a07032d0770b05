"""Passes over a shard that are one call of a `ShardRecipe`'s `train_shard`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from time import perf_counter
from typing import Any

import torch

from shoal.core.event import Sum
from shoal.core.trial import Seconds
from shoal.train.data.columns import Columns
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import Extra, Meter
from shoal.train.lane.training_metrics import add_sums
from shoal.train.recipe.shard import arrays, shard_of
from shoal.train.recipe.unit import Part, TrialError
from shoal.train.slot.context import SlotContext
from shoal.train.slot.pass_events import PassEvents
from shoal.train.slot.passes import Pass
from shoal.train.stream.stream import Batch, Batches

Chunks = Generator[Columns, None, None]


class ShardPass:
    """One pass of a trial. `waited`: the seconds that it waited for chunks."""

    def __init__(self, lane: TrainingLane, chunks: Chunks, meter: Meter) -> None:
        self._lane = lane
        self._chunks = chunks
        self._meter = meter
        self._threads = torch.get_num_threads()
        self.waited: Seconds = 0.0

    def run(self, samples: int) -> dict[str, Sum]:
        """Train the trial on the shard of so many samples; the sums of what was noted.

        Raises:
            Diverged: the loss is not finite.
            TypeError, ValueError: `train_shard` returned no sums, or drop_last leaves nothing.
            DataError: the shard cannot be read.
        """
        lane = self._lane
        lane.begin(samples)
        extra = Extra(lane, lane.device)
        with closing(self._batches()) as batches, extra, lane.rng:
            sums = shard_of(lane.model).trained(batches)
        add_sums(lane.metrics.epoch, sums)
        if not self._meter.knows_memory(lane.signature):
            self._meter.learn_memory(lane.signature, extra.bytes)
        lane.drop(samples)
        return sums

    def _batches(self) -> Generator[Columns, None, None]:
        """The batches as the user's code gets them. The time of each is taken."""
        signature = self._lane.signature
        for batch, count in self._cut():
            user_batch = arrays(batch)
            begin = perf_counter()
            yield user_batch
            self._meter.timed_elsewhere(signature, count, perf_counter() - begin)

    def _cut(self) -> Iterator[Batch]:
        """The batches with their samples."""
        settings = self._lane.settings
        cut = Batches(settings.batch_size)
        with closing(self._chunks):
            chunk = self._next()
            while chunk is not None:
                yield from cut.of(chunk)
                chunk = self._next()
        rest = cut.end()
        if rest is not None and not settings.drop_last:
            yield rest

    def _next(self) -> Any:
        """The next chunk; None at the end."""
        begin = perf_counter()
        chunk = next(self._chunks, None)
        if torch.get_num_threads() != self._threads:  # the user's data may set them
            torch.set_num_threads(self._threads)
        self.waited += perf_counter() - begin
        return chunk


class ShardWork:
    """A visit that the recipe makes by itself, in one piece. `chunks`: of its shard.

    `unfusable`: signatures of which the meter was told that such trials share no step.
    """

    def __init__(
        self,
        context: SlotContext,
        events: PassEvents,
        lane_pass: Pass,
        chunks: Chunks,
        unfusable: set[str],
    ) -> None:
        self._context = context
        self._events = events
        self._lane_pass = lane_pass
        self._chunks = chunks
        self._unfusable = unfusable

    def advance(self) -> bool:
        """Let the recipe make the visit.

        Raises:
            OutOfMemory: of the lane; all visits of the slot are void.
            DataError: the study must pause.
        """
        lane_pass = self._lane_pass
        self._context.set_threads()
        self._context.turn_of(lane_pass.trial)
        shard_pass = ShardPass(lane_pass.lane, self._chunks, self._context.meter)
        size = self._context.data.size(lane_pass.unit.visit.shard)
        begin = perf_counter()
        try:
            with blaming():
                sums = shard_pass.run(size)
        except TrialError as error:
            self._events.fail([lane_pass], error)
            return False
        seconds = perf_counter() - begin
        meter = self._context.meter
        samples, _ = lane_pass.lane.taken()
        pace = self._context.setup.pace
        if pace is not None:
            lane_pass.spent.add("train", pace(lane_pass.unit.trial, samples))
        self._events.spend([lane_pass], "data", shard_pass.waited)
        self._events.spend([lane_pass], "train", seconds - shard_pass.waited)
        meter.waited(lane_pass.lane, shard_pass.waited / samples)
        tell_unfusable(meter, [lane_pass], self._unfusable)
        add_sums(lane_pass.totals, sums)
        self._events.note(lane_pass, Part(size, sums, lane_pass.spent.take()))
        return False


def tell_unfusable(meter: Meter, passes: Sequence[Pass], reported: set[str]) -> None:
    """Tell the meter, once for each kind, that such trials cannot train in one step."""
    for signature in {each.lane.signature for each in passes} - reported:
        reported.add(signature)
        meter.tell(signature, unfusable=1.0)
