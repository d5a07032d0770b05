"""Who stands in a stranger's folder runs nothing that lies there under the name of a module."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stranger_kit import OWN

import shoal

ROOT = Path(shoal.__file__).parent
# Modules that Shoal, Ray or Python itself import in processes that they start.
NAMES = ("shoal", "torch", "typer", "ray", "multiprocessing", "socket", "pickle")
EVIL = "import os\nopen({mark!r}, 'a').write(__name__ + ' ')\nraise ImportError('theirs')\n"


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder with files of such names, which leave a mark if they are run."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(EVIL.format(mark=str(tmp_path / "ran")))
    (tmp_path / "own.py").write_text(OWN)
    return folder


def check(stranger: Path, *words: str) -> None:
    done = subprocess.run(
        words,
        cwd=stranger,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    mark = stranger.parent / "ran"
    assert not mark.exists(), f"{mark.read_text()}was run: {done.stdout}{done.stderr}"
    assert done.returncode == 0, done.stdout + done.stderr


def script(text: str) -> tuple[str, ...]:
    """A program of the user's own, which does not import from the current folder."""
    return (
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path[:0] = [{str(ROOT.parent)!r}]\n{text}",
    )


def test_a_command_of_the_page(stranger: Path) -> None:
    check(
        stranger, *script("from shoal.ui.actions import _run\nassert 'study' in _run(['--help'])")
    )


def test_data_workers_and_what_tends_shared_memory(stranger: Path, tmp_path: Path) -> None:
    text = """
from shoal.train.stream.shared_memory import place
from shoal.train.stream.worker import away_from_folder, _without_main
import multiprocessing, os
place("shoal-test-%d" % os.getpid(), b"x", [])[1].unlink()
def started(target, *given):
    process = multiprocessing.get_context("spawn").Process(target=target, args=given)
    with _without_main(), away_from_folder():
        process.start()
    process.join()
    return process.exitcode
assert started(os.getcwd) == 0
assert "PYTHONSAFEPATH" not in os.environ
"""
    check(stranger, *script(text))


@pytest.mark.slow
def test_slots_of_ray(stranger: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    run = ("run", str(tmp_path / "own.py"), "--storage", str(stranger / "study"))
    options = ("--backend", "ray", "--slots", "2", "--policy", "fifo")
    check(stranger, *script("from shoal.cli import main\nmain()"), *run, *options)


def test_programs_are_started_in_one_way() -> None:
    """`python -m` and `-c` without -P, and multiprocessing, import from the current folder."""
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        name = file.relative_to(ROOT).as_posix()
        if name == "engine/process.py":
            continue
        wrong += [f"{name}: {x}" for x in re.findall(r"sys\.executable, \"-[mc]\"", text)]
        if "get_context(" in text and "away_from_folder()" not in text:
            wrong.append(f"{name}: get_context")
        if re.search(r"[^_\[]SharedMemory\(", text) and "ensure_running" not in text:
            wrong.append(f"{name}: SharedMemory")
    assert not wrong, f"use shoal.engine.process: {wrong}"
