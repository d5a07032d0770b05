"""From how many slots to which: what shrinks releases, what grows takes; nothing migrates."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp

import numpy as np
from numpy.typing import NDArray

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.trial import TrialId

Stock = NDArray[np.int64]  # slots by class: nodes at one rack that joined together
Near = NDArray[np.float64]  # log(1 - p) of two slots, by their classes
Table = Sequence[tuple[float, float, float]]

ROW = 37  # racks in a row of racks, where names say row and rack
NODES = 16  # nodes in a rack, where names have one number
FIRST = 1e-9  # what makes a class the first choice among those that are equal
_NAMED = re.compile(r"^(?P<row>\D*)(?P<rack>\d+)\D+\d+")
_NUMBERED = re.compile(r"(\d+)\D*$")


@lru_cache(maxsize=65536)
def rack_of(node: str) -> float:
    """Where the node's rack stands, counted in racks along the rows, read from its name.

    "c05n06" is rack 5 of row c; "nid00123" (one number) stands in rack 123 / 16; a name without
    numbers in rack 0.
    """
    host = node.split(".", 1)[0]
    named = _NAMED.match(host)
    if named:
        return float(int(named["rack"]) + ROW * _row_number(named["row"]))
    # The node's name ends in one number, or has none.
    numbered = _NUMBERED.search(host)
    if numbered:
        return float(int(numbered[1]) // NODES)
    return 0.0


def _row_number(text: str) -> int:
    """The number of a row of racks: 1 for a, 2 for b, and so on, by the last letter; 0 without."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    if not letters:
        return 0
    return ord(letters[-1]) - ord("a") + 1


@dataclass(frozen=True, slots=True)
class Spatial:
    """How likely two nodes are to leave together.

    Args:
        chance: at one rack, 0 to 1; it falls by e every `reach` racks.
        reach: racks.
        table: measured instead, as rising (from so many racks on, the chance if they joined apart,
            the chance if they joined together).
        position: a function of a node's name: where its rack stands, in racks. By default it is
            read from the numbers in the name.

    Raises:
        ValueError: a chance not within 0 … 1, a reach not positive, or a table whose distances do
            not rise from 0.
    """

    chance: float = 0.6
    reach: float = 6.0
    table: Table | None = None
    position: Callable[[str], float] = rack_of

    def __post_init__(self) -> None:
        if self.table is not None:
            table = tuple(map(tuple, self.table))  # of lists, if from a journal
            object.__setattr__(self, "table", table)
        chances = [p for _, *row in self._rows for p in row]
        possible = all(0.0 <= p < 1.0 for p in chances)
        if not possible or not self.reach > 0:
            raise ValueError(
                f"chances must be within 0 <= p < 1 and reach > 0; got {chances!r}, {self.reach!r}"
            )
        starts = [row[0] for row in self._rows]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"a table's distances must rise from 0; got {starts!r}")

    @property
    def _rows(self) -> Table:
        """The table's rows; without a table one that is like the formula at a rack."""
        if self.table is None:
            return ((0.0, self.chance, self.chance),)
        return self.table

    @property
    def by_cohort(self) -> bool:
        """Whether it matters which nodes joined together."""
        return self.table is not None

    def near(self, racks: NDArray[np.float64], cohorts: Stock) -> Near:
        """log(1 - p) for each pair of classes at these racks, joined at these times."""
        far = np.abs(racks[:, None] - racks)
        if self.table is None:
            chance = self.chance * np.exp(-far / self.reach)
        else:
            starts, apart, together = np.array(self.table).T
            step = np.searchsorted(starts, far, side="right") - 1
            same = cohorts[:, None] == cohorts
            chance = np.where(same, together[step], apart[step])
        return np.asarray(np.log1p(-chance))


def take(slots: Stock, stock: Stock, need: int, near: Near) -> Stock:
    """How many of each class of free slots a trial should take, `need` in all.

    One by one the slot with the least sum of `near` over the trial's slots; a trial that has none
    yet begins where most free slots are near. A slot makes its own class the likeliest next, so
    that classes are taken whole.

    Args:
        slots: the trial's slots, by class.
        stock: the free slots, by class.
        need: how many to take.
        near: log(1 - p) of two slots, by their classes.
    """
    score = _sums(near, slots)
    if need > 0 and not slots.any():
        score[_crowded(near, stock)] -= FIRST
    left = stock.copy()
    while need > 0:
        best = int(np.where(left > 0, score, np.inf).argmin())
        many = min(need, int(left[best]))
        left[best] -= many
        need -= many
        score += many * near[best]
    return stock - left


def _sums(near: Near, slots: Stock) -> Near:
    """The sum of log(1 - p) over these slots, for each class."""
    sums: Near = near @ slots.astype(float)
    return sums


def _crowded(near: Near, stock: Stock) -> int:
    """The class in stock that has most of the stock near it."""
    crowd = _sums(near, stock)
    return int(np.where(stock > 0, crowd, np.inf).argmin())


