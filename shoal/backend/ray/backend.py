"""The Ray backend: slots as processes of a cluster, and what happens there as moments."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from time import monotonic

from ray.exceptions import RayError

from shoal.backend.cluster_start import slots_text
from shoal.backend.positions import Positions
from shoal.backend.ray.cluster import Unanswered
from shoal.backend.ray.fleet import Fleet, RayFleet
from shoal.backend.ray.gangs import OneSlotGangs, Work
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.shard_register import NodeShards, ShardRegister
from shoal.backend.ray.slot_process import Events, SlotProcess
from shoal.backend.ray.slot_watch import Hangs, due
from shoal.backend.ray.slots import Slots, check_known
from shoal.backend.ray.states import States
from shoal.backend.ray.wide_gangs import WideGangs, gradients
from shoal.core.cluster import SlotId
from shoal.core.errors import warn
from shoal.core.event import Commanded, Decided, Event, Joined, Left
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import Reached

TELL: Seconds = 30.0  # between two reports, for those who look while the study runs


class DecidingTime:
    """The seconds in which the engine had the last moment and did not ask for the next one."""

    def __init__(self) -> None:
        self._seconds: Seconds = 0.0
        self._moments = 0
        # How many moments there were when the seconds were last told; -1: they never were.
        self._moments_told = -1
        self._tell_at = monotonic() + TELL

    def handed(self, moment: Moment) -> Iterator[Moment]:
        """Hand the engine the moment; what passes until it asks again counts.

        Now and then the moment also says how long the engine decided so far.
        """
        time, events = moment
        if monotonic() >= self._tell_at:
            events = (*events, self._tell())
        begin = monotonic()
        yield time, events
        self._seconds += monotonic() - begin
        self._moments += 1

    def last(self, others: Iterable[Event]) -> list[Event]:
        """The events at the end of a run: these, or else how long the engine decided.

        Returns nothing if the engine had only one moment since: the one that told it.
        """
        events = list(others)
        if not events and self._moments > self._moments_told + 1:
            events.append(self._tell())
        return events

    def _tell(self) -> Decided:
        self._moments_told = self._moments
        self._tell_at = monotonic() + TELL
        return Decided(self._seconds)


class Waking:
    """When the engine asks for the next moment, whatever happens until then.

    `since`: the time of the study at which this run begins.
    """

    def __init__(self, since: Seconds) -> None:
        self._zero = monotonic() - since
        self.at: Seconds | None = None
        self.awaits = True  # slots that may come are worth waiting for
        self.idle = False  # the engine does not want to be asked again

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def set(self, at: Seconds | None, until: Seconds | None, coming: bool) -> None:
        """Note when to wake the engine, as of `Ray.wake`. `coming`: slots may come."""
        self.awaits = until is not None
        self.idle = at is None
        self.at = at
        if coming and until is not None and until < inf:
            self.at = until
            if at is not None:
                self.at = min(until, at)

    def due(self) -> bool:
        """Whether the time has come; then it is over."""
        if self.at is None or self.now() < self.at:
            return False
        self.at = None
        return True

    def patience(self, *look_at: float | None) -> Seconds:
        """Seconds until the wake, or until one of these times by the monotonic clock."""
        waits = [each - monotonic() for each in look_at if each is not None]
        if self.at is not None:
            waits.append(self.at - self.now())
        return max(0.0, min(waits))


HOLDER_PATIENCE: Seconds = 60.0  # for a node that has what lies at no slot


class NodeWait:
    """Waits for any node without an end, and for the holder of a shard for `HOLDER_PATIENCE`.

    Most often any node can help. But a shard that stays at its nodes can only be read there. If
    they are gone for long, somebody has to know: the run ends, and its error names the shard.
    """

    def __init__(self, shards: ShardRegister | NodeShards) -> None:
        self._shards = shards
        self._missing: Sequence[str] = ()
        self._until = 0.0
        self._warned = ""

    def goes_on(self, ready: Sequence[SlotProcess]) -> bool:
        """Whether to wait on, while these are the slots that are ready."""
        missing = self._shards.missing(ready)
        if not ready or not missing:
            self._warn(f"no trial can run on the {len(ready)} slots there are")
            return True
        if missing != self._missing:
            self._missing = missing
            self._until = monotonic() + HOLDER_PATIENCE
        self._warn(f"no slot holds {'; '.join(missing)}")
        return monotonic() < self._until

    def over(self) -> None:
        """End the wait, as something goes on: the next one is another wait."""
        self._missing = ()
        self._warned = ""

    def _warn(self, what: str) -> None:
        """Say it once while the wait lasts."""
        if what != self._warned:
            self._warned = what
            warn(f"{what}: waiting for nodes; Ctrl-C ends the run")


Tell = Callable[[Seconds, str], None]

# Seconds that a run waits at the start for all of its slots, if some are ready or others may come.
OPENING_PATIENCE = 60.0
OPENING_AGAIN = 10.0  # seconds until it is said again what is awaited


class SlotsOpening:
    """Waits for slots whose processes were started at the time `since`, and tells how many open."""

    def __init__(self, slots: Slots, tell: Tell, since: Seconds) -> None:
        self._slots = slots
        self._tell = tell
        self._since = since
        self._told_at = since

    def began(self, before: Seconds, joined: bool) -> None:
        """Tell that Ray is there; it was awaited since `before` if it was `joined` just now."""
        ray = "Ray is there"
        if joined:
            ray = f"Ray is there after {self._since - before:.1f} s"
        waits = f"opening {slots_text(len(self._slots.processes))} …"
        self._tell(self._since, f"{ray}; {waits}")

    def awaited(self, now: Seconds) -> bool:
        """Whether the run waits for more slots; it is told again after a while."""
        if not self._slots.opening:
            return False
        enough = self._slots.ready or self._slots.look_at is not None
        if enough and now - self._since > OPENING_PATIENCE:
            return False
        if now - self._told_at >= OPENING_AGAIN:
            self._told_at = now
            self._tell(now, f"{self._open()} after {now - self._since:.1f} s …")
        return True

    def over(self, now: Seconds) -> None:
        """Tell that the run begins, with the slots that are open."""
        self._tell(now, f"{self._open()} after {now - self._since:.1f} s")

    def _open(self) -> str:
        """How many slots are open."""
        ready, total = len(self._slots.ready), len(self._slots.processes)
        if ready == total:
            return f"{slots_text(total)} open"
        return f"{ready} of {slots_text(total)} open"


class Looks:
    """Looks now and then whether the cluster lives, whether slots hang, and for new nodes.

    `remove`: has slots leave, as those do whose time is over.
    """

    def __init__(
        self, hangs: Hangs, work: Work, waking: Waking, remove: Callable[[list[SlotId]], Events]
    ) -> None:
        self._hangs = hangs
        self._work = work
        self._fleet = work.fleet
        self._slots = work.slots
        self._waking = waking
        self._remove = remove

    @property
    def times(self) -> tuple[float | None, ...]:
        """When to look next, by the monotonic clock."""
        return self._slots.look_at, self._hangs.look_at

    def look(self) -> Events:
        """Look if it is time: the events of what was seen."""
        now = monotonic()
        events: Events = []
        if now >= self._hangs.look_at:
            events = self._hangs.look(self._slots.ready)
            ends = due(self._slots.ready, self._work.times, self._waking.now())
            events += self._remove(ends)
        if self._slots.look_at is not None and now >= self._slots.look_at:
            self._slots.look_at = now + 1.0
            if self._fleet.answers():  # else the next question would block
                self._slots.look()
        return events


class Ray:
    """Slots as processes of a Ray cluster.

    States go from one slot to the other through the cluster's object store, never through here.

    Raises:
        ValueError: no node has room for a slot.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        course: Positions,
        setup: RaySetup,
        connect: Callable[..., Fleet] = RayFleet,
    ) -> None:
        self.course = course
        self._waking = Waking(setup.since)
        self.now = self._waking.now
        self._fleet = connect(recipe, data, setup, course.seed, self.now)
        try:
            self._open(recipe, data, setup)
        except BaseException:
            self._fleet.leave()
            raise

    def _open(self, recipe: Recipe, data: Data, setup: RaySetup) -> None:
        """Start the slots."""
        shards = setup.register(data)
        self._slots = Slots(self._fleet, shards, self.now, self._on_loss, self._on_news)
        self.size = self._slots.size
        self._deciding = DecidingTime()
        hangs = Hangs(self.course, setup.silence_limits(recipe), self._slots.died, self._fleet.end)
        self.silent = hangs.silent
        self._waiting = NodeWait(shards)
        self._states = States(self.course, self._fleet, self._slots, setup)
        self.forget = self._states.release
        self._work = Work(
            self.course, self._fleet, self._slots, self._states, self._depart, self._settled
        )
        self._looks = Looks(hangs, self._work, self._waking, self._remove)
        self._narrow = OneSlotGangs(self._work)
        self._wides = WideGangs(self._work, gradients(self._fleet.gpus))
        self._slots.start_all(elastic=setup.options.address is not None)
        if self._slots.at(self._fleet.here):
            self._fleet.offer_data()
        self._starting = SlotsOpening(self._slots, setup.tell, self.now())
        self._starting.began(setup.since, self._fleet.joined)

    # -- the protocol --------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment (a stop, say).

        Safe to call from a signal handler or another thread.
        """
        self._fleet.put(lambda: [event])

    def submit(self, trial: Trial) -> None:
        """See `Backend`."""
        self._work.submit(trial, self.tell)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """See `Backend`."""
        self._waking.set(at, until, self._slots.coming)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """See `Backend`."""
        wide = after is not None and self._wides.takes(after)
        self._slots.shards.check(after, self._slots.processes)
        if before is None or after is None or not self._turns(before, after):
            if before is not None:
                self._wides.stop(before)
                self._narrow.stop(before)
            if after is not None and wide:
                self._wides.wait(after)
            elif after is not None:
                self._narrow.wait(after)
        self._begin()

    def _turns(self, before: Gang, after: Gang) -> bool:
        """Whether the one gang becomes the other without an end between them."""
        return self._wides.turns(before, after) or self._narrow.shrinks(before, after)

    def moments(self) -> Iterator[Moment]:
        """See `Backend`."""
        events = self._assemble()
        yield from self._deciding.handed((self.now(), tuple(events)))
        while True:
            events = self._gather(self._patience())
            if not events and not self._waking.due():
                if self._going() or self._waking.at is not None:
                    continue
                events = self._states.flush() or self._deciding.last(self._fleet.fed())
                if not events:
                    return
            yield from self._deciding.handed((self.now(), tuple(events)))

    def add_slots(self, n: int) -> None:
        """Start so many more slots, where there is room for them; they join when they are ready."""
        self._fleet.put(partial(self._slots.add, n))

    def remove_slots(self, slots: Iterable[SlotId]) -> None:
        """Have these slots leave after the units they are at, once what only they hold is durable.

        Raises:
            ValueError: there is no such slot.
        """
        leavers = list(slots)
        check_known(leavers, self._slots.processes)
        self._fleet.put(partial(self._remove, leavers))

    def resize(self, n: int) -> None:
        """Have so many slots from now on, as far as there is room; idle ones leave first."""
        self._fleet.put(lambda: self._remove(self._slots.aim(n)))

    @property
    def moved(self) -> int:
        """Bytes of states that went from slot to slot through the object store."""
        return self._states.moved

    def pids(self) -> dict[SlotId, int]:
        """The slots that are ready, and their processes."""
        return {process.id: process.pid for process in self._slots.ready}

    def close(self) -> None:
        """End the slots' processes, and the cluster if it was started here."""
        self._slots.close()

    # -- waiting -------------------------------------------------------------------------------

    def _assemble(self) -> Events:
        """Wait a while for the slots that were started, unless something is asked for meanwhile."""
        events: Events = []
        while self._starting.awaited(self.now()) and not any(
            isinstance(event, Commanded) for event in events
        ):
            for event in self._gather(1.0):
                if not isinstance(event, Joined | Left):
                    # Nobody knows yet of slots that join or leave.
                    events.append(event)

        self._starting.over(self.now())
        return [Joined(self._slots.assembled()), *events]

    def _patience(self) -> Seconds:
        """How long to wait for something to happen, before slots are looked at again."""
        if not self._going() and self._waking.at is None:
            return 0.0
        return self._waking.patience(*self._looks.times)

    def _gather(self, wait: Seconds) -> Events:
        """The events within `wait` seconds; raises ConnectionError if the cluster is lost."""
        try:
            return self._fleet.gather(wait) + self._looks.look()
        except Unanswered as error:
            raise self._fleet.explained(error) from error

    def _going(self) -> bool:
        """Whether anything is under way, or a slot may come for what is left to do."""
        going = [self._narrow.waiting, self._wides.waiting, self._states.saving]
        if any(going) or any(each.at_work for each in self._slots.processes.values()):
            self._waiting.over()
            return True
        waits = self._slots.coming and self._waking.awaits
        if waits and self._waking.idle and not self._slots.opening:
            return self._waiting.goes_on(self._slots.ready)
        return waits

    def _begin(self) -> None:
        """Start what need not wait any more."""
        self._narrow.begin()
        self._wides.begin()

    def _settled(self) -> None:
        """Begin what may begin now that something ended, and put states away."""
        self._begin()
        self._states.spill()

    # -- slots that go and come ----------------------------------------------------------------

    def _on_loss(self, process: SlotProcess) -> Events:
        """The events of what trials lose with this slot.

        Those at work there lose their unit, those at rest there what is not durable.
        """
        lost, events = self._wides.lose(process)
        lost += self._narrow.lose(process)
        events += self._states.lose(process, lost)
        events += self._wides.advance()
        self._begin()
        return events

    def _on_news(
        self, process: SlotProcess, number: int, progress: Mapping[TrialId, Reached]
    ) -> Events:
        """The events of how far units of a round are that are under way and count."""
        trials = self._narrow.at_work(process, number) or self._wides.at_work(process, number)
        events: Events = []
        for trial, reached in progress.items():
            if trial in trials:
                events += self.course.on(trial, reached)
        return events

    def _remove(self, slots: list[SlotId]) -> Events:
        """Have these slots leave, at once if they are idle."""
        processes = self._slots.processes
        leaving = [processes[slot] for slot in slots if slot in processes]
        events: Events = []
        for process in leaving:
            process.leaving = True
            self._narrow.call_off(process)
            self._wides.release(process)
            if not process.at_work:
                events += self._depart(process)
        return events

    def _depart(self, process: SlotProcess) -> Events:
        """Have the slot leave, once what only it holds is durable."""
        try:
            events = self._states.secure(process)
        except RayError as error:
            return self._slots.died(process, error)
        return events + self._slots.part(process)
