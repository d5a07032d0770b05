"""Many slots, on this machine or on a Ray cluster: one process per slot, and states that go from slot to slot."""

import os
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from shoal.backend import ray_cluster, ray_data, ray_feeder
from shoal.backend.course import Course
from shoal.backend.ray_fleet import Berth, Fleet
from shoal.backend.ray_inbox import Inbox
from shoal.backend.ray_narrow import Narrow
from shoal.backend.ray_slot import Setup
from shoal.backend.ray_states import States, Work
from shoal.backend.ray_wide import Wides
from shoal.core.cluster import GiB, SlotId
from shoal.core.event import Commanded, Event, Joined, Left
from shoal.core.plan import Gang
from shoal.core.ports import Moment
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.train.data import Data
from shoal.train.recipe import Recipe, overrides

PATIENCE = 60.0  # seconds that a run waits at the start for all of its slots, where some are ready or others may come


class Ray:
    """Slots as processes of a Ray cluster; states go from one to the other through its object store, never through here.

    Without `address`: in the cluster that this process has joined already, else in one started here, with `slots` slots (default:
    one per GPU; without GPUs, as many as CPUs allow). With it: as many as fit the cluster's nodes, which may come and go.
    `checkpoints`: URL, good on every node; `logs`: folder for what trials print; `cache`: each node's folder for its copy of the
    data. `copies`: slots that hold each shard. `state_memory_gb`: per slot, for models at rest there, and as much again in
    the object store; `slot_memory_gb`: of each slot, in all. `feeders`: processes of each node that prepare chunks once for
    all its slots, `stream_samples` before these ask for them, and hold `stream_memory_gb` of them for those that come later;
    "auto": as many as are measured to be needed; 0: each slot prepares its own. `since`: the time of the study at which this
    run begins. `pace`: see `Station`.

    Raises:
        ValueError: no node has room for a slot.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        course: Course,
        checkpoints: str,
        *,
        run: int,
        slots: int | None = None,
        address: str | None = None,
        threads: int = 1,
        cpus_per_slot: float | None = None,
        gpus_per_slot: float | None = None,
        copies: int = 1,
        since: Seconds = 0.0,
        metric: str | None = None,
        checkpoint_every: Seconds = 30.0,
        data_memory_gb: GiB = 2.0,
        state_memory_gb: GiB = 2.0,
        slot_memory_gb: GiB | None = None,
        pace: Callable[[Any, Samples], Seconds] | None = None,
        logs: str | os.PathLike[str] | None = None,
        cache: str | os.PathLike[str] | None = None,
        feeders: int | Literal["auto"] = "auto",
        stream_memory_gb: GiB = 1.0,
        stream_samples: int = 2048,
    ) -> None:
        self.course = course
        self._zero = monotonic() - since
        shared = (overrides(recipe, "prepare") or overrides(recipe, "augment")) and not recipe.data_keys
        feeders = feeders if shared else 0
        store = state_memory_gb * (slots or os.cpu_count() or 1) + (stream_memory_gb / ray_feeder.SHARE if feeders else 0.0)
        self._own, limit = ray_cluster.join(address, slots, threads, store)
        try:
            share = ray_cluster.share_of(cpus_per_slot, gpus_per_slot, threads, limit if self._own else None)
            setup = Setup(
                user=ray_cluster.packed(recipe, pace),
                checkpoints=checkpoints if "://" in checkpoints else os.path.abspath(checkpoints),
                run=run,
                seed=course.seed,
                threads=threads,
                gpus=share.gpus,
                metric=metric,
                checkpoint_every=checkpoint_every,
                data_memory_gb=data_memory_gb,
                state_memory_gb=state_memory_gb,
                slot_memory_gb=slot_memory_gb,
                fingerprint=data.fingerprint,
                token=secrets.token_hex(4),
                cache=None if cache is None else os.path.abspath(cache),
                logs=None if logs is None else os.path.abspath(logs),
                feeders=feeders,
                stream_memory_gb=stream_memory_gb,
                stream_samples=stream_samples,
            )
            self._inbox = Inbox()
            self._fleet = Fleet(setup, data.shards, share, copies, self._inbox.put, self._on_loss, self._on_news)
            self._wake_at: Seconds | None = None
            self._awaits = True  # slots that may come are worth waiting for
            self._idle = False  # nobody wants to be asked again
            self._unfinished: set[TrialId] = set()
            active: set[TrialId] = set()
            self._states = States(course, self._fleet, state_memory_gb, active)
            self._work = Work(
                course, self._fleet, self._states, active, self._unfinished, count(), self._depart, self._settled, self._inbox.put
            )
            self._narrow, self._wides = Narrow(self._work), Wides(self._work, "nccl" if share.gpus >= 1 else "gloo")
            self._shelf = ray_data.place(setup.token, ray_cluster.here(), setup.cache)
            self._fleet.man(limit, self._own, elastic=address is not None)
            if self._fleet.at(ray_cluster.here()):  # the data is here already
                ray_data.prepare(self._shelf, os.getpid())
                ray_data.shelve(data, self._shelf)
        except BaseException:
            ray_cluster.leave(self._own)
            raise

    # -- the protocol --------------------------------------------------------------------------------------------------

    def now(self) -> Seconds:
        return monotonic() - self._zero

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment (a stop, say); safe to call from a signal handler or another thread."""
        self._inbox.put(lambda: [event])

    def submit(self, trial: Trial) -> None:
        self.course.submit(trial)
        self._unfinished.add(trial.id)

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self._awaits, self._idle = until is not None, at is None
        self._wake_at = at
        if until is not None and until < inf and self._fleet.coming:
            self._wake_at = until if at is None else min(at, until)

    def change(self, before: Gang | None, after: Gang | None) -> None:
        wide = after is not None and self._wides.takes(after)
        if before is not None:
            if after is not None and (self._wides.turns(before, after) or self._narrow.shrinks(before, after)):
                self._begin()
                return
            self._wides.stop(before)
            self._narrow.stop(before)
        if after is not None:
            (self._wides if wide else self._narrow).wait(after)
        self._begin()

    def moments(self) -> Iterator[Moment]:
        events = self._assemble()
        yield self.now(), tuple(events)
        while True:
            events = self._gather(self._patience())
            if not events and not self._due():
                if self._going() or self._wake_at is not None:
                    continue
                events = self._states.flush() or [*self._fleet.fed()]
                if not events:
                    return
            yield self.now(), tuple(events)

    def add_slots(self, n: int) -> None:
        """Start so many more slots, where there is room for them; they join when they are ready."""
        self._inbox.put(partial(self._fleet.add, n))

    def remove_slots(self, slots: Iterable[SlotId]) -> None:
        """Have these slots leave after the units they are at, once what only they hold is durable.

        Raises:
            ValueError: there is no such slot.
        """
        gone = list(slots)
        unknown = sorted(set(gone) - set(self._fleet.berths))
        if unknown:
            raise ValueError(f"no slot {', '.join(unknown)}; there are {', '.join(sorted(self._fleet.berths))}")
        self._inbox.put(partial(self._remove, gone))

    @property
    def moved(self) -> int:
        """Bytes of states that went from slot to slot through the object store."""
        return self._narrow.moved + self._wides.moved

    def pids(self) -> dict[SlotId, int]:
        """The slots that are ready, and their processes."""
        return {berth.id: berth.pid for berth in self._fleet.ready}

    def close(self) -> None:
        """End the slots' processes, and the cluster if it was started here."""
        if ray.is_initialized():
            self._fleet.close()
            ray_cluster.leave(self._own)
        shutil.rmtree(self._shelf, ignore_errors=True)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _assemble(self) -> list[Event]:
        """Wait a while for the slots that were started, unless something is asked for meanwhile."""
        until, told = monotonic() + PATIENCE, list[Event]()
        while self._fleet.opening and not any(isinstance(event, Commanded) for event in told):
            if monotonic() > until and (self._fleet.ready or self._fleet.look_at is not None):
                break
            told += [event for event in self._gather(1.0) if not isinstance(event, Joined | Left)]  # nobody knows of them yet
        return [Joined(self._fleet.assembled()), *told]

    def _patience(self) -> Seconds | None:
        """How long to wait for something to happen; None: as long as it takes."""
        if not self._going() and self._wake_at is None:
            return 0.0
        ends = [] if self._wake_at is None else [self._wake_at - self.now()]
        ends += [] if self._fleet.look_at is None else [self._fleet.look_at - monotonic()]
        return max(0.0, min(ends)) if ends else None

    def _gather(self, wait: Seconds | None) -> list[Event]:
        """All that happened meanwhile."""
        events = self._inbox.gather(wait)
        if self._fleet.look_at is not None and monotonic() >= self._fleet.look_at:
            self._fleet.look()
        return events

    def _due(self) -> bool:
        if self._wake_at is None or self.now() < self._wake_at:
            return False
        self._wake_at = None
        return True

    def _going(self) -> bool:
        """Whether anything is under way, or a slot may come for what is left to do."""
        if any(berth.at_work for berth in self._fleet.berths.values()):
            return True
        if self._narrow.waiting or self._wides.waiting or self._states.saving:
            return True
        waits = self._fleet.coming and self._awaits
        if waits and self._idle and not self._fleet.opening:
            told = f"no trial can run on the {len(self._fleet.ready)} slots there are: waiting for nodes; Ctrl-C ends the run"
            warnings.warn(told, stacklevel=1)
        return waits

    def _begin(self) -> None:
        """Start what need not wait any more."""
        self._narrow.begin()
        self._wides.begin()

    def _settled(self) -> None:
        self._begin()
        self._states.spill()

    # -- slots that go and come ----------------------------------------------------------------------------------------

    def _on_loss(self, berth: Berth) -> list[Event]:
        """What the trials lose with this slot: those at work there their unit, those resident there what is not durable."""
        lost, events = self._wides.lose(berth)
        events += self._states.lose(berth, (*self._narrow.lose(berth), *lost))
        events += self._wides.advance()
        self._begin()
        return events

    def _on_news(self, berth: Berth, number: int, at: Mapping[TrialId, Samples]) -> list[Event]:
        """How far the units are that the slot is at; what is over by now was told by its result."""
        trials = self._narrow.at_work(berth, number) or self._wides.at_work(berth, number)
        return [event for trial in at if trial in trials and (event := self.course.on(trial, at[trial])) is not None]

    def _remove(self, slots: list[SlotId]) -> list[Event]:
        events: list[Event] = []
        for berth in [self._fleet.berths[slot] for slot in slots if slot in self._fleet.berths]:
            berth.leaving = True
            self._narrow.call_off(berth)
            self._wides.release(berth)
            if not berth.at_work:
                events += self._depart(berth)
        return events

    def _depart(self, berth: Berth) -> list[Event]:
        try:
            events = self._states.secure(berth)
        except RayError as error:
            return self._fleet.died(berth, error)
        return events + self._fleet.part(berth)
