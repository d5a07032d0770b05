"""What the door's tests share: code that people bring trains a search in Shoal as it trains alone.

An example is examples/door/NAME.py, beside examples/door/plain/NAME.py, the loop that a user has.
Its recipe names a search space of four configurations, a metric and `max_epochs`.
"""

import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import killed_at
import numpy as np
import preloaded
import shown_kit
from typer.testing import CliRunner

import shoal
from shoal.cli import app
from shoal.core.event import Finished, Planned
from shoal.core.trial import TrialId
from shoal.engine.journal import Line
from shoal.study.folder import Folder
from shoal.train.lane.checkpoints import Checkpoints

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import gallery  # noqa: E402

DOOR = gallery.DOOR
TRIALS = 4
EXAMPLES = gallery.examples()
MOST_LINES = 1.3  # lines of an example over those of its plain loop

Tree = Mapping[str, Any]


# -- the example as it is told of ----------------------------------------------------------------


def check_lines(name: str) -> None:
    """The example takes at most 1.3 times the lines of its plain loop."""
    ours = gallery.code_lines(DOOR / f"{name}.py")
    plain = gallery.code_lines(DOOR / "plain" / f"{name}.py")
    assert ours <= MOST_LINES * plain, f"{ours} lines against {plain} of the plain loop"


def check_shown(name: str, printed: str) -> None:
    """What docs/gallery.md shows as the example's last lines is what it printed."""
    shown = gallery.section(name, gallery.PAGE.read_text())["printed"]
    shown = re.sub("^time .*$", "", shown, flags=re.M)  # of several runs it has another form
    lost = shown_kit.missing(shown, printed)
    assert not lost, f"docs/gallery.md shows {lost}; printed was {printed[-2000:]}"


# -- processes -----------------------------------------------------------------------------------


def shoal_command(*args: str) -> list[str]:
    """The command line, in a process of its own."""
    return [sys.executable, "-m", "shoal.cli", *args]


def run(*args: str) -> str:
    """Run a command of Shoal to its end, in this process; returns what it printed."""
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return done.output


def run_plain(name: str) -> str:
    """Run the plain loop; returns what it printed."""
    done = preloaded.run(
        [sys.executable, str(DOOR / "plain" / f"{name}.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kill_once_kept(folder: Path, *args: str) -> None:
    """Start a command that is killed -9 as soon as a trial's state is durable."""
    kill_process_once_kept(folder, shoal_command(*args))


def kill_process_once_kept(folder: Path, command: list[str], cwd: Path | None = None) -> None:
    """As `kill_once_kept`, of any command that trains the folder's study."""
    done = preloaded.run(
        killed_at.command("Kept", 1, command),
        cwd=cwd,
        capture_output=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == -signal.SIGKILL, (
        f"it ended by itself, with {done.returncode}: {done.stderr.decode()[-2000:]}"
    )
    assert finished(Folder(folder).lines()) < TRIALS, "killed too late"


def finished(lines: list[Line]) -> int:
    """How many trials have finished."""
    return sum(isinstance(line.entry, Finished) for line in lines)


# -- states --------------------------------------------------------------------------------------


def final_states(folder: Path) -> dict[str, Tree]:
    """By configuration, the durable state with which each trial ended."""
    study = shoal.load_study(folder)
    vault = Checkpoints(folder / "checkpoints", study.state.run)
    found = {}
    for trial in study.trials:
        assert trial.status == "finished", f"{trial.id}: {trial.status}"
        kept = study.state.kept[TrialId(trial.id)]
        found[repr(sorted(trial.config.items()))] = vault.load(kept.name)
    assert len(found) == TRIALS, f"a search of four configurations, not of {len(found)}"
    return found


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """The places where two trees are not equal to the last bit."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            yield f"{where}: {sorted(map(str, one))} against {sorted(map(str, other))}"
            return
        for key in one:
            yield from differences(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            yield f"{where}: {len(one)} items against {len(other)}"
            return
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{where}[{number}]")
    elif not np.array_equal(np.asarray(one), np.asarray(other), equal_nan=_may_be_nan(one)):
        yield f"{where}: {one!r:.60} against {other!r:.60}"


def _may_be_nan(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "fc"


def check_equal(one: Path, other: Path) -> None:
    """Both studies ended with the same states, bit for bit."""
    ours = final_states(one)
    theirs = final_states(other)
    found = list(differences(ours, theirs))
    assert not found, "\n".join(found[:20])


def largest_gang(folder: Path) -> int:
    """The most trials that trained in one pack."""
    sizes = [1]
    for line in Folder(folder).lines():
        if isinstance(line.entry, Planned):
            sizes += [len(gang.lanes) for gang in line.entry.start]
    return max(sizes)


# -- the whole of it -----------------------------------------------------------------------------


def check_door(name: str, tmp_path: Path) -> None:
    """The example trains as promised.

    Its search of four configurations, packed, equals training each alone, also after a kill -9 and
    a resume. `shoal replay` agrees: it is asked for one trial, as all are compared beside it.
    """
    file = str(DOOR / f"{name}.py")
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    common = ("--no-fuse", "--checkpoint-every", "0")
    check_shown(name, run("run", file, "--storage", str(alone), "--policy", "fifo", *common))
    kill_once_kept(killed, "run", file, "--storage", str(killed), "--policy", "pack", *common)
    run("resume", str(killed))
    assert largest_gang(alone) == 1
    assert largest_gang(killed) > 1, "it was not packed"
    check_equal(alone, killed)
    out = run("replay", str(killed), "--trial", min(shoal.load_study(killed).state.known))
    assert "DIFFERS" not in out and "1 of 1 trial" in out, out
