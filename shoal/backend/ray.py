"""Many slots, on this machine or on a Ray cluster: one process per slot, and states that go from slot to slot."""

import os
import pickle
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.backend import ray_cluster, ray_data
from shoal.backend.course import Course, Position, Run
from shoal.backend.ray_feeder import Fed
from shoal.backend.ray_fleet import Berth, Call, Fleet
from shoal.backend.ray_inbox import Inbox
from shoal.backend.ray_slot import Broken, Cut, Lost, Outcomes, Setup, Trained
from shoal.backend.ray_states import Resident, States
from shoal.core.check import PlanError
from shoal.core.cluster import GiB, SlotId
from shoal.core.event import Ended, Event, Failed, Finished, Joined
from shoal.core.plan import Gang, goes_on, prune
from shoal.core.ports import Moment
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.train.data import Data
from shoal.train.recipe import Recipe
from shoal.train.unit import TrialError, Unit

DEPTH = 2  # units of a whole-data gang that its slot is given at once, so that none waits for the driver
PATIENCE = 60.0  # seconds that slots which are ready at the start wait for the others


class Ray:
    """Slots as processes of a Ray cluster; states go from one to the other through its object store, never through here.

    Without `address`: in the cluster that this process has joined already, else in one started here, with `slots` slots (default:
    one per GPU; without GPUs, as many as CPUs allow). With it: as many as fit the cluster's nodes, which may come and go.
    `checkpoints`: URL, good on every node; `logs`: folder for what trials print; `cache`: each node's folder for its copy of the
    data. `copies`: slots that hold each shard. `state_memory_gb`: per slot, for models at rest there, and as much again in
    the object store; `slot_memory_gb`: of each slot, in all. `feeders`: processes of each node that prepare chunks once for
    all its slots, and hold `stream_memory_gb` of them for those that come later; 0: each slot prepares its own. `since`: the
    time of the study at which this run begins. `pace`: see `Station`.

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
        feeders: int = 0,
        stream_memory_gb: GiB = 1.0,
    ) -> None:
        self.course = course
        self._zero = monotonic() - since
        self._own, limit = ray_cluster.join(address, slots, threads, state_memory_gb * (slots or os.cpu_count() or 1))
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
            )
            self._inbox = Inbox()
            self._fleet = Fleet(setup, data.shards, share, copies, self._inbox.put, self._on_loss)
            self._wake_at: Seconds | None = None
            self._waiting: dict[SlotId, Run] = {}  # gangs whose slot or trial is still at work
            self._active: set[TrialId] = set()
            self._unfinished: set[TrialId] = set()
            self._states = States(course, self._fleet, state_memory_gb, self._active)
            self._ahead = Course(
                course.seed, course.sizes, course.validate_every
            )  # where trials will be after the units given out
            self._numbers = count()
            self.moved = 0  # bytes of states that went from slot to slot
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

    def wake(self, at: Seconds | None) -> None:
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        if after is not None and len(after.slots) > 1:
            raise PlanError(f"the ray backend runs each gang on one slot; got lanes {after.lanes}: use another policy")
        if before is not None and (after is None or not self._shrinks(before, after)):
            self._stop(before)
        elif before is not None:
            return
        if after is not None and _slot_of(after) in self._fleet.berths:
            self._waiting[_slot_of(after)] = Run.of(after)
        self._begin()

    def moments(self) -> Iterator[Moment]:
        events = self._assemble()
        yield self.now(), tuple(events)
        while True:
            events = self._gather(self._patience())
            if not events and not self._due():
                if self._going() or self._wake_at is not None:
                    continue
                events = self._states.flush()
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

    def pids(self) -> dict[SlotId, int]:
        """The slots that are ready, and their processes."""
        return {berth.id: berth.pid for berth in self._fleet.ready}

    def fed(self) -> dict[str, list[Fed]]:
        """What the feeders of each node did so far."""
        return self._fleet.fed()

    def close(self) -> None:
        """End the slots' processes, and the cluster if it was started here."""
        if ray.is_initialized():
            self._fleet.close()
            ray_cluster.leave(self._own)
        shutil.rmtree(self._shelf, ignore_errors=True)

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _assemble(self) -> list[Event]:
        """Wait for the slots that were started."""
        until, events = monotonic() + PATIENCE, list[Event]()
        while self._fleet.opening and not (self._fleet.ready and monotonic() > until):
            events += self._gather(1.0)
        return [Joined(self._fleet.assembled()), *events]

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
        """Whether anything is under way, or a slot is to come for what is left to do."""
        at_work = any(berth.calls for berth in self._fleet.berths.values())
        return at_work or bool(self._waiting or self._states.saving) or (self._fleet.coming and bool(self._unfinished))

    # -- gangs ---------------------------------------------------------------------------------------------------------

    def _shrinks(self, before: Gang, after: Gang) -> bool:
        """Whether a gang at work only loses lanes; if so, what is under way of them comes to nothing, and the others go on."""
        berth = self._fleet.berths.get(_slot_of(before))
        if not goes_on(before, after) or berth is None or berth.run is None or berth.run.gang != before:
            return False
        berth.run.gang = after
        for trial in set(before.trials) - set(after.trials):
            self._drop(berth, trial)
            self._active.discard(trial)
            self.course.positions[trial].carried = None
        return True

    def _stop(self, gang: Gang) -> None:
        """The round under way is made to its end, but with a quota it is void; those given out after it are called off."""
        slot = _slot_of(gang)
        if slot in self._waiting and self._waiting[slot].gang == gang:
            del self._waiting[slot]
            return
        berth = self._fleet.berths.get(slot)
        if berth is None or berth.run is None or berth.run.gang != gang or berth.stopping:
            return
        berth.stopping = True
        if gang.quota is None:
            self._call_off(berth)
        else:
            for call in berth.calls:
                call.void = True
                berth.call("control", "halt", call.number)

    def _call_off(self, berth: Berth) -> None:
        for call in berth.calls[1:]:
            berth.call("control", "call_off", call.number)

    def _begin(self) -> None:
        """Start the gangs that need not wait any more."""
        for slot, run in list(self._waiting.items()):
            berth = self._fleet.berths[slot]
            rest = prune(run.gang, frozenset(run.gang.trials) - self._unfinished)
            if rest is None:
                del self._waiting[slot]
                continue
            run.gang = rest
            if berth.slot is not None and berth.run is None and self._active.isdisjoint(rest.trials):
                del self._waiting[slot]
                self._active.update(rest.trials)
                berth.run, berth.stopping = run, False
                self._fill(berth)

    def _fill(self, berth: Berth) -> None:
        """Give the slot its gang's next rounds."""
        run = berth.run
        assert run is not None, "only of a berth at work"
        depth = 1 if _carries(run) else DEPTH
        while len(berth.calls) < depth and not (berth.stopping or berth.leaving):
            trials = run.gang.trials
            if any(not call.dropped.isdisjoint(trials) for call in berth.calls):
                return  # such a trial must know first what it goes on from
            if berth.calls:
                trials = tuple(t for t in trials if t in berth.calls[-1].units and not berth.calls[-1].units[t].last)
            if not trials:
                return
            self._give(berth, run, trials)

    def _give(self, berth: Berth, run: Run, trials: Iterable[TrialId]) -> None:
        parcels: dict[TrialId, Any] = {}
        origins: dict[TrialId, SlotId] = {}
        units: dict[TrialId, Unit] = {}
        for trial in trials:
            if berth.calls:
                units[trial] = self._unit_after(run, trial, [call.units[trial] for call in berth.calls])
                continue
            stored = self._states.source(trial, berth, void=_carries(run))
            if stored is not None:
                parcels[trial], origins[trial] = stored.ref, stored.slot
            at = self.course.positions[trial]
            name = at.kept.name if at.kept is not None and at.kept.visits == len(at.visits) else None
            units[trial] = self.course.unit(run, trial, name, _carries(run))
        call = Call(next(self._numbers), units, origins)
        told = pickle.dumps((units, run.gang.fused))  # many visits: ten times as fast as Ray's own pickling
        report, *states = berth.call("train", "train", call.number, told, parcels, results=1 + len(units))
        call.states = dict(zip(units, states, strict=True))
        berth.calls.append(call)
        self._fleet.follow(report, partial(self._reported, berth, call))

    def _unit_after(self, run: Run, trial: TrialId, given: Iterable[Unit]) -> Unit:
        """The trial's unit after those given out already."""
        at = self.course.positions[trial]
        coming = [unit.visit._replace(samples=self.course.sizes[unit.visit.shard]) for unit in given]
        samples = at.samples + sum(visit.samples for visit in coming)
        self._ahead.positions[trial] = Position(at.trial, (*at.visits, *coming), samples)
        return self._ahead.unit(run, trial, None, carry=False)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def _reported(self, berth: Berth, call: Call, future: Any) -> list[Event]:
        if self._fleet.berths.get(berth.id) is not berth or call not in berth.calls:
            return []
        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self._fleet.died(berth, error)
        berth.calls.remove(call)
        assert berth.run is not None, "it has calls"
        events = self._settle(berth, berth.run, call, future.result())
        self._fill(berth)
        if not berth.calls:
            self._active.difference_update(berth.run.gang.trials)
            berth.run = None
        if berth.leaving and not berth.calls:
            events += self._depart(berth)
        self._begin()
        self._states.spill()
        return events

    def _settle(self, berth: Berth, run: Run, call: Call, outcomes: Outcomes) -> list[Event]:
        if isinstance(outcomes, Broken):
            raise outcomes.error
        here = {t: outcome for t, outcome in outcomes.items() if t in run.gang.trials and t not in call.dropped}
        if call.void:
            return [self.course.abandon(trial) for trial in here]
        events: list[Event] = []
        for trial, outcome in here.items():
            if isinstance(outcome, Trained):
                events += self._trained(berth, call, trial, outcome)
        failed = {t: outcome for t, outcome in here.items() if isinstance(outcome, TrialError)}
        lost = [t for t, outcome in here.items() if isinstance(outcome, Lost)]
        for trial in [*failed, *lost]:
            self._drop(berth, trial)
            self.course.positions[trial].carried = None
        events += [self.course.fall(trial) for trial in lost]
        if run.left is not None and lost:  # the shards of a gang may be wrong for its trial now: the policy decides anew
            berth.stopping = True
            return [*events, Ended(run.gang)]
        if any(not isinstance(outcome, Cut | Lost) for outcome in here.values()):
            events += self._over(berth, run, failed)
        return events

    def _over(self, berth: Berth, run: Run, failed: Mapping[TrialId, TrialError]) -> list[Event]:
        """What ends with the round."""
        assert berth.slot is not None, "only of a berth at work"
        before = run.gang.trials
        events = self.course.end_round(run, berth.slot, failed)
        for event in events:
            if isinstance(event, Joined):
                berth.slot = event.slots[0]
            elif isinstance(event, Finished | Failed):
                self._unfinished.discard(event.trial)
        if run.over:
            berth.stopping = True
            self._active.difference_update(before)
        self._active.difference_update(set(before) - set(run.gang.trials))
        return events

    def _trained(self, berth: Berth, call: Call, trial: TrialId, outcome: Trained) -> list[Event]:
        at, unit = self.course.positions[trial], call.units[trial]
        moved = outcome.fetched if call.origins.get(trial) != berth.id else 0
        self.moved += moved
        events = self.course.done(unit, outcome.done, outcome.values, moved, berth.slot.memory if berth.slot else inf)
        if self.course.met(trial) and outcome.done.kept is not None:
            at.carried = None
        elif unit.carry:
            self._states.store(trial, call.states[trial], outcome.size, berth.id)
        else:
            at.carried = Resident(berth)
        return events

    def _drop(self, berth: Berth, trial: TrialId) -> None:
        """What was given to the slot of this trial after a unit that came to nothing will come to nothing, too."""
        for call in berth.calls:
            call.dropped.add(trial)
            if call.dropped.issuperset(call.units):
                berth.call("control", "call_off", call.number)

    # -- slots that go and come ----------------------------------------------------------------------------------------

    def _on_loss(self, berth: Berth) -> list[Event]:
        """What the trials lose with this slot: those at work there their unit, those resident there what is not durable."""
        self._waiting.pop(berth.id, None)
        trials = () if berth.run is None else berth.run.gang.trials
        self._active.difference_update(trials)
        berth.run, berth.calls = None, []
        events = self._states.lose(berth, trials)
        self._begin()
        return events

    def _remove(self, slots: list[SlotId]) -> list[Event]:
        events: list[Event] = []
        for berth in [self._fleet.berths[slot] for slot in slots if slot in self._fleet.berths]:
            berth.leaving = True
            self._call_off(berth)
            if not berth.calls:
                events += self._depart(berth)
        return events

    def _depart(self, berth: Berth) -> list[Event]:
        try:
            events = self._states.secure(berth)
        except RayError as error:
            return self._fleet.died(berth, error)
        return events + self._fleet.part(berth)


def _slot_of(gang: Gang) -> SlotId:
    return gang.lanes[0].slots[0]


def _carries(run: Run) -> bool:
    """Whether the trial may go on at another slot after each unit, so that its state must be returned."""
    return run.left is not None or run.quota is not None
