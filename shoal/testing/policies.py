"""The contract of a policy."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from shoal.core.check import check
from shoal.core.plan import Plan
from shoal.core.ports import Policy
from shoal.core.state import State, View
from shoal.testing.journals import check_journal, through_json
from shoal.testing.worlds import World, in_random_worlds


def check_policy(
    make: Callable[[], Policy[Any]], examples: int = 40, finishes: bool = True
) -> None:
    """Run the policy in small random studies, and check that it keeps its contract.

    In these studies slots come and go, shards have replicas, and memory is short. Every plan must
    pass `check`. Deciding must be pure, and its memory JSON-able. Equal seeds must give equal
    journals, and replaying a journal must give the state.

    `examples`: the number of studies. `finishes`: whether the policy must finish each study that
    can be finished.
    """

    def holds(world: World) -> None:
        lines, state, stalled = world.run(WatchedPolicy(make()))
        check_journal(lines, state)
        again, _, _ = world.run(make())
        assert lines == again, "two runs of one study made different journals"
        if finishes:
            assert not stalled, (
                f"stalled with {sorted(state.trials)} unfinished on {sorted(state.slots)}"
            )
            _check_ended(state)

    in_random_worlds(examples, holds)


def _check_ended(state: State) -> None:
    """No trial failed, unless too many slots died under it."""
    for trial, how in state.ended.items():
        assert how == "finished" or "died under it" in how, f"{trial}: {how}"


class WatchedPolicy:
    """A policy that is asked everything twice."""

    def __init__(self, inner: Policy[Any]) -> None:
        self.inner = inner

    def start(self) -> Any:
        memory = self.inner.start()
        assert memory == self.inner.start(), "start() must always give the same memory"
        return memory

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        read = through_json(memory)
        before = deepcopy(memory)
        plan, remembered = self.inner.decide(view, memory)
        assert memory == before, "a policy must not change the memory that it is given"
        again = self.inner.decide(view, read)
        assert again == (plan, remembered), (
            f"asked twice about the same view, it answered {plan} and {again[0]}"
        )
        check(plan, view)
        _check_since(plan, view)
        return plan, remembered


def _check_since(plan: Plan, view: View) -> None:
    """New gangs say the turn that made them, or that of a gang which goes on as they."""
    old = view.plan.gangs
    turns = {view.turn, *(gang.since for gang in old)}
    for gang in plan.gangs - old:
        assert gang.since in turns, f"new gangs must have since={view.turn}; got {gang}"
