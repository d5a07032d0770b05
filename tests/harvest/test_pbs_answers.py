"""What PBS's commands print, read; with commands of our own in their place."""

import getpass
import json
import time
from math import inf
from pathlib import Path
from typing import Any

import pytest
from answers_kit import calls, has, recorded

from shoal.harvest.harvester import Harvester
from shoal.harvest.observer import Observer
from shoal.harvest.pbs import COMMANDS, Pbs
from shoal.harvest.scheduler import (
    NODE,
    UNTIL,
    IdleNode,
    Pilot,
    PilotNames,
    SchedulerError,
    Site,
    Waiting,
)

ME = getpass.getuser()
# In the form of OpenPBS 20 and PBS Professional 2022, with what nobody reads left out.
NODES = """{
    "timestamp":1795786000,
    "pbs_version":"2022.1.1.20220926110806",
    "pbs_server":"pbs-01",
    "nodes":{
        "n1":{"Mom":"n1.cluster", "ntype":"PBS", "state":"free", "pcpus":56,
            "resources_available":{"arch":"linux", "host":"n1", "mem":"384000000kb", "ncpus":56,
                "ngpus":4, "vnode":"n1"},
            "resources_assigned":{}, "resv_enable":"True", "sharing":"default_shared",
            "last_state_change_time":1606093393, "last_used_time":1606111932},
        "n2":{"state":"free", "jobs":["110298.pbs-01"],
            "resources_available":{"host":"n2", "ncpus":56}},
        "n3":{"state":"job-exclusive", "jobs":["110298.pbs-01"],
            "resources_available":{"host":"n3", "ncpus":56}},
        "n4":{"state":"offline", "comment":"bad dimm",
            "resources_available":{"host":"n4", "ncpus":56}},
        "n5":{"state":"down,offline", "resources_available":{"host":"n5", "ncpus":56}},
        "n6":{"state":"free", "resv":["R77.pbs-01"],
            "resources_available":{"host":"n6", "ncpus":56}},
        "n7":{"state":"free", "queue":"gpu", "resources_available":{"host":"n7", "ncpus":56}},
        "n8":{"state":"free", "resources_available":{"host":"n8", "ncpus":1}},
        "n9[0]":{"state":"free", "resources_available":{"host":"n9", "ncpus":28}},
        "n9[1]":{"state":"free", "resources_available":{"host":"n9", "ncpus":28}},
        "n10[0]":{"state":"free", "resources_available":{"host":"n10", "ncpus":28}},
        "n10[1]":{"state":"job-busy", "jobs":["1.pbs-01"],
            "resources_available":{"host":"n10", "ncpus":28}},
        "n11":{"state":"resv-exclusive", "resources_available":{"host":"n11", "ncpus":56}},
        "n12":{"state":"free", "resources_available":{"host":"n12", "ncpus":56}},
        "16":{"state":"free", "queue":"workq", "resources_available":{"host":16, "ncpus":"4"}}
    }
}
"""


def job(state: str, name: str = "their job", **more: Any) -> dict[str, Any]:
    listed = {"nodect": 1, "select": "1:ncpus=4", "walltime": "01:00:00"}
    listed |= more.pop("asked", {})
    return {
        "Job_Name": name,
        "Job_Owner": "somebody@login01.cluster",
        "job_state": state,
        "queue": "workq",
        "ctime": "Wed Oct 12 13:40:10 2022",
        "Priority": 0,
        "Resource_List": listed,
        "Variable_List": {"PBS_O_SHELL": "/bin/bash"},
        "substate": 10,
        **more,
    }


def mine(state: str, session: str, node: str, **more: Any) -> dict[str, Any]:
    asked = {"select": f"1:host={node}:ncpus=56", "walltime": "00:05:00"}
    name = f"shoal-digits-{session}"
    return job(state, name, Job_Owner=f"{ME}@login01", asked=asked, **more)


def jobs(found: dict[str, dict[str, Any]]) -> str:
    head = {"timestamp": 1795786000, "pbs_version": "20.0.1", "pbs_server": "pbs-01"}
    return json.dumps({**head, "Jobs": found})


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = recorded(tmp_path / "bin", COMMANDS)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (folder / "pbsnodes.prints").write_text(NODES)
    # A server without jobs prints no "Jobs".
    (folder / "qstat.prints").write_text('{"timestamp":1, "pbs_server":"pbs-01"}')
    return folder


