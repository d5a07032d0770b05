"""Packing by policy: who shares a slot, who joins later, and what that is worth."""

import pytest

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Finished, Joined, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.fifo import Fifo
from shoal.policy.pack.pack import Pack, shared_out
from shoal.profile.measure import Belief
from shoal.profile.pack import PackCost, Packing, Packs
from shoal.profile.slot_speeds import SlotSpeeds
from shoal.profile.table import Row, Table
from shoal.search.trace import Trace
from shoal.testing.deciders import check_policy

SHARDS = {ShardId("all"): 6000}


@pytest.mark.parametrize("grouping", ["contiguous", "nearest", "random", "batch_size"])
@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.nightly)])
def test_contract(grouping, refill, examples):
    check_policy(lambda: Pack(grouping, refill=refill), examples=examples)


@pytest.mark.parametrize(
    ("wrong", "words"), [({"grouping": "knn"}, "contiguous"), ({"most": 0}, "most=0")]
)
def test_wrong_values(wrong, words):
    with pytest.raises(ValueError, match=words):
        Pack(**wrong)


def simulate(policy, profile, configs, slots=1, memory=2.5, epochs=1):
    here = [Slot(SlotId(f"g{i}"), memory=memory, shards=frozenset(SHARDS)) for i in range(slots)]
    sim = Sim(profile.of, here, shards=SHARDS, checkpoint_every=1e9)
    journal, state = Journal(), fold(State(), [Opened(1, SHARDS)])
    arrivals = [(c.pop("at", 0), c, c.pop("samples", None)) for c in map(dict, configs)]
    run(Trace(arrivals, epochs), policy, sim, profile.believe, journal, state)
    packs = [
        [g.trials for g in line.entry.start]
        for line in journal.lines
        if isinstance(line.entry, Planned)
    ]
    ends = {
        line.entry.trial: line.time for line in journal.lines if isinstance(line.entry, Finished)
    }
    return packs, ends


def batches(*sizes):
    return [{"batch_size": b} for b in sizes]


SHARED = Packs(PackCost.sharing(0.6, repack=0.0), memory=0.4, per_sample=0.6 / 45)


def test_worked_example_as_a_policy():
    """20, 20, 40 together, then 60."""
    packs, _ = simulate(Pack(refill=False), SHARED, batches(20, 60, 20, 40))
    assert sorted(sorted(p) for turn in packs for p in turn) == [["t000", "t002", "t003"], ["t001"]]


def test_packs_only_what_gains():
    """Lanes that take turns win nothing by sharing a slot."""
    packs, ends = simulate(Pack(), Table((Row((100.0,)),)), batches(20, 20, 20), memory=99.0)
    assert all(len(p) == 1 for turn in packs for p in turn)
    assert max(ends.values()) == max(
        simulate(Fifo(), Table((Row((100.0,)),)), batches(20, 20, 20))[1].values()
    )


def packs_of_measured(
    count, samples, slots=1, kinds=1, figures=None, same=(), busy=(), done=0.0, clocked=()
):
    """The packs that a first decision starts, where one trial of each kind was measured before."""
    names = [TrialId(f"t{number:02d}") for number in range(count)]
    configs = {t: {"x": i % kinds, "lr": i} for i, t in enumerate(names)}
    measured = {TrialId(f"m{x}"): {"x": x, "lr": 99} for x in range(kinds)}
    here = [Slot(SlotId(f"g{i}"), shards=frozenset(SHARDS)) for i in range(slots)]
    sizes = dict.fromkeys(names, samples) | dict.fromkeys(measured, 1000.0)
    trials = [
        Trial(t, sizes[t], c, (1, 1), frozenset(SHARDS)) for t, c in (configs | measured).items()
    ]
    gangs = tuple(Gang((Lane(TrialId(f"m{i}"), (here[i].id,)),)) for i in busy)
    state = fold(
        State(),
        [
            Opened(1, SHARDS),
            Joined(tuple(here)),
            *map(Submitted, trials),
            *(Finished(t) for i, t in enumerate(measured) if i not in busy),
            *([Planned((), gangs)] if gangs else []),
            Advanced(dict.fromkeys(names, done)),
        ],
    )
    rates = {f"{x}" * 16: figures or {"rate": 100.0 + x} for x in range(kinds)}
    speeds = SlotSpeeds({(kind, here[0].id): rate for kind, rate in clocked}, {})
    signatures = {t: t[1] * 16 for t in measured}
    seen = view(state, 0.0, Belief(rates, signatures, state.known, slots=speeds))
    plan, _ = Pack(refill=False, same=same).decide(seen, "")
    return sorted(g.trials for g in plan.gangs if g not in gangs)


