"""The cheapest division of trials into packs: exact for few, near it for some, by length for many.

Ours. As in `grouping` members are numbered, and each group fits the memory. What a group costs is
asked of a function: the seconds that its slot is at work.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, permutations
from math import inf

from shoal.core.cluster import GiB
from shoal.core.profile import MemoryTogether
from shoal.core.trial import Seconds
from shoal.policy.pack.grouping import (
    SLACK,
    Group,
    Groups,
    Members,
    at_random,
    fit_in,
)

CostOf = Callable[[Sequence[int]], Seconds]  # of a group, by its members' numbers
Pair = tuple[Group, Group]

EXACT = 11  # members, up to which a division is exact
FEW = 16  # members, up to which one is tried from many starts
SOME = 40  # members, up to which one is improved at all
MOST_EXACT = 14  # members: 3 to this power sets are looked at
TRIES = 24  # starts at random


def cheapest(members: Members, room: GiB, most: int, cost: CostOf) -> Groups:
    """Exact for few members; else the best of several divisions, each `improved`.

    They are `contiguous`, the `fullest` groups and, for few members, some at random. For many
    members, which have equals enough, `contiguous` alone.
    """
    if len(members) <= EXACT:
        return exact(members, room, most, cost)
    by_length = contiguous(members, room, most, cost)
    if len(members) > SOME:
        return by_length
    chosen = by_length
    price = sum(map(cost, chosen))
    for start in (by_length, *_starts(members, room, most)):
        groups = improved(start, members, room, most, cost)
        total = sum(map(cost, groups))
        # Of equals the first is kept: it packs only what gains.
        if total < price * (1 - SLACK):
            chosen = groups
            price = total
    return chosen


def _starts(members: Members, room: GiB, most: int) -> Iterator[Groups]:
    """Divisions to be improved: the fullest groups, and for few members some at random."""
    yield fullest(members, room, most)
    if len(members) <= FEW:
        for seed in range(TRIES):
            yield at_random(members, room, most, [seed])


def contiguous(members: Members, room: GiB, most: int, cost: CostOf) -> Groups:
    """The cheapest division into groups that are consecutive when members are sorted by length.

    It is exact, by dynamic programming. A member alone in a group is always allowed; of equal costs
    the fewer together are chosen.
    """
    order = sorted(range(len(members)), key=lambda i: (members[i].length, i))
    best = [0.0]  # best[k]: what the first k members cost
    cut = [0]  # cut[k]: where the last group of the first k begins
    for end in range(1, len(order) + 1):
        least = inf
        begin = 0
        for start in _begins(members, order, end, room, most):
            total = best[start] + cost(order[start:end])
            if total < least * (1 - SLACK):
                least = total
                begin = start
        best.append(least)
        cut.append(begin)
    return _consecutive(order, cut)


def _begins(members: Members, order: Group, end: int, room: GiB, most: int) -> Iterator[int]:
    """Where a group that ends before `end` may begin: the smallest group first."""
    used = MemoryTogether()
    for start in range(end - 1, max(-1, end - 1 - most), -1):
        needs = used.add(members[order[start]].cost)
        if needs > room + SLACK and start < end - 1:
            return
        yield start


def _consecutive(order: Group, cut: Sequence[int]) -> Groups:
    """The groups, read back from the last one's beginning to the first one's."""
    cuts = [len(order)]
    while cuts[-1]:
        cuts.append(cut[cuts[-1]])
    return [order[start:end] for start, end in pairwise(reversed(cuts))]


def fullest(members: Members, room: GiB, most: int) -> Groups:
    """The largest first, each to the fullest group that has room (best fit decreasing).

    This makes nearly the fewest groups.
    """
    groups: Groups = []
    used: list[MemoryTogether] = []
    for i in sorted(range(len(members)), key=lambda i: (-members[i].cost.memory, i)):
        cost = members[i].cost
        free = [g for g, group in enumerate(groups) if len(group) < most]
        free = [g for g in free if used[g].with_one(cost) <= room + SLACK]
        if free:
            into = max(free, key=lambda g: used[g].now)
            groups[into].append(i)
            used[into].add(cost)
        else:
            groups.append([i])
            used.append(MemoryTogether([cost]))
    return groups


# -- better by exchanges


def improved(groups: Groups, members: Members, room: GiB, most: int, cost: CostOf) -> Groups:
    """The groups after every exchange between two of them that makes them cheaper.

    In an exchange one member moves, or two change places. Where memory is short, the cheapest
    division need not be `contiguous`; this comes nearer to it. For few members.
    """

    def fit(pair: Pair) -> bool:
        """Whether both groups fit."""
        if max(map(len, pair)) > most:
            return False
        return all(fit_in(members, group, room) for group in pair)

    now = [list(group) for group in groups]
    price = [cost(group) for group in now]
    changed = True
    while changed:
        changed = False
        for a, b in permutations(range(len(now)), 2):
            allowed = filter(fit, _exchanges(now[a], now[b]))
            best = _cheapest_pair(allowed, price[a] + price[b], cost)
            if best is not None:
                (now[a], now[b]), (price[a], price[b]) = best
                changed = True
    return [group for group in now if group]


def _cheapest_pair(
    pairs: Iterable[Pair], price: Seconds, cost: CostOf
) -> tuple[Pair, tuple[Seconds, Seconds]] | None:
    """The cheapest of the pairs, and what its groups cost; None if none is below this price."""
    best = None
    for one, other in pairs:
        prices = _price(one, cost), _price(other, cost)
        if sum(prices) < price * (1 - SLACK):
            best = (one, other), prices
            price = sum(prices)
    return best


def _price(group: Group, cost: CostOf) -> Seconds:
    """What the group costs; an empty one nothing."""
    if not group:
        return 0.0
    return cost(group)


def _exchanges(one: Group, other: Group) -> Iterator[Pair]:
    """The two groups after an exchange.

    One member of the first moves, or changes places with one of the second.
    """
    for i in one:
        rest = [x for x in one if x != i]
        yield rest, [*other, i]
        for j in other:
            others = [x for x in other if x != j]
            yield [*rest, j], [*others, i]


# -- exact


def exact(members: Members, room: GiB, most: int, cost: CostOf) -> Groups:
    """The cheapest division of all, by dynamic programming over sets.

    It takes 3 to the power of the number of members. A set is a number: bit i stands for member i.

    Raises:
        ValueError: more than 14 members.
    """
    _check_few(len(members))
    price = _prices(members, room, most, cost)
    return _divided(_first_groups(price))


def _check_few(members: int) -> None:
    """Raise ValueError where an exact division of so many members takes too long."""
    if members > MOST_EXACT:
        raise ValueError(
            f"an exact division of {members} members takes too long; "
            f"{MOST_EXACT} at most: use contiguous"
        )


def _first_groups(price: Sequence[Seconds]) -> list[int]:
    """Of each set, the group of its first member in the set's cheapest division."""
    best = [0.0]  # of each set: what its cheapest division costs,
    taken = [0]  # and the group of its first member there
    for members_left in range(1, len(price)):
        least, group = _cheapest_with_first(members_left, price, best)
        best.append(least)
        taken.append(group)
    return taken


