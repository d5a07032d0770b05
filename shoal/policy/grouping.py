"""Which trials to pack together on one slot: the paper's rules, and better ones.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter Tuning", 2020, section 5.3.
Members are numbered; a grouping is a list of lists of their numbers, each fitting the memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import inf

import numpy as np

from shoal.core.cluster import GiB
from shoal.core.trial import Seconds

Place = tuple[int | str, ...]
Groups = list[list[int]]
CostOf = Callable[[Sequence[int]], Seconds]  # of a group, by its members' numbers
SLACK = 1e-9
EXACT, FEW, SOME = 11, 16, 40  # members, up to which a division is exact, is tried from many starts, is improved at all
TRIES = 24  # starts at random


@dataclass(frozen=True, slots=True)
class Member:
    """`length`: what packs are sorted by (steps to go, or minus the batch size). `place`: for distances.

    A place has a number for each dimension that has an order (the index of the value), a text for each that has none.
    """

    memory: GiB
    length: float = 0.0
    place: Place = ()


def distance(one: Place, other: Place) -> float:
    """L1 over indices; dimensions without order count 0 or 1. (The paper says Euclid; its example is this.)"""
    return sum(abs(a - b) if isinstance(a, int) and isinstance(b, int) else a != b for a, b in zip(one, other, strict=True))


def filled(members: Sequence[Member], order: Sequence[int], room: GiB, most: int) -> Groups:
    """Taken in this order, each group as full as can be."""
    groups: Groups = []
    used = 0.0
    for i in order:
        if not groups or used + members[i].memory > room + SLACK or len(groups[-1]) >= most:
            groups.append([])
            used = 0.0
        groups[-1].append(i)
        used += members[i].memory
    return groups


def at_random(members: Sequence[Member], room: GiB, most: int, seed: Sequence[int]) -> Groups:
    """The paper's "random": any order."""
    return filled(members, [int(i) for i in np.random.default_rng(list(seed)).permutation(len(members))], room, most)


def equal_length(members: Sequence[Member], room: GiB, most: int) -> Groups:
    """The paper's "batch-size": only equals are packed."""
    groups: Groups = []
    for length in sorted({m.length for m in members}):
        groups += filled(members, [i for i, m in enumerate(members) if m.length == length], room, most)
    return groups


def nearest(members: Sequence[Member], room: GiB, most: int, seed: Sequence[int], within: float = inf) -> Groups:
    """The paper's kNN: a member drawn at random takes those nearest to it, as long as they fit; and again.

    `within`: no member is further from the one drawn.
    """
    rng = np.random.default_rng(list(seed))
    left = list(range(len(members)))
    groups: Groups = []
    while left:
        group = [left.pop(int(rng.integers(len(left))))]
        far = {i: distance(members[group[0]].place, members[i].place) for i in left}
        used = members[group[0]].memory
        for i in sorted(left, key=lambda i: (far[i], i)):
            used += members[i].memory
            if used > room + SLACK or len(group) >= most or far[i] > within:
                break
            group.append(i)
        left = [i for i in left if i not in group]
        groups.append(group)
    return groups


def contiguous(members: Sequence[Member], room: GiB, most: int, cost: CostOf) -> Groups:
    """The cheapest division of the members, sorted by length, into consecutive groups: exact, by dynamic programming.

    A member alone in a group is always allowed; between equal costs, the fewer together.
    """
    order = sorted(range(len(members)), key=lambda i: (members[i].length, i))
    best = [0.0] + [inf] * len(order)  # of the first so many
    cut = [0] * (len(order) + 1)
    for end in range(1, len(order) + 1):
        used = 0.0
        for start in range(end - 1, max(-1, end - 1 - most), -1):
            used += members[order[start]].memory
            if used > room + SLACK and start < end - 1:
                break
            total = best[start] + cost(order[start:end])
            if total < best[end] * (1 - SLACK):
                best[end], cut[end] = total, start
    cuts = [len(order)]
    while cuts[-1]:
        cuts.append(cut[cuts[-1]])
    return [order[start:end] for start, end in pairwise(reversed(cuts))]


