"""The examples, as scripts in an empty folder."""

import ast
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.core.event import Finished, Retired
from shoal.folder import Folder

ROOT = Path(__file__).resolve().parents[1]
MNIST = ROOT.parent / "shared" / "data" / "mnist10k"


def script(folder: Path, *args: str) -> str:
    done = subprocess.run([sys.executable, *args], cwd=folder, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def best(folder: Path, study: str) -> float:
    out = script(folder, "-m", "shoal.cli", "status", study, "--json")
    return float(json.loads(out)["best"]["score"])


def test_digits(tmp_path: Path) -> None:
    out = script(tmp_path, str(ROOT / "examples" / "digits.py"))
    assert "best:" in out and (tmp_path / "runs" / "digits" / "report.html").exists()
    assert best(tmp_path, "runs/digits") >= 0.95


def test_packs(tmp_path: Path) -> None:
    out = script(tmp_path, str(ROOT / "examples" / "packs.py"))
    assert "freed: m2 | loaded: m3" in out
    assert float(out.splitlines()[1].split()[-1]) >= 0.9


def test_own_searcher(tmp_path: Path) -> None:
    """A procedure of one's own takes 20 lines at most, and goes on where it was."""
    example = ROOT / "examples" / "own_searcher.py"
    race = next(node for node in ast.parse(example.read_text()).body if isinstance(node, ast.ClassDef))
    assert (race.end_lineno or 0) - race.lineno + 1 <= 20
    first = script(tmp_path, str(example))
    assert first.count("retired") == 3 and first.count("3.0 epochs") == 3
    assert script(tmp_path, str(example)) == first, "run again, nothing is left to do"

    killed = tmp_path / "killed"
    killed.mkdir()
    study = Folder(killed / "runs" / "race")
    process = subprocess.Popen([sys.executable, str(example)], cwd=killed, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while process.poll() is None and not any(isinstance(line.entry, Retired) for line in study.lines()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    entries = [line.entry for line in study.lines()]
    assert process.returncode < 0 and any(isinstance(entry, Retired) for entry in entries)
    assert sum(isinstance(entry, Finished) for entry in entries) < 3
    assert script(killed, str(example)) == first, "killed after the first had given way"


@pytest.mark.slow
@pytest.mark.skipif(not MNIST.exists(), reason="the MNIST images are not part of the product; none lie beside the checkout")
@pytest.mark.parametrize("backend", [(), ("--backend", "ray", "--slots", "2")])
def test_mnist(tmp_path: Path, backend: tuple[str, ...]) -> None:
    script(tmp_path, str(ROOT / "examples" / "mnist.py"), "--data", str(MNIST), *backend)
    assert best(tmp_path, "runs/mnist") >= 0.95
    out = script(tmp_path, "-m", "shoal.cli", "replay", "runs/mnist")
    assert "DIFFERS" not in out and " of 4 trials equal" in out, "fused packs agree to rounding"
