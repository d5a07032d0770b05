"""Which lanes of a slot are fused; and steps of lanes, alone and fused."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from traceback import clear_frames
from weakref import WeakSet

from shoal.core.trial import Seconds
from shoal.train.fuse.fused import Fused, StepFailed
from shoal.train.lane.blame import add, blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.overdue import in_time
from shoal.train.recipe.unit import RAISED, OutOfMemory, Part, TrialError
from shoal.train.slot.context import SlotContext
from shoal.train.slot.fusion import BatchGroup, Fusion, News, Pass
from shoal.train.stream.stream import Batch

PART_SECONDS = 1.0  # a chunk that takes longer is reported in pieces


class LaneStacks:
    """The lanes of one slot that are fused now, and with which others.

    Fused lanes share a stack: one piece of memory for the parameters of all. `crews` learns which
    lanes can never be fused.
    """

    def __init__(self, workplace: SlotContext, crews: Fusion) -> None:
        self._at = workplace
        self._crews = crews
        self._stacks: dict[TrainingLane, Fused] = {}
        # lanes that trained on a batch here
        self._trained: WeakSet[TrainingLane] = WeakSet()

    def trained(self, passes: Sequence[Pass]) -> None:
        """These lanes have trained on a batch here."""
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
        """These lanes are given up, and need no memory of their own."""
        for lane in lanes:
            fused = self._stacks.get(lane)
            if fused is not None and all(member in lanes for member in fused.lanes):
                self._forget(fused)
                for member in fused.lanes:
                    member.noted.pending = None  # it held the others' memory
                continue
            # Without room the other members go on in the memory that they share.
            with suppress(OutOfMemory):
                self.release(lane)

    def _forget(self, fused: Fused) -> None:
        for member in fused.lanes:
            del self._stacks[member]

    def join(self, crew: BatchGroup, passes: Sequence[Pass]) -> Fused | None:
        """Fuse these lanes; None if they cannot be fused."""
        lanes = tuple(each.lane for each in passes)
        present = self._stacks.get(lanes[0])
        if present is not None and present.lanes == lanes:
            return present

        meter = self._at.meter
        begin = meter.now()
        for lane in lanes:
            self.release(lane)
        try:
            made = Fused(lanes)
        except Exception as error:  # noqa: BLE001 whatever it is: these lanes train one by one
            if self.settled(passes):
                self._crews.give_up(crew, error, len(passes))
            return None
        self._stacks.update(dict.fromkeys(lanes, made))
        self._record_repacking(lanes, meter.now() - begin)
        return made

    def _record_repacking(self, lanes: Iterable[TrainingLane], took: Seconds) -> None:
        """Tell the meter how long it took to fuse these lanes."""
        for signature in {lane.signature for lane in lanes}:
            self._at.meter.record(signature, "repack", took)

    def settled(self, passes: Sequence[Pass]) -> bool:
        """Whether all these models have trained here: some get attributes with the first batch."""
        return all(each.lane in self._trained for each in passes)


@dataclass(frozen=True, slots=True)
class LaneWork:
    """Batches on which lanes of a crew are to train.

    `took`: where the seconds of steps go, a list of them by lane or stack; None: take no times.
    `last`: the pass ends with these batches.
    """

    crew: BatchGroup
    batches: Sequence[Batch]
    took: list[list[Seconds]] | None = None
    last: bool = False

    def times(self) -> list[Seconds] | None:
        """A new list for the seconds of one lane or stack; None: take no times."""
        if self.took is None:
            return None
        self.took.append([])
        return self.took[-1]

    def untimed(self, start: int = 0) -> LaneWork:
        """The work from that batch on, without taking times."""
        return LaneWork(self.crew, self.batches[start:], None, self.last)


class LaneSteps:
    """Steps of a slot's lanes on given batches: one lane after the other, or fused.

    What a lane's own code raises ends that lane only; the others make all of their steps.
    """

    def __init__(self, workplace: SlotContext, crews: Fusion, fusing: LaneStacks) -> None:
        self._at = workplace
        self._meter = workplace.meter
        self._pace = workplace.setup.pace
        self._crews = crews
        self._fusing = fusing

    # -- one by one ----------------------------------------------------------------------------

    def alone(self, each: Pass, work: LaneWork) -> Iterator[News]:
        """The lane's steps on these batches."""
        lane = each.lane
        self._fusing.release(lane)
        steps: Iterator[int] = (lane.step(*batch) for batch in work.batches)
        if work.last:
            steps = closing_steps(lane, work.batches)
        if self._pace is None:
            steps = self._meter.timed(lane, steps)
        times = work.times()
        if times is not None:
            steps = self._timed(times, steps)

        try:
            while self._some(each, steps):
                yield from self.reports([each])
        except TrialError as error:
            yield from fail([each], error)

    def _some(self, each: Pass, steps: Iterator[int]) -> bool:
        """Take steps for about `PART_SECONDS`; whether some may be left.

        With a pace all steps are taken, so that the clock decides nothing.
        """
        self._at.set_threads()
        self._at.turn_of(each.trial)
        due = perf_counter() + PART_SECONDS
        kind = ("train", each.lane.signature)
        with each.spent.on("train"), blaming(kind), each.lane.rng:
            return any(self._pace is None and perf_counter() >= due for _ in steps)

    def _timed(self, times: list[Seconds], steps: Iterator[int]) -> Iterator[int]:
        """The steps; the seconds of each are appended to `times`."""
        begin = self._meter.now()
        for count in steps:
            times.append(self._meter.now() - begin)
            yield count
            begin = self._meter.now()

    # -- fused ---------------------------------------------------------------------------------

    def together(self, fused: Fused, passes: Sequence[Pass], work: LaneWork) -> Iterator[News]:
        """Fused steps on these batches."""
        self._at.set_threads()
        self._at.turn_of(passes[0].trial)
        times = work.times()
        kind = ("fused", passes[0].lane.signature)
        begin = perf_counter()
        batches: list[Batch | None] = list(work.batches)
        if work.last:
            batches.append(None)

        for number, batch in enumerate(batches):
            try:
                with in_time(kind):
                    self._fused_step(fused, batch, work.last, times)
            except RAISED as error:
                self.spend(passes, "train", perf_counter() - begin)
                yield from self._after_error(error, number, passes, work)
                return
            if self._pace is not None or perf_counter() < begin + PART_SECONDS:
                continue
            self.spend(passes, "train", perf_counter() - begin)
            begin = perf_counter()
            yield from self.reports(passes)
            if any(each.failed for each in passes):
                yield from self._one_by_one(_going(passes), work.untimed(number + 1))
                return
        self.spend(passes, "train", perf_counter() - begin)

    def _fused_step(
        self,
        fused: Fused,
        batch: Batch | None,
        last: bool,
        times: list[Seconds] | None,
    ) -> None:
        """Take one fused step. Its seconds are appended to `times`, if that is a list."""
        if times is None:
            step(fused, batch, last)
            return
        started = self._meter.now()
        step(fused, batch, last)
        times.append(self._meter.now() - started)

    def _after_error(
        self, error: BaseException, number: int, passes: Sequence[Pass], work: LaneWork
    ) -> Iterator[News]:
        """Go on lane by lane after the fused step on batch `number` raised."""
        if isinstance(error, StepFailed):
            # The optimizers of some lanes raised; the others have made their step.
            yield from self._without(error.errors, passes, work.untimed(number + 1))
            return
        # No lane was changed, and each may raise an error of its own.
        let_go(error)
        known = None
        if number or self._fusing.settled(passes):
            known = error
        yield from self._one_by_one(passes, work.untimed(number), known)

    def _without(
        self,
        errors: Mapping[int, BaseException],
        passes: Sequence[Pass],
        work: LaneWork,
    ) -> Iterator[News]:
        """Go on lane by lane without the lanes that failed: `errors` by number of the lane."""
        for number, error in errors.items():
            failed = passes[number]
            try:
                with blaming():
                    raise error
            except TrialError as blamed:
                self._fusing.release(failed.lane)
                yield from fail([failed], blamed)
        yield from self._one_by_one(_going(passes), work)

    def _one_by_one(
        self,
        passes: Sequence[Pass],
        work: LaneWork,
        error: BaseException | None = None,
    ) -> Iterator[News]:
        """Go on lane by lane. An error that no lane has when alone is due to fusing."""
        for each in passes:
            yield from self.alone(each, work)
        if error is not None and not any(each.failed for each in passes):
            self._crews.give_up(work.crew, error, len(passes))

    # -- what they report ----------------------------------------------------------------------

    def reports_of(self, crew: BatchGroup, at_once: bool) -> Iterator[News]:
        """What the crew's lanes have done; nothing if they reported it within `PART_SECONDS`.

        `at_once`: report whenever that was.
        """
        if at_once or perf_counter() >= crew.reported + PART_SECONDS:
            crew.reported = perf_counter()
            yield from self.reports(crew.passes)

    def reports(self, passes: Iterable[Pass]) -> Iterator[News]:
        """What these lanes have done since their last reports."""
        for each in passes:
            try:
                # On a GPU this waits for the steps.
                with each.spent.on("train"), blaming():
                    samples, values = each.lane.taken()
            except TrialError as error:
                self._fusing.release(each.lane)
                yield from fail([each], error)
                continue

            if self._pace is not None:
                each.spent.add("train", self._pace(each.unit.trial, samples))
            if samples:
                add(each.totals, values)
                yield each, Part(samples, values, each.spent.take())

    def spend(self, passes: Sequence[Pass], name: str, seconds: Seconds) -> None:
        """Add to each lane its share of the seconds that they spent together."""
        if self._pace is None:
            for each in passes:
                each.spent.add(name, seconds / len(passes))


def _going(passes: Sequence[Pass]) -> list[Pass]:
    """The passes that have not failed."""
    return [each for each in passes if not each.failed]


def step(fused: Fused, batch: Batch | None, last: bool) -> None:
    """Take one step on the batch; None: end the pass. `last`: the pass ends with this batch."""
    if batch is None:
        fused.close()
    elif last:
        fused.last(*batch)
    else:
        fused.step(*batch)


def let_go(error: BaseException | None) -> None:
    """Free the local variables of the functions through which the error came.

    Most of that memory is activations. The error itself stays.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def closing_steps(lane: TrainingLane, batches: Sequence[Batch]) -> Iterator[int]:
    """The steps on the last batches of a pass, and the end of the pass."""
    for batch, count in batches:
        yield from lane.last(batch, count)
    lane.close()


def fail(passes: Sequence[Pass], error: TrialError) -> Iterator[News]:
    """End these passes with the error.

    Raises:
        OutOfMemory: that is the error; all visits of the slot are then void.
    """
    if isinstance(error, OutOfMemory):
        raise error
    for each in passes:
        each.failed = True
        yield each, error