def pbs(folder: Path, **site: Any) -> Pbs:
    return Pbs(Site("workq", **site), PilotNames("digits", "b2", folder / "logs"))


def test_idle_nodes(commands: Path) -> None:
    seen = pbs(commands, least_cpus=2).look()
    assert seen.idle == {name: IdleNode(name) for name in ("n1", "n9", "n12", "16")}
    assert not seen.pilots and not seen.waiting
    assert list(pbs(commands, gpus=True).look().idle) == ["n1"]
    assert len(calls(commands, "pbsnodes")) == len(calls(commands, "qstat")) == 2


def test_a_planned_node_has_a_window(commands: Path) -> None:
    def plan(seconds: float, nodes: str) -> dict[str, str]:
        begins = time.localtime(time.time() + seconds)
        start = time.strftime("%a %b %e %H:%M:%S %Y", begins)
        return {"exec_vnode": nodes, "start_time": start}

    both = "(n1:ncpus=8:mem=1gb)+(n9[0]:ncpus=4+n9[1]:ncpus=4)"
    (commands / "qstat.prints").write_text(
        jobs(
            {
                "7.pbs-01": job("Q", estimated=plan(600, both), asked={"nodect": 2}),
                # Later on the same node; and one that is late.
                "8.pbs-01": job("Q", estimated=plan(900, "(n1:ncpus=8)")),
                "9.pbs-01": job("Q", estimated=plan(-60, "(16:ncpus=4)")),
            }
        )
    )
    seen = pbs(commands).look()
    for name in ("n1", "n9"):
        assert 590 < seen.idle[name].window <= 601
    assert seen.idle["n12"].window == inf
    assert seen.idle["16"].window == 0.0
    assert seen.waiting[0] == Waiting("7.pbs-01", 2, frozenset({"n1", "n9"}))


def test_pilots_and_others_that_wait(commands: Path) -> None:
    limit = "Not Running: would exceed user somebody's limit on resource ncpus"
    (commands / "qstat.prints").write_text(
        jobs(
            {
                "1.pbs-01": job("Q", Priority=0),
                "2.pbs-01": job("Q", Priority=50, asked={"nodect": 3}),
                "3.pbs-01": job("Q", comment=limit),
                "4.pbs-01": job("H"),
                "5.pbs-01": job("W"),
                "6.pbs-01": job("R", exec_vnode="(n2:ncpus=56)"),
                "7[].pbs-01": job("B"),
                "8.pbs-01": job("Q", queue="gpu"),
                "9.pbs-01": job("Q", "shoal-other-a1"),
                "20.pbs-01": mine("R", "b2", "n3", exec_vnode="(n3:ncpus=56)"),
                "21.pbs-01": mine("Q", "b2", "n4"),
                "22.pbs-01": mine("R", "a1", "n5", exec_vnode="(n5:ncpus=56)"),
                "23.pbs-01": mine("S", "b2", "n6", exec_vnode="(n6:ncpus=56)"),
                "24.pbs-01": {**mine("R", "b2", "n7"), "Job_Owner": "else@login01"},
            }
        )
    )
    seen = pbs(commands, watched=("large",)).look()
    assert seen.pilots == (
        Pilot("20.pbs-01", "n3", minutes=5),
        Pilot("21.pbs-01", "n4", running=False, minutes=5),
        Pilot("22.pbs-01", "n5", minutes=5, stale=True),
        # It was suspended, and holds memory of a node where somebody computes.
        Pilot("23.pbs-01", "n6", minutes=5, stale=True),
    )
    assert seen.waiting == (Waiting("2.pbs-01", 3), Waiting("1.pbs-01", 1))
    assert [each.id for each in pbs(commands).look().waiting] == [
        "2.pbs-01",
        "1.pbs-01",
        "8.pbs-01",
    ]


