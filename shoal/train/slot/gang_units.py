"""A slot's part in units that several processes train together, one unit after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median
from time import perf_counter
from typing import NoReturn

from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.profile.pace import ALIKE_STEPS
from shoal.profile.widths import AT
from shoal.train.lane.blame import Spent
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.measure import COUNTED, STEPS, Extra, Meter, all_reduce_figures
from shoal.train.recipe.hooks import why_one_slot
from shoal.train.recipe.seat import Orders, Rescale, Seat
from shoal.train.recipe.unit import Done, Made, OutOfMemory, Reached, TrialError, Unit
from shoal.train.slot.context import SlotContext
from shoal.train.slot.lane_cache import CachedLane, LaneCache
from shoal.train.slot.pack_loop import PackLoop
from shoal.train.slot.passes import Pass
from shoal.train.slot.units import Scores, Units
from shoal.train.stream.reader import JointReader, Reader
from shoal.train.wide.lane import Adrift, WideLane
from shoal.train.wide.step import AnyReader

WITHIN_ON_ONE_SLOT = (
    "validate_every asks for evaluations within a visit to a shard, which a trial on several slots "
    "cannot have: give whole epochs, or widths=(1, 1)"
)


@dataclass(eq=False, slots=True)
class GangUnit:
    """A unit that this process makes with others.

    `made`: its pass is made, and rank 0 has yet to report the unit.
    """

    unit: Unit
    cached: CachedLane
    wide: WideLane
    made: bool = False

    def makes(self, unit: Unit) -> bool:
        """Whether this is the same visit, after the same visits."""
        own = self.unit
        return own.visit == unit.visit and own.visits == unit.visits


class GangUnits:
    """The units that this slot makes with others.

    All ranks make the pass. Then rank 0 evaluates, keeps and reports the unit, while the others
    wait to hear that it was made.
    """

    def __init__(
        self,
        context: SlotContext,
        pack: PackLoop,
        lanes: LaneCache,
        units: Units,
    ) -> None:
        self._context = context
        self._meter = context.meter
        self._pack = pack
        self._lanes = lanes
        self._evaluation = pack.evaluation
        self._units = units
        self._shared: dict[TrialId, GangUnit] = {}
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
            shared = self._take(unit, orders, joins, spent)
            if not self._train(shared, seat, spent, on):
                del self._shared[trial]
                return None
            shared.made = True
            if shared.wide.seat.rank != 0:
                return Made()
            return self._report(shared, spent), shared.wide.totals
        except Adrift:
            raise
        except OutOfMemory as error:
            raise self._without_room(trial, error) from error
        except TrialError:
            self._shared.pop(trial, None)
            self._lanes.drop(trial)
            raise
        except BaseException:
            self._shared.pop(trial, None)
            raise

    def _without_room(self, trial: TrialId, error: OutOfMemory) -> OutOfMemory:
        """Drop the trial's state because memory ran out; returns the error to report."""
        shared = self._shared.pop(trial, None)
        signature = ""
        if shared is not None:
            signature = shared.wide.lane.signature
        self._lanes.drop(trial)
        freed = self._lanes.ran_out(alone=True)
        return OutOfMemory(error.why, error.text, signature, freed)

    def conclude(
        self,
        trial: TrialId,
        visits: tuple[Visit, ...],
        scores: Scores | None,
        last: bool,
    ) -> bool:
        """End a unit that was made here, too, after rank 0 has reported it.

        Returns whether the lane is now in the state after these visits. `last`: the trial is over.
        """
        shared = self._shared.get(trial)
        if shared is None or not shared.made or not shared.unit.is_made_in(visits):
            return False
        del self._shared[trial]
        wide = shared.wide
        try:
            self._units.advance(wide.lane, shared.unit.trial, visits, scores)
        except TrialError:  # rank 0 reports the same error
            return False
        if last or shared.unit.carry:  # the trial may go on elsewhere
            wide.leave()
        self._lanes.settle(trial, shared.cached, durable=True)  # rank 0 has the state too
        return True

    # -- a unit --------------------------------------------------------------------------------

    def _take(self, unit: Unit, orders: Orders, joins: bool, spent: Spent) -> GangUnit:
        """The unit where it was left, or a new one."""
        trial = unit.trial.id
        known = self._shared.get(trial)
        if known is None or not known.makes(unit):
            self._lanes.make_room([unit])
            shared = self._begin(unit, orders, joins, spent)
            self._shared[trial] = shared
            return shared
        known.unit = replace(unit, source=None)
        known.wide.moves.orders = orders
        self._lanes.restore(trial, known.cached)
        return known

    def _begin(self, unit: Unit, orders: Orders, joins: bool, spent: Spent) -> GangUnit:
        """Begin a unit. `joins`: other processes are at it already."""
        before = self._lanes.current(unit.trial.id)
        same = before is not None and before.lane.visits == unit.visits
        fresh = not unit.visits and not joins
        whole = same or unit.source is not None or fresh
        cached = self._held(unit, whole, spent)
        if cached.wide is None:
            cached.wide = WideLane(cached.lane, orders)
            same = False
        cached.wide.moves.orders = orders
        self._begin_pass(unit, cached.wide, whole, same)
        return GangUnit(replace(unit, source=None), cached, cached.wide)

    def _held(self, unit: Unit, whole: bool, spent: Spent) -> CachedLane:
        """The trial's lane, not fused; `whole`: in the state before the unit."""
        if whole:
            cached = self._lanes.ready(unit, spent)
        else:
            cached = self._lanes.in_any_state(unit, spent)
        self._pack.stacks.release(cached.lane)
        cached.current = False
        cached.durable = False
        why = why_one_slot(cached.lane.recipe)
        if unit.within or unit.steps:
            why = WITHIN_ON_ONE_SLOT
        if why is not None:
            raise TrialError(why, signature=cached.lane.signature)
        return cached

    def _begin_pass(self, unit: Unit, wide: WideLane, whole: bool, same: bool) -> None:
        """Begin the unit's pass; for `whole` and `same` see `WideLane.begin`."""
        visit = unit.visit
        settings = wide.lane.settings
        stream = self._context.streams.of(settings.data_key)
        passes = {
            shard: partial(stream.chunks, shard, visit.turn, settings.order)
            for shard in visit.shards
        }
        sizes = {shard: self._context.data.size(shard) for shard in visit.shards}
        reader: AnyReader = JointReader(passes, sizes, unit.reads)
        if not visit.beside:
            reader = Reader(passes[visit.shard], sizes[visit.shard])
        wide.begin(
            reader,
            whole=whole,
            same=same,
            follow=visit.widths,
        )

    def _train(self, shared: GangUnit, seat: Seat, spent: Spent, on: OnStep | None) -> bool:
        """Make the pass; whether it was made: if not, this process left on order."""
        wide = shared.wide
        self._context.set_threads()
        begin = perf_counter()
        wide.clock.take()
        made = False
        try:
            self._times.take_steps(wide, wide.run(seat), on)
        except StopIteration as stop:
            made = bool(stop.value)
        finally:
            self._spend(shared, spent, perf_counter() - begin)
        return made

    def _spend(self, shared: GangUnit, spent: Spent, whole: Seconds) -> None:
        """Book the seconds of a pass.

        Seconds that were neither data nor steps are those of changes of width.
        """
        pace = self._context.setup.pace
        unit = shared.unit
        _, took = shared.wide.clock.take()
        if pace is not None:
            samples = sum(map(self._context.data.size, unit.visit.shards))
            spent.add("train", pace(unit.trial, samples))
            return
        data = took.get("data", 0.0)
        work = sum(took.values())
        spent.add("switch", max(0.0, whole - work))
        spent.add("data", data)
        spent.add("train", work - data)

    def _report(self, shared: GangUnit, spent: Spent) -> Done:
        """Evaluate, keep and report the unit, as rank 0 does after the pass."""
        wide = shared.wide
        visit = shared.unit.visit._replace(widths=_recorded(wide))
        unit = replace(shared.unit, visit=visit)
        each = Pass(unit, wide.lane, spent, wide.totals, evaluate=unit.evaluate)
        found = self._scores(each)
        self._times.report(wide)
        done = self._units.conclude(each, shared.cached, found)
        del self._shared[each.trial]
        if unit.last or unit.carry:
            wide.leave()
        return done

    def _scores(self, each: Pass) -> Scores | None:
        """The trial's scores; None if they were not asked for.

        Raises:
            TrialError: the recipe's code raised.
        """
        if not each.evaluate:
            return None
        found = self._evaluation.scores([each]).get(each.trial)
        if isinstance(found, TrialError):
            raise found
        return found


