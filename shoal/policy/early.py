"""Hops that end trials early without making the study longer: one more rule of `hop`. Ours.

Largest-remaining-work keeps all trials in the race up to the end, where slots are what is short. Most of that is not
needed: here only trials without slack have precedence by their work; among the others, those that are nearly through.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import solo
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.idle import fits

MARGIN = 1.15  # a trial has slack if it could wait an eighth of the time that is left; 1.1 to 1.5 do about as well


class Outlook(NamedTuple):
    """Seconds of work left, over all epochs: of each trial at the fastest holders of its shards, and at each slot."""

    trials: Mapping[TrialId, Seconds]
    slots: Mapping[SlotId, Seconds]

    @property
    def horizon(self) -> Seconds:
        """No schedule of the rest is shorter."""
        return max((*self.trials.values(), *self.slots.values()), default=0.0)


def by_slack(view: View, slots: Sequence[Slot], trials: Sequence[TrialId]) -> Iterator[tuple[Slot, TrialId, ShardId]]:
    """The most loaded slot first: of trials without slack the one with the most work left, else the one with the least."""
    serves = speed_at_shards(view)
    left = outlook(view, serves)
    tight = left.horizon / MARGIN
    taken: set[TrialId] = set()
    for slot in sorted(slots, key=lambda s: (-left.slots[s.id], s.id)):
        here = [t for t in trials if t not in taken and not slot.shards.isdisjoint(view.pending[t]) and fits(view, t, slot)]
        if here:
            urgent = [t for t in here if left.trials[t] >= tight]
            trial = max(urgent, key=lambda t: left.trials[t]) if urgent else min(here, key=lambda t: left.trials[t])
            taken.add(trial)
            yield slot, trial, min(sorted(view.pending[trial] & slot.shards), key=lambda q: sum(serves[q]) / view.shards[q])


def outlook(view: View, serves: Mapping[ShardId, Sequence[float]] | None = None) -> Outlook:
    """What is left to do. Work on a shard is divided among its holders by their speed; epochs under way count in part."""
    serves = serves or speed_at_shards(view)
    trials: dict[TrialId, Seconds] = {}
    work: dict[frozenset[ShardId], Seconds] = {}
    for name, trial in view.trials.items():
        if trial.shards:
            trials[name] = (trial.samples - view.done[name]) / view.profile.curve(name, 1)[0]
            work[trial.shards] = work.get(trial.shards, 0.0) + trials[name]
    sizes = {shards: sum(view.shards[q] for q in shards) for shards in work}
    pace = {k: sum(view.shards[q] / max(serves[q], default=1.0) for q in k) / size for k, size in sizes.items()}
    per_shard = {q: sum(w / sizes[k] for k, w in work.items() if q in k) for q in view.shards}
    loads = {q: seconds * view.shards[q] / (sum(serves[q]) or 1.0) for q, seconds in per_shard.items()}
    slots = {name: sum(loads[q] for q in slot.shards if q in loads) for name, slot in view.slots.items()}
    return Outlook({t: seconds * pace[view.trials[t].shards] for t, seconds in trials.items()}, slots)


def speed_at_shards(view: View) -> dict[ShardId, list[float]]:
    """For each shard, how fast its holders are against a slot of speed 1, as any one trial finds them."""
    some = next((t for t, trial in view.trials.items() if trial.shards), None)
    serves: dict[ShardId, list[float]] = {q: [] for q in view.shards}
    for name, slot in view.slots.items():
        speed = view.profile.rates(solo(some, name, 0))[some] / view.profile.curve(some, 1)[0] if some is not None else 1.0
        for q in slot.shards & serves.keys():
            serves[q].append(speed)
    return serves
