"""Watches slots: those that hang are ended, and those whose ends are near have to leave in time.

A slot that ends amid a unit loses this unit, and what only it holds. So it begins no unit that it
could not end and make durable.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from shoal.backend.positions import Positions
from shoal.backend.ray.silence import SilenceLimits, Silences, WorkUnderWay, why_hung
from shoal.backend.ray.slot_process import Call, Events, SlotProcess
from shoal.core.cluster import SlotId
from shoal.core.errors import warn
from shoal.core.event import Advanced, Event
from shoal.core.trial import Seconds, TrialId

ROUNDS = 4  # of a trial, of which the longest counts
# A unit may take so much longer than the longest of late, and a save on a busy disk, too.
LONGER = 1.25
SAVES = 2.0
# For what is not measured: to notice that it is time, to answer, to let go of the slot.
SPARE: Seconds = 3.0


@dataclass(slots=True)
class UnitTimes:
    """How long units of each trial took of late, all that belongs to them included."""

    _units: dict[TrialId, deque[Seconds]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=ROUNDS))
    )
    _saves: dict[TrialId, Seconds] = field(default_factory=dict)

    def learn(self, events: Iterable[Event]) -> None:
        """Note what a round took, from the events that it came to.

        Trials of a round share a slot, which makes their units one after the other or together:
        each waits for all of them.
        """
        spent = [
            (trial, parts)
            for event in events
            if isinstance(event, Advanced)
            for trial, parts in event.spent.items()
        ]
        took = sum(sum(parts.values()) for _, parts in spent)
        for trial, parts in spent:
            self._units[trial].append(took)
            if "save" in parts:
                self._saves[trial] = parts["save"]

    def needed(self, trials: Sequence[TrialId]) -> Seconds:
        """Seconds that a slot needs to make one more unit of these trials, and to keep them.

        A trial that was never measured is taken for the slowest one. `SPARE` if none was.
        """
        unit = max((self._unit(trial) for trial in trials), default=0.0)
        return SPARE + LONGER * unit + self._saving(trials)

    def least(self) -> Seconds:
        """Seconds that a slot needs for the trial that needs least: with less it is of no use."""
        return min((self.needed([trial]) for trial in self._units), default=SPARE)

    def to_keep(self, trials: Sequence[TrialId]) -> Seconds:
        """Seconds that a slot needs to make durable what it holds of these trials."""
        return SPARE + self._saving(trials)

    def _unit(self, trial: TrialId) -> Seconds:
        times = self._units.get(trial)
        if times:
            return max(times)
        return max(map(max, self._units.values()), default=0.0)

    def _saving(self, trials: Sequence[TrialId]) -> Seconds:
        most = max(self._saves.values(), default=0.0)
        return SAVES * sum(self._saves.get(trial, most) for trial in trials)


def due(processes: Sequence[SlotProcess], times: UnitTimes, now: Seconds) -> list[SlotId]:
    """The slots of these processes, which are ready, that have to leave at this time of the study.

    A slot makes its unit to the end. So it is told before another one would begin that could not
    end in time. An idle slot leaves once no trial's unit could.
    """
    if all(process.ready_slot.until == inf for process in processes):
        return []
    lasts = _lasts(processes)
    slots: list[SlotId] = []
    for process in processes:
        if process.leaving:
            continue
        if is_over(process, now, _needed(process, times, lasts)):
            slots.append(process.id)
    return slots


def is_over(process: SlotProcess, now: Seconds, needed: Seconds) -> bool:
    """Whether the slot has less time left than is needed, or had so before; it is noted.

    A slot that never made anything was of no use. Whoever has only such slots should know why
    nothing goes on.
    """
    left = process.ready_slot.until - now
    if not process.ends and left < needed:
        process.ends = True
        if not process.worked:
            warn(
                f"{process.id} at {process.node} leaves unused: its node ends in {left:.0f} s, and "
                f"a unit takes {needed:.0f} s with what makes it durable. Divide the data into "
                "more shards, or have nodes for longer"
            )
    return process.ends


def _needed(process: SlotProcess, times: UnitTimes, lasts: Mapping[TrialId, Seconds]) -> Seconds:
    """Seconds that the process needs to its next good end."""
    trials = [trial for call in process.calls for trial in call.units]
    if trials:
        return times.needed(sorted(set(trials)))
    shared = sorted(_shared(process))
    if not shared:
        return times.least()
    if all(lasts[trial] > process.ready_slot.until for trial in shared):
        return times.to_keep(shared)  # others go on with the unit
    return times.needed(shared)


def _shared(process: SlotProcess) -> set[TrialId]:
    """The trials whose units the process makes together with others, or could."""
    return {trial for call in process.shares for trial in call.units}


def _lasts(processes: Iterable[SlotProcess]) -> dict[TrialId, Seconds]:
    """When the last slot leaves of those that make a trial's unit together."""
    lasts: dict[TrialId, Seconds] = {}
    for process in processes:
        for trial in _shared(process):
            lasts[trial] = max(lasts.get(trial, 0.0), process.ready_slot.until)
    return lasts


