"""Which trials to pack together on one slot: the paper's rules; `cheapest` is better.

Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
Tuning", 2020, section 5.3. Members are numbered; a grouping is a list of lists of their numbers,
each fitting the memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import inf

import numpy as np

from shoal.core.cluster import GiB
from shoal.core.profile import Cost, MemoryTogether
from shoal.core.trial import Seconds, Value

Place = tuple[int | str, ...]
Group = list[int]
Groups = list[Group]
SLACK = 1e-9  # what counts as equal: GiB, or a part of a price
CostOf = Callable[[Sequence[int]], Seconds]  # of a group, by its members' numbers
Pair = tuple[Group, Group]
EXACT = 11  # members, up to which a division is exact
FEW = 16  # members, up to which one is tried from many starts
SOME = 40  # members, up to which one is improved at all
MOST_EXACT = 14  # members: 3 to this power sets are looked at
TRIES = 24  # starts at random
Levels = Mapping[str, Sequence[Value]]  # the values that a name may have, in order
Config = Mapping[str, Value]
Ranks = Mapping[Value, int]


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
    """The members in groups, taken in this order, each group as full as can be."""
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
    groups: dict[float, Group] = defaultdict(list)
    for i, member in enumerate(members):
        groups[member.length].append(i)
    return [groups[length] for length in sorted(groups)]


def nearest(
    members: Members, room: GiB, most: int, seed: Sequence[int], within: float = inf
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
    """The other members no further than `within` from the member drawn, the nearest first."""
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


# -- the cheapest division
#
# Ours: exact for few members, near it for some, by length for many. Members are numbered, and each
# group fits the memory. What a group costs is asked of a function: the seconds that its slot is at
# work.


def cheapest(members: Members, room: GiB, most: int, cost: CostOf) -> Groups:
    """The cheapest division: exact for few members, else the best of several, each `improved`.

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
    # The groups, read back from the last one's beginning to the first one's.
    cuts = [len(order)]
    while cuts[-1]:
        cuts.append(cut[cuts[-1]])
    return [order[start:end] for start, end in pairwise(reversed(cuts))]


def _begins(members: Members, order: Group, end: int, room: GiB, most: int) -> Iterator[int]:
    """Where a group that ends before `end` may begin: the smallest group first."""
    used = MemoryTogether()
    for start in range(end - 1, max(-1, end - 1 - most), -1):
        needs = used.add(members[order[start]].cost)
        if needs > room + SLACK and start < end - 1:
            return
        yield start


def fullest(members: Members, room: GiB, most: int) -> Groups:
    """Best fit decreasing: the largest members first, each to the fullest group that has room.

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
        """Whether both groups have no more than `most` members, and fit the memory."""
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
    """The cost of the group; an empty one costs nothing."""
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
    best = [0.0]  # of each set: what its cheapest division costs,
    taken = [0]  # and the group of its first member there
    for members_left in range(1, len(price)):
        least, group = _cheapest_with_first(members_left, price, best)
        best.append(least)
        taken.append(group)
    # The groups of the whole set, each that of the first member that is left.
    groups = []
    left = len(taken) - 1
    while left:
        groups.append(_numbers(taken[left]))
        left ^= taken[left]
    return groups


def _check_few(members: int) -> None:
    """Raise ValueError where an exact division of so many members takes too long."""
    if members > MOST_EXACT:
        raise ValueError(
            f"an exact division of {members} members takes too long; "
            f"{MOST_EXACT} at most: use contiguous"
        )


def _prices(members: Members, room: GiB, most: int, cost: CostOf) -> list[Seconds]:
    """The cost of each set as one group; infinite where it does not fit."""
    price = [inf]
    for mask in range(1, 1 << len(members)):
        group = _numbers(mask)
        fits = len(group) <= most and fit_in(members, group, room)
        price.append(cost(group) if fits or len(group) == 1 else inf)
    return price


def _cheapest_with_first(
    mask: int, price: Sequence[Seconds], best: Sequence[Seconds]
) -> tuple[Seconds, int]:
    """The cost of the set when divided best, and the group of its first member then.

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


# -- places, for nearness
#
# Where configurations lie among each other, for the paper's kNN grouping.
# Liu et al., "Understanding and Optimizing Packed Neural Network Training for Hyper-Parameter
# Tuning", 2020, section 5.3: numbers lie at the index of their level in the search space, texts
# are equal or not. From [batch size 20, SGD, rate 0.01, ReLu] to [40, Adagrad, 0.01, ReLu] it is
# 4 + 1, where batch sizes come in steps of 5.


def places(configs: Sequence[Config], levels: Levels, others: Iterable[Config]) -> list[Place]:
    """The place of each configuration, a dimension for each name.

    A name without `levels` has as levels the numbers that it has in `others`.
    """
    names = sorted({name for config in configs for name in config})
    configs_known = [*configs, *others]
    index = {}
    for name in names:
        if name in levels:
            index[name] = _index(levels[name])
        else:
            index[name] = _index(config[name] for config in configs_known if name in config)
    return [
        tuple(_at(ranks, config.get(name)) for name, ranks in index.items()) for config in configs
    ]


def _index(levels: Iterable[Value]) -> Ranks:
    """The rank of each number among the levels."""
    numbers = sorted({level for level in levels if _is_number(level)})  # type: ignore[type-var]
    return {number: rank for rank, number in enumerate(numbers)}


def _at(index: Ranks, value: Value) -> int | str:
    """The rank of a number; a text of anything without order, and of a number that is no level."""
    if _is_number(value) and value in index:
        return index[value]
    return repr(value)


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
