"""The loop of a slot: one visit of each of several lanes, over as few streams of data as possible.

Lanes share a stream if they visit the same shard in the same order. They train in three ways.
*Interleaved* lanes train one after the other on each chunk; the result is to the bit that of
training alone. *Fused* lanes have one graph and train in one step, where that was measured to be
faster. *Summed* lanes (`loss_sum`), which may be unlike, have one backward pass, where that was
measured to be faster than turns; the result is that of training alone, too.

`PackLoop.run` is the loop: it takes one piece of work after the other, does about a second of it,
and hands out what lanes have reported. `PackLoop._work` tells the story of the visits and decides
what comes next, by what was measured so far: from a chunk of the stream to the batches of each
group of lanes, and who takes a step together. The last step of the way is `LaneWork`, where the
lane takes its batches, or `FusedWork`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import cycle, islice
from time import perf_counter
from weakref import WeakSet

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.fuse.fused import Fused, StepFailed
from shoal.train.fuse.gauge import TRIES
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.overdue import in_time
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import RAISED, Part, Scored, TrialError
from shoal.train.slot import pass_events
from shoal.train.slot.context import SlotContext
from shoal.train.slot.evaluation import Evaluation
from shoal.train.slot.fusion import Fusion, LaneStacks
from shoal.train.slot.loss_sum import Summation, SummedWork, kind_of
from shoal.train.slot.pass_events import PassEvents, Work, let_go
from shoal.train.slot.passes import BatchGroup, News, Pass, split_evenly, steps_left
from shoal.train.slot.shard_pass import ShardWork, tell_unfusable
from shoal.train.stream.stream import Batch, Stream

PROBED = 12  # numbers of lanes whose fused step `probe` times at most, 1 included
Chunks = Generator[Columns, None, None]
StreamKey = tuple[Stream, ShardId, int, str]  # equal for passes that see the same chunks
Took = list[list[Seconds]]  # by lane or stack, the seconds of each of its steps


class PackLoop:
    """The lanes of one slot, trained together."""

    def __init__(self, context: SlotContext) -> None:
        clocked = context.setup.clocked
        self.context = context
        self._meter = context.meter
        # about every second, instead of after each chunk
        self._report_seldom = clocked and context.meter.waits
        self.fusion = Fusion(context.meter, paced=not clocked)
        self.stacks = LaneStacks(context, self.fusion)
        self.summation = Summation(context.meter, paced=not clocked)
        self.evaluation = Evaluation(context, self.stacks)
        self.events = PassEvents(context, self.stacks)
        # Those that share the slot now. Lanes that are dropped must not be held here.
        self._lanes: WeakSet[TrainingLane] = WeakSet()
        self._unfusable: set[str] = set()  # signatures: see `ShardWork`

    def run(self, passes: Sequence[Pass], fuse: bool = False) -> Iterator[News]:
        """Make the visits. What a lane's own code raises ends that lane only.

        Raises:
            OutOfMemory: of a lane among several; all visits are void.
            PackRefused: they cannot train as they did; all visits are void.
            DataError: the study must pause.
        """
        self.events.take()  # of a run that was given up
        self._lanes = WeakSet(each.lane for each in passes)
        # Closed whatever happens: the stream of chunks is open in there.
        with closing(self._work(passes, fuse)) as pieces:
            try:
                for work in pieces:
                    yield from self.events.take()
                    while work.advance():
                        yield from self.events.take()
                    yield from self.events.take()
            except Exception:
                yield from self.events.take()  # a lane that failed before has failed all the same
                raise
        yield from self.events.take()

    def probe(self, passes: Sequence[Pass]) -> None:
        """Time fused steps of these lanes, on one chunk again and again.

        Afterwards the lanes' states are of no use.

        Raises:
            OutOfMemory, DataError: as `run`.
        """
        if isinstance(self.context.recipe, ShardRecipe):
            return tell_unfusable(self._meter, passes, self._unfusable)
        for same_stream in self._by_stream(passes):
            going = self._begin(same_stream)
            with closing(self._chunks(same_stream[0])) as chunks:
                chunk = self._next(chunks, same_stream)
            self._lanes = WeakSet(each.lane for each in passes)
            groups = self.fusion.groups(going, True)
            self._find_room(groups)
            for group in groups:
                self._probe(group, chunk)

    def _probe(self, group: BatchGroup, chunk: Columns) -> None:
        """Time the group's fused steps until enough is known of them."""
        batches = list(group.cut.of(chunk))
        if not batches:
            rest = group.cut.end()
            if rest is not None:
                batches.append(rest)

        for _ in range(PROBED):
            trying = self.fusion.trying(group)
            if trying is None:
                return
            width, count = trying
            tried = list(islice(cycle(batches), count))
            for work in self._steps(group, width, tried, trying=True):
                while work.advance():
                    pass

    # -- what is to be done, in the order in which it happens ----------------------------------

    def _work(self, passes: Sequence[Pass], fuse: bool) -> Generator[Work, None, None]:
        """The pieces of work that make these visits; each is done when the next is asked for."""
        if isinstance(self.context.recipe, ShardRecipe):
            for each in passes:
                chunks = self._chunks(each)
                yield ShardWork(self.context, self.events, each, chunks, self._unfusable)
            return
        for same_stream in self._by_stream(passes):
            yield from self._work_of_stream(same_stream, fuse)

    def _work_of_stream(self, passes: list[Pass], fuse: bool) -> Generator[Work, None, None]:
        """Make visits that see the same chunks."""
        size = self._size(passes[0])
        going = self._begin(passes)
        groups = self.fusion.groups(going, fuse)
        self._find_room(groups)
        with closing(self._chunks(passes[0])) as chunks:
            left = size
            while left > 0 and going:
                try:
                    chunk = self._next(chunks, going)
                except TrialError as error:
                    # The recipe's prepare or augment raised, or a batch was written to.
                    self.events.fail(going, error)
                    return
                left -= cols.rows(chunk)
                yield from self._work_on_chunk(groups, chunk, last=left <= 0)
                going = [each for each in going if not each.failed]
            try:
                with blaming():
                    next(chunks, None)  # checks that no step wrote to the last chunk
            except TrialError as error:
                self.events.fail(going, error)
        for each in passes:
            self._meter.waited(each.lane, each.waited / size)

    def _work_on_chunk(
        self, groups: Sequence[BatchGroup], chunk: Columns, last: bool
    ) -> Iterator[Work]:
        """Train the lanes of all groups on this chunk; those that take turns perhaps in one step.

        `last`: it is the last one of the pass.
        """
        # groups of which it is known that their lanes are not to be fused
        in_turns = [
            group
            for group in groups
            if group.passes
            and self.fusion.width(group) == 1
            and self.fusion.trying(group, steps_left(group.passes)) is None
        ]
        passes = [each for group in in_turns for each in group.passes]
        trying = self.summation.wants(passes, steps_left(passes)) if passes else None
        if trying is None and self.summation.width(passes) == 1:
            in_turns = []
        else:
            yield from self._summed(in_turns, chunk)
            for group in in_turns:
                yield from self._end_of_chunk(group, last)

        for group in groups:
            if group in in_turns:
                continue
            batches = list(group.cut.of(chunk))
            while batches and group.passes:
                try_next = self.fusion.trying(group, steps_left(group.passes))
                if try_next is not None:
                    width, count = try_next
                elif group.graph is not None and self.fusion.unmeasured(group):
                    width, count = 1, TRIES
                else:
                    width, count = self.fusion.width(group), len(batches)
                count = self._until_evaluation(group, min(count, len(batches)))
                yield from self._steps(group, width, batches[:count], trying=try_next is not None)
                batches = batches[count:]
                group.batch_count += count
                self._evaluate_within(group)
            yield from self._end_of_chunk(group, last)

    def _steps(
        self,
        group: BatchGroup,
        width: int,
        batches: Sequence[Batch],
        *,
        trying: bool = False,
        last: bool = False,
    ) -> Iterator[Work]:
        """Train the group's lanes on these batches, fused by `width` where they can be.

        `trying`: take the time of the steps; it counts only where lanes train as `width` says.
        `last`: end the pass with these batches.
        """
        took: Took = []
        for members in split_evenly(group.passes, width):
            fused = None
            if width > 1 and len(members) > 1:
                fused = self.stacks.join(group, members)
            if fused is not None:
                times = took if trying and len(members) == width else None
                yield FusedWork(self, group, fused, members, batches, times, last)
                continue
            times = took if trying and width == 1 else None
            for each in members:
                yield LaneWork(self, each, batches, times, last)

        if took:
            self.fusion.timed(group, width, took)
        group.passes = [each for each in group.passes if not each.failed]
        self.stacks.trained(group.passes)

    def _summed(self, groups: Sequence[BatchGroup], chunk: Columns) -> Iterator[Work]:
        """Train unlike lanes on this chunk, so many in one step as is quickest.

        Each takes its own batches. Where they have batches of unlike sizes, those with fewer are
        through before the others.
        """
        batches = {group: list(group.cut.of(chunk)) for group in groups}
        while any(batches[group] for group in groups if group.passes):
            passes = [each for group in groups for each in group.passes]
            most = max(map(len, batches.values()))
            trying = None
            if all(batches.values()):
                trying = self.summation.wants(passes, steps_left(passes))
            width = trying or self.summation.width(passes)
            if trying is not None:
                most = min(map(len, batches.values()))
                most = min(most, self.summation.missing(passes, width) + 1)

            work: dict[Pass, Sequence[Batch]] = {}
            for group in groups:
                count = self._until_evaluation(group, min(most, len(batches[group])))
                work |= dict.fromkeys(group.passes, batches[group][:count])
                batches[group] = batches[group][count:]
                group.batch_count += count

            took: Took | None = None if trying is None else []
            kind = kind_of(passes)
            for members in split_evenly(passes, width):
                if width > 1 and len(members) > 1:
                    times = _new_list(took)
                    part = {each: work[each] for each in members}
                    yield SummedWork(
                        self.context, self.stacks, self.events, self.summation, part, kind, times
                    )
                    continue
                for each in members:
                    yield LaneWork(self, each, work[each], took)
            if took:
                self.summation.timed(passes, width, took)
            for group in groups:
                self.stacks.trained(group.passes)
                group.passes = [each for each in group.passes if not each.failed]
                self._evaluate_within(group)

    def _end_of_chunk(self, group: BatchGroup, last: bool) -> Iterator[Work]:
        """End a chunk on which the group has trained, and report. `last`: the pass ends with it.

        Then the smaller last batch is trained, and groups of batches that are not full.
        """
        if last:
            rest = group.cut.end()
            batches = [] if rest is None else [rest]
            if batches or any(each.lane.unfinished for each in group.passes):
                yield from self._steps(group, self.fusion.width(group), batches, last=True)
        self.events.report_group(group, at_once=last or not self._report_seldom)
        group.passes = [each for each in group.passes if not each.failed]

    # -- evaluations in the midst of a pass ----------------------------------------------------

    def _until_evaluation(self, group: BatchGroup, batches: int) -> int:
        """How many of so many batches to train on before the next evaluation."""
        stops = [stop for each in group.passes for stop in each.stops if stop > group.batch_count]
        return min([batches, *(stop - group.batch_count for stop in stops)])

    def _evaluate_within(self, group: BatchGroup) -> None:
        """Evaluate the lanes that are due after the batches made so far.

        Raises:
            OutOfMemory: of one of the lanes.
            DataError: a part of the validation data cannot be read.
        """
        due = [each for each in group.passes if group.batch_count in each.stops]
        if not due:
            return
        self.events.report(due)
        due = [each for each in due if not each.failed]
        scores = self.evaluation.scores(due)
        for each in due:
            values = scores.get(each.trial)
            if isinstance(values, TrialError):
                self.stacks.release(each.lane)
                self.events.fail([each], values)
                continue
            scored = Scored(each.stops[group.batch_count], values, each.lane.metrics.epoch_means())
            self.events.note(each, Part(0.0, spent=each.spent.take(), scored=scored))
        group.passes = [each for each in group.passes if not each.failed]

    # -- passes and their chunks ---------------------------------------------------------------

    def _by_stream(self, passes: Sequence[Pass]) -> Iterable[list[Pass]]:
        """The passes, those that see the same chunks together."""
        streams: dict[StreamKey, list[Pass]] = {}
        for each in passes:
            visit = each.unit.visit
            stream = self._stream(each)
            shuffle = each.lane.settings.order
            # another turn has other chunks only where its order or its samples are drawn anew
            turn = visit.turn if shuffle == "each" or stream.varies else 0
            streams.setdefault((stream, visit.shard, turn, shuffle), []).append(each)
        return streams.values()

    def _stream(self, lane_pass: Pass) -> Stream:
        """The stream of the lane's data."""
        return self.context.streams.of(lane_pass.lane.settings.data_key)

    def _chunks(self, lane_pass: Pass) -> Chunks:
        """The chunks of the pass, in its order."""
        visit = lane_pass.unit.visit
        shuffle = lane_pass.lane.settings.order
        following = self.context.next_pass(lane_pass.unit)
        return self._stream(lane_pass).chunks(visit.shard, visit.turn, shuffle, then=following)

    def _begin(self, passes: Iterable[Pass]) -> list[Pass]:
        """Begin these passes; returns those whose lanes raised nothing."""
        started = []
        for each in passes:
            try:
                with blaming():
                    each.lane.begin(self._size(each))
                started.append(each)
            except TrialError as error:
                self.events.fail([each], error)
        return started

    def _size(self, lane_pass: Pass) -> int:
        """Samples of the pass."""
        return self.context.data.size(lane_pass.unit.visit.shard)

    def _next(self, chunks: Iterator[Columns], passes: Sequence[Pass]) -> Columns:
        """The next chunk. The lanes share the seconds that they wait for it."""
        self.context.set_threads()
        begin = perf_counter()
        with blaming():
            chunk = next(chunks)
        seconds = perf_counter() - begin

        self.events.spend(passes, "data", seconds)
        for each in passes:
            each.waited += seconds
        return chunk

    def _find_room(self, groups: Sequence[BatchGroup]) -> None:
        """Find out how many lanes have room in one step, beside all states.

        That is set for each group, whose lanes may be fused, and for all lanes.
        """
        room = self.context.slot_room
        all_lanes: list[TrainingLane] = []
        for group in groups:
            lanes = [each.lane for each in group.passes]
            group.most = self._meter.at_once(lanes, self._lanes, room)
            all_lanes += lanes
        self.summation.most = self._meter.at_once(all_lanes, self._lanes, room)


