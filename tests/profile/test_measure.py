from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simkit import SHARDS, rates, slots, started, study, trial

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Joined, Planned, Submitted
from shoal.core.event import Measured as Was
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, solo
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import reopened, run
from shoal.policy.hop.hop import Hop
from shoal.profile.evidence import clocked_as, links
from shoal.profile.measure import RATE, Believer, believe
from shoal.profile.overrides import Given
from shoal.profile.signatures import Signatures
from shoal.search.grid import Grid
from shoal.search.space import grid
from shoal.testing import check_profile

W = [SlotId(f"w{i}") for i in range(3)]


def rate(state: State, name: str) -> float:
    return float(believe(state).rates(solo(TrialId(name), W[0], 0))[TrialId(name)])


STATE = fold(
    started(
        trial("a", width=64, lr=0.1),
        trial("b", width=64, lr=0.01),
        trial("c", width=512, lr=0.1),
        trial("d", width=90, lr=0.3),
        trial("e", width=400, lr=1e-4),
        trial("f"),
    ),
    [
        Was(
            TrialId("a"),
            "small",
            {"rate": 100.0, "memory": 0.5, "build": 0.25, "first": 1.0, "evaluate": 0.125},
        ),
        Was(TrialId("c"), "large", {"rate": 25.0, "memory": 2.0, "switch": 0.5}),
    ],
)


def test_contract() -> None:
    check_profile(believe(STATE), [TrialId(x) for x in "abcdef"], W)
    check_profile(believe(started(trial("a"))), [TrialId("a"), TrialId("nobody")], W)


def test_nothing_known() -> None:
    state = started(trial("a"), trial("b"))
    assert rate(state, "a") == rate(state, "b") == RATE
    assert believe(state).cost(TrialId("a")).memory == 0.0
    assert believe(state).switch(None, solo(TrialId("a"), W[0], 0)) == 0.0


def test_measured_trials_have_the_figures_of_their_signature() -> None:
    assert rate(STATE, "a") == 100.0 and rate(STATE, "c") == 25.0
    newer = fold(STATE, [Was(TrialId("b"), "small", {"rate": 110.0})])
    assert rate(newer, "a") == 110.0, "one signature, one figure: the newest"


def test_others_have_those_of_the_nearest_configuration() -> None:
    assert rate(STATE, "b") == 100.0, "a learning rate says nothing of speed"
    assert rate(STATE, "d") == 100.0 and rate(STATE, "e") == 25.0
    assert rate(STATE, "f") == pytest.approx(2 / (1 / 100 + 1 / 25)), (
        "as far from both: their mean, of seconds per sample"
    )


def test_keys_that_differ_within_a_signature_do_not_count() -> None:
    state = started(
        *(
            trial(n, noise=x, width=w)
            for n, x, w in [("a", 1, 8), ("b", 1000, 8), ("c", 1, 64), ("d", 1000, 60)]
        )
    )
    state = fold(
        state, [Was(TrialId("a"), "s", {"rate": 9.0}), Was(TrialId("c"), "t", {"rate": 3.0})]
    )
    near = rate(state, "d")
    state = fold(state, [Was(TrialId("b"), "s", {})])
    assert rate(state, "d") == 3.0
    assert near == 3.0


def test_missing_figures_are_the_mean_of_the_known() -> None:
    cost = believe(STATE).cost(TrialId("c"))
    assert (cost.memory, cost.build, cost.evaluate, cost.save, cost.first) == (
        2.0,
        0.25,
        0.125,
        0.0,
        1.0,
    )
    assert believe(STATE).switch(None, solo(TrialId("a"), W[0], 0)) == 0.5


def test_what_had_no_room_in_company_is_still_tried_alone_on_a_smaller_slot() -> None:
    crowded = fold(STATE, [Was(TrialId("a"), "small", {"crowded": 40.0})])
    believer = Believer()

    def memory(state: State, size: float) -> float:
        joined = fold(
            state, [Joined(tuple(replace(slot, memory=size) for slot in state.slots.values()))]
        )
        return believer(joined).cost(TrialId("a")).memory

    assert [memory(crowded, size) for size in (80.0, 16.0, 0.25)] == [40.0, 16.0, 0.5], (
        "never less than was measured"
    )
    said = Given((({"width": 64}, {"memory": 3.0}),))
    assert believe(crowded, said).cost(TrialId("a")).memory == 3.0


def test_wide_and_shared() -> None:
    a, c = TrialId("a"), TrialId("c")
    assert 100.0 < believe(STATE).rates(Gang((Lane(a, (W[0], W[1])),)))[a] < 200.0
    assert believe(STATE).rates(Gang((Lane(a, (W[0],)), Lane(c, (W[0],))))) == {
        a: pytest.approx(20.0),
        c: pytest.approx(20.0),
    }
    gang = Gang((Lane(a, (W[0],)), Lane(c, (W[1],))))
    assert believe(STATE).switch(gang, Gang((gang.lanes[0],))) == 0.0


