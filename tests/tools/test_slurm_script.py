"""shoal slurm script."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shoal.cli import app
from shoal.tools.slurm import batch_script, check_time


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


# -- the file --------------------------------------------------------------------------------------


def test_what_is_asked_for_then_what_is_run():
    asked = {"nodes": "2", "requeue": None, "time": "1-12:00", "output": "a-%j.txt"}
    assert batch_script(asked, ["module load cuda"], ["shoal", "run", "--space", "a=1 2"]) == (
        "#!/bin/bash\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --requeue\n"
        "#SBATCH --time=1-12:00\n"
        "#SBATCH --output=a-%j.txt\n"
        "\n"
        "module load cuda\n"
        "exec shoal run --space 'a=1 2'\n"
    )


@settings(max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]))))
def test_the_shell_sees_the_words_as_they_were(words):
    words = [each for each in words if each.isprintable()]
    text = batch_script({"comment": 'a "b" # $(c)'}, [], ["printf", r"%s\0", *words])
    done = subprocess.run(["bash"], input=text.encode(), capture_output=True, check=True)
    seen = done.stdout.decode().split("\0")[:-1]
    assert seen == (words or [""])


def test_values_with_blanks_are_quoted():
    text = batch_script({"comment": 'a "b" \\ #c'}, [], ["true"])
    assert r'#SBATCH --comment="a \"b\" \\ #c"' in text.splitlines()


@pytest.mark.parametrize(
    ("asked", "before", "command"),
    [
        ({"comment": "a\n#SBATCH --nodes=9"}, [], ["true"]),
        ({"a b": "1"}, [], ["true"]),
        ({"nodes=2\n": None}, [], ["true"]),
        ({}, ["a\nb"], ["true"]),
        ({}, [], ["a\nb"]),
    ],
    ids=str,
)
def test_what_would_be_another_line_is_refused(asked, before, command):
    with pytest.raises(ValueError, match="one line|NAME=VALUE"):
        batch_script(asked, before, command)


@pytest.mark.parametrize("text", ["90", "1:30", "1:30:00", "2-12", "2-12:30", "1-0:0:5"])
def test_time_limits(text):
    check_time(text)


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "-5", "2-", "½", "1 "])
def test_what_is_no_time_limit(text):
    with pytest.raises(ValueError, match="--time takes minutes"):
        check_time(text)