def test_a_pilot_is_submitted_for_a_whole_node(commands: Path) -> None:
    (commands / "qsub.prints").write_text("4711.pbs-01\n")
    system = pbs(commands, options=("-A", "my project"))
    system.look()
    command = ["python", "-m", "pilot", "--node", NODE, "--until", UNTIL, "a b"]
    assert system.submit("n1", 90, command) == "4711.pbs-01"
    assert system.submit("n9", 5, command) == "4711.pbs-01"
    first, second = calls(commands, "qsub")
    for words in (
        ["-N", "shoal-digits-b2"],
        ["-q", "workq"],
        ["-l", "select=1:host=n1:ncpus=56:ngpus=4"],
        ["-l", "place=exclhost"],
        ["-l", "walltime=01:30:00"],
        ["-r", "n"],
        ["-A", "my project"],
        ["-o", f"{commands}/logs/pilot-n1.log"],
    ):
        assert has(first, words), words
    assert "select=1:host=n9:ncpus=56" in second and "walltime=00:05:00" in second
    script = (commands / "qsub.read").read_text()
    assert script.startswith("#!/bin/sh\nuntil=$(( $(date +%s) + 300 ))\nexec python")
    assert script.endswith("--node n9 --until \"$until\" 'a b'\n")


def test_what_has_ended_is_no_error_to_cancel(commands: Path) -> None:
    system = pbs(commands)
    system.cancel([])
    assert not calls(commands, "qdel")
    for said in ("qdel: Unknown Job Id 5.pbs-01", "qdel: Job has finished 5.pbs-01"):
        (commands / "qdel.error").write_text(said + "\n")
        system.cancel(["5.pbs-01", "6.pbs-01"])
    assert calls(commands, "qdel") == [["5.pbs-01"], ["6.pbs-01"]] * 2
    (commands / "qdel.error").write_text("qdel: Unauthorized Request 5.pbs-01\n")
    with pytest.raises(SchedulerError, match="qdel failed: qdel: Unauthorized"):
        system.cancel(["5.pbs-01"])


@pytest.mark.parametrize(
    ("name", "prints", "why"),
    [
        ("pbsnodes", "n1\n     Mom = n1\n", "printed no JSON .*version 13"),
        ("qstat", '{"Jobs":{"1.a":{"Job_Name":', "printed no JSON"),
        ("qstat", "[]", "printed"),
    ],
)
def test_other_answers_are_one_error(commands: Path, name: str, prints: str, why: str) -> None:
    (commands / f"{name}.prints").write_text(prints)
    with pytest.raises(SchedulerError, match=why):
        pbs(commands).look()


def test_a_server_that_fails(commands: Path) -> None:
    (commands / "qstat.error").write_text("Connection refused\nqstat: cannot connect\n")
    with pytest.raises(SchedulerError, match="qstat failed: Connection refused qstat"):
        pbs(commands).look()
    (commands / "qsub.prints").write_text("something else")
    with pytest.raises(SchedulerError, match="qsub did not print a job's id"):
        pbs(commands).submit("n1", 5, ["true"])


def test_idle_nodes_get_pilots(commands: Path) -> None:
    (commands / "qsub.prints").write_text("50.pbs-01\n")
    observer = Observer(min_ticks=2, most=2)
    system = pbs(commands, least_cpus=2)
    harvester = Harvester(system, observer, ["true"], 10.0, lambda text: None)
    assert harvester.look() and not calls(commands, "qsub")
    harvester.look()
    taken = [call[5] for call in calls(commands, "qsub")]
    assert taken == ["select=1:host=16:ncpus=4", "select=1:host=n1:ncpus=56:ngpus=4"]


def test_queues_are_checked(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = {"queue_type": "Execution", "enabled": "True", "started": "True"}
    other = {**queue, "started": "False"}
    said = {"pbs_server": "pbs-01", "Queue": {"workq": queue, "slow": other}}
    (commands / "qstat.prints").write_text(json.dumps(said))
    pbs(commands, watched=("slow",)).check()
    with pytest.raises(SchedulerError, match="no queue 'big': there are workq, slow"):
        pbs(commands, watched=("big",)).check()
    with pytest.raises(SchedulerError, match="slow is not started"):
        Pbs(Site("slow"), PilotNames("digits", "b2", commands)).check()
    monkeypatch.setenv("PATH", str(commands.parent))
    with pytest.raises(SchedulerError, match="PBS's pbsnodes, qstat, qsub, qdel"):
        pbs(commands)