@pytest.mark.parametrize(
    ("slots", "samples", "figures", "together"),
    [
        (1, 1.0, {}, [12]),  # a hundredth of a second each: all that wait take less than a fifth
        (1, 1.0, {"rate": 100.0, "save": 0.1}, [2]),  # with what is paid once a trial
        (4, 1.0, {}, [2, 2, 1, 1]),  # half of what waits is shared out
        (1, 8.0, {}, [3]),
        (1, 20.0, {}, [1]),
        (1, 1.0, {"memory": 1.0}, [1]),  # nobody knows how long they take
    ],
)
def test_of_trials_that_take_next_to_nothing_a_slot_is_given_several(
    slots, samples, figures, together
):
    """Else it would wait for the next decision most of the time."""
    packs = packs_of_measured(12, samples, slots, figures=figures)
    assert [len(pack) for pack in packs] == together


def test_what_slots_at_work_may_take_is_left_to_them():
    """Else they would stand idle at the end, beside a pack."""
    packs = packs_of_measured(12, 1.0, slots=4, kinds=4, busy=(0, 1, 2))
    assert [len(pack) for pack in packs] == [2]


def test_a_slot_is_given_several_of_equal_figures_only():
    """What differs may take longer than it looks; and graphs that differ never share a slot."""
    (pack,) = packs_of_measured(12, 1.0, kinds=3)
    assert len(pack) == 4
    assert len({int(trial[1:]) % 3 for trial in pack}) == 1
    assert packs_of_measured(12, 1.0, same=("lr",)) == [("t00",)]


def test_what_was_clocked_slower_together_is_kept_apart():
    twelve = "+".join(["0" * 16] * 12)
    assert len(packs_of_measured(12, 1.0, clocked=[(twelve, 99.0)])[0]) == 12, "as in turns"
    assert packs_of_measured(12, 1.0, clocked=[(twelve, 50.0)]) == [("t00",)]


def test_what_is_trained_to_its_end_is_no_reason_to_fail():
    """Its end is an event that is still to come."""
    assert packs_of_measured(2, 1.0, done=1.0) == [("t00", "t01")]


def test_one_joins_whose_like_was_clocked_in_company_though_his_equal_in_figures_does_not():
    (slot,) = slots = (Slot(SlotId("g0"), shards=frozenset(SHARDS)),)
    optimizers = {"a": "sgd", "b": "adam", "c": "sgd"}
    trials = [
        Trial(TrialId(t), 1000.0, {"opt": opt, "lr": i}, (1, 1), frozenset(SHARDS))
        for i, (t, opt) in enumerate(optimizers.items())
    ]
    runs = Gang((Lane(TrialId("a"), (slot.id,)),))
    entries = [Opened(1, SHARDS), Joined(slots), *map(Submitted, trials), Planned((), (runs,))]
    state = fold(State(), entries)
    clocked = SlotSpeeds({("one+one", slot.id): 160.0}, {})
    profile = Belief({"one": {"rate": 100.0}}, {TrialId("a"): "one"}, state.known, slots=clocked)
    plan, _ = Pack().decide(view(state, 0.0, profile), "")
    assert [gang.trials for gang in plan.gangs] == [("a", "c")]


