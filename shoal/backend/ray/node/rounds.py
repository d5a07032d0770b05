"""The units that a slot's process makes: where each goes on from, and what is told of it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ray.exceptions import RayError

from shoal.backend.ray.node.outcomes import (
    Cut,
    Drifting,
    Lost,
    Outcome,
    Outcomes,
    Parcel,
    Share,
    Trained,
    Unreadable,
)
from shoal.backend.ray.node.process import FILL, fetched
from shoal.core.cluster import ShardId
from shoal.core.event import Sum
from shoal.core.trial import Seconds, TrialId, Visit
from shoal.train.data.columns import DataError
from shoal.train.function.station import FunctionStation
from shoal.train.lane.tree import size_of
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import (
    Done,
    Made,
    Part,
    Reached,
    Returned,
    Scored,
    Tree,
    TrialError,
    Unit,
)
from shoal.train.slot.shared_units import Ranks
from shoal.train.slot.station import Station
from shoal.train.wide.lane import Adrift, Halted

# Called with a round, a trial of it and how far the trial's unit went on.
OnProgress = Callable[[int, TrialId, Reached], None]

Sums = dict[str, Sum]
States = dict[TrialId, Parcel]
Units = dict[TrialId, Unit]
Parcels = Mapping[TrialId, Any]  # references to states
Visits = tuple[Visit, ...]
Newest = tuple[Visits, Seconds]  # a trial's visits, and its training since it was durable
Parts = Iterator[tuple[TrialId, Part | Done | Returned | TrialError]]


class _GoneError(Exception):
    """The state is not held here any more."""


@dataclass(eq=False, slots=True)
class UnitResult:
    """What came of a unit, and the sums of its values where it was trained."""

    news: Done | Returned | TrialError | Cut
    values: Sums


class UnitSums:
    """What the parts of a unit add up to.

    A slot reports a unit once it is made, with the values and seconds of all its parts.
    """

    def __init__(self) -> None:
        self.samples = 0.0
        self.values: Sums = {}
        self.spent: dict[str, Seconds] = {}
        self.within: tuple[Scored, ...] = ()

    def add(self, part: Part) -> None:
        """One more part."""
        self.samples += part.samples
        for name, (total, count) in part.values.items():
            total_before, count_before = self.values.get(name, (0.0, 0.0))
            self.values[name] = (total_before + total, count_before + count)
        if part.scored is not None:
            self.within += (part.scored,)

    def add_seconds(self, spent: Mapping[str, Seconds]) -> None:
        """What a part, or the unit's end, took."""
        for name, seconds in spent.items():
            self.spent[name] = self.spent.get(name, 0.0) + seconds

    def done(self, done: Done) -> UnitResult:
        """The unit, with what all of it took."""
        made = replace(done, spent=self.spent, within=self.within)
        return UnitResult(made, self.values)


Results = dict[TrialId, UnitResult]