EVERY: Seconds = 1.0  # between two looks

Died = Callable[[SlotProcess, TimeoutError], Events]
End = Callable[[str, int, str], None]  # a process: its node, its number, when it began


class Hangs:
    """Which processes hang. They are ended, and then `died` is called with each."""

    def __init__(self, course: Positions, limits: SilenceLimits, died: Died, end: End) -> None:
        self._course = course
        self._limits = limits
        self._died = died
        self._end = end
        self._silences = Silences()
        # How often each slot, and each trial's slot, hung since it made a round.
        self._hangs: Counter[str] = Counter()
        self.look_at = monotonic() + EVERY
        self._seen: Sequence[SlotProcess] = ()

    def silent(self) -> dict[SlotId, Seconds]:
        """For how long nothing was heard of each slot; any thread may ask."""
        now = monotonic()
        return {process.id: now - process.signs.heard for process in self._seen}

    def look(self, processes: Sequence[SlotProcess]) -> Events:
        """Give up those of the processes, which are all that are ready, that hang."""
        now = monotonic()
        late = now - self.look_at
        self.look_at = now + EVERY
        for process in processes:
            self._learn(process)
            if late > EVERY:
                process.signs.forgive(late)
        self._seen = processes
        self._go_along(processes)
        return self._given_up(processes, now)

    def _given_up(self, processes: Iterable[SlotProcess], now: Seconds) -> Events:
        """Give up the processes that hang: the events of that.

        Not those that wait for a state of another one that hangs: they go on without it.
        """
        hung: dict[SlotId, tuple[SlotProcess, str]] = {}
        for process in processes:
            why = why_hung(process.signs, now, self._limits, self._work_of(process))
            if why is not None:
                hung[process.id] = process, why
        waiting = {name for name, (process, _) in hung.items() if _waits(process, hung)}
        if len(waiting) == len(hung):
            waiting = set()  # for one another
        events: Events = []
        for name, (process, why) in hung.items():
            if name in waiting:
                process.signs.begin(now)
                continue
            self._hangs.update((process.id, *_trials(process)))
            self._end(process.node, process.pid, process.born)
            events += self._died(process, TimeoutError(why))
        return events

    def _work_of(self, process: SlotProcess) -> WorkUnderWay | None:
        """What is known of the work that the process is at; None: it is idle."""
        if not process.at_work:
            return None
        call = [*process.calls, *process.shares][0]
        kind = self._kind(call)
        usual = None
        if kind is not None:
            usual = self._silences.usual(process.id, kind)
        hangs = max(self._hangs[each] for each in (process.id, *_trials(process)))
        return WorkUnderWay(usual, hangs)

    def _learn(self, process: SlotProcess) -> None:
        """Note the silences in rounds that were made there."""
        for call, gap in process.answered:
            kind = self._kind(call)
            if kind is not None:
                self._silences.learn(process.id, kind, gap)
            for each in (process.id, *call.units):
                del self._hangs[each]
        process.answered = []

    def _kind(self, call: Call) -> Hashable:
        """What the round is like: which trials, and whether they are evaluated; None: not known."""
        signatures: list[str] = []
        evaluates = False
        for trial, unit in call.units.items():
            signatures.append(self._course.positions[trial].signature)
            evaluates = evaluates or unit.evaluate or bool(unit.within or unit.steps)
        if not all(signatures):
            return None
        return tuple(sorted(signatures)), evaluates

    def _go_along(self, processes: Iterable[SlotProcess]) -> None:
        """Have slots that make a unit together make progress together: one of them tells of it."""
        together: dict[TrialId, list[SlotProcess]] = {}
        for process in processes:
            for call in process.shares:
                for trial in call.units:
                    together.setdefault(trial, []).append(process)
        for members in together.values():
            newest = max(process.signs.went_on for process in members)
            for process in members:
                process.signs.go_on(newest)


def _waits(process: SlotProcess, hung: Collection[SlotId]) -> bool:
    """Whether the process, which answers, cannot begin without a state of one that hangs."""
    calls = [*process.calls, *process.shares]
    origins = set(calls[0].origins.values()) - {process.id} if calls else set()
    return not origins.isdisjoint(hung)


def _trials(process: SlotProcess) -> list[TrialId]:
    """The trials that the process is at work for."""
    trials: list[TrialId] = []
    for call in (*process.calls, *process.shares):
        trials += call.units
    return trials
