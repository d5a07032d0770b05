"""Hops as planned: the contract, the orders kept, and what replicas are worth."""

import json

import numpy as np
import pytest
from noisy import Noisy

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Commanded, Finished, Joined, Left, Opened, Remembered
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Visit
from shoal.engine.journal import Journal, replay
from shoal.engine.run import reopened, run
from shoal.policy import describe, rebuild
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.planned import PILOTS
from shoal.policy.hop.schedules import bound, replica_shares
from shoal.policy.hop.shop import Shop
from shoal.profile.measure import Believer
from shoal.profile.table import Row, Table
from shoal.search.trace import Trace
from shoal.testing.deciders import check_policy

SIZE = 64


@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.nightly)])
def test_contract(examples):
    check_policy(lambda: Hop("quick4"), examples=examples)


def test_described_and_rebuilt():
    assert rebuild(json.loads(json.dumps(describe(Hop("quick4"))))) == Hop("quick4")


class Cluster:
    """Trials of unlike size at slots of unlike speed; shard q lies at the slots `holders[q]`."""

    def __init__(self, flops, speeds, holders=None):
        self.shards = {ShardId(f"s{q}"): SIZE for q in range(len(speeds))}
        held = holders or [[q] for q in range(len(speeds))]
        here = [
            frozenset(s for q, s in enumerate(self.shards) if w in held[q])
            for w in range(len(speeds))
        ]
        self.slots = tuple(Slot(SlotId(f"w{w}"), shards=here[w]) for w in range(len(speeds)))
        rows = [Row((SIZE / f,), {"m": i}) for i, f in enumerate(flops)]
        self.table = Table(
            rows, {slot.id: float(s) for slot, s in zip(self.slots, speeds, strict=True)}
        )
        self.trials = [(0, {"m": i}) for i in range(len(flops))]

    def run(
        self,
        policy,
        epochs=1,
        script=(),
        truth=None,
        state=None,
        journal=None,
        late=(),
        believe=None,
    ):
        state = fold(State(), [Opened(1, self.shards)]) if state is None else state
        sim = Sim(
            truth or self.table.of,
            self.slots,
            script,
            shards=self.shards,
            checkpoint_every=0.0,
            former=(state, 0.0),
        )
        journal = journal or Journal()
        state = run(
            Trace([*self.trials, *late], epochs),
            policy,
            sim,
            believe or self.table.believe,
            journal,
            state,
        )
        return state, journal.lines

    def makespan(self, policy, **more):
        _, lines = self.run(policy, **more)
        return max(line.time for line in lines if isinstance(line.entry, Finished))


def learnt(state):
    return {t: [(v.epoch, v.shard) for v in visits] for t, visits in state.visits.items()}


def test_plan_is_followed_to_the_second():
    rng = np.random.default_rng(1)
    flops, speeds = rng.uniform(1, 9, 8), rng.uniform(1, 3, 8)
    least = bound((flops[:, None] / speeds).tolist())
    assert Cluster(flops, speeds).makespan(Hop("quick4")) <= 1.02 * least


def test_every_shard_once_an_epoch_and_orders_alike():
    state, _ = Cluster([5, 3, 2, 7, 1], [2, 1, 3]).run(Hop("quick4"), epochs=3)
    for visits in learnt(state).values():
        epochs = [[s for e, s in visits if e == k] for k in range(3)]
        assert all(sorted(epoch) == ["s0", "s1", "s2"] for epoch in epochs)
        assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize("holders", [None, [[0, 1], [1, 2], [2, 0]]])
