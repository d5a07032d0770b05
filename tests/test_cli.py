"""The command line, as a person types it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pytest
import typer.main
from click import Command
from journal_kit import unsealed
from stored_kit import unpack
from typer.testing import CliRunner

from shoal import __version__, load_study, reporting
from shoal.cli import app
from shoal.core.event import Evaluated
from shoal.engine.journal import read
from shoal.options import TYPED
from shoal.policy.registry import CANDIDATES, POLICIES
from shoal.tools.arguments import parse_config
from shoal.tools.outcome import OPTIONS, as_typed

USUAL = [name for name in CANDIDATES if not POLICIES[name].wide]

ROOT = Path(__file__).resolve().parents[1]
DIGITS = str(ROOT / "examples" / "digits.py")


def shoal(*args: str, code: int = 0) -> str:
    """In this process: to start one takes longer than what most commands do."""
    done = CliRunner().invoke(app, args)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, f"{args} ended with {done.exit_code}:\n{done.output}"
    return done.stdout if code == 0 else done.output


def typed(*args: str, code: int = 0) -> str:
    """In a process of its own."""
    done = preloaded.run(
        [sys.executable, "-m", "shoal.cli", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == code, (
        f"{args} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four small digits networks, trained for three epochs."""
    folder = tmp_path_factory.mktemp("cli") / "study"
    out = typed(
        "run",
        DIGITS,
        "--storage",
        str(folder),
        "--space",
        "width=grid([16, 32])",
        "--space",
        "lr=grid([1e-3, 1e-2])",
        "--max-epochs",
        "3",
        "--policy",
        "fifo",
        "--checkpoint-every",
        "0",
    )
    assert re.search(r"best\s+accuracy 0\.[89]", out)
    assert str(folder / "report.html") in out
    assert "shoal replay" in out
    return folder


def test_the_same_command_with_more_epochs_and_values_goes_on(study: Path, tmp_path: Path) -> None:
    folder = str(shutil.copytree(study, tmp_path / "longer"))
    command = ["run", DIGITS, "--storage", folder, "--policy", "fifo"]
    command += ["--space", "lr=grid([1e-3, 1e-2])", "--json"]
    wider = ["--space", "width=grid([16, 32, 8])"]
    found = json.loads(shoal(*command, *wider, "--max-epochs", "4"))
    assert found["trials"]["finished"] == found["trials"]["all"] == 6
    assert found["samples"] == 6 * 4 * sum(
        next(read(study / "journal.jsonl")).entry.shards.values()
    )
    said = shoal(*command, *wider, "--max-epochs", "3", code=2)
    assert "max_epochs: 4, now 3: trials were asked for more" in said


def test_the_same_command_goes_on_and_finds_all_done(study: Path) -> None:
    weights = {path: path.stat().st_mtime for path in (study / "checkpoints").rglob("*.pt")}
    shoal(
        "run",
        DIGITS,
        "--storage",
        str(study),
        "--space",
        "width=grid([16, 32])",
        "--space",
        "lr=grid([1e-3, 1e-2])",
        "--max-epochs",
        "3",
        "--policy",
        "fifo",
    )
    found = json.loads(shoal("status", str(study), "--json"))
    assert found["trials"]["finished"] == found["trials"]["all"] == 4
    assert {path: path.stat().st_mtime for path in (study / "checkpoints").rglob("*.pt")} == weights


NET = """
import torch
from torch import nn
import shoal

class Net(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.01, 0.1])}
    metric, mode, max_epochs = "loss", "min", 2

    def data(self):
        return shoal.Data.arrays(torch.arange(64.0).reshape(32, 2), torch.arange(32.0))

    def configure_model(self, config):
        return nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 1))

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return (model(batch[0])[:, 0] - batch[1]).square().mean()

    def validation_step(self, model, batch):
        return {"loss": (model(batch[0])[:, 0] - batch[1]).square()}
"""
FORMER = "nothing was trained: the code differs from the one that gave these scores"


