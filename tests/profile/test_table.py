from math import inf
from pathlib import Path
from typing import Any

import pytest
from simkit import started, trial

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, solo
from shoal.core.profile import Cost
from shoal.core.trial import TrialId
from shoal.profile.pace import lockstep
from shoal.profile.table import Row, Table
from shoal.testing import check_profile

A, B, C = (TrialId(x) for x in "abc")
W = [SlotId(f"w{i}") for i in range(4)]
STATE = started(
    trial("a", width=64, act="relu"), trial("b", width=128, act="relu"), trial("c", width=256)
)
TABLE = Table(
    (
        Row((100.0, 180.0), {"width": 64, "act": "relu"}, memory=1.0, build=0.5),
        Row((50.0,), {"width": 128}, memory=2.0, evaluate=0.25, save=0.125, switch=0.75, first=1.5),
        Row((10.0, 19.0, 27.0)),
    )
).of(STATE.known)


def test_contract() -> None:
    check_profile(TABLE, [A, B, C], W)
    check_profile(Table(), [A, B], W)


def test_the_first_row_that_matches() -> None:
    assert [TABLE.curve(t, 1)[0] for t in (A, B, C)] == [100.0, 50.0, 10.0]
    assert TABLE.cost(A) == Cost(memory=1.0, build=0.5)
    assert TABLE.cost(B) == Cost(2.0, 0.0, 0.25, 0.125, 1.5)
    last = Table((Row((1.0,)), Row((2.0,), {"width": 64}))).of(STATE.known)
    assert last.curve(A, 1) == (1.0,), (
        "a row without a configuration matches all, wherever it stands"
    )
    assert TABLE.curve(TrialId("unknown"), 1) == (10.0,)


def test_no_row() -> None:
    table = Table((Row((1.0,), {"width": 64}),)).of(STATE.known)
    with pytest.raises(
        ValueError, match=r"no row for trial b, \{'width': 128, 'act': 'relu'\}: add one"
    ):
        table.curve(B, 1)


def test_curve_is_flat_beyond_what_is_known() -> None:
    assert list(TABLE.curve(A, 4)) == [100.0, 180.0, 180.0, 180.0]
    assert list(TABLE.curve(C, 2)) == [10.0, 19.0]


def test_rates_of_lanes() -> None:
    assert TABLE.rates(solo(A, W[0], 0)) == {A: 100.0}
    assert TABLE.rates(Gang((Lane(A, (W[0], W[1])),))) == {A: 180.0}
    flotilla = Gang((Lane(A, (W[0],)), Lane(B, (W[1],))))
    assert TABLE.rates(flotilla) == {A: 50.0, B: 50.0}, "one stream: the slowest sets the pace"
    pack = Gang((Lane(A, (W[0],)), Lane(B, (W[0],))))
    assert TABLE.rates(pack) == {A: pytest.approx(100 / 3), B: pytest.approx(100 / 3)}, (
        "one slot: seconds per sample add up"
    )


def test_speeds_of_slots() -> None:
    table = Table((Row((10.0, 20.0)),), {W[1]: 0.5, W[2]: 2.0})
    assert [table.rates(solo(A, w, 0))[A] for w in W[:3]] == [10.0, 5.0, 20.0]
    assert table.rates(Gang((Lane(A, (W[1], W[2])),))) == {A: 10.0}


def test_switch() -> None:
    one, other = solo(B, W[0], 0), solo(B, W[1], 0)
    assert TABLE.switch(None, one) == TABLE.switch(one, other) == 0.75
    both = Gang((one.lanes[0], Lane(A, (W[1],))))
    assert TABLE.switch(None, both) == 0.75
    pack = Gang((one.lanes[0], Lane(A, (W[0],))))
    like = Table((Row(switch=0.75),))
    assert like.switch(None, pack) == 1.5, "on one slot, one after the other"
    assert like.switch(None, both) == like.switch(one, pack) == 0.75
    assert TABLE.switch(both, one) == 0.0, "lanes that stay where they are lose no time"


def test_believe_is_one_object_while_the_trials_are_the_same() -> None:
    table = Table()
    assert table.believe(STATE) is table.believe(STATE)
    assert table.believe(started(trial("x"))).known.keys() == {"x"}


def test_lockstep_counts_every_slot_of_a_wide_lane() -> None:
    gang = Gang((Lane(A, (W[0], W[1])), Lane(B, (W[1],))))
    assert lockstep(gang, lambda lane: 10.0) == {A: 5.0, B: 5.0}


TOML = """
[[rows]]
config = {width = 64, layers = [1, 2]}
rates = [100, 180]
memory = 1.5
first = 1.0

[[rows]]
rates = 20

[speeds]
w1 = 0.5
"""


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(TOML)
    table = Table.load(path)
    assert table.rows == (
        Row((100.0, 180.0), {"width": 64, "layers": (1, 2)}, memory=1.5, first=1.0),
        Row((20.0,)),
    )
    assert table.speeds == {"w1": 0.5}
    state = started(trial("a", width=64, layers=[1, 2]))
    assert list(table.believe(state).curve(A, 2)) == [100.0, 180.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rows = [", "profile .*p.toml: "),
        ("[[rows]]\nrate = 3", "a row has no field rate; it has rates, "),
        ("[[rows]]\nrates = []", "each > 0 and finite"),
        ("[[rows]]\nrates = [0]", "each > 0 and finite"),
        ("[[rows]]\nmemory = -1", "memory must be >= 0"),
        ("[speeds]\nw0 = 0", "a speed must be > 0"),
        ("[other]\nx = 1", "it may hold"),
        ("rows = []", "needs a row"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        Table.load(path)


@pytest.mark.parametrize(
    "wrong", [{"rates": (inf,)}, {"rates": ()}, {"build": -1.0}, {"save": float("nan")}]
)
def test_wrong_rows_cannot_be_built(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a profile's"):
        Row(**wrong)


# -- what changing a trial's width costs, by a table


def gang(*slots: str) -> Gang:
    return Gang((Lane(TrialId("t"), tuple(map(SlotId, slots))),))


def test_growing_and_shrinking_cost_what_the_row_says() -> None:
    table = Table((Row(up=18.0, down=12.0, switch=3.0),))
    assert table.switch(gang("a"), gang("a", "b")) == 18.0
    assert table.switch(gang("a", "b"), gang("b")) == 12.0
    assert table.switch(gang("a"), gang("b")) == 3.0  # a move
    assert table.switch(gang("a"), gang("a")) == 0.0
    assert table.switch(gang("a"), None) == 0.0


def test_without_them_a_resize_costs_a_switch() -> None:
    table = Table((Row(switch=3.0),))
    assert table.switch(gang("a"), gang("a", "b")) == 3.0
    assert table.switch(gang("a", "b"), gang("b")) == 3.0
