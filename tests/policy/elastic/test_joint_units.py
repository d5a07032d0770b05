"""Elastic trials over shards that stay at nodes: each slot of a trial reads one that lies there."""

from dataclasses import replace

import pytest

from shoal.backend.sim.sim import Sim
from shoal.core.check import check
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.errors import StudyError
from shoal.core.event import Finished, Joined, Left, Opened, Planned, Submitted
from shoal.core.fold import fold
from shoal.core.plan import Proposal
from shoal.core.state import State, view
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import run
from shoal.policy.combine import Every
from shoal.policy.description import describe, parse, rebuild
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.hop.hop import Hop
from shoal.profile.table import Row, Table
from shoal.study.auto import check_place_of_data, hops, over_placed
from shoal.testing.journals import check_journal
from shoal.train.data.catalogue import Catalogue

SIZE, EPOCHS = 80, 2


class These:
    """A searcher: these trials, from the first moment."""

    def __init__(self, trials):
        self.trials = tuple(trials)

    def start(self):
        return 0

    def propose(self, look, came):
        return (Proposal(self.trials), 1) if not came else (Proposal(), came)


def simulate(policy, trials, slots, shards, script=(), rates=None):
    """When the last trial ended, and the widths of all units; every plan and visit is checked."""
    many = len(slots)
    rates = rates or [10.0 * w**0.9 for w in range(1, many + 1)]
    table = Table((Row(tuple(rates)),))
    sim = Sim(table.of, slots, shards=shards, checkpoint_every=1e9, script=script)
    journal = Journal()
    opened = fold(State(), [Opened(1, shards)])
    state = run(These(trials), policy, sim, table.believe, journal, opened)
    widths = [
        len(gang.slots)
        for line in journal.lines
        if isinstance(line.entry, Planned)
        for gang in line.entry.start
    ]
    for trial, visits in state.visits.items():
        own = state.known[trial].shards
        assert len(visits) == EPOCHS * len(own)
        for epoch in range(EPOCHS):
            assert {v.shard for v in visits if v.epoch == epoch} == own
    check_journal(journal.lines)
    ends = [line.time for line in journal.lines if isinstance(line.entry, Finished)]
    assert len(ends) == len(trials)
    return max(ends), widths


def shards_of(count):
    return {ShardId(f"s{q}"): SIZE for q in range(count)}


def trials_of(count, shards, widths=(1, 64)):
    samples = float(EPOCHS * sum(shards.values()))
    return [
        Trial(TrialId(f"t{i}"), samples, {"i": i}, widths, frozenset(shards)) for i in range(count)
    ]


def holders(shards, copies, each=1):
    """Nodes in a ring, each with so many slots; a shard lies at so many nodes in a row."""
    names = list(shards)
    return [
        Slot(
            SlotId(f"w{n}-{k}"),
            f"n{n}",
            shards=frozenset(names[(n - c) % len(names)] for c in range(copies)),
        )
        for n in range(len(names))
        for k in range(each)
    ]


