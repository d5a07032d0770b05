"""On which slots: as few nodes a lane as possible, and a lane keeps the slots that it has.

Guan et al., "FLEET", MLSys 2020, section 4.3.2, eq. 4 and algorithms 3-4, misprints put right:
`assign`, for an empty cluster of equal nodes. `place` is for clusters at work: best fit, largest
first.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, permutations
from math import inf

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.width.ask import Widths, ends_by_itself, slots_of
from shoal.profile.all_reduce import is_power_of_two

ORDERS = 1024  # of the lanes that are left in algorithm 3
Held = Mapping[TrialId, tuple[SlotId, ...]]
Seats = dict[TrialId, tuple[SlotId, ...]]
Memory = Mapping[TrialId, GiB]  # that each trial needs


def assign(widths: Sequence[int], per_node: int) -> list[range]:
    """The places 0, 1, … that each width gets, `per_node` to a node (FLEET, algorithm 3).

    First the widths that fill whole nodes, then pairs that fill them together, then the best order
    of the rest by eq. 4, among the first 1024 orders.
    """
    row: list[int] = []
    others: list[int] = []
    for i, width in enumerate(widths):
        if width % per_node == 0:
            row.append(i)
        else:
            others.append(i)

    pairs, rest = _paired(others, widths, per_node)
    row += pairs
    taken = sum(widths[i] for i in row)
    row += _best_order(rest, widths, taken, per_node)
    # The places of each width, if they stand in this order.
    places: dict[int, range] = {}
    begin = 0
    for i in row:
        end = begin + widths[i]
        places[i] = range(begin, end)
        begin = end
    return [places[i] for i in range(len(widths))]


def _best_order(
    numbers: Sequence[int], widths: Sequence[int], at: int, per_node: int
) -> tuple[int, ...]:
    """The order of these widths, laid out from place `at` on, that eq. 4 finds best."""

    def spread_of(order: tuple[int, ...]) -> float:
        """The sum that eq. 4 makes least, for this order."""
        total = 0.0
        begin = at
        for i in order:
            end = begin + widths[i]
            total += _nodes(begin, end, per_node) / widths[i]
            begin = end
        return round(total, 9)

    orders = islice(permutations(numbers), ORDERS)
    return min(orders, key=spread_of)


def _paired(
    numbers: Sequence[int], widths: Sequence[int], per_node: int
) -> tuple[list[int], list[int]]:
    """Pairs of widths that fill nodes together, in a row, and the widths without a partner."""
    pairs: list[int] = []
    waiting: dict[int, list[int]] = {}  # by what they take of their last node
    for i in numbers:
        width = widths[i]
        partners = waiting.get(-width % per_node)
        if partners:
            partner = partners.pop(0)
            pairs += [i, partner]
        else:
            waiting.setdefault(width % per_node, []).append(i)

    paired = set(pairs)
    alone = [i for i in numbers if i not in paired]
    return pairs, alone


def spread(places: Iterable[range], per_node: int) -> float:
    """Eq. 4: the nodes of each lane divided by its slots, summed; less is better."""
    return sum(_nodes(p.start, p.stop, per_node) / len(p) for p in places)


def _nodes(start: int, stop: int, per_node: int) -> int:
    """How many nodes the places from `start` to before `stop` touch."""
    return (stop - 1) // per_node - start // per_node + 1


def place(view: View, wanted: Widths) -> Plan:
    """Each trial alone on so many slots.

    Gangs that have them go on, others keep what they can, and all else stops. Units that end by
    themselves go on. Where memory is short a trial gets fewer slots than wanted, or none.
    """
    gangs = {gang for gang in view.plan.gangs if ends_by_itself(gang)}
    seated = seats(view, wanted, to_share(view), held_by(view, wanted))
    for trial, slots in seated.items():
        gangs.add(alone(view, trial, slots))
    return Plan(frozenset(gangs))


def alone(view: View, trial: TrialId, slots: tuple[SlotId, ...]) -> Gang:
    """The trial alone on these slots: the gang that runs now, if it is that.

    It has no quota: a gang that measured goes on without.
    """
    lanes = (Lane(trial, slots),)
    now = view.running.get(trial)
    if now is not None and now.lanes == lanes and not now.shards:
        return replace(now, quota=None)
    return Gang(lanes, since=view.turn)


def to_share(view: View) -> list[SlotId]:
    """The slots that are in no unit that ends by itself."""
    busy = view.busy
    return [slot for slot in view.slots if not ends_by_itself(busy.get(slot))]


def held_by(view: View, wanted: Iterable[TrialId]) -> Seats:
    """The slots that these trials have now, but for units that end by themselves."""
    present = {}
    for trial in wanted:
        gang = view.running.get(trial)
        if gang is not None and not ends_by_itself(gang):
            present[trial] = slots_of(gang, trial)
    return present


def seats(view: View, wanted: Widths, free: Sequence[SlotId], held: Held) -> Seats:
    """The slots, among the free ones, of each trial that gets some.

    A trial keeps the slots it has, as far as it still wants them. Then those that need most memory
    choose first, and of equal ones those that miss most slots.
    """
    pool = _Pool(view, free)
    seated = _keep(view, wanted, held, pool)
    limited = any(slot.memory < inf for slot in view.slots.values())
    memory = dict.fromkeys(wanted, 0.0)
    if limited:
        memory = {trial: view.profile.cost(trial).memory for trial in wanted}

    for trial in _by_need(wanted, seated, memory):
        roomy = pool
        if limited:
            roomy = pool.with_memory(memory[trial])
        before = seated.get(trial, ())
        need = wanted[trial] - len(before)
        slots = (*before, *roomy.nearest(before, need))
        use = _usable(len(slots), wanted[trial])
        seated[trial] = slots[:use]
        pool.take(slots[len(before) : use])
    # The trials that have at least their fewest slots.
    return {
        trial: slots
        for trial, slots in seated.items()
        if slots and len(slots) >= view.trials[trial].widths[0]
    }


def _by_need(wanted: Widths, seated: Seats, memory: Memory) -> list[TrialId]:
    """The trials that miss slots: those that need most memory first, then most slots."""
    need: dict[TrialId, int] = {}
    for trial, width in wanted.items():
        missing = width - len(seated.get(trial, ()))
        if missing:
            need[trial] = missing
    return sorted(need, key=lambda trial: (-memory[trial], -need[trial]))


def _keep(view: View, wanted: Widths, held: Held, pool: "_Pool") -> Seats:
    """The slots that each trial keeps of its own; they are taken from the pool."""
    seated: Seats = {}
    for trial, lane in held.items():
        width = wanted[trial]
        slots = tuple(slot for slot in lane if slot in pool)
        if len(slots) > width:
            slots = _fewest_nodes(view, slots, width)
        seated[trial] = slots
        pool.take(slots)
    return seated


class _Pool:
    """Free slots by node, and nodes by how many free slots they have.

    So the best node is found without looking at all of them.
    """

    def __init__(self, view: View, free: Sequence[SlotId]) -> None:
        self.view = view
        # Dicts without values are sets that keep their order.
        self.nodes: dict[str, dict[SlotId, None]] = {}
        self.sizes: dict[int, dict[str, None]] = {}
        for slot in free:
            self.nodes.setdefault(self._node(slot), {})[slot] = None
        for node, slots in self.nodes.items():
            self._note(node, len(slots))

    def _node(self, slot: SlotId) -> str:
        """The node of this slot."""
        return self.view.slots[slot].node

    def __contains__(self, slot: SlotId) -> bool:
        return slot in self.nodes.get(self._node(slot), ())

    def __iter__(self) -> Iterator[SlotId]:
        return (slot for slots in self.nodes.values() for slot in slots)

    def with_memory(self, memory: GiB) -> "_Pool":
        """The free slots that have this memory."""
        slots = self.view.slots
        return _Pool(self.view, [slot for slot in self if slots[slot].memory >= memory])

    def take(self, slots: Iterable[SlotId]) -> None:
        """Remove these slots."""
        for slot in slots:
            node = self._node(slot)
            free = self.nodes[node]
            # Note that the node, with so many free slots, has one less.
            size = len(free)
            alike = self.sizes[size]
            del alike[node]
            if not alike:
                del self.sizes[size]
            if size > 1:
                self._note(node, size - 1)
            del free[slot]

    def _note(self, node: str, size: int) -> None:
        """Note that the node has so many free slots."""
        self.sizes.setdefault(size, {})[node] = None

    def nearest(self, lane: Sequence[SlotId], need: int) -> list[SlotId]:
        """So many free slots for a lane that has some, or as many as there are.

        First at nodes where the trial is. Then at a node that just holds the rest; else at the
        emptiest node, and so on.
        """
        # The nodes of these slots that have free ones, those with the most free ones first.
        nodes = dict.fromkeys(map(self._node, lane))
        with_free = [node for node in nodes if self.nodes.get(node)]
        home = sorted(with_free, key=lambda node: -len(self.nodes[node]))
        slots: list[SlotId] = []
        used: set[str] = set()
        while len(slots) < need:
            more = need - len(slots)
            node: str | None
            if home:
                node = home.pop(0)
            else:
                node = self._best(more, used)
            if node is None:
                break
            used.add(node)
            slots += islice(self.nodes[node], more)
        return slots

    def _best(self, need: int, used: set[str]) -> str | None:
        """The unused node that just holds so many slots; else the one with the most."""
        sizes = sorted(self.sizes)
        enough = [size for size in sizes if size >= need]
        too_few = [size for size in reversed(sizes) if size < need]
        for size in enough + too_few:
            for node in self.sizes[size]:
                if node not in used:
                    return node
        return None


def _fewest_nodes(view: View, slots: tuple[SlotId, ...], width: int) -> tuple[SlotId, ...]:
    """So many of these slots, those on the nodes where most of them are."""
    many = Counter(view.slots[slot].node for slot in slots)

    def crowded_first(slot: SlotId) -> tuple[int, str]:
        node = view.slots[slot].node
        return -many[node], node

    keep = set(sorted(slots, key=crowded_first)[:width])
    return tuple(slot for slot in slots if slot in keep)


def _usable(count: int, wanted: int) -> int:
    """How many of the slots to use: a power of two, where a power of two was wanted."""
    if 0 < count < wanted and is_power_of_two(wanted):
        return 1 << (count.bit_length() - 1)
    return count
