"""A state in the making: the tables that change are copied once, and the base stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.overlay import writable
from shoal.core.plan import Gang, Plan, prune
from shoal.core.queues import Queue, Queues
from shoal.core.state import State, epoch_of
from shoal.core.trial import Trial, TrialId, Visit

Table = Mapping[Any, Any]
WritableTable = MutableMapping[Any, Any]
Trials = frozenset[TrialId]
Slots = frozenset[SlotId]
NONE: frozenset[Any] = frozenset()
# Tables that are empty when a run begins.
OF_ONE_RUN = ("slots", "gangs", "busy", "running", "gone", "unread", "held_back")
# Tables by which it is known who waits.
OF_QUEUES = frozenset(("slots", "busy", "trials", "running"))

_STATE_FIELDS = tuple(f.name for f in fields(State) if f.init)
_values_of: Callable[[State], tuple[Any, ...]] = attrgetter(*_STATE_FIELDS)


class Draft:
    """A state in the making, over a `base` that stays as it is.

    A table is named like its field of `State`. It is copied when it is first written to.
    """

    __slots__ = ("_queues", "_started", "_stopped", "base", "fresh", "scalars")

    def __init__(self, base: State) -> None:
        self.base = base
        # The tables that were copied, by name.
        self.fresh: dict[str, WritableTable] = {}
        # New values of the fields that are no tables, by name.
        self.scalars: dict[str, Any] = {}
        # The gangs that run now and did not in the base, and the other way round; in order.
        self._started: dict[Gang, None] = {}
        self._stopped: dict[Gang, None] = {}
        # The queues that were copied, by the names of fields of `Queues`.
        self._queues: dict[str, Queue[Any]] = {}

    def read(self, name: str) -> Table:
        """The table as it is now, only to be read."""
        fresh = self.fresh.get(name)
        if fresh is not None:
            return fresh
        table: Table = getattr(self.base, name)
        return table

    def write(self, name: str) -> WritableTable:
        """The table as it is now, to be written to."""
        fresh = self.fresh
        if name not in fresh:
            fresh[name] = writable(getattr(self.base, name))
        return fresh[name]

    def done(self) -> State:
        """The new state. The draft must not be used afterwards."""
        changes: dict[str, Any] = {**self.fresh, **self.scalars}
        if not changes:
            return self.base
        values: list[Any] = list(map(changes.get, _STATE_FIELDS, _values_of(self.base)))
        state = State(*values)
        plan, queues = self.base.answered
        if plan is not None and "gangs" in changes:
            plan = Plan.running(state.gangs, plan, self._started, self._stopped)
        if queues is not None and not OF_QUEUES.isdisjoint(changes):
            tables = state.slots, state.busy, state.trials, state.running
            queues = Queues(
                *tables,
                self._queues.get("idle", queues.idle),
                self._queues.get("waiting", queues.waiting),
            )
        state.take(plan, queues)
        return state

    def begin_run(self) -> None:
        """Nothing runs, and no slot is here; whoever asked about the run before asks anew."""
        for name in OF_ONE_RUN:
            self.fresh[name] = {}
        self.base = replace(self.base)

    # -- slots and trials come and go ------------------------------------------------------------

    def _queue(self, name: str) -> Queue[Any] | None:
        """The queue as it is now, to be written to; None: nobody asked who waits."""
        _, queues = self.base.answered
        if name not in self._queues and queues is not None:
            self._queues[name] = getattr(queues, name).copy()
        return self._queues.get(name)

    def join(self, slot: Slot) -> None:
        """The slot is here, or has changed."""
        self.write("slots")[slot.id] = slot
        idle = self._queue("idle")
        if idle is not None:
            idle.add(slot.id)
            if slot.id in self.read("busy"):
                idle.leave(slot.id)

    def leave(self, name: SlotId) -> Slot | None:
        """The slot is here no more. Returns it, if it was here."""
        idle = self._queue("idle")
        if idle is not None:
            idle.remove(name)
        slot: Slot | None = self.write("slots").pop(name, None)
        return slot

    def submit(self, trial: Trial) -> None:
        """The trial has work left."""
        self.write("known")[trial.id] = trial
        self.write("trials")[trial.id] = trial
        waiting = self._queue("waiting")
        if waiting is not None:
            waiting.add(trial.id)
            if trial.id in self.read("running"):
                waiting.leave(trial.id)

    # -- gangs: the tables `gangs`, `busy` and `running` change together -------------------------

    def start(self, gang: Gang) -> None:
        """The gang runs from now on."""
        gangs = self.write("gangs")
        if gang not in gangs and self._stopped.pop(gang, gang) is gang:
            self._started[gang] = None
        gangs[gang] = None
        busy = self.write("busy")
        running = self.write("running")
        idle, waiting = self._queue("idle"), self._queue("waiting")
        for lane in gang.lanes:
            running[lane.trial] = gang
            busy.update(dict.fromkeys(lane.slots, gang))
            if idle is not None and waiting is not None:
                waiting.leave(lane.trial)
                for slot in lane.slots:
                    idle.leave(slot)

    def stop(self, gang: Gang) -> None:
        """The gang runs no more. Nothing changes if it does not run."""
        if gang not in self.read("gangs"):
            return
        del self.write("gangs")[gang]
        if self._started.pop(gang, gang) is gang:
            self._stopped[gang] = None
        busy = self.write("busy")
        running = self.write("running")
        idle, waiting = self._queue("idle"), self._queue("waiting")
        for lane in gang.lanes:
            running.pop(lane.trial, None)
            for slot in lane.slots:
                busy.pop(slot, None)
            if idle is not None and waiting is not None:
                waiting.come(lane.trial)
                for slot in lane.slots:
                    idle.come(slot)

    def shrink(self, gang: Gang, trials: Trials = NONE, slots: Slots = NONE) -> None:
        """The gang goes on without these trials and slots, or stops if no lane is left."""
        self.stop(gang)
        rest = prune(gang, trials, slots)
        if rest is not None:
            self.start(rest)

    # -- trials ----------------------------------------------------------------------------------

    def end(self, trial: TrialId, how: str) -> None:
        """The trial has no work left. Nothing changes if it had none before."""
        if trial not in self.read("trials"):
            return
        del self.write("trials")[trial]
        waiting = self._queue("waiting")
        if waiting is not None:
            waiting.remove(trial)
        self.forget("ranked", trial)
        self.forget("held_back", trial)
        self.write("ended")[trial] = how
        gang = self.read("running").get(trial)
        if gang is not None:
            self.shrink(gang, trials=frozenset((trial,)))

    def forget(self, name: str, key: TrialId) -> None:
        """Take the key out of a table. The table is not copied if it lacks the key."""
        if key in self.read(name):
            del self.write(name)[key]

    def set_priority(self, trial: TrialId, priority: float) -> None:
        """Rank the trial, unless its priority is 1 like that of most."""
        if priority == 1.0:
            self.forget("ranked", trial)
        else:
            self.write("ranked")[trial] = priority

    def set_visits(self, trial: TrialId, visits: tuple[Visit, ...]) -> None:
        """The trial has made these visits; this gives the shards that are pending too."""
        self.write("visits")[trial] = visits
        shards: frozenset[ShardId] = self.read("known")[trial].shards
        if not shards:
            return
        count = len(shards)
        before = epoch_of(visits, count) * count  # visits of the complete epochs
        seen = [visit.shard for visit in visits[before:]]
        self.write("pending")[trial] = shards.difference(seen)
