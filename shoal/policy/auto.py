"""The policy with which the work would end best, found by simulating each of them beforehand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any

from shoal.core.overlay import leading
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import Figures, View
from shoal.core.trial import Seconds
from shoal.core.visits import is_met
from shoal.policy.aim import MAKESPAN, Objective, aim_of, check_objective, wording
from shoal.policy.guard import NO_DEFICIT, Deficit, compare, is_simple
from shoal.profile.measure import kinds_measured, measured

Simulate = Callable[[View, Policy[Any]], Seconds]
# A policy that was chosen by simulation is left only for this many times the gain: simulations do
# not show that trials must complete their visits before their slots serve another plan.
SURER = 2.5
# Where more slots are at work the guard does not look on at each decision, but after a pause of so
# many seconds for each of them.
MANY_SLOTS = 64
GUARD_PAUSE: Seconds = 2e-3
SLIGHT = 0.02  # of the seconds that a cost comes with: less does not matter


@dataclass(frozen=True, slots=True)
class Auto:
    """Follows the candidate with which the work in view would end best, by the `objective`.

    `simulate(view, policy)`: the seconds that are to be few; infinity where the policy gets stuck.
    It must be a function of its arguments, and know the objective. `among(view)`: names of the
    candidates that suit, the usual one first; None: all, as they come.

    The candidates are not simulated at each decision, but when one of these six things changed
    since the last choice (`_what_changed` asks them in this order):

    work     the first trials came
    slots    slots came or went
    trials   twice as many are known; or of those that may have several slots, half or twice as many
             are left, or they are fewer than the slots now, or as many again
    figures  half as many kinds of trials more are measured; or a figure is off by more than 2x, and
             as much was trained since as before
    result   the first result is there, if that was the objective
    idle     a slot is idle beside a pack, or beside trials that may have several slots, and trials
             ended since

    A candidate earlier in the order wins unless another is better by more than `gain`. So does the
    one followed so far, by 2.5 times the gain if it was chosen by simulating.

    The usual candidate is followed, without simulating, while nothing is measured, and where
    simulating is too dear. `price(view)` is what one simulation costs, in seconds (infinity: more
    than it may). All simulations together must not cost more than `share` of the work known. What
    is followed, and why, stays in the policy's memory.

    `simple`: the candidate against which the others are guarded; None: they are not. What runs is
    held against it at each decision (`policy.guard`), where the objective is the makespan. Once
    more was lost than a switch takes, and than 5 % of the time, the simple candidate is followed.
    What was followed before is no candidate again until slots come or go, or twice as many trials
    are known.

    Raises:
        ValueError: no candidates, gain or share below 0, or no such objective.
    """

    candidates: Mapping[str, Policy[Any]]
    simulate: Simulate
    gain: float = 0.02
    among: Callable[[View], Sequence[str]] | None = None
    price: Callable[[View], Seconds] = lambda view: 0.0
    share: float = 0.01
    objective: Objective = MAKESPAN
    simple: str | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective)
        if not self.candidates or not self.gain >= 0 or not self.share >= 0:
            values = f"{sorted(self.candidates)!r}, {self.gain!r}, {self.share!r}"
            raise ValueError(f"auto needs candidates, gain >= 0 and share >= 0; got {values}")

    def start(self) -> dict[str, Any]:
        return {
            "follows": None,
            "why": "no work yet",
            "of": 0,
            "simulated": False,
            "spent": 0.0,
            "known": 0,
            "few": False,
            "left": 0,
            "aim": self.objective,
            "slots": "",
            "figures": {},
            "done": 0.0,
            "inner": {},
            "kinds": 0,
            "asked": "",
            "deficit": None,
            "compared_at": None,
            "rejected": [],
        }

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        if view.slots and _unfinished(view, memory):
            changed = self._what_changed(view, memory)
            if changed is not None:
                memory = self._with_choice(view, memory, changed)
        name = memory["follows"]
        if name is None:
            return view.plan, memory
        plan, memory = self._plan_of(name, view, memory)
        # The plan, held against the simple one; the simple one where too much was lost.
        before = Deficit.of(memory.get("deficit"))
        simple = self.simple
        if simple is None or not self._compares_now(view, memory):
            return plan, memory
        if len(view.busy) > MANY_SLOTS:
            memory = {**memory, "compared_at": view.now}
        if before == NO_DEFICIT and is_simple(view, plan):
            return plan, memory
        comparison = compare(view, plan)
        if comparison is None:
            return plan, memory
        deficit = before.updated(view.now, comparison)
        if deficit is not before:
            memory = {**memory, "deficit": deficit.plain()}
        if not deficit.is_over(view.now, comparison):
            wake_at = deficit.over_at(view.now, comparison)
            if wake_at is not None and (plan.wake_at is None or wake_at < plan.wake_at):
                plan = plan.but(wake_at=wake_at)
            return plan, memory

        name = memory["follows"]
        why = (
            f"the trials left take {comparison.simple:.3g} s with one a slot, and took "
            f"{comparison.what_runs:.3g} s as they ran with {name}"
        )
        rejected = [*memory.get("rejected", ()), name]
        after = {"follows": simple, "why": why, "simulated": True}
        memory = {**memory, **after, "rejected": rejected}
        return self._plan_of(simple, view, memory)

    def _compares_now(self, view: View, memory: Mapping[str, Any]) -> bool:
        """Whether what runs is held against the simple plan now.

        Of many slots a comparison takes about 10 us each; it is to take 0.5 % of the time.
        """
        if memory["follows"] == self.simple or aim_of(self.objective, view) != MAKESPAN:
            return False
        compared_at = memory.get("compared_at")
        if len(view.busy) <= MANY_SLOTS or compared_at is None:
            return True
        return bool(view.now >= compared_at + GUARD_PAUSE * len(view.busy))

    def _plan_of(
        self, name: str, view: View, memory: Mapping[str, Any]
    ) -> tuple[Plan, Mapping[str, Any]]:
        """The plan of this candidate; the memory is the same object if the candidate's is equal."""
        policy = self.candidates[name]
        inner = memory["inner"]
        if name not in inner:
            plan, after = policy.decide(view, policy.start())
            return plan, {**memory, "inner": {**inner, name: after}}

        before = inner[name]
        plan, after = policy.decide(view, before)
        if after is before or after == before:
            return plan, memory
        return plan, {**memory, "inner": {**inner, name: after}}

    def _what_changed(  # noqa: PLR0911 a row of the table each
        self, view: View, memory: Mapping[str, Any]
    ) -> str | None:
        """Which of the six things changed, for which it is time to choose again."""
        if memory["follows"] is None:
            return "work"
        if _members(view) != memory["slots"] and not _scattered(view):
            return "slots"
        if _few(view) != memory.get("few", False) or _halved(view, memory):
            return "trials"  # other candidates may suit those that are left
        if memory["of"] < 2:
            return None
        if len(view.known) >= 2 * memory["known"]:
            return "trials"
        if _news(view, memory):
            return "figures"
        if aim_of(self.objective, view) != memory.get("aim", MAKESPAN):
            return "result"
        if _idles(view) and memory.get("left") != len(view.trials):
            return "idle"
        return None

    def _with_choice(self, view: View, memory: Mapping[str, Any], changed: str) -> dict[str, Any]:
        """The memory after a choice; `changed`: what it is made for."""
        names = tuple(self.candidates)
        if self.among is not None:
            names = tuple(self.among(view))
        rejected = memory.get("rejected", [])
        if changed == "slots" or len(view.known) >= 2 * memory["known"]:
            rejected = []
        names = tuple(name for name in names if name not in rejected) or names
        cost = self.price(view) * len(names)
        spent = memory["spent"]
        simulated = memory["simulated"] and memory["follows"] in names
        follows = names[0]
        if self.simple in names and aim_of(self.objective, view) == "first_result":
            follows = self.simple  # a step tried with each kind delays the first result
        if simulated:
            follows = memory["follows"]

        obstacle = self._obstacle(view, names, spent + cost)
        if obstacle is None:
            gain = self.gain
            if simulated:
                gain *= SURER
            follows, why = self._best(view, names, follows, gain)
            simulated = True
            spent += cost
        else:
            why = _why_not_compared(view, len(names) > 1, simulated, obstacle)
        return {
            **memory,
            "follows": follows,
            "why": why,
            "of": len(names),
            "simulated": simulated,
            "spent": spent,
            "known": len(view.known),
            "few": _few(view),
            "left": len(view.trials),
            "aim": aim_of(self.objective, view),
            "slots": _members(view),
            "figures": dict(measured(view.profile) or {}),
            "done": sum(view.done.values()),
            "kinds": kinds_measured(view.profile),
            "asked": changed,
            "rejected": rejected,
        }

    def _obstacle(self, view: View, names: Sequence[str], cost: Seconds) -> str | None:
        """Why the candidates are not simulated; None: nothing speaks against it."""
        if len(names) == 1:
            only = len(self.candidates) == 1
            return (
                "it is the only candidate" if only else f"no other candidate suits {_sizes(view)}"
            )
        if measured(view.profile) == {}:
            single = len(view.trials) == 1 and len(view.slots) == 1
            return (
                "one trial on one slot leaves nothing to compare so far"
                if single
                else "nothing is measured yet"
            )
        if _scattered(view):
            return "some shards lie at no slot yet"
        # Seconds that all trials ever known take, shared out evenly among the slots.
        curve = view.profile.curve
        seconds = sum(trial.samples / curve(name, 1)[0] for name, trial in view.known.items())
        work = seconds / len(view.slots)
        if cost == inf:
            return f"comparing policies takes too long for {work:.3g} s of work"
        if cost > self.share * work:
            return f"comparing policies takes {cost:.2g} s, too long for {work:.3g} s of work"
        return None

    def _best(self, view: View, names: Sequence[str], current: str, gain: float) -> tuple[str, str]:
        """The best candidate, and why; it is `current` unless another saves more than `gain`."""
        takes = {name: float(self.simulate(view, self.candidates[name])) for name in names}
        best = current
        for name, seconds in takes.items():
            if seconds < takes[best] * (1.0 - gain):
                best = name
        aim = aim_of(self.objective, view)
        return best, _why_best(view, best, takes, gain, aim)


