"""First come, first served: the obvious way, and the one that all others must beat."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.idle import fits, idle_slots, waiting, with_more


@dataclass(frozen=True, slots=True)
class Fifo:
    """One trial per slot, over the whole data set, from its start to its end.

    A free slot takes the oldest trial that waits and fits its memory. A trial that lost its slot is
    older than those that never had one. Trials that need several slots are left waiting. What
    another policy left running is taken apart: of a pack the first trial stays, and a wide one
    keeps one slot.
    """

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        view = _one_a_slot(view)
        slots = idle_slots(view)
        if not slots:
            return view.plan, memory
        taken = _oldest_that_fit(view, slots)
        return with_more(view, (solo(trial, slot.id, view.turn) for slot, trial in taken)), memory


def _one_a_slot(view: View) -> View:
    """The view with one trial on one slot in each gang; gangs with a quota end by themselves."""
    if len(view.running) == len(view.busy) == len(view.plan.gangs):
        return view
    gangs = [_narrowed(view, gang) for gang in view.plan.gangs]
    return replace(
        view,
        plan=Plan(frozenset(gangs)),
        busy={slot: gang for gang in gangs for slot in gang.slots},
        running={trial: gang for gang in gangs for trial in gang.trials},
    )


def _narrowed(view: View, gang: Gang) -> Gang:
    """The gang's first trial that can have one slot, on its first; a gang with a quota as it is."""
    if gang.quota is not None or len(gang.lanes) == len(gang.slots) == 1:
        return gang
    for lane in gang.lanes:
        if view.known[lane.trial].widths[0] <= 1:
            return solo(lane.trial, lane.slots[0], view.turn)
    return gang


def _oldest_that_fit(view: View, slots: list[Slot]) -> Iterator[tuple[Slot, TrialId]]:
    """Each slot with the oldest trial that fits it and that no slot before it took.

    The queue is read no further than needed: it may be long.
    """
    queue = waiting(view)
    too_large: list[TrialId] = []  # for a slot before: a later one may have more memory
    for slot in slots:
        trial = next((t for t in too_large if fits(view, t, slot)), None)
        if trial is not None:
            too_large.remove(trial)
            yield slot, trial
            continue
        for trial in queue:
            if fits(view, trial, slot):
                yield slot, trial
                break
            too_large.append(trial)
