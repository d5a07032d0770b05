"""The mechanism under which Table 3's figures come out: who runs is drawn by lot, again every
ten minutes.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.combine import part


@dataclass(frozen=True)
class Lottery:
    """The policy, over the trials in an order drawn by lot for each stretch of `seconds`; new
    ones draw at once.

    While there are more trials than slots, those drawn last are stopped: the policy does not see
    that they run, and weighs nothing against them.
    """

    policy: Policy[Any]
    seconds: Seconds = 600.0
    seed: int = 0

    def start(self) -> list[Any]:
        return [-1, self.policy.start()]

    def decide(self, view: View, memory: list[Any]) -> tuple[Plan, list[Any]]:
        tick = int(view.now // self.seconds)

        def lot(trial: TrialId) -> bytes:
            return blake2b(f"{self.seed}/{tick}/{trial}".encode(), digest_size=8).digest()

        drawn = sorted(view.trials, key=lot)
        first = set(drawn[: len(view.slots)])
        gangs = [gang for gang in view.plan.gangs if gang.trials[0] in first]
        asked = part(view, view.slots, drawn, gangs)
        asked = replace(asked, trials={trial: view.trials[trial] for trial in drawn})
        plan, inner = self.policy.decide(asked, memory[1])
        wakes = [
            at
            for at in (plan.wake_at, (tick + 1) * self.seconds if view.trials else None)
            if at is not None
        ]
        return Plan(plan.gangs, min(wakes, default=None)), [tick, inner]
