"""The contract of a policy."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, given, settings

from shoal.core.check import check
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import View
from shoal.testing.journals import check_journal
from shoal.testing.worlds import World, worlds


def check_policy(make: Callable[[], Policy[Any]], examples: int = 40, finishes: bool = True) -> None:
    """Run the policy in small random studies with churn, replicas and little memory, and hold it to its contract.

    Every plan passes `check`; deciding is pure and its memory JSON-able; equal seeds give equal journals;
    replaying the journal gives the state. `finishes`: a study that can be finished is.
    """

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(worlds())
    def holds(world: World) -> None:
        lines, state, stalled = world.run(Watched(make()))
        check_journal(lines, state)
        again, _, _ = world.run(make())
        assert lines == again, "two runs of one study made different journals"
        if finishes:
            assert not stalled, f"stalled with {sorted(state.trials)} unfinished on {sorted(state.slots)}"
            wrong = {t: how for t, how in state.ended.items() if how != "finished" and "died under it" not in how}
            assert not wrong, f"not finished: {wrong}"

    holds()


class Watched:
    """A policy that is asked everything twice."""

    def __init__(self, inner: Policy[Any]) -> None:
        self.inner = inner

    def start(self) -> Any:
        memory = self.inner.start()
        assert memory == self.inner.start(), "start() must always give the same memory"
        return memory

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        assert json.loads(json.dumps(memory)) == memory, f"memory must survive JSON (no tuples, sets, keys but text): {memory!r}"
        before = deepcopy(memory)
        plan, remembered = self.inner.decide(view, memory)
        assert memory == before, "a policy must not change the memory that it is given"
        again = self.inner.decide(view, json.loads(json.dumps(memory)))
        assert again == (plan, remembered), f"asked twice about the same view, it answered {plan} and {again[0]}"
        check(plan, view)
        fresh = [gang for gang in plan.gangs - view.plan.gangs if gang.since != view.turn and gang.since not in _turns(view)]
        assert not fresh, f"new gangs must have since={view.turn}; got {fresh}"
        return plan, remembered


def _turns(view: View) -> set[int]:
    return {gang.since for gang in view.plan.gangs}
