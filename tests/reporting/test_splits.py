"""Packs that had no room, as the report tells of them."""

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Ended, Fell, Joined, Measured, Opened, Planned, Submitted
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Line
from shoal.reporting import status_lines, summary
from shoal.reporting.html import page

SLOT = SlotId("slot0")
A, B = TrialId("t000"), TrialId("t001")
GANG = Gang((Lane(A, (SLOT,)), Lane(B, (SLOT,))), since=0)
LINES = [
    Line(0.0, Opened(1, {}, {"study": "packed"})),
    Line(0.0, Submitted(Trial(A, 10.0, {"w": 1}))),
    Line(0.0, Submitted(Trial(B, 10.0, {"w": 2}))),
    Line(0.0, Joined((Slot(SLOT, memory=1.0),))),
    Line(0.0, Planned((), (GANG,))),
    Line(2.0, Measured(A, "elsewhere", {"memory": 0.1})),
    Line(3.0, Fell(A, 0, 0.0)),
    Line(3.0, Fell(B, 0, 0.0)),
    Line(3.0, Measured(A, "abc", {"crowded": 0.5})),
    Line(3.0, Measured(B, "def", {"crowded": 1.0})),
    Line(3.0, Ended(GANG, "out of memory with 2 trials on slot0")),
]


def test_the_report_says_which_packs_were_split() -> None:
    found = summary(LINES)
    assert found["splits"] == [
        {
            "time": 3.0,
            "trials": [A, B],
            "why": "out of memory with 2 trials on slot0",
            "needs": {"abc": 0.5, "def": 1.0},
        }
    ]
    told = next(line for line in status_lines(found) if line.startswith("split"))
    assert "out of memory with 2 trials on slot0, at 3" in told and "537 MB" in told
    html = page(LINES)
    assert "Packs out of memory" in html and "t000, t001" in html
    assert not summary(LINES[:-1])["splits"] and "Packs out of memory" not in page(LINES[:-1])


def test_a_need_that_nobody_knows_is_not_said() -> None:
    """Of a slot without a limit, where a trial had no room even for a step, it is beyond any."""
    beyond = [
        Line(line.time, Measured(line.entry.trial, line.entry.signature, {"crowded": 2.0**59}))
        if isinstance(line.entry, Measured) and "crowded" in line.entry.figures
        else line
        for line in LINES
    ]
    found = summary(beyond)
    assert found["splits"][0]["needs"] == {}
    told = next(line for line in status_lines(found) if line.startswith("split"))
    assert told.endswith("out of memory with 2 trials on slot0, at 3 s"), told
    assert "not known" in page(beyond)


def test_the_report_says_what_packing_gained() -> None:
    figures = {"step": 0.001, "switch": 0.02, "fused:2": 0.0019, "fused:16": 0.004}
    lines = [
        *LINES[:5],
        Line(2.0, Measured(A, "abc", figures)),
        Line(2.5, Measured(B, "def", {"step": 0.01, "unfusable": 1.0})),
    ]
    told = page(lines)
    assert (
        'id="packs"' in told
        and "+5 %" in told
        and "+75 %" in told
        and "steps cannot be fused" in told
    )
    assert "fused:2" not in told
    assert 'id="packs"' not in page(LINES)


def test_the_report_says_what_taking_turns_gained() -> None:
    figures = {
        "step": 0.01,
        "rate": 3200.0,
        "data": 0.01 / 32,
        "fused:2": 0.019,
    }  # a batch of 32 waits as long as it trains
    alone, shared = LINES[:4], LINES[:5]
    told = page([*shared, Line(2.0, Measured(A, "abc", figures))])
    assert "2 in turn" in told and "+25 %" in told  # three hundredths of a second instead of four
    assert "2 in a step" in told and "+28 %" in told, "which wait once, too"
    assert "in turn<" not in page([*alone, Line(2.0, Measured(A, "abc", figures))])
