"""Virtual time: what a study would do, from a profile taken as the truth."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from shoal.backend.sim.gangs import SimulatedGangs, kept_at, part, parting
from shoal.backend.sim.meter import EXACT, Measuring, SimulatedMeter
from shoal.backend.sim.state import TICK, SimulatedTrial
from shoal.backend.sim.units import SimulatedRecipe, SimulatedUnits
from shoal.core.cluster import ShardId, Slot
from shoal.core.event import Event, Failed, Joined, Left
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.profile import Profile
from shoal.core.state import State, durable
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit
from shoal.core.visits import is_met
from shoal.options import DEFAULTS

Truth = Profile | Callable[[Mapping[TrialId, Trial]], Profile]


class Sim:
    """Slots that train in no time at all, and say when they would have.

    `truth`: a profile; or a function that makes one for a mapping of trials, to which trials are
    added as they are submitted (`Table(…).of`).
    `slots`: those that are there from the beginning.
    `script`: what happens by itself, as (time, event). The events may be `Joined`, `Left`,
    `Commanded`, `Failed` and `Retired`.
    `shards`: the samples of each. None: the data is not divided; progress counts as it is made,
    there are no visits, and a gang that is stopped stops at once.
    `recipe`: what trials score, when they are validated and when they fail.
    `former`: the state and the time of the study, if it is resumed.
    `measuring`: how well slots measure what trials cost, which they report as the real backends do
    (see `SimulatedMeter`); None: they do not.

    As on the real backends, a gang that is stopped completes its visits under way, and occupies its
    slots until then. A unit of a gang with a quota is void if it is cut, and so is a unit that a
    loss of slots cuts. A trial's newest state lies at the slots of its last unit, and is lost with
    them. A trial's first unit at a slot costs `build`, and `first` if it is the slot's first unit
    at all. A unit whose trial's state lies elsewhere costs `switch`. A slot of which the end is
    known begins no unit that it could not end and make durable; it leaves before that.
    """

    def __init__(
        self,
        truth: Truth,
        slots: Iterable[Slot] = (),
        script: Iterable[tuple[Seconds, Event]] = (),
        *,
        shards: Mapping[ShardId, int] | None = None,
        seed: int = 0,
        checkpoint_every: Seconds = DEFAULTS.checkpoint_every,
        recipe: SimulatedRecipe = SimulatedRecipe(),
        former: tuple[State, Seconds] = (State(), 0.0),
        measuring: Measuring | None = EXACT,
    ) -> None:
        self.known: dict[TrialId, Trial] = {}
        if callable(truth):
            truth = truth(self.known)
        state, since = former
        self.shards = dict(shards or {})
        units = SimulatedUnits(
            truth=truth,
            shards=self.shards,
            seed=seed,
            checkpoint_every=checkpoint_every,
            recipe=recipe,
            meter=SimulatedMeter(truth, measuring, state, self.known),
        )
        self._gangs = SimulatedGangs(truth, units, recipe.fault, since)
        self._state = state
        self._wake_at: Seconds | None = None
        # What is still to happen by itself, the soonest first.
        self._script: list[tuple[Seconds, Event]] = []
        if slots:
            self._script.append((since, Joined(tuple(slots))))
        for time, event in script:
            self._script.append((max(time, since), event))
        self._script.sort(key=lambda happening: happening[0])

    @property
    def now(self) -> Seconds:
        """The time in the simulation."""
        return self._gangs.time.now

    @property
    def truth(self) -> Profile:
        """What trials cost. Another one counts at once, also for units under way."""
        return self._gangs.truth

    @truth.setter
    def truth(self, truth: Profile) -> None:
        self._gangs.go_by(truth)

    # -- what the engine asks --------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment, which is now."""
        self._script.insert(0, (self.now, event))

    def submit(self, trial: Trial) -> None:
        """See `Backend.submit`."""
        position = self._position(trial)
        position.trial = trial
        self.known[trial.id] = trial
        position.over = is_met(trial, position.samples)

    def _position(self, trial: Trial) -> SimulatedTrial:
        """Where the trial is; a new one is where it begins."""
        positions = self._gangs.positions
        if trial.id not in positions:
            # Where a trial begins that this simulation does not know yet.
            stored = self._state.kept.get(trial.id)
            kept = durable(stored)
            visits = self._state.visits.get(trial.id, ())[: kept[0]]
            if stored is None and trial.start is not None:
                visits, kept = self._inherited(*trial.start)
            signature = self._state.signature.get(trial.id, "")
            positions[trial.id] = SimulatedTrial(trial, visits, kept[1], kept, signature=signature)
        return positions[trial.id]

    def _inherited(
        self, parent: TrialId, visits: int
    ) -> tuple[tuple[Visit, ...], tuple[int, Samples]]:
        """The visits and the durable state of a trial that starts from another's."""
        if parent not in self._gangs.positions:
            self.submit(self._state.known[parent])
        position = self._gangs.positions[parent]
        assert position.kept[0] == visits, (
            f"a trial starts from {parent} after {visits} visits, but durable is {position.kept}"
        )
        return position.visits[:visits], position.kept

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """See `Backend.wake`. Slots come only by the script, so `until` means nothing here."""
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """See `Backend.change`."""
        self._gangs.change(before, after)

    # -- what happens ----------------------------------------------------------------------------

    def moments(self) -> Iterator[Moment]:
        """See `Backend.moments`."""
        yield self.now, tuple(self._scripted())
        while True:
            time = self._next()
            if time == inf or self._is_done():
                # Nothing will happen any more: make durable what is not.
                positions = self._gangs.positions.values()
                events = [
                    position.keep()
                    for position in positions
                    if position.at and position.is_ahead() and not position.over
                ]
                if not events:
                    return
                yield self.now, tuple(events)
                continue
            self._gangs.time.now = max(self.now, time)
            if self._wake_at is not None and self._wake_at <= self.now:
                self._wake_at = None
            yield self.now, tuple(self._happened())

    def _next(self) -> Seconds:
        """When something happens next, if nobody intervenes; infinity: never."""
        times = [self._gangs.time.next_end(), self._gangs.units.meter.next()]
        if self._script:
            times.append(self._script[0][0])
        if self._wake_at is not None:
            times.append(self._wake_at)
        times += [time for time, _ in self._gangs.refusals.values()]
        if parting(self._gangs):
            times.append(self.now)
        return min(times)

    def _is_done(self) -> bool:
        """Whether no gang is at work, nobody wants to be woken, and all trials are over."""
        gangs = self._gangs
        at_work = gangs.runs or gangs.leaving or gangs.refusals
        if at_work or self._wake_at is not None:
            return False
        return all(position.over for position in self._gangs.positions.values())

    def _happened(self) -> list[Event]:
        """The events of now."""
        gangs = self._gangs
        events = gangs.finished()
        events += gangs.units.meter.known(self.now)
        events += gangs.refused()
        if not self.shards:
            events += gangs.time.progress(gangs.runs.values())
        events += self._scripted()
        events += part(gangs)
        gangs.start_waiting()
        return events

    def _scripted(self) -> list[Event]:
        """The events that the script has for now, and those that follow."""
        events: list[Event] = []
        while self._script and self._script[0][0] <= self.now + TICK:
            event = self._script.pop(0)[1]
            if isinstance(event, Joined):
                self._gangs.ends.join(event.slots)
            elif isinstance(event, Left):
                slots = self._gangs.ends.still_there(event.slots)
                if not slots:
                    continue
                event = replace(event, slots=slots)
                events += kept_at(self._gangs, self._gangs.ends.known(slots))
            events.append(event)
            if isinstance(event, Left):
                events += self._gangs.lose(event.slots)
            elif isinstance(event, Failed) and event.trial in self._gangs.positions:
                events += self._gangs.fail(event.trial)
        return events