class LaneWork:
    """One lane's steps on these batches.

    `took`: where a list of the seconds of its steps goes; None: take no times. `last`: the pass
    ends with these batches.
    """

    def __init__(
        self,
        loop: PackLoop,
        lane_pass: Pass,
        batches: Sequence[Batch],
        took: Took | None,
        last: bool = False,
    ) -> None:
        self._loop = loop
        self._lane_pass = lane_pass
        self._batches = batches
        self._took = took
        self._last = last
        self._steps: Iterator[int] | None = None

    def advance(self) -> bool:
        """Take steps for about `PART_SECONDS`, and report unless these were all.

        With a pace all steps are taken, so that the clock decides nothing.
        """
        context = self._loop.context
        lane_pass = self._lane_pass
        lane = lane_pass.lane
        pace = context.setup.pace
        if self._steps is None:
            self._loop.stacks.release(lane)
            self._steps = self._prepared_steps()
        context.set_threads()
        context.turn_of(lane_pass.trial)
        due = perf_counter() + pass_events.PART_SECONDS
        try:
            with lane_pass.spent.on("train"), blaming(("train", lane.signature)), lane.rng:
                left = any(pace is None and perf_counter() >= due for _ in self._steps)
        except TrialError as error:
            self._loop.events.fail([lane_pass], error)
            return False
        if left:
            self._loop.events.report([lane_pass])
        return left and not lane_pass.failed

    def _prepared_steps(self) -> Iterator[int]:
        """The steps to be taken, timed for the meter and for whoever asked."""
        lane = self._lane_pass.lane
        steps: Iterator[int] = (lane.step(*batch) for batch in self._batches)
        if self._last:
            steps = _closing_steps(lane, self._batches)
        if self._loop.context.setup.pace is None:
            steps = self._loop.context.meter.timed(lane, steps)
        times = _new_list(self._took)
        if times is not None:
            steps = self._timed(times, steps)
        return steps

    def _timed(self, times: list[Seconds], steps: Iterator[int]) -> Iterator[int]:
        """The steps; the seconds of each are appended to `times`."""
        meter = self._loop.context.meter
        begin = meter.now()
        for count in steps:
            times.append(meter.now() - begin)
            yield count
            begin = meter.now()


