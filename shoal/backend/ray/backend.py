"""Many slots, on this machine or on a Ray cluster.

Each slot is a process, and states go from slot to slot.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from time import monotonic

import ray
from ray.exceptions import RayError

from shoal.backend.course import Positions
from shoal.backend.deciding import DecidingTime
from shoal.backend.ray import cluster, reaper
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.health.hangs import Hangs
from shoal.backend.ray.health.leaving import due
from shoal.backend.ray.health.pulse import ClusterPulse
from shoal.backend.ray.health.waiting import NodeWait
from shoal.backend.ray.health.waking import EventQueue, Waking
from shoal.backend.ray.narrow import OneSlotGangs
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.opening import SlotsOpening, await_node
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.slots import Events, SlotProcess, check_known
from shoal.backend.ray.states import States
from shoal.backend.ray.wide.gangs import WideGangs, gradients
from shoal.backend.ray.work import Work
from shoal.core.cluster import SlotId
from shoal.core.event import Commanded, Event, Joined, Left
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import Reached


class Looks:
    """Looks now and then whether the cluster lives, whether slots hang, and for new nodes.

    `remove`: has slots leave, as those do whose time is over.
    """

    def __init__(
        self,
        pulse: ClusterPulse,
        hangs: Hangs,
        work: Work,
        waking: Waking,
        remove: Callable[[list[SlotId]], Events],
    ) -> None:
        self._pulse = pulse
        self._hangs = hangs
        self._work = work
        self._fleet = work.fleet
        self._waking = waking
        self._remove = remove

    @property
    def times(self) -> tuple[float | None, ...]:
        """When to look next, by the monotonic clock."""
        return self._fleet.look_at, self._hangs.look_at

    def look(self) -> Events:
        """Look if it is time, and return what follows."""
        now = monotonic()
        events: Events = []
        if now >= self._hangs.look_at:
            events = self._hangs.look(self._fleet.ready)
            ends = due(self._fleet.ready, self._work.times, self._waking.now())
            events += self._remove(ends)
        if self._fleet.look_at is not None and now >= self._fleet.look_at:
            self._fleet.look_at = now + 1.0
            if self._pulse.answers():  # else the next question would block
                self._fleet.look()
        return events


class Ray:
    """Slots as processes of a Ray cluster.

    States go from one slot to the other through the cluster's object store, never through here.

    Raises:
        ValueError: no node has room for a slot.
    """

    def __init__(self, recipe: Recipe, data: Data, course: Positions, setup: RaySetup) -> None:
        self.course = course
        self._waking = Waking(setup.since)
        self.now = self._waking.now
        self._inbox = EventQueue()
        about = setup.address, setup.slots, setup.threads
        self._joined = not ray.is_initialized()
        store = setup.store_gb(recipe, data)
        self._own, limit = cluster.join(*about, store, setup.cpus)
        self._pulse = ClusterPulse(self._own)
        try:
            await_node(partial(setup.tell, self.now()))
            self._open(recipe, data, setup, limit)
            self._starting = SlotsOpening(self._fleet, setup.tell, self.now())
            self._starting.began(setup.since, self._joined)
        except BaseException:
            self._leave()
            raise

    def _open(self, recipe: Recipe, data: Data, setup: RaySetup, limit: int | None) -> None:
        """Start the slots, up to `limit`; the data that this process has serves those here."""
        own_slots = limit if self._own else None
        share = cluster.share_of(setup.cpus_per_slot, setup.gpus_per_slot, setup.threads, own_slots)
        slot = setup.slot(recipe, data, self.course.seed, share.gpus)
        self._fleet = Fleet(
            slot,
            data,
            setup.register(data),
            share,
            self._inbox.put,
            self.now,
            self._on_loss,
            self._on_news,
        )
        self.size = self._fleet.size
        self._deciding = DecidingTime()
        hangs = Hangs(self.course, setup.silence_limits(recipe), self._fleet.died)
        self.silent = hangs.silent
        self._waiting = NodeWait(self._fleet.shards)
        self._states = States(self.course, self._fleet, setup)
        self.forget = self._states.release
        self._work = Work(self.course, self._fleet, self._states, self._depart, self._settled)
        looks = self._work, self._waking, self._remove
        self._looks = Looks(self._pulse, hangs, *looks)
        self._narrow = OneSlotGangs(self._work)
        self._wides = WideGangs(self._work, gradients(share.gpus))
        self._shelf = node_data.place(slot.token, cluster.here(), slot.cache)
        reaper.clear_up(self._shelf)
        self._fleet.man(limit, self._own, elastic=setup.address is not None)
        if data.catalogue is None and self._fleet.at(cluster.here()):  # it is here
            node_data.offer(data, self._shelf, recipe)

    # -- the protocol --------------------------------------------------------------------------

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
        self._leave()
        shutil.rmtree(self._shelf, ignore_errors=True)

    def _leave(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        self._pulse.close()
        lost = ray.is_initialized() and self._pulse.lost()
        cluster.leave(self._own, self._joined, lost)
        # What this process joins later is not ours to leave.
        self._own = self._joined = False

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
        return self._waking.patience(*self._looks.times)

    def _gather(self, wait: Seconds) -> Events:
        """All that happened meanwhile; raises ConnectionError if the cluster is lost."""
        self._pulse.check()
        try:
            return self._inbox.gather(wait) + self._looks.look()
        except cluster.Unanswered as error:
            raise self._pulse.explained(error) from error

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

    def _on_news(self, process: SlotProcess, number: int, at: Mapping[TrialId, Reached]) -> Events:
        """How far the units of a round are; of those that are over, their results tell it."""
        trials = self._narrow.at_work(process, number)
        trials = trials or self._wides.at_work(process, number)
        known = {trial: reached for trial, reached in at.items() if trial in trials}
        return [event for each in known.items() for event in self.course.on(*each)]

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
