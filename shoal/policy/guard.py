"""What runs, held against the simple plan: one trial a slot. Ours.

Policies decide by what they believe will come, and so do simulations of them. The guard looks at
what runs: how fast its gangs go, as measured, and what is left. So it also catches what nobody
foresaw: a pack that is slower than its trials in turn, a trial that slows down midway, slots that
stand idle beside a crowded one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import islice
from math import inf

from shoal.core.check import in_order
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import queue

WORSE = 0.05  # of the time that the simple plan takes may be lost
EPS = 1e-6  # seconds: a rounding error
STEP = 0.05  # in which losses are counted, in seconds a second
SAMPLE = 64  # of more trials the first ones stand for all, so that a comparison's time has a bound


@dataclass(frozen=True, slots=True)
class Comparison:
    """Seconds until all trials are through: if `what_runs` goes on, and by the `simple` plan.

    `switch`: seconds that it takes to go over to the simple plan.
    """

    what_runs: Seconds
    simple: Seconds
    switch: Seconds

    @property
    def loss(self) -> float:
        """Seconds lost in a second; below 0 where what runs is quicker."""
        return 1.0 - self.simple / self.what_runs

    @property
    def limit(self) -> Seconds:
        """Seconds that may be lost before the simple plan is followed."""
        return max(self.switch, WORSE * self.simple)


@dataclass(frozen=True, slots=True)
class Deficit:
    """How many seconds what ran has `lost` against the simple plan, at the time `now`.

    Below 0: it was quicker. That counts, but only so far (a CUSUM test with two bounds): a plan may
    let a slot wait for a moment that it makes up for. `loss`: seconds lost in a second from now on,
    in steps of `STEP`, so that this changes seldom: memories are journalled.
    """

    lost: Seconds = 0.0
    loss: float = 0.0
    now: Seconds = 0.0

    @classmethod
    def of(cls, plain: Sequence[float] | None) -> "Deficit":
        """The deficit that `plain` wrote down; None: nothing was lost so far."""
        return cls(*plain) if plain else NO_DEFICIT

    def plain(self) -> list[float]:
        """The deficit as a list, for a memory in the journal."""
        return [self.lost, self.loss, self.now]

    def at(self, now: Seconds) -> Seconds:
        """The seconds lost at this time, if nothing has changed since."""
        return self.lost + self.loss * (now - self.now)

    def updated(self, now: Seconds, comparison: Comparison) -> "Deficit":
        """The deficit at this time, and what is lost from then on; itself if that is as before.

        How much quicker what runs is than the simple plan does not matter: nothing changes by it.
        """
        loss = round(comparison.loss / STEP) * STEP
        if abs(loss - self.loss) < STEP / 2 or max(loss, self.loss) <= 0:
            return self
        return Deficit(round(max(-comparison.limit, self.at(now)), 6), loss, now)

    def is_over(self, now: Seconds, comparison: Comparison) -> bool:
        """Whether the simple plan is better followed: there is more to win than a switch takes."""
        if self.loss <= 0 or self.at(now) < comparison.limit - EPS:
            return False
        return comparison.what_runs - comparison.simple > comparison.switch

    def over_at(self, now: Seconds, comparison: Comparison) -> Seconds | None:
        """When the simple plan will be better followed, as things go now; None: never."""
        lost = self.at(now)
        if self.loss <= 0 or lost >= comparison.limit - EPS:
            return None
        return now + (comparison.limit - lost) / self.loss


NO_DEFICIT = Deficit()


def is_simple(view: View, plan: Plan) -> bool:
    """Whether each gang is one trial on one slot, and no slot is idle that could have one."""
    if any(len(gang.lanes) > 1 or len(gang.slots) > 1 for gang in plan.gangs):
        return False
    return len(plan.gangs) == min(len(view.slots), len(view.trials))


def compare(view: View, plan: Plan) -> Comparison | None:
    """The comparison of what runs by this plan with the simple plan.

    None: nothing runs that has work left, or some trials cannot have one slot.

    The simple plan is a list schedule: whoever is first in the queue has the next free slot. What
    runs goes on as fast as it is now, all in all: which trial is how fast may change, as widths do
    when others end. So the guard rather trusts what runs.
    """
    curve = view.profile.curve
    alone: dict[TrialId, Seconds] = {}
    pace = 0.0  # of all gangs: what trials do alone on a slot, in so many of these
    for gang in sorted(plan.gangs, key=in_order):
        for trial, rate in view.profile.rates(gang).items():
            if trial in view.trials:
                alone[trial] = _alone(view, trial)
                pace += rate / curve(trial, 1)[0]
    if not 0 < sum(alone.values()) < inf:
        return None

    waits = islice((trial for trial in queue(view) if trial not in alone), SAMPLE)
    others = len(view.trials) - len(alone)
    waiting = [_alone(view, trial) for trial in waits]
    works = [*alone.values(), *waiting]
    work = sum(works)
    if work == inf:
        return None
    speeds = _speeds(view, next(iter(alone)))
    if others > len(waiting):
        work += sum(waiting) * (others / len(waiting) - 1)
        simple = work / sum(speeds)
    else:
        simple = _list_schedule(works, speeds)
    switch = max(_to_begin(view, gang) for gang in plan.gangs)
    return Comparison(work / pace, simple, switch)


def _alone(view: View, trial: TrialId) -> Seconds:
    """Seconds that the trial has left on a slot of its own; infinity: it needs several."""
    if view.trials[trial].widths[0] > 1:
        return inf
    left = max(0.0, view.trials[trial].samples - view.done[trial])
    return left / view.profile.curve(trial, 1)[0]


def _speeds(view: View, trial: TrialId) -> list[float]:
    """How fast each slot is."""
    profile = view.profile
    usual = profile.curve(trial, 1)[0]
    return [profile.rates(solo(trial, slot, 0))[trial] / usual for slot in view.slots]


def _list_schedule(works: Sequence[Seconds], speeds: Sequence[float]) -> Seconds:
    """When the last of these works is done if each goes, in this order, to the next free slot."""
    free = [(0.0, -speed, number) for number, speed in enumerate(speeds)]
    heapify(free)
    last = 0.0
    for work in works:
        at, speed, number = free[0]
        end = at - work / speed
        last = max(last, end)
        heapreplace(free, (end, speed, number))
    return last


def _to_begin(view: View, gang: Gang) -> Seconds:
    """Seconds until the trials of a gang are built and loaded on slots of their own."""
    slot = next(iter(gang.slots))
    trial = gang.trials[-1]
    begin = view.profile.switch(None, solo(trial, slot, 0))
    return begin + view.profile.cost(trial).build
