"""The policy that would be through first, by simulating each of them beforehand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any

from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import Figures, View
from shoal.core.trial import Seconds
from shoal.profile.measure import measured

Simulate = Callable[[View, Policy[Any]], Seconds]
EPS = 1e-6  # samples, of sums of parts
SLIGHT = 0.02  # of the seconds that a cost comes with: less does not matter


@dataclass(frozen=True, slots=True)
class Auto:
    """Follows the candidate with which the work in view would end first.

    `simulate(view, policy)`: seconds until then; infinity where the policy gets stuck. It must be a function of its
    arguments. `among(view)`: names of the candidates that suit, the usual one first; None: all, as they come.
    It is asked when work first comes, when slots came or went, when twice as many trials are known as at the last
    time, when the first figures are measured, and when one turned out wrong by more than 2x and at least as much was trained
    since the last time as before it; not at each decision.
    A candidate earlier in the order wins unless another is quicker by more than `gain`, and so does the one followed so far.

    The usual candidate is followed, without asking, while nothing is measured, and where asking is too dear: `price(view)`
    is what one simulation costs, in seconds (infinity: more than it may), and all together must not cost more than `share`
    of the work known. What is followed, and why, stays in its memory; gangs are never stopped by a change of mind.

    Raises:
        ValueError: no candidates, or gain or share below 0.
    """

    candidates: Mapping[str, Policy[Any]]
    simulate: Simulate
    gain: float = 0.02
    among: Callable[[View], Sequence[str]] | None = None
    price: Callable[[View], Seconds] = lambda view: 0.0
    share: float = 0.01

    def __post_init__(self) -> None:
        if not self.candidates or not self.gain >= 0 or not self.share >= 0:
            given = f"{sorted(self.candidates)!r}, {self.gain!r}, {self.share!r}"
            raise ValueError(f"auto needs candidates, gain >= 0 and share >= 0; got {given}")

    def start(self) -> dict[str, Any]:
        told = {"follows": None, "why": "no work yet", "of": 0, "simulated": False, "spent": 0.0}
        return {**told, "known": 0, "slots": "", "figures": {}, "done": 0.0, "inner": {}}

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        if view.slots and _unfinished(view, memory) and self._asks_again(view, memory):
            memory = self._chosen(view, memory)
        name = memory["follows"]
        if name is None:
            return view.plan, memory
        policy, inner = self.candidates[name], memory["inner"]
        before = inner[name] if name in inner else policy.start()
        plan, after = policy.decide(view, before)
        same = name in inner and (after is before or after == before)
        return plan, memory if same else {**memory, "inner": {**inner, name: after}}

    def _asks_again(self, view: View, memory: Mapping[str, Any]) -> bool:
        if memory["follows"] is None:
            return True
        if memory["of"] > 1 and (len(view.known) >= 2 * memory["known"] or _news(view, memory)):
            return True
        return _members(view) != memory["slots"] and not _scattered(view)

    def _chosen(self, view: View, memory: Mapping[str, Any]) -> dict[str, Any]:
        """The memory after a choice."""
        names = tuple(self.among(view)) if self.among is not None else tuple(self.candidates)
        cost, spent = self.price(view) * len(names), memory["spent"]
        keeps = memory["simulated"] and memory["follows"] in names
        now = memory["follows"] if keeps else names[0]
        why = self._not_asked(view, names, spent + cost)
        if why is None:
            now, why = self._compared(view, names, now)
            keeps, spent = True, spent + cost
        elif len(names) > 1:
            why += ": as before" if keeps else ": the usual choice"
        figures = dict(measured(view.profile) or {})
        seen = {"known": len(view.known), "slots": _members(view), "figures": figures, "done": sum(view.done.values())}
        told = {"follows": now, "why": why, "of": len(names), "simulated": keeps, "spent": spent}
        return {**memory, **told, **seen}

    def _not_asked(self, view: View, names: Sequence[str], cost: Seconds) -> str | None:
        """Why nothing is simulated; None: nothing speaks against it."""
        here = f"{_count(len(view.slots), 'slot')} and {_count(len(view.shards), 'shard')}"
        if len(names) == 1:
            return f"nothing else suits {here}"
        if measured(view.profile) == {}:
            return f"nothing is measured yet, with {here}"
        if _scattered(view):
            return f"some shards lie at no slot yet, with {here}"
        if cost == inf:
            return (
                f"to simulate {_count(len(view.trials), 'trial')} costs too much beside {_work(view):.3g} s of work, with {here}"
            )
        if cost > self.share * _work(view):
            return f"to simulate would cost {cost:.2g} s beside {_work(view):.3g} s of work, with {here}"
        return None

    def _compared(self, view: View, names: Sequence[str], now: str) -> tuple[str, str]:
        """The quickest, and what each would take."""
        takes = {name: float(self.simulate(view, self.candidates[name])) for name in names}
        best = now
        for name, seconds in takes.items():
            if seconds < takes[best] * (1.0 - self.gain):
                best = name
        listed = ", ".join(_told(name, seconds) for name, seconds in sorted(takes.items(), key=lambda x: (x[1], x[0] != best)))
        close = "" if takes[best] == min(takes.values()) else f"; none is quicker by more than {100 * self.gain:.0f} %"
        return best, f"with {_count(len(view.trials), 'trial')} on {_count(len(view.slots), 'slot')} {listed}{close}"


def _unfinished(view: View, memory: Mapping[str, Any]) -> bool:
    """Whether there is anything left to choose for: trained to the end, trials are still known until that is told."""
    if memory["follows"] is None:
        return bool(view.trials)
    return any(view.done[name] < trial.samples - EPS for name, trial in view.trials.items())


def _told(name: str, seconds: Seconds) -> str:
    return f"{name} would take {seconds:.3g} s" if seconds < inf else f"{name} would get stuck"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _work(view: View) -> Seconds:
    """Seconds that all trials ever known take, shared out evenly among the slots."""
    curve = view.profile.curve
    return sum(trial.samples / curve(name, 1)[0] for name, trial in view.known.items()) / len(view.slots)


def _scattered(view: View) -> bool:
    """Some shards lie here and others nowhere: those of a slot that was lost, which will come elsewhere."""
    held = frozenset[str]().union(*(slot.shards for slot in view.slots.values()))
    return bool(held) and not held >= view.shards.keys()


def _news(view: View, memory: Mapping[str, Any]) -> bool:
    """Figures came where there were none, or are off those decided on, and it is time to look again.

    The means of few figures swing as others join them: hence the doubling of what was trained in between.
    """
    old, new = memory["figures"], measured(view.profile)
    if not old or not new:
        return bool(new)
    return _off(view, old, new) and sum(view.done.values()) >= 2 * memory["done"]


def _off(view: View, old: Figures, new: Figures) -> bool:
    """A figure changed by more than 2x; a cost with a little of the time added that it comes with, or is paid for."""
    was, pace = _pace(old), _pace(new)
    if not 0.5 * was <= pace <= 2.0 * was:
        return True
    trial = next(iter(view.known.values())).samples
    epoch = sum(view.shards.values()) or trial
    unit = epoch / (len(view.shards) or 1)
    per = {"switch": unit, "evaluate": epoch, "build": trial, "save": trial}
    slight = {name: SLIGHT * samples * pace for name, samples in per.items()}
    pairs = [(old.get(name, 0.0) + least, new.get(name, 0.0) + least) for name, least in slight.items()]
    return any(max(pair) > 2 * min(pair) for pair in pairs)


def _pace(figures: Figures) -> Seconds:
    """Seconds per sample, those of waiting for data included."""
    return (1.0 / figures["rate"] if "rate" in figures else 0.0) + figures.get("data", 0.0)


def _members(view: View) -> str:
    """The slots here, told in a few letters: memories are journalled."""
    return blake2b("\0".join(sorted(view.slots)).encode(), digest_size=8).hexdigest()
