"""Several lanes on one slot: one visit of each, over as few streams of data as possible.

Lanes share a stream if they visit the same shard in the same order. They train in three ways.
*Interleaved* lanes train one after the other on each chunk; the result is to the bit that of
training alone. *Fused* lanes have one graph and train in one step, where that was measured to be
faster. *Summed* lanes (`loss_sum`), which may be unlike, have one backward pass, where that was
measured to be faster than turns; the result is that of training alone, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import cycle, islice
from time import perf_counter
from weakref import WeakSet

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.fuse.gauge import TRIES
from shoal.train.lane.blame import add, blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import Part, TrialError
from shoal.train.slot.context import SlotContext
from shoal.train.slot.evaluation import Evaluation, ScoresWithin
from shoal.train.slot.fusing import LaneStacks, LaneSteps, LaneWork, fail
from shoal.train.slot.fusion import BatchGroup, Fusion, News, Pass, parted, steps_left
from shoal.train.slot.loss_sum import Summation, SummedSteps, kind_of
from shoal.train.slot.shard_pass import ShardPass
from shoal.train.stream.stream import Batch, Stream

PROBED = 12  # numbers of lanes whose fused step `probe` times at most, 1 included
Chunks = Generator[Columns, None, None]
StreamKey = tuple[Stream, ShardId, int, str]  # equal for passes that see the same chunks


class PackLoop:
    """The lanes of one slot, trained together."""

    def __init__(self, workplace: SlotContext) -> None:
        clocked = workplace.setup.clocked
        self._at = workplace
        self._data = workplace.data
        self._meter = workplace.meter
        # whether lanes report about every second, instead of after each chunk
        self._seldom = clocked and workplace.meter.waits
        self.crews = Fusion(workplace.meter, paced=not clocked)
        self.fusing = LaneStacks(workplace, self.crews)
        self._steps = LaneSteps(workplace, self.crews, self.fusing)
        self.summing = Summation(workplace.meter, paced=not clocked)
        self._summed = SummedSteps(workplace, self.fusing, self._steps, self.summing)
        self.evaluation = Evaluation(workplace, self.fusing)
        self._within = ScoresWithin(self.evaluation, self.fusing, self._steps)
        self._shards = shard_passes(workplace, self._steps)
        # Those that share the slot now. Lanes that are dropped must not be held here.
        self._lanes: WeakSet[TrainingLane] = WeakSet()

    def run(self, passes: Sequence[Pass], fuse: bool = False) -> Iterator[News]:
        """Make the visits. What a lane's own code raises ends that lane only.

        Raises:
            OutOfMemory: of a lane among several; all visits are void.
            DataError: the study must pause.
        """
        if self._shards is not None:
            for each in passes:
                yield from self._shards.run(each, self._chunks(each))
            return
        self._lanes = WeakSet(each.lane for each in passes)
        for together in self._by_stream(passes):
            yield from self._pass(together, fuse)

    def probe(self, passes: Sequence[Pass]) -> None:
        """Time fused steps of these lanes, on one chunk again and again.

        Afterwards the lanes' states are of no use.

        Raises:
            OutOfMemory, DataError: as `run`.
        """
        if self._shards is not None:
            return self._shards.tell_unfusable(passes)
        for together in self._by_stream(passes):
            _exhaust(self._begin(together))
            with closing(self._chunks(together[0])) as chunks:
                chunk = self._next(chunks, together)
            going = [each for each in together if not each.failed]
            self._lanes = WeakSet(each.lane for each in passes)
            crews = self.crews.of(going, True)
            self._find_room(crews)
            for crew in crews:
                self._probe(crew, chunk)

    def _probe(self, crew: BatchGroup, chunk: Columns) -> None:
        """Time the crew's fused steps until enough is known of them."""
        batches = list(crew.cut.of(chunk))
        if not batches:
            rest = crew.cut.end()
            if rest is not None:
                batches.append(rest)

        for _ in range(PROBED):
            trying = self.crews.trying(crew)
            if trying is None:
                return
            width, count = trying
            tried = list(islice(cycle(batches), count))
            _exhaust(self._take(crew, width, tried, trying=True))

    def _by_stream(self, passes: Sequence[Pass]) -> Iterable[list[Pass]]:
        """The passes, those that see the same chunks together."""
        streams: dict[StreamKey, list[Pass]] = {}
        for each in passes:
            key = self._key(each)
            streams.setdefault(key, []).append(each)
        return streams.values()

    def _key(self, each: Pass) -> StreamKey:
        """What the chunks of the pass depend on."""
        visit = each.unit.visit
        stream = self._stream(each)
        shuffle = each.lane.settings.order

        turn = 0
        if shuffle == "each" or stream.varies:
            turn = visit.turn
        return stream, visit.shard, turn, shuffle

    def _stream(self, each: Pass) -> Stream:
        """The stream of the lane's data."""
        return self._at.streams.of(each.lane.settings.data_key)

    def _chunks(self, each: Pass) -> Chunks:
        """The chunks of the pass, in its order."""
        visit = each.unit.visit
        shuffle = each.lane.settings.order
        then = self._at.follows(each.unit)
        return self._stream(each).chunks(visit.shard, visit.turn, shuffle, then=then)

    # -- one stream ----------------------------------------------------------------------------

    def _pass(self, passes: list[Pass], fuse: bool) -> Iterator[News]:
        """Make visits that see the same chunks."""
        size = self._size(passes[0])
        going = yield from self._begin(passes)
        crews = self.crews.of(going, fuse)
        self._find_room(crews)
        with closing(self._chunks(passes[0])) as chunks:
            left = size
            while left > 0 and going:
                try:
                    chunk = self._next(chunks, going)
                except TrialError as error:
                    # The recipe's prepare or augment raised, or a batch was written to.
                    yield from fail(going, error)
                    return
                left -= cols.rows(chunk)
                yield from self._train_all(crews, chunk, left <= 0)
                going = [each for each in going if not each.failed]
            yield from self._check_last(chunks, going)
        for each in passes:
            self._meter.waited(each.lane, each.waited / size)

    def _find_room(self, crews: Sequence[BatchGroup]) -> None:
        """Find out how many lanes have room in one step, beside all states.

        It is known for each crew, whose lanes may be fused, and for all of them.
        """
        room = self._at.slot_room
        seen: list[TrainingLane] = []
        for crew in crews:
            lanes = [each.lane for each in crew.passes]
            crew.most = self._meter.at_once(lanes, self._lanes, room)
            seen += lanes
        self.summing.most = self._meter.at_once(seen, self._lanes, room)

    def _check_last(self, chunks: Chunks, passes: Sequence[Pass]) -> Iterator[News]:
        """End the chunks, which checks that no step wrote to the last one."""
        try:
            with blaming():
                next(chunks, None)
        except TrialError as error:
            yield from fail(passes, error)

    def _size(self, each: Pass) -> int:
        """Samples of the pass."""
        return self._data.size(each.unit.visit.shard)

    def _next(self, chunks: Iterator[Columns], passes: Sequence[Pass]) -> Columns:
        """The next chunk. The lanes share the seconds that they wait for it."""
        self._at.set_threads()
        begin = perf_counter()
        with blaming():
            chunk = next(chunks)
        seconds = perf_counter() - begin

        self._steps.spend(passes, "data", seconds)
        for each in passes:
            each.waited += seconds
        return chunk

    def _train_all(self, crews: Sequence[BatchGroup], chunk: Columns, last: bool) -> Iterator[News]:
        """Train the lanes of all crews on this chunk, those that take turns in one step, perhaps.

        `last`: it is the last one of the pass.
        """
        in_turns = list(filter(self._takes_turns, crews))
        passes = [each for crew in in_turns for each in crew.passes]
        trying = self.summing.wants(passes, steps_left(passes)) if passes else None
        if trying is None and self.summing.width(passes) == 1:
            in_turns = []
        else:
            yield from self._train_summed(in_turns, chunk, last)
        for crew in crews:
            if crew not in in_turns:
                yield from self._train(crew, chunk, last)

    def _takes_turns(self, crew: BatchGroup) -> bool:
        """Whether it is known that the crew's lanes are not to be fused."""
        if not crew.passes or self.crews.width(crew) != 1:
            return False
        return self.crews.trying(crew, steps_left(crew.passes)) is None

    def _train_summed(
        self, crews: Sequence[BatchGroup], chunk: Columns, last: bool
    ) -> Iterator[News]:
        """Train unlike lanes on this chunk, so many in one step as is quickest.

        Each takes its own batches. Where they have batches of unlike sizes, those with fewer are
        through before the others.
        """
        batches = {crew: list(crew.cut.of(chunk)) for crew in crews}
        while any(batches[crew] for crew in crews if crew.passes):
            passes = [each for crew in crews for each in crew.passes]
            most = max(map(len, batches.values()))
            trying = None
            if all(batches.values()):
                trying = self.summing.wants(passes, steps_left(passes))
            width = trying or self.summing.width(passes)
            if trying is not None:
                most = min(map(len, batches.values()))
                most = min(most, self.summing.missing(passes, width) + 1)

            work: dict[Pass, LaneWork] = {}
            took: list[list[Seconds]] | None = None if trying is None else []
            for crew in crews:
                count = min(most, len(batches[crew]))
                count = self._within.before_next(crew, count)
                part = LaneWork(crew, batches[crew][:count], took)
                work |= dict.fromkeys(crew.passes, part)
                batches[crew] = batches[crew][count:]
                crew.made += count
            yield from self._sum(work, width)
            if took:
                self.summing.timed(passes, width, took)
            for crew in crews:
                self.fusing.trained(crew.passes)
                crew.passes = [each for each in crew.passes if not each.failed]
                yield from self._within.run(crew)

        for crew in crews:
            yield from self._end_chunk(crew, last)

    def _sum(self, work: Mapping[Pass, LaneWork], width: int) -> Iterator[News]:
        """Train lanes on their batches, so many in one step; 1: one after the other."""
        passes = list(work)
        kind = kind_of(passes)
        for some in parted(passes, width):
            if width > 1 and len(some) > 1:
                times = work[some[0]].times()
                batches = {each: work[each].batches for each in some}
                yield from self._summed.run(batches, kind, times)
                continue
            for each in some:
                yield from self._steps.alone(each, work[each])

    def _train(self, crew: BatchGroup, chunk: Columns, last: bool) -> Iterator[News]:
        """Train all lanes of the crew on this chunk. `last`: it is the last one of the pass."""
        batches = list(crew.cut.of(chunk))
        while batches and crew.passes:
            trying = self.crews.trying(crew, steps_left(crew.passes))
            width, count = self._width(crew, trying, len(batches))
            count = self._within.before_next(crew, min(count, len(batches)))
            yield from self._take(crew, width, batches[:count], trying is not None)
            batches = batches[count:]
            crew.made += count
            yield from self._within.run(crew)
        yield from self._end_chunk(crew, last)

    def _end_chunk(self, crew: BatchGroup, last: bool) -> Iterator[News]:
        """The crew has trained on a chunk. `last`: it was the last one of the pass."""
        if last:
            yield from self._close(crew)
        yield from self._steps.reports_of(crew, at_once=last or not self._seldom)
        crew.passes = [each for each in crew.passes if not each.failed]

    def _width(
        self, crew: BatchGroup, trying: tuple[int, int] | None, batches: int
    ) -> tuple[int, int]:
        """How many lanes to fuse in one step next, and for how many of the batches."""
        if trying is not None:
            return trying
        if crew.graph is not None and self.crews.unmeasured(crew):
            return 1, TRIES
        return self.crews.width(crew), batches

    def _close(self, crew: BatchGroup) -> Iterator[News]:
        """End the pass: the smaller last batch, and groups of batches that are not full."""
        batches = []
        rest = crew.cut.end()
        if rest is not None:
            batches.append(rest)
        if batches or any(each.lane.unfinished for each in crew.passes):
            yield from self._take(crew, self.crews.width(crew), batches, last=True)

    def _take(
        self,
        crew: BatchGroup,
        width: int,
        batches: Sequence[Batch],
        trying: bool = False,
        last: bool = False,
    ) -> Iterator[News]:
        """Train the crew's lanes on these batches, fused by `width`.

        `trying`: take the time of the steps. `last`: end the pass with these batches.
        """
        took: list[list[Seconds]] = []  # seconds of steps, by lane or stack
        timed = None
        if trying:
            timed = took
        work = LaneWork(crew, batches, timed, last)
        for some in parted(crew.passes, width):
            yield from self._take_part(some, width, work)

        if took:
            self.crews.timed(crew, width, took)
        crew.passes = [each for each in crew.passes if not each.failed]
        self.fusing.trained(crew.passes)

    def _take_part(self, passes: Sequence[Pass], width: int, work: LaneWork) -> Iterator[News]:
        """Train these lanes fused if they can be, or else one after the other.

        Times count only if the lanes train as `width` says.
        """
        fused = None
        if width > 1 and len(passes) > 1:
            fused = self.fusing.join(work.crew, passes)
        if fused is not None:
            if len(passes) != width:
                work = work.untimed()
            yield from self._steps.together(fused, passes, work)
            return

        if width != 1:
            work = work.untimed()
        for each in passes:
            yield from self._steps.alone(each, work)

    def _begin(self, passes: Iterable[Pass]) -> Generator[News, None, list[Pass]]:
        """Begin these passes; returns those whose lanes raised nothing."""
        begun = []
        for each in passes:
            try:
                with blaming():
                    each.lane.begin(self._size(each))
                begun.append(each)
            except TrialError as error:
                yield from fail([each], error)
        return begun


