"""The cost of packs and of beliefs gone wrong."""

import pytest
from noisy import Noisy

from shoal.core.cluster import ShardId, SlotId
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import Trial, TrialId
from shoal.profile.pack import PackCost, Packs
from shoal.profile.table import Row, Table
from shoal.testing.deciders import check_profile

TRIALS = {TrialId(f"t{b}"): Trial(TrialId(f"t{b}"), 1, {"batch_size": b}) for b in (20, 40, 60)}
SLOTS = [SlotId("a"), SlotId("b")]


def pack(*trials, slot="a"):
    return Gang(tuple(Lane(TrialId(t), (SlotId(slot),)) for t in trials))


def test_contracts():
    check_profile(
        Packs(PackCost.sharing(0.6), 1.0, 0.01, speeds={SLOTS[1]: 2.0}).of(TRIALS),
        list(TRIALS),
        SLOTS,
    )
    check_profile(Noisy(Table((Row((10.0, 15.0)),)).of(TRIALS), 0.5), list(TRIALS), SLOTS)


def test_sharing_says_what_part_of_a_step_is_common():
    cost = PackCost.sharing(0.8, joint=0.0)
    alone = cost.step([45])
    assert cost.step([45] * 10) == pytest.approx(alone * (0.8 + 0.2 * 10))


def test_an_epoch_is_its_phases():
    cost = PackCost(compute=0.01, fixed=1.0, moving=0.1, joint=0.5, repack=7.0)
    both, last = (100 / 50 * (1 + 5 + 0.6 + 1.0), (100 / 10 - 100 / 50) * (1 + 1 + 0.1 + 0.5))
    assert cost.epoch([10, 50], 100) == pytest.approx(both + 7.0 + last)
    assert cost.epoch([10, 10], 100) == pytest.approx(10 * (1 + 1 + 0.2 + 1.0))


def test_lanes_of_a_pack_go_step_by_step():
    profile = Packs(PackCost.sharing(0.6)).of(TRIALS)
    rates = profile.rates(pack("t20", "t60"))
    assert rates["t60"] == pytest.approx(3 * rates["t20"])
    assert rates["t20"] == pytest.approx(20 / profile.cost_of.step([20, 60]))
    assert rates["t20"] < profile.curve(TrialId("t20"), 1)[0]


def test_repacking_costs_only_where_there_was_a_pack():
    profile = Packs(PackCost.sharing(0.6, repack=3.0)).of(TRIALS)
    assert profile.switch(None, pack("t20")) == 0
    assert profile.switch(pack("t20", "t40"), pack("t40")) == 3
    assert profile.switch(pack("t20"), pack("t20")) == 0


@pytest.mark.parametrize("wrong", [{"compute": 0.0}, {"compute": 1.0, "fixed": -1.0}])
def test_wrong_costs(wrong):
    with pytest.raises(ValueError, match=">= 0"):
        PackCost(**wrong)


def test_noise_has_a_factor_for_each_place_and_mean_one():
    base = Table((Row((10.0,)),)).of(TRIALS)
    noisy = Noisy(base, 0.3, 1)
    times = [
        1 / noisy.rates(solo(TrialId("t20"), SlotId(f"w{i}"), 0, ShardId("s")))[TrialId("t20")]
        for i in range(4000)
    ]
    mean = sum(times) / len(times)
    assert mean == pytest.approx(0.1, rel=0.02)
    assert (sum((t / mean - 1) ** 2 for t in times) / len(times)) ** 0.5 == pytest.approx(
        0.3, rel=0.05
    )
    assert Noisy(base, 0.0).rates(solo(TrialId("t20"), SLOTS[0], 0)) == base.rates(
        solo(TrialId("t20"), SLOTS[0], 0)
    )
    with pytest.raises(ValueError, match="sigma=-1"):
        Noisy(base, -1)
