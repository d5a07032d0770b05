"""Model hopper parallelism: data stays where it lies, and trials hop from shard to shard.

Nakandala et al., "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020,
section 5: an open shop whose units are (trial, shard), each one pass, never cut short.

The paper's rule is Algorithm 1 (`random`). Ours are `rotation`, `lrw` (largest remaining work) and
`early`, and `quick4`, which plans ahead, also for shards with replicas. None needs a
barrier between epochs, and any live slot that holds a shard may serve it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shoal.core.cluster import Slot
from shoal.core.plan import Gang, Plan, solo
from shoal.core.state import View, epoch_of
from shoal.core.trial import TrialId
from shoal.policy.hop.live_rules import Choice, by_lot, by_slack, by_work
from shoal.policy.hop.planned import by_plan, noted, order_all, planned_shards
from shoal.policy.hop.rotation import Memory, by_rotation, ring_of, seat, seated_beside
from shoal.policy.idle import fits, idle_slots, idle_trials, with_more

Trials = Sequence[TrialId]
Slots = Sequence[Slot]
Choices = Iterable[Choice]


def _no_preparation(view: View, memory: Memory) -> Memory:
    return memory


def _no_note(view: View, memory: Memory, choices: Sequence[Choice]) -> Memory:
    return memory


def _no_order(memory: Memory, trial: TrialId) -> object:
    return None


def _copied(memory: Memory, trials: Trials, leader: TrialId) -> Memory:
    """The memory with what it has of the leader for these trials, too."""
    return {**memory, **dict.fromkeys(map(str, trials), memory[leader])}


@dataclass(frozen=True, slots=True)
class HopRule:
    """Which trial an idle slot takes, over which shard.

    `choose(view, slots, trials, memory, seed)`: what idle slots take. `does`: for users. The others
    are for rules that fix each trial's order of shards: `prepare` gives one to every trial that can
    have one, `note` notes what was chosen, `order` is equal for trials of one order, and `follow`
    gives new trials that of another.
    """

    does: str
    choose: Callable[[View, Slots, Trials, Memory, int], Choices]
    prepare: Callable[[View, Memory], Memory] = _no_preparation
    note: Callable[[View, Memory, Sequence[Choice]], Memory] = _no_note
    order: Callable[[Memory, TrialId], object] = _no_order
    follow: Callable[[Memory, Trials, TrialId], Memory] = _copied


# All rules. `hop-NAME` is short for hop(rule=NAME).
RULES: Mapping[str, HopRule] = {
    "rotation": HopRule(
        "the trial with the fewest passes whose next shard lies here; each trial's order of shards "
        "is fixed when it is first seen, so an interrupted run equals the undisturbed one",
        lambda view, slots, trials, memory, _: by_rotation(view, slots, trials, memory),
        prepare=seat,
        order=ring_of,
        follow=seated_beside,
    ),
    "lrw": HopRule(
        "the trial with the most seconds of work left, over all epochs; best where times are "
        "uncertain",
        lambda view, slots, trials, *_: by_work(view, slots, trials),
    ),
    "early": HopRule(
        "the same among trials without slack, else the one with the least left: most trials end "
        "early, and the last no later",
        lambda view, slots, trials, *_: by_slack(view, slots, trials),
    ),
    "random": HopRule(
        "any trial, as a function of (seed, turn): the paper's Algorithm 1",
        lambda view, slots, trials, _, seed: by_lot(view, slots, trials, seed),
    ),
    "quick4": HopRule(
        "the trial that is due in the best of several planned schedules, which fixes orders too: "
        "for slots of unlike speed and shards with replicas; unknown speeds are measured first",
        lambda view, slots, trials, memory, _: by_plan(view, slots, trials, memory),
        prepare=order_all,
        note=noted,
        order=planned_shards,
    ),
}
# Names of the field that are no rules of `hop`, and where they are.
ELSEWHERE = (
    "(matching, insertion and quota are ways in which quick4 plans; Cerebro's milp and vector "
    "rearrangement, longest and shortest are only compared with: papers/cerebro in the repository)"
)


@dataclass(frozen=True, slots=True)
class Hop:
    """Each idle slot takes one pass of an idle trial over a shard that lies at the slot.

    Trials whose data is not divided run whole, on slots that no unit wants.

    Args:
        rule: which trial: "rotation", "lrw", "early", "random" or "quick4", as `RULES` says.
        seed: of the rule "random".
        barrier: no trial begins an epoch before all others with work left have ended the one
            before.

    Raises:
        ValueError: no such rule.
    """

    rule: str = "rotation"
    seed: int = 0
    barrier: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rule, str) or self.rule not in RULES:
            raise ValueError(
                f"hop's rule is one of {', '.join(RULES)}; got {self.rule!r}. {ELSEWHERE}"
            )

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        rule = RULES[self.rule]
        memory = rule.prepare(view, memory)
        slots = idle_slots(view)
        if not slots:
            return view.plan, memory
        trials: Trials = idle_trials(view)
        if self.barrier:
            trials = at_the_barrier(view, trials)
        if not trials:
            return view.plan, memory

        choices = list(rule.choose(view, slots, trials, memory, self.seed))
        memory = rule.note(view, memory, choices)
        units = [
            solo(trial, slot.id, view.turn, shard, view.shards[shard])
            for slot, trial, shard in choices
        ]
        whole = _whole(view, slots, trials, units)
        return with_more(view, [*units, *whole]), memory

    def order(self, memory: Memory, trial: TrialId) -> object:
        """A key, equal for trials that visit shards in the same order.

        None where the rule fixes no order, or has not fixed this trial's yet.
        """
        return RULES[self.rule].order(memory, trial)

    def follow(self, memory: Memory, trials: Trials, leader: TrialId) -> Memory:
        """The memory in which these trials, seen for the first time, have the order of another."""
        return RULES[self.rule].follow(memory, trials, leader)


def at_the_barrier(view: View, trials: Trials) -> Trials:
    """The trials, of these, that are in the earliest epoch of all."""
    epoch = {t: epoch_of(view.visits[t], len(view.trials[t].shards)) for t in view.trials}
    first = min(epoch.values(), default=0)
    return [t for t in trials if epoch[t] == first]


def _whole(view: View, slots: Slots, trials: Trials, taken: list[Gang]) -> Iterator[Gang]:
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
