"""A plan made beforehand: which trial runs on which slot, and in which order."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.idle import fits, idle_slots, with_more


@dataclass(frozen=True, slots=True)
class Fixed:
    """Each trial on its slot, over the whole data set; trials of one slot in the order listed.

    `assignment`: slot of each trial. A slot that is away keeps its trials waiting; a trial that has
    not been submitted yet is passed over; trials that are not listed never run.

    Raises:
        ValueError: nothing is assigned.
    """

    assignment: Mapping[TrialId, SlotId] = field(hash=False)

    def __post_init__(self) -> None:
        if not self.assignment:
            raise ValueError(
                "a fixed plan needs the slot of each trial, as {trial: slot}; "
                "got an empty assignment"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        gangs: list[Gang] = []
        for slot in idle_slots(view):
            queue = (
                t
                for t, s in self.assignment.items()
                if s == slot.id and t in view.trials and t not in view.running
            )
            trial = next(queue, None)
            if trial is not None and fits(view, trial, slot):
                gangs.append(solo(trial, slot.id, view.turn))
        return with_more(view, gangs), memory
