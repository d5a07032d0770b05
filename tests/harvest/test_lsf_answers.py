"""What LSF's commands print, read; with commands of our own in their place."""

import getpass
from math import inf
from pathlib import Path
from typing import Any

import pytest
from answers_kit import calls, has, recorded

from shoal.harvest.harvester import Harvester
from shoal.harvest.lsf import COMMANDS, JOBS, Lsf, minutes_of, span_of
from shoal.harvest.observer import Observer
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
HOSTS = """\
HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN  SSUSP  USUSP    RSV
n1                 ok                 -     16      0      0      0      0      0
n2                 ok                 -     16      4      4      0      0      0
n3                 closed_Full        -     16     16     16      0      0      0
n4                 closed_Adm         -     16      0      0      0      0      0
n5                 unavail            -     16      0      0      0      0      0
n6                 unreach            -     16      0      0      0      0      0
n7                 closed_Full        -     16     16      0      0      0     16
n8                 ok                 -     16      8      0      0      0      8
n9                 ok                 -      1      0      0      0      0      0
n10                ok                 -     16      2      0      2      0      0
n11                ok                 -      -      0      0      0      0      0
n12                closed_Excl        -     16     16     16      0      0      0
n13                ok                 -     16     16      0      0      0     16
"""
SLOTS = """\
SLOTS: 16
RUNTIME: 1 hour 40 minutes
HOSTS: 16*n7

SLOTS: 24
RUNTIME: 30 minutes
HOSTS: 16*n7 8*n8
"""
QUEUES = """\
QUEUE_NAME      PRIO STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  SUSP
normal           30  Open:Active       -    -    -    -   120    20   100     0
killable          1  Open:Active       -    -    -    -     0     0     0     0
"""
QUEUE = """\

QUEUE: killable
  -- Jobs here may be killed at any time.

PARAMETERS/STATISTICS
PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV
 1    0  Open:Active       -    -    -    -     0     0     0     0     0    0

USERS: all
HOSTS:  {}
PREEMPTION: PREEMPTABLE
"""


def job(*cells: str) -> str:
    return "^".join(cells) + "\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = recorded(tmp_path / "bin", COMMANDS)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (folder / "bhosts.prints").write_text(HOSTS)
    (folder / "bslots.prints").write_text(SLOTS)
    (folder / "bqueues.prints").write_text(QUEUES)
    (folder / "bqueues.prints -l").write_text(QUEUE.format("all"))
    return folder


def lsf(folder: Path, **site: Any) -> Lsf:
    return Lsf(Site("killable", **site), PilotNames("digits", "b2", folder / "logs"))


def test_idle_hosts_and_those_lent_until_a_job_begins(commands: Path) -> None:
    seen = lsf(commands, least_cpus=2).look()
    assert seen.idle == {
        "n1": IdleNode("n1"),
        "n7": IdleNode("n7", 6000.0),
        "n8": IdleNode("n8", 1800.0),
        # Reserved, and nobody says for how long it may be lent.
        "n13": IdleNode("n13", 0.0),
    }
    assert calls(commands, "bslots") == [["-l"]]
    assert calls(commands, "bhosts") == [["-w"]]


def test_without_reservations_nobody_asks_for_windows(commands: Path) -> None:
    lines = [line for line in HOSTS.splitlines() if line.endswith((" 0", "RSV"))]
    (commands / "bhosts.prints").write_text("\n".join(lines) + "\n")
    assert list(lsf(commands, least_cpus=2).look().idle) == ["n1"]
    assert not calls(commands, "bslots")
    (commands / "bslots.prints").write_text("No backfill window exists at this time\n")
    (commands / "bhosts.prints").write_text(HOSTS)
    assert lsf(commands).look().idle["n7"].window == 0.0


def test_pilots_and_others_that_wait(commands: Path) -> None:
    (commands / "bjobs.prints").write_text(
        job("1", "PEND", "normal", "u7", "-", "40", "-", "Not enough hosts", "a ^ job")
        + job("2", "PEND", "normal", "u7", "-", "1", "-", "User limit reached", "x")
        + job("3", "PEND", "normal", "u7", "-", "1", "-", "Job dependency", "x")
        + job("4", "PSUSP", "normal", "u7", "-", "1", "-", "by its owner", "x")
        + job("5", "RUN", "normal", "u7", "16*n3:4*n2", "20", "60.0", "-", "x")
        + job("6", "PEND", "short", "u7", "-", "-", "01:30", "New job", "x")
        + job("7", "PEND", "killable", "u7", "-", "16", "5.0", "-", "shoal-other-a")
        + job("20", "RUN", "killable", ME, "16*n1", "16", "5.0", "-", "shoal-digits-b2")
        + job("21", "PEND", "killable", ME, "-", "16", "5", "-", "shoal-digits-b2")
        + job("22", "RUN", "killable", ME, "n2", "1", "01:05", "-", "shoal-digits-a1")
        + job("23", "SSUSP", "killable", ME, "16*n4", "16", "5.0", "-", "shoal-digits-b2")
        + job("24", "RUN", "killable", "u7", "n5", "1", "5.0", "-", "shoal-digits-b2")
    )
    (commands / "bsub.prints").write_text("Job <21> is submitted to queue <killable>.\n")
    system = lsf(commands)
    system.submit("n9", 5, ["true"])
    seen = system.look()
    assert seen.pilots == (
        Pilot("20", "n1", minutes=5),
        Pilot("21", "n9", running=False, minutes=5),
        Pilot("22", "n2", minutes=65, stale=True),
        # It was suspended, and holds memory of a host where somebody computes.
        Pilot("23", "n4", minutes=5, stale=True),
    )
    # 40 slots are three hosts of 16.
    assert seen.waiting == (Waiting("1", 3), Waiting("6", 1))
    watched = lsf(commands, watched=("normal",)).look().waiting
    assert [each.id for each in watched] == ["1"]
    assert calls(commands, "bjobs")[0] == ["-u", "all", "-noheader", "-o", JOBS]


