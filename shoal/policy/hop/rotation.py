"""Rotation: every trial goes round the shards in one direction, each group starting elsewhere.

Ours. As a closed form it is an optimal open-shop schedule where `Rotation.ok`. As a list of what
comes next (`seat`, `next_shard`) it fixes each trial's order of visits whatever the timing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from shoal.core.cluster import ShardId, Slot
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits

# "rings": sorted shards, by number; "seats": trial -> [group, place in the line, ring]
Memory = Mapping[str, Any]
Ring = list[str]  # the shards of some trials, sorted
Seat = list[int]
GROUP, RING = 0, 2  # where in a seat

Unit = tuple[Seconds, Seconds, int, int]  # start, end, trial, slot
Groups = tuple[tuple[int, ...], ...]  # of trials
EPS = 1e-9
Times = Sequence[Sequence[Seconds]]
Trials = Sequence[TrialId]
Slots = Sequence[Slot]
Sizes = Sequence[float]


@dataclass(frozen=True, slots=True)
class Rotation:
    """One epoch as a schedule.

    Slots and trials are numbered as the columns and rows of the times that it came from.
    `ok`: no trial is ever needed twice at once, and the makespan is the load of the slowest slot.
    """

    groups: Groups
    orders: Groups  # trials in the order of each slot
    units: tuple[Unit, ...]  # at padded times: valid if ok
    ok: bool

    @property
    def makespan(self) -> Seconds:
        """When the last unit ends."""
        return max((end for _, end, _, _ in self.units), default=0.0)


def spread(sizes: Sizes, bins: int) -> list[int]:
    """The bin of each size: the largest goes first, always to the emptiest bin (LPT)."""
    full = [0.0] * bins
    chosen = [0] * len(sizes)
    for item in _largest_first(sizes):
        emptiest = full.index(min(full))
        full[emptiest] += sizes[item]
        chosen[item] = emptiest
    return chosen


def _largest_first(sizes: Sizes) -> list[int]:
    """The indices of the sizes, the largest first; of equal ones in the order given."""
    return sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))


def rotation(times: Times) -> Rotation:
    """The rotation schedule of one epoch; `times[i][j]`: seconds of trial i's unit at slot j.

    A trial's padded time is that of its slowest unit. The most loaded slot starts with group 0, the
    next one with group 1, and so on. It is `ok` if the smallest group's padded time is at least the
    longest padded time of one trial.
    """
    slots = len(times[0])
    padded = [max(row) for row in times]
    groups = _grouped(padded, slots)
    orders: list[tuple[int, ...]] = [()] * slots
    units: list[Unit] = []
    loads = [sum(column) for column in zip(*times, strict=True)]
    for rank, slot in enumerate(_largest_first(loads)):
        orders[slot] = tuple(chain.from_iterable((*groups[rank:], *groups[:rank])))
        units += _padded_units(slot, orders[slot], times, padded)
    ok = min(sum(padded[trial] for trial in group) for group in groups) >= max(padded) - EPS
    return Rotation(groups, tuple(orders), tuple(sorted(units)), ok)


def _padded_units(slot: int, order: Sequence[int], times: Times, padded: Sizes) -> Iterator[Unit]:
    """The slot's units in this order; each may begin once the one before would end if padded."""
    start = 0.0
    for trial in order:
        yield start, start + times[trial][slot], trial, slot
        start += padded[trial]


def _grouped(sizes: Sizes, count: int) -> Groups:
    """The trials in so many groups of about equal size, each with its largest trial first."""
    groups: list[list[int]] = [[] for _ in range(count)]
    chosen = spread(sizes, count)
    for trial in _largest_first(sizes):
        groups[chosen[trial]].append(trial)
    return tuple(map(tuple, groups))


# -- the order of each trial, fixed when it is first seen


def seat(view: View, memory: Memory) -> Memory:
    """The memory, with a seat for every trial that had none; the same object when all have one.

    Trials first seen together are spread by the time they take. Later ones go to the group that has
    had the fewest, so that an arrival's group depends on the order of arrivals alone.
    """
    if memory and len(memory["seats"]) == len(view.known):
        return memory  # all that ever came have one
    if memory and view.trials.keys() <= memory["seats"].keys():
        return memory
    rings: list[Ring] = list(memory.get("rings", ()))
    seats: dict[str, Seat] = dict(memory.get("seats", {}))
    first = not seats
    new = _newly_seated(view, seats, rings)
    for number, ring in enumerate(rings):
        round_it = [trial for trial in new if seats[trial][RING] == number]
        former = [group for group, _, ring in seats.values() if group >= 0 and ring == number]
        groups = _groups(view, round_it, former, len(ring), first)
        for name, group in zip(round_it, groups, strict=True):
            seats[name][GROUP] = group
    return {"rings": rings, "seats": seats}


def _newly_seated(view: View, seats: dict[str, Seat], rings: list[Ring]) -> Trials:
    """Give each trial without a seat the next place and its ring; its group is still -1.

    Writes to `seats` and `rings`, and returns these trials.
    """
    new = [name for name in view.trials if name not in seats]
    for name in new:
        ring = [str(shard) for shard in sorted(view.trials[name].shards)]
        if ring not in rings:
            rings.append(ring)
        seats[name] = [-1, len(seats), rings.index(ring)]
    return new


def _groups(
    view: View, new: Trials, former: Sequence[int], bins: int, first: bool
) -> Sequence[int]:
    """A group for each new trial.

    `former`: the groups of trials seen before. `first`: there were none.
    """
    if not bins:
        return [0] * len(new)
    if first:
        return spread([1.0 / view.profile.curve(t, 1)[0] for t in new], bins)
    counts = [former.count(group) for group in range(bins)]
    groups = []
    for _ in new:
        groups.append(counts.index(min(counts)))
        counts[groups[-1]] += 1
    return groups


