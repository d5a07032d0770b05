"""Packing figures per kind of trial, against the one cost model for all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, solo
from shoal.core.trial import Trial, TrialId
from shoal.profile.pack import PackCost, Packing, Packs
from shoal.profile.table import Row, Table

COST = PackCost(compute=1e-3, fixed=0.02, moving=2e-4, joint=5e-3, repack=3.0)
W = [SlotId("w0"), SlotId("w1")]


def trials(*batches):
    return {
        TrialId(f"t{i}"): Trial(TrialId(f"t{i}"), 100.0, {"batch_size": b})
        for i, b in enumerate(batches)
    }


def table(*batches, rates=None, packing=None):
    packing = packing or Packing(COST, 45, per_sample=0.01)
    return Table((Row(rates or (packing.rate(),), memory=0.4, packing=packing),)).of(
        trials(*batches)
    )


@given(st.lists(st.integers(1, 512), min_size=1, max_size=6))
def test_like_kinds_cost_what_the_one_model_says(batches):
    ours = table(*batches)
    theirs = Packs(COST, memory=0.4, per_sample=0.01).of(trials(*batches))
    gang = Gang(tuple(Lane(t, (W[0],)) for t in trials(*batches)))
    assert ours.rates(gang) == pytest.approx(theirs.rates(gang))
    for trial in gang.trials:
        assert ours.cost(trial).memory == pytest.approx(theirs.cost(trial).memory)
        assert ours.curve(trial, 1)[0] == pytest.approx(theirs.curve(trial, 1)[0])
    smaller = Gang(gang.lanes[:-1]) if len(batches) > 1 else gang
    assert (
        ours.switch(gang, smaller)
        == theirs.switch(gang, smaller)
        == (3.0 if len(batches) > 1 else 0.0)
    )
    assert ours.switch(smaller, gang) == theirs.switch(smaller, gang)


@given(st.floats(0, 0.95), st.floats(1, 1e5), st.integers(1, 1024), st.floats(0, 0.5))
def test_a_shared_part_leaves_the_rate_alone_as_given(share, rate, batch, joint):
    packing = Packing.shared(share, rate, batch, joint=joint, repack=2.0)
    assert packing.rate() == pytest.approx(rate)
    two = Gang((Lane(TrialId("t0"), (W[0],)), Lane(TrialId("t1"), (W[0],))))
    rates = Table((Row((rate,), packing=packing),)).of(trials(batch, batch)).rates(two)
    # two at once: the common part of a step once, the rest twice
    alone = (1 + joint) / (share + 2 * (1 - share) + 2 * joint)
    assert rates[TrialId("t0")] == pytest.approx(rate * alone)


def test_kinds_of_unlike_cost_share_the_dearest_common_part():
    light, heavy = (
        Packing(PackCost(1e-3, fixed=0.01, joint=0.001), 10),
        Packing(PackCost(4e-3, fixed=0.05), 10),
    )
    rows = (
        Row((light.rate(),), {"m": 0}, packing=light),
        Row((heavy.rate(),), {"m": 1}, packing=heavy),
    )
    known = {TrialId(f"t{m}"): Trial(TrialId(f"t{m}"), 1.0, {"m": m}) for m in (0, 1)}
    found = Table(rows).of(known).rates(Gang(tuple(Lane(t, (W[0],)) for t in known)))
    assert found == pytest.approx(dict.fromkeys(known, 10 / (0.05 + 0.001 + 0.01 + 0.04)))


def test_slower_slots_and_wide_lanes_slow_the_steps():
    packing = Packing(COST, 45)
    base = packing.rate()
    rows = Table((Row((base, base * 1.6), packing=packing),), {W[1]: 0.5}).of(trials(45, 45))
    wide = Gang((Lane(TrialId("t0"), tuple(W)),))
    assert rows.rates(wide)[TrialId("t0")] == pytest.approx(base * 1.6 * 0.5)
    pair = Gang((Lane(TrialId("t0"), tuple(W)), Lane(TrialId("t1"), (W[0],))))
    step = (
        COST.step([45]) / 0.5
    )  # the second slot has one lane, and is half as fast: it is the last
    assert rows.rates(pair)[TrialId("t1")] == pytest.approx(
        45 / (max(step, COST.step([45, 45])) / 0.8)
    )


def test_lanes_of_which_one_is_not_known_to_share_take_turns():
    packing = Packing(COST, 45)
    known = {TrialId(f"t{m}"): Trial(TrialId(f"t{m}"), 1.0, {"m": m}) for m in (0, 1)}
    mixed = Table((Row((packing.rate(),), {"m": 0}, packing=packing), Row((100.0,), {"m": 1}))).of(
        known
    )
    gang = Gang(tuple(Lane(t, (W[0],)) for t in known))
    assert mixed.rates(gang) == pytest.approx(
        dict.fromkeys(known, 1 / (1 / packing.rate() + 1 / 100.0))
    )
    assert mixed.switch(solo(TrialId("t0"), W[0], 0), gang) == 0.0


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Packing(COST, 0), "one sample or more"),
        (lambda: Packing(COST, 4, per_sample=-1), ">= 0 GiB"),
        (lambda: Packing.shared(1.0, 100, 32), r"in \[0, 1\)"),
        (lambda: Packing.shared(0.5, 0, 32), "both > 0"),
        (lambda: Row((1.0,), packing=Packing(COST, 4)), "that of one alone"),
        (lambda: Row((1.0,), memory=float("inf")), "memory must be >= 0 and finite"),
        (lambda: Packing(COST).size({"batch_size": "x"}), "batch_size must be a number of samples"),
    ],
)
def test_what_cannot_be_is_refused(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()
