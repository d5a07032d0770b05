"""A slot's part in units that several processes train together, one unit after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.train.lane.blame import Spent
from shoal.train.recipe.hooks import why_one_slot
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import Done, Made, OutOfMemory, TrialError, Unit
from shoal.train.slot.crew import Pass
from shoal.train.slot.held import HeldLane, HeldLanes
from shoal.train.slot.step_times import OnStep, StepTimes
from shoal.train.slot.together import PackRun
from shoal.train.slot.units import Scores, UnitEnd
from shoal.train.slot.workplace import Workplace
from shoal.train.stream.reader import JointReader, Reader
from shoal.train.wide.lane import Adrift, Wide
from shoal.train.wide.step import AnyReader

WITHIN_ON_ONE_SLOT = (
    "validate_every asks for evaluations within a visit to a shard, which a trial on several slots "
    "cannot have: give whole epochs, or widths=(1, 1)"
)


@dataclass(eq=False, slots=True)
class SharedUnit:
    """A unit that this process makes with others.

    `made`: its pass is made, and rank 0 has yet to report the unit.
    """

    unit: Unit
    held: HeldLane
    wide: Wide
    made: bool = False

    def makes(self, unit: Unit) -> bool:
        """Whether this is the same visit, after the same visits."""
        own = self.unit
        return own.visit == unit.visit and own.visits == unit.visits


class Ranks:
    """The units that this slot makes with others.

    All ranks make the pass. Then rank 0 evaluates, keeps and reports the unit, while the others
    wait to hear that it was made.
    """

    def __init__(
        self,
        workplace: Workplace,
        pack: PackRun,
        lanes: HeldLanes,
        end: UnitEnd,
    ) -> None:
        self._at = workplace
        self._meter = workplace.meter
        self._pack = pack
        self._lanes = lanes
        self._evaluation = pack.evaluation
        self._end = end
        self._shared: dict[TrialId, SharedUnit] = {}
        self._times = StepTimes(workplace.meter, workplace.setup.clocked)

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
            TrialError, LookupError, DataError, OSError, StaleRun: as `Station.train`. The trial's
                state here is dropped.
        """
        trial = unit.trial.id
        spent = self._at.stopwatch()
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
            self._end.advance(wide.lane, shared.unit.trial, visits, scores)
        except TrialError:  # rank 0 reports the same error
            return False
        if last or shared.unit.carry:  # the trial may go on elsewhere
            wide.leave()
        self._lanes.settle(trial, shared.held, safe=True)  # rank 0 has the state too
        return True

    # -- a unit --------------------------------------------------------------------------------

    def _take(self, unit: Unit, orders: Orders, joins: bool, spent: Spent) -> SharedUnit:
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
        self._lanes.restore(trial, known.held)
        return known

    def _begin(self, unit: Unit, orders: Orders, joins: bool, spent: Spent) -> SharedUnit:
        """Begin a unit. `joins`: other processes are at it already."""
        before = self._lanes.whole(unit.trial.id)
        same = before is not None and before.lane.visits == unit.visits
        fresh = not unit.visits and not joins
        whole = same or unit.source is not None or fresh
        held = self._held(unit, whole, spent)
        if held.wide is None:
            held.wide = Wide(held.lane, orders)
            same = False
        held.wide.moves.orders = orders
        self._begin_pass(unit, held.wide, whole, same)
        return SharedUnit(replace(unit, source=None), held, held.wide)

    def _held(self, unit: Unit, whole: bool, spent: Spent) -> HeldLane:
        """The trial's lane, not fused; `whole`: in the state before the unit."""
        if whole:
            held = self._lanes.ready(unit, spent)
        else:
            held = self._lanes.in_any_state(unit, spent)
        self._pack.fusing.release(held.lane)
        held.whole = False
        held.safe = False
        why = why_one_slot(held.lane.recipe)
        if unit.within or unit.steps:
            why = WITHIN_ON_ONE_SLOT
        if why is not None:
            raise TrialError(why, signature=held.lane.signature)
        return held

    def _begin_pass(self, unit: Unit, wide: Wide, whole: bool, same: bool) -> None:
        """Begin the unit's pass; for `whole` and `same` see `Wide.begin`."""
        visit = unit.visit
        settings = wide.lane.settings
        stream = self._at.streams.of(settings.data_key)
        passes = {
            shard: partial(stream.chunks, shard, visit.turn, settings.order)
            for shard in visit.shards
        }
        sizes = {shard: self._at.data.size(shard) for shard in visit.shards}
        reader: AnyReader = JointReader(passes, sizes, unit.reads)
        if not visit.beside:
            reader = Reader(passes[visit.shard], sizes[visit.shard])
        wide.begin(
            reader,
            whole=whole,
            same=same,
            follow=visit.widths,
        )

    def _train(self, shared: SharedUnit, seat: Seat, spent: Spent, on: OnStep | None) -> bool:
        """Make the pass; whether it was made: if not, this process left on order."""
        wide = shared.wide
        self._at.set_threads()
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

    def _spend(self, shared: SharedUnit, spent: Spent, whole: Seconds) -> None:
        """Book the seconds of a pass.

        Seconds that were neither data nor steps are those of changes of width.
        """
        pace = self._at.setup.pace
        unit = shared.unit
        _, took = shared.wide.clock.take()
        if pace is not None:
            samples = sum(map(self._at.data.size, unit.visit.shards))
            spent.add("train", pace(unit.trial, samples))
            return
        data = took.get("data", 0.0)
        work = sum(took.values())
        spent.add("switch", max(0.0, whole - work))
        spent.add("data", data)
        spent.add("train", work - data)

    def _report(self, shared: SharedUnit, spent: Spent) -> Done:
        """Evaluate, keep and report the unit, as rank 0 does after the pass."""
        wide = shared.wide
        visit = shared.unit.visit._replace(widths=_recorded(wide))
        unit = replace(shared.unit, visit=visit)
        each = Pass(unit, wide.lane, spent, wide.totals, evaluate=unit.evaluate)
        found = self._scores(each)
        self._times.report(wide)
        done = self._end.conclude(each, shared.held, found)
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


def _recorded(wide: Wide) -> tuple[tuple[int, int], ...]:
    """The widths of the pass, if what the trial learnt depends on them; otherwise nothing."""
    widths = tuple((start, width) for start, width in wide.widths)
    if widths == ((0, 1),) or not wide.lane.settings.batch_per_slot:
        return ()
    return widths
