"""Population based training: who is copied, what changes, and where copies start from."""

from dataclasses import replace
from math import nan

import pytest
from search_kit import simulate, told

from shoal.core.event import Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.search import PBT
from shoal.search.space import choice, grid, loguniform, randint, uniform
from shoal.testing import check_searcher

X = {"x": uniform(0, 1), "width": choice([8, 16])}
GOAL = {"metric": "score", "mode": "max"}


def test_contract():
    check_searcher(lambda: PBT(X, 4, 3, metric="accuracy", mode="max"), 5, settled=True)


def asked(trials, search, configs=None):
    configs = {t: {"x": 0.5, "width": 8, **(configs or {}).get(t, {})} for t in trials}
    return {t.id: t for t in search.propose(told(trials, configs=configs), None)[0].submit}


def test_contract_where_nobody_waits():
    check_searcher(lambda: PBT(X, 4, 3, asynchronous=True, metric="accuracy", mode="max"), 5)


FOUR = {f"t00{i}": (1, [s], "finished") for i, s in enumerate([0.1, 0.2, 0.3, 0.4])}


def test_the_best_quarter_takes_the_place_of_the_worst():
    new = asked(FOUR, PBT(X, 4, 3, **GOAL))
    assert {t: (x.samples / 100, x.start) for t, x in new.items()} == {
        "t001": (2, None),
        "t002": (2, None),
        "t003": (2, None),
        "t000-g1": (2, ("t003", 1)),
    }
    assert new["t000-g1"].config["width"] == 8, "only floats change where nothing is said"
    assert new["t000-g1"].config["x"] != 0.5


def test_all_wait_for_the_last_of_the_generation():
    assert asked(FOUR | {"t001": (1, [], "")}, PBT(X, 4, 3, **GOAL)) == {}


def test_the_last_generation_ends():
    done = {t: (3, [s] * 3, "finished") for t, (_, (s,), _) in FOUR.items()}
    assert asked(done, PBT(X, 4, 3, **GOAL)) == {}


def test_failed_and_not_finite_ones_are_replaced_and_hold_nobody_up():
    new = asked(
        FOUR | {"t001": (1, [], "failed"), "t003": (1, [nan], "finished")}, PBT(X, 4, 3, **GOAL)
    )
    assert {t: x.start for t, x in new.items()} == {
        "t000": None,
        "t002": None,
        "t001-g1": ("t002", 1),
        "t003-g1": ("t002", 1),
    }


def test_what_a_crash_left_undone_is_done_as_it_would_have_been():
    search = PBT(X, 4, 3, **GOAL)
    whole = asked(FOUR, search)
    rest = asked(FOUR | {"t003": (2, [0.4], ""), "t001": (2, [0.2], "")}, search)
    assert rest == {t: whole[t] for t in ("t002", "t000-g1")}


def nobody_waits(trials, **more):
    return {
        t: (x.samples / 100, x.start)
        for t, x in asked(trials, PBT(X, 4, 4, asynchronous=True, **GOAL, **more)).items()
    }


def test_nobody_waits_for_the_last_of_the_generation():
    slow = {"t000": (1, [], ""), "t003": (1, [], "")}
    assert nobody_waits(FOUR | slow) == {"t001-g1": (2, ("t002", 1)), "t002": (2, None)}
    assert nobody_waits(FOUR | slow | {"t002": (1, [], "")}) == {"t001": (2, None)}, (
        "there is nobody to compare with"
    )


def test_a_copy_starts_where_the_other_is_by_now():
    """t003 is at its third epoch, and scored best at its first; that of t000, which comes late,
    counts as of the same epoch.
    """
    ahead = {"t001": (2, [0.2], ""), "t002": (2, [0.3], ""), "t003": (3, [0.4, 0.1], "")}
    assert nobody_waits(FOUR | ahead) == {"t000-g2": (3, ("t003", 2))}
    done = {"t003": (4, [0.4] * 4, "finished")}
    assert nobody_waits(FOUR | ahead | done) == {"t000": (2, None)}, (
        "nothing is left to train of one that is at the end"
    )


def test_a_place_whose_trial_failed_waits_for_somebody_to_copy():
    failed = {"t000": (1, [], "failed")}
    none = {"t001": (1, [], ""), "t002": (1, [], ""), "t003": (1, [], "")}
    assert nobody_waits(FOUR | failed | none) == {}
    assert nobody_waits(FOUR | failed | {"t001": (2, [0.2], ""), "t002": (1, [], "")})[
        "t000-g1"
    ] == (2, ("t003", 1))


def test_the_last_one_alive_takes_all_places():
    failed = {t: (1, [], "failed") for t in ("t000", "t001", "t003")}
    copies = {"t000-g1": (2, ("t002", 1)), "t001-g1": (2, ("t002", 1)), "t003-g1": (2, ("t002", 1))}
    assert {
        t: (x.samples / 100, x.start) for t, x in asked(FOUR | failed, PBT(X, 4, 3, **GOAL)).items()
    } == {"t002": (2, None), **copies}
    assert nobody_waits(FOUR | failed) == {"t002": (2, None), **copies}
    alone = {"t000": (1, [0.5], "finished")}
    assert {t: x.start for t, x in asked(alone, PBT(X, 1, 3, **GOAL)).items()} == {"t000": None}


