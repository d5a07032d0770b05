"""A slot's part in units that several processes train together, one unit after another."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median
from time import perf_counter

from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.profile.pace import ALIKE_STEPS
from shoal.profile.widths import AT
from shoal.train.lane.measure import COUNTED, STEPS, Extra, Meter, all_reduce_figures, whole_batches
from shoal.train.recipe.hooks import why_one_slot
from shoal.train.recipe.seat import Orders, Rescale, Seat
from shoal.train.recipe.unit import Done, Made, OutOfMemory, Reached, TrialError, Unit
from shoal.train.slot.context import SlotContext, Stopwatch
from shoal.train.slot.lane_cache import CachedLane, LaneCache
from shoal.train.slot.pack_loop import PackLoop
from shoal.train.slot.passes import Pass
from shoal.train.slot.units import Scores, Units
from shoal.train.stream.reader import JointReader, Reader
from shoal.train.wide.lane import Adrift, WideLane
from shoal.train.wide.step import AnyReader

WITHIN_ON_ONE_SLOT = (
    "validate_every asks for evaluations within a pass over a shard, which a trial on several "
    "slots cannot have: give whole epochs, or widths=(1, 1)"
)


@dataclass(eq=False, slots=True)
class GangUnit:
    """A unit that this process makes with others.

    `pass_made`: rank 0 has yet to report the unit.
    """

    unit: Unit
    cached: CachedLane
    wide: WideLane
    pass_made: bool = False

    def makes(self, unit: Unit) -> bool:
        """Whether the unit is the same visit, after the same visits."""
        return self.unit.visit == unit.visit and self.unit.visits == unit.visits


class GangUnits:
    """The units that this slot makes with others.

    All ranks make the pass. Then rank 0 evaluates, keeps and reports the unit, while the others
    wait to hear that it was made.
    """

    def __init__(
        self, context: SlotContext, pack: PackLoop, lanes: LaneCache, units: Units
    ) -> None:
        self._context = context
        self._meter = context.meter
        self._pack = pack
        self._lanes = lanes
        self._evaluation = pack.evaluation
        self._units = units
        self._gang_units: dict[TrialId, GangUnit] = {}
        self._times = StepTimes(context.meter, context.setup.clocked)

    def run(
        self,
        unit: Unit,
        seat: Seat,
        orders: Orders,
        *,
        joins: bool = False,
        on: OnStep | None = None,
    ) -> tuple[Done, dict[str, Sum]] | Made | None:
        """Make the unit with the others of the seat's generation.

        Rank 0 returns the report and the sums of what the pass noted, the others return `Made`.
        A process that leaves the lane on order returns None. When called again for the same unit,
        the slot goes on where it stopped. A visit that names widths is made again at those widths.

        `joins`: other processes are at the unit already. `on`: rank 0 calls it after each step with
        the samples of the pass so far.

        Raises:
            Halted: the unit was given up.
            Adrift: a peer was lost; `run` can be called again for the unit.
            TrialError, LookupError, DataError, OSError, StaleRun: as `SlotTrainer.train`. The
                trial's state here is dropped.
        """
        trial = unit.trial.id
        spent = self._context.stopwatch()
        try:
            gang_unit = self._take(unit, orders, joins, spent)
            if not self._train(gang_unit, seat, spent, on):
                del self._gang_units[trial]
                return None
            gang_unit.pass_made = True
            if gang_unit.wide.seat.rank != 0:
                return Made()
            return self._report(gang_unit, spent), gang_unit.wide.totals
        except Adrift:
            raise
        except OutOfMemory as error:
            dropped = self._gang_units.pop(trial, None)
            signature = "" if dropped is None else dropped.wide.lane.signature
            self._lanes.drop(trial)
            freed = self._lanes.ran_out(alone=True)
            raise OutOfMemory(error.why, error.text, signature, freed) from error
        except TrialError:
            self._gang_units.pop(trial, None)
            self._lanes.drop(trial)
            raise
        except BaseException:
            self._gang_units.pop(trial, None)
            raise

    def conclude(
        self, trial: TrialId, visits: tuple[Visit, ...], scores: Scores | None, last: bool
    ) -> bool:
        """End a unit that was made here, too, after rank 0 has reported it.

        Returns whether the lane is now in the state after these visits. `last`: the trial is over.
        """
        gang_unit = self._gang_units.get(trial)
        if gang_unit is None or not gang_unit.pass_made or not gang_unit.unit.is_made_in(visits):
            return False
        del self._gang_units[trial]
        wide = gang_unit.wide
        try:
            self._units.advance(wide.lane, gang_unit.unit.trial, visits, scores)
        except TrialError:  # rank 0 reports the same error
            return False
        if last or gang_unit.unit.carry:  # the trial may go on elsewhere
            wide.leave()
        self._lanes.settle(trial, gang_unit.cached, durable=True)  # rank 0 has the state too
        return True

    # -- a unit --------------------------------------------------------------------------------

    def _take(self, unit: Unit, orders: Orders, joins: bool, spent: Stopwatch) -> GangUnit:
        """The unit to go on with, where it was left; or a new one."""
        trial = unit.trial.id
        gang_unit = self._gang_units.get(trial)
        if gang_unit is None or not gang_unit.makes(unit):
            self._lanes.make_room([unit])
            gang_unit = self._begin(unit, orders, joins, spent)
            self._gang_units[trial] = gang_unit
            return gang_unit
        gang_unit.unit = replace(unit, source=None)
        gang_unit.wide.moves.orders = orders
        self._lanes.restore(trial, gang_unit.cached)
        return gang_unit

    def _begin(self, unit: Unit, orders: Orders, joins: bool, spent: Stopwatch) -> GangUnit:
        """Begin a unit. `joins`: other processes are at it already."""
        current = self._lanes.current(unit.trial.id)
        same = current is not None and current.lane.visits == unit.visits
        fresh = not unit.visits and not joins
        # whether the lane is to be in the state before the unit: if not, another process sends it
        whole = same or unit.source is not None or fresh
        cached = (self._lanes.ready if whole else self._lanes.in_any_state)(unit, spent)
        lane = cached.lane
        self._pack.stacks.release(lane)
        cached.current = False
        cached.durable = False
        why = why_one_slot(lane.recipe)
        if unit.within or unit.steps:
            why = WITHIN_ON_ONE_SLOT
        if why is not None:
            raise TrialError(why, signature=lane.signature)
        if cached.wide is None:
            cached.wide = WideLane(lane, orders)
            same = False
        cached.wide.moves.orders = orders

        visit = unit.visit
        stream = self._context.streams.of(lane.settings.data_key)
        passes = {
            shard: partial(stream.chunks, shard, visit.turn, lane.settings.order)
            for shard in visit.shards
        }
        sizes = {shard: self._context.data.size(shard) for shard in visit.shards}
        reader: AnyReader = JointReader(passes, sizes, unit.reads)
        if not visit.beside:
            reader = Reader(passes[visit.shard], sizes[visit.shard])
        cached.wide.begin(reader, whole=whole, same=same, follow=visit.widths)
        return GangUnit(replace(unit, source=None), cached, cached.wide)

    def _train(self, gang_unit: GangUnit, seat: Seat, spent: Stopwatch, on: OnStep | None) -> bool:
        """Make the pass; returns whether it was made: if not, this process left on order."""
        wide = gang_unit.wide
        self._context.set_threads()
        begin = perf_counter()
        wide.clock.take()
        try:
            return self._times.take_steps(wide, wide.run(seat), on)
        finally:
            pace = self._context.setup.pace
            _, took = wide.clock.take()
            if pace is None:
                data = took.get("data", 0.0)
                work = sum(took.values())
                # what was neither data nor steps went into changes of width
                spent.add("switch", max(0.0, perf_counter() - begin - work))
                spent.add("data", data)
                spent.add("train", work - data)
            else:
                samples = sum(map(self._context.data.size, gang_unit.unit.visit.shards))
                spent.add("train", pace(gang_unit.unit.trial, samples))

    def _report(self, gang_unit: GangUnit, spent: Stopwatch) -> Done:
        """Evaluate, keep and report the unit, as rank 0 does after the pass.

        Raises:
            TrialError: the recipe's code raised.
        """
        wide = gang_unit.wide
        widths = tuple((start, width) for start, width in wide.widths)
        if widths == ((0, 1),) or not wide.lane.settings.batch_per_slot:
            widths = ()  # what the trial learnt does not depend on them
        unit = replace(gang_unit.unit, visit=gang_unit.unit.visit._replace(widths=widths))
        lane_pass = Pass(unit, wide.lane, spent, wide.totals, evaluate=unit.evaluate)
        scores = None
        if unit.evaluate:
            scores = self._evaluation.scores([lane_pass]).get(lane_pass.trial)
        if isinstance(scores, TrialError):
            raise scores
        self._times.report(wide)
        done = self._units.conclude(lane_pass, gang_unit.cached, scores)
        del self._gang_units[lane_pass.trial]
        if unit.last or unit.carry:
            wide.leave()
        return done


Kind = tuple[str, int]  # signature and width
TimedStep = tuple[int, Seconds]  # samples, and the seconds for them
OnStep = Callable[[Reached], None]  # gets how far the pass is
# `ALIKE_STEPS` of whole batches, whose seconds differ by this part at most, tell the rate before
# there are `STEPS` of them.
APART = 0.05


class StepTimes:
    """Takes the steps of passes, and tells the meter rates by width and the time of changes.

    `clocked`: whether rates are also told while a pass is made.
    """

    def __init__(self, meter: Meter, clocked: bool = True) -> None:
        self._meter = meter
        self._clocked = clocked
        self._steps: dict[Kind, list[TimedStep]] = {}
        # whose rates were told while a pass was made
        self._known_rates: set[Kind] = set()
        # how many steps there were at the last report
        self._reported: dict[Kind, int] = {}

    def take_steps(
        self, wide: WideLane, steps: Generator[int, None, bool], on: OnStep | None
    ) -> bool:
        """Take all steps of the pass, and time some of them; returns what `WideLane.run` does."""
        rates: dict[str, float] = {}  # that became known in the pass
        before = len(wide.changes.rescales)
        try:
            last = self._first_step(wide, steps, on)
            while True:
                count = next(steps)
                if self._clocked:
                    rates |= _seconds(wide.changes.rescales[before:])
                signature, width, size = wide.lane.signature, wide.seat.width, wide.lane.size
                timed = self._steps.setdefault((signature, width), [])
                if len(timed) >= STEPS:
                    last = None
                else:
                    now = self._meter.now()  # to ask for the time is to wait for a GPU
                    if last is not None and last[0] == wide.seat:
                        timed.append((count, now - last[1]))
                        if width == 1:
                            self._meter.timed_elsewhere(signature, *timed[-1])
                        is_known = (signature, width) in self._known_rates
                        if self._clocked and not is_known and _are_enough(timed, size):
                            self._known_rates.add((signature, width))
                            rates[_rate_name(width)] = _rate(timed[-COUNTED:], size)
                    last = (wide.seat, now)
                _report_progress(wide, on, rates)
        except StopIteration as stop:
            return bool(stop.value)

    def _first_step(
        self, wide: WideLane, steps: Iterator[int], on: OnStep | None
    ) -> tuple[Seat, Seconds] | None:
        """Take the first step, and measure its memory, if that is unknown.

        Returns where the process sat and when the step was done; None if no step was taken.
        """
        signature = wide.lane.signature
        if not wide.whole or wide.position or self._meter.knows_memory(signature):
            return None

        extra = Extra(wide.lane, wide.lane.device)
        with extra:
            next(steps)
            now = self._meter.now()
            _report_progress(wide, on, {})
        width = wide.seat.width
        self._meter.learn_memory(signature, extra.bytes * width)
        return wide.seat, now

    def report(self, wide: WideLane) -> None:
        """Hand the meter what is new since the last report."""
        lane = wide.lane
        signature = lane.signature
        for width in {width for _, width in wide.widths} - {1}:
            kind = (signature, width)
            steps = self._steps.get(kind, [])
            if len(steps) > self._reported.get(kind, 0):
                self._reported[kind] = len(steps)
                rate = {_rate_name(width): _rate(steps[-COUNTED:], lane.size)}
                self._meter.tell(signature, **rate, **all_reduce_figures(lane))
        for figures in (_seconds(wide.changes.take()), wide.take_links()):
            if figures:
                self._meter.tell(signature, **figures)


def _seconds(changes: Sequence[Rescale]) -> dict[str, Seconds]:
    """The mean seconds of changes to greater widths ("up"), and to smaller ones ("down")."""
    by_name: dict[str, list[Seconds]] = {}
    for change in changes:
        if change.after != change.before:
            name = "up" if change.after > change.before else "down"
            by_name.setdefault(name, []).append(change.seconds)
    return {name: mean(seconds) for name, seconds in by_name.items()}


def _report_progress(wide: WideLane, on: OnStep | None, rates: Mapping[str, float]) -> None:
    """Report how far the pass is, on rank 0."""
    if on is not None and wide.seat.rank == 0:
        on(Reached(wide.position, (), wide.lane.signature, dict(rates)))


def _rate_name(width: int) -> str:
    """The name of the figure that is the rate at this width."""
    if width == 1:
        return "rate"
    return f"{AT}{width}"


def _are_enough(steps: Sequence[TimedStep], size: int) -> bool:
    """Whether these steps tell the rate: there are `STEPS`, or the last ones are alike."""
    if len(steps) >= STEPS:
        return True
    last = steps[-ALIKE_STEPS:]
    took = [seconds for count, seconds in last if count == size]
    return len(took) == ALIKE_STEPS and max(took) - min(took) <= APART * median(took)


def _rate(steps: Sequence[TimedStep], size: int) -> float:
    """Samples per second, by the steps of whole batches if there are any.

    `steps`: samples and seconds of each. `size`: samples in a whole batch.
    """
    samples, seconds = whole_batches(steps, size)
    return samples / max(median(seconds), 1e-9)