def _why_not_compared(view: View, several: bool, simulated: bool, obstacle: str) -> str:
    """Why a policy is followed that was not compared with others now, because of the `obstacle`.

    `several`: there are others. `simulated`: it was compared with them before.
    """
    if not several:
        return obstacle
    if simulated:
        return f"it was the best choice before, and {obstacle}"
    return f"it is the usual choice for {_sizes(view)}, and {obstacle}"


def _sizes(view: View) -> str:
    """The numbers of slots and shards, in words."""
    slots = _count(len(view.slots), "slot")
    return f"{slots} and {_count(len(view.shards), 'shard')}"


def _why_best(
    view: View, best: str, takes: Mapping[str, Seconds], gain: float, aim: Objective
) -> str:
    """Why `best` is followed: the seconds of each candidate."""
    left = sum(not is_met(view.trials[name], view.done[name]) for name in view.trials)
    trials = f"the {_count(left, 'trial')} left"
    slots = _count(len(view.slots), "slot")
    if takes[best] == inf:
        return f"no candidate would finish {trials} on {slots} ({', '.join(takes)})"

    why = f"{wording(aim, trials)} {takes[best]:.3g} s on {slots}"
    others = sorted((name for name in takes if name != best), key=takes.__getitem__)
    timed = [f"{takes[name]:.3g} s with {name}" for name in others if takes[name] < inf]
    if timed:
        against = "against"
        if takes[others[0]] <= takes[best]:
            against = f"and no other saves more than {100 * gain:.0f} %:"
        why += f", {against} {_listed(timed)}"
    endless = [name for name in others if takes[name] == inf]
    if endless:
        why += f"; {_listed(endless)} would never finish them"
    return why


