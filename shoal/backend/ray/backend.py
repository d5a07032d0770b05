"""Many slots, on this machine or on a Ray cluster.

Each slot is a process, and states go from slot to slot.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic

import ray
from ray.exceptions import RayError

from shoal.backend.course import Positions
from shoal.backend.deciding import DecidingTime
from shoal.backend.ray import cluster
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.health.hangs import Hangs
from shoal.backend.ray.health.leaving import due
from shoal.backend.ray.health.waiting import NodeWait
from shoal.backend.ray.narrow import OneSlotGangs
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.opening import SlotsOpening
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.slots import Events, SlotProcess, check_known
from shoal.backend.ray.states import States
from shoal.backend.ray.wide.gangs import WideGangs
from shoal.backend.ray.work import Work
from shoal.core.cluster import SlotId
from shoal.core.event import Commanded, Event, Joined, Left
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import Reached

Happening = Callable[[], Events]  # works off what happened; returns its events


class EventQueue:
    """A queue of happenings. `put` works from any thread, `gather` from one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening] = SimpleQueue()
        self._failure: Exception | None = None

    def put(self, happening: Happening) -> None:
        """Have it worked off by the next `gather`."""
        self._queue.put(happening)

    def gather(self, wait: Seconds) -> Events:
        """Work off what is there, and return the events of all of it.

        `wait`: seconds to wait for something if there is nothing.

        Raises:
            Exception: whatever a happening raised, but only after the events of those before it
                were returned.
        """
        if self._failure is not None:
            raise self._failure

        events: Events = []
        try:
            happening = self._queue.get(timeout=wait)
            while True:
                events += happening()
                happening = self._queue.get_nowait()
        except Empty:
            return events
        except Exception as failure:
            if not events:
                raise
            self._failure = failure

        return events


class Waking:
    """When the engine asks for the next moment, whatever happens until then.

    `since`: the time of the study at which this run begins.
    """

    def __init__(self, since: Seconds) -> None:
        self._zero = monotonic() - since
        self.at: Seconds | None = None
        self.awaits = True  # slots that may come are worth waiting for
        self.idle = False  # nobody wants to be asked again

    def now(self) -> Seconds:
        """The time of the study."""
        return monotonic() - self._zero

    def set(self, at: Seconds | None, until: Seconds | None, coming: bool) -> None:
        """As of `Ray.wake`. `coming`: slots may come."""
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
        """Seconds until then, or until one of these times by the monotonic clock."""
        waits = [each - monotonic() for each in look_at if each is not None]
        if self.at is not None:
            waits.append(self.at - self.now())
        return max(0.0, min(waits))