def test_idle_slots_come_before_packs():
    packs, _ = simulate(Pack(), SHARED, batches(20, 20, 20, 20), slots=4, memory=99.0)
    assert sorted(p for turn in packs for p in turn) == [("t000",), ("t001",), ("t002",), ("t003",)]


def test_unlike_graphs_are_kept_apart():
    configs = [{"batch_size": 20, "depth": d} for d in (1, 2, 1, 2)]
    packs, _ = simulate(Pack(same=["depth"], refill=False), SHARED, configs, memory=99.0)
    assert sorted(sorted(p) for turn in packs for p in turn) == [["t000", "t002"], ["t001", "t003"]]


def test_a_waiting_trial_joins_where_one_has_ended():
    configs = [{"batch_size": 45, "samples": 12000.0}, {"batch_size": 45}, {"batch_size": 45}]
    packs, ends = simulate(Pack(), SHARED, configs, memory=2.0)
    assert packs == [[("t000", "t001")], [("t000", "t002")]]
    _, apart = simulate(Pack(refill=False), SHARED, configs, memory=2.0)
    assert max(ends.values()) < max(apart.values())


@pytest.mark.parametrize(("repack", "joins"), [(1.0, True), (1e4, False)])
def test_none_joins_where_taking_it_in_costs_more_than_it_gains(repack, joins):
    profile = Packs(PackCost.sharing(0.6, repack=repack), memory=0.4, per_sample=0.6 / 45)
    configs = [{"batch_size": 45, "samples": 12000.0}, {"batch_size": 45}, {"batch_size": 45}]
    packs, _ = simulate(Pack(), profile, configs, memory=2.0)
    assert (packs[1] == [("t000", "t002")]) == joins


def test_faster_than_one_by_one():
    configs = batches(*[20, 25, 30, 35, 40, 45, 50, 55] * 3)
    together = max(simulate(Pack(), SHARED, configs, memory=5.0)[1].values())
    alone = max(simulate(Fifo(), SHARED, configs, memory=5.0)[1].values())
    assert together < alone / 1.5


def test_nearest_looks_at_places_not_at_values():
    """Index distance: 1e-6 and 1e-5 are as far apart as 0.01 and 0.1."""
    configs = [{"batch_size": 20, "lr": lr} for lr in (1e-6, 1e-5, 1e-2, 1e-1)]
    packs, _ = simulate(Pack("nearest", most=2, refill=False), SHARED, configs, memory=99.0)
    assert sorted(sorted(p) for turn in packs for p in turn) in (
        [["t000", "t001"], ["t002", "t003"]],
        [["t000", "t003"], ["t001", "t002"]],
    )


@pytest.mark.parametrize(
    ("levels", "within", "together"),
    [
        ({}, 1, 2),
        ({}, 0, 1),
        ({"batch_size": range(20, 75, 5)}, 3, 1),
        ({"batch_size": range(20, 75, 5)}, 4, 2),
    ],
)
def test_the_threshold_of_nearest_is_a_users_choice(levels, within, together):
    """Defect 14: batch 20 and 40 are four levels apart, also where nobody drew those between."""
    rule = Pack("nearest", refill=False, levels=levels, within=within)
    packs, _ = simulate(rule, SHARED, batches(20, 40), memory=99.0)
    assert max(len(p) for turn in packs for p in turn) == together


# -- a slot is idle beside a pack


def idle_beside(gain, left=(100.0, 100.0, 100.0, 100.0), switch=0.0, memory=100.0):
    """What `Pack` plans for two slots, all trials packed on the first, nobody waiting."""
    names = [TrialId(f"t{i}") for i in range(len(left))]
    slots = (Slot(SlotId("g0"), memory=100.0), Slot(SlotId("g1"), memory=memory))
    trials = [Trial(name, samples, {}) for name, samples in zip(names, left, strict=True)]
    packing = Packing.shared(gain, 1.0, 1, joint=0.0) if gain else None
    row = Row((1.0,), {}, memory=10.0, switch=switch, packing=packing)
    gang = Gang(tuple(Lane(name, (SlotId("g0"),)) for name in names))
    state = fold(State(), [Joined(slots), *map(Submitted, trials), Planned((), (gang,))])
    plan, _ = Pack().decide(view(state, 0.0, Table((row,)).of(state.known)), "")
    return sorted((g.lanes[0].slots[0], sorted(g.trials)) for g in plan.gangs)


