"""How much a running study has to do, and how fast it does that."""

from collections import deque

from shoal.core.event import Advanced, Entry
from shoal.core.state import State
from shoal.core.trial import Samples, Seconds, Trial, TrialId
from shoal.reporting.facts.format import count

WINDOW = 60.0  # seconds of the study over which throughput is taken


class WorkAhead:
    """What a study has to do, in samples; `endless`: see `Progress`."""

    def __init__(self, endless: Samples | None) -> None:
        self._endless = endless

    def _is_endless(self, trial: Trial) -> bool:
        """Whether the trial ends by itself, nobody knows when."""
        return self._endless is not None and trial.samples >= self._endless

    def amount(self, state: State) -> tuple[float, float]:
        """What is asked for in all, and what is left of it: samples, or trials without an end."""
        if any(map(self._is_endless, state.known.values())):
            return float(len(state.known)), float(len(state.trials))
        asked = sum(trial.samples for trial in state.known.values())
        return asked or 1.0, _samples_left(state)

    def left(self, state: State, rate: float | None) -> Seconds | None:
        """Seconds at this rate until the trials known now have their samples; None: not known."""
        if not rate or any(map(self._is_endless, state.trials.values())):
            return None
        return _samples_left(state) / rate

    def rate_text(self, rate: float) -> str:
        """The rate, with its unit."""
        unit = "samples" if self._endless is None else "reports"
        return f"{count(rate)} {unit}/s"

    def done_text(self, state: State, trial: TrialId) -> str:
        """How far the trial is."""
        known = state.known[trial]
        done = state.done[trial]
        if self._is_endless(known):
            return f"{done:.0f} reports"
        return f"{min(100 * done / known.samples, 100):3.0f} %"


class RecentSpeed:
    """Samples a second over the last `WINDOW` seconds of the study, and over all of the run."""

    def __init__(self) -> None:
        # Times of the study, with the samples trained in this run until then.
        self._made: deque[tuple[Seconds, Samples]] = deque()
        self._total = 0.0
        self._first: Seconds | None = None  # when the run's first slots were there

    def take(self, now: Seconds, entries: tuple[Entry, ...]) -> None:
        """Count what these entries report."""
        for entry in entries:
            if isinstance(entry, Advanced):
                self._total += sum(entry.samples.values())
        if self._first is None:
            self._first = now
        self._made.append((now, self._total))
        while len(self._made) > 2 and self._made[1][0] <= now - WINDOW:
            self._made.popleft()

    @property
    def is_recent(self) -> bool:
        """Whether `rate` leaves out what came before the last `WINDOW` seconds."""
        return bool(self._made) and self._made[0][0] != self._first

    def mean(self) -> float | None:
        """Over all of the run, from its first slots on; None: it is not known yet."""
        if self._first is None or self._made[-1][0] <= self._first or not self._total:
            return None
        return self._total / (self._made[-1][0] - self._first)

    def rate(self) -> float | None:
        """Of late. None: it is not known yet."""
        if not self._made:
            return None
        start, before = self._made[0]
        end, after = self._made[-1]
        if end <= start or after <= before:
            return None
        return (after - before) / (end - start)


def _samples_left(state: State) -> Samples:
    """Samples that the trials known now are still to train."""
    left = 0.0
    for id_, trial in state.trials.items():
        left += max(0.0, trial.samples - state.done[id_])
    return left


def counts(state: State) -> list[str]:
    """Trials done, running, waiting, failed."""
    failed = sum(how.startswith("failed") for how in state.ended.values())
    running = sum(trial in state.trials for trial in state.running)
    others = {
        "running": running,
        "waiting": len(state.trials) - running,
        "failed": failed,
    }
    parts = [f"{len(state.ended) - failed} of {len(state.known)} done"]
    for what, trials in others.items():
        if trials:
            parts.append(f"{trials} {what}")
    return parts
