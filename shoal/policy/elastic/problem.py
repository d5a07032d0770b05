"""What an allocation is decided from."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.core.cluster import SlotId
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.elastic.objective import KnownEnds
from shoal.policy.elastic.table import Counts, Table, lasting
from shoal.policy.idle import idle_slots

Held = tuple[SlotId, ...]  # the slots of a trial


def free_slots(view: View) -> list[SlotId]:
    """The slots at which nothing runs."""
    return [slot.id for slot in idle_slots(view)]


@dataclass(frozen=True, slots=True)
class Problem:
    """What an allocation is decided from: a row of each table for each trial."""

    trials: tuple[TrialId, ...]
    lanes: tuple[Held, ...]  # what they hold
    curve: Table
    held: Counts
    up: Table
    down: Table
    horizon: Seconds
    free: int  # slots to be shared out, those held included
    needs: tuple[float, ...]  # memory, GiB
    ends: KnownEnds
    pool: Held  # the free slots, and then those held; of either the longest lasting first

    def parts(self, row: int) -> Table:
        """For how much of the horizon the slots of each count last; see `lasting`."""
        trial, own = self.trials[row], self.lanes[row]
        part = partial(self.ends.part, trial)
        others = [part(slot) for slot in self.pool if slot not in own]
        return lasting([part(slot) for slot in own], others, self.curve.shape[1])

    def makes(self, trial: TrialId, slots: Held) -> float:
        """What the trial makes on these slots; see `Makes`."""
        row = self.trials.index(trial)
        steps = np.diff(np.maximum(self.curve[row], 0.0))
        parts = sorted((self.ends.part(trial, slot) for slot in slots), reverse=True)
        made = self.horizon * float(steps[: len(slots)] @ np.array(parts))
        held = len(self.lanes[row])
        if len(slots) > held:
            made -= float(self.up[row] * max(self.curve[row, held], 0.0))
        return made


def pool_of(view: View, lanes: Iterable[Held]) -> Held:
    """The free slots, and then those of these lanes; of either the longest lasting first."""
    busy = [slot for lane in lanes for slot in lane]
    return (*longest_first(view, free_slots(view)), *longest_first(view, busy))


def longest_first(view: View, slots: Iterable[SlotId]) -> list[SlotId]:
    """The slots, those that leave last first, else as they come."""
    return sorted(slots, key=lambda slot: -view.slots[slot].until)
