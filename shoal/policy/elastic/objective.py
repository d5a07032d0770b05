"""What a decision is worth: the objective of BFTrainer's eq. (16), and the time for which it holds.

Liu et al., "BFTrainer", 2021, section 3.4. The objective O_j(n) is what the user wants more of, per
second. T_fwd, the forward time, is to be estimated from a log: here it is the mean time from one
departure of slots to the next.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, get_args

from shoal.core.cluster import Slot, SlotId
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId, priority_of, shown

Named = Literal["throughput", "efficiency", "priority"]
# From a trial and its samples/s at widths 1, 2, … to what it is worth per second at these widths.
Function = Callable[[Trial, Sequence[float]], Sequence[float]]
Objective = Named | Function


@dataclass(frozen=True, slots=True)
class FileObjective:
    """An objective that the user has written into a file. `place`: FILE.py:NAME, as it is named."""

    place: str
    function: Function

    def __call__(self, trial: Trial, rates: Sequence[float]) -> Sequence[float]:
        return self.function(trial, rates)

    def __repr__(self) -> str:
        return self.place


def check_objective(policy: str, objective: object) -> None:
    """Raise ValueError unless it is one of the names or a function."""
    known = get_args(Named)
    if not callable(objective) and objective not in known:
        raise ValueError(
            f"{policy}'s objective is one of {', '.join(known)}, FILE.py:NAME or a function; "
            f"got {objective!r}"
        )


def check_hysteresis(policy: str, hysteresis: float) -> None:
    """Raise ValueError unless it is a part of what a trial makes."""
    if not 0 <= hysteresis < 1:
        raise ValueError(f"{policy}'s hysteresis must be 0 or more, below 1; got {hysteresis!r}")


def worth(objective: Objective, trial: Trial, rates: Sequence[float]) -> Sequence[float]:
    """O_j(n): what the trial is worth per second at widths 1, 2, …

    Raises:
        ValueError: a function of the user's raises, or gives other than one number for each width.
    """
    if objective == "throughput":
        return rates
    if callable(objective):
        return values_of(objective, trial, rates, f"trial {trial.id}")
    weight = priority_of(trial) if objective == "priority" else 1.0
    return [weight * rate / rates[0] for rate in rates]


def values_of(
    objective: Callable[[Any, Sequence[float]], Sequence[float]],
    subject: object,
    rates: Sequence[float],
    name: str,
) -> list[float]:
    """What each rate of the subject is worth by the user's function: a finite number each.

    Raises:
        ValueError: the answer is something else, or the function raises. `name`: of the subject.
    """
    function = name_of(objective)
    try:
        answer = objective(subject, rates)
    except Exception as error:
        raise ValueError(
            f"the objective {function} raised {type(error).__name__}: {shown(str(error))} for "
            f"{name} and its {len(rates)} rates: it is to give what each of them is worth per "
            "second"
        ) from error
    try:
        values = [float(value) for value in answer]
    except (TypeError, ValueError):
        values = []
    if len(values) == len(rates) and all(map(isfinite, values)):
        return values
    raise ValueError(
        f"the objective {function} must give one finite number for each of the {len(rates)} rates, "
        f"what that is worth per second; for {name} it gave {shown(answer)}"
    )


# Samples/s at 1, 2, … slots with which an objective is tried: they rise, ever less.
MADE_UP = tuple(100.0 * width**0.9 for width in range(1, 9))


def try_objective(
    objective: Callable[[Any, Sequence[float]], Sequence[float]],
    subject: object,
    name: str,
    rates: Sequence[float] = MADE_UP,
) -> None:
    """Ask the user's function about made-up rates, before anything starts.

    Raises:
        ValueError: it raises, does not give a number for each, gives others when it is asked again,
            falls from each width to the next, or gives nothing that is worth a slot.
    """
    function = name_of(objective)
    values = values_of(objective, subject, rates, name)
    tried = f"of made-up rates from {rates[0]:g} to {rates[-1]:g} samples/s for {name}"
    if values_of(objective, subject, rates, name) != values:
        raise ValueError(
            f"the objective {function} gives other numbers each time it is asked, {tried}: it must "
            "depend on its arguments alone, so that decisions can be repeated"
        )
    if not max(values) > 0:
        raise ValueError(
            f"the objective {function} gives {values[0]:g} to {values[-1]:g}, nothing above 0, "
            f"{tried}: nothing would be given a slot. It is to say what is to be made more of"
        )
    if len(values) > 1 and all(after < before for before, after in pairwise(values)):
        raise ValueError(
            f"the objective {function} falls with each slot more, from {values[0]:g} to "
            f"{values[-1]:g}, {tried}: it is to say what is to be made more of, not what it costs"
        )


def name_of(objective: object) -> str:
    """The name by which the user calls the objective."""
    if isinstance(objective, FileObjective):
        return objective.place
    if isinstance(objective, str):
        return objective
    return str(getattr(objective, "__name__", type(objective).__name__))


# -- the forward time

PRIOR: Seconds = 120.0  # before anything was seen: as in the paper's experiments
Departures = Mapping[str, Any]  # what `departures_seen` remembers; plain data for a journal


def forward_time(elapsed: Seconds, departures: int) -> Seconds:
    """The mean time from one departure to the next, with the prior as one more."""
    return (PRIOR + elapsed) / (1 + departures)


def departures_seen(view: View, seen: Departures) -> dict[str, Any]:
    """The departures of slots until now, with what is needed to notice the next one.

    Slots stand in the order in which they joined. If none left, then as many as before stand up
    to the one that was the last. (If only that one left, and came back at once, it is not seen.)
    """
    slots = tuple(view.slots)
    if not seen:
        return _departures(view.now, 0, slots)
    last = seen["last"]
    stayed = slots.index(last) + 1 if last in view.slots else 0
    left = int(stayed != seen["slots"])
    return _departures(seen["since"], seen["departures"] + left, slots)


def _departures(since: Seconds, departures: int, slots: tuple[str, ...]) -> dict[str, Any]:
    """The departures as plain data, for a policy's memory."""
    return {
        "since": since,
        "departures": departures,
        "slots": len(slots),
        "last": slots[-1] if slots else None,
    }


