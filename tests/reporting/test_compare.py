"""Several simulations on one page."""

import json
import re

import pytest
from simkit import rates, study

from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.reporting.compare import Side, gantts, page
from shoal.reporting.sections import Cell


@pytest.fixture(scope="module")
def sides():
    table = rates(1.0, 2.0, 1.0, 4.0)
    runs = {
        label: study(rule, table, epochs=2)[0]
        for label, rule in (("fifo", Fifo()), ("a <b>", Hop()))
    }
    ends = {label: max(line.time for line in lines) for label, lines in runs.items()}
    return [
        Side(label, lines, [Cell(f"{ends[label]:g}", ends[label])], ends[label], f"{k}/x y.html")
        for k, (label, lines) in enumerate(runs.items())
    ]


def test_the_charts_lie_below_each_other_on_one_axis_of_time(sides):
    figure = gantts(sides)
    shape = figure["layout"]
    upper, lower = shape["yaxis"]["domain"], shape["yaxis2"]["domain"]
    assert 1.0 == upper[1] > upper[0] > lower[1] > lower[0] == pytest.approx(0.0)
    assert {trace.get("xaxis", "x") for trace in figure["data"]} == {"x"} and shape["xaxis"][
        "anchor"
    ] == "y2"
    assert {trace.get("yaxis", "y") for trace in figure["data"]} == {"y", "y2"}
    last = max(side.end for side in sides)
    assert shape["xaxis"]["range"][0] == 0 and last <= shape["xaxis"]["range"][1] < 1.05 * last
    assert [mark["x0"] for mark in shape["shapes"]] == [pytest.approx(side.end) for side in sides]


def test_a_trial_has_the_same_colour_everywhere(sides):
    colours = {}
    for trace in gantts(sides)["data"]:
        if trace["name"] == "training" and "text" in trace:
            for text, colour in zip(trace["text"], trace["marker"]["color"], strict=True):
                colours.setdefault(re.search(r"<b>(t\d+)</b>", text)[1], set()).add(colour)
    assert len(colours) == 4 and all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 4


def test_the_page_has_the_table_on_top_and_escapes_what_a_spec_says(sides):
    text = page("two </title> of them", ["policy", "end s"], sides, "a & b")
    assert text.index('id="figures"') < text.index('id="gantt"')
    assert (
        '<a href="0/x y.html">fifo</a>' in text
        and "a &lt;b&gt;</a>" in text
        and "<p>a &amp; b</p>" in text
    )
    assert "</title> of them" not in text and "a <b>" not in text
    drawings = json.loads(re.search(r'id="drawings">(.*?)</script>', text)[1])
    assert drawings["gantt"]["layout"]["annotations"][1]["text"].startswith(
        "<b>a &lt;b&gt;</b> · all done after"
    )


def test_without_slots_there_is_no_chart():
    assert gantts([Side("none", [], [])]) is None
    assert "No slots." in page("t", ["policy"], [Side("none", [], [])])


def test_one_without_slots_stands_beside_the_others(sides):
    figure = gantts([*sides, Side("none", [], [])])
    assert figure["layout"]["yaxis3"]["tickvals"] == []
