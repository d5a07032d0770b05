"""What an idle slot takes next, by rules of `hop` without a plan: `lrw`, `random`, `early`, pilots.

`random` is Algorithm 1 of Nakandala et al., "Cerebro", VLDB 2020; `lrw`, largest remaining work, is
ours. Pilots let speeds be measured before orders are planned. All look at the trials and slots of a
live study. `schedules` has what the planner asks of numbers.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import solo
from shoal.core.state import View
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.policy.idle import fits
from shoal.profile.evidence import clocked_as
from shoal.profile.slot_speeds import Links

Choice = tuple[Slot, TrialId, ShardId]
Unit = tuple[TrialId, ShardId]  # s_ij of the paper
Trials = Sequence[TrialId]
Slots = Sequence[Slot]
Loads = Mapping[ShardId, Seconds]
Generator = np.random.Generator
# A trial has slack if it could wait an eighth of the time that is left.
# Margins of 1.1 to 1.5 do about as well.
MARGIN = 1.15
Speeds = Mapping[ShardId, Sequence[float]]  # of each shard's holders
Shards = frozenset[ShardId]
Alone = Mapping[TrialId, Seconds]  # of each trial
Work = Mapping[Shards, Seconds]  # of all trials with the same shards


# -- random


def by_lot(view: View, slots: Slots, trials: Trials, seed: int) -> Iterator[Choice]:
    """Algorithm 1: each idle slot draws evenly from the pending units of idle trials.

    Only units whose shard lies at the slot are drawn from.
    """
    rng = np.random.default_rng([seed, view.turn])
    for slot in slots:
        units = list(_units_here(view, slot, trials))
        drawn = _drawn(view, slot, units, rng)
        if drawn is not None:
            trial, shard = drawn
            trials = [t for t in trials if t != trial]
            yield slot, trial, shard


def _units_here(view: View, slot: Slot, trials: Trials) -> Iterator[Unit]:
    """The pending units of these trials at the slot's shards."""
    for shard in sorted(slot.shards & view.shards.keys()):
        yield from [(trial, shard) for trial in trials if shard in view.pending[trial]]


def _drawn(view: View, slot: Slot, units: list[Unit], rng: Generator) -> Unit | None:
    """A unit drawn evenly from those whose trial fits the slot; None without one."""
    while units:
        unit = units.pop(int(rng.integers(len(units))))
        if fits(view, unit[0], slot):  # else another draw: even over those that fit
            return unit
    return None


# -- lrw


def by_work(view: View, slots: Slots, trials: Trials) -> Iterator[Choice]:
    """The idle trial with the most work left over all epochs; the most loaded slot chooses first.

    With replicas the fastest slot chooses first. Of a trial's shards at the slot it takes the
    scarcest: the one whose remaining work would take its holders longest.
    """
    shards_here = frozenset().union(*(slot.shards for slot in slots))
    here = [t for t in trials if not shards_here.isdisjoint(view.pending[t])]
    # Most seconds of work first; by a minus, so that equal trials keep their order.
    line = sorted(here, key=lambda trial: -(samples_left(view, trial) / rate_alone(view, trial)))
    speeds: Speeds = {}
    load: Loads = {}
    if len(shards_here) > 1 and view.shards:
        speeds = speed_at_shards(view)
        load = at_holders(view, _seconds_per_sample(view), speeds)
    order = _slot_order(view, slots, here, speeds, load)
    for slot in sorted(slots, key=lambda s: (order[s.id], s.id)):
        trial = _first_that_fits(view, line, slot)
        if trial is not None:
            line.remove(trial)
            yield slot, trial, _scarcest(view, slot, trial, load)


def _scarcest(view: View, slot: Slot, trial: TrialId, load: Loads) -> ShardId:
    """The trial's pending shard at this slot with the highest load."""
    shards = sorted(view.pending[trial] & slot.shards)
    return max(shards, key=lambda shard: load.get(shard, 0.0))


def _slot_order(
    view: View, slots: Slots, trials: Trials, speeds: Speeds, load: Loads
) -> dict[SlotId, float]:
    """A number for each slot; the smallest chooses first."""
    replicated = any(len(holders) > 1 for holders in speeds.values())
    if trials and replicated:
        return {slot.id: -_rate(view, slot, trials[0]) for slot in slots}
    return {slot.id: -load_at(slot, load) for slot in slots}


