"""Virtual time: what a study would do, from a profile taken as the truth."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import inf
from types import MappingProxyType
from zlib import crc32

from shoal.backend.virtual import EPS, TICK, Leaving, Leg, Run, Stand, learning_curve, whole_order
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Ended, Evaluated, Event, Failed, Finished, Joined, Left, Measured
from shoal.core.plan import Gang, Lane, prune
from shoal.core.ports import Moment, Profile
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Value, Visit

Curve = Callable[[Mapping[str, Value], float], Mapping[str, float]]
Truth = Profile | Callable[[Mapping[TrialId, Trial]], Profile]


class Sim:
    """Slots that train in no time at all, and say when they would have.

    `truth`: a profile, or what makes one for a mapping of trials that grows as they are submitted (`Table(…).of`).
    `slots`: there from the beginning. `script`: what happens by itself, as (time, event): `Joined`, `Left`,
    `Commanded`, `Failed`, `Retired`. `shards`: samples of each; none: data is not divided, and progress counts
    as it is made, without visits. `curve(config, epochs)`: the metrics of an evaluation. `fault(trial, visits)`: why the
    trial's next unit fails, or None. `state`, `since`: a resumed study's.
    A gang that is stopped completes its visits under way and holds its slots until then, as on the real backends; units with
    a quota are void if they are cut, and what a loss cuts is void. Data that is not divided has no visits: it stops at once.
    A trial's newest state lies at the slots of its last unit and goes with
    them; a trial's first unit at a slot costs `build` (with `first`, if it is the slot's first), one whose state
    lies elsewhere costs `switch`.
    """

    def __init__(
        self,
        truth: Truth,
        slots: Iterable[Slot] = (),
        script: Iterable[tuple[Seconds, Event]] = (),
        *,
        shards: Mapping[ShardId, int] | None = None,
        seed: int = 0,
        checkpoint_every: Seconds = 30.0,
        validate_every: int = 1,
        curve: Curve = learning_curve,
        fault: Callable[[Trial, int], str | None] = lambda trial, visits: None,
        state: State = State(),
        since: Seconds = 0.0,
    ) -> None:
        self.known: dict[TrialId, Trial] = {}
        self.truth: Profile = truth(self.known) if callable(truth) else truth
        self.shards = dict(shards or {})
        self.seed = seed
        self.checkpoint_every = checkpoint_every
        self.validate_every = validate_every
        self.curve = curve
        self.fault = fault
        self.now = since
        self._state = state
        self._stands: dict[TrialId, Stand] = {}
        self._runs: dict[Gang, Run] = {}
        self._leaving = Leaving()
        self._built: dict[SlotId, set[TrialId]] = {}  # models built at each slot
        self._signatures = set(state.figures)
        self._ends: list[tuple[Seconds, int, Leg, Run]] = []  # a heap of (end, version, …); entries of other versions are stale
        self._count = 0
        self._made: dict[TrialId, Samples] = {}  # of undivided data, not yet reported
        self._wake_at: Seconds | None = None
        first = [(since, Joined(tuple(slots)))] if slots else []
        self._script = sorted([*first, *((max(at, since), event) for at, event in script)], key=lambda x: x[0])

    # -- what the engine asks ------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Have this happen at the next moment, which is now."""
        self._script.insert(0, (self.now, event))

    def submit(self, trial: Trial) -> None:
        stand = self._stands.get(trial.id)
        if stand is None:
            kept = self._state.kept.get(trial.id)
            visits = self._state.visits.get(trial.id, ())[: kept.visits if kept else 0]
            at = (kept.visits, kept.samples) if kept else (0, 0.0)
            if kept is None and trial.start is not None:
                visits, at = self._begun(*trial.start)
            stand = self._stands[trial.id] = Stand(trial, visits, at[1], at, measured=trial.id in self._state.signature)
        stand.trial = self.known[trial.id] = trial
        stand.over = stand.samples >= trial.samples - EPS

    def _begun(self, parent: TrialId, visits: int) -> tuple[tuple[Visit, ...], tuple[int, Samples]]:
        """Visits and durable state of a trial that starts from another's."""
        if parent not in self._stands:
            self.submit(self._state.known[parent])
        stand = self._stands[parent]
        assert stand.kept[0] == visits, f"a trial starts from {parent} after {visits} visits, but durable is {stand.kept}"
        return stand.visits[:visits], stand.kept

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        self._wake_at = at

    def change(self, before: Gang | None, after: Gang | None) -> None:
        self._leaving.withdraw(before)
        old = self._runs.pop(before, None) if before is not None else None
        if after is None:
            if old is not None:
                self._leave(old, old.legs)
            return
        run = Run.of(after, self.truth.rates(after))
        carried = {} if old is None else self._carry(old, run)
        free = self._leaving.free_at(after, self.now)
        if carried:
            self._start(run, carried, self.truth.switch(before, after) + max(0.0, free - self.now))
        elif free > self.now:
            self._leaving.waiting.append(after)
        else:
            self._start(run)

    def _start(self, run: Run, carried: Mapping[TrialId, Leg] = MappingProxyType({}), wait: Seconds | None = None) -> None:
        """The gang's lanes begin a unit, or go on with the one they bring along."""
        after = run.gang
        wait = max(self._entry(after, lane) for lane in after.lanes) if wait is None else wait
        for lane in after.lanes:
            if lane.trial in carried:
                self._schedule(run, carried[lane.trial], wait)
            elif not self._stands[lane.trial].over:
                self._begin(run, lane, wait)
        if run.legs:
            self._runs[after] = run

    def _leave(self, run: Run, legs: Mapping[TrialId, Leg]) -> None:
        """These lanes stop: visits under way are completed, all else is dropped."""
        for leg in legs.values():
            leg.version = 0
        ends = run.gang.quota is not None
        late = {t: leg for t, leg in legs.items() if leg.visit is not None and leg.begun < self.now - TICK and not ends}
        gang = prune(run.gang, frozenset(run.gang.trials) - late.keys())
        if gang is not None:
            left = Run(gang, run.rates, None, dict.fromkeys(late, 0.0), late, leaving=True)
            self._leaving.runs.append(left)
            for leg in late.values():
                self._schedule(left, leg)

    def _carry(self, old: Run, run: Run) -> dict[TrialId, Leg]:
        """Legs that go on in the new gang: those of trials in both, over the same stream. The others leave."""
        same = old.gang.shards == run.gang.shards and old.gang.quota == run.gang.quota
        self._leave(old, {t: leg for t, leg in old.legs.items() if not same or t not in run.stream})
        if not same:
            return {}
        run.legs = {t: leg for t, leg in old.legs.items() if t in run.stream}
        for t in run.legs:
            run.stream[t] = old.stream[t]
            if run.left is not None and old.left is not None:
                run.left[t] = old.left[t]
        for lane in run.gang.lanes:
            if lane.trial in run.legs:
                self._stands[lane.trial].at = lane.slots
        return dict(run.legs)

    def _entry(self, gang: Gang, lane: Lane) -> Seconds:
        """Seconds until a lane can train: models built at its slots, its state loaded if it lies elsewhere."""
        stand, wait = self._stands[lane.trial], 0.0
        cost = self.truth.cost(lane.trial)
        for slot in lane.slots:
            built = self._built.setdefault(slot, set())
            if lane.trial not in built:
                wait = max(wait, cost.build + (0.0 if built else cost.first))
                built.add(lane.trial)
        if stand.samples > 0 and not set(lane.slots) <= set(stand.at):
            wait += self.truth.switch(None, gang)
        return wait

    # -- lanes at work -------------------------------------------------------------------------------------------------

    def _begin(self, run: Run, lane: Lane, wait: Seconds = 0.0) -> None:
        """The lane's next unit begins now, after this wait."""
        stand = self._stands[lane.trial]
        stand.at = lane.slots
        leg = run.legs[lane.trial] = self._visit(run, stand) if self.shards else self._stretch(run, stand)
        self._schedule(run, leg, wait)

    def _visit(self, run: Run, stand: Stand) -> Leg:
        """One pass over the shard that comes next: the gang's, or of the whole data."""
        trial = stand.trial
        shards = trial.shards or frozenset(self.shards)
        epoch, seen = divmod(len(stand.visits), len(shards))
        if run.left is not None:
            shard = run.left[trial.id][0]
        else:
            gone = {visit.shard for visit in stand.visits[len(stand.visits) - seen :]}
            shard = next(s for s in whole_order(self.seed, epoch, shards) if s not in gone)
        size = self.shards[shard]
        last = stand.samples + size >= trial.samples - EPS
        scored = last or (seen + 1 == len(shards) and (epoch + 1) % self.validate_every == 0)
        due = 0.0 if last else max(0.0, self.checkpoint_every - stand.age)
        return self._leg(stand, Visit(epoch, shard, epoch, size), size, scored, due)

    def _stretch(self, run: Run, stand: Stand) -> Leg:
        """A unit of undivided data: up to the trial's end, its quota's, or the next durable state."""
        trial = stand.trial
        left = min(trial.samples - stand.samples, run.room(trial.id))
        pause = self.checkpoint_every - stand.age if self.checkpoint_every > 0 else inf
        size = min(left, max(pause, 1.0) * run.rates[trial.id])
        last = stand.samples + size >= trial.samples - EPS
        return self._leg(stand, None, size, last, 0.0 if last or size < left else inf)

    def _leg(self, stand: Stand, visit: Visit | None, size: Samples, scored: bool, due: Seconds) -> Leg:
        cost = self.truth.cost(stand.trial.id)
        evaluate = cost.evaluate if scored else None
        return Leg(stand, visit, size, size, self.now, self.now, evaluate, cost.save, due, begun=self.now)

    def _schedule(self, run: Run, leg: Leg, wait: Seconds = 0.0) -> None:
        self._advance(leg)
        leg.schedule(self.now, run.rates[leg.stand.trial.id], wait)
        self._count += 1
        leg.version = self._count
        heappush(self._ends, (leg.end, leg.version, leg, run))

    def _advance(self, leg: Leg) -> None:
        made = leg.advance(self.now)
        if leg.visit is None and made:
            leg.stand.samples += made
            trial = leg.stand.trial.id
            self._made[trial] = self._made.get(trial, 0.0) + made

    def _shrink(self, run: Run, trials: frozenset[TrialId] = frozenset(), slots: frozenset[SlotId] = frozenset()) -> list[Event]:
        """Lanes or slots leave a gang; what is left goes on at another rate, or turns out to be over."""
        old = run.gang
        rest = prune(old, trials, slots)
        self._drop(run)
        for trial in set(old.trials).difference(rest.trials if rest else ()):
            leg = run.legs.pop(trial, None)
            if leg is not None:
                leg.version = 0
        if rest is None:
            return []
        wait = self.truth.switch(old, rest) if slots else 0.0
        run.gang, run.rates = rest, self.truth.rates(rest)
        if run.leaving:
            self._leaving.runs.append(run)
        elif run.is_over():
            return [Ended(rest)]
        else:
            self._runs[rest] = run
        for leg in run.legs.values():
            self._schedule(run, leg, wait)
        return []

    def _drop(self, run: Run) -> None:
        """It is at work no more."""
        if run.leaving:
            self._leaving.runs.remove(run)
        else:
            del self._runs[run.gang]

    # -- what happens --------------------------------------------------------------------------------------------------

    def moments(self) -> Iterator[Moment]:
        yield self.now, tuple(self._scripted())
        while True:
            at = self._next()
            idle = not self._runs and not self._leaving and self._wake_at is None
            done = idle and all(stand.over for stand in self._stands.values())
            if done or at == inf:
                events = [s.keep() for s in self._stands.values() if s.at and s.ahead() and not s.over]
                if not events:
                    return
                yield self.now, tuple(events)
                continue
            self.now = max(self.now, at)
            if self._wake_at is not None and self._wake_at <= self.now:
                self._wake_at = None
            yield self.now, tuple(self._happened())

    def _next(self) -> Seconds:
        """When something happens next, if nobody intervenes; inf: never."""
        ends = self._ends
        while ends and ends[0][1] != ends[0][2].version:
            heappop(ends)
        times = (ends[0][0] if ends else inf, self._script[0][0] if self._script else inf, self._wake_at)
        return min(t for t in times if t is not None)

    def _happened(self) -> list[Event]:
        events: list[Event] = []
        while self._ends and self._ends[0][0] <= self.now + TICK:
            _, version, leg, run = heappop(self._ends)
            if leg.version == version:
                events += self._finish(run, leg)
        if not self.shards:
            events += self._progress()
        if self._script and self._script[0][0] <= self.now + TICK:
            events += self._scripted()
        for gang in self._leaving.ready(self.now):
            self._start(Run.of(gang, self.truth.rates(gang)))
        return events

    def _progress(self) -> list[Event]:
        """What lanes over undivided data made since the last moment."""
        for run in self._runs.values():
            for leg in run.legs.values():
                self._advance(leg)
        made, self._made = self._made, {}
        return [Advanced(made)] if made else []

    def _finish(self, run: Run, leg: Leg) -> list[Event]:
        """A unit is at its end."""
        trial, leg.version = leg.stand.trial, 0
        del run.legs[trial.id]
        why = self.fault(trial, len(leg.stand.visits))
        if why is not None:
            leg.stand.over = True
            return [Failed(trial.id, why), *self._shrink(run, frozenset((trial.id,)))]
        events = self._reported(leg)
        run.stream[trial.id] += leg.size
        if run.left is not None:
            run.left[trial.id].pop(0)
        over = run.leaving or run.is_over()
        if over and not run.leaving:
            del self._runs[run.gang]
            events.append(Ended(run.gang))
        leg.stand.over = leg.stand.samples >= trial.samples - EPS
        if run.leaving:
            self._shrink(run, frozenset((trial.id,)))
        if leg.stand.over:
            self._leaving.shrink(frozenset((trial.id,)))
            return [*events, Finished(trial.id), *([] if over else self._shrink(run, frozenset((trial.id,))))]
        if run.room(trial.id) > EPS and not over:
            self._begin(run, next(lane for lane in run.gang.lanes if lane.trial == trial.id))
        return events

    def _reported(self, leg: Leg) -> list[Event]:
        """What a finished unit says of itself: Advanced, Measured, Evaluated, Kept."""
        stand, trial = leg.stand, leg.stand.trial
        self._advance(leg)
        stand.age += leg.trained
        if leg.visit is not None:
            stand.visits += (leg.visit,)
            stand.samples += leg.size
        epoch = len(stand.visits) / len(trial.shards or self.shards) if leg.visit is not None else stand.samples
        metrics = self.curve(trial.config, epoch)
        loss = {trial.id: {"loss": (metrics["loss"] * leg.size, float(leg.size))}} if "loss" in metrics else {}
        made = self._made.pop(trial.id, 0.0) if leg.visit is None else leg.size
        visits = {trial.id: (leg.visit,)} if leg.visit is not None else {}
        events: list[Event] = [Advanced({trial.id: made}, loss, visits, {trial.id: leg.spent()})]
        if not stand.measured:
            stand.measured = True
            events.append(self._measured(trial))
        if leg.evaluate is not None:
            events.append(Evaluated(trial.id, epoch, metrics))
        if leg.saves:
            events.append(stand.keep())
        return events

    def _measured(self, trial: Trial) -> Measured:
        """What a real backend would have measured. Trials with equal configurations have the same signature."""
        signature = f"{crc32(repr(sorted(trial.config.items())).encode()):08x}"
        if signature in self._signatures:
            return Measured(trial.id, signature, {})
        self._signatures.add(signature)
        cost = self.truth.cost(trial.id)
        figures = {"rate": self.truth.curve(trial.id, 1)[0], "memory": cost.memory, "build": cost.build, "save": cost.save}
        return Measured(trial.id, signature, figures | {"evaluate": cost.evaluate})

    def _scripted(self) -> list[Event]:
        """What the script has for now, and what follows from it."""
        events: list[Event] = []
        while self._script and self._script[0][0] <= self.now + TICK:
            event = self._script.pop(0)[1]
            events.append(event)
            if isinstance(event, Left):
                events += self._lose(event.slots)
            elif isinstance(event, Failed) and event.trial in self._stands:
                self._stands[event.trial].over = True
                self._leaving.shrink(frozenset((event.trial,)))
                run = next((run for run in self._at_work() if event.trial in run.gang.trials), None)
                events += self._shrink(run, frozenset((event.trial,))) if run is not None else []
        return events

    def _lose(self, slots: frozenset[SlotId]) -> list[Event]:
        events: list[Event] = []
        for slot in slots:
            self._built.pop(slot, None)
        self._leaving.shrink(slots=slots)
        for run in [run for run in self._at_work() if not slots.isdisjoint(run.gang.slots)]:
            events += self._shrink(run, slots=slots)
        for stand in self._stands.values():
            if not slots.isdisjoint(stand.at):
                stand.at = tuple(slot for slot in stand.at if slot not in slots)
                if not stand.at and stand.ahead():
                    events.append(stand.fall())
        return events

    def _at_work(self) -> list[Run]:
        return [*self._runs.values(), *self._leaving.runs]