def learned_horizon(view: View, seen: Departures) -> Seconds:
    """The forward time at this moment, from the departures seen."""
    return forward_time(view.now - seen["since"], seen["departures"])


# -- slots of which the ends are known


@dataclass(frozen=True, slots=True)
class KnownEnds:
    """The slots that leave within the forward time: for each of them it is shorter.

    `parts`: for which part of the horizon these slots last. `begins`: the part of the horizon that
    each trial without slots needs to begin, and to make durable what it did.
    """

    parts: Mapping[SlotId, float]
    begins: Mapping[TrialId, float]

    def part(self, trial: TrialId, slot: SlotId) -> float:
        """The part of the horizon for which the slot is of use to the trial."""
        part = self.parts.get(slot)
        if part is None:
            return 1.0
        return max(0.0, part - self.begins.get(trial, 0.0))


def known_ends(
    view: View, ending: Iterable[Slot], trials: Iterable[TrialId], horizon: Seconds
) -> KnownEnds:
    """The slots that leave within the horizon, and what it takes these trials to begin.

    `ending`: the slots of which the end is known.
    """
    parts: dict[SlotId, float] = {}
    for slot in ending:
        left = slot.until - view.now
        if left < horizon:
            parts[slot.id] = max(0.0, left) / horizon
    begins: dict[TrialId, float] = {}
    if parts:
        for trial in trials:
            if trial not in view.running:
                cost = view.profile.cost(trial)
                begins[trial] = (cost.build + cost.save) / horizon
    return KnownEnds(parts, begins)