def _rate(view: View, slot: Slot, trial: TrialId) -> float:
    """Samples/s of the trial alone on this slot."""
    return view.profile.rates(solo(trial, slot.id, 0))[trial]


def _first_that_fits(view: View, line: Trials, slot: Slot) -> TrialId | None:
    """The first trial in line with a pending shard at this slot that fits it."""
    for trial in line:
        if _may_visit(view, trial, slot):
            return trial
    return None


def _seconds_per_sample(view: View) -> Loads:
    """Work left on each shard, over all epochs: seconds on a slot of speed 1, for each sample."""
    work = dict.fromkeys(view.shards, 0.0)
    whole: dict[frozenset[ShardId], float] = {}  # epochs to come, by the trials' shards
    for name, trial in view.trials.items():
        pace = 1.0 / rate_alone(view, name)
        later = _epochs_left(view, name)
        whole[trial.shards] = whole.get(trial.shards, 0.0) + pace * int(later)
        if later > int(later):  # the present epoch, of which some shards are left
            _add(work, view.pending[name], pace)
    for shards, seconds in whole.items():
        _add(work, shards, seconds)
    return work


def _add(work: dict[ShardId, Seconds], shards: frozenset[ShardId], more: Seconds) -> None:
    """Add so many seconds to the work on each of these shards."""
    for shard in shards:
        work[shard] += more


def _epochs_left(view: View, name: TrialId) -> float:
    """Epochs that the trial has left, in whole and in part; 0 where its data is not divided."""
    epoch = samples_in(view, view.trials[name].shards)
    if not epoch:
        return 0.0
    return max(0.0, samples_left(view, name)) / epoch


# -- pilots


def by_links(view: View, slots: Slots, trials: Trials, links: Links) -> list[Choice]:
    """Visits that tell most about speeds: of trials and slots that cannot be compared yet.

    Slots for which there is no such trial choose by work left. `links`: what can be compared;
    what these visits and those under way will link is added.
    """
    kinds = {trial: clocked_as(view.profile, trial) for trial in view.trials}
    for name, gang in view.running.items():
        if name in kinds and len(gang.slots) == 1:
            links.join(kinds[name], *gang.slots)
    waits = list(trials)
    choices: list[Choice] = []
    rest: list[Slot] = []
    for slot in slots:
        choice = _linking(view, slot, waits, kinds, links)
        if choice is None:
            rest.append(slot)
            continue
        waits.remove(choice[1])
        links.join(kinds[choice[1]], slot.id)
        choices.append(choice)
    return [*choices, *by_work(view, rest, waits)]


def _linking(
    view: View, slot: Slot, trials: Trials, kinds: Mapping[TrialId, str], links: Links
) -> Choice | None:
    """A visit that links a trial to the slot; one of a trial never measured, if there is one."""
    here = [
        trial
        for trial in trials
        if links.apart(kinds[trial], slot.id) and _may_visit(view, trial, slot)
    ]
    if not here:
        return None
    trial = min(here, key=lambda name: links.knows(kinds[name]))
    shards = view.pending[trial] & slot.shards
    return slot, trial, min(shards)


def _may_visit(view: View, trial: TrialId, slot: Slot) -> bool:
    """Whether the trial has a pending shard at the slot, and fits it."""
    return not slot.shards.isdisjoint(view.pending[trial]) and fits(view, trial, slot)


# -- early
#
# Hops that end trials early without making the study longer: one more rule of `hop`. Ours.
# Largest-remaining-work keeps all trials in the race up to the end, where slots are scarce. Most
# of that is not needed. Here only trials without slack have precedence by their work; of the
# others, those that are nearly through go first.


class Outlook(NamedTuple):
    """Seconds of work left, over all epochs.

    `trials`: of each trial at the fastest holders of its shards. `slots`: at each slot.
    """

    trials: Mapping[TrialId, Seconds]
    slots: Mapping[SlotId, Seconds]

    @property
    def horizon(self) -> Seconds:
        """No schedule of the rest is shorter."""
        return max((*self.trials.values(), *self.slots.values()), default=0.0)

    def urgent(self, trials: Trials) -> Trials:
        """The trials, of these, that have no slack."""
        tight = self.horizon / MARGIN
        return [t for t in trials if self.trials[t] >= tight]


