"""What feeders did, as the report tells of it."""

from shoal.core.event import Fed, Opened
from shoal.engine.journal import Line, decode, encode
from shoal.reporting import status_lines, summary
from shoal.reporting.html import page

FIGURES = {
    "feeders": 2,
    "made": 100,
    "served": 790,
    "waits": 79,
    "waited": 3.5,
    "cpu": 60.0,
    "bytes": 5e8,
    "ahead": 2048,
}
LINES = [
    Line(0.0, Opened(1, {}, {"study": "fed"})),
    Line(1.0, Fed("here", {**FIGURES, "feeders": 1, "made": 3})),
    Line(9.0, Fed("here", FIGURES)),
    Line(10.0, Opened(2, {}, {})),
    Line(11.0, Fed("here", {**FIGURES, "served": 0})),
    Line(12.0, Fed("there", {**FIGURES, "received": 300, "received_bytes": 6e6})),
]


def test_the_report_says_what_feeders_did() -> None:
    found = summary(LINES)
    assert [(row["run"], row["made"], row["served"]) for row in found["feeders"]] == [
        (1, 100, 790),
        (2, 100, 0),
        (2, 100, 790),
    ]
    told = [line for line in status_lines(found) if line.startswith("feeders")]
    assert told == [
        "feeders  2: 100 chunks made, 790 handed out, 10 % of them waited for",
        "feeders  2: 100 chunks made, 300 received from other nodes, 790 handed out, "
        "10 % of them waited for",
    ]
    html = page(LINES)
    assert 'id="feeders"' in html and "500 MB" in html
    assert "300 (6" in html
    assert 'id="feeders"' not in page(LINES[:1])


def test_the_entry_outlives_its_file() -> None:
    assert decode(encode(9.0, LINES[2].entry)) == LINES[2]
