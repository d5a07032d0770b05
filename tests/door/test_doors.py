"""Code that people bring trains packed, killed and resumed as it trains alone: each example."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import door_kit as kit
import preloaded
import pytest

import shoal

os.environ.setdefault("KERAS_BACKEND", "torch")
# By example: what it needs to be installed, and a word that its plain loop prints.
RECIPES = {
    "bert_classifier": ("transformers", "accuracy 0."),
    "dcgan": ("sklearn", "d_loss"),
    "gcn": ("sklearn", "accuracy"),
    "gpt": ("transformers", "loss"),
    "keras_digits": ("keras", "best accuracy 0."),
    "lightning_module": ("lightning", "val_acc 0."),
    "mnist": ("sklearn", "epoch 1"),
    "sklearn_digits": ("sklearn", "best accuracy 0."),
    "time_sequence_prediction": ("torch", "loss"),
    "vae": ("sklearn", "loss"),
    "vision_transformer": ("sklearn", "accuracy"),
    "word_language_model": ("torch", "loss"),
}
FUNCTIONS = {
    "optuna_objective": ("optuna", "best accuracy 0."),
    "shell_command": ("sklearn", "best accuracy 0."),
}


def need(package: str) -> None:
    if find_spec(package) is None or find_spec("sklearn") is None:
        pytest.skip(f"{package} and scikit-learn are not both installed")


@pytest.mark.parametrize("name", kit.EXAMPLES)
def test_an_example_is_tested_and_no_longer_than_it_may_be(name: str) -> None:
    assert name in {*RECIPES, *FUNCTIONS}
    kit.check_lines(name)


@pytest.mark.parametrize("name", kit.EXAMPLES)
def test_the_gallery_shows_an_example_as_it_is(name: str) -> None:
    """What it prints is compared where it is trained."""
    text = kit.gallery.PAGE.read_text()
    printed = kit.gallery.section(name, text)["printed"]
    assert kit.gallery.written(name, printed, text) == text, "run tools/gallery.py"
    assert len(printed.splitlines()) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_packed_killed_and_resumed_as_alone(name: str, tmp_path: Path) -> None:
    need(RECIPES[name][0])
    kit.check_door(name, tmp_path)


@pytest.mark.nightly  # the examples' other halves: nothing of Shoal runs there
@pytest.mark.parametrize("name", [*RECIPES, *FUNCTIONS])
def test_the_plain_loop_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, word = {**RECIPES, **FUNCTIONS}[name]
    need(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BEST", str(tmp_path / "best.weights.h5"))
    printed = kit.run_plain(name)
    assert word in printed
    if name == "gpt":
        losses = [float(line.split()[-1]) for line in printed.splitlines()]
        assert len(losses) == kit.TRIALS and max(losses) < 6, losses


@pytest.mark.slow
def test_an_objective_of_optuna_is_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    need("sklearn")
    file = str(kit.DOOR / "optuna_objective.py")
    for way in ("alone", "killed"):
        (tmp_path / way).mkdir()
    done = preloaded.run(
        [sys.executable, file],
        cwd=tmp_path / "alone",
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    assert "best accuracy 0." in done.stdout
    kit.check_shown("optuna_objective", done.stdout)
    alone, killed = (tmp_path / way / "runs" / "objective" for way in ("alone", "killed"))
    kit.kill_process_once_kept(killed, [sys.executable, file], tmp_path / "killed")
    kit.run("resume", str(killed))
    check_as_alone(alone, killed)


@pytest.mark.slow
def test_a_program_is_killed_and_resumed_as_alone(tmp_path: Path) -> None:
    """By the command that the example shows."""
    need("sklearn")
    program = f"'{sys.executable}' '{kit.DOOR / 'shell_command.py'}'"
    args = (
        *("run", "--command"),
        f"{program} --lr {{lr}} --momentum {{momentum}} --out {{checkpoint}}/state.npz",
        *("--space", "lr=grid([0.05,0.1])", "--space", "momentum=grid([0.0,0.9])"),
        *("--metric", "accuracy", "--mode", "max", "--storage"),
    )
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    kit.check_shown("shell_command", kit.run(*args, str(alone)))
    kit.kill_once_kept(killed, *args, str(killed))
    kit.run("resume", str(killed))
    check_as_alone(alone, killed)
    assert len(shoal.load_study(alone).trials[0].scores) == 6


def check_as_alone(alone: Path, killed: Path) -> None:
    kit.check_equal(alone, killed)
    one, other = ([t.scores for t in shoal.load_study(place).trials] for place in (alone, killed))
    assert one == other


@pytest.mark.slow
def test_the_best_model_is_a_keras_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained by hopping, and loaded from the study's folder."""
    need("keras")
    monkeypatch.syspath_prepend(kit.DOOR)
    from keras_digits import KerasDigits

    space = {"units": 16, "dropout": 0.2, "lr": shoal.grid([1e-3, 1e-2])}
    study = shoal.create_study(KerasDigits(), storage=tmp_path / "s", search_space=space)
    study.optimize(policy="hop", max_epochs=2, progress=False)
    model = shoal.load_study(tmp_path / "s").best_model()
    assert type(model).__module__.startswith("keras")
    assert all(row["equal"] for row in study.replay())
