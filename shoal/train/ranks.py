"""A station's part in lanes that several processes train: its rank of each, one unit after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean, median
from time import perf_counter
from typing import TYPE_CHECKING

from shoal.core.event import Sum
from shoal.core.trial import Samples, Seconds, TrialId, Visit
from shoal.train.account import Spent, blaming
from shoal.train.crew import Pass
from shoal.train.measure import COUNTED, STEPS, Extra
from shoal.train.seat import Orders, Seat
from shoal.train.unit import Done, Made, OutOfMemory, TrialError, Unit
from shoal.train.wide import Adrift, Wide

if TYPE_CHECKING:
    from shoal.train.station import Station, _Held


@dataclass(eq=False, slots=True)
class _Part:
    """A unit under way. `made`: its pass is, but rank 0 has yet to say what came of it."""

    unit: Unit
    held: _Held
    wide: Wide
    made: bool = False


class Ranks:
    """Rank 0 evaluates, keeps and reports a unit; the others have made its pass, and wait to hear that the unit was made."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._parts: dict[TrialId, _Part] = {}
        self._steps: dict[tuple[str, int], list[tuple[int, Seconds]]] = {}  # by signature and width: samples and seconds
        self._told: dict[tuple[str, int], int] = {}  # how many of them there were when a rate was made of them

    def run(
        self, unit: Unit, seat: Seat, orders: Orders, *, joins: bool = False, on: Callable[[Samples], None] | None = None
    ) -> tuple[Done, dict[str, Sum]] | Made | None:
        """Make the unit with the others of the seat's generation; None: this process left the lane on order.

        Rank 0 also says what was noted in the pass. `on`: told by rank 0, after each step, how far the pass is.

        Asked again for the same unit, it goes on from where it was. `joins`: others are at it already.
        A visit with widths is made as it was made then.

        Raises:
            Halted, Adrift: see there; after the latter it can be asked again.
            TrialError, LookupError, DataError, OSError, StaleRun: as `Station.train`. The state here is gone.
        """
        trial, spent = unit.trial.id, Spent(self._station._pace is None)
        try:
            part = self._part(unit, orders, joins, spent)
            if not self._train(part, seat, spent, on):
                del self._parts[trial]
                return None
            part.made = True
            return (self._done(part, spent), part.wide.totals) if part.wide.seat.rank == 0 else Made()
        except Adrift:
            raise
        except OutOfMemory as error:
            signature = self._parts[trial].wide.lane.signature if trial in self._parts else ""
            self._forget(trial)
            self._station._short, freed = True, self._station._give_up(0.0)
            if not freed and self._station._device.type == "cuda":
                freed = self._station._streams.shrink()
            raise OutOfMemory(error.why, error.text, signature, freed) from error
        except TrialError:
            self._forget(trial)
            raise
        except BaseException:
            self._parts.pop(trial, None)
            raise

    def _forget(self, trial: TrialId) -> None:
        self._parts.pop(trial, None)
        self._station._drop(trial)

    def conclude(self, trial: TrialId, visits: tuple[Visit, ...], scores: Mapping[str, float] | None, last: bool) -> bool:
        """Rank 0 has reported the unit, whose visit is the last of these: become what it is. Whether that is so.

        `last`: the trial is at its end.
        """
        part = self._parts.get(trial)
        if part is None or not part.made or part.unit.visits != visits[:-1]:
            return False
        del self._parts[trial]
        held, lane, station = part.held, part.wide.lane, self._station
        lane.visits = visits
        try:
            if len(visits) % len(part.unit.trial.shards or station._data.shards) == 0:
                with blaming(), lane.rng:
                    lane.end_epoch(station._score(dict(scores) if scores is not None else None, part.wide.totals))
        except TrialError:  # rank 0 has it too
            return False
        if last or part.unit.carry:  # it may go on elsewhere
            part.wide.leave()
        held.bytes = held.bytes or lane.bytes
        held.whole = held.safe = True  # rank 0 has it too
        station._give_up(station._room)
        return True

    # -- a unit --------------------------------------------------------------------------------------------------------

    def _part(self, unit: Unit, orders: Orders, joins: bool, spent: Spent) -> _Part:
        station, trial = self._station, unit.trial.id
        part = self._parts.get(trial)
        if part is not None and (part.unit.visits, part.unit.visit) == (unit.visits, unit.visit):
            part.unit = replace(unit, source=None)
            part.wide.orders = orders
            station._held[trial] = part.held
            return part
        station._make_room([unit])
        held = station._held.get(trial)
        same = held is not None and held.whole and held.lane.visits == unit.visits
        whole = same or unit.source is not None or not (unit.visits or joins)
        held = station._ready(unit, spent) if whole else station._blank(unit, spent)
        station._held.move_to_end(trial)
        station._pack.release(held.lane)
        held.whole = held.safe = False
        if held.wide is None:
            held.wide, same = Wide(held.lane, orders), False
        wide, held.wide.orders = held.wide, orders
        visit, shuffle = unit.visit, held.lane.settings.shuffle
        chunks = partial(station._streams.of(held.lane.settings.data_key).chunks, visit.shard, visit.turn, shuffle)
        wide.begin(chunks, station._data.size(visit.shard), whole=whole, same=same, follow=visit.widths)
        part = self._parts[trial] = _Part(replace(unit, source=None), held, wide)
        return part

    def _train(self, part: _Part, seat: Seat, spent: Spent, on: Callable[[Samples], None] | None) -> bool:
        station, wide = self._station, part.wide
        station._pack.set_threads()
        begin = perf_counter()
        wide.clock.take()
        steps = wide.run(seat)
        extra = self._extra(wide)
        last: tuple[object, Seconds] | None = None
        try:
            while True:
                count = next(steps)
                now = station._meter.now()
                if on is not None and wide.seat.rank == 0:
                    on(wide.position)
                if extra is not None:
                    extra.__exit__()
                    station._meter._extra[wide.lane.signature] = extra.bytes * wide.seat.width
                    extra = None
                elif last is not None and last[0] == wide.seat:
                    self._note(wide, count, now - last[1])
                last = wide.seat, now
        except StopIteration as stop:
            return bool(stop.value)
        finally:
            if extra is not None:
                extra.__exit__()
            self._spend(part, spent, perf_counter() - begin)

    def _extra(self, wide: Wide) -> Extra | None:
        """What measures the memory of a first step, where that is not known."""
        if not wide.whole or wide.position or wide.lane.signature in self._station._meter._extra:
            return None
        extra = Extra(wide.lane, self._station._device)
        extra.__enter__()
        return extra

    def _note(self, wide: Wide, count: int, seconds: Seconds) -> None:
        """A step at this width took so long."""
        signature, width = wide.lane.signature, wide.seat.width
        times = self._steps.setdefault((signature, width), [])
        if len(times) < STEPS:
            times.append((count, seconds))
            if width == 1 and self._station._meter.wants(signature):
                self._station._meter._steps.setdefault(signature, []).append((count, seconds))

    def _spend(self, part: _Part, spent: Spent, whole: Seconds) -> None:
        """Where those seconds went: what was neither data nor a step was for the others to come."""
        pace, unit = self._station._pace, part.unit
        _, took = part.wide.clock.take()
        data, work = took.get("data", 0.0), sum(took.values())
        if pace is not None:
            spent.add("train", pace(unit.trial, self._station._data.size(unit.visit.shard)))
            return
        for name, seconds in (("switch", max(0.0, whole - work)), ("data", data), ("train", work - data)):
            spent.add(name, seconds)

    def _done(self, part: _Part, spent: Spent) -> Done:
        """What rank 0 does in the end."""
        station, wide = self._station, part.wide
        unit = replace(part.unit, visit=part.unit.visit._replace(widths=_recorded(wide)))
        each = Pass(unit, wide.lane, spent, wide.totals)
        found = station._evaluation.scores([each] if unit.evaluate else []).get(unit.trial.id)
        if isinstance(found, TrialError):
            raise found
        self._tell(wide)
        done = station._finish(each, found)
        del self._parts[unit.trial.id]
        if unit.last or unit.carry:
            wide.leave()
        return done

    def _tell(self, wide: Wide) -> None:
        """Rates by width, and what changes of width took."""
        signature, meter = wide.lane.signature, self._station._meter
        for width in {width for _, width in wide.widths} - {1}:
            known = self._steps.get((signature, width), [])
            if len(known) > self._told.get((signature, width), 0):
                self._told[signature, width], times = len(known), known[-COUNTED:]
                full = [seconds for count, seconds in times if count == wide.lane.size] or [seconds for _, seconds in times]
                size = wide.lane.size if any(count == wide.lane.size for count, _ in times) else times[-1][0]
                meter.tell(signature, **{f"rate@{width}": size / max(median(full), 1e-9)})
        changes, wide.rescales = wide.rescales, []
        up = [change.seconds for change in changes if change.after > change.before]
        down = [change.seconds for change in changes if change.after < change.before]
        for name, seconds in (("up", up), ("down", down)):
            if seconds:
                meter.tell(signature, **{name: mean(seconds)})


def _recorded(wide: Wide) -> tuple[tuple[int, int], ...]:
    """The pass's widths, where what it learnt depends on them."""
    widths = tuple((at, width) for at, width in wide.widths)
    return widths if wide.lane.settings.batch_per_slot and widths != ((0, 1),) else ()
