"""Policies made of policies."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from shoal.core.check import in_order
from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Plan
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_interval


@dataclass(frozen=True, slots=True)
class Admit:
    """At most so many trials at a time, first come first served; the policy sees no others.

    Raises:
        ValueError: most below 1.
    """

    most: int
    policy: Policy[Any]

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"at least one trial must be admitted; got {self.most!r}")

    def start(self) -> Any:
        return self.policy.start()

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        if len(view.trials) <= self.most:
            return self.policy.decide(view, memory)
        trials = dict(islice(view.trials.items(), self.most))
        return self.policy.decide(replace(view, trials=trials), memory)


@dataclass(frozen=True, slots=True)
class Fallback:
    """What the first policy leaves over, slots and trials, goes to the other.

    The memory is the list of both memories.
    """

    policy: Policy[Any]
    other: Policy[Any]

    def start(self) -> list[Any]:
        return [self.policy.start(), self.other.start()]

    def decide(self, view: View, memory: list[Any]) -> tuple[Plan, list[Any]]:
        first, first_memory = self.policy.decide(view, memory[0])
        second, second_memory = self.other.decide(rest(view, first), memory[1])
        wake_at = _earlier(first.wake_at, second.wake_at)
        return Plan(first.gangs | second.gangs, wake_at), [first_memory, second_memory]


def _earlier(one: Seconds | None, other: Seconds | None) -> Seconds | None:
    """The earlier of two times to wake up at; None stands for never."""
    times = [time for time in (one, other) if time is not None]
    return min(times, default=None)


def rest(view: View, plan: Plan) -> View:
    """The view without the plan's slots and trials."""
    slots = {slot for gang in plan.gangs for slot in gang.slots}
    trials = {trial for gang in plan.gangs for trial in gang.trials}

    def free(gang: Gang) -> bool:
        return slots.isdisjoint(gang.slots) and trials.isdisjoint(gang.trials)

    return part(
        view, view.slots.keys() - slots, view.trials.keys() - trials, filter(free, view.plan.gangs)
    )


def part(
    view: View, slots: Iterable[SlotId], trials: Iterable[TrialId], gangs: Iterable[Gang]
) -> View:
    """The view with only these slots, trials and gangs."""
    chosen = set(slots)
    wanted = set(trials)
    ordered = sorted(gangs, key=in_order)
    return replace(
        view,
        slots={name: slot for name, slot in view.slots.items() if name in chosen},
        trials={name: trial for name, trial in view.trials.items() if name in wanted},
        plan=Plan(frozenset(ordered)),
        busy={slot: gang for gang in ordered for slot in gang.slots if slot in chosen},
        running={trial: gang for gang in ordered for trial in gang.trials},
    )


@dataclass(frozen=True, slots=True)
class Every:
    """The policy is asked at multiples of so many seconds only.

    In between, what runs goes on, and what comes waits.

    Raises:
        ValueError: the interval is not positive.
    """

    seconds: Seconds
    policy: Policy[Any]

    def __post_init__(self) -> None:
        check_interval(self.seconds)

    def start(self) -> list[Any]:
        return [0.0, self.policy.start()]

    def decide(self, view: View, memory: list[Any]) -> tuple[Plan, list[Any]]:
        due, inner = memory
        if view.now < due:
            return Plan(view.plan.gangs, _if_work(view, due)), memory
        plan, inner = self.policy.decide(view, inner)
        due = (view.now // self.seconds + 1) * self.seconds
        wake_at = _earlier(plan.wake_at, _if_work(view, due))
        return Plan(plan.gangs, wake_at), [due, inner]


def _if_work(view: View, time: Seconds) -> Seconds | None:
    """The time, if there are trials to decide about then."""
    return time if view.trials else None


def admit(most: int, policy: Policy[Any]) -> Admit:
    """The policy, over the first so many trials with work left.

    Args:
        most: how many.
        policy: the policy.
    """
    return Admit(most, policy)


def fallback(policy: Policy[Any], other: Policy[Any]) -> Fallback:
    """The policy, and another one for what it leaves over.

    Args:
        policy: the first one.
        other: the other one.
    """
    return Fallback(policy, other)


def every(seconds: Seconds, policy: Policy[Any]) -> Every:
    """The policy, asked at intervals only.

    Args:
        seconds: between two decisions.
        policy: the policy.
    """
    return Every(seconds, policy)
