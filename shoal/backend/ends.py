"""When a slot of which the end is known stops working, so that nothing is lost with it.

A slot that ends amid a unit loses this unit, and what only it holds. So it begins no unit that it
could not end and make durable. Nothing here acts.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shoal.core.event import Advanced, Event
from shoal.core.trial import Seconds, TrialId

# The label of a Ray node that says when it will leave, in seconds since 1970.
UNTIL = "shoal-until"
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
        """The same for whatever trial needs least: with less time a slot is of no use."""
        return min((self.needed([trial]) for trial in self._units), default=SPARE)

    def to_keep(self, trials: Sequence[TrialId]) -> Seconds:
        """Seconds that a slot needs to make durable what it holds of these trials."""
        return SPARE + self._saving(trials)

    def _unit(self, trial: TrialId) -> Seconds:
        known = self._units.get(trial)
        if known:
            return max(known)
        return max((max(times) for times in self._units.values()), default=0.0)

    def _saving(self, trials: Sequence[TrialId]) -> Seconds:
        most = max(self._saves.values(), default=0.0)
        return SAVES * sum(self._saves.get(trial, most) for trial in trials)
