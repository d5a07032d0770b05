"""What harvesting would yield on a machine with this log."""

from math import inf
from pathlib import Path

import pytest

from shoal.simulate import simulate
from shoal.simulate.fields import SpecError
from shoal.simulate.idle_log import IdleLog
from shoal.simulate.log_files import write_log
from shoal.simulate.spec import Pilots, load_spec

LOG = IdleLog.of(
    [
        ("a", 100.0, 1000.0),
        ("b", 103.0, 190.0),
        ("c", 111.0, 145.0),  # gone before its slot is open
        ("a", 1200.0, inf),
    ],
    finish=2000.0,
)
SPEC = """
[log]
file = "site.csv"
[harvest]
tick = 10
min_ticks = 3
start = 15
[[trials]]
count = 50
samples = 100
[[profile]]
rates = [1]
[policies.fifo]
"""


def test_nodes_are_slots_once_they_were_seen_and_a_pilot_has_started() -> None:
    found = Pilots(tick=10.0, min_ticks=3, start=15.0).slots_in(LOG)
    rows = zip(found.node, found.start, found.end, strict=True)
    slots = [(found.nodes[node], start, end) for node, start, end in rows]
    assert slots == [
        ("a", 127.0, 1000.0),  # seen at 100, 102 and 112
        ("b", 137.0, 190.0),  # seen at 110, 112 and 122
        ("a", 1227.0, inf),
    ]
    at_once = Pilots(tick=1.0, min_ticks=1, start=0.0).slots_in(LOG)
    assert at_once.node_seconds == LOG.node_seconds


def test_simulate_says_what_would_come_of_it(tmp_path: Path) -> None:
    write_log(LOG, tmp_path / "site.csv")
    (tmp_path / "spec.toml").write_text(SPEC)
    data, lines = simulate([tmp_path / "spec.toml"])
    found = data["specs"][0]["policies"]["fifo"]["harvest"]
    offered = (1000 - 127) + (190 - 137) + (2000 - 1227)
    assert found["idle_node_hours"] == pytest.approx(LOG.node_seconds / 3600)
    assert found["offered_node_hours"] == pytest.approx(offered / 3600)
    # from the first slot on
    assert found["equivalent_nodes"] == pytest.approx(offered / (2000 - 127))
    # 8 trials on a until it leaves, none on b, 7 on a afterwards
    assert data["specs"][0]["policies"]["fifo"]["finished"] == 15
    assert found["trials_a_day"] == pytest.approx(15 / ((2000 - 127) / 86400))
    assert 0.8 < found["efficiency"] < 1.0
    assert lines[-1].startswith(
        "fifo: 0.5058 node-hours idle, 0.4719 harvested, as 0.9071 nodes that stay; U 9"
    )


def test_what_a_spec_may_say_of_pilots(tmp_path: Path) -> None:
    write_log(LOG, tmp_path / "site.csv")
    place = tmp_path / "spec.toml"
    for wrong, error in (
        ("tick = 0", r"\[harvest\] tick: it must be a number > 0"),
        ("min_ticks = 0", r"\[harvest\] min_ticks: it must be a whole number >= 1"),
        ("warmup = 3", "there is no field warmup; there are min_ticks, start, tick"),
    ):
        name = wrong.split()[0]
        kept = [line for line in SPEC.splitlines() if not line.startswith(name)]
        at = kept.index("[harvest]")
        place.write_text("\n".join([*kept[: at + 1], wrong, *kept[at + 1 :]]))
        with pytest.raises(SpecError, match=error):
            load_spec(place)
    without = SPEC.replace('[log]\nfile = "site.csv"', "[slots]\ncount = 2")
    place.write_text(without)
    with pytest.raises(SpecError, match="nothing to harvest without"):
        load_spec(place)
