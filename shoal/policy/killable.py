"""Fixed widths, killed and queued again when a node leaves: what Summit's killable queue does.

Liu et al., "BFTrainer", 2021, section 2.2: the system that elastic trials are compared with.
"""

from dataclasses import dataclass
from itertools import islice

from shoal.core.check import in_order
from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.policy.idle import idle_slots


@dataclass(frozen=True, slots=True)
class Killable:
    """Each trial on exactly `width` slots, or the nearest width that it can have, first come first served.

    A trial that lost a slot is stopped and waits for as many again. `admit`: at most so many trials at a time. A trial
    that finds too few free slots lets the next ones pass. When all slots together are too few, and nothing else runs,
    the first trial takes what there is, if it can.

    Raises:
        ValueError: width or admit below 1.
    """

    width: int = 1
    admit: int | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or (self.admit is not None and self.admit < 1):
            raise ValueError(f"killable's width and admit must be >= 1; got {self.width!r}, {self.admit!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        names = list(islice(view.trials, self.admit))
        gangs_now = sorted(view.plan.gangs, key=in_order)
        hurt = [g for g in gangs_now if g.quota is None and any(len(x.slots) < self._width(view, x) for x in g.lanes)]
        alone = len(view.plan.gangs) == 1 and hurt and len(view.slots) < self._width(view, hurt[0].lanes[0])
        keep = view.plan.gangs if alone else view.plan.gangs.difference(hurt)
        pool = idle_slots(view) if alone else [*idle_slots(view), *(view.slots[s] for g in hurt for s in sorted(g.slots))]
        gangs: list[Gang] = []
        running = {trial for gang in keep for trial in gang.trials}
        for name in (n for n in names if n not in running):
            need, (fewest, most) = view.profile.cost(name).memory, view.trials[name].widths
            slots = [slot.id for slot in pool if slot.memory >= need]
            width = min(max(self.width, fewest), most)
            if len(slots) < width and not keep and not gangs and len(slots) >= fewest and not _could(view, need, width):
                width = len(slots)
            if len(slots) >= width:
                gangs.append(Gang((Lane(name, tuple(slots[:width])),), since=view.turn))
                taken: set[SlotId] = set(slots[:width])
                pool = [slot for slot in pool if slot.id not in taken]
        return (Plan(keep | frozenset(gangs)), None) if gangs or len(keep) < len(view.plan.gangs) else (view.plan, None)

    def _width(self, view: View, lane: Lane) -> int:
        fewest, most = view.trials[lane.trial].widths if lane.trial in view.trials else (1, 1)
        return min(max(self.width, fewest), most)


def _could(view: View, need: float, width: int) -> bool:
    """Enough slots are big enough, were they free."""
    return sum(slot.memory >= need for slot in view.slots.values()) >= width