def test_interrupted_equals_undisturbed(holders):
    cluster = Cluster([5, 3, 2, 7, 1, 4], [2, 1, 3], holders)
    whole, _ = cluster.run(Hop("quick4"), epochs=2)
    lost = cluster.slots[1]
    churn = [(4.0, Left(frozenset([lost.id]), died=True)), (9.0, Joined((lost,)))]
    churned, _ = cluster.run(Hop("quick4"), epochs=2, script=churn)
    assert learnt(churned) == learnt(whole)
    halted, lines = cluster.run(Hop("quick4"), epochs=2, script=[(6.0, Commanded("stop", "test"))])
    assert halted.trials
    journal = Journal()
    state = replay(lines)
    for entry in reopened(state, cluster.shards, {}):
        journal.append(6.0, entry)
        state = fold(state, [entry])
    resumed, _ = cluster.run(Hop("quick4"), epochs=2, state=state, journal=journal)
    assert learnt(resumed) == learnt(whole)


UNLIKE = Cluster(
    [5, 3, 2, 7, 1, 4, 9, 2, 6, 3, 8, 1], [2, 1, 3, 1], [[0, 1], [1, 2], [2, 3], [3, 0]]
)


def test_plans_after_pilots_are_nearly_as_good_as_with_times_given():
    given = UNLIKE.makespan(Hop("quick4"), epochs=2)
    measured = UNLIKE.makespan(Hop("quick4"), epochs=2, believe=Believer())
    drawn = UNLIKE.makespan(Hop("random"), epochs=2)
    assert measured <= 1.1 * given
    assert measured < 0.95 * drawn


def test_orders_planned_after_pilots_are_journalled_and_kept():
    whole, lines = UNLIKE.run(Hop("quick4"), epochs=3, believe=Believer())
    for visits in learnt(whole).values():
        epochs = [[s for e, s in visits if e == k] for k in range(3)]
        assert all(sorted(epoch) == ["s0", "s1", "s2", "s3"] for epoch in epochs)
        assert epochs[0] == epochs[1] == epochs[2]
    planned = whole.memory["policy"]
    assert planned.keys() == whole.known.keys()
    early = next(
        line.entry.memory
        for line in lines
        if isinstance(line.entry, Remembered) and line.entry.who == "policy"
    )
    assert early.keys() == {PILOTS}  # nothing was planned before something was measured

    halted, lines = UNLIKE.run(
        Hop("quick4"), 3, [(30.0, Commanded("stop", "test"))], believe=Believer()
    )
    assert halted.trials and halted.memory["policy"].keys() == halted.known.keys()
    state = fold(replay(lines), reopened(replay(lines), UNLIKE.shards, {}))
    resumed, _ = UNLIKE.run(Hop("quick4"), epochs=3, state=state, believe=Believer())
    assert learnt(resumed) == learnt(whole)


def test_a_trial_of_a_new_kind_makes_a_pilot_beside_those_with_orders():
    late = [(20.0, {"m": 3, "depth": 2})]
    table = UNLIKE.table
    truth = Table([Row((7.0,), {"depth": 2}), *table.rows], table.speeds)
    state, lines = UNLIKE.run(Hop("quick4"), late=late, truth=truth.of, believe=Believer())
    assert set(state.ended.values()) == {"finished"}
    entries = [line.entry for line in lines if isinstance(line.entry, Remembered)]
    memories = [entry.memory for entry in entries if entry.who == "policy"]
    new = next(iter(state.known.keys() - UNLIKE.run(Hop("quick4"))[0].known.keys()))
    assert any(new in each.get(PILOTS, {}) and len(each) > 1 for each in memories)


def test_noise_changes_times_but_not_orders():
    cluster = Cluster([5, 3, 2, 7, 1, 4], [2, 1, 3])
    calm, _ = cluster.run(Hop("quick4"), epochs=2)
    noisy, _ = cluster.run(
        Hop("quick4"), epochs=2, truth=lambda known: Noisy(cluster.table.of(known), 0.3, 5)
    )
    assert learnt(noisy) == learnt(calm)


def test_newcomers_are_planned_and_others_keep_their_orders():
    cluster = Cluster([5, 3, 2], [2, 1])
    alone, _ = cluster.run(Hop("quick4"), epochs=2)
    cluster.table = Table([*cluster.table.rows, Row((20.0,), {"m": 9})], cluster.table.speeds)
    joined, _ = cluster.run(Hop("quick4"), epochs=2, late=[(3.0, {"m": 9})])
    assert set(joined.ended.values()) == {"finished"}
    assert len(joined.ended) == 4
    assert {t: learnt(joined)[t] for t in ("t000", "t001", "t002")} == learnt(alone)


