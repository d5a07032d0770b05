import itertools
from copy import deepcopy
from functools import reduce
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from journal_kit import ENTRIES
from simkit import SHARDS, started, state_of, trial

from shoal.core.cluster import SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Evaluated,
    Failed,
    Fell,
    Finished,
    Kept,
    Left,
    Measured,
    Opened,
    Planned,
    Retired,
    Submitted,
    Unread,
)
from shoal.core.fold import fold, step
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import News, State
from shoal.core.trial import Trial, TrialId, Visit
from shoal.policy.hop.hop import Hop
from shoal.testing import World, worlds

A, B = TrialId("a"), TrialId("b")
S0, S1, S2 = SHARDS
W0, W1 = SlotId("w0"), SlotId("w1")


@settings(max_examples=150, deadline=None)
@given(st.lists(ENTRIES, max_size=25), st.integers(0, 25))
def test_fold_is_steps_and_changes_nothing_it_was_given(entries: list[Any], cut: int) -> None:
    base = fold(State(), entries[:cut])
    before = deepcopy(base)
    assert fold(base, entries[cut:]) == reduce(step, entries[cut:], base)
    assert base == before


@settings(max_examples=30, deadline=None)
@given(worlds())
def test_indices_follow_the_plan(world: World) -> None:
    lines, _, _ = world.run(Hop())
    state = State()
    for _, entry in lines:
        state = step(state, entry)
        assert state.running == {t: gang for gang in state.plan.gangs for t in gang.trials}
        assert state.busy == {s: gang for gang in state.plan.gangs for s in gang.slots}
        assert state.trials.keys() | state.ended.keys() == state.known.keys()
        assert not state.trials.keys() & state.ended.keys()
        assert state.running.keys() <= state.trials.keys()
        assert state.busy.keys() <= state.slots.keys()
        for name, each in state.trials.items():
            n = len(each.shards)
            seen = {visit.shard for visit in state.visits[name][len(state.visits[name]) // n * n :]}
            assert state.pending[name] == each.shards - seen


def test_visits_and_pending() -> None:
    state = started(trial("a"))
    assert state.pending[A] == set(SHARDS)
    state = step(state, Advanced({A: 10.0}, visits={A: (Visit(0, S1, 0, 10),)}))
    assert state.pending[A] == {S0, S2}
    state = fold(state, [Advanced({A: 10.0}, visits={A: (Visit(0, s, 0, 10),)}) for s in (S0, S2)])
    assert state.pending[A] == set(SHARDS), "a new epoch"
    assert state.done[A] == 30.0


def test_a_fall_brings_back_what_was_lost() -> None:
    visits = tuple(Visit(0, s, 0, 10) for s in SHARDS)
    state = fold(
        started(trial("a")),
        [Advanced({A: 30.0}, visits={A: visits}), Evaluated(A, 1.0, {"loss": 1.0})],
    )
    state = fold(
        state,
        [
            Advanced({A: 10.0}, visits={A: (Visit(1, S0, 1, 10),)}),
            Evaluated(A, 4 / 3, {"loss": 0.5}),
        ],
    )
    fell = step(state, Fell(A, 3, 30.0))
    assert fell.visits[A] == visits
    assert fell.pending[A] == set(SHARDS)
    assert [epoch for epoch, _ in fell.scores[A]] == [1.0]
    back = step(state, Fell(A, 0, 0.0))
    assert (back.done[A], back.visits[A], back.scores[A]) == (0.0, (), ())


FALLS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8)), max_size=4)


