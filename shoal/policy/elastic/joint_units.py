"""Elastic trials over data that stays at nodes: how many slots each is to have, unit by unit.

BFTrainer (Liu et al., 2021) has every node read all of the data. Where each node holds some shards
only, a trial on n slots reads n shards at once, each slot one of its own (a joint gang), and hops
on. Such a unit is not cut short. So the program (16) is solved for all trials as ever, and a trial
gets its count when its next unit begins.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from shoal.core.cluster import Slot, SlotId
from shoal.core.plan import Gang, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.elastic.problem import Problem
from shoal.policy.elastic.table import Counts
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.hybrid import joint_unit, readers
from shoal.policy.idle import idle_slots, with_more

HOP = Hop("lrw")  # remembers nothing, and is best where times are uncertain


def lanes(view: View, admit: int | None) -> Mapping[TrialId, tuple[SlotId, ...]]:
    """The slots that each trial admitted has, in the unit under way."""
    found = {}
    for name in islice(view.trials, admit):
        gang = view.running.get(name)
        found[name] = () if gang is None else tuple(sorted(gang.slots))
    return found


def plan(view: View, asked: Problem, counts: Counts) -> Plan:
    """What runs, and the next units of trials that wait, on slots at which nothing runs.

    What is left by trials that are to have slots, as they lack no shard that lies there, goes to
    whoever lacks one: no slot is idle that a trial could use. Where nobody is to have more than one
    slot, trials hop: which of them visits which shard is all that counts.
    """
    if counts.max() <= 1 and len(counts) == len(view.trials):
        hopped, _ = HOP.decide(view, HOP.start())
        return hopped
    free = {slot.id: slot for slot in idle_slots(view)}
    waits = [
        (int(count), trial)
        for trial, count in zip(asked.trials, counts, strict=True)
        if trial not in view.running
    ]
    gangs: list[Gang] = []
    begun: set[TrialId] = set()
    for least in (0, 1):
        for count, trial in waits:
            if trial in begun:
                continue
            gang = _unit(view, trial, max(count, least), list(free.values()))
            if gang is None:
                continue
            begun.add(trial)
            gangs.append(gang)
            for slot in gang.slots:
                del free[slot]
    return with_more(view, gangs)


def _unit(view: View, trial: TrialId, count: int, slots: Sequence[Slot]) -> Gang | None:
    """The trial's next unit on so many of the slots; None if it cannot run on those there are."""
    fewest, _ = view.trials[trial].widths
    reads = readers(view, trial, slots, view.pending[trial])[:count]
    return joint_unit(view, trial, reads) if len(reads) >= fewest else None