def test_slots_that_hold_several_shards_are_one_machine():
    shards = {ShardId(f"s{q}"): SIZE for q in range(4)}
    slots = (
        Slot(SlotId("a"), shards=frozenset(["s0", "s1"])),
        Slot(SlotId("b"), shards=frozenset(["s2", "s3"])),
    )
    cluster = Cluster([2, 2], [1, 1])
    cluster.shards, cluster.slots = shards, slots
    state, lines = cluster.run(Hop("quick4"))
    assert max(line.time for line in lines if isinstance(line.entry, Finished)) == pytest.approx(
        8.0
    )
    assert all(len(visits) == 4 for visits in state.visits.values())


def test_replicas_are_used_well():
    """An eighth or more is won over the paper's rule."""
    rng = np.random.default_rng(3)
    flops, speeds = rng.uniform(1, 20, 32), rng.choice([5.6, 11.3, 12.1, 18.7], 8)
    holders = [[q, (q + 3) % 8] for q in range(8)]
    cluster = Cluster(flops, speeds, holders)
    seconds = np.full((32, 8, 8), np.inf)
    for q, at in enumerate(holders):
        seconds[:, q, at] = flops[:, None] / speeds[at]
    least, _ = replica_shares(Shop(seconds))
    planned = cluster.makespan(Hop("quick4"))
    assert least <= planned <= 1.08 * least
    drawn = [cluster.makespan(Hop("random", seed=seed)) for seed in range(4)]
    assert np.mean(drawn) >= 1.12 * planned


def test_visits_are_those_of_the_journal():
    state, _ = Cluster([1, 2], [1, 1]).run(Hop("quick4"))
    assert all(
        isinstance(v, Visit) and v.samples == SIZE
        for visits in state.visits.values()
        for v in visits
    )


@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.nightly)])
def test_early_contract(examples):
    check_policy(lambda: Hop("early"), examples=examples)


def test_early_ends_most_trials_sooner_and_the_last_no_later():
    """Goal A-4 of papers/cerebro, and where slots are what is short: half the mean time for a
    fiftieth more in all.
    """
    rng = np.random.default_rng(2)
    flops, speeds = rng.uniform(1, 20, 24), rng.choice([5.6, 11.3, 12.1, 18.7], 6)
    ends = {}
    for rule in ("lrw", "early"):
        _, lines = Cluster(flops, speeds).run(Hop(rule), epochs=5)
        ends[rule] = [line.time for line in lines if isinstance(line.entry, Finished)]
    assert max(ends["early"]) <= 1.03 * max(ends["lrw"])
    assert np.mean(ends["early"]) <= 0.65 * np.mean(ends["lrw"])


class FirstRotates:
    """Rotates for so many seconds; then hops are planned, amid everybody's epoch."""

    def __init__(self, seconds):
        self.seconds = seconds

    def start(self):
        return {"rotation": Hop().start(), "quick4": Hop("quick4").start()}

    def decide(self, view, memory):
        rule = "rotation" if view.now < self.seconds else "quick4"
        plan, after = Hop(rule).decide(view, memory[rule])
        return plan, {**memory, rule: after}


@pytest.mark.parametrize("seconds", [3.0, 10.0, 40.0])
def test_who_plans_amid_an_epoch_sends_later_ones_to_no_single_holder(seconds):
    """The visits made so far are in every later epoch, too: any of their holders makes them."""
    everywhere = [[0, 1, 2, 3]] * 4
    cluster = Cluster([1.0] * 9, [0.3, 1.0, 1.0, 1.0], everywhere)
    whole = cluster.makespan(Hop("quick4"), epochs=6)
    assert cluster.makespan(FirstRotates(seconds), epochs=6) <= 1.15 * whole