def _listed(parts: Sequence[str]) -> str:
    """The parts with commas, and "and" before the last one."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _unfinished(view: View, memory: Mapping[str, Any]) -> bool:
    """Whether there is anything left to choose for.

    Trials that are trained to the end are still known until their end is an event.
    """
    if memory["follows"] is None:
        return bool(view.trials)
    return not all(is_met(view.trials[name], view.done[name]) for name in leading(view.trials))


def _count(number: int, noun: str) -> str:
    """The number and the noun, in the plural but for 1."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def _scattered(view: View) -> bool:
    """Whether some shards lie here and others nowhere.

    These are the shards of a slot that was lost, which will come elsewhere.
    """
    present = frozenset[str]().union(*(slot.shards for slot in view.slots.values()))
    return bool(present) and not present >= view.shards.keys()


def _few(view: View) -> bool:
    """Whether there are fewer trials than slots, and one of them may have several."""
    few = len(view.trials) < len(view.slots)
    return few and any(trial.widths[1] > 1 for trial in view.trials.values())


def _halved(view: View, memory: Mapping[str, Any]) -> bool:
    """Whether half as many trials are left as at the last choice, or twice as many.

    Trials of one slot do not count: only widths are best shared out otherwise among fewer.
    """
    left = memory.get("left", 0)
    now = len(view.trials)
    if not now or not left or left / 2 < now < 2 * left:
        return False
    return any(trial.widths[1] > 1 for trial in view.trials.values())