def test_a_pilot_is_submitted_for_a_whole_host(commands: Path) -> None:
    said = "Job <4711> is submitted to queue <killable>.\n"
    (commands / "bsub.prints").write_text(said)
    system = lsf(commands, options=("-P", "my project"))
    system.look()
    command = ["python", "-m", "pilot", "--node", NODE, "--until", UNTIL, "a b"]
    assert system.submit("n1", 90, command) == "4711"
    (given,) = calls(commands, "bsub")
    for words in (
        ["-J", "shoal-digits-b2"],
        ["-q", "killable"],
        ["-m", "n1"],
        ["-n", "16"],
        ["-R", "span[hosts=1]"],
        ["-W", "90"],
        ["-rn"],
        ["-P", "my project"],
        ["-o", f"{commands}/logs/pilot-n1.log"],
    ):
        assert has(given, words), words
    script = (commands / "bsub.read").read_text()
    assert script.startswith("#!/bin/sh\nuntil=$(( $(date +%s) + 5400 ))\nexec python")
    assert script.endswith("--node n1 --until \"$until\" 'a b'\n")


def test_only_hosts_of_the_queue_are_looked_at(commands: Path) -> None:
    (commands / "bqueues.prints -l").write_text(QUEUE.format("hostA+1 gpus/ rest/+2"))
    system = lsf(commands, gpus=True)
    system.check()
    system.look()
    assert calls(commands, "bhosts") == [["-w", "-R", "select[ngpus>0]", "hostA", "gpus", "rest"]]
    for listed in ("all", "all ~hostA", "hostA others"):
        (commands / "bqueues.prints -l").write_text(QUEUE.format(listed))
        system = lsf(commands)
        system.check()
        system.look()
        assert calls(commands, "bhosts")[-1] == ["-w"]


def test_queues_are_checked(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lsf(commands, watched=("normal",)).check()
    with pytest.raises(SchedulerError, match="no queue 'big': .* normal, killable"):
        lsf(commands, watched=("big",)).check()
    monkeypatch.setenv("PATH", str(commands.parent))
    with pytest.raises(SchedulerError, match="LSF's bhosts, bslots, bjobs"):
        lsf(commands)


def test_nothing_there_is_no_error(commands: Path) -> None:
    (commands / "bjobs.error").write_text("No unfinished job found\n")
    assert list(lsf(commands, least_cpus=2).look().idle) == ["n1", "n7", "n8", "n13"]
    (commands / "bhosts.error").write_text("No hosts\n")
    assert not lsf(commands).look().idle
    (commands / "bhosts.error").unlink()
    (commands / "bjobs.error").write_text("LSF is down. Please wait ...\n")
    with pytest.raises(SchedulerError, match="bjobs failed: LSF is down"):
        lsf(commands).look()


def test_what_has_ended_is_no_error_to_cancel(commands: Path) -> None:
    system = lsf(commands)
    system.cancel([])
    assert not calls(commands, "bkill")
    (commands / "bkill.error").write_text("Job <5>: Job has already finished\n")
    system.cancel(["5", "6"])
    assert calls(commands, "bkill") == [["5"], ["6"]]
    (commands / "bkill.error").write_text("Job <5>: User permission denied\n")
    with pytest.raises(SchedulerError, match="permission denied"):
        system.cancel(["5"])


@pytest.mark.parametrize(
    ("name", "prints", "why"),
    [
        ("bhosts", "Cannot connect to LSF. Please wait ...\n", "a table with HOST_NAME"),
        ("bjobs", "1 RUN normal\n", "columns with . between"),
        ("bsub", "Request aborted by esub.\n", "did not print a job's number"),
    ],
)
def test_other_answers_are_one_error(commands: Path, name: str, prints: str, why: str) -> None:
    (commands / f"{name}.prints").write_text(prints)
    system = lsf(commands)

    def act() -> None:
        system.look()
        system.submit("n1", 5, ["true"])

    with pytest.raises(SchedulerError, match=why):
        act()


def test_idle_hosts_get_pilots_and_pilots_in_the_way_are_cancelled(commands: Path) -> None:
    (commands / "bsub.prints").write_text("Job <50> is submitted to queue <q>.\n")
    observer = Observer(min_ticks=2, most=2, shortest=2, longest=60, yields=True)
    said: list[str] = []
    harvester = Harvester(lsf(commands, least_cpus=2), observer, ["true"], 10.0, said.append)
    assert harvester.look() and not calls(commands, "bsub")
    harvester.look()
    assert [(call[5], call[11]) for call in calls(commands, "bsub")] == [("n1", "60"), ("n7", "60")]
    # All of what is idle or ours is wanted now.
    (commands / "bjobs.prints").write_text(
        job("50", "RUN", "killable", ME, "16*n1", "16", "60", "-", "shoal-digits-b2")
        + job("9", "PEND", "normal", "u7", "-", "64", "-", "Not enough hosts", "x")
    )
    harvester.look()
    assert calls(commands, "bkill") == [["50"]]
    assert "cancelled: pilot 50" in said


def test_a_run_limit_has_several_forms() -> None:
    assert [minutes_of(text) for text in ("60.0 min of n1", "60/n1", "01:30", "-")] == [
        60.0,
        60.0,
        90.0,
        inf,
    ]
    assert span_of(" UNLIMITED") == inf
    assert span_of(" 2 days 1 hour 1 minute 30 seconds") == 2 * 86400 + 3600 + 90
