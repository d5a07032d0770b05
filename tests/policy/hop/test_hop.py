from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from simkit import SHARDS, rates, slots, started, study, trial, units, view_of

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Advanced, Finished, Joined, Left, Planned
from shoal.core.fold import fold
from shoal.core.plan import solo
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId, Visit
from shoal.policy.description import parse
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import RULES as ALL_RULES
from shoal.policy.hop.hop import Hop
from shoal.profile.table import Row, Table
from shoal.search.grid import Grid
from shoal.search.space import grid
from shoal.testing import World, check_policy, worlds

RULES = ["rotation", "lrw", "random"]
A, B, C = (TrialId(x) for x in "abc")
S = list(SHARDS)
W = [SlotId(f"w{i}") for i in range(3)]


@pytest.mark.parametrize("examples", [12, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_contract(rule: str, barrier: bool, examples: int) -> None:
    check_policy(lambda: Hop(rule, seed=3, barrier=barrier), examples)  # type: ignore[arg-type]


def test_no_such_rule() -> None:
    with pytest.raises(ValueError, match="hop's rule is one of rotation, lrw, .*; got 'best'"):
        Hop("best")


def test_every_rule_has_one_name_and_an_unknown_ones_error_lists_them() -> None:
    """By hop(rule=…), by hop-RULE, and in the docs; and where those live that are no rules."""
    page = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
    for rule in ALL_RULES:
        assert parse(f"hop(rule={rule})") == parse(f"hop-{rule}") == Hop(rule)
        assert f'`hop-{rule}` | `shoal.Hop(rule="{rule}")`' in page
    for wrong in ("milp", "hop", "", ["lrw"], None):
        with pytest.raises(ValueError, match="rotation, lrw, early, random, quick4"):
            Hop(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="milp.*papers/cerebro"):
        parse("hop(rule=milp)")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_every_trial_visits_every_shard_once_an_epoch_where_it_lies(rule: str, copies: int) -> None:
    lines, state = study(
        Hop(rule), rates(*range(1, 8)), count=7, epochs=3, at=slots(SHARDS, copies)
    )
    holds = {slot.id: slot.shards for slot in slots(SHARDS, copies)}
    assert Counter((t, s) for _, t, _, s in units(lines)) == dict.fromkeys(
        [(t, s) for t in state.known for s in SHARDS], 3
    )
    assert all(shard in holds[slot] for _, _, slot, shard in units(lines))
    if copies > 1:
        assert len({(slot, shard) for _, _, slot, shard in units(lines)}) > len(SHARDS), (
            "only one holder of a shard ever serves"
        )


@settings(max_examples=40, deadline=None)
@given(worlds())
def test_rotation_orders_do_not_depend_on_timing(world: World) -> None:
    """Other slots, other losses: the same visits in the same order."""
    _, state, _ = world.run(Hop())
    one = Slot(SlotId("only"), shards=frozenset(world.shards))
    calm = World(**{**vars(world), "slots": (one,), "script": ()})
    _, other, _ = calm.run(Hop())
    for name, how in state.ended.items():
        if how == "finished":
            assert state.visits[name] == other.visits[name]


def test_rotation_spreads_the_first_trials_by_the_time_they_take() -> None:
    state = started(*(trial(t, x=i) for i, t in enumerate("abcdef")))
    _, memory = Hop().decide(view_of(state, rates(1.0, 2.0, 2.0, 4.0, 4.0, 4.0)), {})
    groups = {t: seat[0] for t, seat in memory["seats"].items()}
    assert groups == {"a": 0, "b": 1, "c": 2, "d": 1, "e": 2, "f": 1}  # 1, .5+.25+.25, .5+.25
    _, again = Hop().decide(view_of(state, rates(9.0, 1.0, 1.0, 1.0, 1.0, 1.0)), memory)
    assert again is memory, "a seat is for good"


def test_rotation_puts_later_trials_where_fewest_have_been() -> None:
    state = started(*map(trial, "abcd"))
    _, memory = Hop().decide(view_of(state), {})
    assert [seat[0] for seat in memory["seats"].values()] == [0, 1, 2, 0]
    more = fold(state, [Finished(A), *(e for t in "ef" for e in [_submit(t)])])
    _, memory = Hop().decide(view_of(more), memory)
    assert {t: memory["seats"][t][0] for t in "ef"} == {"e": 1, "f": 2}


def _submit(name: str) -> object:
    from shoal.core.event import Submitted

    return Submitted(trial(name))


def test_rotation_takes_the_trial_with_the_fewest_visits_then_the_oldest() -> None:
    state = started(*map(trial, "abcdefg"), at=slots(SHARDS)[:1])
    plan, memory = Hop().decide(view_of(state), {})
    assert plan.gangs == {solo(A, W[0], 0, S[0], 10.0)}  # a, d, g start at shard 0
    ahead = fold(
        state,
        [Advanced({A: 30.0}, visits={A: tuple(Visit(0, s, 0, 10) for s in (S[0], S[2], S[1]))})],
    )
    assert Hop().decide(view_of(ahead), memory)[0].gangs == {
        solo(TrialId("d"), W[0], 0, S[0], 10.0)
    }


def test_rotation_goes_on_with_an_epoch_that_another_policy_began() -> None:
    state = started(trial("a"))
    seen = fold(state, [Advanced({A: 10.0}, visits={A: (Visit(0, S[0], 0, 10),)})])
    plan, memory = Hop().decide(view_of(seen), {})
    assert plan.gangs == {solo(A, W[2], 0, S[2], 10.0)}
    odd = fold(state, [Advanced({A: 10.0}, visits={A: (Visit(0, S[2], 0, 10),)})])
    plan, _ = Hop().decide(view_of(odd), memory)
    assert plan.gangs == {solo(A, W[0], 0, S[0], 10.0)}, (
        "after one visit its shard would be s2, but that is what it saw"
    )


@pytest.mark.parametrize("rule", RULES)
def test_policies_may_change_in_the_middle(rule: str) -> None:
    lines, state = study(
        Fifo(), rates(1.0, 2.0, 4.0), count=3, epochs=3, deadline=35.0, checkpoint_every=0.0
    )
    assert any(len(v) % 3 for v in state.visits.values()), (
        "no trial is within an epoch: nothing is tested"
    )
    _, final = study(Hop(rule), rates(1.0, 2.0, 4.0), count=3, epochs=3, former=lines)  # type: ignore[arg-type]
    assert set(final.ended.values()) == {"finished"}
    assert all(len(set(v)) == 9 for v in final.visits.values())


def test_lrw_serves_the_most_loaded_slot_first_and_the_longest_trial() -> None:
    shards = {S[0]: 10, S[1]: 30}
    at = [Slot(W[0], shards=frozenset({S[0]})), Slot(W[1], shards=frozenset({S[1]}))]
    state = started(
        *(trial(t, 40.0, shards, x=i) for i, t in enumerate("abc")), at=at, shards=shards
    )
    plan, _ = Hop("lrw").decide(view_of(state, rates(3.0, 1.0, 2.0)), {})
    assert plan.gangs == {solo(B, W[1], 0, S[1], 30.0), solo(C, W[0], 0, S[0], 10.0)}


def test_lrw_counts_all_epochs() -> None:
    state = started(trial("a", 60.0, x=0), trial("b", 30.0, x=1), at=slots(SHARDS)[:1])
    assert Hop("lrw").decide(view_of(state, rates(1.0, 1.5)), {})[0].gangs == {
        solo(A, W[0], 0, S[0], 10.0)
    }
    done = fold(state, [Advanced({A: 50.0})])
    assert Hop("lrw").decide(view_of(done, rates(1.0, 1.5)), {})[0].gangs == {
        solo(B, W[0], 0, S[0], 10.0)
    }


def test_lrw_takes_the_shard_that_is_hardest_to_serve() -> None:
    at = [Slot(W[0], shards=frozenset(S)), Slot(W[1], shards=frozenset({S[0]}))]
    busy = fold(started(*map(trial, "abc"), at=at), [Planned((), (solo(B, W[1], 0, S[0], 10.0),))])
    plan, _ = Hop("lrw").decide(view_of(busy), {})
    assert plan.gangs - busy.plan.gangs == {solo(A, W[0], 1, S[1], 10.0)}, "s0 has another holder"


def test_random_is_a_function_of_seed_and_turn() -> None:
    state = started(*map(trial, "abcdefgh"))
    drawn = {seed: Hop("random", seed).decide(view_of(state), {})[0].gangs for seed in range(30)}
    assert len(set(drawn.values())) > 15
    assert all(
        Hop("random", seed).decide(view_of(state), {})[0].gangs == gangs
        for seed, gangs in drawn.items()
    )
    other = fold(state, [Planned((), ())])
    assert (
        sum(
            Hop("random", s).decide(view_of(other), {})[0].gangs != gangs
            for s, gangs in drawn.items()
        )
        > 15
    )


def test_random_is_even_over_units() -> None:
    state = started(trial("a"), trial("b"), at=[Slot(W[0], shards=frozenset(S))])
    counts = Counter(
        next(iter(Hop("random", s).decide(view_of(state), {})[0].gangs)) for s in range(600)
    )
    assert len(counts) == 6 and min(counts.values()) > 60


def test_barrier() -> None:
    def epochs_at_once(barrier: bool) -> int:
        lines, _ = study(Hop(barrier=barrier), rates(1.0, 5.0, 9.0, 3.0), epochs=3)
        widest, state = 0, State()
        for _, entry in lines:
            state = fold(state, [entry])
            if not isinstance(entry, Planned):
                continue
            under_way = {len(state.visits[t]) // len(SHARDS) for t in state.running}
            widest = max(widest, len(under_way))
        return widest

    assert epochs_at_once(True) == 1
    assert epochs_at_once(False) > 1


@pytest.mark.parametrize("rule", RULES)
def test_a_unit_that_was_lost_is_done_again_elsewhere(rule: str) -> None:
    both = [Slot(W[0], shards=frozenset(S)), Slot(W[1], shards=frozenset(S[:1]))]
    script = [(5.0, Left(frozenset({W[1]}), died=True))]
    lines, state = study(Hop(rule), rates(1.0, 1.0), count=2, at=both, script=script)  # type: ignore[arg-type]
    assert set(state.ended.values()) == {"finished"}
    assert [e.samples for _, e in lines if isinstance(e, Advanced)] == [
        {t: 10} for _, t, _, _ in units(lines)
    ]
    assert all(slot == W[0] for time, _, slot, _ in units(lines) if time > 5)


@pytest.mark.parametrize("rule", RULES)
def test_a_shard_registered_elsewhere_is_served_there(rule: str) -> None:
    """A slot goes for good; its shard is read again by another."""
    three = slots(SHARDS)
    moved = Slot(W[0], shards=frozenset({S[0], S[2]}))
    script = [(12.0, Left(frozenset({W[2]}))), (50.0, Joined((moved,)))]
    lines, state = study(Hop(rule), rates(1.0, 1.0, 1.0), count=3, at=three, script=script)  # type: ignore[arg-type]
    assert set(state.ended.values()) == {"finished"}
    late = [(slot, shard) for time, _, slot, shard in units(lines) if time > 50]
    assert late and set(late) == {(W[0], S[2])} | {(w, s) for w, s in late if s != S[2]}


def test_undivided_trials_run_whole_where_no_unit_does() -> None:
    whole = Trial(TrialId("w"), 30.0)
    plan, _ = Hop().decide(view_of(started(whole, trial("a"))), {})
    assert plan.gangs == {solo(A, W[0], 0, S[0], 10.0), solo(TrialId("w"), W[1], 0)}


def test_small_slots_take_trials_that_fit() -> None:
    table = Table((Row(memory=4.0, config={"big": True}), Row(memory=1.0)))
    at = [Slot(W[0], memory=2.0, shards=frozenset(S))]
    state = started(trial("a", big=True), trial("b", big=False), at=at)
    for rule in RULES:
        plan, _ = Hop(rule).decide(view_of(state, table), {})  # type: ignore[arg-type]
        assert [gang.trials for gang in plan.gangs] == [(B,)], rule


@pytest.mark.parametrize("rule", RULES)
def test_trials_of_other_shards_share_the_slots(rule: str) -> None:
    class Mixed:
        def start(self) -> int:
            return 0

        def propose(self, view, memory):  # type: ignore[no-untyped-def]
            from shoal.core.plan import Proposal

            some = [trial("a"), trial("b", 20.0, S[:2]), trial("c", 10.0, S[2:])]
            return (Proposal(tuple(some)), 1) if not memory else (Proposal(), 1)

    _, state = study(Hop(rule), searcher=Mixed())  # type: ignore[arg-type]
    assert {t: sorted(v.shard for v in visits) for t, visits in state.visits.items()} == {
        "a": S,
        "b": S[:2],
        "c": S[2:],
    }


def test_hopping_beats_waiting_when_there_are_more_trials_than_slots() -> None:
    """As many epochs of work on each slot: no slot may idle before the end."""
    for rule in RULES:
        lines, _ = study(Hop(rule), count=9, epochs=2, searcher=Grid({"x": grid(range(9))}, 2))  # type: ignore[arg-type]
        ends = [time for time, *_ in units(lines)]
        assert max(ends) == pytest.approx(9 * 2 * 10 / 1000.0), rule


def test_shard_names_that_the_study_lacks_are_no_units() -> None:
    at = [Slot(W[0], shards=frozenset({ShardId("v000"), S[0]}))]
    for rule in RULES:
        plan, _ = Hop(rule).decide(view_of(started(trial("a"), at=at)), {})  # type: ignore[arg-type]
        assert plan.gangs == {solo(A, W[0], 0, S[0], 10.0)}, rule