def ring_of(memory: Memory, trial: TrialId) -> tuple[int, int] | None:
    """The trial's group and ring, which fix its order of shards; None: it has no seat yet."""
    if not memory or trial not in memory["seats"]:
        return None
    group, _, ring = memory["seats"][trial]
    return group, ring


def seated_beside(memory: Memory, trials: Trials, leader: TrialId) -> Memory:
    """The memory in which these new trials have the same group and ring as the leader."""
    seats = dict(memory["seats"])
    group, _, ring = seats[leader]
    for place, trial in enumerate(trials, len(seats)):
        seats[str(trial)] = [group, place, ring]
    return {**memory, "seats": seats}


def next_shard(
    ring: Sequence[ShardId], group: int, visited: int, pending: Collection[ShardId]
) -> ShardId | None:
    """The shard that a trial of this group visits next; None: none is pending.

    `visited`: how many visits it made. `ring`: its shards, sorted. From shard number `group` it
    goes downwards, round and round, so that the slot at shard r meets the groups r, r + 1, … in
    turn. Shards visited out of turn (under another policy) are passed over.
    """
    expected = ring[(group - visited) % len(ring)]
    if expected in pending:
        return expected
    for step in range(len(ring)):
        shard = ring[(group - step) % len(ring)]
        if shard in pending:
            return shard
    return None


# -- what idle slots take


class _Entry(NamedTuple):
    """A trial in the line at a shard; the one with the fewest visits comes first."""

    visited: int
    place: int
    trial: TrialId
    shard: ShardId


_Lines = dict[ShardId, list[_Entry]]
_LineUp = Callable[[View, Trials, Memory, Slots], _Lines]


def by_rotation(
    view: View, slots: Slots, trials: Trials, memory: Memory
) -> Iterator[tuple[Slot, TrialId, ShardId]]:
    """Each idle slot takes the trial with the fewest visits whose next shard lies there.

    Slots that hold the fewest shards choose first: the others have more to choose from.
    """
    left = sorted(slots, key=lambda s: (len(s.shards), s.id))
    line_ups: tuple[_LineUp, ...] = (_in_turn, _out_of_turn)
    for line_up in line_ups:
        if not left:
            return
        lines = line_up(view, trials, memory, left)
        if not lines:
            continue
        for slot in tuple(left):
            best = _first_in_line(view, lines, slot)
            if best is not None:
                left.remove(slot)
                lines[best.shard].remove(best)
                yield slot, best.trial, best.shard


def _first_in_line(view: View, lines: _Lines, slot: Slot) -> _Entry | None:
    """The first trial in line at any of the slot's shards that fits the slot."""
    here: list[_Entry] = []
    for shard in slot.shards:
        here.extend(lines.get(shard, ()))
    if not here:
        return None
    first = min(here)  # mostly it fits, and nothing need be sorted
    if fits(view, first.trial, slot):
        return first
    for entry in sorted(here):
        if fits(view, entry.trial, slot):
            return entry
    return None


def _in_turn(view: View, trials: Trials, memory: Memory, slots: Slots) -> _Lines:
    """The lines at these slots' shards of trials that rotation sends there next."""
    here: set[ShardId] = set().union(*(slot.shards for slot in slots))
    lines: _Lines = {}
    for number, ring in enumerate(memory["rings"]):
        due = {place for place, shard in enumerate(ring) if shard in here}
        if not due:
            continue
        for entry in _due(view, _with_ring(trials, memory, number), memory["seats"], ring, due):
            lines.setdefault(entry.shard, []).append(entry)
    return lines


def _with_ring(trials: Trials, memory: Memory, number: int) -> Trials:
    """The trials that go round this ring."""
    if len(memory["rings"]) == 1:
        return trials
    seats = memory["seats"]
    return [trial for trial in trials if seats[trial][RING] == number]


def _due(
    view: View,
    trials: Trials,
    seats: Mapping[str, Seat],
    ring: Sequence[ShardId],
    due: Collection[int],
) -> Iterator[_Entry]:
    """The trials whose next shard in the ring is one of `due`, and is pending.

    Every trial is looked at, in a tight loop: this is the hot spot of hopping.
    """
    count = len(ring)
    visits = view.visits
    here = [t for t in trials if (seats[t][0] - len(visits[t])) % count in due]
    for trial in here:
        visited = len(visits[trial])
        group, place, _ = seats[trial]
        shard = ring[(group - visited) % count]
        if shard in view.pending[trial]:
            yield _Entry(visited, place, trial, shard)


def _out_of_turn(view: View, trials: Trials, memory: Memory, slots: Slots) -> _Lines:
    """The others, whose epoch another policy began: by the next shard that they still lack."""
    lines: _Lines = {}
    for trial in trials:
        entry = _late(view, memory, trial)
        if entry is not None:
            lines.setdefault(entry.shard, []).append(entry)
    return lines


def _late(view: View, memory: Memory, trial: TrialId) -> _Entry | None:
    """The trial at the next shard that it still lacks; None if it is in turn."""
    group, place, number = memory["seats"][trial]
    ring = memory["rings"][number]
    visited = len(view.visits[trial])
    pending = view.pending[trial]
    if not ring or ring[(group - visited) % len(ring)] in pending:
        return None
    shard = next_shard(ring, group, visited, pending)
    if shard is None:
        return None
    return _Entry(visited, place, trial, shard)
