"""A trace of arrivals: trials that come at recorded times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial
from shoal.search.batch import Widths, check_counts, checked_widths, trial_id, whole_epochs
from shoal.search.space import value_of

Arrival = tuple[float, Mapping[str, Any], float | None]  # time, configuration, samples (None: max_epochs of the data)


@dataclass(frozen=True, slots=True)
class Trace:
    """Trials that arrive at these seconds of the study, as (time, config) or (time, config, samples).

    `max_epochs`: how long those train that do not say (None: as the study says, else 1). `widths`: fewest and most slots of
    each (None: one).
    Arrivals are put in order of time. Its memory is how many came.

    Raises:
        ValueError: no arrivals, an arrival of another form, or a time below 0.
    """

    arrivals: Sequence[Sequence[Any]]
    max_epochs: float | None = None
    widths: Widths | None = None

    def __post_init__(self) -> None:
        check_counts(self.max_epochs, None)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        if not self.arrivals:
            raise ValueError("a trace needs arrivals, as (time, config) or (time, config, samples); got none")
        object.__setattr__(self, "arrivals", tuple(sorted(map(_arrival, self.arrivals), key=lambda a: a[0])))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        now = []
        for i in range(came, len(self.arrivals)):
            time, config, samples = self.arrivals[i]
            if time > view.now:
                break
            came += 1
            name = trial_id(i, len(self.arrivals))
            if name not in view.known:  # it is, if a crash tore the journal between the trial and the memory of it
                length = whole_epochs(view, self.max_epochs or 1.0) if samples is None else samples
                now.append(Trial(name, length, config, self.widths or (1, 1), frozenset(view.shards)))
        return Proposal(tuple(now), wake_at=self.arrivals[came][0] if came < len(self.arrivals) else None), came


def _arrival(given: Sequence[Any]) -> Arrival:
    if len(given) not in (2, 3) or not isinstance(given[1], Mapping):
        raise ValueError(f"an arrival is (time, config) or (time, config, samples); got {given!r}")
    time = float(given[0])
    if not time >= 0:
        raise ValueError(f"an arrival's time must be >= 0 seconds; got {given[0]!r}")
    samples = given[2] if len(given) == 3 else None
    return time, {str(k): value_of(v) for k, v in given[1].items()}, None if samples is None else float(samples)
