"""Which slots a study has, for `shoal status`."""

import json
import time
from pathlib import Path
from typing import Any

from shoal.backend.ray.slots import FleetSize
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Joined, Left, Opened, Planned, Unread
from shoal.core.fold import fold
from shoal.core.plan import solo
from shoal.core.state import State
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.reporting.slots import asked, asked_lines, standing, standing_lines
from shoal.study.watchers import SlotBoard

S0, S1 = ShardId("s0"), ShardId("s1")
SLOTS = [SlotId(f"slot{number}") for number in range(3)]
JOINED = Joined(
    tuple(
        Slot(name, node=f"node{number}", shards=frozenset({S0, S1}))
        for number, name in enumerate(SLOTS)
    )
)
WHY = "it hung: no answer for 31 s, and 30 s are allowed"
LINES = [
    Line(0.0, Opened(1, {S0: 10, S1: 10})),
    Line(1.0, JOINED),
    Line(2.0, Unread(SLOTS[1], S1, "s1 cannot be read")),
    Line(3.0, Left(frozenset({SLOTS[2]}), died=True, why=WHY)),
]


def row(slot: SlotId, silent: float, trials: list[str]) -> dict[str, Any]:
    return {"slot": slot, "node": "n", "kind": "cpu", "trials": trials} | {
        "shards": ["s0"],
        "silent": silent,
    }


def test_slots_are_alive_silent_or_gone() -> None:
    board = {"written": 100.0, "slots": [row(SLOTS[0], 2.0, ["t0"]), row(SLOTS[1], 20.0, [])]}
    rows = standing(LINES, board, now=101.0)
    assert [(each["slot"], each["state"]) for each in rows] == [
        ("slot0", "alive"),
        ("slot1", "silent"),
        ("slot2", "gone"),
    ]
    assert standing_lines(rows) == [
        "slot1    n, cpu: silent for 21 s; holds s0 (s1 cannot be read)",
        f"slot2    node2, cpu: gone; holds s0, s1 ({WHY})",
        "slot0    n, cpu: alive, heard of 3 s ago, at work for t0; holds s0",
    ]
    # A board that nobody brings up to date any more tells of no life.
    assert {each["state"] for each in standing(LINES, board, 900.0)} == {"silent", "gone"}


def test_without_a_board_the_journal_alone_is_told() -> None:
    rows = standing(LINES, None, 0.0)
    assert [each["state"] for each in rows] == ["unknown", "unknown", "gone"]
    assert rows[1]["shards"] == ["s0"]
    again = [*LINES, Line(9.0, JOINED)]
    assert [each["state"] for each in standing(again, None, 0.0)] == ["unknown"] * 3
    assert standing([*LINES, Line(9.0, Opened(2, {}))], None, 0.0) == []


def test_a_slot_that_left_after_the_board_was_written_is_gone() -> None:
    board = {"written": 100.0, "slots": [row(name, 0.0, []) for name in SLOTS]}
    rows = standing(LINES, board, now=100.0)
    assert [each["state"] for each in rows] == ["alive", "alive", "gone"]


def test_what_is_asked_for_is_told_until_it_is_there() -> None:
    board = {"written": 100.0, "slots": [row(SLOTS[0], 0.0, [])]}
    assert asked(None) is None and asked(board) is None
    assert asked_lines(asked(board)) == []
    more = asked({**board, "asked": 3, "room": 8})
    assert asked_lines(more) == ["3 slots; 1 open, room for 8"]
    assert asked_lines(asked({**board, "asked": 1, "room": 8})) == []


def test_the_board_is_there_while_the_run_is(tmp_path: Path) -> None:
    class Backend:
        def silent(self) -> dict[SlotId, float]:
            return {SLOTS[0]: 7.0}

        def size(self) -> FleetSize:
            return FleetSize(asked=4, room=5)

    board = SlotBoard(tmp_path / "slots.json", Backend())
    gang = solo(TrialId("t0"), SLOTS[0], 0)
    board(0.0, (), fold(State(), [JOINED, Planned((), (gang,))]))
    until = time.monotonic() + 60
    while not (tmp_path / "slots.json").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    written = json.loads((tmp_path / "slots.json").read_text())
    assert (written["asked"], written["room"]) == (4, 5)
    first, *_ = written["slots"]
    assert (first["slot"], first["silent"], first["trials"]) == ("slot0", 7.0, ["t0"])
    board.close()
    assert not list(tmp_path.iterdir())
