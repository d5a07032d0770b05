"""Hopping with wide units: when trials are fewer than slots, each reads several shards at once.

Nakandala et al., "Cerebro", VLDB 2020, section 5.7 and appendix D: groups of slots, hopping between
the groups, data-parallel within one. Data stays where it lies: in a *joint* unit each slot reads a
shard of its own, and every batch has rows of each of them. A unit of w slots so takes as long as
one of a single slot, but for what summing gradients costs, and makes w visits.

How many groups there are is our rule (`division`) instead of the paper's (hop when trials >
slots / 2, else one group). The groups need no barrier: a trial may visit any of the shards that it
still lacks together, so that slots can be divided anew at any time, also in the middle of epochs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from math import inf
from typing import Any, NamedTuple

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan, evenness
from shoal.core.state import View, epoch_of
from shoal.core.trial import Seconds, TrialId
from shoal.policy.hop.hop import Hop, at_the_barrier
from shoal.policy.hop.live_rules import rate_alone, samples_in, samples_left
from shoal.policy.idle import has_room, idle_trials, queue, with_more
from shoal.profile.evidence import measured_rates, widest

SOON = 0.25  # of its own unit's time: so long a trial waits for a group
GAIN = 0.1  # of the time that plain hopping takes: groups must save more
Trials = Sequence[TrialId]
Memory = Mapping[str, Any]
Reader = tuple[SlotId, ShardId]  # a slot, and the shard that it reads
Speed = Callable[[int], float]  # a trial's on so many slots, against one slot


class SlotGroup(NamedTuple):
    """A group of slots, and the shards that it serves."""

    slots: Sequence[Slot]
    shards: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Hops as `policy` does; with fewer trials than slots, trials hop between groups of slots.

    A free group takes one trial at a time, over those shards at its slots that the trial has yet to
    read, all at once. There are as many groups as end the trials soonest by what the profile says
    of widths. Where as many groups as slots are best, this is `policy`, as it also is while some
    trial's data is not divided.

    Trials that need several slots run whole, on slots that no hop wants.

    Args:
        policy: how it hops.
    """

    policy: Hop = field(default_factory=Hop)

    def start(self) -> dict[str, Any]:
        return {"groups": 0, "of": [], "seats": {}, "began": {}, "hop": self.policy.start()}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        slots = _slots_with_data(view)
        trials = _that_hop(view)
        if not trials or len(trials) >= len(slots):
            return self._hopped(view, memory)
        memory = _divided(view, memory, trials, slots)
        if memory["groups"] == len(slots):
            return self._hopped(view, memory)

        waits = [trial for trial in idle_trials(view) if trial in trials]
        if self.policy.barrier:
            waits = list(at_the_barrier(view, waits))
        # The slots in so many groups. Of the groups that hold a shard one serves it.
        count = memory["groups"]
        cuts = [k * len(slots) // count for k in range(count + 1)]
        parts = [slots[first:end] for first, end in pairwise(cuts)]
        groups = [SlotGroup(*group) for group in zip(parts, _served(view, parts), strict=True)]
        gangs = _units(view, waits, memory, groups)
        if not gangs and not view.plan.gangs:  # no group suits what is left: never stall
            return self._hopped(view, memory)
        memory = _noted(view, memory, gangs)
        return _with_wide(view, with_more(view, gangs)), memory

    def _hopped(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        """The plan of the plain hop, with trials that need several slots on what it leaves."""
        plan, inner = self.policy.decide(view, memory["hop"])
        if inner != memory["hop"]:
            memory = {**memory, "hop": inner}
        return _with_wide(view, plan), memory


def _slots_with_data(view: View) -> list[Slot]:
    """The slots at which shards lie, those of one node next to each other."""
    slots = [slot for slot in view.slots.values() if slot.shards]
    return sorted(slots, key=lambda slot: (slot.node, slot.id))


def _that_hop(view: View) -> Trials:
    """The trials that can be on one slot; none while some trial's data is not divided."""
    if not all(trial.shards for trial in view.trials.values()):
        return []
    return [name for name, trial in view.trials.items() if trial.widths[0] == 1]


# -- into how many groups


def _divided(view: View, memory: Memory, trials: Trials, slots: Sequence[Slot]) -> Memory:
    """The memory with the number of groups that is best, and with a seat for every trial.

    The number is asked for again when trials or slots came or went, when a trial has ended an
    epoch, and when something was measured.
    """
    epochs = sum(epoch_of(view.visits[trial], len(view.trials[trial].shards)) for trial in trials)
    of = [len(trials), len(slots), epochs, len(measured_rates(view.profile))]
    seats: dict[str, int] = memory["seats"]
    if of == memory.get("of") and all(trial in seats for trial in trials):
        return memory
    new = [str(trial) for trial in trials if trial not in seats]
    seats = seats | {trial: number for number, trial in enumerate(new, len(seats))}
    speeds = [_speed(view, trial, len(slots)) for trial in trials]
    sizes = [sorted((view.shards[shard] for shard in slot.shards), reverse=True) for slot in slots]
    left = partial(_left, view, trials, len(slots))
    count, _ = division(left, speeds, len(slots), partial(_even, sizes), GAIN)
    return {**memory, "groups": count, "of": of, "seats": seats}


def _left(view: View, trials: Trials, slots: int, count: int) -> list[Seconds]:
    """Seconds of one slot that each trial has left, with so many groups; see `division`.

    What is left of an epoch that began with other groups is spread over more of them than need be.
    """
    left = []
    for trial in trials:
        shards = view.trials[trial].shards
        samples = samples_left(view, trial)
        pending = view.pending[trial]
        if count < slots and len(pending) < len(shards):
            units = -(-len(pending) * count // len(shards))
            later = max(0.0, samples - samples_in(view, pending))
            samples = later + samples_in(view, shards) * units / count
        left.append(samples / rate_alone(view, trial))
    return left


def division(
    left: Callable[[int], Sequence[Seconds]],
    speeds: Sequence[Speed],
    slots: int,
    even: Speed = lambda width: 1.0,
    gain: float = 0.0,
) -> tuple[int, Seconds]:
    """Into how many groups to divide the slots, and how long the trials then take at least.

    With G groups a trial makes its epoch in G units, each at the speed of slots / G slots; a group
    makes a unit of every trial. Hopping alone is G = slots; data parallelism alone is G = 1. Groups
    are taken only if they save more than this `gain`. The paper (section 5.7, appendix D) hops when
    trials > slots / 2, and else takes G = 1.

    `left`: seconds that each trial would take on one slot, if there are so many groups. `speeds`:
    of each trial on so many slots, against one. `even`: how evenly so many slots share the samples
    of their shards, at most 1.

    Raises:
        ValueError: no trials, or no slots.
    """
    if not speeds or slots < 1:
        raise ValueError(
            f"groups need 1 trial and 1 slot or more; got {len(speeds)} trials, {slots} slots"
        )
    takes: dict[int, Seconds] = {}
    for width in _widths(slots):
        count = -(-slots // width)
        wide = [
            seconds * width / (slots * speed(width) * even(width))
            for seconds, speed in zip(left(count), speeds, strict=True)
        ]
        seconds = max(count * max(wide), sum(wide))
        takes[count] = min(seconds, takes.get(count, seconds))
    fastest = min(takes, key=takes.__getitem__)
    if takes[fastest] > takes[slots] * (1 - gain):
        fastest = slots
    return fastest, takes[fastest]


def _widths(slots: int) -> Iterator[int]:
    """Widths of groups: all small ones, and for each great number of groups one."""
    width = 1
    while width <= slots:
        yield width
        count = -(-slots // width)
        # the next width that makes fewer groups; of very wide ones not every one
        width = max(-(-slots // max(count - 1, 1)), width + 1 + width // 16)


def _even(sizes: Sequence[Sequence[int]], width: int) -> float:
    """How evenly slots in groups of this width share their samples, each its largest first.

    `sizes`: of the shards at each slot, the largest first.
    """
    waits = 0
    for first in range(0, len(sizes), width):
        group = sizes[first : first + width]
        longest = [max(column) for column in zip_longest(*group, fillvalue=0)]
        waits += sum(longest) * len(group)
    return sum(map(sum, sizes)) / waits


def _speed(view: View, trial: TrialId, slots: int) -> Speed:
    """The trial's speed by width; no more slots are used than pay, as far as was measured."""
    most = _most(view, trial, slots)
    curve = view.profile.curve(trial, most)

    def speed(width: int) -> float:
        return max(curve[: min(width, most)]) / curve[0]

    return speed


def _most(view: View, trial: TrialId, slots: int) -> int:
    """The most slots that the trial may have, and that pay."""
    fewest, most = view.trials[trial].widths
    return widest(view.profile, trial, fewest, min(most, slots))


# -- what starts


def _noted(view: View, memory: Memory, gangs: Sequence[Gang]) -> Memory:
    """The memory with when the units under way began."""
    if not gangs:
        return memory
    began = {t: at for t, at in memory.get("began", {}).items() if t in view.running}
    now = round(view.now, 3)
    began |= {str(trial): now for gang in gangs for trial in gang.trials}
    return {**memory, "began": began}


def _units(view: View, waits: Trials, memory: Memory, groups: Sequence[SlotGroup]) -> list[Gang]:
    """The units that idle slots begin; the trials with the most work left choose first.

    A trial goes to the group where it is due, or waits for it. It overtakes only units that last
    far longer than its own: else trials that go round in step would come out of it. What is free of
    a group that a trial waits for is kept for it. Slots that would be idle then read along.
    """
    free = {slot.id for group in groups for slot in group.slots} - view.busy.keys()
    seats = memory["seats"]
    begun: dict[TrialId, Gang] = {}
    left = {t: samples_left(view, t) / rate_alone(view, t) for t in waits}
    for trial in sorted(waits, key=lambda t: (-left[t], seats[t])):
        for group in _due(view.pending[trial], seats[trial], groups):
            slots = [slot for slot in group.slots if slot.id in free]
            gang = _unit(view, trial, slots, group.shards & view.pending[trial])
            if _is_free_soon(view, memory, trial, group):
                free -= {slot.id for slot in slots}
                break
            if gang is not None:
                free -= gang.slots
                begun[trial] = gang
                break
    width = max(len(group.slots) for group in groups)
    for trial, gang in begun.items():
        begun[trial] = _extended(view, gang, free, width)
        free -= begun[trial].slots
    return list(begun.values())


def _is_free_soon(view: View, memory: Memory, trial: TrialId, group: SlotGroup) -> bool:
    """Whether the group's units under way end so soon that the trial better waits for them."""
    busy = {view.busy[slot.id] for slot in group.slots if slot.id in view.busy}
    if not busy:
        return False
    unit = _unit(view, trial, group.slots, group.shards & view.pending[trial])
    if unit is None:
        return False
    began = memory.get("began", {})
    rest = 0.0
    for gang in busy:
        lasts = _lasts(view, gang)
        since = began.get(gang.trials[0])
        rest = max(rest, lasts / 2 if since is None else since + lasts - view.now)
    return rest <= SOON * _lasts(view, unit)


def _lasts(view: View, gang: Gang) -> Seconds:
    """How long the gang lasts from its begin to its end."""
    if gang.quota is None:
        return inf
    rates = view.profile.rates(gang)
    return gang.quota / min(rates.values())


def _extended(view: View, gang: Gang, free: Set[SlotId], width: int) -> Gang:
    """The unit, with shards at further slots that are free, up to this width."""
    (trial,) = gang.trials
    lacks = view.pending[trial].difference(gang.shards)
    slots = [slot for name, slot in view.slots.items() if name in free]
    more = readers(view, trial, slots, lacks)
    most = _most(view, trial, width) - len(gang.slots)
    if most <= 0 or not more:
        return gang
    before = zip(gang.lanes[0].slots, gang.shards, strict=True)
    wider = joint_unit(view, trial, [*before, *more[:most]])
    return wider if _speed_of(view, wider) > _speed_of(view, gang) else gang


def _speed_of(view: View, gang: Gang) -> float:
    """Samples/s of a unit, by its width and by how even its shards are."""
    width = len(gang.slots)
    return view.profile.curve(gang.trials[0], width)[-1] * evenness(gang, view.shards)


def _due(pending: frozenset[ShardId], seat: int, groups: Sequence[SlotGroup]) -> list[SlotGroup]:
    """The groups that serve shards which the trial lacks, from its seat downwards.

    Trials that go round in step so never want the same group.
    """
    count = len(groups)
    in_turn = [groups[(seat - step) % count] for step in range(count)]
    return [group for group in in_turn if not group.shards.isdisjoint(pending)]


def _unit(
    view: View, trial: TrialId, slots: Sequence[Slot], shards: frozenset[ShardId]
) -> Gang | None:
    """The trial's unit over these shards at these slots, as far as each has one of them.

    It has no more slots than make it quicker, and one only where that is as good.
    """
    reads = readers(view, trial, slots, shards)
    if not reads:
        return None
    most = _most(view, trial, len(reads))
    curve = view.profile.curve(trial, most)
    width = max(range(1, most + 1), key=lambda w: (curve[w - 1], -w))
    count = len(shards)
    if count <= len(reads):
        width = -(-count // -(-count // width))  # no wider than saves a unit
    gang = joint_unit(view, trial, reads[:width])
    alone = joint_unit(view, trial, reads[:1])
    return gang if _speed_of(view, gang) > _speed_of(view, alone) else alone


def joint_unit(view: View, trial: TrialId, reads: Sequence[Reader]) -> Gang:
    """The trial's unit, in which each of these slots reads that shard."""
    slots, shards = zip(*reads, strict=True)
    quota = samples_in(view, set(shards))
    lanes = (Lane(trial, slots),)
    return Gang(lanes, shards, quota, since=view.turn, joint=len(slots) > 1)


def readers(
    view: View, trial: TrialId, slots: Sequence[Slot], shards: frozenset[ShardId]
) -> list[Reader]:
    """Which slot reads which of the shards: as many shards as can be, the largest first.

    Slots that are left over read along where much is to be read. Those without room for the trial
    read nothing.
    """
    reads: dict[SlotId, ShardId] = {}
    count: dict[ShardId, int] = {}
    able = [slot for slot in slots if has_room(view, trial, slot)]
    by_choice = sorted(able, key=lambda slot: (len(slot.shards & shards), slot.id))
    for slot in by_choice:
        here = (slot.shards & shards) - count.keys()
        if here:
            shard = max(sorted(here), key=view.shards.__getitem__)
            reads[slot.id] = shard
            count[shard] = 1
    for slot in by_choice:
        along = slot.shards & count.keys()
        if slot.id not in reads and along:
            shard = max(sorted(along), key=lambda q: view.shards[q] / count[q])
            reads[slot.id] = shard
            count[shard] += 1
    return list(reads.items())


# -- trials that need several slots


def _with_wide(view: View, plan: Plan) -> Plan:
    """The plan, and trials that need several slots, whole, on slots that the plan leaves idle."""
    wide = [t for t in queue(view) if view.trials[t].widths[0] > 1]
    if not wide:
        return plan
    taken = {slot for gang in plan.gangs for slot in gang.slots}
    free = [slot for name, slot in view.slots.items() if name not in taken]
    at_work = {trial for gang in plan.gangs for trial in gang.trials}
    gangs: list[Gang] = []
    for trial in wide:
        fewest = view.trials[trial].widths[0]
        slots = [slot for slot in free if has_room(view, trial, slot)][:fewest]
        if trial not in at_work and len(slots) == fewest:
            lane = Lane(trial, tuple(slot.id for slot in slots))
            gangs.append(Gang((lane,), since=view.turn))
            free = [slot for slot in free if slot not in slots]
    return plan.but(gangs) if gangs else plan


# -- the groups


def _served(view: View, parts: Sequence[Sequence[Slot]]) -> list[frozenset[ShardId]]:
    """The shards that each group serves: each shard goes to the emptiest group that holds it.

    Shards with the fewest holders are given away first: the others can still choose.
    """
    holders: dict[ShardId, list[int]] = {shard: [] for shard in sorted(view.shards)}
    for number, part in enumerate(parts):
        here = frozenset[ShardId]().union(*(slot.shards for slot in part))
        for shard in here & holders.keys():
            holders[shard].append(number)
    served: list[set[ShardId]] = [set() for _ in parts]
    for shard in sorted(holders, key=lambda q: (len(holders[q]), q)):
        if holders[shard]:
            emptiest = min(holders[shard], key=lambda k: len(served[k]) / len(parts[k]))
            served[emptiest].add(shard)
    return [frozenset(shards) for shards in served]
