"""Several lanes on one slot: one visit of each, over as few streams of data as their shards and orders allow.

Two ways: *interleaved*, one lane after the other on each chunk, equal to training alone bit for bit;
*fused*, lanes of one graph in one step, where that was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import fmean
from time import perf_counter
from traceback import clear_frames
from weakref import WeakKeyDictionary, WeakSet

import torch

from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.train.account import Spent, add, blaming
from shoal.train.batched import formula
from shoal.train.batches import Batch, Batches
from shoal.train.columns import Columns
from shoal.train.data import Data
from shoal.train.fused import Fused, StepFailed, graph_key
from shoal.train.gauge import TRIES, Gauge
from shoal.train.lane import Lane
from shoal.train.measure import Meter
from shoal.train.stream import Streams
from shoal.train.unit import OutOfMemory, Part, TrialError, Unit

PART_SECONDS = 1.0  # a chunk that takes longer is reported in pieces
Pace = Callable[[Trial, Samples], Seconds]


@dataclass(eq=False, slots=True)
class Pass:
    """A lane's visit under way."""

    unit: Unit
    lane: Lane
    spent: Spent
    totals: dict[str, Sum] = field(default_factory=dict)  # of the values noted
    waited: Seconds = 0.0  # for chunks
    failed: bool = False
    done: bool = False


