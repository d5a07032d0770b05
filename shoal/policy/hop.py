"""Model hopper parallelism: data stays where it lies, and trials hop from shard to shard.

Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020,
section 5: an open shop whose units are (trial, shard), each one pass, never cut short. Paper: Algorithm 1
(`random`). Ours: `rotation`, `lrw`, largest remaining work, and `early`; and planned ahead, `quick4` and
`quota`, for shards with replicas. None needs a barrier between epochs, and any live slot that holds a shard may serve it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from shoal.core.cluster import ShardId, Slot
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View, epoch_of
from shoal.core.trial import TrialId
from shoal.policy.early import by_slack, speed_at_shards
from shoal.policy.idle import fits, idle_slots, idle_trials, with_more
from shoal.policy.planned import by_order, order_all
from shoal.policy.rotation import Memory, next_shard, seat

Rule = Literal["rotation", "lrw", "random", "early", "quick4", "quota"]
PLANNED = ("quick4", "quota")
Choice = tuple[Slot, TrialId, ShardId]
Lines = dict[ShardId, list[tuple[int, int, TrialId, ShardId]]]  # shard -> (visits made, place, trial, shard)


@dataclass(frozen=True, slots=True)
class Hop:
    """Each idle slot takes one pass of an idle trial over a shard that lies at the slot.

    `rule`: which trial. "rotation": the one with the fewest visits whose next shard lies here; each
    trial's order of shards is fixed when it is first seen, so an interrupted run equals the undisturbed
    one. "lrw": the one with the most seconds of work left, over all epochs; best where times are
    uncertain. "early": the same of trials without slack, else the one with the least left, so that most trials end
    early and the last no later. "random": any, as a function of (seed, turn). "quick4", "quota": the one that is due in a
    schedule planned when the trials were first seen, which fixes their orders too; for slots of unlike speed, and
    for shards with replicas: the plan follows from where shards lie, so that either name does.
    `barrier`: no trial begins an epoch before all others with work left have ended the one before.
    Trials whose data is not divided run whole, on slots that no unit wants.

    Raises:
        ValueError: no such rule.
    """

    rule: Rule = "rotation"
    seed: int = 0
    barrier: bool = False

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ValueError(f"hop's rule is one of {', '.join(get_args(Rule))}; got {self.rule!r}")

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        memory = self._prepared(view, memory)
        slots = idle_slots(view)
        trials = idle_trials(view) if slots else []
        if self.barrier:
            trials = _at_the_barrier(view, trials)
        if not trials:
            return view.plan, memory
        chosen = self._choose(view, slots, trials, memory)
        gangs = [solo(trial, slot.id, view.turn, shard, view.shards[shard]) for slot, trial, shard in chosen]
        return with_more(view, [*gangs, *_whole(view, slots, trials, gangs)]), memory

    def order(self, memory: Memory, trial: TrialId) -> object:
        """What is equal for trials that visit shards in the same order; None where no order is fixed, or not yet."""
        if self.rule == "rotation":
            seat = memory["seats"].get(trial) if memory else None
            return None if seat is None else (seat[0], seat[2])
        order = memory.get(trial) if self.rule in PLANNED else None
        return None if order is None else tuple(visit[0] for visit in order)

    def follow(self, memory: Memory, trials: Sequence[TrialId], leader: TrialId) -> Memory:
        """The memory in which these trials, seen for the first time, have the order of another."""
        if self.rule != "rotation":
            return {**memory, **{str(t): memory[leader] for t in trials}}
        group, _, ring = memory["seats"][leader]
        count = len(memory["seats"])
        return {**memory, "seats": {**memory["seats"], **{str(t): [group, count + i, ring] for i, t in enumerate(trials)}}}

    def _prepared(self, view: View, memory: Memory) -> Memory:
        if self.rule == "rotation":
            return seat(view, memory)
        return order_all(view, memory) if self.rule in PLANNED else memory

    def _choose(self, view: View, slots: list[Slot], trials: list[TrialId], memory: Memory) -> Iterator[Choice]:
        if self.rule == "rotation":
            return _by_rotation(view, slots, trials, memory)
        if self.rule in PLANNED:
            return by_order(view, slots, trials, memory)
        if self.rule == "early":
            return by_slack(view, slots, trials)
        rule = _by_work if self.rule == "lrw" else _by_lot
        return rule(view, slots, trials, self.seed)


def _at_the_barrier(view: View, trials: list[TrialId]) -> list[TrialId]:
    epoch = {t: epoch_of(view.visits[t], len(trial.shards)) for t, trial in view.trials.items()}
    first = min(epoch.values(), default=0)
    return [t for t in trials if epoch[t] == first]


def _by_rotation(view: View, slots: list[Slot], trials: list[TrialId], memory: Memory) -> Iterator[Choice]:
    """Slots that hold the fewest shards choose first: the others have more to choose from."""
    left = sorted(slots, key=lambda s: (len(s.shards), s.id))
    for line_up in (_in_turn, _out_of_turn):
        lines = line_up(view, trials, memory, left) if left else {}
        for slot in tuple(left) if lines else ():
            here = sorted(entry for shard in slot.shards for entry in lines.get(shard, ()))
            best = next((entry for entry in here if fits(view, entry[2], slot)), None)
            if best is not None:
                left.remove(slot)
                lines[best[3]].remove(best)
                yield slot, best[2], best[3]


def _in_turn(view: View, trials: list[TrialId], memory: Memory, slots: list[Slot]) -> Lines:
    """By shard, the trials that rotation sends there next. Every trial is looked at, in a tight loop: this is the hot spot."""
    held: set[ShardId] = set().union(*(slot.shards for slot in slots))
    visits, seats, pending = view.visits, memory["seats"], view.pending
    lines: Lines = {}
    for number, ring in enumerate(memory["rings"]):
        n = len(ring)
        mine = trials if len(memory["rings"]) == 1 else [t for t in trials if seats[t][2] == number]
        due = {i for i, shard in enumerate(ring) if shard in held}
        here = [t for t in mine if (seats[t][0] - len(visits[t])) % n in due] if due else []
        entries = [(made := len(visits[t]), seats[t][1], t, ring[(seats[t][0] - made) % n]) for t in here]
        for entry in entries:
            if entry[3] in pending[entry[2]]:
                lines.setdefault(entry[3], []).append(entry)
    return lines


def _out_of_turn(view: View, trials: list[TrialId], memory: Memory, slots: list[Slot]) -> Lines:
    """The others, whose epoch another policy began: by the next shard that they still lack."""
    lines: Lines = {}
    for trial in trials:
        group, place, number = memory["seats"][trial]
        ring, made = memory["rings"][number], len(view.visits[trial])
        if ring and ring[(group - made) % len(ring)] not in view.pending[trial]:
            shard = next_shard(ring, group, made, view.pending[trial])
            if shard is not None:
                lines.setdefault(shard, []).append((made, place, trial, shard))
    return lines


def _by_work(view: View, slots: list[Slot], trials: list[TrialId], seed: int) -> Iterator[Choice]:
    """The most loaded slot first (with replicas, the fastest); of a trial's shards here, the scarcest.

    That is the one of which the work left would take its holders longest.
    """
    held: frozenset[ShardId] = frozenset().union(*(slot.shards for slot in slots))
    done, pending, known, curve = view.done, view.pending, view.trials, view.profile.curve
    here = [t for t in trials if not held.isdisjoint(pending[t])]
    left = [(done[t] - known[t].samples) / curve(t, 1)[0] for t in here]
    line = [here[i] for i in sorted(range(len(here)), key=left.__getitem__)]
    serves = speed_at_shards(view) if len(held) > 1 else {}
    load = _loads(view, serves) if serves else {}
    order = {s.id: -sum(load.get(q, 0.0) for q in s.shards) for s in slots}
    if here and any(len(speeds) > 1 for speeds in serves.values()):
        order = {s.id: -view.profile.rates(solo(here[0], s.id, 0))[here[0]] for s in slots}
    for slot in sorted(slots, key=lambda s: (order[s.id], s.id)):
        at = slot.shards
        trial = next((t for t in line if not at.isdisjoint(pending[t]) and fits(view, t, slot)), None)
        if trial is not None:
            line.remove(trial)
            yield slot, trial, max(sorted(pending[trial] & at), key=lambda q: load.get(q, 0.0))


def _loads(view: View, serves: Mapping[ShardId, Sequence[float]]) -> dict[ShardId, float]:
    """Seconds of work left on each shard, over all epochs, for its holders (of these speeds) together."""
    sizes, curve = view.shards, view.profile.curve
    whole: dict[frozenset[ShardId], float] = {}  # seconds per sample of all whole epochs to come, by the trials' shards
    parts = dict.fromkeys(sizes, 0.0)  # and of what is left of this one
    for name, trial in view.trials.items():
        pace = 1.0 / curve(name, 1)[0]
        epoch = sum(map(sizes.__getitem__, trial.shards))
        later = max(0.0, trial.samples - view.done[name]) / epoch if epoch else 0.0
        whole[trial.shards] = whole.get(trial.shards, 0.0) + pace * int(later)
        for shard in view.pending[name] if later > int(later) else ():
            parts[shard] += pace
    for shards, seconds in whole.items():
        for shard in shards:
            parts[shard] += seconds
    return {shard: seconds * sizes[shard] / (sum(serves[shard]) or 1.0) for shard, seconds in parts.items()}


def _by_lot(view: View, slots: list[Slot], trials: list[TrialId], seed: int) -> Iterator[Choice]:
    """Algorithm 1: each idle slot draws evenly from the pending units of idle trials that lie here."""
    rng, pending = np.random.default_rng([seed, view.turn]), view.pending
    for slot in slots:
        here = sorted(slot.shards & view.shards.keys())
        units = [(t, s) for s in here for t in trials if s in pending[t]]
        while units:
            trial, shard = units.pop(int(rng.integers(len(units))))
            if fits(view, trial, slot):  # else another draw: even over those that fit
                trials = [t for t in trials if t != trial]
                yield slot, trial, shard
                break


def _whole(view: View, slots: list[Slot], trials: list[TrialId], taken: list[Gang]) -> Iterator[Gang]:
    """Trials whose data is not divided, on the slots that are left."""
    waits = [t for t in trials if not view.trials[t].shards] if len(taken) < len(slots) else []
    used = {gang.lanes[0].slots[0] for gang in taken}
    for slot in slots:
        trial = next((t for t in waits if slot.id not in used and fits(view, t, slot)), None)
        if trial is not None:
            waits.remove(trial)
            yield solo(trial, slot.id, view.turn)
