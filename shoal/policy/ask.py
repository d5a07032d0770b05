"""What trials of changeable width ask for: the widths they may have, how fast they would go, how much is left."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.idle import first_come

Widths = Mapping[TrialId, int]
Rungs = Callable[[int, int], tuple[int, ...]]  # the widths to consider between the fewest and the most


@dataclass(frozen=True, slots=True)
class Ask:
    """One trial. `widths`: its rungs, rising; `rates`: samples/s at each; `held`: slots that it has now."""

    trial: TrialId
    left: Samples
    widths: tuple[int, ...]
    rates: tuple[float, ...]
    held: int = 0

    @property
    def least(self) -> int:
        return self.widths[0]

    def seconds(self, rung: int = 0) -> Seconds:
        """Time to its end at this rung."""
        return self.left / self.rates[rung]

    def step(self, rung: int) -> int:
        """Slots that the rung after this one takes in addition."""
        return self.widths[rung + 1] - self.widths[rung]

    def helps(self, rung: int) -> bool:
        """There is a rung after this one, and it is faster."""
        return rung + 1 < len(self.widths) and self.rates[rung + 1] > self.rates[rung]


def powers_of_two(fewest: int, most: int) -> tuple[int, ...]:
    """1, 2, 4 … within the limits; the fewest where there is none."""
    found = tuple(1 << k for k in range(most.bit_length()) if fewest <= 1 << k <= most)
    return found or (fewest,)


def all_widths(fewest: int, most: int) -> tuple[int, ...]:
    """Each width within the limits."""
    return tuple(range(fewest, most + 1))


def left_of(view: View, trial: TrialId) -> Samples:
    """What it has yet to train, as its `samples` say; a little where it should have ended."""
    return max(view.trials[trial].samples - view.done[trial], 1e-9)


def room(view: View) -> int:
    """Slots that can be shared out: all but those of units that end by themselves."""
    busy = view.busy.keys()
    return sum(1 for slot in view.slots if slot not in busy or view.busy[slot].quota is None)


def asks(view: View, rungs: Rungs = powers_of_two, left: Callable[[View, TrialId], Samples] = left_of) -> list[Ask]:
    """What each trial asks for that could run here, those of higher priority first, and in the order in which they came.

    Left out: trials in a unit that ends by itself, and those that need more slots, or bigger ones, than there are.
    """
    capacity, sizes = room(view), sorted(slot.memory for slot in view.slots.values())
    limited = bool(sizes) and sizes[0] < inf
    found = []
    for name in first_come(view.trials):
        trial = view.trials[name]
        gang = view.running.get(name)
        if gang is not None and gang.quota is not None:
            continue
        fewest, most = trial.widths
        big = len(sizes) - bisect_left(sizes, view.profile.cost(name).memory) if limited else capacity
        most = min(most, capacity, big)
        if fewest <= most:
            widths = rungs(fewest, most)
            curve = view.profile.curve(name, widths[-1])
            held = 0 if gang is None else next(len(lane.slots) for lane in gang.lanes if lane.trial == name)
            rates = tuple(curve) if len(curve) == len(widths) else tuple(curve[w - 1] for w in widths)
            found.append(Ask(name, left(view, name), widths, rates, held))
    return found


def admitted(wanting: list[Ask], capacity: int) -> list[Ask]:
    """Those that run at their fewest slots, in the order given; one that does not fit lets the next ones pass."""
    taken = []
    for ask in wanting:
        if ask.least <= capacity:
            capacity -= ask.least
            taken.append(ask)
            if capacity == 0:
                break
    return taken
