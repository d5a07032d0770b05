"""Model hopper parallelism: data stays where it lies, and trials hop from shard to shard.

Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020,
section 5: an open shop whose units are (trial, shard), each one pass, never cut short.

The paper's rule is Algorithm 1 (`random`). Ours are `rotation`, `lrw` (largest remaining work) and
`early`, and `quick4`, which plans ahead, also for shards with replicas. None needs a
barrier between epochs, and any live slot that holds a shard may serve it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View, epoch_of
from shoal.core.trial import TrialId
from shoal.policy.choice import check_one_of
from shoal.policy.hop.choose import Choice, by_lot, by_work
from shoal.policy.hop.early import by_slack
from shoal.policy.hop.planned import by_plan, noted, order_all, planned_shards
from shoal.policy.hop.rotation import (
    Memory,
    by_rotation,
    ring_of,
    seat,
    seated_beside,
)
from shoal.policy.idle import fits, idle_slots, idle_trials, with_more

Rule = Literal["rotation", "lrw", "random", "early", "quick4"]
PLANNED = "quick4"
Trials = Sequence[TrialId]
Slots = Sequence[Slot]


@dataclass(frozen=True, slots=True)
class Hop:
    """Each idle slot takes one pass of an idle trial over a shard that lies at the slot.

    `rule` says which trial:

    - "rotation": the one with the fewest visits whose next shard lies here. Each trial's order of
      shards is fixed when it is first seen, so an interrupted run equals the undisturbed one.
    - "lrw": the one with the most seconds of work left, over all epochs; best where times are
      uncertain.
    - "early": the same among trials without slack, else the one with the least left. Most trials
      then end early, and the last no later.
    - "random": any, as a function of (seed, turn).
    - "quick4": the one that is due in a planned schedule, which fixes orders too. For slots of
      unlike speed, and for shards with replicas. Speeds that nobody gave are measured first: until
      each kind of trial and each slot was at work, visits are chosen that tell most about them.

    `barrier`: no trial begins an epoch before all others with work left have ended the one before.
    Trials whose data is not divided run whole, on slots that no unit wants.

    Raises:
        ValueError: no such rule.
    """

    rule: Rule = "rotation"
    seed: int = 0
    barrier: bool = False

    def __post_init__(self) -> None:
        check_one_of("hop's rule", Rule, self.rule)

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        memory = self._prepared(view, memory)
        slots = idle_slots(view)
        if not slots:
            return view.plan, memory
        trials: Trials = idle_trials(view)
        if self.barrier:
            trials = _at_the_barrier(view, trials)
        if not trials:
            return view.plan, memory

        choices = list(self._choose(view, slots, trials, memory))
        if self.rule == PLANNED:
            memory = noted(view, memory, choices)
        units = [_unit(view, choice) for choice in choices]
        whole = _whole(view, slots, trials, units)
        return with_more(view, [*units, *whole]), memory

    def order(self, memory: Memory, trial: TrialId) -> object:
        """What is equal for trials that visit shards in the same order.

        None where the rule fixes no order, or has not fixed this trial's yet.
        """
        if self.rule == "rotation":
            return ring_of(memory, trial)
        if self.rule == PLANNED:
            return planned_shards(memory, trial)
        return None

    def follow(self, memory: Memory, trials: Trials, leader: TrialId) -> Memory:
        """The memory in which these trials, seen for the first time, have the order of another."""
        if self.rule == "rotation":
            return seated_beside(memory, trials, leader)
        return {**memory, **dict.fromkeys(map(str, trials), memory[leader])}

    def _prepared(self, view: View, memory: Memory) -> Memory:
        """The memory with an order for every trial, where the rule fixes orders."""
        if self.rule == "rotation":
            return seat(view, memory)
        if self.rule == PLANNED:
            return order_all(view, memory)
        return memory

    def _choose(
        self, view: View, slots: Slots, trials: Trials, memory: Memory
    ) -> Iterable[Choice]:
        """Which idle slot takes which trial over which shard, by this rule."""
        if self.rule == "rotation":
            return by_rotation(view, slots, trials, memory)
        if self.rule == PLANNED:
            return by_plan(view, slots, trials, memory)
        return self._choose_unplanned(view, slots, trials)

    def _choose_unplanned(
        self, view: View, slots: Slots, trials: Trials
    ) -> Iterator[Choice]:
        """The same by a rule that fixes no order of shards."""
        if self.rule == "early":
            return by_slack(view, slots, trials)
        if self.rule == "lrw":
            return by_work(view, slots, trials)
        return by_lot(view, slots, trials, self.seed)


def _unit(view: View, choice: Choice) -> Gang:
    """The trial's pass over the shard at the slot, from now on."""
    slot, trial, shard = choice
    return solo(trial, slot.id, view.turn, shard, view.shards[shard])


def _at_the_barrier(view: View, trials: Trials) -> Trials:
    """Those of the trials that are in the earliest epoch of all."""
    epoch = {t: _epoch(view, t) for t in view.trials}
    first = min(epoch.values(), default=0)
    return [t for t in trials if epoch[t] == first]


def _epoch(view: View, trial: TrialId) -> int:
    """The epoch that the trial is in."""
    return epoch_of(view.visits[trial], len(view.trials[trial].shards))


def _whole(
    view: View, slots: Slots, trials: Trials, taken: list[Gang]
) -> Iterator[Gang]:
    """Trials whose data is not divided, on the slots that are left."""
    if len(taken) >= len(slots):
        return
    waits = [t for t in trials if not view.trials[t].shards]
    used = {gang.lanes[0].slots[0] for gang in taken}
    for slot in slots:
        if slot.id in used:
            continue
        trial = _first_that_fits(view, waits, slot)
        if trial is not None:
            waits.remove(trial)
            yield solo(trial, slot.id, view.turn)


def _first_that_fits(view: View, trials: Trials, slot: Slot) -> TrialId | None:
    """The first of the trials that fits the slot."""
    for trial in trials:
        if fits(view, trial, slot):
            return trial
    return None
