"""What is given holds; what is not is measured."""

from pathlib import Path

import pytest
from simkit import started, trial

from shoal.core.cluster import SlotId
from shoal.core.event import Measured as Was
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.profile.measure import Believer, believe, measured
from shoal.profile.overrides import Given, load, tells_of_hops
from shoal.profile.table import Row, Table
from shoal.testing import check_profile

A, B = TrialId("a"), TrialId("b")
W = [SlotId(f"w{i}") for i in range(8)]
STATE = fold(
    started(trial("a", size=1), trial("b", size=2)),
    [
        Was(A, "sa", {"rate": 10.0, "memory": 0.5, "build": 0.25}),
        Was(B, "sb", {"rate": 20.0, "memory": 2.0, "first": 1.0}),
    ],
)


def given(tmp_path: Path, text: str) -> Given:
    path = tmp_path / "p.toml"
    path.write_text(text)
    found = load(path)
    assert isinstance(found, Given)
    return found


def wide(trial: TrialId, width: int) -> Gang:
    return Gang((Lane(trial, tuple(W[:width])),))


def test_given_figures_hold_and_the_others_are_measured(tmp_path: Path) -> None:
    said = given(
        tmp_path,
        "[[rows]]\nconfig = { size = 1 }\nrates = [100.0, 190.0]\nup = 3.0\nmemory = 7.0\n",
    )
    profile = Believer(said)(STATE)
    assert profile.curve(A, 2) == pytest.approx([100.0, 190.0])
    assert profile.curve(B, 1) == [20.0], "no row is its own"
    assert (profile.cost(A).memory, profile.cost(A).build) == (7.0, 0.25)
    assert profile.cost(B).memory == 2.0
    assert profile.switch(wide(A, 1), wide(A, 2)) == 3.0
    check_profile(profile, [A, B], W)


def test_rates_at_some_widths_and_a_given_rate_waits_for_no_data(tmp_path: Path) -> None:
    state = fold(STATE, [Was(A, "sa", {"data": 0.1, "rate@4": 25.0})])
    profile = believe(state, given(tmp_path, "[[rows]]\npoints = { 1 = 100.0, 2 = 150.0 }\n"))
    assert profile.curve(A, 4)[:2] == pytest.approx([100.0, 150.0])
    assert profile.curve(A, 4)[3] == 25.0, "what is not given at a width was measured there"
    costs_only = believe(state, given(tmp_path, "[[rows]]\nmemory = 1.0\n"))
    assert costs_only.curve(A, 1)[0] == pytest.approx(1 / (1 / 10 + 0.1))


def test_the_first_row_that_fits_counts(tmp_path: Path) -> None:
    said = given(
        tmp_path, "[[rows]]\nconfig = { size = 1 }\nmemory = 1.0\n[[rows]]\nmemory = 5.0\n"
    )
    assert said({"size": 1, "lr": 3}) == {"memory": 1.0} and said({"size": 2}) == said({}) == {
        "memory": 5.0
    }


def test_before_anything_is_measured(tmp_path: Path) -> None:
    empty: State = started(trial("a", size=1))
    profile = believe(empty, given(tmp_path, "[[rows]]\nrates = [100.0]\n"))
    assert profile.curve(A, 1) == [100.0]
    assert measured(profile) == {"rate": 100.0, "data": 0.0}, "there is something to decide upon"
    assert measured(believe(empty)) == {}


def test_a_file_that_says_everything_leaves_nothing_to_measure(tmp_path: Path) -> None:
    costs = "memory = 1.0\nbuild = 0.1\nevaluate = 0.1\nsave = 0.1\nswitch = 0.1\n"
    path = tmp_path / "p.toml"
    path.write_text(f"[[rows]]\nrates = [5.0]\n{costs}")
    assert isinstance(load(path), Table)
    path.write_text(f"[[rows]]\nconfig = {{ size = 1 }}\nrates = [5.0]\n{costs}")
    assert isinstance(load(path), Given), "of other trials it says nothing"
    path.write_text("[[rows]]\nrates = [5.0]\n[speeds]\nw0 = 2.0\n")
    assert isinstance(load(path), Table), "slots of unlike speed are a table's"


def test_a_profile_tells_of_hops_only_if_it_says_what_they_cost(tmp_path: Path) -> None:
    """`auto` weighs hops by a profile, as if they cost nothing if it counted one without."""
    (tmp_path / "p.toml").write_text("[[rows]]\nrates = [10.0]\nbuild = 0.1\n")
    assert not tells_of_hops(load(tmp_path / "p.toml"))
    (tmp_path / "p.toml").write_text("[[rows]]\nrates = [10.0]\nswitch = 0.1\n")
    assert tells_of_hops(load(tmp_path / "p.toml"))
    assert tells_of_hops(Table([Row(rates=(10.0,))]))
    assert not tells_of_hops(None)


def test_a_table_as_given_figures() -> None:
    row = Row((5.0, 9.0), {"size": 1}, memory=2.0, down=1.5)
    ((config, figures),) = Given.of((row,)).rows
    assert (
        config == {"size": 1}
        and figures["rate@2"] == 9.0
        and figures["down"] == 1.5
        and "up" not in figures
    )


@pytest.mark.parametrize(
    "text",
    [
        "[[rows]]\nrates = [-1.0]",
        "[[rows]]\npoints = { x = 1.0 }",
        "[[rows]]\npoints = {}",
        "[[rows]]\npoints = { 4294967296 = 1.0 }",
        "[[rows]]\nrate = 3.0",
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ValueError, match=r"profile .*p\.toml"):
        load(tmp_path / "p.toml")