@given(st.lists(st.integers(1, 2), min_size=4, max_size=4), FALLS)
def test_what_comes_again_is_no_first_score(
    counts: list[int], falls: list[tuple[int, int]]
) -> None:
    """Some epochs have two scores, the second that of a value which a function returned."""
    epochs = [epoch + 1.0 for epoch, count in enumerate(counts) for _ in range(count)]
    values = itertools.count()
    state = started(trial("a", shards=(S0,)))
    before: tuple[Any, ...] = ()
    for back, so_far in [*falls, (0, len(epochs))]:
        visits = min(back, len(state.visits[A]))
        state = step(state, Fell(A, visits, 10.0 * visits))
        for epoch in epochs[len(state.scores[A]) : so_far]:
            if epoch > len(state.visits[A]):
                visit = Visit(int(epoch), S0, int(epoch), 10)
                state = step(state, Advanced({A: 10.0}, visits={A: (visit,)}))
            state = step(state, Evaluated(A, epoch, {"loss": next(values)}))
        first = state.first_scores.get(A, state.scores[A])
        most = max(len(before), len(state.scores[A]))
        assert first[: len(before)] == before
        assert [epoch for epoch, _ in first] == epochs[:most]
        before = first


def test_what_a_function_returns_once_more_is_no_other_score() -> None:
    """It was killed after its value was noted and before its end was."""
    state = fold(
        started(trial("a")), [Evaluated(A, 1.0, {"loss": each}) for each in (2.0, 1.0, 1.0)]
    )
    assert [values["loss"] for _, values in state.scores[A]] == [2.0, 1.0]


def test_a_fall_below_the_newest_durable_state_takes_the_one_before_or_none() -> None:
    first, second, third = (Kept(A, n, 10.0 * n, f"a/{n}") for n in (1, 2, 3))
    visits = tuple(Visit(0, s, 0, 10) for s in SHARDS)
    made = Advanced({A: 30.0}, visits={A: visits})
    state = fold(started(trial("a")), [made, first, second, third])
    assert (state.kept[A], state.former[A]) == (third, second)
    state = step(state, Fell(A, 2, 20.0, "damaged"))
    assert state.kept[A] == second
    assert A not in state.former
    assert len(state.visits[A]) == 2
    again = step(state, Kept(A, 2, 20.0, "a/again"))
    assert again.kept[A].name == "a/again"
    assert A not in again.former
    state = step(state, Fell(A, 0, 0.0, "damaged"))
    assert A not in state.kept
    assert (state.visits[A], state.done[A]) == ((), 0.0)


def test_a_lost_slot_prunes_and_counts_strikes() -> None:
    wide = Gang((Lane(A, (W0, W1)), Lane(B, (SlotId("w2"),))))
    state = fold(started(trial("a"), trial("b")), [Planned((), (wide,))])
    left = step(state, Left(frozenset({W0}), died=True))
    assert left.running[A] == left.running[B] == Gang((Lane(A, (W1,)), wide.lanes[1]))
    assert left.strikes == {}, "it goes on on its other slot"
    assert W0 not in left.slots and W0 not in left.busy
    gone = step(left, Left(frozenset({W1}), died=True))
    assert gone.strikes == {A: 1} and A not in gone.running and B in gone.running
    assert step(gone, Kept(A, 0, 0.0)).strikes == {}
    assert step(state, Left(frozenset({W0}))).strikes == {}, (
        "a slot that was taken away says nothing of its trials"
    )


def test_lack_of_memory_in_company_is_no_slot_that_died() -> None:
    """It makes trials run alone, and fails none."""
    pack = Gang((Lane(A, (W0,)), Lane(B, (W0,))))
    state = started(trial("a"), trial("b"))
    for _ in range(3):
        state = fold(state, [Planned((), (pack,)), Ended(pack, "out of memory")])
    assert state.strikes == {A: 2, B: 2} and state.strikes_of_slots == {}
    alone = Gang((Lane(A, (W0,)),))
    state = fold(state, [Planned((), (alone,)), Left(frozenset({W0}), died=True)])
    assert state.strikes == {A: 3, B: 2} and state.strikes_of_slots == {A: 1}
    kept = step(state, Kept(A, 0, 0.0))
    assert kept.strikes == {B: 2} and kept.strikes_of_slots == {}


def test_extending_a_trial() -> None:
    state = fold(started(trial("a")), [Advanced({A: 30.0}), Finished(A)])
    assert state.ended == {A: "finished"} and not state.trials
    longer = step(state, Submitted(trial("a", 60.0)))
    assert longer.trials[A].samples == 60.0 and not longer.ended and longer.done[A] == 30.0
    assert step(state, Submitted(trial("a"))) == state, (
        "asked for once more, no longer: nothing is left to do"
    )