def test_for_other_trials_of_like_configurations() -> None:
    other = {
        TrialId("x"): trial("x", width=500, lr=3.0),
        TrialId("a"): trial("a", width=512, lr=0.1),
    }
    moved = believe(STATE).of(other)
    assert moved.curve(TrialId("x"), 1)[0] == 25.0
    assert moved.curve(TrialId("a"), 1)[0] == 25.0, "by configuration, not by name"


def test_believer_looks_up_once() -> None:
    believer = Believer()
    first = believer(STATE)
    assert believer(STATE) is first
    more = fold(STATE, [Submitted(trial("new", width=70, lr=0.2))])
    assert believer(more) is not first and believer(more).curve(TrialId("new"), 1)[0] == 100.0
    newer = fold(more, [Was(TrialId("a"), "small", {"rate": 50.0})])
    assert believer(newer).curve(TrialId("new"), 1)[0] == 50.0


def test_a_study_learns_its_speeds_as_it_goes() -> None:
    """Simulated with the truth, decided with belief: in the end all is believed as it is."""
    table = rates(1.0, 2.0, 4.0, memory=0.25, evaluate=0.5)
    state = fold(State(), reopened(State(), SHARDS, {}))
    final = run(
        Grid({"x": grid(range(3))}, 2),
        Hop("lrw"),
        Sim(table.of, slots(SHARDS), shards=SHARDS),
        Believer(),
        Journal(),
        state,
    )
    assert {t: believe(final).curve(t, 1)[0] for t in final.known} == {
        "t000": 1.0,
        "t001": 2.0,
        "t002": 4.0,
    }
    assert believe(final).cost(TrialId("t001")).evaluate == 0.5
    _, known = study(Hop("lrw"), table, count=3, epochs=2)
    assert known.ended == final.ended


def test_optimizers_of_one_form_are_fused_with_each_other_only() -> None:
    """Signatures tell the form first, then the optimizer."""
    names = [TrialId(x) for x in "abcde"]
    kinds = zip("abcde", ["x", "y", "x", "z", "z"], [8, 8, 9, 8, 7], strict=True)
    state = started(
        *(
            trial(n, **{"optimizer": o, "width": w, "optimizer.decay": i})
            for i, (n, o, w) in enumerate(kinds)
        )
    )
    figures = {"rate": 100.0, "step": 0.1, "fused:2": 0.1, "fused:4": 0.1}
    forms = ["0123456789ab", "ba9876543210"]
    state = fold(
        state,
        [
            Was(names[0], forms[0] + "0000", figures),
            Was(
                names[1], forms[0] + "1111", {**figures, "rate": 50.0, "step": 0.2, "fused:2": 0.2}
            ),
            Was(names[2], forms[1] + "0000", figures),
        ],
    )

    def seconds(*trials: TrialId, fused: bool = True) -> float:
        gang = Gang(tuple(Lane(t, (W[0],)) for t in trials), fused=fused)
        return 1.0 / believe(state).rates(gang)[trials[0]]

    a, b, c, d, e = names
    assert seconds(a, b, fused=False) == pytest.approx(0.03)
    assert seconds(a, b) == pytest.approx(0.015), "half: a step of two takes as long as one"
    assert seconds(a, c) == pytest.approx(0.02), "unlike widths: not fused"
    assert seconds(a, d) == pytest.approx((0.01 + seconds(d)) / 2), (
        "by its width it is of the same form, though not measured yet"
    )
    assert seconds(a, e) == pytest.approx(0.01 + seconds(e)), "of another"


def test_to_fuse_lanes_anew_costs_what_was_measured() -> None:
    a, b, c = (TrialId(x) for x in "abc")
    state = fold(STATE, [Was(a, "small", {"repack": 0.25, "switch": 0.5}), Was(b, "small", {})])

    def gang(*trials: TrialId, fused: bool = True) -> Gang:
        return Gang(tuple(Lane(t, (W[0],)) for t in trials), fused=fused)

    switch = believe(state).switch
    assert switch(None, gang(a, b)) == 1.25, "two states, one after the other"
    assert switch(gang(a), gang(a, b)) == 0.75
    assert switch(gang(a, b, c), gang(a, b)) == switch(gang(a, b), gang(a)) == 0.25, (
        "who stays is where it was"
    )
    assert switch(gang(a, b), gang(b, a)) == switch(gang(a, b), None) == 0.0
    assert switch(gang(a, fused=False), gang(a, b, fused=False)) == 0.5
    assert switch(gang(a, b, fused=False), gang(a, fused=False)) == 0.0


