"""The policies that choose widths hold the contract: as they come, and where trials differ in
widths, speed-ups and size.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from noisy import noisy

from shoal.backend.sim.lookahead import ahead
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Proposal
from shoal.core.ports import Policy, Searcher
from shoal.core.state import View
from shoal.policy import describe, rebuild
from shoal.policy.auto import Auto
from shoal.policy.combine import admit, every, fallback
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.hybrid import Hybrid
from shoal.policy.mixed import Mixed
from shoal.policy.reference.baselines import HeSrpt, Rounds, SrptK, Width, Wrate
from shoal.policy.width.doubling import Doubling
from shoal.policy.width.equi import Equi
from shoal.policy.width.explore import Explore
from shoal.policy.width.flotilla import Flotilla
from shoal.policy.width.waterfill import WaterFill
from shoal.profile.table import Row, Table
from shoal.search.grid import Grid
from shoal.search.space import GridDomain
from shoal.testing import check_policy
from shoal.testing.deciders import WatchedPolicy
from shoal.testing.journals import check_journal
from shoal.testing.worlds import World, worlds

POLICIES: dict[str, Callable[[], Policy[Any]]] = {
    "doubling": Doubling,
    "doubling-every": lambda: Doubling(every=5.0),
    "plus-one": lambda: Doubling("plus-one"),
    "exact": lambda: Doubling("exact"),
    "width-1": Width,
    "width-4": lambda: Width(4),
    "explore": lambda: Explore(seconds=4.0, most=4),
    "equi": Equi,
    "wrate": Wrate,
    "wrate-sticky": lambda: Wrate(1.0, hysteresis=0.2),
    "hesrpt": HeSrpt,
    "srpt-k": SrptK,
    "waterfill": WaterFill,
    "waterfill-ticks": lambda: WaterFill(expect=50.0, every=3.0),
    "flotilla": Flotilla,
    "flotilla-local": lambda: Flotilla("local"),
    "flotilla-as-printed": lambda: Flotilla(guard=False, delta=20.0),
    "rounds": Rounds,
    "hybrid": Hybrid,
    "hybrid-lrw": lambda: Hybrid(Hop("lrw")),
    "mixed": lambda: Mixed(gain=0.0, most=3, fuse=True),
    "admit": lambda: admit(2, Equi()),
    "every": lambda: every(4.0, Equi()),
    "fallback": lambda: fallback(admit(1, Doubling()), Fifo()),
    "fallback-to-widths": lambda: fallback(Fifo(), Equi()),
    "fallback-of-units": lambda: fallback(Hop(), Equi()),
}


# Studies that each policy is tried on. They are the same ones each time: more of them are tried
# before a release.
EXAMPLES = pytest.mark.parametrize("examples", [5, pytest.param(40, marks=pytest.mark.nightly)])


@EXAMPLES
@pytest.mark.parametrize("name", POLICIES)
def test_contract(name: str, examples: int) -> None:
    check_policy(POLICIES[name], examples=examples)


@dataclass(frozen=True)
class Widened:
    """Another searcher whose trials have these widths, by number."""

    inner: Searcher[Any]
    widths: tuple[tuple[int, int], ...]

    def start(self) -> Any:
        return self.inner.start()

    def propose(self, view: View, memory: Any) -> tuple[Proposal, Any]:
        proposal, memory = self.inner.propose(view, memory)
        wide = tuple(replace(t, widths=self.widths[int(t.id[1:])]) for t in proposal.submit)
        return replace(proposal, submit=wide), memory


@st.composite
def wide_worlds(draw: st.DrawFn) -> World:
    """Worlds whose trials take several slots, some of them at least two or three, with
    speed-ups that may fall.
    """
    world = draw(worlds())
    roomy = sum(slot.memory > 3.0 for slot in world.slots)
    rows, widths = [], []
    for row in world.table.rows:
        steps = draw(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=5))
        rates = [row.rates[0]]
        for step in steps:
            rates.append(rates[-1] * step)
        rows.append(replace(row, rates=tuple(rates)))
        fewest = draw(st.integers(1, roomy))
        widths.append((fewest, draw(st.integers(fewest, 6))))
    table = Table(tuple(rows))
    return replace(world, table=table, searcher=Widened(world.searcher, tuple(widths)))


@EXAMPLES
@pytest.mark.parametrize("name", POLICIES)
def test_contract_with_widths(name: str, examples: int) -> None:
    one_slot = any(word in name for word in ("hop", "fifo", "fallback-of-units"))

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(wide_worlds())
    def holds(world: World) -> None:
        lines, state, stalled = world.run(WatchedPolicy(POLICIES[name]()))
        check_journal(lines, state)
        assert lines == world.run(POLICIES[name]())[0]
        assert one_slot or not stalled, f"stalled with {state.trials} on {state.slots}"
        assert all(how == "finished" or "died under it" in how for how in state.ended.values())

    holds()


def test_wrong_beliefs_break_nothing() -> None:
    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(wide_worlds(), st.sampled_from(["doubling", "equi", "waterfill", "flotilla"]))
    def holds(world: World, name: str) -> None:
        policy = POLICIES[name]()
        lines, state, stalled = world.run(WatchedPolicy(_Believing(policy)))
        check_journal(lines, state)
        assert not stalled

    holds()


@dataclass(frozen=True)
class _Believing:
    """A policy that sees a profile with errors."""

    inner: Policy[Any]

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: View, memory: Any) -> Any:
        return self.inner.decide(replace(view, profile=noisy(view.profile, 0.5)), memory)


def test_auto_holds_the_contract() -> None:
    check_policy(lambda: Auto({"fifo": Fifo(), "equi": Equi(), "hop": Hop()}, ahead), examples=10)


def test_policies_survive_being_described() -> None:
    for make in POLICIES.values():
        policy = make()
        assert rebuild(json.loads(json.dumps(describe(policy)))) == policy


@EXAMPLES
@pytest.mark.parametrize("name", [n for n in POLICIES if "explore" not in n])
def test_asked_again_at_once_it_changes_nothing(name: str, examples: int) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(wide_worlds())
    def holds(world: World) -> None:
        world.run(_Settled(POLICIES[name]()))

    holds()


@dataclass(frozen=True)
class _Settled:
    """A policy whose plan must be what it wants once it runs."""

    inner: Policy[Any]

    def start(self) -> Any:
        return self.inner.start()

    def decide(self, view: View, memory: Any) -> Any:
        plan, memory = self.inner.decide(view, memory)
        busy = {slot: gang for gang in plan.gangs for slot in gang.slots}
        running = {trial: gang for gang in plan.gangs for trial in gang.trials}
        again, _ = self.inner.decide(
            replace(view, turn=view.turn + 1, plan=plan, busy=busy, running=running), memory
        )
        assert again.gangs == plan.gangs
        return plan, memory


def test_trials_join_a_gang_when_the_units_of_their_old_ones_are_over() -> None:
    """When t002 ends, t001's unit still has its evaluation to do, and t000 does not."""
    rows = (
        Row((1.0,), {"x": 0}, memory=1.0),
        Row((2.0,), {"x": 1}, evaluate=0.125),
        Row((22.0,), {"x": 2}),
    )
    shards = {ShardId(f"s00{k}"): 1 for k in range(3)}
    slots = tuple(
        Slot(SlotId(f"slot{k}"), f"n{k // 2}", "cpu", 16.0, frozenset(() if k else shards))
        for k in range(3)
    )
    searcher = Grid({"x": GridDomain((0, 1, 2), ())}, max_epochs=1)
    world = World(shards, slots, (), Table(rows), searcher, 0, 0.0)
    lines, state, _ = world.run(Flotilla(guard=False, delta=20.0))
    check_journal(lines, state)