def _recorded(wide: WideLane) -> tuple[tuple[int, int], ...]:
    """The widths of the pass, if what the trial learnt depends on them; otherwise nothing."""
    widths = tuple((start, width) for start, width in wide.widths)
    if widths == ((0, 1),) or not wide.lane.settings.batch_per_slot:
        return ()
    return widths


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
        self._known: set[Kind] = set()
        # how many steps there were at the last report
        self._reported: dict[Kind, int] = {}

    def take_steps(self, wide: WideLane, steps: Iterator[int], on: OnStep | None) -> NoReturn:
        """Take all steps of the pass, and time some of them.

        Raises:
            StopIteration: the pass is over; the value is that of `WideLane.run`.
        """
        rates: dict[str, float] = {}  # that became known in the pass
        last = self._first_step(wide, steps, on)
        before = len(wide.changes.made)
        while True:
            count = next(steps)
            if self._clocked:
                rates |= _seconds(wide.changes.made[before:])
            if self._wants(wide):  # to ask for the time is to wait for a GPU
                now = self._meter.now()
                if last is not None and last[0] == wide.seat:
                    self._add(wide, count, now - last[1])
                    rates |= self._became_known(wide)
                last = (wide.seat, now)
            else:
                last = None
            _say(wide, on, rates)

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
            _say(wide, on, {})
        width = wide.seat.width
        self._meter.learn_memory(signature, extra.bytes * width)
        return wide.seat, now

    def _wants(self, wide: WideLane) -> bool:
        """Whether steps at the lane's present width should still be timed."""
        key = (wide.lane.signature, wide.seat.width)
        return len(self._steps.get(key, ())) < STEPS

    def _add(self, wide: WideLane, samples: int, seconds: Seconds) -> None:
        """A step at the lane's present width took so long."""
        signature = wide.lane.signature
        width = wide.seat.width
        steps = self._steps.setdefault((signature, width), [])
        if len(steps) >= STEPS:
            return
        steps.append((samples, seconds))
        if width == 1:
            self._meter.timed_elsewhere(signature, samples, seconds)

    def _became_known(self, wide: WideLane) -> dict[str, float]:
        """The rate at the lane's present width, if by now enough steps tell it."""
        key = (wide.lane.signature, wide.seat.width)
        steps = self._steps[key]
        size = wide.lane.size
        if not self._clocked or key in self._known or not _are_enough(steps, size):
            return {}
        self._known.add(key)
        return {_rate_name(key[1]): _rate(steps[-COUNTED:], size)}

    def report(self, wide: WideLane) -> None:
        """Hand the meter what is new since the last report."""
        lane = wide.lane
        widths = {width for _, width in wide.widths}
        for width in widths - {1}:
            self._report_rate(lane, width)
        self._report_changes(lane.signature, wide.changes.take())
        links = wide.take_links()
        if links:
            self._meter.tell(lane.signature, **links)

    def _report_changes(self, signature: str, changes: Sequence[Rescale]) -> None:
        """Report the mean seconds of changes to greater widths, and of those to smaller ones."""
        figures = _seconds(changes)
        if figures:
            self._meter.tell(signature, **figures)

    def _report_rate(self, lane: TrainingLane, width: int) -> None:
        """Report the samples per second at this width, if there are new steps."""
        signature = lane.signature
        key = (signature, width)
        steps = self._steps.get(key, [])
        if len(steps) <= self._reported.get(key, 0):
            return
        self._reported[key] = len(steps)
        rate = _rate(steps[-COUNTED:], lane.size)
        self._meter.tell(signature, **{_rate_name(width): rate}, **all_reduce_figures(lane))


def _seconds(changes: Sequence[Rescale]) -> dict[str, Seconds]:
    """The mean seconds of changes to greater widths ("up"), and of those to smaller ones."""
    by_name: dict[str, list[Seconds]] = {}
    for change in changes:
        if change.after != change.before:
            name = "up" if change.after > change.before else "down"
            by_name.setdefault(name, []).append(change.seconds)
    return {name: mean(seconds) for name, seconds in by_name.items()}


def _say(wide: WideLane, on: OnStep | None, rates: Mapping[str, float]) -> None:
    """Rank 0 says how far the pass is."""
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
    samples = steps[-1][0]
    counted = [seconds for _, seconds in steps]
    full = [seconds for count, seconds in steps if count == size]
    if full:
        samples = size
        counted = full
    return samples / max(median(counted), 1e-9)
