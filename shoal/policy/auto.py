"""The policy that would be through first, by simulating each of them beforehand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.core.trial import Seconds

Simulate = Callable[[View, Policy[Any]], Seconds]


@dataclass(frozen=True, slots=True)
class Auto:
    """Follows the candidate with which the work in view would end first.

    `simulate(view, policy)`: seconds until then; infinity where the policy gets stuck. It must be a function of its
    arguments. It is asked when work first comes, when slots came or went, and when twice as many trials are known as
    at the last time; not at each decision. A candidate earlier in the order wins unless another is quicker by more
    than `gain`, and so does the one followed so far. What each would take, and so why, stays in its memory.

    Raises:
        ValueError: no candidates, or gain below 0.
    """

    candidates: Mapping[str, Policy[Any]]
    simulate: Simulate
    gain: float = 0.02

    def __post_init__(self) -> None:
        if not self.candidates or not self.gain >= 0:
            raise ValueError(f"auto needs candidates and gain >= 0; got {sorted(self.candidates)!r}, {self.gain!r}")

    def start(self) -> dict[str, Any]:
        return {"follows": None, "inner": None, "known": 0, "slots": "", "why": "no work yet"}

    def decide(self, view: View, memory: Mapping[str, Any]) -> tuple[Plan, Mapping[str, Any]]:
        if view.trials and self._asks_again(view, memory):
            memory = self._compared(view, memory)
        if memory["follows"] is None:
            return view.plan, memory
        plan, inner = self.candidates[memory["follows"]].decide(view, memory["inner"])
        return plan, memory if inner == memory["inner"] else {**memory, "inner": inner}

    def _asks_again(self, view: View, memory: Mapping[str, Any]) -> bool:
        return bool(len(view.known) >= 2 * memory["known"] or _members(view) != memory["slots"])

    def _compared(self, view: View, memory: Mapping[str, Any]) -> dict[str, Any]:
        takes = {name: float(self.simulate(view, policy)) for name, policy in self.candidates.items()}
        now = memory["follows"]
        best = now if now is not None else next(iter(takes))
        for name, seconds in takes.items():
            if seconds < takes[best] * (1.0 - self.gain):
                best = name
        listed = ", ".join(f"{name} {seconds:.6g} s" for name, seconds in sorted(takes.items(), key=lambda x: x[1]))
        why = f"{best}: with {len(view.trials)} trials on {len(view.slots)} slots {listed}"
        inner = memory["inner"] if best == now else self.candidates[best].start()
        return {"follows": best, "inner": inner, "known": len(view.known), "slots": _members(view), "why": why}


def _members(view: View) -> str:
    """The slots here, told in a few letters: memories are journalled."""
    return blake2b("\0".join(sorted(view.slots)).encode(), digest_size=8).hexdigest()
