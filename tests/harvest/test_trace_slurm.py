"""`shoal trace slurm --watch` on a real Slurm."""

import threading
from functools import partial
from pathlib import Path

import pytest
from slurm_kit import SlurmLab, wait_for

from shoal.simulate import slurm_log
from shoal.simulate.command import trace_slurm, trace_watch
from shoal.simulate.idle_log import TraceError
from shoal.simulate.log_files import read_log

pytestmark = pytest.mark.slurm


def test_what_is_idle_is_recorded_while_a_job_runs(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "site.csv"
    with pytest.raises(TraceError, match="accounting storage is disabled: run .*watch"):
        trace_slurm(out, None, None, "7days", None, None)

    over = threading.Event()

    def wait(seconds: float) -> None:
        if over.wait(seconds):
            raise KeyboardInterrupt

    monkeypatch.setattr(slurm_log, "record", partial(slurm_log.record, wait=wait))
    said: list[str] = []
    watch = threading.Thread(target=trace_watch, args=(out, "main", 0.2, None, said.append))
    watch.start()
    wait_for("the first look", lambda: out.exists() and "n4" in out.read_text())
    job = slurm.submit("-N2", "--exclusive", command=["sleep", "3"])
    wait_for("the job's nodes", lambda: len(out.read_text().splitlines()) > 2)
    wait_for("the job", lambda: slurm.state(job) == "COMPLETED")
    wait_for("its nodes to be idle", lambda: len(slurm.idle()) == 4)
    # They came, went, and came again.
    wait_for("that to be seen", lambda: min(map(out.read_text().count, ("n1", "n2"))) == 3)
    over.set()
    watch.join(120)

    log = read_log(out)
    assert sorted(log.nodes) == ["n1", "n2", "n3", "n4"] and said == ["stopped"]
    came_back = [log.nodes[node] for node in log.node[log.start > log.begin]]
    assert sorted(came_back) == ["n1", "n2"]
    assert log.span >= 3
