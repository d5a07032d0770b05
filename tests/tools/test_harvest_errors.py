"""What `shoal harvest` refuses before anything starts: one clear line each."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from harvested_recipe import Slow
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.simulate.log_files import read_log
from shoal.simulate.policy_files import elastic_for
from shoal.tools import harvest as command

RECIPE = str(Path(__file__).parents[1] / "harvest" / "harvested_recipe.py")
SLURM = ["--slurm", "--partition", "scavenger"]


def refused(*args: str, code: int = 2) -> str:
    done = CliRunner().invoke(app, ["harvest", *args])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def only_line(*args: str) -> str:
    out = refused(*args).strip()
    assert len(out.splitlines()) == 1, out
    return out


@pytest.fixture
def begun(tmp_path: Path) -> str:
    """The folder of a study that has trained a while."""
    study = shoal.create_study(Slow(), storage=tmp_path / "begun")
    study.optimize(max_epochs=1, progress=False)
    return str(study.folder.path)


def test_a_batch_system_is_named_or_the_only_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(name: str) -> None:
        command = tmp_path / name
        command.write_text("#!/bin/sh\nexit 1\n")
        command.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    asked = [RECIPE, "--storage", str(tmp_path / "s"), "--partition", "x"]
    out = only_line(*asked)
    assert "--scheduler slurm or pbs or lsf (none is here)" in out
    for name, lacking in (("pbsnodes", "PBS's qstat"), ("bhosts", "LSF's bslots")):
        of(name)
        assert lacking in only_line(*asked)
        (tmp_path / name).unlink()
    of("squeue")
    of("bhosts")
    assert "slurm or lsf (commands of slurm, lsf are here)" in only_line(*asked)
    assert "Slurm's sinfo" in only_line(*asked, "--scheduler", "slurm")
    assert "PBS's pbsnodes" in only_line(*asked, "--scheduler", "pbs")
    assert "one of slurm, pbs, lsf" in only_line(*asked, "--scheduler", "sge")
    assert "two batch systems" in only_line(*asked, "--slurm", "--scheduler", "lsf")
    assert "--partition" in refused(RECIPE, "--slurm")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("--tick", "0"), ("--min-ticks", "0"), ("--most", "0"), ("--minutes", "0")],
)
def test_numbers_out_of_range(option: str, value: str) -> None:
    assert option in refused(RECIPE, *SLURM, option, value)


def test_a_folder_says_its_options_itself(begun: str) -> None:
    out = only_line(begun, *SLURM, "--searcher", "asha", "--widths", "1", "2")
    assert "leave out --searcher, --widths" in out


def test_a_folder_without_a_study(tmp_path: Path) -> None:
    assert "there is no study" in only_line(str(tmp_path), *SLURM)


def test_without_slurm_nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = only_line(RECIPE, *SLURM, "--storage", str(tmp_path / "s"))
    assert "Slurm's squeue, sinfo, sbatch, scancel cannot be found" in out
    assert not (tmp_path / "s" / "journal.jsonl").exists()


LOG = "time_s,joined,left\n0,n1 n2,\n50,,n1\n150,,n2\n200,,\n"


def test_a_log_of_the_site_gives_the_policy(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site.csv"
    site.write_text(LOG)
    found: list[Any] = []
    monkeypatch.setattr(command, "harvesting", lambda *_: nullcontext("127.0.0.10:1"))
    monkeypatch.setattr(command, "concluded", lambda *_: nullcontext())
    monkeypatch.setattr(shoal.Study, "optimize", lambda _, policy, **__: found.append(policy))
    monkeypatch.setattr(command, "train", lambda _, request: found.append(request.deciders.policy))
    new = [RECIPE, "--storage", str(tmp_path / "new")]
    for target in (new, [begun]):
        assert not refused(*target, *SLURM, "--log", str(site), code=0)
        assert found.pop() == elastic_for(read_log(site))


def test_a_log_is_refused_beside_a_policy_or_for_a_function(tmp_path: Path) -> None:
    site = tmp_path / "site.csv"
    site.write_text(LOG)
    given = [*SLURM, "--log", str(site)]
    assert "leave out --policy" in only_line(RECIPE, *given, "--policy", "equi")
    assert "No such file" in only_line(RECIPE, *SLURM, "--log", str(tmp_path / "no"))
    site.write_text("nonsense\n")
    assert "site.csv" in only_line(RECIPE, *given)
    site.write_text(LOG)
    function = ["--command", "true", "--storage", str(tmp_path / "s")]
    assert "leave out --log" in only_line(*function, *given)
    assert not (tmp_path / "s").exists()
    study = shoal.create_study(command="echo loss=1", storage=tmp_path / "of a function")
    study.optimize(num_samples=1, progress=False)
    assert "leave out --log" in only_line(str(study.folder.path), *given)


def test_an_objective_in_a_file_is_tried_before_any_pilot(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aims = tmp_path / "aims.py"
    aims.write_text(
        "def good(trial, rates):\n    return rates\n"
        "def cost(trial, rates):\n    return [1 / rate for rate in rates]\n"
    )
    pilots: list[str] = []

    def harvesting(*_: Any) -> Any:
        pilots.append("started")
        return nullcontext("127.0.0.10:1")

    monkeypatch.setattr(command, "harvesting", harvesting)
    monkeypatch.setattr(command, "concluded", lambda *_: nullcontext())
    monkeypatch.setattr(shoal.Study, "optimize", lambda *_, **__: None)
    monkeypatch.setattr(command, "train", lambda *_: None)
    for target in ([RECIPE, "--storage", str(tmp_path / "new")], [begun]):
        bad = ["--policy", f"elastic(objective={aims}:cost)"]
        assert "falls with each slot more" in only_line(*target, *SLURM, *bad)
        assert "no function nothing" in only_line(
            *target, *SLURM, "--policy", f"elastic(objective={aims}:nothing)"
        )
        assert not pilots
        good = ["--policy", f"elastic(objective={aims}:good)"]
        refused(*target, *SLURM, *good, code=0)
        assert pilots.pop() == "started"


def test_trust_is_for_a_folder_and_said_once(
    begun: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--trust is for the folder" in only_line(RECIPE, *SLURM, "--trust")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user's"))
    assert "is not known as your own" in only_line(begun, *SLURM)
    monkeypatch.setenv("PATH", str(tmp_path))
    for trust in (["--trust"], []):
        assert "Slurm's squeue" in only_line(begun, *SLURM, *trust)


def test_a_study_that_runs_elsewhere_is_refused(begun: str) -> None:
    with shoal.load_study(begun).folder.lock():
        assert "is open already" in only_line(begun, *SLURM)
