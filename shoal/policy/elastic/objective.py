"""What a decision is worth: the objective of BFTrainer's eq. (16), and the time for which it holds.

Liu et al., "BFTrainer", 2021, section 3.4. The objective O_j(n) is what the user wants more of, per
second. T_fwd, the forward time, is to be estimated from a log: here it is the mean time from one
departure of slots to the next.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, get_args

from shoal.core.cluster import SlotId
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId, priority_of

Named = Literal["throughput", "efficiency", "priority"]
# From a trial and its samples/s at widths 1, 2, … to what it is worth per second at these widths.
Own = Callable[[Trial, Sequence[float]], Sequence[float]]
Objective = Named | Own


def check_objective(policy: str, objective: Objective) -> None:
    """Raise ValueError unless it is one of the names or a function."""
    known = get_args(Named)
    if not callable(objective) and objective not in known:
        raise ValueError(
            f"{policy}'s objective is one of {', '.join(known)} or a function; "
            f"got {objective!r}"
        )


def check_hysteresis(policy: str, hysteresis: float) -> None:
    """Raise ValueError unless it is a part of what a trial makes."""
    if not 0 <= hysteresis < 1:
        raise ValueError(
            f"{policy}'s hysteresis must be 0 or more, below 1; got {hysteresis!r}"
        )


def worth(
    objective: Objective, trial: Trial, rates: Sequence[float]
) -> Sequence[float]:
    """O_j(n): what the trial is worth per second at widths 1, 2, …

    Raises:
        ValueError: a function of the user's gives other than one number for each width.
    """
    if objective == "throughput":
        return rates
    if callable(objective):
        return _checked(objective(trial, rates), trial, len(rates))
    weight = priority_of(trial) if objective == "priority" else 1.0
    return [weight * rate / rates[0] for rate in rates]


def _checked(values: Sequence[float], trial: Trial, widths: int) -> Sequence[float]:
    """The values of the user's function, if there is a finite one for each width."""
    listed = [float(value) for value in values]
    if len(listed) == widths and all(map(isfinite, listed)):
        return listed
    raise ValueError(
        f"an objective gives one finite number for each of the {widths} rates; "
        f"for trial {trial.id} it gave {listed!r}"
    )


# -- the forward time

PRIOR: Seconds = 120.0  # before anything was seen: as in the paper's experiments
Seen = Mapping[str, Any]  # what `watched` remembers; plain data for a journal


def forward_time(elapsed: Seconds, departures: int) -> Seconds:
    """The mean time from one departure to the next, with the prior as one more."""
    return (PRIOR + elapsed) / (1 + departures)


def watched(view: View, before: Seen) -> dict[str, Any]:
    """What is to be remembered of the slots that are here, and of the departures until now.

    Slots stand in the order in which they joined. If none left, then as many as before stand up
    to the one that was the last. (If only that one left, and came back at once, it is not seen.)
    """
    slots = tuple(view.slots)
    if not before:
        return _noted(view.now, 0, slots)
    last = before["last"]
    stayed = slots.index(last) + 1 if last in view.slots else 0
    left = int(stayed != before["slots"])
    return _noted(before["since"], before["departures"] + left, slots)


def _noted(since: Seconds, departures: int, slots: tuple[str, ...]) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "since": since,
        "departures": departures,
        "slots": len(slots),
        "last": slots[-1] if slots else None,
    }


def learned(view: View, seen: Seen) -> Seconds:
    """The forward time at this moment."""
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
        """For which part of the horizon the slot is of use to the trial."""
        part = self.parts.get(slot)
        if part is None:
            return 1.0
        return max(0.0, part - self.begins.get(trial, 0.0))


def known_ends(view: View, trials: Iterable[TrialId], horizon: Seconds) -> KnownEnds:
    """The slots that leave within the horizon, and what it takes these trials to begin."""
    parts: dict[SlotId, float] = {}
    for name, slot in view.slots.items():
        left = slot.until - view.now
        if left < horizon:
            parts[name] = max(0.0, left) / horizon
    begins: dict[TrialId, float] = {}
    if parts:
        for trial in trials:
            if trial not in view.running:
                cost = view.profile.cost(trial)
                begins[trial] = (cost.build + cost.save) / horizon
    return KnownEnds(parts, begins)