def _exhaust(news: Iterator[News]) -> None:
    """Do the work, and throw away what it reports."""
    deque(news, maxlen=0)


def shard_passes(workplace: SlotContext, steps: LaneSteps) -> ShardPasses | None:
    """What makes the passes if the recipe trains whole shards; else None."""
    if isinstance(workplace.recipe, ShardRecipe):
        return ShardPasses(workplace, steps)
    return None


class ShardPasses:
    """Passes that a `ShardRecipe` makes by itself; trials of a pack take turns after each."""

    def __init__(self, workplace: SlotContext, steps: LaneSteps) -> None:
        self._at = workplace
        self._meter = workplace.meter
        self._steps = steps
        self._told: set[str] = set()  # signatures

    def run(self, each: Pass, chunks: Chunks) -> Iterator[News]:
        """Let the recipe make the visit. `chunks`: of its shard.

        Raises:
            OutOfMemory: of the lane; all visits of the slot are void.
            DataError: the study must pause.
        """
        self._at.set_threads()
        self._at.turn_of(each.trial)
        made = ShardPass(each.lane, chunks, self._meter)
        size = self._at.data.size(each.unit.visit.shard)
        begin = perf_counter()
        try:
            with blaming():
                sums = made.run(size)
        except TrialError as error:
            yield from fail([each], error)
            return
        self._book(each, made, perf_counter() - begin)
        add(each.totals, sums)
        yield each, Part(size, sums, each.spent.take())

    def _book(self, each: Pass, made: ShardPass, seconds: Seconds) -> None:
        """Book the seconds of a pass."""
        samples, _ = each.lane.taken()
        pace = self._at.setup.pace
        if pace is not None:
            each.spent.add("train", pace(each.unit.trial, samples))
        self._steps.spend([each], "data", made.waited)
        self._steps.spend([each], "train", seconds - made.waited)
        self._meter.waited(each.lane, made.waited / samples)
        self.tell_unfusable([each])

    def tell_unfusable(self, passes: Sequence[Pass]) -> None:
        """Tell the meter, once for each kind, that such trials cannot train in one step."""
        for signature in {each.lane.signature for each in passes} - self._told:
            self._told.add(signature)
            self._meter.tell(signature, unfusable=1.0)