def _news(view: View, memory: Mapping[str, Any]) -> bool:
    """Whether half as many kinds more are measured than at the last choice, or a figure changed.

    The means of few figures swing as others join them. Hence at least as much must have been
    trained since the last choice as before it.
    """
    old = memory["figures"]
    new = measured(view.profile)
    if not old or not new:
        return bool(new)
    if kinds_measured(view.profile) >= 1.5 * memory.get("kinds", 1):
        return True
    return _off(view, old, new) and sum(view.done.values()) >= 2 * memory["done"]


def _off(view: View, old: Figures, new: Figures) -> bool:
    """Whether a figure changed by more than 2x.

    To a cost a little is added of the seconds of training that it comes with, so that small costs
    do not matter.
    """
    old_pace = _pace(old)
    pace = _pace(new)
    if not 0.5 * old_pace <= pace <= 2.0 * old_pace:
        return True
    trial = next(iter(view.known.values())).samples
    epoch = sum(view.shards.values()) or trial
    unit = epoch / (len(view.shards) or 1)
    intervals = {"switch": unit, "evaluate": epoch, "build": trial, "save": trial}
    for name, samples in intervals.items():
        slight = SLIGHT * samples * pace
        pair = (old.get(name, 0.0) + slight, new.get(name, 0.0) + slight)
        if max(pair) > 2 * min(pair):
            return True
    return False


def _pace(figures: Figures) -> Seconds:
    """Seconds per sample, those of waiting for data included."""
    waits = figures.get("data", 0.0)
    if "rate" not in figures:
        return waits
    return 1.0 / figures["rate"] + waits


def _idles(view: View) -> bool:
    """Whether a slot is idle beside a pack, or beside trials that may have several slots."""
    if not view.busy or len(view.busy) >= len(view.slots):
        return False
    if len(view.running) > len(view.plan.gangs):
        return True
    return any(view.known[trial].widths[1] > 1 for trial in view.running)


def _members(view: View) -> str:
    """A few letters that stand for the slots here, since memories are journalled."""
    return blake2b("\0".join(sorted(view.slots)).encode(), digest_size=8).hexdigest()
