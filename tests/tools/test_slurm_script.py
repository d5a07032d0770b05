"""shoal slurm script."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shoal.cli import app


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    file = tmp_path / "a recipe.py"
    file.touch()
    return str(file)


def printed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["slurm", "script", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_the_options_of_a_run_are_passed_on(recipe: str) -> None:
    text = printed(
        recipe, "--nodes", "2", "--max-epochs", "3", "--time", "1:30:00", "--space",
        "lr=loguniform(1e-4,1e-1)", "--partition", "gpu", "--gpus-per-node", "4",
        "--cpus-per-node", "16", "--mem", "64G", "--requeue", "--sbatch", "constraint=a100|h100",
        "--sbatch", "--exclusive", "--before", "module load cuda", "--stop-before", "90",
    )  # fmt: skip
    assert text.splitlines()[:-1] == [
        "#!/bin/bash",
        "#SBATCH --job-name=shoal",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --mem=64G",
        "#SBATCH --time=1:30:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --constraint=a100|h100",
        "#SBATCH --exclusive",
        "",
        "module load cuda",
    ]
    assert text.splitlines()[-1].endswith(
        f" run '{recipe}' --max-epochs 3 --space 'lr=loguniform(1e-4,1e-1)' --stop-before 90 "
        "--backend ray --requeue"
    )
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)


def test_one_slot_needs_no_ray(recipe: str) -> None:
    assert "--backend" not in printed(recipe)
    assert "--backend ray" in printed(recipe, "--gpus-per-node", "2")
    assert printed(recipe, "--backend", "ray", "--nodes", "2").count("--backend") == 1
    assert "#SBATCH --requeue" not in printed(recipe)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--polic", "fifo"], "No such option: --polic"),
        (["--nodes", "2", "--backend", "local"], "the local backend uses one node"),
        (["--nodes", "2", "--device", "cuda"], "is of the local backend"),
        (["--gpus-per-node", "2", "--workers", "3"], "is of the local backend"),
        (["--copies", "2"], "is of the ray backend"),
        (["--widths", "1", "2"], "the local backend has one slot"),
        (["--time", "soon"], "--time takes minutes"),
        (["--sbatch", "a b=1"], "NAME or NAME=VALUE"),
        (["--sbatch", "nodes=5"], "an option for that"),
        (["--sbatch", "--gpus-per-node=2"], "an option for that"),
        (["--space", "lr=nonsense(3)"], "nonsense"),
        (["--max-epochs", "many"], "--max-epochs"),
        (["--nodes", "0"], "--nodes"),
        (["--job-name", "a\nb"], "one line"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_a_job_waits_for_hours(recipe, words, said) -> None:
    assert said in printed(recipe, *words, code=2)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in printed(str(tmp_path / "no.py:R"), code=2)
    assert "--command" in printed("--command", "python t.py --lr {lr}")
