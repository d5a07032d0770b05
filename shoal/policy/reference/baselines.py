"""What Shoal's policies are compared with: baselines of the papers and of the field, by name.

`fixed` is a plan made beforehand. `width` gives each trial the same fixed width, and so does
`killable`, as Summit's killable queue (Liu et al., "BFTrainer", 2021, section 2.2). `wrate`,
`hesrpt` (Berg, Vesilo, Harchol-Balter, Performance 2020) and `srpt-k` favour short trials more than
`equi` does: for trials of known and unlike size. `rounds` is what FLEET compares with (Pittman et
al., SC'18).
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice

import numpy as np

from shoal.core.check import in_order
from shoal.core.cluster import Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan, solo
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_interval
from shoal.policy.idle import fits, idle_slots, with_more
from shoal.policy.width.ask import (
    Ask,
    Rung,
    Widths,
    admitted,
    asks,
    ends_by_itself,
    paying,
    room,
    shortest_first,
    widths_at,
)
from shoal.policy.width.convergence import check_foretell, left_by
from shoal.policy.width.doubling import placed
from shoal.policy.width.flotilla import berths, free_slots, gangs_on
from shoal.policy.width.place import place


@dataclass(frozen=True, slots=True)
class Fixed:
    """Each trial on its slot, over the whole data set; trials of one slot in the order listed.

    A slot that is away keeps its trials waiting; a trial that has not been submitted yet is passed
    over; trials that are not listed never run.

    Args:
        assignment: {trial: slot}.

    Raises:
        ValueError: nothing is assigned.
    """

    assignment: Mapping[TrialId, SlotId] = field(hash=False)

    def __post_init__(self) -> None:
        if not self.assignment:
            raise ValueError(
                "a fixed plan needs the slot of each trial, as {trial: slot}; "
                "got an empty assignment"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        gangs: list[Gang] = []
        for slot in idle_slots(view):
            queue = (
                t
                for t, s in self.assignment.items()
                if s == slot.id and t in view.trials and t not in view.running
            )
            trial = next(queue, None)
            if trial is not None and fits(view, trial, slot):
                gangs.append(solo(trial, slot.id, view.turn))
        return with_more(view, gangs), memory


@dataclass(frozen=True, slots=True)
class Width:
    """First come, first served, each trial at the same fixed width.

    A trial that does not allow this width has the nearest one that it allows.

    Args:
        slots: of each trial, 1 or more.

    Raises:
        ValueError: width below 1.
    """

    slots: int = 1

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"a width must be >= 1 slot; got {self.slots!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        taken = admitted(asks(view, self._rungs), room(view))
        return place(view, {ask.trial: ask.least for ask in taken}), memory

    def _rungs(self, fewest: int, most: int) -> tuple[int, ...]:
        """The fixed width, or the nearest one within the limits."""
        return (min(max(self.slots, fewest), most),)


# -- as Summit's killable queue does


@dataclass(frozen=True, slots=True)
class Killable:
    """Each trial on exactly `width` slots, or the nearest width that it can have.

    Trials are served in the order in which they came. A trial that lost a slot is stopped and waits
    for as many again. A trial that finds too few free slots lets the next ones pass. When all slots
    together are too few, and nothing else runs, the first trial takes what there is, if it can.

    Args:
        width: slots of each trial, 1 or more.
        admit: at most so many trials at a time. None: any number.

    Raises:
        ValueError: width or admit below 1.
    """

    width: int = 1
    admit: int | None = None

    def __post_init__(self) -> None:
        if self.width < 1 or (self.admit is not None and self.admit < 1):
            raise ValueError(
                f"killable's width and admit must be >= 1; got {self.width!r}, {self.admit!r}"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        keep = view.plan.gangs
        pool = idle_slots(view)
        # The gangs that lost a slot.
        gangs = sorted(view.plan.gangs, key=in_order)
        hurt = [
            g
            for g in gangs
            if g.quota is None and any(len(n.slots) < self._width(view, n.trial) for n in g.lanes)
        ]
        if hurt and not self._must_do(view, hurt[0]):
            keep = keep.difference(hurt)
            pool += [view.slots[name] for gang in hurt for name in sorted(gang.slots)]
        gangs = self._started(view, keep, pool)
        if not gangs and len(keep) == len(view.plan.gangs):
            return view.plan, None
        return Plan(keep | frozenset(gangs)), None

    def _must_do(self, view: View, gang: Gang) -> bool:
        """Whether this gang runs alone, and all slots together are too few for its width."""
        width = self._width(view, gang.lanes[0].trial)
        return len(view.plan.gangs) == 1 and len(view.slots) < width

    def _started(self, view: View, keep: frozenset[Gang], pool: list[Slot]) -> list[Gang]:
        """Gangs for the trials admitted that find enough free slots, first come first served."""
        running = {trial for gang in keep for trial in gang.trials}
        gangs: list[Gang] = []
        for name in islice(view.trials, self.admit):
            if name in running:
                continue
            alone = not keep and not gangs
            taken = self._taken(view, name, pool, alone)
            if taken:
                ids = {slot.id for slot in taken}
                pool = [slot for slot in pool if slot.id not in ids]
                gangs.append(_gang(view, name, taken))
        return gangs

    def _taken(self, view: View, name: TrialId, pool: list[Slot], alone: bool) -> list[Slot]:
        """The slots of the pool that the trial takes; none if they are too few.

        `alone`: nothing else runs, so where there can never be enough it takes what there is.
        """
        need = view.profile.cost(name).memory
        slots = [slot for slot in pool if slot.memory >= need]
        width = self._width(view, name)
        if alone and len(slots) < width:
            big_enough = sum(slot.memory >= need for slot in view.slots.values())
            if big_enough < width:
                width = max(view.trials[name].widths[0], len(slots))
        if len(slots) < width:
            return []
        return slots[:width]

    def _width(self, view: View, name: TrialId) -> int:
        """The width that is nearest to `width` among those that the trial can have."""
        fewest = most = 1
        if name in view.trials:
            fewest, most = view.trials[name].widths
        return min(max(self.width, fewest), most)


def _gang(view: View, trial: TrialId, slots: list[Slot]) -> Gang:
    """The trial alone on these slots, from now on."""
    lane = Lane(trial, tuple(slot.id for slot in slots))
    return Gang((lane,), since=view.turn)


# -- short trials first


Corner = tuple[int, float]  # of a hull: a width, and samples/s


def weighted_rates(
    wanting: Sequence[Ask], capacity: int, beta: float, hysteresis: float = 0.0
) -> dict[TrialId, int]:
    """Greatest sum of speed-ups, each weighted by (seconds left)^-beta.

    Slots are given step by step along the concave hull of each trial's rates. `hysteresis`: how
    much more a step counts that the trial already has.
    """
    widths: dict[TrialId, int] = {}
    hulls = [_hull(ask) for ask in wanting]

    def step(i: int, k: int) -> tuple[float, int, int]:
        """From corner k to the next: worth per slot (negated, for the heap), who, where."""
        here, above = hulls[i][k : k + 2]
        # What each slot of the step between two corners adds to the weighted sum of speed-ups.
        ask = wanting[i]
        slots = above[0] - here[0]
        rate = above[1] - here[1]
        weight: float = ask.seconds() ** -beta
        worth = weight * rate / slots / ask.rates[0]
        if wanting[i].held >= above[0]:
            worth *= 1.0 + hysteresis
        return -worth, i, k

    heap = [step(i, 0) for i in range(len(wanting))]
    heapify(heap)
    while heap and capacity > 0:
        _, i, k = heappop(heap)
        here, above = hulls[i][k : k + 2]
        more = above[0] - here[0]
        if more > capacity:
            continue
        capacity -= more
        widths[wanting[i].trial] = above[0]
        if k + 2 < len(hulls[i]):
            heappush(heap, step(i, k + 1))
    return widths


def _hull(ask: Ask) -> list[Corner]:
    """The upper concave hull of (0, 0) and its (width, rate), as far as it rises."""
    hull: list[Corner] = [(0, 0.0)]
    for corner in zip(ask.widths, ask.rates, strict=True):
        highest = hull[-1][1]
        if corner[1] <= highest:
            continue
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], corner):
            hull.pop()
        hull.append(corner)
    return hull


def _is_below(first: Corner, middle: Corner, last: Corner) -> bool:
    """Whether the corner in the middle lies on or below the line between the two others."""
    width, rate = first
    rise = (middle[1] - rate) * (last[0] - width)
    of_line = (last[1] - rate) * (middle[0] - width)
    return rise <= of_line


def hesrpt_shares(wanting: Sequence[Ask], capacity: int, p: float) -> dict[TrialId, int]:
    """Optimal shares for speed-ups of the form width^p, rounded to the rungs (heSRPT).

    The i-th largest of n trials gets (i/n)^(1/(1-p)) - ((i-1)/n)^(1/(1-p)) of the slots. What is
    over goes to the trials with least left.
    """
    order = shortest_first(wanting)
    shares = _hesrpt(len(order), capacity, p)
    rungs: Rung = {}
    free = capacity
    for ask, share in zip(order, shares, strict=True):
        # The rung nearest to the share (up to a third above it), of those that fit.
        limit = min(max(1.34 * share, ask.least), free)
        fitting = bisect_right(ask.widths, limit)
        rung = max(fitting - 1, 0)
        if share >= 0.75 * ask.least and ask.widths[rung] <= free:
            rungs[ask.trial] = rung
            free -= ask.widths[rung]
    _fill(order, rungs, free)
    return widths_at(order, rungs)


def _hesrpt(trials: int, capacity: int, p: float) -> Iterator[float]:
    """The slots of the shortest of so many trials, of the next one, and so on."""
    power = 1.0 / (1.0 - p)
    for i in range(trials, 0, -1):
        upto = (i / trials) ** power
        before = ((i - 1) / trials) ** power
        yield (upto - before) * capacity


def srpt_shares(wanting: Sequence[Ask], capacity: int, width: int) -> dict[TrialId, int]:
    """The trials' widths: `width` slots each, those with least left first.

    What is over widens the trials in the same order.
    """
    order = shortest_first(wanting)
    rungs: Rung = {}
    for ask in order:
        limit = min(max(width, ask.least), capacity)
        if ask.least > limit:
            continue
        rung = bisect_right(ask.widths, limit) - 1
        rungs[ask.trial] = rung
        capacity -= ask.widths[rung]

    taken = [ask for ask in order if ask.trial in rungs]
    _fill(taken, rungs, capacity)
    return widths_at(order, rungs)


def _fill(order: Sequence[Ask], rungs: Rung, free: int) -> None:
    """Make one after the other as wide as it helps and fits."""
    for ask in order:
        rung = rungs.get(ask.trial)
        if rung is None and ask.least > free:
            continue
        if rung is None:
            rung = 0
            free -= ask.least
        while ask.helps(rung) and ask.step(rung) <= free:
            free -= ask.step(rung)
            rung += 1
        rungs[ask.trial] = rung


@dataclass(frozen=True, slots=True)
class Wrate:
    """Greatest sum of speed-ups, in which short trials count more.

    Args:
        beta: how much more short trials count. 0: all alike; 0.25 is a good value.
        hysteresis: how much more a step counts that the trial already has; 0.1 and more where a
            change of width costs a minute or more.
        every: seconds between two decisions, as for `Doubling`.
        foretell: as for `Doubling`.

    Raises:
        ValueError: beta or hysteresis below 0.
    """

    beta: float = 0.25
    hysteresis: float = 0.0
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if not (self.beta >= 0 and self.hysteresis >= 0):
            values = f"{self.beta!r}, {self.hysteresis!r}"
            raise ValueError(f"beta and hysteresis must be >= 0; got {values}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        widths = weighted_rates(wanting, room(view), self.beta, self.hysteresis)
        return placed(view, widths, self.every), memory


@dataclass(frozen=True, slots=True)
class HeSrpt:
    """Shares that fall with what is left, for speed-ups of about width^p.

    Args:
        p: the power, between 0 and 1.
        every: seconds between two decisions, as for `Doubling`.
        foretell: as for `Doubling`.

    Raises:
        ValueError: p is not between 0 and 1.
    """

    p: float = 0.6
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if not 0 < self.p < 1:
            raise ValueError(
                f"the exponent of the speed-up must lie between 0 and 1; got {self.p!r}"
            )

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        widths = hesrpt_shares(wanting, room(view), self.p)
        return placed(view, widths, self.every), memory


@dataclass(frozen=True, slots=True)
class SrptK:
    """The trials with least left, each on so many slots.

    Args:
        slots: of each trial, 1 or more.
        every: seconds between two decisions, as for `Doubling`.
        foretell: as for `Doubling`.

    Raises:
        ValueError: slots below 1.
    """

    slots: int = 4
    every: Seconds | None = None
    foretell: str | None = None

    def __post_init__(self) -> None:
        check_interval(self.every)
        check_foretell(self.foretell)
        if self.slots < 1:
            raise ValueError(f"a width must be >= 1 slot; got {self.slots!r}")

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        wanting = paying(view, left=left_by(self.foretell))
        widths = srpt_shares(wanting, room(view), self.slots)
        return placed(view, widths, self.every), memory


@dataclass(frozen=True, slots=True)
class Rounds:
    """As many trials as there are slots, drawn by lot, on their fewest slots.

    The next ones start when all of them are through (Pittman et al., SC'18, as FLEET's section 6
    describes it).

    Args:
        seed: of the lots.
        together: as for `Flotilla`.
    """

    seed: int = 0
    together: bool = False

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if any(not ends_by_itself(gang) for gang in view.plan.gangs):
            return view.plan, memory
        wanting = asks(view, lambda fewest, most: (fewest,))
        free = free_slots(view)
        drawn = self._drawn(view, wanting, len(free))
        fresh = gangs_on(view, berths(view, drawn, free), self.together)
        return Plan(view.plan.gangs.union(fresh)), memory

    def _drawn(self, view: View, wanting: Sequence[Ask], free: int) -> Widths:
        """Trials drawn by lot, as far as the slots reach, and their slots."""
        lots = np.random.default_rng([self.seed, view.turn]).permutation(len(wanting))
        widths = {}
        for i in lots:
            ask = wanting[i]
            if ask.least <= free:
                widths[ask.trial] = ask.least
                free -= ask.least
        return widths
