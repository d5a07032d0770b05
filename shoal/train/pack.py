"""Several lanes on one slot: one visit of each, over as few streams of data as their shards and orders allow.

Two ways: *interleaved*, one lane after the other on each chunk, equal to training alone bit for bit;
*fused*, lanes of one graph in one step, where that was measured to be faster.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import cycle, islice
from time import perf_counter
from traceback import clear_frames
from weakref import WeakSet

import torch

from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.train.account import add, blaming
from shoal.train.batches import Batch
from shoal.train.columns import Columns
from shoal.train.crew import Crew, Crews, News, Pass, parted
from shoal.train.data import Data
from shoal.train.fused import Fused, StepFailed
from shoal.train.gauge import TRIES
from shoal.train.lane import Lane
from shoal.train.measure import Meter
from shoal.train.stream import Streams
from shoal.train.unit import RAISED, OutOfMemory, Part, TrialError

PROBED = 12  # widths, alone included
PART_SECONDS = 1.0  # a chunk that takes longer is reported in pieces
Pace = Callable[[Trial, Samples], Seconds]


class Pack:
    """The lanes of one slot, trained together. `pace`, `turn_of`: as of the `Station`."""

    def __init__(
        self,
        streams: Streams,
        data: Data,
        meter: Meter,
        threads: int,
        pace: Pace | None = None,
        turn_of: Callable[[TrialId], None] | None = None,
    ) -> None:
        self._streams, self._data, self._meter = streams, data, meter
        self._threads, self._pace = threads, pace
        self._lazy = pace is None and meter.waits  # not after each chunk
        self.turn_of = turn_of or (lambda _: None)
        self.crews = Crews(meter, pace is not None)
        self._fused: dict[Lane, Fused] = {}
        self._trained: WeakSet[Lane] = WeakSet()  # here, at least one batch

    def run(self, passes: Sequence[Pass], fuse: bool = False) -> Generator[News, None, None]:
        """Make the visits. What a lane's own code raises ends that lane only.

        Raises:
            OutOfMemory: of a lane among several; all visits are void.
            DataError: the study must pause.
        """
        for together in self._by_stream(passes):
            yield from self._pass(together, fuse)

    def probe(self, passes: Sequence[Pass]) -> None:
        """Find out what steps of these lanes take fused, on one chunk again and again. Their states are worth nothing then.

        Raises:
            OutOfMemory, DataError: as `run`.
        """
        for together in self._by_stream(passes):
            visit, s = together[0].unit.visit, together[0].lane.settings
            deque(self._each(together, self._begin), maxlen=0)
            with closing(self._streams.of(s.data_key).chunks(visit.shard, visit.turn, s.shuffle)) as chunks:
                chunk = self._next(chunks, together)
            for crew in self.crews.of([each for each in together if not each.failed], True):
                batches = list(crew.cut.of(chunk)) or [batch for batch in [crew.cut.end()] if batch is not None]
                for _ in range(PROBED):
                    trying = self.crews.trying(crew)
                    if trying is None:
                        break
                    deque(self._take(crew, trying[0], list(islice(cycle(batches), trying[1])), True), maxlen=0)

    def fused(self, lane: Lane) -> Fused | None:
        """What the lane is fused in now."""
        return self._fused.get(lane)

    def release(self, lane: Lane) -> None:
        """The lane, and those fused with it, own their memory again.

        Raises:
            OutOfMemory: there is no room for that.
        """
        fused = self._fused.get(lane)
        if fused is not None:
            for member in fused.lanes:
                del self._fused[member]
            with blaming():  # it takes memory
                fused.split()

    def forsake(self, lanes: Collection[Lane]) -> None:
        """These lanes are given up, and need no memory of their own."""
        for lane in lanes:
            fused = self._fused.get(lane)
            if fused is not None and all(member in lanes for member in fused.lanes):
                for member in fused.lanes:
                    del self._fused[member]
                    member.pending = None  # it held the others' memory
            else:
                with suppress(OutOfMemory):  # the others go on in the memory that they share
                    self.release(lane)

    def _by_stream(self, passes: Sequence[Pass]) -> Iterable[list[Pass]]:
        streams: dict[tuple[object, ...], list[Pass]] = {}
        for each in passes:
            streams.setdefault(self._stream_of(each), []).append(each)
        return streams.values()

    def _stream_of(self, each: Pass) -> tuple[object, ...]:
        """Equal for passes that see the same chunks."""
        visit, shuffle, stream = each.unit.visit, each.lane.settings.shuffle, self._streams.of(each.lane.settings.data_key)
        turn = visit.turn if shuffle == "each" or stream.augments else 0
        return stream, visit.shard, turn, shuffle

    # -- one stream ----------------------------------------------------------------------------------------------------

    def _pass(self, passes: list[Pass], fuse: bool) -> Generator[News, None, None]:
        visit = passes[0].unit.visit
        left = self._data.size(visit.shard)
        going = yield from self._each(passes, self._begin)
        crews = self.crews.of(going, fuse)
        s = passes[0].lane.settings
        chunks = self._streams.of(s.data_key).chunks(visit.shard, visit.turn, s.shuffle)
        try:
            while left > 0 and going:
                try:
                    chunk = self._next(chunks, going)
                except TrialError as error:  # of the recipe's prepare or augment, or a batch that was written to: all lanes' own
                    yield from _fail(going, error)
                    return
                left -= self._data.chunk
                for crew in crews:
                    yield from self._train(crew, chunk, left <= 0)
                going = [each for each in going if not each.failed]
            try:
                with blaming():
                    next(chunks, None)  # the last chunk was found unchanged
            except TrialError as error:
                yield from _fail(going, error)
        finally:
            chunks.close()
        for each in passes:
            self._meter.waited(each.lane, each.waited / self._data.size(visit.shard))

    def _next(self, chunks: Iterator[Columns], passes: Sequence[Pass]) -> Columns:
        self.set_threads()
        begin = perf_counter()
        with blaming():
            chunk = next(chunks)
        seconds = perf_counter() - begin
        self._spend(passes, "data", seconds)
        for each in passes:
            each.waited += seconds
        return chunk

    def _train(self, crew: Crew, chunk: Columns, last: bool) -> Generator[News, None, None]:
        """All lanes of the crew, on this chunk."""
        batches = list(crew.cut.of(chunk))
        while batches and crew.passes:
            trying, count = self.crews.trying(crew), TRIES
            if trying is not None:
                width, count = trying
            elif crew.graph is not None and self.crews.unmeasured(crew):
                width = 1
            else:
                width, count = self.crews.width(crew), len(batches)
            yield from self._take(crew, width, batches[:count], trying is not None)
            batches = batches[count:]
        rest = crew.cut.end() if last else None
        if last and (rest is not None or any(each.lane.unfinished for each in crew.passes)):
            yield from self._take(crew, self.crews.width(crew), [] if rest is None else [rest], last=True)
        if last or not self._lazy or perf_counter() >= crew.reported + PART_SECONDS:
            crew.reported = perf_counter()
            yield from self._reports(crew.passes)
        crew.passes = [each for each in crew.passes if not each.failed]

    def _take(
        self, crew: Crew, width: int, batches: Sequence[Batch], trying: bool = False, last: bool = False
    ) -> Generator[News, None, None]:
        """Lanes fused by `width` on these batches. `trying`: to find out how long it takes. `last`: the end of the pass."""
        took: list[list[Seconds]] = []  # by what was tried, a step each
        for some in parted(crew.passes, width):
            fused = self._stacked(crew, some) if len(some) > 1 and width > 1 else None
            if fused is not None:
                tried = took if trying and len(some) == width else None
                yield from self._together(crew, fused, some, batches, tried, last)
            else:
                for each in some:
                    yield from self._alone(crew, each, batches, took if trying and width == 1 else None, last)
        if took:
            self.crews.timed(crew, width, took)
        crew.passes = [each for each in crew.passes if not each.failed]
        self._trained.update(each.lane for each in crew.passes)

    # -- interleaved ---------------------------------------------------------------------------------------------------

    def _alone(
        self, crew: Crew, each: Pass, batches: Sequence[Batch], took: list[list[Seconds]] | None, last: bool
    ) -> Iterator[News]:
        self.release(each.lane)
        lane = each.lane
        steps = _closing(lane, batches) if last else (lane.step(*batch) for batch in batches)
        if self._pace is None:
            steps = self._meter.timed(lane, steps)
        if took is not None:
            took.append([])
            steps = self._tried(took[-1], steps)
        try:
            while self._some(each, steps):
                yield from self._reports([each])
        except TrialError as error:
            yield from _fail([each], error)

    def _some(self, each: Pass, steps: Iterator[int]) -> bool:
        """Take the steps, for a while; whether some may be left. With a pace never cut by the clock."""
        self.set_threads()
        self.turn_of(each.unit.trial.id)
        due = perf_counter() + PART_SECONDS
        with each.spent.on("train"), blaming(), each.lane.rng:
            return any(self._pace is None and perf_counter() >= due for _ in steps)

    def _tried(self, took: list[Seconds], steps: Iterator[int]) -> Iterator[int]:
        begin = self._meter.now()
        for count in steps:
            took.append(self._meter.now() - begin)
            yield count
            begin = self._meter.now()

    # -- fused ---------------------------------------------------------------------------------------------------------

    def _stacked(self, crew: Crew, passes: Sequence[Pass]) -> Fused | None:
        """These lanes in one; None where that cannot be."""
        lanes = tuple(each.lane for each in passes)
        at = self._fused.get(lanes[0])
        if at is not None and at.lanes == lanes:
            return at
        begin = self._meter.now()
        for lane in lanes:
            self.release(lane)
        try:
            made = Fused(lanes)
        except Exception as error:  # noqa: BLE001 whatever it is: these lanes train one by one
            if self._settled(passes):
                self.crews.give_up(crew, error, len(passes))
            return None
        self._fused.update(dict.fromkeys(lanes, made))
        for signature in {lane.signature for lane in lanes}:
            self._meter.happened(signature, "repack", self._meter.now() - begin)
        return made

    def _settled(self, passes: Sequence[Pass]) -> bool:
        """Whether these models have got all their attributes: some come with the first batch."""
        return all(each.lane in self._trained for each in passes)

    def _together(
        self,
        crew: Crew,
        fused: Fused,
        passes: Sequence[Pass],
        batches: Sequence[Batch],
        took: list[list[Seconds]] | None,
        last: bool,
    ) -> Iterator[News]:
        self.set_threads()
        if took is not None:
            took.append([])
        self.turn_of(passes[0].unit.trial.id)
        begin = perf_counter()
        for at, batch in enumerate([*batches, None] if last else batches):
            started = self._meter.now() if took is not None else 0.0
            try:
                _step(fused, batch, last)
            except StepFailed as failed:  # these lanes' own optimizers; the others have made their step
                self._spend(passes, "train", perf_counter() - begin)
                yield from self._without(crew, passes, failed.errors, batches[at + 1 :], last)
                return
            except RAISED as error:  # nothing was changed, and each lane may say for itself
                self._spend(passes, "train", perf_counter() - begin)
                _let_go(error)
                yield from self._repeated(crew, passes, batches[at:], last, error if at or self._settled(passes) else None)
                return
            if took is not None:
                took[-1].append(self._meter.now() - started)
            if self._pace is None and perf_counter() >= begin + PART_SECONDS:
                self._spend(passes, "train", perf_counter() - begin)
                begin = perf_counter()
                yield from self._reports(passes)
                if any(each.failed for each in passes):
                    rest = [each for each in passes if not each.failed]
                    yield from self._repeated(crew, rest, batches[at + 1 :], last)
                    return
        self._spend(passes, "train", perf_counter() - begin)

    def _without(
        self, crew: Crew, passes: Sequence[Pass], errors: Mapping[int, BaseException], batches: Sequence[Batch], last: bool
    ) -> Iterator[News]:
        """Go on lane by lane without those that failed."""
        for number, error in errors.items():
            try:
                with blaming():
                    raise error
            except TrialError as told:
                self.release(passes[number].lane)
                yield from _fail([passes[number]], told)
        yield from self._repeated(crew, [each for each in passes if not each.failed], batches, last)

    def _repeated(
        self, crew: Crew, passes: Sequence[Pass], batches: Sequence[Batch], last: bool, error: BaseException | None = None
    ) -> Iterator[News]:
        """Go on lane by lane. An error that no lane has when alone is due to fusing."""
        for each in passes:
            yield from self._alone(crew, each, batches, None, last)
        if error is not None and not any(each.failed for each in passes):
            self.crews.give_up(crew, error, len(passes))

    def _reports(self, passes: Iterable[Pass]) -> Iterator[News]:
        for each in passes:
            try:
                with each.spent.on("train"), blaming():  # on a GPU it waits for the steps
                    samples, values = each.lane.taken()
            except TrialError as error:
                self.release(each.lane)
                yield from _fail([each], error)
                continue
            if self._pace is not None:
                each.spent.add("train", self._pace(each.unit.trial, samples))
            if samples:
                add(each.totals, values)
                yield each, Part(samples, values, each.spent.take())

    def _spend(self, passes: Sequence[Pass], name: str, seconds: Seconds) -> None:
        """Each lane's share of what they spent together."""
        if self._pace is None:
            for each in passes:
                each.spent.add(name, seconds / len(passes))

    def _each(self, passes: Iterable[Pass], do: Callable[[Pass], object]) -> Generator[News, None, list[Pass]]:
        """Those for which it does not raise."""
        good = []
        for each in passes:
            try:
                with blaming():
                    do(each)
                good.append(each)
            except TrialError as error:
                yield from _fail([each], error)
        return good

    def _begin(self, each: Pass) -> None:
        each.lane.begin(self._data.size(each.unit.visit.shard))

    def set_threads(self) -> None:
        """As many as this slot may use: other stations of this process may have other numbers."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


def _step(fused: Fused, batch: Batch | None, last: bool) -> None:
    """One of the batches; None: the end of the pass."""
    if batch is None:
        fused.close()
    elif last:
        fused.last(*batch)
    else:
        fused.step(*batch)


def _let_go(error: BaseException | None) -> None:
    """Keep the error, but nothing that the functions held through which it came: activations, most of all."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _closing(lane: Lane, batches: Sequence[Batch]) -> Iterator[int]:
    """The end of a pass."""
    for batch, count in batches:
        yield from lane.last(batch, count)
    lane.close()


def _fail(passes: Sequence[Pass], error: TrialError) -> Iterator[News]:
    if isinstance(error, OutOfMemory):
        raise error
    for each in passes:
        each.failed = True
        yield each, error