class SlotRounds:
    """Makes units with a station.

    The newest state of a trial that was trained here stays here, so that its next unit needs none
    from the object store. A state that became void elsewhere is noticed by the unit's visits.

    `void`: rounds to halt, as they change.
    """

    def __init__(
        self,
        station: Station | FunctionStation,
        void: Set[int],
        on_progress: OnProgress,
    ) -> None:
        self._station = station
        self._void = void
        self._on_progress = on_progress
        # Where each trial was after its last unit here.
        self._made: dict[TrialId, Newest] = {}

    # -- units of one slot ---------------------------------------------------------------------

    def train(
        self,
        number: int,
        units: Units,
        fuse: bool,
        parcels: Parcels,
        measured: Collection[str] | None,
    ) -> tuple[Outcomes, States]:
        """Make a unit of each trial: what came of each, and the states after them.

        `parcels`: as of `SlotActor.train`. `measured`: as of `Station.together`.
        """
        outcomes: dict[TrialId, Outcome] = {}
        states: States = {}
        found = self._found(units, parcels)
        for trial in units:
            if trial not in found:
                outcomes[trial] = Lost()

        try:
            here = [unit for unit, _ in found.values()]
            made = self._make(number, here, fuse, measured)
        except DataError as error:
            return outcomes | unreadable(error, units), {}
        for trial, result in made.items():
            _, fetched = found[trial]
            outcomes[trial], state = self._outcome(units[trial], result, fetched)
            if state is not None:
                states[trial] = state

        return outcomes, states

    def _found(self, units: Units, parcels: Parcels) -> dict[TrialId, tuple[Unit, int]]:
        """The units whose states are not lost, as of `_located`."""
        found: dict[TrialId, tuple[Unit, int]] = {}
        for trial, unit in units.items():
            with suppress(RayError, _GoneError):
                found[trial] = self._located(unit, parcels.get(trial))
        return found

    def _outcome(
        self, unit: Unit, result: UnitResult, fetched: int
    ) -> tuple[Outcome, Parcel | None]:
        """What is told of a unit, and the state after it if that is asked for."""
        if isinstance(result.news, Done):
            return self._trained(unit, result.news, result.values, fetched)
        return result.news, None

    def _trained(
        self, unit: Unit, done: Done, values: Sums, fetched: int
    ) -> tuple[Trained, Parcel | None]:
        """What is told of a unit that was made, and the state after it where that is asked for."""
        self._made[unit.trial.id] = (*unit.visits, done.visit), done.age
        if done.state is None:
            return Trained(done, values, fetched, 0), None
        size = size_of(done.state)
        about = Trained(replace(done, state=None), values, fetched, size)
        return about, parcel_of(done.state, size)

    def _located(self, unit: Unit, parcel: Any) -> tuple[Unit, int]:
        """The unit, with its source if the state is not held here, and the bytes fetched."""
        trial = unit.trial.id
        visits, age = self._made.get(trial, ((), 0.0))
        if unit.visits[: len(visits)] != visits:  # what is held here became void
            self._station.forget(trial)
        elif self._holds(unit, visits):
            return replace(unit, source=None, age=age), 0

        if parcel is not None:
            state, _ = fetched(parcel)
            return replace(unit, source=state), size_of(state)
        if unit.visits and unit.source is None:
            raise _GoneError(trial)
        return unit, 0

    def _holds(self, unit: Unit, visits: Visits) -> bool:
        """Whether the state after these visits is here, and is the one that the unit needs."""
        if not unit.visits or visits != unit.visits:
            return False
        return self._station.holds(unit.trial.id, len(visits))

    def _make(
        self,
        number: int,
        units: Sequence[Unit],
        fuse: bool,
        measured: Collection[str] | None,
    ) -> Results:
        """Train part by part: what came of each unit.

        Units under way are cut when the round is halted between two parts.
        """
        parts = self._station.together(units, fuse, measured)
        made, over = self._parts(number, units, parts)
        if over:
            return made
        parts.close()
        cut = {unit.trial.id: UnitResult(Cut(), {}) for unit in units}
        return cut | made

    def _parts(self, number: int, units: Sequence[Unit], parts: Parts) -> tuple[Results, bool]:
        """What came of the units that are through, and whether they all are."""
        sums = {unit.trial.id: UnitSums() for unit in units}
        made: Results = {}
        while number not in self._void:
            step = next(parts, None)
            if step is None:
                return made, True
            trial, news = step
            if isinstance(news, Returned | TrialError):
                made[trial] = UnitResult(news, {})
                continue
            sums[trial].add_seconds(news.spent)
            if isinstance(news, Done):
                made[trial] = sums[trial].done(news)
                continue
            sums[trial].add(news)
            reached = Reached(sums[trial].samples, sums[trial].within)
            self._on_progress(number, trial, reached)

        return made, False

    def give(self, trial: TrialId, forget: bool) -> tuple[int, Parcel]:
        """Bytes of the trial's state here, and the state; with `forget` it lives on elsewhere."""
        state = self._station.state(trial)
        if forget:
            self._station.forget(trial)
        size = size_of(state)
        return size, parcel_of(state, size)

    # -- units of several slots ----------------------------------------------------------------

    def wide(
        self,
        number: int,
        unit: Unit,
        seat: Seat,
        orders: Orders,
        joins: bool,
        parcel: Sequence[Any],
    ) -> tuple[Share, Any]:
        """Take part in a unit that several processes make: what came of it, and the state after it.

        Arguments: as of `SlotActor.wide`.
        """
        share: Share
        try:
            return self._part(number, unit, seat, orders, joins, parcel)
        except Halted:
            share = Cut()
        except Adrift:
            share = Drifting()
        except TrialError as error:
            share = error
        except DataError as error:
            share = unreadable(error, {unit.trial.id: unit})[unit.trial.id]
        except RayError:
            share = Lost()
        except LookupError as error:
            if type(error) is not LookupError:  # a fault of ours
                raise
            share = Lost()

        return share, None

    def _part(
        self,
        number: int,
        unit: Unit,
        seat: Seat,
        orders: Orders,
        joins: bool,
        parcel: Sequence[Any],
    ) -> tuple[Share, Any]:
        """As `wide`, with exceptions for what went wrong."""
        fetched = 0
        stored = None
        if parcel:
            stored = parcel[0]
        with suppress(_GoneError):  # others have it
            unit, fetched = self._located(unit, stored)

        if number in self._void:
            return Cut(), None

        def on(reached: Reached) -> None:
            self._on_progress(number, unit.trial.id, reached)

        made = self._ranks().run(unit, seat, orders, joins=joins, on=on)
        if made is None:
            return Cut(), None
        if isinstance(made, Made):
            return made, None

        done, values = made
        return self._trained(unit, done, values, fetched)

    def _ranks(self) -> Ranks:
        """What takes part in units of several slots."""
        assert isinstance(self._station, Station), "a function has one slot"
        return self._station.ranks

    def conclude(
        self,
        trial: TrialId,
        visits: Visits,
        scores: Any,
        age: Seconds,
        last: bool,
    ) -> None:
        """Another process has reported a unit that was made here, too."""
        if self._ranks().conclude(trial, visits, scores, last):
            self._made[trial] = visits, age


def parcel_of(state: Tree, size: int) -> Parcel:
    """The state, filled up so that it stays in the object store."""
    if size <= FILL.nbytes:
        return state, FILL
    return state, None


def unreadable(error: DataError, units: Units) -> dict[TrialId, Outcome]:
    """What came of these units, as a shard that one of them visits cannot be read.

    Raises:
        DataError: the error is about something else.
    """
    if all(unit.visit.shard != error.part for unit in units.values()):
        raise error
    about = Unreadable(ShardId(error.part), str(error))
    return dict.fromkeys(units, about)
