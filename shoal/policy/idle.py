"""What a policy asks first: which slots and trials wait, and whether one fits the other."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan
from shoal.core.state import View
from shoal.core.trial import Trial, TrialId


def idle_slots(view: View) -> list[Slot]:
    """The slots in no gang, in the order in which they joined."""
    if len(view.busy) == len(view.slots):
        return []
    busy = view.busy.keys()
    return [slot for name, slot in view.slots.items() if name not in busy]


def idle_trials(view: View) -> list[TrialId]:
    """The trials with work left that are in no gang, those of higher priority and then the oldest first."""
    running = view.running
    waits = {name: trial for name, trial in view.trials.items() if name not in running}
    return first_come(waits)


def first_come(trials: Mapping[TrialId, Trial]) -> list[TrialId]:
    """Those of higher priority first, among equals in the order given."""
    if all(trial.priority == 1.0 and "priority" not in trial.config for trial in trials.values()):
        return list(trials)
    return sorted(trials, key=lambda name: -priority_of(trials[name]))


def priority_of(trial: Trial) -> float:
    """What its configuration says as `priority`, else its own."""
    said: Any = trial.config.get("priority")
    return float(said) if isinstance(said, (int, float)) else trial.priority


def fits(view: View, trial: TrialId, slot: Slot) -> bool:
    """The trial can run on this slot alone, and fits its memory as far as the profile knows."""
    return view.trials[trial].widths[0] == 1 and (slot.memory == inf or view.profile.cost(trial).memory <= slot.memory)


def with_more(view: View, gangs: Iterable[Gang]) -> Plan:
    """What runs now, and these gangs as well; the plan of now itself when there are none."""
    more = frozenset(gangs)
    return Plan(view.plan.gangs | more) if more else view.plan
