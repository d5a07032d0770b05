"""On which slots: as few nodes a lane as possible, and what is held is kept.

Guan et al., "FLEET", MLSys 2020, section 4.3.2, eq. 4 and algorithms 3-4, misprints put right: `assign`,
for an empty cluster of equal nodes. `place` is for clusters at work: best fit, largest first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, permutations
from math import inf

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.ask import Widths
from shoal.profile.ring import is_power_of_two

ORDERS = 1024  # of the lanes that are left in algorithm 3
Held = Mapping[TrialId, tuple[SlotId, ...]]


def assign(widths: Sequence[int], per_node: int) -> list[range]:
    """The places 0, 1, … that each width gets, `per_node` to a node (algorithm 3).

    First the widths that fill whole nodes, then pairs that do together, then the best order of the rest by eq. 4 among
    the first 1024.
    """
    given: dict[int, range] = {}
    at = 0

    def take(i: int) -> None:
        nonlocal at
        given[i] = range(at, at + widths[i])
        at += widths[i]

    for i, width in enumerate(widths):
        if width % per_node == 0:
            take(i)
    waiting: dict[int, list[int]] = {}  # by what they leave over of a node
    for i in [i for i in range(len(widths)) if i not in given]:
        partners = waiting.get(-widths[i] % per_node)
        if partners:
            take(i)
            take(partners.pop(0))
        else:
            waiting.setdefault(widths[i] % per_node, []).append(i)
    rest = [i for i in range(len(widths)) if i not in given]
    orders = islice(permutations(rest), ORDERS)
    for i in min(orders, key=lambda order: _spread_of(order, widths, at, per_node)):
        take(i)
    return [given[i] for i in range(len(widths))]


def spread(places: Iterable[range], per_node: int) -> float:
    """Eq. 4: the nodes of each lane divided by its slots, summed; less is better."""
    return sum((p[-1] // per_node - p[0] // per_node + 1) / len(p) for p in places)


def _spread_of(order: Sequence[int], widths: Sequence[int], at: int, per_node: int) -> float:
    total = 0.0
    for i in order:
        end = at + widths[i]
        total += ((end - 1) // per_node - at // per_node + 1) / widths[i]
        at = end
    return round(total, 9)


def place(view: View, wanted: Widths) -> Plan:
    """Each trial alone on so many slots; gangs that have them go on, others keep what they can, and all else stops.

    Units that end by themselves go on. Where memory is short a trial gets fewer slots than wanted, or none.
    """
    locked = [gang for gang in view.plan.gangs if gang.quota is not None]
    busy = view.busy.keys()
    free = [slot for slot in view.slots if slot not in busy or view.busy[slot].quota is None]
    gangs = []
    for trial, slots in seats(view, wanted, free, _held(view, wanted)).items():
        now = view.running.get(trial)
        if now is not None and now.lanes == (Lane(trial, slots),) and not now.shards:
            gangs.append(now)
        else:
            gangs.append(Gang((Lane(trial, slots),), since=view.turn))
    return Plan(frozenset((*locked, *gangs)))


def _held(view: View, wanted: Widths) -> dict[TrialId, tuple[SlotId, ...]]:
    held = {}
    for trial in wanted:
        gang = view.running.get(trial)
        if gang is not None and gang.quota is None:
            held[trial] = next(lane.slots for lane in gang.lanes if lane.trial == trial)
    return held


def seats(view: View, wanted: Widths, free: Sequence[SlotId], held: Held) -> dict[TrialId, tuple[SlotId, ...]]:
    """The slots of each trial that gets some, among these. What it holds it keeps, as far as it is still wanted."""
    pool = _Pool(view, free)
    found: dict[TrialId, tuple[SlotId, ...]] = {}
    for trial, slots in held.items():
        mine = tuple(slot for slot in slots if slot in pool)
        found[trial] = mine if len(mine) <= wanted[trial] else _fewest_nodes(view, mine, wanted[trial])
        pool.take(found[trial])
    limited = any(slot.memory < inf for slot in view.slots.values())
    memory = {t: view.profile.cost(t).memory if limited else 0.0 for t in wanted}
    need = {t: width - len(found.get(t, ())) for t, width in wanted.items()}
    for trial in sorted((t for t in need if need[t]), key=lambda t: (-memory[t], -need[t])):
        roomy = _Pool(view, [s for s in pool if view.slots[s].memory >= memory[trial]]) if limited else pool
        before = found.get(trial, ())
        got = (*before, *roomy.nearest(before, need[trial]))
        found[trial] = got[: _usable(len(got), wanted[trial])]
        pool.take(found[trial][len(before) :])
    return {t: slots for t, slots in found.items() if slots and len(slots) >= view.trials[t].widths[0]}


class _Pool:
    """Free slots by node, and nodes by how many they have, so that the best one is found without looking at all."""

    def __init__(self, view: View, free: Sequence[SlotId]) -> None:
        self.view = view
        self.nodes: dict[str, dict[SlotId, None]] = {}  # ordered sets, as `sizes` are
        for slot in free:
            self.nodes.setdefault(view.slots[slot].node, {})[slot] = None
        self.sizes: dict[int, dict[str, None]] = {}
        for node, slots in self.nodes.items():
            self.sizes.setdefault(len(slots), {})[node] = None

    def __contains__(self, slot: SlotId) -> bool:
        return slot in self.nodes.get(self.view.slots[slot].node, ())

    def __iter__(self) -> Iterator[SlotId]:
        return (slot for slots in self.nodes.values() for slot in slots)

    def take(self, slots: Iterable[SlotId]) -> None:
        for slot in slots:
            node = self.view.slots[slot].node
            mine = self.nodes[node]
            self._resize(node, len(mine), len(mine) - 1)
            del mine[slot]

    def _resize(self, node: str, old: int, new: int) -> None:
        del self.sizes[old][node]
        if not self.sizes[old]:
            del self.sizes[old]
        if new:
            self.sizes.setdefault(new, {})[node] = None

    def nearest(self, held: Sequence[SlotId], need: int) -> list[SlotId]:
        """So many more: at nodes where it is; then a node that just holds the rest; else the emptiest one, and again."""
        home = dict.fromkeys(self.view.slots[slot].node for slot in held)
        order = sorted((n for n in home if self.nodes.get(n)), key=lambda n: -len(self.nodes[n]))
        got: list[SlotId] = []
        used: set[str] = set()
        while len(got) < need:
            more = need - len(got)
            node = order.pop(0) if order else self._best(more, used)
            if node is None:
                break
            used.add(node)
            got += islice(self.nodes[node], more)
        return got

    def _best(self, need: int, used: set[str]) -> str | None:
        sizes = sorted(self.sizes)
        for size in (*(s for s in sizes if s >= need), *(s for s in reversed(sizes) if s < need)):
            node = next((n for n in self.sizes[size] if n not in used), None)
            if node is not None:
                return node
        return None


def _fewest_nodes(view: View, slots: tuple[SlotId, ...], width: int) -> tuple[SlotId, ...]:
    """So many of them, on the nodes where most of them are."""
    many: dict[str, int] = {}
    for slot in slots:
        many[view.slots[slot].node] = many.get(view.slots[slot].node, 0) + 1
    keep = set(sorted(slots, key=lambda s: (-many[view.slots[s].node], view.slots[s].node))[:width])
    return tuple(s for s in slots if s in keep)


def _usable(got: int, wanted: int) -> int:
    """Where a power of two was wanted and is not to be had, the one below."""
    return 1 << (got.bit_length() - 1) if 0 < got < wanted and is_power_of_two(wanted) else got
