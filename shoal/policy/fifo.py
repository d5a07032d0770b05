"""First come, first served: the obvious way, and the one that all others must beat."""

from dataclasses import dataclass

from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View
from shoal.policy.idle import fits, idle_slots, idle_trials, with_more


@dataclass(frozen=True, slots=True)
class Fifo:
    """One trial per slot, over the whole data set, from its start to its end.

    A free slot takes the oldest trial that waits and fits its memory. A trial that lost its slot is
    older than those that never had one. Trials that need several slots are left waiting.
    """

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        slots = idle_slots(view)
        waits = idle_trials(view) if slots else []
        gangs: list[Gang] = []
        for slot in slots:
            trial = next((t for t in waits if fits(view, t, slot)), None)
            if trial is not None:
                waits.remove(trial)
                gangs.append(solo(trial, slot.id, view.turn))
        return with_more(view, gangs), memory
