"""A trace of arrivals: trials that come at recorded times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from shoal.core.cluster import shards_of
from shoal.core.plan import Proposal
from shoal.core.state import View
from shoal.core.trial import Trial, is_number, shown
from shoal.search.batch import Widths, check_counts, checked_widths, trial_id, whole_epochs
from shoal.search.space import value_of

# Time, configuration, samples (None: `max_epochs` of the data).
Arrival = tuple[float, Mapping[str, Any], float | None]
Arrivals = Sequence[Sequence[Any]]  # as they are given


@dataclass(frozen=True, slots=True)
class Trace:
    """Trials that arrive at given seconds of the study.

    The memory is how many arrived.

    Args:
        arrivals: each is (seconds, config) or (seconds, config, samples); they are put in order of
            time.
        max_epochs: epochs that a trial trains whose samples are not given. None: as the study says,
            else 1.
        widths: the fewest and most slots of each trial. None: one.

    Raises:
        ValueError: there are no arrivals, one has another form, or a time is below 0.
    """

    arrivals: Arrivals
    max_epochs: float | None = None
    widths: Widths | None = None

    def __post_init__(self) -> None:
        check_counts(self)
        object.__setattr__(self, "widths", checked_widths(self.widths))
        object.__setattr__(self, "arrivals", _ordered(self.arrivals))

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        new: list[Trial] = []
        while came < len(self.arrivals) and self.arrivals[came][0] <= view.now:
            # A trial may be known already: a crash tore the journal before the memory of it.
            if trial_id(came, len(self.arrivals)) not in view.known:
                new.append(self._trial(view, came))
            came += 1
        next_arrival = None
        if came < len(self.arrivals):
            next_arrival = self.arrivals[came][0]
        return Proposal(tuple(new), wake_at=next_arrival), came

    def _trial(self, view: View, number: int) -> Trial:
        """The trial of this arrival."""
        _, config, samples = self.arrivals[number]
        if samples is None:
            samples = whole_epochs(view, self.max_epochs or 1.0, config)
        name = trial_id(number, len(self.arrivals))
        shards = frozenset(shards_of(view.shards, config))
        return Trial(name, samples, config, self.widths or (1, 1), shards)


def _ordered(arrivals: Arrivals) -> tuple[Arrival, ...]:
    """The arrivals in order of time; ValueError if there are none."""
    if not arrivals:
        raise ValueError(
            "a trace needs arrivals, as (time, config) or (time, config, samples); got none"
        )
    ordered = sorted(map(_arrival, arrivals), key=lambda arrival: arrival[0])
    return tuple(ordered)


def _arrival(given: Sequence[Any]) -> Arrival:
    listed = isinstance(given, list | tuple) and len(given) in (2, 3)
    if not listed or not isinstance(given[1], Mapping):
        raise ValueError(
            f"an arrival is (time, config) or (time, config, samples); got {shown(given)}"
        )
    if not is_number(given[0]) or not 0 <= given[0] < inf:
        raise ValueError(f"an arrival's time must be >= 0 seconds; got {shown(given[0])}")
    time = float(given[0])
    config = {str(name): value_of(value) for name, value in given[1].items()}
    samples = None
    if len(given) == 3 and given[2] is not None:
        if not is_number(given[2]) or not 0 < given[2] < inf:
            raise ValueError(f"an arrival's samples must be > 0; got {shown(given[2])}")
        samples = float(given[2])
    return time, config, samples
