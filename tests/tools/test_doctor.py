"""shoal doctor, and the completion of shells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from shoal.cli import app
from shoal.tools import doctor


def test_it_says_what_is_here(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(tmp_path / "runs"), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["versions"]["torch"].startswith(torch.__version__.partition("+")[0])
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert len(found["gpus"]) == torch.cuda.device_count()
    assert found["disk"]["folder"] == str(tmp_path)
    assert found["disk"]["write_mib_s"] > 0 and found["disk"]["fsync_ms"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
    shown = CliRunner().invoke(app, ["doctor", str(tmp_path)]).stdout
    assert f"torch {found['versions']['torch']}" in shown
    assert "ms for a durable line" in shown


def test_the_allocation_that_it_is_typed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slurm() -> tuple[object, str]:
        done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
        found = json.loads(done.stdout)
        shown = CliRunner().invoke(app, ["doctor", str(tmp_path)]).stdout
        return found["allocation"], shown

    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm()[0] is None
    monkeypatch.setenv("PATH", "")  # no scontrol
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x2)")
    found, shown = slurm()
    assert isinstance(found, dict) and found["nodes"] == ["n1", "n2"]
    assert "slurm     Slurm job 12: 2 nodes, 4 CPUs each; no commands of it" in shown
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "many")
    assert "SLURM_JOB_CPUS_PER_NODE: not a list of counts" in slurm()[1]


def test_what_is_missing_is_named_with_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = doctor.version

    def version(name: str) -> str:
        if name in ("wandb", "ray"):
            raise doctor.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor, "version", version)
    monkeypatch.setattr(doctor, "SLOW_SYNC", -1.0)
    found = doctor.examined(tmp_path)
    missing = "\n".join(found["missing"])
    assert "wandb, for the logger wandb: pip install 'shoal[wandb]'" in missing
    ray = "pip install 'shoal[ray]'"
    assert f'ray, for several slots: backend="ray": {ray}' in missing
    assert "a quicker disk" in missing and "optuna" not in missing
    shown = doctor.lines(found)
    assert "ray       not installed" in shown
    assert any("pip install 'shoal[wandb]'" in line for line in shown)


def test_a_folder_that_cannot_be_written_to_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "disk", full)
    found = doctor.examined(tmp_path)
    assert any("No space left on device" in each for each in found["missing"])
    assert any("No space left on device" in line for line in doctor.lines(found))


def completed(words: str) -> str:
    """What bash is offered after these words."""
    env = os.environ | {
        "_SHOAL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    code = "from shoal.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_shells_complete_commands_and_options() -> None:
    assert set(completed("shoal re").split()) == {"repair", "replay", "report", "resume"}
    assert "--max-epochs" in completed("shoal run --max").split()


def test_the_script_for_a_shell_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setattr(typer.testing, "_get_command", typer.main.get_command)  # one of its own
    done = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="shoal")
    assert done.exit_code == 0 and "_SHOAL_COMPLETE=complete_bash" in done.stdout