def test_the_nearest_kinds_are_found_again_by_the_new_ones_alone() -> None:
    kinds = [(("width", width),) for width in (64, 16, 32, 128)]
    learnt = Signatures()
    for number, kind in enumerate(kinds):
        learnt.kinds[kind] = {f"s{number}"}
        learnt.nearest((("width", 32),))
    assert learnt.nearest((("width", 32),)) == ["s2"]
    assert learnt.nearest((("width", 48),)) == ["s0"]
    compared = learnt._nearest[(("width", 32),)].compared
    assert compared == len(kinds)


def test_lanes_that_are_not_fused_are_as_quick_as_their_sum() -> None:
    """The ratio holds for those that take turns, if all of them have one; never above 1."""
    pack = ("a", "c")

    def pace(a: float, c: float) -> float:
        state = fold(
            STATE,
            [Was(TrialId("a"), "small", {"summed": a}), Was(TrialId("c"), "large", {"summed": c})],
        )
        lanes = tuple(Lane(TrialId(name), (W[0],)) for name in pack)
        rates = believe(state).rates(Gang(lanes, fused=True, since=0))
        return rates[TrialId("a")]

    in_turns = 1 / (1 / 100 + 1 / 25)
    assert pace(1.0, 1.0) == pytest.approx(in_turns)
    assert pace(0.5, 0.7) == pytest.approx(in_turns / 0.6)
    assert pace(1.5, 1.1) == pytest.approx(in_turns)


@pytest.mark.parametrize(("steps", "gains"), [(99, False), (100, True)])
def test_too_few_steps_are_not_taken_to_gain_by_being_fused(steps: int, gains: bool) -> None:
    """Slots would not try it, and trials so short were packed for nothing."""
    a, b = TrialId("a"), TrialId("b")
    state = fold(
        started(trial("a", samples=8.0 * steps), trial("b", samples=8.0 * steps)),
        [Was(name, "kind", {"rate": 16.0, "step": 0.5}) for name in (a, b)],
    )
    pack = Gang((Lane(a, (W[0],)), Lane(b, (W[0],))), fused=True)
    assert (believe(state).rates(pack)[a] > 8.01) == gains
    told = fold(state, [Was(a, "kind", {"fused:2": 0.6})])
    assert believe(told).rates(pack)[a] > 8.01, "what is measured counts"


def test_one_more_that_is_what_all_like_it_were_is_no_news() -> None:
    """Thousands of tiny trials end one after the other: nothing is to be asked anew for each."""
    believer, g = Believer(), TrialId("g")
    before = fold(STATE, [Was(TrialId("b"), "small", {}), Submitted(trial("g", width=64, lr=0.2))])
    first = believer(before)
    alike = fold(before, [Was(g, "small", {}), Planned((), (solo(g, W[0], 0),))])
    assert believer(alike) is first
    clocked = fold(alike, [Advanced({g: 50.0}, {}, {}, {g: {"train": 1.0}})])
    assert clocked.speeds != alike.speeds
    assert believer(clocked) is first, "one slot is as fast as itself"
    other = fold(clocked, [Was(TrialId("d"), "large", {})])
    assert believer(other) is not first, "nobody knew what is 90 wide"


EVENTS = st.one_of(
    st.tuples(
        st.just("measured"),
        st.sampled_from("abcdef"),
        st.sampled_from(["0123456789ab00", "0123456789ab11", "ffffffffffff00"]),
        st.sampled_from([{}, {}, {"rate": 50.0}, {"memory": 1.0}]),
    ),
    st.tuples(
        st.just("clocked"), st.sampled_from("abcdef"), st.integers(0, 2), st.sampled_from([2.0, 9])
    ),
)


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=12), st.integers(1, 3))
def test_a_believer_says_what_is_believed_by_who_looks_at_all_anew(
    events: list[tuple[Any, ...]], slots: int
) -> None:
    believer, state = Believer(), STATE
    for what, name, one, two in events:
        one_trial = TrialId(name)
        if what == "measured":
            state = fold(state, [Was(one_trial, one, two)])
        else:
            gang = solo(one_trial, W[one % slots], state.turn)
            state = fold(
                state,
                [
                    Planned(tuple(state.gangs), (gang,)),
                    Advanced({one_trial: 50.0}, {}, {}, {one_trial: {"train": two}}),
                ],
            )
        kept, anew = believer(state), believe(state)
        linked, linked_anew = links(kept), links(anew)
        assert linked is not None
        assert linked_anew is not None
        for trial_id in state.known:
            assert kept.curve(trial_id, 2) == anew.curve(trial_id, 2)
            assert kept.cost(trial_id) == anew.cost(trial_id)
            kind = clocked_as(anew, trial_id)
            assert clocked_as(kept, trial_id) == kind
            for slot in W:
                assert kept.rates(solo(trial_id, slot, 0)) == anew.rates(solo(trial_id, slot, 0))
                assert linked.apart(kind, slot) == linked_anew.apart(kind, slot)