def test_a_pack_gives_trials_to_an_idle_slot():
    assert idle_beside(0.0) == [("g0", ["t0", "t1"]), ("g1", ["t2", "t3"])]


@pytest.mark.parametrize("quota", [None, 60.0])
def test_the_pack_that_takes_longest_gives_but_none_that_ends_by_itself(quota):
    """Of two packs; where both train a quota, both stay."""
    slots = tuple(Slot(SlotId(f"g{i}")) for i in range(3))
    packs = [
        Gang(
            tuple(Lane(TrialId(f"t{2 * i + k}"), (SlotId(f"g{i}"),)) for k in range(2)), quota=quota
        )
        for i in range(2)
    ]
    trials = [Trial(TrialId(f"t{i}"), 100.0 + 100.0 * (i > 1), {}) for i in range(4)]
    row = Row((1.0,), {}, packing=Packing.shared(0.0, 1.0, 1, joint=0.0))
    state = fold(State(), [Joined(slots), *map(Submitted, trials), Planned((), tuple(packs))])
    plan, _ = Pack().decide(view(state, 0.0, Table((row,)).of(state.known)), "")
    stay = set(packs[:1] if quota is None else packs)
    assert plan.gangs & set(packs) == stay
    assert len(plan.gangs) == (3 if quota is None else 2)


def test_the_parts_end_as_early_as_can_be():
    """One long trial leaves three short ones."""
    parts = idle_beside(0.0, left=(300.0, 100.0, 100.0, 100.0))
    assert sorted(names for _, names in parts) == [["t0"], ["t1", "t2", "t3"]]


def test_a_pack_stays_where_it_gains_by_company_or_moving_takes_too_long():
    whole = [("g0", ["t0", "t1"])]
    assert idle_beside(0.0, left=(10.0, 10.0)) != whole
    assert idle_beside(0.0, left=(10.0, 10.0), switch=11.0) == whole
    assert idle_beside(0.97, left=(10.0, 10.0)) == whole, "together they are as quick"


def test_no_more_go_than_have_room():
    stay, go = idle_beside(0.0, memory=10.0)
    assert (len(stay[1]), len(go[1])) == (3, 1)


def test_who_is_packed_leaves_trials_for_slots_that_are_free_soon():
    """Of three trials a free slot takes no more than ends with the other slot's work."""
    busy = Gang((Lane(TrialId("t0"), (SlotId("g0"),)),))
    trials = [Trial(TrialId(f"t{i}"), 10.0 if i == 0 else 100.0, {}) for i in range(4)]
    row = Row((1.0,), {}, packing=Packing.shared(0.3, 1.0, 1, joint=0.0))
    slots = (Slot(SlotId("g0")), Slot(SlotId("g1")))
    state = fold(State(), [Joined(slots), *map(Submitted, trials), Planned((), (busy,))])
    plan, _ = Pack(refill=False).decide(view(state, 0.0, Table((row,)).of(state.known)), "")
    (new,) = plan.gangs - {busy}
    assert len(new.trials) == 1, "two would be at work when the other slot is idle"


@pytest.mark.parametrize("busy", [[], [5.0], [0.0, 3.0, 30.0], [7.0, 7.0]])
@pytest.mark.parametrize("work", [0.0, 4.0, 100.0])
def test_work_is_shared_out_until_all_end_at_once(busy, work):
    slots = [0.0, *busy]
    level = shared_out(work, slots)
    assert sum(max(0.0, level - until) for until in slots) == pytest.approx(work)
