"""What trials of changeable width ask for.

The widths they may have, how fast they would go at each, and how much they have left.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.idle import queue
from shoal.profile.evidence import paying_count

Widths = Mapping[TrialId, int]
Rung = dict[TrialId, int]  # for each trial, the place of its width among its rungs
A_LITTLE: Samples = 1e-9  # left of a trial that should have ended
# The widths to consider, from the fewest and the most slots that a trial may have.
Rungs = Callable[[int, int], tuple[int, ...]]
# What a trial has left to train.
Left = Callable[[View, TrialId], Samples]


@dataclass(frozen=True, slots=True)
class Ask:
    """What one trial asks for.

    `left`: samples. `widths`: its rungs, rising. `rates`: samples/s at each of them. `held`: the
    slots that it has now.
    """

    trial: TrialId
    left: Samples
    widths: tuple[int, ...]
    rates: tuple[float, ...]
    held: int = 0

    @property
    def least(self) -> int:
        """The fewest slots with which it runs."""
        return self.widths[0]

    def seconds(self, rung: int = 0) -> Seconds:
        """Time to its end at this rung."""
        return self.left / self.rates[rung]

    def seconds_at(self, width: int) -> Seconds:
        """Time to its end with so many slots, which are one of its widths."""
        return self.seconds(self.widths.index(width))

    def step(self, rung: int) -> int:
        """Slots that the rung after this one takes in addition."""
        return self.widths[rung + 1] - self.widths[rung]

    def helps(self, rung: int) -> bool:
        """Whether there is a rung after this one, and it is faster."""
        above = rung + 1
        if above == len(self.widths):
            return False
        return self.rates[above] > self.rates[rung]

    def only(self, rungs: Sequence[int]) -> "Ask":
        """The ask with only these of its rungs."""
        widths = tuple(self.widths[rung] for rung in rungs)
        return replace(self, widths=widths, rates=tuple(self.rates[r] for r in rungs))

    def upto(self, count: int) -> "Ask":
        """The ask with only the first so many of its rungs."""
        return replace(self, widths=self.widths[:count], rates=self.rates[:count])


@lru_cache(maxsize=1024)
def powers_of_two(fewest: int, most: int) -> tuple[int, ...]:
    """The powers of two within the limits; the fewest where there is none."""
    widths = []
    width = 1
    while width <= most:
        if width >= fewest:
            widths.append(width)
        width *= 2
    return tuple(widths) or (fewest,)


def all_widths(fewest: int, most: int) -> tuple[int, ...]:
    """Each width within the limits."""
    return tuple(range(fewest, most + 1))


def left_of(view: View, trial: TrialId) -> Samples:
    """The samples that the trial has yet to train; a little where it should have ended."""
    return max(view.trials[trial].samples - view.done[trial], A_LITTLE)


def ends_by_itself(gang: Gang | None) -> bool:
    """Whether the gang trains a fixed number of samples, so that its slots come free anyway."""
    return gang is not None and gang.quota is not None and not gang.measures


def room(view: View) -> int:
    """Slots that can be shared out: all but the slots of units that end by themselves."""
    count = 0
    for slot in view.slots:
        if not ends_by_itself(view.busy.get(slot)):
            count += 1
    return count


def asks(view: View, rungs: Rungs = powers_of_two, left: Left = left_of) -> list[Ask]:
    """The ask of each trial that could run here.

    Trials of higher priority come first, and else those that came first. Left out: trials in a unit
    that ends by itself, and those that need more slots, or bigger ones, than there are.
    """
    capacity = room(view)
    sizes = _limiting_sizes(view)

    wanting = []
    for name in queue(view):
        if ends_by_itself(view.running.get(name)):
            continue
        fewest, most = view.trials[name].widths
        most = min(most, capacity)
        if sizes:  # no more than have the memory that the trial needs
            most = min(most, len(sizes) - bisect_left(sizes, view.profile.cost(name).memory))
        if fewest <= most:
            widths = rungs(fewest, most)
            wanting.append(_ask(view, name, widths, left(view, name)))
    return wanting


def _limiting_sizes(view: View) -> list[GiB]:
    """The memory of all slots, rising; empty where memory is no limit."""
    sizes = sorted(slot.memory for slot in view.slots.values())
    if sizes and sizes[0] < inf:
        return sizes
    return []


def _ask(view: View, trial: TrialId, widths: tuple[int, ...], left: Samples) -> Ask:
    """The ask of this trial, at these widths."""
    curve = view.profile.curve(trial, widths[-1])
    if len(curve) == len(widths):  # all widths from 1 on
        rates = tuple(curve)
    else:
        rates = tuple(curve[width - 1] for width in widths)
    gang = view.running.get(trial)
    held = len(slots_of(gang, trial)) if gang is not None else 0
    return Ask(trial, left, widths, rates, held)


def paying(view: View, rungs: Rungs = powers_of_two, left: Left = left_of) -> list[Ask]:
    """The trials' asks without widths that do not pay as far as was measured.

    A running trial is asked to change only to widths that save more time than it stands still.
    """
    every = asks(view, rungs, left)
    return [_worth_changing(view, ask, _worth_having(view, ask)) for ask in every]


def _worth_having(view: View, ask: Ask) -> Ask:
    """The ask at those of its widths that may pay."""
    if len(ask.widths) == 1:
        return ask
    return ask.upto(paying_count(view.profile, ask.trial, ask.widths, ask.rates))


def _worth_changing(view: View, every: Ask, ask: Ask) -> Ask:
    """The ask without wider rungs than it has now that would not save time before it ends.

    `every`: the same with all its widths. What it has now stays, too, if it does not pay but fewer
    slots would save no time any more.
    """
    if ask.held not in every.widths:
        return ask
    now = every.seconds_at(ask.held)
    if ask.held > ask.widths[-1]:
        standstill = change_seconds(view, ask.trial, ask.widths[-1])
        if ask.seconds(-1) + standstill < now:
            return ask
        return every.upto(every.widths.index(ask.held) + 1)
    if ask.held == ask.widths[-1]:
        return ask
    standstill = change_seconds(view, ask.trial, ask.held + 1)
    rungs = [
        rung
        for rung, width in enumerate(ask.widths)
        if width <= ask.held or ask.seconds(rung) + standstill < now
    ]
    return ask.only(rungs)


def change_seconds(view: View, trial: TrialId, width: int) -> Seconds:
    """Seconds that a running trial stands still when its width changes.

    It keeps what slots it can.
    """
    before = view.running[trial]
    slots = slots_of(before, trial)
    more = tuple(SlotId(f"\0{k}") for k in range(width - len(slots)))  # any slots
    lane = Lane(trial, slots[:width] + more)
    return view.profile.switch(before, Gang((lane,), since=view.turn))


def slots_of(gang: Gang, trial: TrialId) -> tuple[SlotId, ...]:
    """The slots of the trial's lane in its gang."""
    lane = next(lane for lane in gang.lanes if lane.trial == trial)
    return lane.slots


def admitted(wanting: list[Ask], capacity: int) -> list[Ask]:
    """The trials that run at their fewest slots, in the order given.

    One that does not fit lets the next ones pass.
    """
    taken = []
    for ask in wanting:
        if ask.least > capacity:
            continue
        capacity -= ask.least
        taken.append(ask)
        if capacity == 0:
            break
    return taken


def widths_at(order: Sequence[Ask], rungs: Rung) -> dict[TrialId, int]:
    """The slots of each trial that has a rung."""
    with_rung = [ask for ask in order if ask.trial in rungs]
    return {ask.trial: ask.widths[rungs[ask.trial]] for ask in with_rung}


def shortest_first(wanting: Sequence[Ask]) -> list[Ask]:
    """The trials with least time left first."""
    return sorted(wanting, key=lambda ask: ask.seconds())