class FusedWork:
    """Fused steps of several lanes on these batches; for the arguments see `LaneWork`.

    Where that does not work, or a lane fails, the others go on by themselves.
    """

    def __init__(
        self,
        loop: PackLoop,
        group: BatchGroup,
        fused: Fused,
        passes: Sequence[Pass],
        batches: Sequence[Batch],
        took: Took | None,
        last: bool,
    ) -> None:
        self._loop = loop
        self._group = group
        self._fused = fused
        self._passes = passes
        self._batches = batches
        self._last = last
        self._times = _new_list(took)
        self._number = 0  # of the batch that comes next; the end of the pass counts as one, too
        self._alone: deque[LaneWork] | None = None  # the lanes, once each goes on by itself
        self._cause: BaseException | None = None  # why, if fusing may be to blame for it

    def advance(self) -> bool:
        """Take steps for about `PART_SECONDS`, and report unless these were all."""
        if self._alone is not None:
            return self._advance_alone()
        context, events, passes = self._loop.context, self._loop.events, self._passes
        context.set_threads()
        context.turn_of(passes[0].trial)
        kind = ("fused", passes[0].lane.signature)
        begin = perf_counter()
        due = begin + pass_events.PART_SECONDS
        late = False
        while not late and self._number < len(self._batches) + self._last:
            try:
                with in_time(kind):
                    self._step()
            except RAISED as error:
                events.spend(passes, "train", perf_counter() - begin)
                self._after_error(error)
                return True
            self._number += 1
            late = context.setup.pace is None and perf_counter() >= due
        events.spend(passes, "train", perf_counter() - begin)
        if not late:
            return False
        events.report(passes)
        if any(each.failed for each in passes):
            self._go_alone(self._number)
            return True
        return self._number < len(self._batches) + self._last

    def _step(self) -> None:
        """Take the next step, or end the pass."""
        fused = self._fused
        meter = self._loop.context.meter
        started = 0.0 if self._times is None else meter.now()
        if self._number == len(self._batches):
            fused.close()
        elif self._last:
            fused.last(*self._batches[self._number])
        else:
            fused.step(*self._batches[self._number])
        if self._times is not None:
            self._times.append(meter.now() - started)

    def _after_error(self, error: BaseException) -> None:
        """Have each lane go on by itself after a fused step raised."""
        number = self._number
        if not isinstance(error, StepFailed):
            # No lane was changed, and each may raise an error of its own.
            let_go(error)
            if number or self._loop.stacks.settled(self._passes):
                self._cause = error
            self._go_alone(number)
            return
        # The optimizers of some lanes raised; the others have made their step.
        for place, cause in error.errors.items():
            failed = self._passes[place]
            try:
                with blaming():
                    raise cause
            except TrialError as blamed:
                self._loop.stacks.release(failed.lane)
                self._loop.events.fail([failed], blamed)
        self._go_alone(number + 1)

    def _go_alone(self, number: int) -> None:
        """From that batch on each lane takes its steps by itself, untimed."""
        batches = self._batches[number:]
        self._passes = [each for each in self._passes if not each.failed]
        self._alone = deque(
            LaneWork(self._loop, each, batches, None, self._last) for each in self._passes
        )

    def _advance_alone(self) -> bool:
        """Advance the lane whose turn it is. An error that no lane has alone is due to fusing."""
        assert self._alone is not None, "the lanes go on by themselves"
        if self._alone:
            if not self._alone[0].advance():
                self._alone.popleft()
            return True
        if self._cause is not None and not any(each.failed for each in self._passes):
            self._loop.fusion.give_up(self._group, self._cause, len(self._passes))
        return False


def _new_list(took: Took | None) -> list[Seconds] | None:
    """A new list for the seconds of one lane's or stack's steps; None: take no times."""
    if took is None:
        return None
    took.append([])
    return took[-1]


def _closing_steps(lane: TrainingLane, batches: Sequence[Batch]) -> Iterator[int]:
    """The steps on the last batches of a pass, and the end of the pass."""
    for batch, count in batches:
        yield from lane.last(batch, count)
    lane.close()
