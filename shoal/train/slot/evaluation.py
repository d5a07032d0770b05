"""The scores of a slot's lanes on the validation data.

Lanes that see the same data share its chunks. Lanes that are fused are evaluated in one go.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds, TrialId
from shoal.train.data.columns import Columns
from shoal.train.fuse.fused import Fused
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import Record, Scoring, evaluate, scoring
from shoal.train.recipe.hooks import validates
from shoal.train.recipe.unit import RAISED, OutOfMemory, TrialError
from shoal.train.slot.context import Records, RemoteValidation, SlotContext, Stopwatch
from shoal.train.slot.fusion import LaneStacks
from shoal.train.slot.passes import Pass
from shoal.train.stream.stream import Stream

Scores = dict[str, float]
ScoresByTrial = dict[TrialId, Scores | TrialError]
Chunks = Generator[Columns, None, None]


class Evaluation:
    """Evaluates the lanes of one slot."""

    def __init__(self, context: SlotContext, stacks: LaneStacks) -> None:
        self._context = context
        self._meter = context.meter
        self._stacks = stacks
        self._clocked = context.setup.clocked

    def scores(self, passes: Sequence[Pass]) -> ScoresByTrial:
        """The scores of each trial, or its error. Empty if there is nothing to validate with.

        Raises:
            OutOfMemory: of one of the lanes.
            DataError: a part of the validation data cannot be read.
        """
        scores_by_trial: ScoresByTrial = {}
        passes = [each for each in passes if self.is_possible(each.lane)]
        if self._context.remote_validation is not None:
            remote_validation = self._context.remote_validation
            return {each.trial: self._in_place(each, remote_validation) for each in passes}
        by_stream: dict[tuple[Stream, str], list[Pass]] = {}
        for each in passes:
            if each.trial in scores_by_trial:
                continue
            fused = self._stacks.of(each.lane)
            if fused is not None:
                members = [member for member in passes if member.lane in fused.lanes]
                if len(members) == len(fused.lanes):  # all of the stack are asked for
                    scores_by_trial |= self._together(fused, members)
            if each.trial not in scores_by_trial:
                key = (self._stream(each.lane), each.lane.settings.scored_order)
                by_stream.setdefault(key, []).append(each)

        for same_stream in by_stream.values():
            scores_by_trial |= self._one_by_one(same_stream)
        return scores_by_trial

    def is_possible(self, lane: TrainingLane) -> bool:
        """Whether there is something to score the lane with."""
        return validates(lane.recipe, self._context.data_of(lane.recipe))

    def of(self, lane: TrainingLane, spent: Stopwatch) -> Scores:
        """The scores of one lane alone.

        Raises:
            TrialError: the recipe's code raised.
            DataError: a part of the validation data cannot be read.
        """
        self._context.set_threads()
        begin = perf_counter()
        with spent.on("evaluate"), blaming(("evaluate", lane.signature)):
            scores = evaluate(lane, self._chunks(lane))
        seconds = perf_counter() - begin
        self._meter.record(lane.signature, "evaluate", seconds)
        return scores

    def _stream(self, lane: TrainingLane) -> Stream:
        """The stream of the lane's data."""
        return self._context.streams.of(lane.settings.data_key)

    def _chunks(self, lane: TrainingLane) -> Chunks:
        """The validation data as the lane sees it."""
        return self._stream(lane).validation(lane.settings.scored_order)

    def _in_place(
        self, lane_pass: Pass, remote_validation: RemoteValidation
    ) -> Scores | TrialError:
        """Evaluate a lane on parts of which some lie at other nodes."""
        self._context.set_threads()
        self._context.turn_of(lane_pass.trial)
        data = self._context.data
        here = {part: data.is_here(part) for part in data.validation}
        begin = perf_counter()
        try:
            stream = self._stream(lane_pass.lane)
            scores = scores_in_place(lane_pass, stream, here, remote_validation)
        except OutOfMemory:
            raise
        except TrialError as error:
            return error
        seconds = perf_counter() - begin
        self._meter.record(lane_pass.lane.signature, "evaluate", seconds)
        if self._clocked:
            lane_pass.spent.add("evaluate", seconds)
        return scores

    def _one_by_one(self, passes: Sequence[Pass]) -> ScoresByTrial:
        """Evaluate lanes that see the same chunks: all on a chunk before the next is asked for."""
        self._context.set_threads()
        sharing = SharedScoring(self._context, passes)
        scores = sharing.run(self._chunks(passes[0].lane))
        for signature, seconds in sharing.complete_seconds().items():
            self._meter.record(signature, "evaluate", seconds)
        if self._clocked:
            for each, seconds in sharing.seconds.items():
                each.spent.add("evaluate", seconds)
        return scores

    def _together(self, fused: Fused, passes: Sequence[Pass]) -> ScoresByTrial:
        """Evaluate all lanes of a stack in one go; empty where that does not work."""
        self._context.set_threads()
        first = fused.lanes[0]
        begin = perf_counter()
        try:
            scores = fused.evaluate(self._chunks(first), self._clocked)
        except RAISED:  # nothing was changed, and each lane may raise an error of its own
            self._stacks.release(first)
            return {}
        if self._clocked:
            seconds = perf_counter() - begin
            for each in passes:
                each.spent.add("evaluate", seconds / len(passes))
            # later evaluations need not find out again how to fuse the lanes
            usual = (seconds - fused.decision_seconds) / len(passes)
            for signature in {each.lane.signature for each in passes}:
                self._meter.record(signature, "evaluate", usual)
        return {each.trial: scores[fused.lanes.index(each.lane)] for each in passes}