def aloud(*args: str) -> str:
    """What a command prints in a process of its own, warnings included, in one line."""
    done = preloaded.run(
        [sys.executable, "-m", "shoal.cli", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=240,
    )
    return " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_run_needs_no_output(tmp_path: Path) -> None:
    """Nobody reads, or the disk behind a log is full: that ends no training."""
    file = tmp_path / "net.py"
    file.write_text(NET)
    for name, output in (("closed", ">&-"), ("all", ">&- 2>&- <&-"), ("full", ">/dev/full")):
        line = f'exec "$0" -m shoal run "$1" --storage "$2" --workers 0 {output}'
        folder = tmp_path / name
        done = subprocess.run(
            ["sh", "-c", line, sys.executable, str(file), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        assert {trial.status for trial in load_study(folder).trials} == {"finished"}


def test_after_an_edit_it_says_that_nothing_was_trained(tmp_path: Path) -> None:
    """As often as the command is typed."""
    file, folder = tmp_path / "net.py", str(tmp_path / "s")
    edited = NET.replace("nn.Linear(2, 8), nn.Linear(8, 1)", "nn.Linear(2, 1)")

    def run(code: str, *more: str) -> str:
        file.write_text(code)
        return aloud("run", str(file), "--storage", folder, *more)

    assert FORMER not in run(NET)
    for _ in range(2):
        said = run(edited)
        assert FORMER in said and "begin a new study with another --storage" in said
    grown = "--space", "lr=grid([0.01, 0.1, 1.0])"
    assert "2 trials of 3 were not trained in this run" in run(edited, *grown)


def test_a_script_that_a_command_names_is_code_too(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    command = ["run", "--command", f"{sys.executable} {script} --lr {{lr}}"]
    command += ["--storage", str(tmp_path / "s"), "--space", "lr=grid([0.1])"]
    command += ["--metric", "loss", "--mode", "min"]

    def run(code: str) -> str:
        script.write_text(code)
        return aloud(*command)

    assert FORMER not in run("print('loss=0.5')")
    assert FORMER not in run("print('loss=0.5')")
    assert FORMER in run("print('loss=0.25')")


def test_what_fused_packs_trained_agrees(tmp_path: Path) -> None:
    folder = str(tmp_path / "study")
    space = ["--space", "width=grid([16])", "--space", "lr=grid([1e-3, 3e-3, 1e-2])"]
    shoal("run", DIGITS, "--storage", folder, *space, "--max-epochs", "2", "--policy", "pack")
    found = json.loads(shoal("replay", folder, "--json"))["trials"]
    assert all(row["fused"] and row["verdict"] in ("equal", "agrees") for row in found)


def test_replay_is_bit_equal_and_finds_a_forged_weight(study: Path, tmp_path: Path) -> None:
    found = json.loads(shoal("replay", str(study), "--trial", "t000", "--json"))["trials"]
    assert [(row["trial"], row["equal"], row["visits"]) for row in found] == [("t000", True, 12)]
    import shutil

    import torch

    forged = tmp_path / "forged"
    shutil.copytree(study, forged)
    for name in ("journal.jsonl",):
        text = unsealed((forged / name).read_text()).replace(str(study), str(forged))
        (forged / name).write_text(text)
    path = next((forged / "checkpoints" / "t001").glob("*.pt"))
    state = torch.load(path, weights_only=True)
    first = next(iter(state["model"]))
    state["model"][first] += 1e-3
    torch.save(state, path)
    assert "DIFFERS" in shoal("replay", str(forged), "--trial", "t001", code=1)


def test_report_and_status(study: Path, tmp_path: Path) -> None:
    out = shoal("report", str(study), "--out", str(tmp_path / "r.html"))
    assert (tmp_path / "r.html").stat().st_size > 1e6
    assert "r.html" in out
    assert "4 finished" in shoal("status", str(study))


def test_status_after_add_to_a_finished_study(study: Path, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shutil.copytree(study, folder)
    shoal("add", str(folder), "width=16", "lr=1e-3", "--max-epochs", "1")
    found = json.loads(shoal("status", str(folder), "--json"))
    assert found["status"] == "added" and found["trials"]["waiting"] == 1
    assert "finished, and trials were added since" in shoal("status", str(folder))


def test_status_of_a_folder_of_studies(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study, tmp_path / "one")
    shutil.copytree(study, tmp_path / "more" / "two")
    lines = shoal("status", str(tmp_path)).splitlines()
    best = r"finished; trials 4: 4 finished; best accuracy 0\.\d+ \(t00\d\)"
    assert [re.fullmatch(f"[a-z/]+: {best}", line) is not None for line in lines] == [True] * 2
    assert [line.partition(":")[0] for line in lines] == ["one", "more/two"]
    found = json.loads(shoal("status", str(tmp_path), "--json"))["studies"]
    assert found["more/two"]["trials"]["all"] == 4


@pytest.mark.slow
def test_who_reads_only_the_first_line_stops_nothing(study: Path, tmp_path: Path) -> None:
    folder = str(shutil.copytree(study, tmp_path / "s"))
    command = ["run", DIGITS, "--storage", folder, "--policy", "fifo", "--max-epochs", "4"]
    command += ["--space", "width=grid([16, 32])", "--space", "lr=grid([1e-3, 1e-2])"]
    with preloaded.Popen(
        [sys.executable, "-m", "shoal.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert b"of 4 done" in running.stdout.readline()
        running.stdout.close()
        assert b"rror" not in running.stderr.read()
        assert running.wait(120) == 0
    assert json.loads(shoal("status", folder, "--json"))["best"]["epochs"] == 4


@pytest.mark.parametrize("name", ["address", "copies", "widths", "feeders"])
def test_what_the_backend_does_not_use_is_refused(tmp_path: Path, name: str) -> None:
    given = {"widths": ["1", "2"], "address": ["auto"]}.get(name, ["2"])
    out = shoal("run", DIGITS, "--storage", str(tmp_path / "s"), f"--{name}", *given, code=2)
    assert "Traceback" not in out and ("of the ray backend" in out or "one slot" in out)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("ends", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("", 3)])
def test_a_run_that_is_stopped_says_so_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int
) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, signal, shoal\n"
        "def train(config):\n"
        f"    name = {ends!r}\n"
        "    if name and config['k'] == 1:\n"
        "        os.kill(os.getpid(), getattr(signal, name))\n"
        "    for _ in range(9):\n"
        "        shoal.report({'loss': 1.0})\n"
    )
    words = [f"{tmp_path / 'slow.py'}:train", "--space", "k=grid([1,2])"]
    words += ["--metric", "loss", "--storage", str(tmp_path / "s")]
    if not ends:
        words += ["--timeout", "0"]
    shoal("run", *words, code=code)
    shoal("run", *words[: -2 if not ends else None], code=0 if not ends else code)


def test_stop_says_what_is_true(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def train(config):\n    return 1.0\n")
    words = ["--space", "k=grid([1])", "--storage", str(tmp_path / "s")]
    shoal("run", f"{tmp_path / 'one.py'}:train", *words)
    out = shoal("stop", str(tmp_path / "s"), "t000")
    assert out == "t000 is finished already: there is nothing to stop\n"
    found = json.loads(shoal("stop", str(tmp_path / "s"), "t000", "--json"))
    assert found == {"stopped": None, "outcome": "finished"}


def test_resume_of_a_stopped_study(tmp_path: Path, late_after: Any) -> None:
    folder = tmp_path / "s"
    words = ["--storage", str(folder), "--timeout", "5000", "--max-epochs", "3"]
    with late_after(3):
        shoal("run", DIGITS, *words, code=3)
    left = json.loads(shoal("status", str(folder), "--json"))
    assert left["trials"]["finished"] < 16
    assert json.loads(
        shoal("add", str(folder), "width=16", "lr=1e-3", "--max-epochs", "1", "--json")
    ) == {"trial": "added1"}
    more = ["--max-epochs", "1", "--widths", "1", "1", "--priority", "3", "--json"]
    assert json.loads(shoal("add", str(folder), "width=16", "lr=1e-2", *more)) == {
        "trial": "added2"
    }
    assert "leave them out" in shoal(
        "add", str(folder), "--from", "t000", "--priority", "3", code=2
    )
    assert shoal("stop", str(folder), "t015") == "stopped: t015\n"
    assert "not running: there is nothing to stop" in shoal("stop", str(folder), code=2)
    assert "--from TRIAL" in shoal("add", str(folder), code=2)
    done = json.loads(shoal("resume", str(folder), "--json"))
    assert (done["trials"]["finished"], done["trials"]["retired"]) == (17, 1)
    assert reporting.account(read(folder / "journal.jsonl")).trials[-1].priority == 3.0


def test_widths_and_priority_of_a_search(tmp_path: Path) -> None:
    folder, space = (
        tmp_path / "s",
        ["--space", "width=16", "--space", "lr=1e-2", "--max-epochs", "1"],
    )
    assert "needs 2 slots" in shoal(
        "run", DIGITS, "--storage", str(folder), "--widths", "2", "2", *space, code=2
    )
    shoal(
        "run",
        DIGITS,
        "--storage",
        str(folder),
        "--widths",
        "1",
        "1",
        "--priority",
        "4",
        "--policy",
        "doubling(every=60)",
        *space,
    )
    (row,) = reporting.account(read(folder / "journal.jsonl")).trials
    assert (row.widths, row.priority, row.status) == ((1, 1), 4.0, "finished")


def test_values_of_a_configuration() -> None:
    assert parse_config(["a=1", "b=2e-3", "c=relu", "d=None", "e=[1, 2]", "f = x=y"]) == {
        "a": 1,
        "b": 2e-3,
        "c": "relu",
        "d": None,
        "e": [1, 2],
        "f": "x=y",
    }
    with pytest.raises(ValueError, match="NAME=VALUE; got 'width'"):
        parse_config(["width"])


def test_check_passes_a_sound_recipe_and_fails_an_unsound_one(tmp_path: Path) -> None:
    assert "FAIL" not in shoal("check", DIGITS)
    unsound = tmp_path / "unsound.py"
    source = (ROOT / "examples" / "digits.py").read_text()
    step = (
        "        images, labels = batch\n        return "
        "nn.functional.cross_entropy(model(images), labels)"
    )
    counts = "        self.steps = getattr(self, 'steps', 0) + 1\n"
    held = step.replace("batch\n", "batch\n" + counts) + " * self.steps"
    assert step in source
    unsound.write_text(source.replace(step, held))
    assert "FAIL" in shoal("check", str(unsound), code=1)


FULL = """
import numpy as np
import torch
from torch import nn

import shoal


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 8), nn.Linear(8, 2)]

    def forward(self, x):
        return self.layers[1](self.layers[0](x).relu())


class Full(shoal.Recipe):
    search_space = {"lr": shoal.grid([0.01, 0.1]), "size": 160}
    metric, mode, max_epochs, batch_size = "acc", "max", 9, 160

    def data(self):
        x = np.random.default_rng(0).normal(size=(200, 6)).astype("float32")
        return shoal.Data.arrays(x, (x.sum(1) > 0).astype("int64"))

    def configure_model(self, config):
        return nn.Linear(6, 2)

    def configure_optimizers(self, model, config):
        return torch.optim.Adam(model.parameters(), lr=config["lr"])

    def training_step(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model, batch):
        return {"acc": (model(batch[0]).argmax(1) == batch[1]).float()}


class Unregistered(Full):
    def configure_model(self, config):
        return Listed()

    def configure_optimizers(self, model, config):
        parameters = [p for layer in model.layers for p in layer.parameters()]
        return torch.optim.Adam(parameters, lr=config["lr"])


class Misspelt(Full):
    metric = "accc"


class Named(Full):
    batchsize = 3
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unregistered", "4 of which are not the model's"),
        ("Misspelt", "did you mean 'acc'"),
        ("Named", "did you mean 'batch_size'"),
    ],
)
def test_check_does_first_what_run_does_first(tmp_path: Path, name: str, said: str) -> None:
    file = tmp_path / "full.py"
    file.write_text(FULL)
    checked = shoal("check", f"{file}:{name}", code=1)
    assert "FAIL  begins: " in checked and said in checked
    ran = shoal("run", f"{file}:{name}", "--storage", str(tmp_path / "s"), code=2)
    assert said in ran


def test_check_says_what_it_was_tried_with(tmp_path: Path) -> None:
    file = tmp_path / "full.py"
    file.write_text(FULL)
    out = shoal("check", f"{file}:Full")
    assert "ok    trains: 3 steps" in out
    first, other = {"lr": 0.01, "size": 160}, {"lr": 0.1, "size": 160}
    assert f"tried with {first} beside {other}" in out
    out = shoal("check", f"{file}:Full", "--space", "lr=0.5")
    assert "tried with {'lr': 0.5, 'size': 160} beside the same" in out


@pytest.mark.slow
def test_plan_compares_policies_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = json.loads(
        shoal(
            "plan",
            DIGITS,
            "--backend",
            "ray",
            "--slots",
            "2",
            "--out",
            str(tmp_path / "plan"),
            "--json",
        )
    )
    rows = {row["policy"]: row for row in found["policies"]}
    assert set(rows) == {"auto", *USUAL, "hop-lrw"} and all(
        row["slots"] == 2 for row in rows.values()
    )
    assert rows["auto"]["follows"] in rows and (
        "would take" in rows["auto"]["why"] or "takes too long" in rows["auto"]["why"]
    )
    assert found["kinds"] == 4 and all(row["seconds"] > 0 for row in rows.values())
    assert (tmp_path / "plan" / "hop" / "report.html").exists()


def test_plan_of_wide_trials_says_what_it_guesses(tmp_path: Path) -> None:
    one = ["--space", "width=grid([64])", "--space", "lr=grid([1e-3])"]
    wide = [
        "plan",
        DIGITS,
        *one,
        "--backend",
        "ray",
        "--slots",
        "4",
        "--json",
        "--widths",
        "1",
        "4",
    ]
    speeds = tmp_path / "speeds.toml"  # what is measured would depend on what else runs here

    def planned(rates: list[float], *policies: str) -> tuple[dict[str, Any], dict[str, float]]:
        speeds.write_text(f"[[rows]]\nrates = {rates}\n")
        found = json.loads(shoal(*wide, "--profile", str(speeds), *policies))
        return found, {row["policy"]: row["training_s"] for row in found["policies"]}

    found, rows = planned([1000.0])
    assert found["guessed"] and found["trials"] == 1 and set(CANDIDATES) < set(rows)
    # Not at the second slot alone: a policy climbs to the widths that are taken to pay.
    assert rows["waterfill"] < 0.4 * rows["fifo"] and rows["auto"] < 0.4 * rows["fifo"]
    found, rows = planned([1000.0] * 4, "--policy", "waterfill", "--policy", "fifo")
    assert not found["guessed"]
    assert rows["waterfill"] == pytest.approx(rows["fifo"], rel=0.05)  # more slots were no gain
    assert "needs 3 slots" in shoal(*wide[:-2], "3", "4", "--slots", "2", code=2)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", DIGITS + ":Letters"], "there is no Letters"),
        (["run", DIGITS, "--space", "lr=exp(1)"], "--space takes"),
        (["run", DIGITS, "--space", "lr=loguniform(0,1)"], "loguniform needs low > 0"),
        (["run", DIGITS, "--policy", "best"], "unknown policy"),
        (["run", DIGITS, "--backend", "cloud"], "backend must be"),
        (
            ["run", DIGITS, "--space", "lr=loguniform(1e-3,1e-1)"],
            "say how many samples to draw, --num-samples; or list values as shoal.grid([…])",
        ),
        (["status", "nowhere"], "there is no study"),
        (["resume", "nowhere"], "there is no study"),
        (
            ["run", DIGITS, "--searcher", "hyperband(eta=2)"],
            "'eta' (did you mean reduction_factor?); it takes space, max_epochs,",
        ),
        (["run", DIGITS, "--policy", "fifo(x=1)"], "'x'; it takes nothing"),
        (["run", DIGITS, "--policy", "explore(second=60)"], "'second'; it takes seconds"),
        (["stop", "nowhere", "t000"], "there is no study"),
        (["run", DIGITS, "--storage", "s3://bucket/runs"], "storage must be a folder"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, args: list[str], says: str) -> None:
    where = ["--storage", str(tmp_path / "s")]
    if args[0] != "run" or "--storage" in args:
        where = []
    out = shoal(*args, *where, code=2)
    listed = 2 if says == "unknown policy" else 0  # lines with the policies' names
    assert says in out and "Traceback" not in out
    # a run that reads the data first says so, with its time in brackets
    lines = [line for line in out.strip().splitlines() if not line.startswith("[")]
    assert len(lines) == 1 + listed


def test_import_is_light() -> None:
    heavy = {"torch", "ray", "plotly", "scipy", "numpy", "pandas"}
    code = (
        f"import shoal, shoal.cli, sys; found = {heavy} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_deciding_needs_no_torch_and_no_ray() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['ray'] = None\n"
        "import shoal.policy, shoal.search, shoal.profile.measure, shoal.engine.run\n"
        "import shoal.backend.sim.sim, shoal.reporting, shoal.testing"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", ["status", "report"])
def test_to_look_at_a_study_needs_no_torch_and_no_ray(tmp_path: Path, command: str) -> None:
    """To import torch takes longer than to write the report of some thousand trials.

    To import NumPy takes a fourth of the time of `shoal status`.
    """
    study = unpack("grid", tmp_path)
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['torch', 'ray', 'numpy', 'pandas', 'optuna'])\n"
        f"sys.argv = ['shoal', {command!r}, {str(study)!r}]\n"
        "import shoal.cli; shoal.cli.main()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# A step that raises in the second epoch, which no rehearsal reaches.
LATE = """model: nn.Module, batch: Any, epoch: int) -> torch.Tensor:
        if epoch:
            raise RuntimeError("no such net")"""


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_study_whose_trials_all_fail_says_so(tmp_path: Path, form: list[str]) -> None:
    raising = tmp_path / "raising.py"
    source = (ROOT / "examples" / "digits.py").read_text()
    raising.write_text(source.replace("model: nn.Module, batch: Any) -> torch.Tensor:", LATE))
    typed = ("run", str(raising), "--storage", str(tmp_path / "s"), *form)
    typed += ("--max-epochs", "2")
    out = shoal(*typed, code=1)
    assert "no such net" in out
    assert form or "error.txt has the traceback of the first of them" in out
    assert out.count("failed   16 trials, t000 first: RuntimeError") == (not form)
    traceback = (tmp_path / "s" / "trials" / "t000" / "error.txt").read_text()
    frames = [line for line in traceback.splitlines() if line.startswith("  File")]
    assert len(frames) == 1 and "raising.py" in frames[0]
    raising.write_text(source)
    out = shoal(*typed, code=1)
    assert "failed trials (16) stay failed unless --retry-failed" in out
    assert form or f"shoal resume {tmp_path / 's'} --retry-failed" in out
    assert "use --cold" in shoal("add", str(tmp_path / "s"), "--from", "t001", code=2)
    done = shoal(*typed, "--retry-failed", "--json")
    assert json.loads(done)["trials"]["finished"] == 16


def test_evaluations_within_an_epoch(tmp_path: Path) -> None:
    place = tmp_path / "s"
    small = ("--space", "width=grid([16])", "--space", "lr=grid([1e-3])")
    asked = ("--max-epochs", "1", "--policy", "fifo", "--validate-every")
    for every, epochs in (("0.5", [0.5, 1.0]), ("1", [1.0])):
        folder = place / every
        shoal("run", DIGITS, "--storage", str(folder), *small, *asked, every)
        entries = [line.entry for line in read(folder / "journal.jsonl")]
        found = [each.epoch for each in entries if isinstance(each, Evaluated)]
        assert found == epochs
    said = shoal("run", DIGITS, *small, *asked, "5 stepps", code=2)
    assert "or of optimizer steps" in said


def test_messages_say_options_as_they_are_typed() -> None:
    said = as_typed(
        'a larger max_epochs= than 3, mode="max", fuse=False, warm_start=False: optimize()'
    )
    assert said == ("a larger --max-epochs than 3, --mode max, --no-fuse, --cold: shoal run")
    same = "data_memory_gb= is none, nor asha(max_epochs=3); widths=(1, 4), seed=3, x='metric=acc'"
    assert as_typed(same) == same
    run = typer.main.get_command(app).commands["run"]  # type: ignore[attr-defined]
    typed_ones = {each.name for each in run.params} - {"help"}
    others = {*("file", "as_json", "fuse", "optuna_log", "loggers", "retry_failed", "requeue")}
    assert typed_ones - OPTIONS == others and typed_ones >= OPTIONS


def test_an_option_needs_its_field_only() -> None:
    """What has a help text can be typed after `run`; of `harvest`, where its backend uses it."""
    there: Any = typer.main.get_command(app)
    elsewhere = {"backend", "slots", "address", "copies", "stop_before", "optuna_log"}
    of_local = {name for name, each in TYPED.items() if each.metadata["backend"] == "local"}
    for command, without in (("run", set()), ("harvest", elsewhere | of_local)):
        typed_ones = {each.name for each in there.commands[command].params}
        assert TYPED.keys() - typed_ones == without


def commands_of(group: Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All commands and groups of commands, as they are typed."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands_of(command, (*words, name))


def test_h_is_help_on_every_command() -> None:
    there = list(commands_of(typer.main.get_command(app)))
    assert len(there) > 25 and ("data", "shard") in there
    for words in there:
        short, long = (CliRunner().invoke(app, [*words, each]) for each in ("-h", "--help"))
        assert short.exit_code == long.exit_code == 0, words
        assert short.output == long.output and "Usage:" in short.output


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"shoal {__version__}\n")


BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize("name", ["torch", "msgspec"])
def test_doctor_without_a_package_that_is_needed_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(name=name))
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli", "doctor", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    says = f"error: Shoal needs {name}, which is not installed here: pip install {name}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)
