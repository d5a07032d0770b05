"""Few trials on many slots: groups of slots, and never slower than hopping or data parallelism alone."""

import pytest

from shoal.backend.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Finished, Opened, Planned
from shoal.core.plan import Proposal
from shoal.core.state import State, fold
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.hop import Hop
from shoal.policy.hybrid import Hybrid
from shoal.profile.table import Row, Table
from shoal.testing.policies import check_policy

SLOTS, SIZE, EPOCHS = 8, 80, 2
SHARDS = {ShardId(f"s{q}"): SIZE for q in range(SLOTS)}


class These:
    def __init__(self, count, widths):
        self.trials = tuple(
            Trial(TrialId(f"t{i}"), EPOCHS * SIZE * SLOTS, {"i": i}, widths, frozenset(SHARDS)) for i in range(count)
        )

    def start(self):
        return 0

    def propose(self, view, came):
        return (Proposal(self.trials), 1) if not came else (Proposal(), came)


def simulate(policy, count, rho, widths=(1, SLOTS)):
    rates = [10.0 * w / (1 + rho * 2 * (w - 1) / w) for w in range(1, SLOTS + 1)]
    table = Table((Row(tuple(rates)),))
    slots = [Slot(SlotId(f"w{w}"), shards=frozenset([ShardId(f"s{w}")])) for w in range(SLOTS)]
    sim = Sim(table.of, slots, shards=SHARDS, checkpoint_every=1e9)
    journal = Journal()
    state = run(These(count, widths), policy, sim, table.believe, journal, fold(State(), [Opened(1, SHARDS)]))
    widest = {
        len(lane.slots) for line in journal.lines if isinstance(line.entry, Planned) for g in line.entry.start for lane in g.lanes
    }
    for visits in state.visits.values():
        assert len(visits) == EPOCHS * SLOTS
        assert all({v.shard for v in visits if v.epoch == k} == set(SHARDS) for k in range(EPOCHS))
    return max(line.time for line in journal.lines if isinstance(line.entry, Finished)), widest


@pytest.mark.parametrize("rho", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_never_slower_than_hopping_or_data_parallelism(count, rho):
    hopping, _ = simulate(Hop("lrw"), count, rho)
    parallel = count * EPOCHS * SIZE * SLOTS / (10.0 * SLOTS / (1 + rho * 2 * (SLOTS - 1) / SLOTS))
    span, widest = simulate(Hybrid(), count, rho)
    assert span <= min(hopping, parallel) * (1 + 1e-9)
    if count == 2 and rho == 0.05:
        assert widest == {4}
        assert span == pytest.approx(hopping * 2 * (1 + 0.1 * 3 / 4) / 8)


def test_trials_that_may_not_be_wide_hop():
    assert simulate(Hybrid(), 2, 0.05, (1, 1)) == simulate(Hop("lrw"), 2, 0.05, (1, 1))
    _, widest = simulate(Hybrid(), 2, 0.05, (1, 2))
    assert widest == {2}


def test_contract():
    check_policy(Hybrid, examples=20)