def test_a_new_run_finds_nothing_at_work() -> None:
    state = fold(
        started(trial("a")),
        [
            Planned((), (solo(A, W0, 0),)),
            Commanded("stop", "enough"),
            Commanded("stop", "SIGINT"),  # its reason is not the first
        ],
    )
    assert state.stopped == "enough" and state.turn == 1
    again = step(state, Opened(2, SHARDS))
    assert (again.run, again.stopped, again.slots, again.busy, again.running) == (
        2,
        None,
        {},
        {},
        {},
    )
    assert not again.plan.gangs and again.trials.keys() == {A} and again.turn == 1


def test_figures_of_a_signature_add_up() -> None:
    state = fold(
        state_of(),
        [
            Measured(A, "m", {"rate": 2.0, "step": 1.0}),
            Measured(B, "m", {}),
            Measured(B, "m", {"rate": 3.0}),
        ],
    )
    assert state.figures == {"m": {"rate": 3.0, "step": 1.0}}
    assert state.signature == {A: "m", B: "m"}


def test_a_trial_that_is_tried_again_has_no_strikes() -> None:
    died = [Planned((), (solo(A, W0, 0),)), Left(frozenset({W0}), died=True)]
    state = fold(started(trial("a")), [*died, Failed(A, "its slot died")])
    assert state.strikes == state.strikes_of_slots == {A: 1} and A not in state.trials
    again = step(state, Submitted(trial("a")))
    assert A in again.trials and A not in again.ended
    assert again.strikes == again.strikes_of_slots == {}


def test_a_shard_that_cannot_be_read_leaves_its_slot_or_holds_trials_back() -> None:
    state = started(trial("a"), trial("b"))
    assert S0 in state.slots[W0].shards
    lost = step(state, Unread(W0, S0, "gone"))
    assert S0 not in lost.slots[W0].shards and lost.slots[W1] == state.slots[W1]
    assert lost.unread == {S0: {W0: "gone"}} and not lost.held_back

    waits = step(state, Unread(W0, S0, "gone", (A,)))
    assert waits.slots == state.slots
    assert waits.held_back == {A: S0} and A in waits.trials
    assert not step(waits, Retired(A)).held_back
    again = step(waits, Opened(2, SHARDS))
    assert not again.unread and not again.held_back


def test_the_nodes_that_held_a_shard_are_known_after_they_left() -> None:
    state = started(trial("a"))
    left = step(state, Left(frozenset({W0}), died=True))
    assert left.gone[S0] == {state.slots[W0].node}


# -- which trials changed: what a decider learns that remembers its last look


NAMES = st.lists(st.sampled_from([TrialId(x) for x in "abcdef"]), max_size=6)


@given(st.lists(NAMES, max_size=8), st.integers(0, 8))
def test_news_are_all_that_came_since(batches: list[list[TrialId]], at: int) -> None:
    seen = [News()]
    for batch in batches:
        seen.append(seen[-1].after(batch))
    before = min(at, len(batches))
    later = {trial for batch in batches[before:] for trial in batch}
    since = seen[-1].since(seen[before])
    assert since is not None and set(since) == later


def test_two_states_that_go_on_from_one_know_nothing_of_each_other() -> None:
    root = News().after([TrialId("a")])
    left, right = root.after([TrialId("b")]), root.after([TrialId("c")])
    assert list(left.since(root) or ()) == ["b"]
    assert right.since(left) is None and right.since(root) is None, "look at all trials again"
    assert left.since(None) is None and root.since(left) is None


def test_a_fold_tells_of_each_trial_that_an_entry_is_about() -> None:
    state = fold(State(), [Submitted(Trial(TrialId(x), 10.0, {})) for x in "abc"])
    later = fold(state, [Evaluated(TrialId("b"), 1.0, {"loss": 0.5})])
    assert list(later.news.since(state.news) or ()) == ["b"]
    assert state == fold(State(), [Submitted(Trial(TrialId(x), 10.0, {})) for x in "abc"])
