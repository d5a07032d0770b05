"""The examples, as scripts in an empty folder."""

import ast
import json
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import killed_at
import preloaded
import pytest

import shoal
from shoal.core.event import Finished, Retired
from shoal.study.folder import Folder

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
MNIST = ROOT.parent / "shared" / "data" / "mnist10k"


def script(folder: Path, *args: str, codes: tuple[int, ...] = (0,)) -> str:
    done = preloaded.run(
        [sys.executable, *args],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


Run = Callable[[Path, str], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs an example in a folder, in this process; returns what it prints."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def printed(folder: Path, example: str) -> str:
        monkeypatch.chdir(folder)
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        return capsys.readouterr().out

    return printed


def best(folder: Path, study: str) -> float:
    out = script(folder, "-m", "shoal.cli", "status", study, "--json")
    return float(json.loads(out)["best"]["score"])


def test_digits(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    three_epochs = partialmethod(shoal.Study.optimize, max_epochs=3)
    monkeypatch.setattr(shoal.Study, "optimize", three_epochs)
    out = run(tmp_path, "digits.py")
    assert "best:" in out and (tmp_path / "runs" / "digits" / "report.html").exists()
    assert best(tmp_path, "runs/digits") >= 0.95


def test_packs(tmp_path: Path, run: Run) -> None:
    out = run(tmp_path, "packs.py")
    assert "freed: m2 | loaded: m3" in out
    assert float(out.splitlines()[1].split()[-1]) >= 0.9


def test_recipes(tmp_path: Path, run: Run) -> None:
    out = run(tmp_path, "recipes.py")
    assert "\ndigits t00" in out and "\ndiabetes t00" in out
    assert "Linear(in_features=10" in out


def code_of_class(text: str) -> list[str]:
    """The lines of the only class in a file, without blank lines, docstrings and comments."""
    [found] = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    found.body = found.body[1:]  # its docstring
    lines: list[str] = text.splitlines()[found.lineno - 1 : found.end_lineno]
    begin = found.body[0].lineno - found.lineno
    code = [lines[0], *lines[begin:]]
    return [line for line in code if line.strip() and not line.strip().startswith("#")]


def test_own_searcher(tmp_path: Path, run: Run) -> None:
    """A procedure of one's own takes 20 lines of code at most, and goes on where it was."""
    example = EXAMPLES / "own_searcher.py"
    assert len(code_of_class(example.read_text())) <= 20
    first = run(tmp_path, example.name)
    assert first.count("retired") == 3 and first.count("3.0 epochs") == 3
    assert run(tmp_path, example.name) == first, "run again, nothing is left to do"

    killed = tmp_path / "killed"
    killed.mkdir()
    process = preloaded.run(
        killed_at.command("Retired", 1, [sys.executable, str(example)]),
        cwd=killed,
        stdout=subprocess.DEVNULL,
        check=False,
        timeout=280,
    )
    assert process.returncode == -signal.SIGKILL
    entries = [line.entry for line in Folder(killed / "runs" / "race").lines()]
    assert any(isinstance(entry, Retired) for entry in entries)
    assert sum(isinstance(entry, Finished) for entry in entries) < 3
    assert run(killed, example.name) == first, "killed after the first had given way"


@pytest.mark.slow
@pytest.mark.skipif(
    not MNIST.exists(),
    reason="the MNIST images are not part of the product; none lie beside the checkout",
)
@pytest.mark.parametrize(
    "backend", [(), pytest.param(("--backend", "ray", "--slots", "2"), marks=pytest.mark.nightly)]
)
def test_mnist(tmp_path: Path, backend: tuple[str, ...]) -> None:
    script(tmp_path, str(ROOT / "examples" / "mnist.py"), "--data", str(MNIST), *backend)
    assert best(tmp_path, "runs/mnist") >= 0.95
    # Fused packs agree to rounding; 4: training amplifies it too far to tell.
    out = script(tmp_path, "-m", "shoal.cli", "replay", "runs/mnist", codes=(0, 4))
    assert "DIFFERS" not in out and "MISSING" not in out and "of 4 trials" in out


@pytest.mark.slow
def test_own_loop(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    example = str(ROOT / "examples" / "own_loop.py")
    out = script(tmp_path, example)
    assert "'alpha'" in out
    assert script(tmp_path, example) == out  # eight trials are there already
