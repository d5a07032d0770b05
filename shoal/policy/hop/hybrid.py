"""Hopping with wide lanes: few trials hop between groups of slots, data-parallel within a group.

Nakandala et al., "Cerebro", VLDB 2020, section 5.7 and appendix D. How many groups there are is our
rule (`openshop.groups`) instead of the paper's (hop when trials > slots / 2, else one group).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.hop.early import samples_in
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.openshop import groups
from shoal.policy.idle import has_room, queue, with_more
from shoal.profile.known import widest

NEVER = 1e-9  # efficiency of a width that some trial may not have
Trials = Sequence[TrialId]
Memory = Mapping[str, Any]


class SlotGroup(NamedTuple):
    """A group of slots, and the shards that it serves."""

    slots: list[Slot]
    shards: frozenset[ShardId]


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Divides the slots into as many groups as are fastest by the profile.

    Trials go round the groups.
    A group takes one trial at a time, over those shards at its slots that the trial has yet to
    visit. When the number of trials or slots changes so that other groups would be faster, trials
    wait at the end of their epoch until all are there. Then the slots are divided anew.

    Where as many groups as slots are best, or no division gives every trial a width that it may
    have, this is a plain `Hop` of this `rule`. Trials that need several slots then run whole, on
    slots that no hop wants.

    Raises:
        ValueError: hop has no such rule.
    """

    rule: str = "rotation"
    seed: int = 0

    def __post_init__(self) -> None:
        self._hop()

    def _hop(self) -> Hop:
        return Hop(self.rule, self.seed)  # type: ignore[arg-type]

    def start(self) -> dict[str, Any]:
        return {"groups": 0, "seats": {}, "hop": self._hop().start()}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Mapping[str, Any]]:
        trials = [name for name, trial in view.trials.items() if trial.shards]
        wanted = _count(view, trials)
        memory = _regrouped(view, memory, trials, wanted)
        divided = wanted == memory["groups"]
        if divided and wanted == len(view.slots):
            return self._hopped(view, memory)

        memory = _seated(memory, trials)
        gangs = _started(view, memory, trials, divided)
        if not gangs and not view.plan.gangs:
            # Slots came or went, and no group suits the trials that are left: never stall.
            return self._hopped(view, memory)
        return with_more(view, gangs), memory

    def _hopped(self, view: View, memory: Memory) -> tuple[Plan, Mapping[str, Any]]:
        """What a plain hop decides, with trials that need several slots on what it leaves."""
        plan, inner = self._hop().decide(view, memory["hop"])
        if inner != memory["hop"]:
            memory = {**memory, "hop": inner}
        return _with_wide(view, plan), memory


# -- when to divide, and into how many groups


def _regrouped(view: View, memory: Memory, trials: Trials, wanted: int) -> Memory:
    """The memory with so many groups, if it is time to divide the slots anew."""
    groups = memory["groups"]
    if wanted == groups or (groups and not _calm(view, trials)):
        return memory
    return {**memory, "groups": wanted, "seats": _numbered(trials, 0)}


def _calm(view: View, trials: Trials) -> bool:
    """Whether no trial runs or is in the middle of an epoch."""
    return all(t not in view.running and _between_epochs(view, t) for t in trials)


def _between_epochs(view: View, trial: TrialId) -> bool:
    """Whether the trial has yet to visit all shards of its epoch."""
    return view.pending[trial] == view.trials[trial].shards


def _may_start(view: View, trial: TrialId, divided: bool) -> bool:
    """Whether the trial waits for a group; until the slots are divided anew, no epoch begins."""
    if trial in view.running:
        return False
    return divided or not _between_epochs(view, trial)


