import json

import numpy as np
import pytest

from shoal.core.cluster import SlotId
from shoal.core.event import Joined, Left
from shoal.simulate.idle_log import IdleLog, TraceError, describe
from shoal.simulate.log_files import read_log
from shoal.simulate.synthetic_log import Machine, synthetic

GOOD = "node,start,end\nn1,0,100\nn2,0,50\nn1,150,300\nn2,200,\n"


def write(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def script(log):
    return [
        (at, sorted(event.slots) if isinstance(event, Left) else [s.id for s in event.slots])
        for at, event in log.script()
    ]


def test_intervals_become_joining_and_leaving(tmp_path):
    log = read_log(write(tmp_path, GOOD))
    assert script(log) == [
        (0, ["n1", "n2"]),
        (50, ["n2"]),
        (100, ["n1"]),
        (150, ["n1"]),
        (200, ["n2"]),
        (300, ["n1"]),
    ]
    kinds = [type(event) for _, event in log.script()]
    assert kinds == [Joined, Left, Left, Joined, Joined, Left]


def test_a_window_begins_with_what_is_idle_and_counts_from_there(tmp_path):
    log = read_log(write(tmp_path, GOOD)).window(60.0, 220.0)
    assert script(log) == [(0, ["n1"]), (40, ["n1"]), (90, ["n1"]), (140, ["n2"])]
    assert log.node_seconds == 40 + 70 + 20


def test_figures_are_those_worked_out_by_hand(tmp_path):
    found = describe(read_log(write(tmp_path, GOOD)))
    assert (found["events"], found["join_events"], found["leave_events"]) == (6, 2, 3)
    assert found["idle_node_hours"] == pytest.approx((100 + 50 + 150 + 100) / 3600)
    assert found["equivalent_nodes"] == pytest.approx(400 / 300)
    assert found["short_fragments"] == 1.0
    json.dumps(found)


def test_events_and_intervals_say_the_same(tmp_path):
    events = "row,time_s,joined,left\n0,0,0 1,\n1,50,,1\n2,100,,0\n3,150,0,\n4,200,1,\n5,300,,0\n"
    log = read_log(write(tmp_path, events), ["n1", "n2"])
    assert script(log) == script(read_log(write(tmp_path, GOOD)))


def test_an_empty_log_is_refused(tmp_path):
    with pytest.raises(TraceError, match="empty"):
        read_log(write(tmp_path, "node,start,end\n"))


def test_a_made_up_log_behaves_like_summits():
    machine = Machine(racks=30, idle=0.09)
    log = synthetic(machine, 24.0, seed=1)
    again = synthetic(machine, 24.0, seed=1)
    assert (log.start == again.start).all()
    assert log.nodes == again.nodes
    found = describe(log)
    assert 0.04 < found["idle_ratio"] < 0.14
    rates = list(found["hazard_per_hour"].values())
    assert rates[1] > 1.5 * rates[4]  # young nodes leave sooner
    assert together(log, 0) > 2 * together(log, 12)  # near ones together


def together(log: IdleLog, racks: int) -> float:
    """Chance that an idle node so many racks away leaves at the same moment as one that leaves."""
    rack = np.array([int(name[1:3]) for name in log.nodes])
    idle = np.zeros(len(log.nodes), bool)
    hit = seen = 0
    for _, came, went in log.changes():
        gone = np.zeros_like(idle)
        gone[went] = True
        for n in went:
            others = idle & (np.abs(rack - rack[n]) == racks)
            others[n] = False
            hit += int((others & gone).sum())
            seen += int(others.sum())
        idle[went] = False
        idle[came] = True
    return hit / seen


def test_slots_are_named_after_nodes():
    log = IdleLog.of([("a01n01", 0.0, 5.0)])
    assert log.slots[0].id == SlotId("a01n01")
    assert log.slots[0].node == "a01n01"