News = tuple[Pass, Part | TrialError]


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
        self.turn_of = turn_of or (lambda _: None)
        self._fused: dict[Lane, Fused] = {}
        self._graphs: WeakKeyDictionary[Lane, str | None] = WeakKeyDictionary()
        self._unfusable: set[str] = set()  # signatures of which that was told
        self._trained: WeakSet[Lane] = WeakSet()  # here, at least one batch
        self.gauge = Gauge()

    def run(self, passes: Sequence[Pass], fuse: bool = False) -> Generator[News, None, None]:
        """Make the visits. What a lane's own code raises ends that lane only.

        Raises:
            OutOfMemory: of a lane among several; all visits are void.
            DataError: the study must pause.
        """
        streams: dict[tuple[object, ...], list[Pass]] = {}
        for each in passes:
            streams.setdefault(self._stream_of(each), []).append(each)
        for together in streams.values():
            yield from self._pass(together, fuse)

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
            else:
                with suppress(OutOfMemory):  # the others go on in the memory that they share
                    self.release(lane)

    def _stream_of(self, each: Pass) -> tuple[object, ...]:
        """Equal for passes that see the same chunks."""
        visit, shuffle, stream = each.unit.visit, each.lane.settings.shuffle, self._streams.of(each.lane.settings.data_key)
        turn = visit.turn if shuffle == "each" or stream.augments else 0
        return stream, visit.shard, turn, shuffle

    # -- one stream ----------------------------------------------------------------------------------------------------

    def _pass(self, passes: list[Pass], fuse: bool) -> Generator[News, None, None]:
        visit = passes[0].unit.visit
        left = self._data.size(visit.shard)
        going = yield from self._each(passes, lambda each: each.lane.begin(left))
        crews = self._crews(going, fuse)
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

    def _crews(self, passes: Sequence[Pass], fuse: bool) -> list[_Crew]:
        """Lanes by batch size, and by graph where they may be fused; a batch is cut once for all of a crew."""
        crews: dict[tuple[object, ...], _Crew] = {}
        for each in passes:
            size = each.lane.settings.batch_size
            graph = self._graph(each.lane) if fuse and len(passes) > 1 else None
            crews.setdefault((size, graph), _Crew([], Batches(size), graph)).passes.append(each)
        for crew in crews.values():
            if crew.graph is not None:  # optimizers of one formula step together where they follow each other
                crew.passes.sort(key=lambda each: repr(formula(each.lane.optimizer)))
                crew.mix = " ".join(sorted({repr(formula(each.lane.optimizer)) for each in crew.passes}))
                if self.gauge.why(crew.graph) is not None:
                    self._tell_unfusable(crew)
        return list(crews.values())

    def _graph(self, lane: Lane) -> str | None:
        """The lane's graph key, found once: a model whose graph changes as it trains cannot be fused. None: it has none."""
        if lane not in self._graphs:
            try:
                self._graphs[lane] = graph_key(lane)
            except Exception:  # noqa: BLE001 the model's attributes may be of any kind
                self._graphs[lane] = None
        return self._graphs[lane]

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

    def _train(self, crew: _Crew, chunk: Columns, last: bool) -> Generator[News, None, None]:
        """All lanes of the crew, on this chunk."""
        batches = list(crew.cut.of(chunk))
        while batches and crew.passes:
            trying = self._trying(crew)
            width, count = self._width(crew) if trying is None else trying, len(batches) if trying is None else TRIES
            yield from self._take(crew, width, batches[:count], trying is not None)
            batches = batches[count:]
        rest = crew.cut.end() if last else None
        if last and (rest is not None or any(each.lane.unfinished for each in crew.passes)):
            yield from self._take(crew, self._width(crew), [] if rest is None else [rest], last=True)
        yield from self._reports(crew.passes)
        crew.passes = [each for each in crew.passes if not each.failed]

    def _trying(self, crew: _Crew) -> int | None:
        if crew.graph is None or self._pace is not None or self.gauge.why(crew.graph) is not None:
            return None
        return self.gauge.wants(crew.graph, len(crew.passes), crew.mix)

    def _width(self, crew: _Crew) -> int:
        if crew.graph is None or self.gauge.why(crew.graph) is not None:
            return 1
        return len(crew.passes) if self._pace is not None else self.gauge.choose(crew.graph, len(crew.passes))

    def _take(
        self, crew: _Crew, width: int, batches: Sequence[Batch], trying: bool = False, last: bool = False
    ) -> Generator[News, None, None]:
        """Lanes fused by `width` on these batches. `trying`: to find out how long it takes. `last`: the end of the pass."""
        took: list[list[Seconds]] = []  # by what was tried, a step each
        for some in _parted(crew.passes, width):
            fused = self._stacked(crew, some) if len(some) > 1 and width > 1 else None
            if fused is not None:
                tried = took if trying and len(some) == width else None
                yield from self._together(crew, fused, some, batches, tried, last)
            else:
                for each in some:
                    yield from self._alone(crew, each, batches, took if trying and width == 1 else None, last)
        for steps in zip(*(accumulate(each, min) for each in took), strict=False):
            self._timed(crew, width, fmean(steps))  # the mean of each one's least so far: lanes' optimizers cost unequally
        crew.passes = [each for each in crew.passes if not each.failed]
        self._trained.update(each.lane for each in crew.passes)

    # -- interleaved ---------------------------------------------------------------------------------------------------

    def _alone(
        self, crew: _Crew, each: Pass, batches: Sequence[Batch], took: list[list[Seconds]] | None, last: bool
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

    def _timed(self, crew: _Crew, width: int, seconds: Seconds) -> None:
        assert crew.graph is not None, "only of lanes that may be fused"
        if self.gauge.took(crew.graph, width, seconds, crew.mix) and width > 1:
            part = self.gauge.ratio(crew.graph, width)
            for signature in {each.lane.signature for each in crew.passes}:
                step = self._meter.step(signature)
                if part is not None and step is not None:  # to each as if all were of its own optimizer
                    self._meter.tell(signature, **{f"fused:{width}": width * part * step})

    def _tell_unfusable(self, crew: _Crew) -> None:
        for signature in {each.lane.signature for each in crew.passes} - self._unfusable:
            self._unfusable.add(signature)
            self._meter.tell(signature, unfusable=1.0)

    # -- fused ---------------------------------------------------------------------------------------------------------

    def _stacked(self, crew: _Crew, passes: Sequence[Pass]) -> Fused | None:
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
                self._give_up(crew, error)
            return None
        self._fused.update(dict.fromkeys(lanes, made))
        for signature in {lane.signature for lane in lanes}:
            self._meter.happened(signature, "repack", self._meter.now() - begin)
        return made

    def _settled(self, passes: Sequence[Pass]) -> bool:
        """Whether these models have got all their attributes: some come with the first batch."""
        return all(each.lane in self._trained for each in passes)

    def _give_up(self, crew: _Crew, error: Exception) -> None:
        """Never again fuse such lanes."""
        if crew.graph is not None:
            self.gauge.never(crew.graph, f"{type(error).__name__}: {error}")
            self._tell_unfusable(crew)

    def _together(
        self,
        crew: _Crew,
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
            except Exception as error:  # noqa: BLE001 nothing was changed, and each lane may say for itself
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
        self, crew: _Crew, passes: Sequence[Pass], errors: Mapping[int, BaseException], batches: Sequence[Batch], last: bool
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
        self, crew: _Crew, passes: Sequence[Pass], batches: Sequence[Batch], last: bool, error: Exception | None = None
    ) -> Iterator[News]:
        """Go on lane by lane. An error that no lane has when alone is due to fusing."""
        for each in passes:
            yield from self._alone(crew, each, batches, None, last)
        if error is not None and not any(each.failed for each in passes):
            self._give_up(crew, error)

    def _reports(self, passes: Iterable[Pass]) -> Iterator[News]:
        for each in passes:
            try:
                with blaming():
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

    def set_threads(self) -> None:
        """As many as this slot may use: other stations of this process may have other numbers."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)


@dataclass(eq=False, slots=True)
class _Crew:
    """Lanes that take the same batches. `graph`: their graph key, where they may be fused; `mix`: which optimizers they have."""

    passes: list[Pass]
    cut: Batches
    graph: str | None
    mix: str = ""


def _parted(passes: Sequence[Pass], width: int) -> list[list[Pass]]:
    """In equal parts of at most `width`, in order; one by one there is no need to part them."""
    if width <= 1:
        return [list(passes)]
    parts = -(-len(passes) // width)
    cuts = [len(passes) * i // parts for i in range(parts + 1)]
    return [list(passes[a:b]) for a, b in pairwise(cuts)]


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
