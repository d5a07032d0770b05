"""A state in the making: the tables that change are copied once, and the base stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from shoal.core.cluster import ShardId, SlotId
from shoal.core.overlay import writable
from shoal.core.plan import Gang, prune
from shoal.core.state import State, epoch_of
from shoal.core.trial import TrialId, Visit

Table = Mapping[Any, Any]
WritableTable = MutableMapping[Any, Any]
Trials = frozenset[TrialId]
Slots = frozenset[SlotId]
NONE: frozenset[Any] = frozenset()

_STATE_FIELDS = tuple(f.name for f in fields(State) if f.init)
_values_of: Callable[[State], tuple[Any, ...]] = attrgetter(*_STATE_FIELDS)


class Draft:
    """A state in the making, over a `base` that stays as it is.

    A table is named like its field of `State`. It is copied when it is first written to.
    """

    __slots__ = ("base", "fresh", "scalars")

    def __init__(self, base: State) -> None:
        self.base = base
        # The tables that were copied, by name.
        self.fresh: dict[str, WritableTable] = {}
        # New values of the fields that are no tables, by name.
        self.scalars: dict[str, Any] = {}

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
        if "gangs" not in changes:
            state.take_plan(self.base)
        return state

    # -- gangs: the tables `gangs`, `busy` and `running` change together -------------------------

    def start(self, gang: Gang) -> None:
        """The gang runs from now on."""
        self.write("gangs")[gang] = None
        busy = self.write("busy")
        running = self.write("running")
        for lane in gang.lanes:
            running[lane.trial] = gang
            busy.update(dict.fromkeys(lane.slots, gang))

    def stop(self, gang: Gang) -> None:
        """The gang runs no more. Nothing changes if it does not run."""
        if gang not in self.read("gangs"):
            return
        del self.write("gangs")[gang]
        busy = self.write("busy")
        running = self.write("running")
        for lane in gang.lanes:
            running.pop(lane.trial, None)
            for slot in lane.slots:
                busy.pop(slot, None)

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
