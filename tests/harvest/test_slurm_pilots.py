"""Harvesting on a real Slurm, with pilots that only sleep."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from slurm_kit import SlurmLab, wait_for

from shoal.harvest.harvester import Harvester
from shoal.harvest.observer import Observer
from shoal.harvest.scheduler import NODE, UNTIL, PilotNames, SchedulerError, Site
from shoal.harvest.slurm import Slurm

pytestmark = pytest.mark.slurm
SLEEP = ("sh", "-c", 'echo "$@"; exec sleep 600', "-", NODE, UNTIL)


def site(lab: SlurmLab, session: str = "b2", **given: Any) -> Slurm:
    return Slurm(Site("scavenger", **given), PilotNames("digits", session, lab.folder / "log"))


@contextmanager
def harvesting(
    lab: SlurmLab, observer: Observer = Observer(), tick: float = 0.3
) -> Iterator[list[str]]:
    said: list[str] = []
    with Harvester(site(lab), observer, SLEEP, tick, said.append):
        yield said


def running(lab: SlurmLab, partition: str = "scavenger") -> list[str]:
    return lab.run("squeue", "-h", "-p", partition, "-t", "R", "-o", "%N").split()


def test_pilots_take_idle_nodes_alone_and_leave_none(slurm: SlurmLab) -> None:
    slurm.run("scontrol", "update", "nodename=n4", "state=drain", "reason=test")
    busy = slurm.submit("-w", "n2", command=["sleep", "600"])
    wait_for("the main job", lambda: slurm.state(busy) == "RUNNING")

    with harvesting(slurm) as said:
        wait_for("two pilots", lambda: sorted(running(slurm)) == ["n1", "n3"])
        time.sleep(1.5)
        assert sorted(running(slurm)) == ["n1", "n3"]
        file = slurm.folder / "log" / "pilot-n1.log"
        wait_for("its log", lambda: file.exists() and file.read_text().endswith("\n"))
        log = file.read_text().splitlines()[-1].split()
        assert log[0] == "n1"
        assert abs(float(log[1]) - time.time() - 3600) < 60
        slurm.run("scancel", busy)
        wait_for("the freed node's pilot", lambda: "n2" in running(slurm))

    assert running(slurm) == []
    assert slurm.run("squeue", "-h") == ""
    assert any("runs at n1" in each for each in said)


def test_a_main_job_preempts_pilots_and_is_not_raced(slurm: SlurmLab) -> None:
    with harvesting(slurm):
        wait_for("pilots", lambda: len(running(slurm)) == 4)
        main = slurm.submit("-N2", command=["sleep", "600"])
        wait_for("the main job", lambda: slurm.state(main) == "RUNNING")
        assert len(running(slurm)) == 2
        slurm.run("scancel", main)
        wait_for("pilots again", lambda: len(running(slurm)) == 4)


def test_pilots_fit_the_window_of_a_planned_node(slurm: SlurmLab) -> None:
    first = slurm.submit("-w", "n1", "-t", "30", command=["sleep", "600"])
    wait_for("a main job", lambda: slurm.state(first) == "RUNNING")
    second = slurm.submit("-N4", "-t", "60", command=["true"])
    wait_for("its plan", lambda: "SchedNodeList" in slurm.times(second))

    with harvesting(slurm, Observer(shortest=1)):
        wait_for("pilots", lambda: sorted(running(slurm)) == ["n2", "n3", "n4"])
        limits = slurm.run("squeue", "-h", "-p", "scavenger", "-o", "%l").split()
        assert all(20 < int(each.removesuffix(":00")) < 30 for each in limits)
        slurm.run("scancel", first)
        # The plan moved: the job begins at once, and Slurm ends the pilots for it.
        wait_for("the second job", lambda: slurm.state(second) == "COMPLETED")


def test_without_preemption_pilots_give_way(start_slurm: Callable[..., SlurmLab]) -> None:
    slurm = start_slurm(preempt="OFF")
    with harvesting(slurm, Observer(yields=True)) as said:
        wait_for("pilots", lambda: len(running(slurm)) == 4)
        main = slurm.submit("-N3", command=["sleep", "600"])
        wait_for("the main job", lambda: slurm.state(main) == "RUNNING")
        assert len(running(slurm)) == 1
        # Said again where Slurm took until the next look.
        cancelled = [each.partition("pilot ")[2] for each in said if each.startswith("cancelled")]
        assert len({name for names in cancelled for name in names.split(", ")}) == 3
        slurm.run("scancel", main)
        wait_for("pilots again", lambda: len(running(slurm)) == 4)


def test_pilots_of_a_killed_harvest_end_with_the_next(slurm: SlurmLab) -> None:
    former = site(slurm, session="a1")
    old = former.submit("n1", 5, SLEEP)
    stranger = slurm.submit("-p", "scavenger", "-w", "n2", command=["sleep", "600"])
    wait_for("both", lambda: sorted(running(slurm)) == ["n1", "n2"])

    with harvesting(slurm):
        wait_for("its end", lambda: slurm.state(old) == "CANCELLED")
        wait_for("pilots", lambda: len(running(slurm)) == 4)

    assert running(slurm) == ["n2"]
    assert slurm.state(stranger) == "RUNNING"


def test_slurm_that_stops_answering_is_awaited(slurm: SlurmLab) -> None:
    conf = slurm.folder / "slurm.conf"
    with harvesting(slurm) as said:
        wait_for("pilots", lambda: len(running(slurm)) == 4)
        slurm.run("scontrol", "shutdown", "slurmctld")
        wait_for("failures", lambda: any("next look" in each for each in said))
        slurm.run("slurmctld", "-f", str(conf))
        wait_for("an answer", lambda: any("answers again" in each for each in said))
        # A controller that just started may not have heard from all of its nodes yet.
        wait_for("pilots", lambda: len(running(slurm)) == 4)


def test_wrong_options_are_found_before_anything_starts(slurm: SlurmLab) -> None:
    site(slurm).check()
    with pytest.raises(SchedulerError, match="no partition 'nosuch'.*main, scavenger"):
        site(slurm, watched=("nosuch",)).check()
    with pytest.raises(SchedulerError, match="cannot be submitted"):
        site(slurm, options=("--no-such-option",)).check()
    slurm.submit("-N4", command=["sleep", "600"])
    wait_for("busy nodes", lambda: not slurm.idle())
    site(slurm).check()