@pytest.mark.parametrize(
    ("space", "mutate", "says"),
    [
        (X, "x", r"mutate is a list of names; got the text 'x': write mutate=\['x'\]"),
        (X, ["x", "depth"], "mutate names depth; the space has width, x"),
        ({"a": choice([1, 2]), "k": 3}, ["k"], "mutate names k; the space has a"),
        ({"a": choice([1, 2]), "g": grid([1])}, None, "nothing is in this space.* of a, g"),
        ({"k": 3}, None, "dimensions that are not constant"),
    ],
)
def test_copies_must_have_something_to_change(space, mutate, says):
    with pytest.raises(ValueError, match=says):
        PBT(space, 4, 3, mutate=mutate, **GOAL)


def test_a_branch_has_its_own_values():
    """Another branch's value by the same name is not taken over, nor is its neighbour looked
    for.
    """
    space = {
        "o": choice(
            {
                "a": {"c": choice([1, 2]), "f": uniform(0, 1)},
                "b": {"c": choice([7, 8]), "f": uniform(5, 6)},
            }
        )
    }
    for mutate in (["o", "o.c", "o.f"], ["o"]):
        for seed in range(8):
            search = PBT(space, 4, 3, mutate=mutate, resample_probability=0, seed=seed, **GOAL)
            made = asked(FOUR, search, {t: {"o": "a", "o.c": 1, "o.f": 0.5} for t in FOUR})[
                "t000-g1"
            ].config
            low, of = (5, (7, 8)) if made["o"] == "b" else (0, (1, 2))
            assert made["o.c"] in of and low <= made["o.f"] <= low + 1


def test_changes_stay_within_the_space():
    space = {
        "f": loguniform(1e-3, 1e-1),
        "n": randint(1, 5),
        "c": choice([1, 2, 4]),
        "g": grid([7]),
        "k": "fixed",
    }
    search = PBT(space, 4, 9, mutate=["f", "n", "c"], resample_probability=0, **GOAL)
    values = {"f": set(), "n": set(), "c": set()}
    for seed in range(30):
        one = PBT(space, 4, 9, mutate=search.mutate, resample_probability=0, seed=seed, **GOAL)
        config = {"f": 0.09, "n": 2, "c": 2, "g": 7, "k": "fixed"}
        child = asked(FOUR, one, dict.fromkeys(FOUR, config))["t000-g1"].config
        assert (child["g"], child["k"]) == (7, "fixed") and 1e-3 <= child["f"] < 1e-1
        for name, found in values.items():
            found.add(child[name])
    assert len(values["f"]) == 2 and values["n"] == {1, 3} and values["c"] == {1, 4}


def test_a_copy_is_never_the_same_again_where_there_is_another_value():
    space = {"n": randint(1, 5), "c": choice([1, 2]), "f": uniform(0.5, 1)}
    for seed in range(10):
        one = PBT(space, 4, 9, mutate=["n", "c", "f"], resample_probability=0, seed=seed, **GOAL)
        child = asked(FOUR, one, {t: {"n": 1, "c": 2, "f": 0.5} for t in FOUR})["t000-g1"].config
        assert child == {"n": 2, "c": 1, "f": 0.6}, "at an end it goes the other way"


def test_copies_train_on_from_where_the_other_stood():
    state, lines = simulate(PBT(X, 4, 3, **GOAL), slots=4)
    copies = [t for t in state.known.values() if t.start is not None]
    assert len(copies) == 2 and all(t.id.endswith(("-g1", "-g2")) for t in copies)
    for copy in copies:
        parent, visits = copy.start
        assert state.visits[copy.id][:visits] == state.visits[parent][:visits]
        assert state.done[copy.id] == 300 and len(state.visits[copy.id]) == 3
    trained = sum(sum(e.samples.values()) for _, e in lines if type(e).__name__ == "Advanced")
    assert trained == 4 * 300, "nothing is trained twice"


def test_a_start_must_be_durable():
    view = told(FOUR | {"t003": (2, [0.4], "")})
    parent = view.known[TrialId("t003")]
    with pytest.raises(ValueError, match="starts from nobody after 1 passes"):
        fold(State(), [Submitted(replace(parent, id="child", start=("nobody", 1)))])
    with pytest.raises(ValueError, match="cannot start from itself"):
        replace(parent, start=(parent.id, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"quantile_fraction": 0.6},
        {"perturbation_interval": 0},
        {"perturbation_interval": 1.5},
        {"resample_probability": 2},
    ],
)
def test_wrong_values(wrong):
    with pytest.raises(ValueError, match="PBT needs perturbation_interval"):
        PBT(X, 4, 3, **wrong)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_has_no_checkpoint_cannot_be_copied(asynchronous: bool) -> None:
    trials = {f"t00{i}": (1, [i / 4], "finished") for i in range(4)}
    seen = told(trials)
    searcher = PBT(
        {"x": uniform(0, 1)}, 4, 2, asynchronous=asynchronous, metric="score", mode="max"
    )
    assert searcher.propose(seen, None)[0].submit
    with pytest.raises(ValueError, match=r"trial t00\d has none at the end of an interval"):
        searcher.propose(replace(seen, kept={}), None)