def release(slots: Stock, excess: int, near: Near) -> Stock:
    """How many of each class of its slots a trial should release, `excess` in all.

    The slots with the largest sum over the trial's other slots go first.
    """
    score = _sums(near, slots) - np.diag(near)
    left = slots.copy()
    while excess > 0:
        worst = int(np.where(left > 0, score, -np.inf).argmax())
        many = min(excess, int(left[worst]))
        left[worst] -= many
        excess -= many
        score -= many * near[worst]
    return slots - left


def exposure(slots: Stock, stock: Stock, need: int, near: Near) -> float:
    """Expected interruptions that the `need` best free slots would add.

    Each slot counts against the trial's present slots, not against the others that it takes.
    """
    score = _sums(near, slots)
    total = 0.0
    for i in np.argsort(score, kind="stable"):
        many = min(need, int(stock[i]))
        total += many * exp(score[i])
        need -= many
        if need == 0:
            break
    return total


Moved = dict[TrialId, tuple[SlotId, ...]]
Known = Mapping[SlotId, Slot]
Slots = Sequence[SlotId]
LaneSlots = tuple[SlotId, ...]  # the slots of a trial
# What a trial makes within the horizon on these slots, less what it costs to change to them.
Makes = Callable[[TrialId, LaneSlots], float]


# -- from how many slots to which


@dataclass(frozen=True, slots=True)
class Claim:
    """A trial, the slots it holds, and how many it should have.

    Trials of one `kind` gain alike from each count. `fewest`: slots that it needs to run.
    """

    trial: TrialId
    held: LaneSlots
    count: int
    need: GiB = 0.0
    fewest: int = 1
    kind: int = 0

    @property
    def more(self) -> int:
        """How many slots it should take; below 0, how many it should release."""
        return self.count - len(self.held)

    @property
    def stays(self) -> bool:
        """Whether the trial runs, and neither grows nor shrinks."""
        return bool(self.held) and self.more == 0


Claims = Sequence[Claim]


def by_index(claims: Claims, free: Slots, slots: Known) -> Moved:
    """Slots by the order in which they joined: the newest go first, free ones as they stand.

    Where ends are known, the slots that leave first go first.

    The neediest trials choose first. Where too few slots are big enough, a trial takes those, or
    waits if they are fewer than it can run on.
    """
    moved: Moved = {}
    pool = list(free)
    for claim in _shrinking(claims):
        rest = _longest(claim, slots)
        moved[claim.trial] = rest
        pool += [slot for slot in claim.held if slot not in rest]

    for claim in sorted(_growing(claims), key=lambda c: -c.need):
        new = _taken(claim, pool, slots)
        pool = _without(pool, new)
        if new:
            moved[claim.trial] = (*claim.held, *new)
    return moved


def _longest(claim: Claim, slots: Known) -> LaneSlots:
    """The slots that a shrinking trial keeps, in their order."""
    order = sorted(claim.held, key=lambda slot: -slots[slot].until)
    longest = set(order[: claim.count])
    return tuple(slot for slot in claim.held if slot in longest)


def _growing(claims: Claims) -> Claims:
    """The claims of trials that should have more slots than they hold."""
    return [claim for claim in claims if claim.more > 0]


def _shrinking(claims: Claims) -> Claims:
    """The claims of trials that should have fewer slots than they hold."""
    return [claim for claim in claims if claim.more < 0]


def _taken(claim: Claim, pool: Slots, slots: Known) -> Slots:
    """The first slots of the pool with memory for the trial.

    No slots, if it could not run on what it has then.
    """
    if claim.need == 0.0:
        return pool[: claim.more]
    roomy = [slot for slot in pool if slots[slot].memory >= claim.need][: claim.more]
    if len(claim.held) + len(roomy) < claim.fewest:
        return []
    return roomy


def _without(pool: list[SlotId], taken: Slots) -> list[SlotId]:
    """The slots of the pool that are not taken; quick where those are its first ones."""
    count = len(taken)
    if pool[:count] == taken:
        return pool[count:]
    gone = set(taken)
    return [slot for slot in pool if slot not in gone]


# -- slots of which the ends are known


def paying(claims: Claims, moved: Moved, slots: Known, makes: Makes) -> Moved:
    """The moves, without slots that do not pay for the trials that take them before they leave.

    Counts were decided as if each trial could have the slots that last longest. Of what a trial
    really gets, it takes as many as make most. What others gave up for nothing, they keep.
    """
    before = {claim.trial: claim.held for claim in claims}
    fewest = {claim.trial: claim.fewest for claim in claims}
    after = dict(moved)
    for trial, lane in moved.items():
        if len(lane) > len(before[trial]):
            # What the trial has, with so many of the slots given that it makes most.
            more = sorted(lane[len(before[trial]) :], key=lambda slot: -slots[slot].until)
            best = before[trial]
            most = makes(trial, best)
            for count in range(1, len(more) + 1):
                wider = (*before[trial], *more[:count])
                gain = makes(trial, wider)
                if gain > most:
                    best, most = wider, gain
            after[trial] = best
    taken = {slot for lane in after.values() for slot in lane}
    for trial, lane in moved.items():
        if len(lane) < len(before[trial]):
            freed = set(before[trial]) - set(lane)
            back = (freed - taken) & {slot for other in moved.values() for slot in other}
            keeps = back.union(lane)
            if len(keeps) < fewest[trial]:
                continue
            after[trial] = tuple(slot for slot in before[trial] if slot in keeps)
    return {trial: lane for trial, lane in after.items() if lane != before[trial]}


