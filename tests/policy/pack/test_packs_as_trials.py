"""Packs as trials: under a hopping policy, under churn, and what that is worth."""

from itertools import chain
from typing import Any

import pytest

from shoal.backend.sim.sim import Sim
from shoal.backend.sim.units import SimulatedRecipe
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Finished, Joined, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal, replay
from shoal.engine.run import reopened, run
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.policy.pack import packs_as_trials
from shoal.policy.pack.packs_as_trials import PacksAsTrials
from shoal.profile.pack import PackCost, Packs
from shoal.search.trace import Trace
from shoal.testing.deciders import check_policy

SHARDS = {ShardId(f"s{i}"): 1000 for i in range(4)}
SHARED = Packs(PackCost.sharing(0.6, repack=0.0), memory=0.4, per_sample=0.6 / 45)


@pytest.mark.parametrize("inner", [Hop(), Hop("lrw"), Hop("quick4"), Fifo()], ids=repr)
@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.nightly)])
def test_contract(inner: Any, gains: bool, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs_as_trials, "gains", lambda *_: gains)
    check_policy(lambda: PacksAsTrials(inner, most=3), examples=examples)


def test_a_pack_has_a_trial() -> None:
    with pytest.raises(ValueError, match="most=0"):
        PacksAsTrials(Hop(), most=0)


def simulate(policy: Any, trials: int, slots: int) -> tuple[list[Any], float]:
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(list(SHARDS)[i::slots])) for i in range(slots)]
    sim = Sim(SHARED.of, here, shards=SHARDS, checkpoint_every=1e9)
    journal, state = Journal(), fold(State(), [Opened(1, SHARDS)])
    run(Trace([(0.0, {"batch_size": 20})] * trials, 2), policy, sim, SHARED.believe, journal, state)
    gangs = [
        gang
        for line in journal.lines
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    ]
    return gangs, max(line.time for line in journal.lines if isinstance(line.entry, Finished))


def test_packs_hop() -> None:
    """Eight trials on two slots: two packs of four, each over all shards in both epochs."""
    gangs, end = simulate(PacksAsTrials(Hop()), 8, 2)
    assert {gang.trials for gang in gangs} == {
        ("t000", "t001", "t002", "t003"),
        ("t004", "t005", "t006", "t007"),
    }
    assert all(len(gang.slots) == 1 and len(gang.shards) == 1 and gang.fused for gang in gangs)
    assert len(gangs) == 2 * 2 * len(SHARDS)
    _, alone = simulate(Hop(), 8, 2)
    assert end == pytest.approx(
        alone * SHARED.cost_of.step([20] * 4) / (4 * SHARED.cost_of.step([20])), rel=0.01
    )


def test_packs_are_formed_when_the_slots_are_known() -> None:
    """There are trials before the first slot joins; packs are to leave one for every slot."""
    trials = [
        Submitted(Trial(TrialId(f"t{i}"), 4000.0, {"batch_size": 20}, shards=frozenset(SHARDS)))
        for i in range(8)
    ]
    state, policy = fold(State(), [Opened(1, SHARDS), *trials]), PacksAsTrials(Hop())
    memory = policy.decide(view(state, 0.0, SHARED.believe(state)), policy.start())[1]
    assert memory == policy.start()
    state = fold(
        state,
        [
            Joined(
                tuple(Slot(SlotId(f"g{i}"), shards=frozenset(list(SHARDS)[i::4])) for i in range(4))
            )
        ],
    )
    plan, _ = policy.decide(view(state, 4.0, SHARED.believe(state)), memory)
    assert sorted(len(gang.trials) for gang in plan.gangs) == [2, 2, 2, 2]


@pytest.mark.parametrize("rule", ["rotation", "quick4"])
def test_the_order_of_shards_is_fixed_whoever_leads(rule: Any) -> None:
    """The first of a pack fails after an epoch; the others go on in the same order, after a
    crash too.
    """
    state, lines = studied(PacksAsTrials(Hop(rule), most=4), fails={TrialId("t000")})
    alone = {t: orders(visits) for t, visits in state.visits.items()}
    assert all(len(set(epochs)) == 1 for epochs in alone.values())
    packs = [
        g.trials
        for line in lines
        if isinstance(line.entry, Planned)
        for g in line.entry.start
        if len(g.lanes) > 1
    ]
    assert packs
    for cut in range(10, len(lines), 29):
        again, _ = studied(
            PacksAsTrials(Hop(rule), most=4), fails={TrialId("t000")}, former=lines[:cut]
        )
        assert {t: orders(visits) for t, visits in again.visits.items()} == alone, (
            f"killed after entry {cut}"
        )


def orders(visits: Any) -> list[tuple[str, ...]]:
    """Of each epoch."""
    return [tuple(v.shard for v in visits[i : i + 4]) for i in range(0, len(visits), 4)]


def studied(policy: Any, fails: Any, former: Any = ()) -> tuple[State, list[Any]]:
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(list(SHARDS)[i::2])) for i in range(2)]
    journal, since = Journal(), former[-1].time if former else 0.0
    journal.lines += former
    state = replay(journal.lines)
    for entry in reopened(state, SHARDS, {}):
        journal.append(since, entry)
        state = fold(state, [entry])

    def fault(trial: Any, visits: int) -> str | None:
        return "why" if trial.id in fails and visits >= 4 else None

    sim = Sim(
        SHARED.of,
        here,
        shards=SHARDS,
        checkpoint_every=30.0,
        recipe=SimulatedRecipe(fault=fault),
        former=(state, since),
    )
    state = run(
        Trace([(0.0, {"batch_size": 20})] * 8, 3), policy, sim, SHARED.believe, journal, state
    )
    return state, journal.lines


def test_no_slot_goes_without_a_pack() -> None:
    gangs, _ = simulate(PacksAsTrials(Hop()), 5, 4)
    assert all(len(gang.lanes) == 1 for gang in gangs)


def test_packs_that_wait_are_halved_until_every_slot_has_one() -> None:
    """As trials end packs become few; those at work are left as they are."""
    trials = [Trial(TrialId(f"t{i}"), 4000.0, {}) for i in range(6)]
    slots = tuple(Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(4))
    gang = Gang((Lane(TrialId("t5"), (slots[0].id,)),), (ShardId("s0"),), 1000.0)
    state = fold(
        State(), [Opened(1, SHARDS), Joined(slots), *map(Submitted, trials), Planned((), (gang,))]
    )
    look = view(state, 0.0, SHARED.of(state.known))
    first = [TrialId(f"t{i}") for i in range(5)]
    packs = packs_as_trials.one_for_each_slot(look, [first, [TrialId("t5")]])
    assert [len(pack) for pack in packs] == [2, 1, 2, 1]
    assert sorted(chain(*packs)) == [trial.id for trial in trials]
    at_work = packs_as_trials.one_for_each_slot(look, [[TrialId("t5"), TrialId("t4")]])
    assert at_work == [[TrialId("t5"), TrialId("t4")]]
