"""Hopping with wide lanes: where trials are fewer than slots, they hop between groups of slots, data-parallel within.

Section 5.7 and appendix D of Nakandala et al., VLDB 2020; how many groups there are is our rule (`openshop.groups`) instead of
the paper's (hop when trials > slots / 2, else one group).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.core.cluster import ShardId, Slot
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import TrialId
from shoal.policy.hop import Hop
from shoal.policy.idle import fits, with_more
from shoal.policy.openshop import groups

Part = tuple[list[Slot], frozenset[ShardId]]  # slots of a group, and the shards that it serves


@dataclass(frozen=True, slots=True)
class Hybrid:
    """Divides the slots into as many groups as are fastest by the profile; trials go round the groups.

    A group takes one trial at a time over those shards at its slots that the trial has yet to visit. When the number
    of trials or slots changes so that other groups would be faster, trials wait at the end of their epoch until all are there,
    and the slots are divided anew. Where as many groups as slots are best, or a trial may not be as wide as a
    group, it is a plain `Hop` of this `rule`.

    Raises:
        ValueError: hop has no such rule.
    """

    rule: str = "rotation"
    seed: int = 0

    def __post_init__(self) -> None:
        self._hop()

    def _hop(self) -> Hop:
        return Hop(self.rule, self.seed)  # type: ignore[arg-type]

    def start(self) -> dict[str, Any]:
        return {"groups": 0, "seats": {}, "hop": self._hop().start()}

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        trials = [t for t, trial in view.trials.items() if trial.shards]
        wanted = _count(view, trials)
        calm = all(t not in view.running and _between_epochs(view, t) for t in trials)
        if wanted != memory["groups"] and (calm or not memory["groups"]):
            memory = {**memory, "groups": wanted, "seats": {str(t): k for k, t in enumerate(trials)}}
        if wanted == memory["groups"] == len(view.slots):
            plan, inner = self._hop().decide(view, memory["hop"])
            return plan, memory if inner == memory["hop"] else {**memory, "hop": inner}
        seats = memory["seats"]
        if any(t not in seats for t in trials):
            seats = seats | {str(t): len(seats) + k for k, t in enumerate(t for t in trials if t not in seats)}
            memory = {**memory, "seats": seats}
        waits = [t for t in trials if t not in view.running and (wanted == memory["groups"] or not _between_epochs(view, t))]
        return with_more(view, _units(view, waits, seats, _parts(view, memory["groups"]))), memory


def _between_epochs(view: View, trial: TrialId) -> bool:
    return view.pending[trial] == view.trials[trial].shards


def _count(view: View, trials: Sequence[TrialId]) -> int:
    """How many groups are best for these trials; as many as slots where some data is not divided."""
    slots = len(view.slots)
    if not trials or not slots or len(trials) < len(view.trials):
        return slots
    curve = view.profile.curve(trials[0], slots)
    most = min(view.trials[t].widths[1] for t in trials)
    return groups(len(trials), slots, lambda width: curve[width - 1] / (width * curve[0]) if width <= most else 1e-9)[0]


def _units(view: View, waits: Sequence[TrialId], seats: Mapping[str, int], parts: Sequence[Part]) -> list[Gang]:
    """Each trial that waits is due at one group; a free group takes the one with the fewest visits."""
    due: dict[int, list[TrialId]] = {}
    for trial in waits:
        left = view.pending[trial]
        order = ((seats[trial] - k) % len(parts) for k in range(len(parts)))
        number = next((k for k in order if not parts[k][1].isdisjoint(left)), None)
        if number is not None:
            due.setdefault(number, []).append(trial)
    gangs = []
    for number, trials in sorted(due.items()):
        slots, shards = parts[number]
        ready = [t for t in trials if all(fits(view, t, slot) for slot in slots)]
        if ready and not any(slot.id in view.busy for slot in slots):
            trial = min(ready, key=lambda t: (len(view.visits[t]), seats[t]))
            read = tuple(sorted(shards & view.pending[trial]))
            lane = Lane(trial, tuple(slot.id for slot in slots))
            gangs.append(Gang((lane,), read, sum(view.shards[q] for q in read), since=view.turn))
    return gangs


def _parts(view: View, count: int) -> list[Part]:
    """So many groups, slots of one node next to each other; each shard is served by one group that holds it."""
    slots = sorted(view.slots.values(), key=lambda s: (s.node, s.id))
    count = min(count, len(slots))
    parts = [slots[k * len(slots) // count : (k + 1) * len(slots) // count] for k in range(count)]
    served: list[set[ShardId]] = [set() for _ in parts]
    at = {q: [k for k, part in enumerate(parts) if any(q in slot.shards for slot in part)] for q in sorted(view.shards)}
    for shard in sorted(at, key=lambda q: (len(at[q]), q)):
        if at[shard]:
            served[min(at[shard], key=lambda k: len(served[k]) / len(parts[k]))].add(shard)
    return list(zip(parts, map(frozenset, served), strict=True))
