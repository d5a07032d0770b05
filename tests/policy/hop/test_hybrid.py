"""Few trials on many slots: groups of slots, and never slower than hopping or data parallelism
alone.
"""

import pytest

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Finished, Joined, Left, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Proposal
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.hybrid import Hybrid
from shoal.profile.table import Row, Table
from shoal.testing.policies import check_policy

SLOTS, SIZE, EPOCHS = 8, 80, 2
SHARDS = {ShardId(f"s{q}"): SIZE for q in range(SLOTS)}


class These:
    def __init__(self, count, widths):
        self.trials = tuple(
            Trial(
                TrialId(f"t{i}"),
                EPOCHS * SIZE * SLOTS,
                {"i": i},
                widths,
                frozenset(SHARDS),
            )
            for i in range(count)
        )

    def start(self):
        return 0

    def propose(self, view, came):
        return (Proposal(self.trials), 1) if not came else (Proposal(), came)


def simulate(policy, count, rho, widths=(1, SLOTS)):
    rates = [10.0 * w / (1 + rho * 2 * (w - 1) / w) for w in range(1, SLOTS + 1)]
    table = Table((Row(tuple(rates)),))
    slots = [
        Slot(SlotId(f"w{w}"), shards=frozenset([ShardId(f"s{w}")]))
        for w in range(SLOTS)
    ]
    sim = Sim(table.of, slots, shards=SHARDS, checkpoint_every=1e9)
    journal = Journal()
    state = run(
        These(count, widths),
        policy,
        sim,
        table.believe,
        journal,
        fold(State(), [Opened(1, SHARDS)]),
    )
    widest = {
        len(lane.slots)
        for line in journal.lines
        if isinstance(line.entry, Planned)
        for g in line.entry.start
        for lane in g.lanes
    }
    for visits in state.visits.values():
        assert len(visits) == EPOCHS * SLOTS
        assert all(
            {v.shard for v in visits if v.epoch == k} == set(SHARDS)
            for k in range(EPOCHS)
        )
    return max(
        line.time for line in journal.lines if isinstance(line.entry, Finished)
    ), widest


@pytest.mark.parametrize("rho", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_never_slower_than_hopping_or_data_parallelism(count, rho):
    hopping, _ = simulate(Hop("lrw"), count, rho)
    parallel = (
        count
        * EPOCHS
        * SIZE
        * SLOTS
        / (10.0 * SLOTS / (1 + rho * 2 * (SLOTS - 1) / SLOTS))
    )
    span, widest = simulate(Hybrid(), count, rho)
    assert span <= min(hopping, parallel) * (1 + 1e-9)
    if count == 2 and rho == 0.05:
        assert widest == {4}
        assert span == pytest.approx(hopping * 2 * (1 + 0.1 * 3 / 4) / 8)


def test_trials_that_may_not_be_wide_hop():
    assert simulate(Hybrid(), 2, 0.05, (1, 1)) == simulate(Hop("lrw"), 2, 0.05, (1, 1))
    _, widest = simulate(Hybrid(), 2, 0.05, (1, 2))
    assert widest == {2}


def small(widths, slots):
    """When trials of these widths end, hopping in groups on so many slots with a shard each."""
    shards = {ShardId(f"s{q}"): SIZE for q in range(slots)}
    trials = tuple(
        Trial(TrialId(f"t{i}"), 2.0 * SIZE * slots, {"i": i}, each, frozenset(shards))
        for i, each in enumerate(widths)
    )
    table = Table((Row(tuple(10.0 * w for w in range(1, slots + 1))),))
    homes = [
        Slot(SlotId(f"w{w}"), shards=frozenset([ShardId(f"s{w}")]))
        for w in range(slots)
    ]
    study = These(0, (1, 1))
    study.trials = trials
    sim = Sim(table.of, homes, shards=shards, checkpoint_every=1e9)
    journal = Journal()
    opened = fold(State(), [Opened(1, shards)])
    state = run(study, Hybrid(), sim, table.believe, journal, opened)
    for line in journal.lines:
        for gang in getattr(line.entry, "start", ()):
            for lane in gang.lanes:
                fewest, most = widths[int(lane.trial[1:])]
                assert fewest <= len(lane.slots) <= most
    return state.ended


@pytest.mark.parametrize(
    ("widths", "slots"),
    [
        ([(2, 2)] * 4, 2),
        ([(2, 2)], 2),
        ([(2, 2)] * 4, 3),  # no division: groups of two leave one slot
        ([(2, 4)] * 4, 5),
        ([(3, 4)] * 4, 4),
        ([(1, 1), (2, 2)], 2),  # no width suits both
        ([(1, 1), (2, 2), (3, 3)], 3),
    ],
)
def test_trials_that_need_several_slots_are_started(widths, slots):
    assert len(small(widths, slots)) == len(widths)


@pytest.mark.parametrize(("widths", "slots"), [((2, 2), 4), ((2, 4), 6)])
def test_slots_that_leave_in_the_middle_of_an_epoch_leave_no_group_too_narrow(
    widths, slots
):
    shards = {ShardId(f"s{q}"): SIZE for q in range(slots)}
    homes = tuple(Slot(SlotId(f"w{w}"), shards=frozenset(shards)) for w in range(slots))
    trials = tuple(
        Trial(TrialId(f"t{i}"), 2.0 * SIZE * slots, {"i": i}, widths, frozenset(shards))
        for i in range(3)
    )
    profile = Table((Row(tuple(10.0 * w for w in range(1, slots + 1))),))
    known = fold(State(), [Opened(1, shards), Joined(homes), *map(Submitted, trials)])
    look = view(known, 0.0, profile.of(known.known))
    plan, memory = Hybrid().decide(look, Hybrid().start())
    assert plan.gangs
    gone = Left(frozenset([SlotId("w0")]))
    known = fold(known, [Planned((), tuple(plan.gangs)), gone])
    look = view(known, 1.0, profile.of(known.known))
    after, _ = Hybrid().decide(look, memory)
    for gang in after.gangs - look.plan.gangs:
        assert widths[0] <= len(gang.slots) <= widths[1]


def test_contract():
    check_policy(Hybrid, examples=20)