def by_slack(view: View, slots: Sequence[Slot], trials: Trials) -> Iterator[Choice]:
    """Slots take the trial with the most work left of those without slack; else with the least.

    The most loaded slot chooses first. Of a trial's shards it takes the scarcest.
    """
    speeds = speed_at_shards(view)
    left = outlook(view, speeds)
    waits = list(trials)
    for slot in sorted(slots, key=lambda s: (-left.slots[s.id], s.id)):
        here = [t for t in waits if _may_visit(view, t, slot)]
        if here:
            seconds = left.trials.__getitem__
            urgent = left.urgent(here)
            trial = max(urgent, key=seconds) if urgent else min(here, key=seconds)
            waits.remove(trial)
            yield slot, trial, _least_served(view, slot, trial, speeds)


def _least_served(view: View, slot: Slot, trial: TrialId, speeds: Speeds) -> ShardId:
    """The trial's pending shard at this slot that takes its holders longest."""

    def plenty(shard: ShardId) -> float:
        return sum(speeds[shard]) / view.shards[shard]

    return min(sorted(view.pending[trial] & slot.shards), key=plenty)


# -- what is left to do


def outlook(view: View, speeds: Speeds | None = None) -> Outlook:
    """The work left of each trial and at each slot; epochs under way count in part.

    Work on a shard is divided among its holders by their speed.
    """
    speeds = speeds or speed_at_shards(view)
    # What each trial whose data is divided has left, on slots of speed 1.
    alone = {}
    for name, trial in view.trials.items():
        if trial.shards:
            alone[name] = samples_left(view, name) / rate_alone(view, name)
    # The seconds of all trials with the same shards together.
    work: dict[Shards, Seconds] = defaultdict(float)
    for name, seconds in alone.items():
        work[view.trials[name].shards] += seconds
    loads = at_holders(view, _per_sample(view, work), speeds)
    pace = {shards: _pace(view, shards, speeds) for shards in work}
    return Outlook(
        {t: alone[t] * pace[view.trials[t].shards] for t in alone},
        {name: load_at(slot, loads) for name, slot in view.slots.items()},
    )


def samples_left(view: View, trial: TrialId) -> Samples:
    """Samples that the trial has left, over all epochs."""
    return view.trials[trial].samples - view.done[trial]


def rate_alone(view: View, trial: TrialId) -> float:
    """Samples/s of the trial alone on a slot of speed 1."""
    return view.profile.curve(trial, 1)[0]


def load_at(slot: Slot, loads: Loads) -> Seconds:
    """The loads of the slot's shards together."""
    return sum(loads.get(shard, 0.0) for shard in slot.shards)


def _pace(view: View, shards: Shards, speeds: Speeds) -> float:
    """An epoch over these shards at their fastest holders, against one at slots of speed 1."""
    seconds = 0.0
    for shard in shards:
        seconds += view.shards[shard] / max(speeds[shard], default=1.0)
    return seconds / samples_in(view, shards)


def samples_in(view: View, shards: Iterable[ShardId]) -> int:
    """Samples in these shards."""
    return sum(view.shards[shard] for shard in shards)


def at_holders(view: View, per_sample: Loads, speeds: Speeds) -> Loads:
    """Seconds that each shard's holders together still need for the work left on it.

    `per_sample`: seconds of that work for each sample of the shard, at a slot of speed 1.
    """
    loads = {}
    for shard, seconds in per_sample.items():
        together = sum(speeds[shard]) or 1.0
        loads[shard] = seconds * view.shards[shard] / together
    return loads


def _per_sample(view: View, work: Work) -> Loads:
    """Seconds of work for each sample of a shard, at a slot of speed 1."""
    loads = dict.fromkeys(view.shards, 0.0)
    for shards, seconds in work.items():
        more = seconds / samples_in(view, shards)
        for shard in shards & loads.keys():
            loads[shard] += more
    return loads


def speed_at_shards(view: View) -> dict[ShardId, list[float]]:
    """How fast each shard's holders are against a slot of speed 1, as any one trial finds them."""
    any_trial = next((t for t, trial in view.trials.items() if trial.shards), None)
    speeds: dict[ShardId, list[float]] = {shard: [] for shard in view.shards}
    for name, slot in view.slots.items():
        speed = _speed(view, name, any_trial)
        for shard in slot.shards & speeds.keys():
            speeds[shard].append(speed)
    return speeds


def _speed(view: View, slot: SlotId, trial: TrialId | None) -> float:
    """How fast the slot is against one of speed 1, as this trial finds it; without one 1."""
    if trial is None:
        return 1.0
    rates = view.profile.rates(solo(trial, slot, 0))
    return rates[trial] / rate_alone(view, trial)