def cheapest(members: Sequence[Member], room: GiB, most: int, cost: CostOf) -> Groups:
    """Exact for few members; else the best of `contiguous`, the fullest groups and some at random, all `improved`.

    For many members, which have equals enough, `contiguous` alone.
    """
    if len(members) <= EXACT:
        return exact(members, room, most, cost)
    chosen = contiguous(members, room, most, cost)
    if len(members) > SOME:
        return chosen
    price = sum(map(cost, chosen))
    tries = TRIES if len(members) <= FEW else 0
    for start in [chosen, fullest(members, room, most), *(at_random(members, room, most, [k]) for k in range(tries))]:
        groups = improved(start, members, room, most, cost)
        total = sum(map(cost, groups))
        if total < price * (1 - SLACK):  # between equals, the first: it packs only what gains
            chosen, price = groups, total
    return chosen


def fullest(members: Sequence[Member], room: GiB, most: int) -> Groups:
    """The largest first, each to the fullest group that has room: nearly the fewest groups (best fit decreasing)."""
    groups: Groups = []
    used: list[GiB] = []
    for i in sorted(range(len(members)), key=lambda i: (-members[i].memory, i)):
        free = [g for g, group in enumerate(groups) if used[g] + members[i].memory <= room + SLACK and len(group) < most]
        if not free:
            groups.append([])
            used.append(0.0)
            free = [len(groups) - 1]
        into = max(free, key=lambda g: used[g])
        groups[into].append(i)
        used[into] += members[i].memory
    return groups


def improved(groups: Groups, members: Sequence[Member], room: GiB, most: int, cost: CostOf) -> Groups:
    """The groups after every exchange between two of them that makes them cheaper: one moves, or two change places.

    Where memory is short, the cheapest division need not be `contiguous`; this comes nearer to it. For few members.
    """
    now = [list(g) for g in groups]
    price = [cost(g) for g in now]
    changed = True
    while changed:
        changed = False
        for a, b in permutations(range(len(now)), 2):
            for one, other in _exchanges(now[a], now[b]):
                if any(len(g) > most or sum(members[i].memory for i in g) > room + SLACK for g in (one, other)):
                    continue
                prices = [cost(g) if g else 0.0 for g in (one, other)]
                if sum(prices) < (price[a] + price[b]) * (1 - SLACK):
                    now[a], now[b], price[a], price[b], changed = one, other, *prices, True
    return [g for g in now if g]


def _exchanges(one: Sequence[int], other: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    for i in tuple(one):
        rest = [x for x in one if x != i]
        yield rest, [*other, i]
        for j in tuple(other):
            yield [*rest, j], [*(x for x in other if x != j), i]


def exact(members: Sequence[Member], room: GiB, most: int, cost: CostOf) -> Groups:
    """The cheapest division of all, by dynamic programming over sets; takes 3 to the power of the number of members.

    Raises:
        ValueError: more than 14 members.
    """
    if len(members) > 14:
        raise ValueError(f"an exact division of {len(members)} members takes too long; 14 at most: use contiguous")
    price: list[Seconds] = [inf]
    for mask in range(1, 1 << len(members)):
        group = _numbers(mask)
        fits = len(group) == 1 or (len(group) <= most and sum(members[i].memory for i in group) <= room + SLACK)
        price.append(cost(group) if fits else inf)
    best, taken = [0.0], [0]  # of each set: its cheapest division, and the group of its first member there
    for mask in range(1, len(price)):
        first, rest = mask & -mask, mask & (mask - 1)
        part, least, group_of = rest, inf, mask
        while True:  # over all sets of the others that may go with the first
            total = price[first | part] + best[rest ^ part]
            if total < least * (1 - SLACK) or (part == 0 and total <= least * (1 + SLACK)):
                least, group_of = total, first | part
            if not part:
                break
            part = (part - 1) & rest
        best.append(least)
        taken.append(group_of)
    groups, mask = [], len(price) - 1
    while mask:
        groups.append(_numbers(taken[mask]))
        mask ^= taken[mask]
    return groups


def _numbers(mask: int) -> list[int]:
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
