"""Which trials to pack together on one slot: the paper's rules. `division` has better ones.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 5.3. Members are numbered; a grouping is a list of lists of their numbers,
each fitting the memory.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from shoal.core.cluster import GiB
from shoal.core.profile import Cost, MemoryTogether

Place = tuple[int | str, ...]
Group = list[int]
Groups = list[Group]
SLACK = 1e-9  # what counts as equal: GiB, or a part of a price


@dataclass(frozen=True, slots=True)
class Member:
    """A trial to be packed.

    `length`: what packs are sorted by (steps to go, or minus the batch size). `place`: where its
    configuration lies. It has a number for each dimension that has an order (the index of the
    value), a text for each that has none.
    """

    cost: Cost
    length: float = 0.0
    place: Place = ()


Members = Sequence[Member]


def distance(one: Place, other: Place) -> float:
    """L1 over indices; dimensions without order count 0 or 1.

    The paper says Euclid, but its example is this.
    """
    return sum(_apart(a, b) for a, b in zip(one, other, strict=True))


def _apart(a: int | str, b: int | str) -> int:
    """How far two places are apart in one dimension."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a - b)
    return int(a != b)


def memory_of(members: Members, group: Iterable[int]) -> GiB:
    """The memory that these members need together."""
    return MemoryTogether(members[i].cost for i in group).now


def fit_in(members: Members, group: Iterable[int], room: GiB) -> bool:
    """Whether these members fit this memory together."""
    return room == inf or memory_of(members, group) <= room + SLACK


def filled(members: Members, order: Iterable[int], room: GiB, most: int) -> Groups:
    """Taken in this order, each group as full as can be."""
    groups: Groups = []
    used = MemoryTogether()
    for i in order:
        cost = members[i].cost
        over = used.with_one(cost) > room + SLACK
        if not groups or over or len(groups[-1]) >= most:
            groups.append([])
            used = MemoryTogether()
        used.add(cost)
        groups[-1].append(i)
    return groups


def at_random(members: Members, room: GiB, most: int, seed: Sequence[int]) -> Groups:
    """The paper's "random": any order."""
    rng = np.random.default_rng(list(seed))
    order = rng.permutation(len(members)).tolist()
    return filled(members, order, room, most)


def equal_length(members: Members, room: GiB, most: int) -> Groups:
    """The paper's "batch-size": only equals are packed."""
    groups: Groups = []
    for equals in _by_length(members):
        groups += filled(members, equals, room, most)
    return groups


def _by_length(members: Members) -> Groups:
    """The members of each length, the shortest first."""
    found: dict[float, Group] = defaultdict(list)
    for i, member in enumerate(members):
        found[member.length].append(i)
    return [found[length] for length in sorted(found)]


def nearest(
    members: Members,
    room: GiB,
    most: int,
    seed: Sequence[int],
    within: float = inf,
) -> Groups:
    """The paper's kNN: a member drawn at random takes those nearest to it, as long as they fit.

    Of the rest another is drawn, until none is left. `within`: no member is further from the one
    drawn.
    """
    rng = np.random.default_rng(list(seed))
    left = list(range(len(members)))
    groups: Groups = []
    while left:
        drawn = left.pop(int(rng.integers(len(left))))
        near = _by_distance(members, drawn, left, within)
        group = _first_that_fit(members, [drawn, *near], room, most)
        groups.append(group)
        left = [i for i in left if i not in group]
    return groups


def _by_distance(members: Members, drawn: int, others: Group, within: float) -> Group:
    """The others no further than `within` from the member drawn, the nearest first."""
    place = members[drawn].place
    far = {i: distance(place, members[i].place) for i in others}
    near = [i for i in others if far[i] <= within]
    return sorted(near, key=lambda i: (far[i], i))


def _first_that_fit(members: Members, order: Group, room: GiB, most: int) -> Group:
    """The members in this order as far as they fit together; the first one always."""
    used = MemoryTogether([members[order[0]].cost])
    for count in range(1, len(order)):
        if used.add(members[order[count]].cost) > room + SLACK or count >= most:
            return order[:count]
    return order
