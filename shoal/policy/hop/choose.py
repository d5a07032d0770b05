"""What an idle slot takes next, by rules of `hop` that need no plan: `lrw`, `random` and pilots.

`random` is Algorithm 1 of Nakandala et al., "Cerebro", VLDB 2020; `lrw`, largest remaining work, is
ours. Pilots let speeds be measured before orders are planned. All look at the trials and slots of a
live study. `rules` has what the planner asks of numbers.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import solo
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.hop.early import (
    Speeds,
    at_holders,
    load_at,
    rate_alone,
    samples_in,
    samples_left,
    speed_at_shards,
)
from shoal.policy.idle import fits
from shoal.profile.known import clocked_as
from shoal.profile.slot_speeds import Links

Choice = tuple[Slot, TrialId, ShardId]
Unit = tuple[TrialId, ShardId]  # s_ij of the paper
Trials = Sequence[TrialId]
Slots = Sequence[Slot]
Loads = Mapping[ShardId, Seconds]
Generator = np.random.Generator


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
        yield from _units_over(view, shard, trials)


def _units_over(view: View, shard: ShardId, trials: Trials) -> list[Unit]:
    """The pending units of these trials over the shard."""
    return [(trial, shard) for trial in trials if shard in view.pending[trial]]


def _drawn(view: View, slot: Slot, units: list[Unit], rng: Generator) -> Unit | None:
    """A unit drawn evenly from those whose trial fits the slot; None without one."""
    while units:
        unit = _drawn_out(units, rng)
        if fits(view, unit[0], slot):  # else another draw: even over those that fit
            return unit
    return None


def _drawn_out(units: list[Unit], rng: Generator) -> Unit:
    """Any of the units, each as likely, and no longer in the list."""
    return units.pop(int(rng.integers(len(units))))


# -- lrw


def by_work(view: View, slots: Slots, trials: Trials) -> Iterator[Choice]:
    """The idle trial with the most work left over all epochs; the most loaded slot chooses first.

    With replicas the fastest slot chooses first. Of a trial's shards at the slot it takes the
    scarcest: the one whose remaining work would take its holders longest.
    """
    held = _held(slots)
    here = [t for t in trials if not held.isdisjoint(view.pending[t])]
    line = _longest_first(view, here)
    speeds: Speeds = {}
    load: Loads = {}
    if len(held) > 1 and view.shards:
        speeds = speed_at_shards(view)
        load = at_holders(view, _seconds_per_sample(view), speeds)
    order = _slot_order(view, slots, here, speeds, load)
    for slot in sorted(slots, key=lambda s: (order[s.id], s.id)):
        trial = _first_that_fits(view, line, slot)
        if trial is not None:
            line.remove(trial)
            yield slot, trial, _scarcest(view, slot, trial, load)


def _held(slots: Slots) -> frozenset[ShardId]:
    """The shards at these slots."""
    return frozenset().union(*(slot.shards for slot in slots))


def _scarcest(view: View, slot: Slot, trial: TrialId, load: Loads) -> ShardId:
    """The trial's pending shard at this slot with the highest load."""
    shards = sorted(view.pending[trial] & slot.shards)
    return max(shards, key=lambda shard: load.get(shard, 0.0))


def _longest_first(view: View, here: Trials) -> list[TrialId]:
    """The trials, the most seconds of work first; of equal ones in the order given."""
    # Minus the seconds left: a stable ascending sort keeps the order of equal trials.
    return sorted(here, key=lambda trial: -_work_left(view, trial))


def _work_left(view: View, trial: TrialId) -> Seconds:
    """Seconds of work that the trial has left, over all epochs, on a slot of speed 1."""
    return samples_left(view, trial) / rate_alone(view, trial)


def _slot_order(
    view: View,
    slots: Slots,
    trials: Trials,
    speeds: Speeds,
    load: Loads,
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
    found: list[Choice] = []
    rest: list[Slot] = []
    for slot in slots:
        choice = _linking(view, slot, waits, kinds, links)
        if choice is None:
            rest.append(slot)
            continue
        waits.remove(choice[1])
        links.join(kinds[choice[1]], slot.id)
        found.append(choice)
    return [*found, *by_work(view, rest, waits)]


def _linking(
    view: View,
    slot: Slot,
    trials: Trials,
    kinds: Mapping[TrialId, str],
    links: Links,
) -> Choice | None:
    """A visit that links a trial to the slot; one of a trial never measured, if there is one."""
    here = [
        trial
        for trial in trials
        if links.apart(kinds[trial], slot.id) and _may_visit(view, trial, slot)
    ]
    if not here:
        return None
    trial = min(here, key=lambda each: links.knows(kinds[each]))
    shards = view.pending[trial] & slot.shards
    return slot, trial, min(shards)


def _may_visit(view: View, trial: TrialId, slot: Slot) -> bool:
    """Whether the trial has a pending shard at the slot, and fits it."""
    return not slot.shards.isdisjoint(view.pending[trial]) and fits(view, trial, slot)