# -- by rack


def by_rack(
    claims: Claims, free: Slots, slots: Known, spatial: Spatial, cohorts: Mapping[str, int]
) -> Moved:
    """Slots that are likely to leave together serve one trial (see `Spatial`).

    Where some slot is too small for some trial, slots are shared out by index.
    """
    biggest = max(claim.need for claim in claims)
    if any(slot.memory < biggest for slot in slots.values()):
        return by_index(claims, free, slots)
    yard = _Yard(free, _classes(claims, free, slots, spatial, cohorts), spatial)
    moved: Moved = {}
    for claim in _shrinking(claims):
        moved[claim.trial] = yard.shrunk(claim)
    for claim in sorted(yard.fairly(claims), key=lambda c: -c.count):
        moved[claim.trial] = yard.grown(claim)
    return moved


Class = tuple[float, int]  # a rack, and the turn at which slots there joined


def _classes(
    claims: Claims, free: Slots, slots: Known, spatial: Spatial, cohorts: Mapping[str, int]
) -> dict[SlotId, Class]:
    """The class of each slot that is free or may change hands."""
    classes = {}
    for slot in (*free, *_concerned(claims)):
        rack = spatial.position(slots[slot].node)
        classes[slot] = (rack, cohorts.get(slot, 0))
    return classes


class _Yard:
    """The slots by class, and how near the classes are. Free ones are handed out and taken back."""

    def __init__(self, free: Slots, classes: Mapping[SlotId, Class], spatial: Spatial) -> None:
        self.free = list(free)
        known = sorted(set(classes.values()))
        number = {key: i for i, key in enumerate(known)}
        self.kind = {slot: number[key] for slot, key in classes.items()}
        racks = np.array([rack for rack, _ in known], float)
        joined = np.array([turn for _, turn in known])
        self.near: Near = spatial.near(racks, joined)

    def shrunk(self, claim: Claim) -> LaneSlots:
        """The slots that the trial keeps; the others become free."""
        wish = release(self.stock(claim.held), -claim.more, self.near)
        going = self._pick(claim.held, wish)
        self.free += sorted(going)
        return tuple(slot for slot in claim.held if slot not in going)

    def grown(self, claim: Claim) -> LaneSlots:
        """The trial's slots with those that it takes of the free ones."""
        wish = take(self.stock(claim.held), self.stock(self.free), claim.more, self.near)
        new = self._pick(self.free, wish)
        self.free = [slot for slot in self.free if slot not in new]
        return (*claim.held, *sorted(new))

    def stock(self, slots: Slots) -> Stock:
        """How many of these slots are of each class."""
        kinds = [self.kind[slot] for slot in slots]
        return np.bincount(np.array(kinds, np.int64), minlength=len(self.near))

    def _pick(self, slots: Slots, wish: Stock) -> set[SlotId]:
        """The first of these slots, so many of each class."""
        left = wish.tolist()
        picked = set()
        for slot in slots:
            kind = self.kind[slot]
            if left[kind] > 0:
                left[kind] -= 1
                picked.add(slot)
        return picked

    def fairly(self, claims: Claims) -> Claims:
        """The claims that grow.

        Of trials that gain alike the better placed grows, and the other stays.
        """
        # The claims of running trials that neither grow nor shrink, by what makes them alike.
        stay: ByAlike = {}
        for claim in claims:
            if claim.stays:
                stay.setdefault(_alike(claim), []).append(claim)
        stock = self.stock(self.free)
        grown = []
        for claim in _growing(claims):
            rivals = stay.get(_alike(claim), [])
            best = claim
            if claim.held:
                best = self._best_placed([claim, *rivals], stock, claim.more)
            if best is not claim:
                rivals.remove(best)
                rivals.append(replace(claim, count=len(claim.held)))
                best = replace(best, count=claim.count)
            grown.append(best)
        return grown

    def _best_placed(self, claims: Claims, stock: Stock, more: int) -> Claim:
        """The claim whose slots would be interrupted least with so many more of the stock.

        Of equals the first.
        """

        def harm(claim: Claim) -> float:
            return exposure(self.stock(claim.held), stock, more, self.near)

        if len(claims) == 1:
            return claims[0]
        return min(claims, key=harm)


Alike = tuple[int, int]
ByAlike = dict[Alike, list[Claim]]


def _alike(claim: Claim) -> Alike:
    """A key that is equal for trials that gain alike and hold as many slots."""
    return claim.kind, len(claim.held)


def _concerned(claims: Claims) -> list[SlotId]:
    """The slots of trials that grow or shrink, or that might grow instead of another."""
    growing = {_alike(claim) for claim in _growing(claims)}
    slots: list[SlotId] = []
    for claim in claims:
        if claim.more != 0 or _alike(claim) in growing:
            slots += claim.held
    return slots