@pytest.mark.parametrize(("copies", "each"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_no_slower_than_hopping_and_quicker_with_few_trials(count, copies, each):
    shards = shards_of(8)
    slots = holders(shards, copies, each)
    trials = trials_of(count, shards)
    hopping, _ = simulate(Hop("lrw"), trials, slots, shards)
    span, widths = simulate(Elastic(placed=True), trials, slots, shards)
    assert span <= 1.05 * hopping
    if count <= 3:
        assert span <= 0.75 * hopping
        assert max(widths) > 1


def test_widths_are_kept():
    shards = shards_of(6)
    slots = holders(shards, 1)
    for widths in ((1, 1), (1, 2), (2, 3)):
        trials = trials_of(2, shards, widths)
        _, found = simulate(Elastic(placed=True), trials, slots, shards)
        assert set(found) <= set(range(widths[0], widths[1] + 1))


def test_who_gains_more_gets_more():
    shards = shards_of(8)
    slots = holders(shards, 1)
    table = Table(
        (
            Row(tuple(10.0 + 0.1 * w for w in range(8)), {"i": 0}),
            Row(tuple(10.0 * w for w in range(1, 9)), {"i": 1}),
        )
    )
    known = fold(State(), [Opened(1, shards), Joined(tuple(slots))])
    known = fold(known, [Submitted(trial) for trial in trials_of(2, shards)])
    look = view(known, 0.0, table.of(known.known))
    plan, _ = Elastic(placed=True).decide(look, {})
    check(plan, look)
    width = {gang.trials[0]: len(gang.slots) for gang in plan.gangs}
    assert width == {"t0": 1, "t1": 7}
    for gang in plan.gangs:
        assert gang.joint == (len(gang.slots) > 1)
        for slot, shard in zip(gang.lanes[0].slots, gang.shards, strict=True):
            assert shard in known.slots[slot].shards


def test_a_unit_under_way_is_not_cut_and_what_is_free_is_used():
    shards = shards_of(4)
    slots = holders(shards, 1)
    table = Table((Row(tuple(10.0 * w for w in range(1, 5))),))
    known = fold(State(), [Opened(1, shards), Joined(tuple(slots[:3]))])
    known = fold(known, [Submitted(trials_of(1, shards)[0])])
    rule = Elastic(placed=True)
    plan, memory = rule.decide(view(known, 0.0, table.of(known.known)), rule.start())
    (first,) = plan.gangs
    assert len(first.slots) == 3
    known = fold(known, [Planned((), (first,)), Joined((slots[3],))])
    known = fold(known, [Submitted(trials_of(2, shards)[1])])
    look = view(known, 1.0, table.of(known.known))
    plan, _ = rule.decide(look, memory)
    check(plan, look)
    assert first in plan.gangs
    (second,) = plan.gangs - {first}
    assert second.trials == ("t1",) and second.slots == {slots[3].id}


def test_what_others_cannot_use_goes_to_trials_that_are_to_have_nothing():
    shards = shards_of(4)
    slots = holders(shards, 1)
    rates = ((100.0, 200.0, 300.0, 400.0), (1.0, 1.0, 1.0, 1.0))
    table = Table(tuple(Row(each, {"i": i}) for i, each in enumerate(rates)))
    known = fold(State(), [Opened(1, shards), Joined(tuple(slots))])
    known = fold(known, [Submitted(trial) for trial in trials_of(2, shards)])
    look = view(known, 0.0, table.of(known.known))
    plan, _ = Elastic(placed=True).decide(look, {})
    assert [gang.trials for gang in plan.gangs] == [("t0",)]
    # It has visited what lies at the first slot.
    left = {**look.pending, TrialId("t0"): frozenset(list(shards)[1:])}
    look = replace(look, pending=left)
    plan, _ = Elastic(placed=True).decide(look, {})
    check(plan, look)
    width = {gang.trials[0]: len(gang.slots) for gang in plan.gangs}
    assert width == {"t0": 3, "t1": 1}


def test_a_trial_that_needs_more_than_is_free_waits():
    shards = shards_of(2)
    slots = holders(shards, 1)
    table = Table((Row((10.0, 20.0)),))
    narrow, wide = trials_of(2, shards, (1, 1))[0], trials_of(2, shards, (2, 2))[1]
    known = fold(State(), [Opened(1, shards), Joined(tuple(slots)), Submitted(narrow)])
    rule = Elastic(placed=True)
    plan, _ = rule.decide(view(known, 0.0, table.of(known.known)), {})
    (first,) = plan.gangs
    known = fold(known, [Planned((), (first,)), Submitted(wide)])
    look = view(known, 1.0, table.of(known.known))
    plan, _ = rule.decide(look, {})
    assert plan.gangs == {first}


def test_slots_that_come_and_go():
    shards = shards_of(6)
    slots = holders(shards, 2)
    script = (
        (10.0, Left(frozenset({slots[0].id}))),
        (14.0, Left(frozenset({slots[3].id}))),
        (30.0, Joined((slots[0], slots[3]))),
    )
    for count in (1, 2, 4):
        trials = trials_of(count, shards)
        span, _ = simulate(Elastic(placed=True), trials, slots, shards, script)
        hopping, _ = simulate(Hop("lrw"), trials, slots, shards, script)
        assert span <= 1.05 * hopping


def test_a_study_says_where_its_data_lies():
    apart = Catalogue({ShardId(f"s{n}"): {f"n{n}": "x"} for n in range(2)})
    whole = Catalogue({ShardId(f"s{n}"): {"n0": "x"} for n in range(2)})
    rules = Elastic(), Every(60.0, Elastic(admit=2))
    for rule, wanted in zip(
        rules, (Elastic(placed=True), Every(60.0, Elastic(admit=2, placed=True))), strict=True
    ):
        made = over_placed(rule, apart, reshuffles=False)
        assert made == wanted and hops(made)
        check_place_of_data(made, apart, "elastic")
        assert over_placed(rule, whole, reshuffles=True) == rule and not hops(rule)
        with pytest.raises(StudyError, match="use hop or hybrid"):
            over_placed(rule, apart, reshuffles=True)
    assert over_placed(Hop(), apart, reshuffles=True) == Hop()


def test_by_name():
    made = parse("elastic(placed=True, admit=3)")
    assert made == Elastic(placed=True, admit=3)
    assert rebuild(describe(made)) == made