class Ray:
    """Slots as processes of a Ray cluster.

    States go from one slot to the other through the cluster's object store, never through here.

    Raises:
        ValueError: no node has room for a slot.
    """

    def __init__(
        self, recipe: Recipe, data: Data, course: Positions, setup: RaySetup
    ) -> None:
        self.course = course
        self._waking = Waking(setup.since)
        self._inbox = EventQueue()
        about = setup.address, setup.slots, setup.threads
        self._joined = not ray.is_initialized()
        store = setup.store_gb(recipe, data)
        self._own, limit = cluster.join(*about, store, setup.cpus)
        try:
            cluster.await_node(partial(setup.tell, self.now()))
            self._open(recipe, data, setup, limit)
            self._starting = SlotsOpening(self._fleet, setup.tell, self.now())
            self._starting.began(setup.since, self._joined)
        except BaseException:
            cluster.leave(self._own, self._joined)
            raise

    def _open(
        self, recipe: Recipe, data: Data, setup: RaySetup, limit: int | None
    ) -> None:
        """Start the slots, up to `limit`; the data that this process has serves those here."""
        own_slots = limit if self._own else None
        share = cluster.share_of(
            setup.cpus_per_slot, setup.gpus_per_slot, setup.threads, own_slots
        )
        slot = setup.slot(recipe, data, self.course.seed, share.gpus)
        self._fleet = Fleet(
            slot,
            setup.register(data),
            share,
            self._inbox.put,
            self.now,
            self._on_loss,
            self._on_news,
        )
        self.size = self._fleet.size
        self._deciding = DecidingTime()
        self._hangs = Hangs(self.course, setup.silence_limits(recipe), self._fleet.died)
        self.silent = self._hangs.silent
        self._waiting = NodeWait(self._fleet.shards)
        self._states = States(self.course, self._fleet, setup)
        self.forget = self._states.release
        self._work = Work(
            self.course, self._fleet, self._states, self._depart, self._settled
        )
        self._narrow = OneSlotGangs(self._work)
        self._wides = WideGangs(self._work, cluster.gradients(share))
        self._shelf = node_data.place(slot.token, cluster.here(), slot.cache)
        self._fleet.man(limit, self._own, elastic=setup.address is not None)
        if data.catalogue is None and self._fleet.at(cluster.here()):  # it is here
            node_data.prepare(self._shelf, os.getpid())
            node_data.shelve(data, self._shelf, recipe)

    # -- the protocol --------------------------------------------------------------------------

    def now(self) -> Seconds:
        """The time of the study."""
        return self._waking.now()

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment (a stop, say).

        Safe to call from a signal handler or another thread.
        """
        self._inbox.put(lambda: [event])

    def submit(self, trial: Trial) -> None:
        """See `Backend`."""
        self._work.submit(trial, self.tell)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """See `Backend`."""
        self._waking.set(at, until, self._fleet.coming)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """See `Backend`."""
        wide = after is not None and self._wides.takes(after)
        self._fleet.shards.check(after, self._fleet.processes)
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
        self._inbox.put(partial(self._fleet.add, n))

    def remove_slots(self, slots: Iterable[SlotId]) -> None:
        """Have these slots leave after the units they are at, once what only they hold is durable.

        Raises:
            ValueError: there is no such slot.
        """
        gone = list(slots)
        check_known(gone, self._fleet.processes)
        self._inbox.put(partial(self._remove, gone))

    def resize(self, n: int) -> None:
        """Have so many slots from now on, as far as there is room; idle ones leave first."""
        self._inbox.put(lambda: self._remove(self._fleet.aim(n)))

    @property
    def moved(self) -> int:
        """Bytes of states that went from slot to slot through the object store."""
        return self._states.moved

    def pids(self) -> dict[SlotId, int]:
        """The slots that are ready, and their processes."""
        return {process.id: process.pid for process in self._fleet.ready}

    def close(self) -> None:
        """End the slots' processes, and the cluster if it was started here."""
        if ray.is_initialized():
            self._fleet.close()
            cluster.leave(self._own, self._joined)
        shutil.rmtree(self._shelf, ignore_errors=True)

    # -- waiting -------------------------------------------------------------------------------

    def _assemble(self) -> Events:
        """Wait a while for the slots that were started, unless something is asked for meanwhile."""
        others: Events = []
        while self._starting.awaited(self.now()) and not any(
            isinstance(event, Commanded) for event in others
        ):
            for event in self._gather(1.0):
                if not isinstance(event, Joined | Left):
                    # Nobody knows yet of slots that join or leave.
                    others.append(event)

        self._starting.over(self.now())
        return [Joined(self._fleet.assembled()), *others]

    def _patience(self) -> Seconds:
        """How long to wait for something to happen, before slots are looked at again."""
        if not self._going() and self._waking.at is None:
            return 0.0
        return self._waking.patience(self._fleet.look_at, self._hangs.look_at)

    def _gather(self, wait: Seconds) -> Events:
        """All that happened meanwhile."""
        events = self._inbox.gather(wait)
        if monotonic() >= self._hangs.look_at:
            events += self._hangs.look(self._fleet.ready)
            events += self._remove(due(self._fleet.ready, self._work.times, self.now()))
        if self._fleet.look_at is not None and monotonic() >= self._fleet.look_at:
            self._fleet.look()
        return events

    def _going(self) -> bool:
        """Whether anything is under way, or a slot may come for what is left to do."""
        going = [self._narrow.waiting, self._wides.waiting, self._states.saving]
        if any(going) or any(each.at_work for each in self._fleet.processes.values()):
            self._waiting.over()
            return True
        waits = self._fleet.coming and self._waking.awaits
        if waits and self._waking.idle and not self._fleet.opening:
            return self._waiting.goes_on(self._fleet.ready)
        return waits

    def _begin(self) -> None:
        """Start what need not wait any more."""
        self._narrow.begin()
        self._wides.begin()

    def _settled(self) -> None:
        """Something came to its end: others may begin, and states be put away."""
        self._begin()
        self._states.spill()

    # -- slots that go and come ----------------------------------------------------------------

    def _on_loss(self, process: SlotProcess) -> Events:
        """What the trials lose with this slot.

        Those at work there lose their unit, those at rest there what is not durable.
        """
        lost, events = self._wides.lose(process)
        lost += self._narrow.lose(process)
        events += self._states.lose(process, lost)
        events += self._wides.advance()
        self._begin()
        return events

    def _on_news(
        self, process: SlotProcess, number: int, at: Mapping[TrialId, Reached]
    ) -> Events:
        """How far the units of a round are; of those that are over, their results tell it."""
        trials = self._narrow.at_work(process, number)
        if not trials:
            trials = self._wides.at_work(process, number)
        events: Events = []
        for trial, reached in at.items():
            if trial in trials:
                events += self.course.on(trial, reached)
        return events

    def _remove(self, slots: list[SlotId]) -> Events:
        """Have these slots leave, at once if they are idle."""
        processes = self._fleet.processes
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
        """The slot leaves, once what only it holds is durable."""
        try:
            events = self._states.secure(process)
        except RayError as error:
            return self._fleet.died(process, error)
        return events + self._fleet.part(process)
