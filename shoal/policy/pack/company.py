"""Which trials can be together on a slot, how fast they are then, and whether they gain by it."""

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.profile import MemoryTogether, Profile
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId

K = TypeVar("K")
Together = list[TrialId]  # trials that share a slot
Packs = list[Together]
GAIN = 0.02  # trials are packed if that saves so much of their time
ALONE = 2  # strikes: a trial that brought slots down so often goes alone
Trials = Sequence[TrialId]


def by_key(trials: Trials, key: Callable[[TrialId], K]) -> dict[K, Together]:
    """The trials with equal keys together, in the order given."""
    groups: dict[K, Together] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups


def state(view: View, trial: TrialId) -> tuple[Any, ...]:
    """The trial's state: equal for trials that can go on together."""
    known = view.trials[trial]
    visits = len(view.visits[trial])
    return visits, view.pending[trial], known.shards, known.widths


def must_be_alone(view: View, trial: TrialId) -> bool:
    """Whether the trial brought several slots down."""
    return view.strikes.get(trial, 0) >= ALONE


def form(view: View, trial: TrialId) -> Hashable:
    """The trial's form: equal for those that may train in one fused step; None: not known."""
    return view.profile.cost(trial).form


def gains(view: View, trials: Trials, fuse: bool) -> bool:
    """Whether the trials are faster together on one slot than one after the other."""
    slot = next(iter(view.slots), None)
    if slot is None:
        return False
    together = seconds_together(view.profile, slot, trials, fuse)
    in_turn = sum(1.0 / view.profile.curve(trial, 1)[0] for trial in trials)
    return together < in_turn * (1 - GAIN)


def seconds_together(profile: Profile, slot: SlotId, trials: Trials, fuse: bool) -> Seconds:
    """Seconds per sample of the trials together on one slot."""
    lanes = tuple(Lane(trial, (slot,)) for trial in trials)
    gang = Gang(lanes, fused=fuse and len(trials) > 1)
    return 1.0 / min(profile.rates(gang).values())


# -- memory


def smallest_memory(view: View) -> GiB:
    """The memory of the smallest slot: a pack may come to any."""
    return min((slot.memory for slot in view.slots.values()), default=inf)


def have_room(view: View, trials: Trials, room: GiB) -> bool:
    """Whether the trials need no more than this together."""
    return room == inf or MemoryTogether(map(view.profile.cost, trials)).now <= room


def parts_with_room(view: View, pack: Trials, room: GiB) -> Packs:
    """The pack in as few parts as have room, in order."""
    if have_room(view, pack, room):
        return [[*pack]]
    cuts = [0]
    used = MemoryTogether()
    for number, trial in enumerate(pack):
        cost = view.profile.cost(trial)
        if number and used.with_one(cost) > room:
            cuts.append(number)
            used = MemoryTogether()
        used.add(cost)
    cuts.append(len(pack))
    return [[*pack[start:end]] for start, end in pairwise(cuts)]