def _divided(taken: Sequence[int]) -> Groups:
    """The groups of the whole set, each that of the first member that is left."""
    groups = []
    left = len(taken) - 1
    while left:
        groups.append(_numbers(taken[left]))
        left ^= taken[left]
    return groups


def _prices(members: Members, room: GiB, most: int, cost: CostOf) -> list[Seconds]:
    """What each set costs as one group; infinite where it does not fit."""
    price = [inf]
    for mask in range(1, 1 << len(members)):
        group = _numbers(mask)
        fits = _may_be_one(members, group, room, most)
        price.append(cost(group) if fits else inf)
    return price


def _may_be_one(members: Members, group: Group, room: GiB, most: int) -> bool:
    """Whether these members may be one group; a member alone always may."""
    if len(group) == 1:
        return True
    return len(group) <= most and fit_in(members, group, room)


def _cheapest_with_first(
    mask: int, price: Sequence[Seconds], best: Sequence[Seconds]
) -> tuple[Seconds, int]:
    """What the set costs when divided best, and the group of its first member then.

    Goes over all sets of the others that may be with the first, ending with none. Of equals the
    group of the first alone is chosen.
    """
    first = mask & -mask
    rest = mask ^ first
    part = rest
    least = inf
    group = mask
    while part:
        total = price[first | part] + best[rest ^ part]
        if total < least * (1 - SLACK):
            least = total
            group = first | part
        part = (part - 1) & rest
    alone = price[first] + best[rest]
    if alone <= least * (1 + SLACK):
        return alone, first
    return least, group


def _numbers(mask: int) -> Group:
    """The members of the set."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]