class SharedScoring:
    """Scores of lanes that see the same validation data: each chunk is made once for all.

    What a lane's own code raises ends the scoring of that lane only.
    """

    def __init__(self, context: SlotContext, passes: Sequence[Pass]) -> None:
        self._context = context
        self._errors: dict[TrialId, TrialError] = {}
        self._exits = {each: ExitStack() for each in passes}
        self._scores: dict[Pass, Scoring] = {}  # of lanes that have not failed
        self.seconds: dict[Pass, Seconds] = dict.fromkeys(passes, 0.0)

    def run(self, chunks: Chunks) -> ScoresByTrial:
        """The scores of each trial, or its error.

        Raises:
            OutOfMemory: of one of the lanes.
            DataError: a part of the validation data cannot be read.
        """
        scores_by_trial: ScoresByTrial = {}
        try:
            for each, stack in self._exits.items():
                with self._noting_errors([each]):
                    self._scores[each] = stack.enter_context(scoring(each.lane))
            while self._scores:
                chunk = self._next(chunks)
                if chunk is None:
                    break
                self._add(chunk)
            for each, scores in self._scores.items():
                begin = perf_counter()
                self._context.turn_of(each.trial)
                with self._noting_errors([each]):
                    scores_by_trial[each.trial] = scores.scores()
                self.seconds[each] += perf_counter() - begin
        finally:
            chunks.close()
            for each, stack in self._exits.items():
                with self._noting_errors([each]):
                    stack.close()  # the lane is as it was
        return scores_by_trial | self._errors

    def complete_seconds(self) -> dict[str, Seconds]:
        """The seconds of an evaluation to the end, by the lane's signature."""
        return {
            each.lane.signature: self.seconds[each]
            for each in self._scores
            if each.trial not in self._errors
        }

    def _next(self, chunks: Chunks) -> Columns | None:
        """The next chunk; None at the end, or where the recipe's code raised as it was made.

        That error, or a chunk that was written to, is the error of all lanes.
        """
        begin = perf_counter()
        chunk = None
        with self._noting_errors(self._scores):
            chunk = next(chunks, None)
        share = (perf_counter() - begin) / len(self._scores)
        for each in self._scores:
            self.seconds[each] += share
        return chunk

    def _add(self, chunk: Columns) -> None:
        """Score each lane on the chunk, too."""
        for each in list(self._scores):
            begin = perf_counter()
            self._context.turn_of(each.trial)
            with self._noting_errors([each]):
                self._scores[each].add(chunk)
            if each.trial in self._errors:
                del self._scores[each]
            self.seconds[each] += perf_counter() - begin

    @contextmanager
    def _noting_errors(self, passes: Iterable[Pass]) -> Iterator[None]:
        """Note what the recipe's code raises as the error of these trials.

        Raises:
            OutOfMemory: of one of them.
        """
        try:
            with blaming():
                yield
        except OutOfMemory:
            raise
        except TrialError as error:
            self._errors.update({each.trial: error for each in passes})


def validation_records(lane: TrainingLane, stream: Stream, parts: Collection[ShardId]) -> Records:
    """The outcomes of the lane's validation steps on these parts, which are read here."""
    order = lane.settings.scored_order
    records: dict[ShardId, Record] = {}
    with scoring(lane) as scores:
        for part in parts:
            records[part] = []
            for chunk in stream.validation_part(part, order):
                records[part] += scores.record(chunk)
    return records


def scores_in_place(
    lane_pass: Pass,
    stream: Stream,
    here: Mapping[ShardId, bool],
    remote_validation: RemoteValidation,
) -> dict[str, Any]:
    """A lane's scores, to the bit those of one process that reads all parts in this order.

    `here`: whether each part of the validation data lies at this node.

    Raises:
        TrialError: the recipe's code raised, here or there.
        DataError: a part is nowhere to be read.
    """
    lane = lane_pass.lane
    unit = replace(lane_pass.unit, source=lane.state(), visits=lane.visits)
    remote_records = remote_validation.begin(unit, [part for part in here if not here[part]])
    with blaming():
        own_records = validation_records(lane, stream, [part for part in here if here[part]])
    records = {**own_records, **remote_records()}
    with blaming(), scoring(lane) as scores:
        for part in here:
            scores.take(records[part])
        return scores.scores()
