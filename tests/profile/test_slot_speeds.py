from math import sqrt

import pytest
from simkit import SHARDS, slots, started, trial

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Ended, Joined, Measured, Planned
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.profile.measure import Believer, believe
from shoal.profile.slot_speeds import SlotSpeeds

A, B = TrialId("a"), TrialId("b")
S0 = next(iter(SHARDS))
W0, W1, W2 = (SlotId(f"w{i}") for i in range(3))


def unit(state: State, name: TrialId, slot: SlotId, rate: float, figures: bool = True) -> State:
    """The trial has trained a shard on the slot, at this rate."""
    gang = solo(name, slot, state.turn, S0)
    signature = f"of {name}"
    known = {"rate": rate} if figures else {}
    return fold(
        state,
        [
            Planned((), (gang,)),
            Advanced({name: 100.0}, spent={name: {"train": 100.0 / rate}}),
            Measured(name, signature, known),
            Ended(gang),
        ],
    )


def rate(state: State, name: TrialId, *at: SlotId) -> float:
    gang = Gang((Lane(name, at),), since=0)
    return believe(state).rates(gang)[name]


@pytest.fixture
def state() -> State:
    begun = started(trial("a", width=1), trial("b", width=8))
    return fold(begun, [Joined(slots(SHARDS))])


def test_a_rate_holds_for_its_slot_and_follows_for_others(state: State) -> None:
    state = unit(state, A, W0, 400.0)
    state = unit(state, A, W1, 100.0, figures=False)
    state = unit(state, B, W1, 10.0)
    assert rate(state, A, W0) == pytest.approx(400)
    assert rate(state, A, W1) == pytest.approx(100)
    assert rate(state, B, W1) == pytest.approx(10)
    assert rate(state, B, W0) == pytest.approx(40, rel=1e-3)  # never ran there
    # A slot of speed 1 is the geometric mean of those clocked, and so is one never used.
    assert rate(state, A, W2) == pytest.approx(200, rel=1e-3)
    assert believe(state).curve(A, 1)[0] == pytest.approx(200, rel=1e-3)
    wide = believe(state).curve(A, 2)[1]
    assert rate(state, A, W0, W1) == pytest.approx(wide * 0.5, rel=1e-3)  # the slower one's pace


def packed(state: State, slot: SlotId, seconds: float) -> State:
    """Both trials have trained 100 samples as a pack, each in so many seconds of the slot."""
    gang = Gang((Lane(A, (slot,)), Lane(B, (slot,))), (S0,), since=state.turn)
    spent = {name: {"train": seconds} for name in (A, B)}
    done = Advanced({A: 100.0, B: 100.0}, spent=spent)
    return fold(state, [Planned((), (gang,)), done, Ended(gang)])


def known_kinds(state: State) -> State:
    """Both trials were measured, and have 100 samples/s alone."""
    figures = {"rate": 100.0}
    return fold(state, [Measured(A, "of a", figures), Measured(B, "of b", figures)])


def test_a_pack_that_has_trained_a_while_is_as_fast_as_it_was_clocked(state: State) -> None:
    """By the trials' own rates each would have 50 samples/s."""
    state = known_kinds(state)
    here = Gang((Lane(A, (W0,)), Lane(B, (W0,))), since=0)
    assert believe(state).rates(here) == {A: 50.0, B: 50.0}
    begun = packed(state, W0, 1.0)
    assert believe(begun).rates(here) == {A: 50.0, B: 50.0}, "its first steps try ways"
    state = packed(state, W0, 4.0)
    slow = pytest.approx({A: 12.5, B: 12.5})
    assert believe(state).rates(here) == slow, "both took 8 s of the slot"
    there = Gang((Lane(A, (W1,)), Lane(B, (W1,))), since=0)
    assert believe(state).rates(there) == slow


def test_packs_of_kinds_that_nobody_knows_are_not_clocked(state: State) -> None:
    """They are named by their trials: the next pack would be another kind."""
    assert not packed(state, W0, 4.0).speeds


def test_packs_are_clocked_and_go_as_their_slot(state: State) -> None:
    state = known_kinds(state)
    for slot, seconds in ((W0, 4.0), (W1, 16.0)):
        state = packed(state, slot, seconds)
    assert believe(state).slots.of(W0) / believe(state).slots.of(W1) == pytest.approx(4)
    pack = {s: Gang((Lane(A, (s,)), Lane(B, (s,))), since=0) for s in (W0, W1)}
    fast, slow = (believe(state).rates(pack[s])[A] for s in (W0, W1))
    assert fast == pytest.approx(4 * slow)


def test_a_slow_slot_makes_no_slow_kind_where_only_packs_ran(state: State) -> None:
    """Each slot tells what one of the lanes does alone there."""
    for slot, alone in ((W0, 100.0), (W1, 30.0)):
        gang = Gang((Lane(A, (slot,)), Lane(B, (slot,))), (S0,), since=state.turn)
        spent = {name: {"train": 200.0 / alone} for name in (A, B)}
        done = Advanced({A: 100.0, B: 100.0}, spent=spent)
        told = Measured(A, "of both", {"rate": alone})
        state = fold(state, [Planned((), (gang,)), done, told, Ended(gang)])
    assert rate(state, A, W0) == pytest.approx(100)
    assert rate(state, A, W1) == pytest.approx(30)


def test_a_slot_that_slows_down_is_found_out(state: State) -> None:
    state = unit(state, A, W0, 400.0)
    state = unit(state, A, W1, 400.0, figures=False)
    before = state.speeds
    same = unit(state, A, W1, 401.0, figures=False)
    assert same.speeds is before  # nothing new, so nothing is computed anew
    for _ in range(12):
        state = unit(state, A, W1, 100.0, figures=False)
    slots_now = believe(state).slots
    assert slots_now.of(W0) / slots_now.of(W1) == pytest.approx(4, rel=0.1)


def test_the_believer_takes_new_speeds_in(state: State) -> None:
    believer = Believer()
    state = unit(state, A, W0, 400.0)
    assert believer(state).rates(solo(A, W1, 0))[A] == pytest.approx(400)
    state = unit(state, A, W1, 100.0, figures=False)
    assert believer(state).rates(solo(A, W1, 0))[A] == pytest.approx(100)


def test_links() -> None:
    speeds = {("a", W0): 8.0, ("a", W1): 2.0, ("b", W2): 1.0}
    apart = SlotSpeeds(speeds, {})
    assert apart.links().hang_together(["a"], [W0, W1])
    assert apart.links().apart("b", W0) and apart.links().apart("new", W0)
    joined = SlotSpeeds({**speeds, ("b", W1): 2.0}, {})
    assert joined.links().hang_together(["a", "b"], [W0, W1, W2])
    # a: 8, 2, ? and b: ?, 2, 1: speeds 4 : 1 : 1/2
    assert joined.of(W0) / joined.of(W2) == pytest.approx(8, rel=1e-2)
    assert joined.of_kind("b", W0) == pytest.approx(joined.of(W0))
    assert joined.of(W0) * joined.of(W1) * joined.of(W2) == pytest.approx(1)
    assert sqrt(joined.of(W0) / joined.of(W1)) == pytest.approx(2, rel=1e-2)
