"""`shoal status` of a study whose process may be gone."""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
from shoal.backend import cluster_start
from shoal.cli import app
from shoal.core.event import Finished, Opened
from shoal.engine.journal import Journal, read
from shoal.study.code.mark import places_mark
from shoal.tools import status as status_command
from shoal.tools.outcome import concluded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A study that is open: its journal ends before its last trial does."""
    study = shoal.create_study(
        lambda config: config["x"],
        storage=tmp_path / "s",
        search_space={"x": shoal.grid([1.0, 2.0])},
    )
    study.optimize(progress=False)
    lines = list(study.lines())
    (last,) = [n for n, line in enumerate(lines) if line.entry == Finished(study.trials[1].id)]
    (tmp_path / "s" / "journal.jsonl").unlink()
    journal = Journal(tmp_path / "s" / "journal.jsonl")
    for line in lines[:last]:
        journal.append(line.time, line.entry)
    journal.close()
    return tmp_path / "s"


def held_by(folder: Path, process: int, heard: float, host: str = "") -> None:
    about = {"pid": process, "host": host or platform.node(), "since": "today"}
    (folder / "holder.json").write_text(json.dumps(about))
    slot = {"slot": "local", "node": "vm", "kind": "cpu", "trials": ["t001"]}
    board = {"written": heard, "slots": [{**slot, "shards": [], "silent": 0.0}]}
    (folder / "slots.json").write_text(json.dumps(board))


def said(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    status_command.status(folder, False)
    return capsys.readouterr().out


def test_of_a_killed_process_it_is_said_since_when_and_what_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    heard = now - 125.0
    held_by(folder, gone.pid, heard)
    os.utime(folder / "journal.jsonl", (heard - 10.0, heard - 10.0))
    first, *others = said(folder, capsys).splitlines()
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(heard))
    assert first == (
        f"study    s: cut off: no process runs it, since {when} UTC (2 min 05 s ago); "
        f"shoal resume {folder} goes on with it"
    )
    assert not any(line.startswith("local") for line in others), "no slot is alive"


@pytest.mark.parametrize(
    ("heard", "host", "standing"),
    [
        (1.0, "", "running"),
        (60.0, "", "at work, or cut off"),  # the process may have gone on to other things
        (1.0, "elsewhere", "at work, or cut off"),
    ],
)
def test_of_a_process_that_lives(
    folder: Path, capsys: pytest.CaptureFixture[str], heard: float, host: str, standing: str
) -> None:
    held_by(folder, os.getpid(), time.time() - heard, host)
    first, *others = said(folder, capsys).splitlines()
    assert first == f"study    s: {standing}"
    assert any(line.startswith("local") for line in others)


def test_of_several_studies_the_one_that_was_cut_off_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    held_by(folder, gone.pid, time.time())
    assert "s: cut off: no process runs it" in said(folder.parent, capsys)


def test_a_report_that_cannot_be_written_hides_no_outcome(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "report.html").mkdir()
    unwritten = pytest.warns(UserWarning, match=f"`shoal report {folder}` writes it")
    with unwritten, concluded(shoal.load_study(folder), False):
        shoal.load_study(folder).resume(progress=False)
    out = capsys.readouterr().out
    assert "study    s: finished" in out and "report:  not written" in out


def test_a_study_that_was_harvested_goes_on_by_harvesting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cluster ended with the command that harvested: no other run can join it."""
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster_start.check_reached, "__defaults__", (0.1,))
    joined(folder, "127.0.0.1:9")
    told = f"shoal harvest {folder} --partition …"
    before = typed("resume", str(folder))
    assert "no Ray cluster answers" in before and told not in before

    (folder / "harvest").mkdir()
    after = typed("resume", str(folder))
    assert told in after and "shoal run FILE.py" in after and "ray start" not in after
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    held_by(folder, gone.pid, time.time())
    assert f"; {told} goes on with it" in typed("status", str(folder))


def joined(folder: Path, address: str) -> None:
    """Have the study's last run be one that joined the cluster at this address."""
    lines = list(read(folder / "journal.jsonl"))
    (folder / "journal.jsonl").unlink()
    journal = Journal(folder / "journal.jsonl")
    for line in lines:
        entry = line.entry
        if isinstance(entry, Opened):
            options = {**entry.head["options"], "backend": "ray", "address": address}
            head = {**entry.head, "options": options}
            entry = replace(entry, head={**head, "marks": places_mark(head, folder)})
        journal.append(line.time, entry)
    journal.close()


def typed(*words: str) -> str:
    return CliRunner().invoke(app, list(words)).output
