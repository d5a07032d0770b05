"""Hopping with wide lanes: where trials are fewer than slots, they hop between groups of slots, data-parallel within.

Section 5.7 and appendix D of Nakandala et al., VLDB 2020; how many groups there are is ALGORITHMS A.5's rule instead of
the paper's (hop when trials > slots / 2, else one group).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.hop import Hop
from shoal.policy.idle import fits, with_more
from shoal.policy.openshop import groups


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Divides the slots into as many groups as are fastest by the profile; a group takes one trial over the shards at its slots.

    A free group takes the trial with the most work left that has yet to visit some of its shards. The groups follow the
    number of trials with work left and the slots there are; units under way end first. Where as many groups as slots
    are best, or a trial may not be that wide, it is `hop` (`otherwise`).
    """

    otherwise: Hop = Hop("lrw")

    def start(self) -> Any:
        return self.otherwise.start()

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        parts = list(_parts(view))
        if len(parts) == len(view.slots) or not parts:
            return self.otherwise.decide(view, memory)
        left = {t: _left(view, t) for t, trial in view.trials.items() if trial.shards and t not in view.running}
        gangs: list[Gang] = []
        for part, shards in _with_shards(view, parts):
            if any(slot.id in view.busy for slot in part):
                continue
            ready = [t for t in left if not shards.isdisjoint(view.pending[t]) and all(fits(view, t, slot) for slot in part)]
            if ready:
                trial = max(ready, key=left.__getitem__)
                del left[trial]
                gangs.append(_unit(view, trial, part, shards & view.pending[trial]))
        return with_more(view, gangs), memory


def _left(view: View, trial: TrialId) -> float:
    return (view.trials[trial].samples - view.done[trial]) / view.profile.curve(trial, 1)[0]


def _unit(view: View, trial: TrialId, part: Sequence[Slot], shards: frozenset[ShardId]) -> Gang:
    lane = Lane(trial, tuple(slot.id for slot in part))
    return Gang((lane,), tuple(sorted(shards)), sum(view.shards[q] for q in shards), since=view.turn)


def _parts(view: View) -> Iterator[list[Slot]]:
    """The groups: slots of one node next to each other, sizes as equal as can be."""
    trials = [t for t, trial in view.trials.items() if trial.shards]
    count = len(view.slots)
    if not trials or not count or len(trials) < len(view.trials):
        return
    curve = view.profile.curve(trials[0], count)
    most = min(view.trials[t].widths[1] for t in trials)

    def efficiency(width: int) -> float:
        return curve[width - 1] / (width * curve[0]) if width <= most else 1e-9

    number, _ = groups(len(trials), count, efficiency)
    slots = sorted(view.slots.values(), key=lambda s: (s.node, s.id))
    for k in range(number):
        yield slots[k * count // number : (k + 1) * count // number]


def _with_shards(view: View, parts: Sequence[list[Slot]]) -> Iterator[tuple[list[Slot], frozenset[ShardId]]]:
    """Each shard is served by one group that holds it: that with the fewest so far, for its size."""
    served: list[set[ShardId]] = [set() for _ in parts]
    holders: Mapping[SlotId, int] = {slot.id: k for k, part in enumerate(parts) for slot in part}
    at = {q: sorted({holders[s.id] for s in view.slots.values() if q in s.shards}) for q in sorted(view.shards)}
    for shard in sorted(at, key=lambda q: (len(at[q]), q)):
        if at[shard]:
            served[min(at[shard], key=lambda k: len(served[k]) / len(parts[k]))].add(shard)
    return zip(parts, map(frozenset, served), strict=True)