def _count(view: View, trials: Trials) -> int:
    """How many groups are best for these trials.

    As many as slots where some data is not divided, or where no division suits all trials.
    """
    slots = len(view.slots)
    if not trials or not slots or len(trials) < len(view.trials):
        return slots
    fewest, most = _common_widths(view, trials)
    if fewest > slots:
        return slots
    efficiency = _efficiency(view, trials[0], most)
    count, _ = groups(len(trials), slots, efficiency, fewest)
    widest = -(-slots // count)
    if widest > most:
        return slots
    return count


def _efficiency(view: View, trial: TrialId, most: int) -> Callable[[int], float]:
    """The speed at a width over that many times the speed of one slot, as this trial has it.

    Next to nothing above `most` slots, which some trial may not have.
    """
    curve = view.profile.curve(trial, len(view.slots))

    def efficiency(width: int) -> float:
        if width > most:
            return NEVER
        return curve[width - 1] / (width * curve[0])

    return efficiency


def _common_widths(view: View, trials: Trials) -> tuple[int, int]:
    """The fewest and the most slots that suit all of these trials; none do if fewest > most.

    No trial has more than pay, as far as was measured.
    """
    slots = len(view.slots)
    fewest = max(view.trials[t].widths[0] for t in trials)
    most = min(widest(view.profile, t, *_widths(view, t, slots)) for t in trials)
    return fewest, most


def _widths(view: View, trial: TrialId, slots: int) -> tuple[int, int]:
    """The fewest and the most slots that the trial may have of so many."""
    fewest, most = view.trials[trial].widths
    return fewest, min(most, slots)


# -- who has which place in the round


def _numbered(trials: Trials, first: int) -> dict[str, int]:
    """A place for each trial, counted from `first`."""
    return {str(t): number for number, t in enumerate(trials, first)}


def _seated(memory: Memory, trials: Trials) -> Memory:
    """The memory with a place for every trial; the same object when all have one."""
    seats = memory["seats"]
    new = [t for t in trials if t not in seats]
    if not new:
        return memory
    return {**memory, "seats": seats | _numbered(new, len(seats))}


# -- what starts


def _started(view: View, memory: Memory, trials: Trials, divided: bool) -> list[Gang]:
    """The passes that free groups begin. `divided`: into as many groups as are best now."""
    waits = [t for t in trials if _may_start(view, t, divided)]
    parts = _parts(view, memory["groups"])
    return _units(view, waits, memory["seats"], parts)


def _units(
    view: View,
    waits: Trials,
    seats: Mapping[str, int],
    parts: Sequence[SlotGroup],
) -> list[Gang]:
    """Each trial that waits is due at one group.

    A free group takes the one with the fewest visits.
    """
    gangs = []
    for number, trials in sorted(_due(view, waits, seats, parts).items()):
        part = parts[number]
        ready = [t for t in trials if _suits(view, t, part)]
        if ready and _is_free(view, part):
            trial = min(ready, key=lambda t: (len(view.visits[t]), seats[t]))
            gangs.append(_visit(view, trial, part))
    return gangs


def _due(
    view: View,
    waits: Trials,
    seats: Mapping[str, int],
    parts: Sequence[SlotGroup],
) -> dict[int, list[TrialId]]:
    """By number of the group, the trials that go there next."""
    due: dict[int, list[TrialId]] = {}
    for trial in waits:
        number = _next_part(view.pending[trial], seats[trial], parts)
        if number is not None:
            due.setdefault(number, []).append(trial)
    return due


def _is_free(view: View, part: SlotGroup) -> bool:
    """Whether all slots of the group are idle."""
    return not any(slot.id in view.busy for slot in part.slots)


def _next_part(
    left: frozenset[ShardId], seat: int, parts: Sequence[SlotGroup]
) -> int | None:
    """The number of the group where the trial goes next; None if none serves a shard left.

    Groups are gone through from the trial's seat downwards.
    """
    for step in range(len(parts)):
        number = (seat - step) % len(parts)
        if not parts[number].shards.isdisjoint(left):
            return number
    return None


def _suits(view: View, trial: TrialId, part: SlotGroup) -> bool:
    """Whether the trial may be as wide as this group, and every slot of it holds the trial."""
    fewest, most = view.trials[trial].widths
    if not fewest <= len(part.slots) <= most:
        return False
    return all(has_room(view, trial, slot) for slot in part.slots)


def _visit(view: View, trial: TrialId, part: SlotGroup) -> Gang:
    """The trial's pass over the shards of this group that it has yet to visit."""
    read = tuple(sorted(part.shards & view.pending[trial]))
    lanes = (_lane(trial, part.slots),)
    return Gang(lanes, read, samples_in(view, read), since=view.turn)


def _with_wide(view: View, plan: Plan) -> Plan:
    """The plan, and trials that need several slots, whole, on slots that the plan leaves idle."""
    free = _free(view, plan)
    if len(free) < 2:
        return plan
    gangs = set(plan.gangs)
    for trial in _waiting_wide(view, plan):
        fewest = view.trials[trial].widths[0]
        slots = [slot for slot in free if has_room(view, trial, slot)][:fewest]
        if len(slots) == fewest:
            gangs.add(Gang((_lane(trial, slots),), since=view.turn))
            free = [slot for slot in free if slot not in slots]
    if len(gangs) == len(plan.gangs):
        return plan
    return Plan(frozenset(gangs))


def _lane(trial: TrialId, slots: Sequence[Slot]) -> Lane:
    """The trial on these slots."""
    return Lane(trial, tuple(slot.id for slot in slots))


def _free(view: View, plan: Plan) -> list[Slot]:
    """The slots that the plan leaves idle."""
    taken: set[SlotId] = set()
    for gang in plan.gangs:
        taken |= gang.slots
    return [slot for name, slot in view.slots.items() if name not in taken]


def _waiting_wide(view: View, plan: Plan) -> list[TrialId]:
    """The trials in no gang of the plan that need several slots."""
    at_work = {trial for gang in plan.gangs for trial in gang.trials}
    return [t for t in queue(view) if t not in at_work and _is_wide(view, t)]


def _is_wide(view: View, trial: TrialId) -> bool:
    """Whether the trial needs several slots."""
    return view.trials[trial].widths[0] > 1


# -- the groups


def _parts(view: View, count: int) -> list[SlotGroup]:
    """The slots in so many groups, those of one node next to each other.

    Of the groups that hold a shard one serves it.
    """
    slots = sorted(view.slots.values(), key=lambda s: (s.node, s.id))
    count = min(count, len(slots))
    if not count:
        return []
    cuts = [k * len(slots) // count for k in range(count + 1)]
    parts = [slots[first:end] for first, end in pairwise(cuts)]
    served = _served(view, parts)
    return [SlotGroup(*pair) for pair in zip(parts, served, strict=True)]


def _served(view: View, parts: Sequence[Sequence[Slot]]) -> list[frozenset[ShardId]]:
    """The shards that each group serves: each shard goes to the emptiest group that holds it.

    Shards with the fewest holders are given away first: the others can still choose.
    """
    holders = {shard: _holders(shard, parts) for shard in sorted(view.shards)}
    served: list[set[ShardId]] = [set() for _ in parts]
    for shard in sorted(holders, key=lambda q: (len(holders[q]), q)):
        if holders[shard]:
            emptiest = min(holders[shard], key=lambda k: len(served[k]) / len(parts[k]))
            served[emptiest].add(shard)
    return [frozenset(shards) for shards in served]


def _holders(shard: ShardId, parts: Sequence[Sequence[Slot]]) -> list[int]:
    """The numbers of the groups at whose slots the shard lies."""
    return [number for number, part in enumerate(parts) if _lies_at(shard, part)]


def _lies_at(shard: ShardId, part: Sequence[Slot]) -> bool:
    """Whether the shard lies at any slot of the group."""
    return any(shard in slot.shards for slot in part)
