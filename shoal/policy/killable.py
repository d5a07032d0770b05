"""Fixed widths, killed and queued again when a node leaves: what Summit's killable queue does.

Liu et al., "BFTrainer", 2021, section 2.2: the system that elastic trials are compared with.
"""

from dataclasses import dataclass
from itertools import islice

from shoal.core.check import in_order
from shoal.core.cluster import GiB, Slot
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.idle import idle_slots


@dataclass(frozen=True, slots=True)
class Killable:
    """Each trial on exactly `width` slots, or the nearest width that it can have.

    Trials are served in the order in which they came.
    A trial that lost a slot is stopped and waits for as many again. A trial that finds too few free
    slots lets the next ones pass. When all slots together are too few, and nothing else runs, the
    first trial takes what there is, if it can.

    `admit`: at most so many trials at a time.

    Raises:
        ValueError: width or admit below 1.
    """

    width: int = 1
    admit: int | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or (self.admit is not None and self.admit < 1):
            raise ValueError(
                f"killable's width and admit must be >= 1; got {self.width!r}, {self.admit!r}"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        keep = view.plan.gangs
        pool = idle_slots(view)
        hurt = self._hurt(view)
        if hurt and not self._must_do(view, hurt[0]):
            keep = keep.difference(hurt)
            pool += _released(view, hurt)
        gangs = self._started(view, keep, pool)
        if not gangs and len(keep) == len(view.plan.gangs):
            return view.plan, None
        return Plan(keep | frozenset(gangs)), None

    def _hurt(self, view: View) -> list[Gang]:
        """The gangs that lost a slot."""
        gangs = sorted(view.plan.gangs, key=in_order)
        return [g for g in gangs if g.quota is None and self._is_narrow(view, g)]

    def _is_narrow(self, view: View, gang: Gang) -> bool:
        """Whether a lane has fewer slots than it should."""
        return any(len(n.slots) < self._width(view, n.trial) for n in gang.lanes)

    def _must_do(self, view: View, gang: Gang) -> bool:
        """Whether this gang runs alone, and all slots together are too few for its width."""
        width = self._width(view, gang.lanes[0].trial)
        return len(view.plan.gangs) == 1 and len(view.slots) < width

    def _started(self, view: View, keep: frozenset[Gang], pool: list[Slot]) -> list[Gang]:
        """Gangs for the trials admitted that find enough free slots, first come first served."""
        running = {trial for gang in keep for trial in gang.trials}
        gangs: list[Gang] = []
        for name in islice(view.trials, self.admit):
            if name in running:
                continue
            alone = not keep and not gangs
            taken = self._taken(view, name, pool, alone)
            if taken:
                ids = {slot.id for slot in taken}
                pool = [slot for slot in pool if slot.id not in ids]
                gangs.append(_gang(view, name, taken))
        return gangs

    def _taken(self, view: View, name: TrialId, pool: list[Slot], alone: bool) -> list[Slot]:
        """The slots of the pool that the trial takes; none if they are too few.

        `alone`: nothing else runs, so where there can never be enough it takes what there is.
        """
        need = view.profile.cost(name).memory
        slots = [slot for slot in pool if slot.memory >= need]
        width = self._width(view, name)
        if alone and len(slots) < width and not _could(view, need, width):
            fewest = view.trials[name].widths[0]
            width = max(fewest, len(slots))
        if len(slots) < width:
            return []
        return slots[:width]

    def _width(self, view: View, name: TrialId) -> int:
        """The width that is nearest to the given one among those that the trial can have."""
        fewest = most = 1
        if name in view.trials:
            fewest, most = view.trials[name].widths
        return min(max(self.width, fewest), most)


def _gang(view: View, trial: TrialId, slots: list[Slot]) -> Gang:
    """The trial alone on these slots, from now on."""
    lane = Lane(trial, tuple(slot.id for slot in slots))
    return Gang((lane,), since=view.turn)


def _released(view: View, gangs: list[Gang]) -> list[Slot]:
    """The slots of these gangs."""
    return [view.slots[name] for gang in gangs for name in sorted(gang.slots)]


def _could(view: View, need: GiB, width: int) -> bool:
    """Enough slots are big enough, were they free."""
    return sum(slot.memory >= need for slot in view.slots.values()) >= width
