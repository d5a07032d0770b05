"""Looks for slots that hang, and has them given up."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic

from shoal.backend.course import Positions
from shoal.backend.ray.health.ending import end_at
from shoal.backend.ray.slots import Call, Events, SlotProcess
from shoal.backend.silence import SilenceLimits, Silences, WorkUnderWay, why_hung
from shoal.core.cluster import SlotId
from shoal.core.trial import Seconds, TrialId

EVERY: Seconds = 1.0  # between two looks

Died = Callable[[SlotProcess, TimeoutError], Events]


class Hangs:
    """Which processes hang. They are ended, and then `died` is called with each."""

    def __init__(self, course: Positions, limits: SilenceLimits, died: Died) -> None:
        self._course = course
        self._limits = limits
        self._died = died
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
        """What follows from giving up those that hang."""
        events: Events = []
        for process in processes:
            work = self._work_of(process)
            why = why_hung(process.signs, now, self._limits, work)
            if why is not None:
                self._hangs.update((process.id, *_trials(process)))
                end_at(process.node, process.pid, process.born)
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
        """Slots that make a unit together make progress together; one of them tells of it."""
        together: dict[TrialId, list[SlotProcess]] = {}
        for process in processes:
            for call in process.shares:
                for trial in call.units:
                    together.setdefault(trial, []).append(process)
        for members in together.values():
            newest = max(process.signs.went_on for process in members)
            for process in members:
                process.signs.go_on(newest)


def _trials(process: SlotProcess) -> list[TrialId]:
    """The trials that the process is at work for."""
    trials: list[TrialId] = []
    for call in (*process.calls, *process.shares):
        trials += call.units
    return trials
