import json
from pathlib import Path

import pytest

from shoal.simulate import simulate, trace_stats
from shoal.simulate.arrivals import even, poisson
from shoal.simulate.fields import SpecError
from shoal.simulate.idle_log import TraceError
from shoal.simulate.spec import load_spec

SLOTS = """
title = "two on four"
[slots]
count = 4
[[trials]]
count = 2
samples = 1000
widths = [1, 4]
every = 10
[[profile]]
points = { 1 = 10, 4 = 40 }
up = 2
[policies.elastic]
horizon = 60
[policies.wide]
name = "killable"
width = 4
"""


def write(tmp_path, text, name="spec.toml"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_policies_stand_side_by_side(tmp_path):
    data, lines = simulate([write(tmp_path, SLOTS)])
    figures = data["specs"][0]["policies"]
    assert {k: v["finished"] for k, v in figures.items()} == {"elastic": 2, "wide": 2}
    # one after the other on four slots at 40/s: 25 s each, the second came 10 s later
    assert figures["wide"]["makespan_s"] == pytest.approx(50.0)
    assert figures["wide"]["mean_completion_s"] == pytest.approx((25 + 40) / 2)
    assert figures["elastic"]["samples"] == pytest.approx(2000)
    assert lines[0] == "two on four"
    assert len(lines) == 4
    json.dumps(data)


def test_a_policy_by_its_name_alone(tmp_path):
    data, _ = simulate([write(tmp_path, SLOTS)], ["wide", "fifo"])
    assert list(data["specs"][0]["policies"]) == ["wide", "fifo"]
    with pytest.raises(SpecError, match="no policy is named 'best'"):
        simulate([write(tmp_path, SLOTS)], ["best"])


def test_an_objective_in_a_file_is_typed_and_tried(tmp_path):
    aims = tmp_path / "aims.py"
    aims.write_text(
        "def wide(trial, rates):\n    return [rate**2 for rate in rates]\n"
        "def cost(trial, rates):\n    return [1 / rate for rate in rates]\n"
    )
    spec = write(tmp_path, SLOTS)
    name = f"elastic(objective={aims}:wide)"
    data, _ = simulate([spec], [name])
    assert data["specs"][0]["policies"][name]["finished"] == 2
    with pytest.raises(SpecError, match="falls with each slot more"):
        simulate([spec], [f"elastic(objective={aims}:cost)"])
    named = f'horizon = 60\nobjective = "{aims}:wide"'
    with pytest.raises(SpecError, match="objective is one of"):
        load_spec(write(tmp_path, SLOTS.replace("horizon = 60", named)))


def test_reports_are_written_where_asked(tmp_path):
    data, _ = simulate([write(tmp_path, SLOTS)], ["wide"], out=tmp_path / "out")
    report = data["specs"][0]["policies"]["wide"]["report"]
    assert "<html" in Path(report).read_text()[:500]


def test_a_log_beside_the_spec_moves_the_slots(tmp_path):
    write(tmp_path, "node,start,end\na,0,100\nb,50,100\na,120,400\n", "log.csv")
    text = 'checkpoint_every = 1\n[log]\nfile = "log.csv"\n'
    text += "[[trials]]\nsamples = 3000\nwidths = [1, 2]\n[[profile]]\nrates = [10, 20]\n"
    data, _ = simulate([write(tmp_path, text)], ["elastic"])
    figures = data["specs"][0]["policies"]["elastic"]
    # 50 s alone, 50 s on two, 20 s of nothing; the rest, 1500 samples, alone from 120 s on
    assert figures["makespan_s"] == pytest.approx(270.0, abs=2.0)  # at most a second is lost
    stats, lines = trace_stats(tmp_path / "log.csv")
    assert stats["fragments"] == 3
    assert any("idle_node_hours" in line for line in lines)


def test_a_made_up_log_and_divided_data(tmp_path):
    made = """
hours = 2
[log.synthetic]
racks = 4
per_rack = 4
idle = 0.5
hours = 2
[[trials]]
count = 4
samples = 1e5
widths = [1, 4]
poisson = 60
"""
    data, _ = simulate([write(tmp_path, made)], ["elastic"])
    assert data["specs"][0]["policies"]["elastic"]["finished"] == 4
    text = (
        "[slots]\ncount = 2\n[data]\nshards = 2\nsamples = 100\nreplicas = 1\n"
        "[[trials]]\ncount = 2\nepochs = 3\n"
    )
    data, _ = simulate([write(tmp_path, text)], ["hop"])
    assert data["specs"][0]["policies"]["hop"]["finished"] == 2


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[slots]\ncount = 1\n", "needs trials"),
        ("[[trials]]\nsamples = 1\n", r"either \[slots\] or \[log\]"),
        ("[slots]\ncount = 1\nsize = 3\n[[trials]]\nsamples = 1\n", "no field size"),
        ("[slots]\ncount = 1\n[[trials]]\ncount = 2\n", r"\[\[trials\]\] samples: it is missing"),
        (
            "[slots]\ncount = 1\n[[trials]]\nsamples = -1\n",
            r"samples: it must be a number > 0; got -1",
        ),
        ("[slots]\ncount = 1\n[[trials]]\nsamples = 1\n[policies.best]\n", "no policy is named"),
        ("[slots\n", "spec.toml"),
    ],
)
def test_a_bad_spec_gets_one_error(tmp_path, text, rule):
    with pytest.raises(SpecError, match=rule):
        load_spec(write(tmp_path, text))


def test_a_bad_log_is_named(tmp_path):
    write(tmp_path, "node,start,end\na,0,x\n", "log.csv")
    with pytest.raises(TraceError, match=r"log.csv, line 2"):
        load_spec(write(tmp_path, '[log]\nfile = "log.csv"\n[[trials]]\nsamples = 1\n'))


def test_arrivals():
    assert even(3, 2.0, 1.0) == [1.0, 3.0, 5.0]
    times = poisson(2000, 36.0, seed=3)
    assert times == poisson(2000, 36.0, seed=3)
    assert times[0] == 0.0
    assert times[-1] / 1999 == pytest.approx(36.0, rel=0.1)
