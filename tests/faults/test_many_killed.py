"""Kill -9 of a study of tiny trials, whose checkpoints and journal become durable together."""

import random
import subprocess
import sys
import time
from pathlib import Path

import many_kit
import preloaded
import pytest
from many_kit import TinyTrials

import shoal
from shoal.core.event import Finished, Kept, Opened
from shoal.engine.journal import read, replay
from shoal.train.lane.checkpoints import Checkpoints

PATIENCE = 240.0  # seconds on a busy machine


def start(folder: Path, trials: int, policy: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, many_kit.__file__, str(folder), str(trials), policy]
    return preloaded.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def killed(folder: Path, trials: int, policy: str, finished: int, after: float) -> bool:
    """Run it until so many more trials are finished, and so many seconds more; False: it ended."""
    process = start(folder, trials, policy)
    goal = ended(folder) + finished
    late = time.monotonic() + PATIENCE
    while process.poll() is None and ended(folder) < goal:
        assert time.monotonic() < late, "it makes no progress"
        time.sleep(0.02)
    if process.poll() is None:
        time.sleep(after)
    alive = process.poll() is None
    process.kill()
    errors = process.communicate()[1]
    assert alive or process.returncode == 0, errors.decode()
    return alive


def ended(folder: Path) -> int:
    path = folder / "journal.jsonl"
    if not path.exists():
        return 0
    return path.read_bytes().count(b'"e":"Finished"')


def check_promises(folder: Path) -> None:
    """All that the journal says is durable can be loaded, and no trial finished without it."""
    lines = list(read(folder / "journal.jsonl"))
    state = replay(lines)
    vault = Checkpoints(folder / "checkpoints", state.run)
    for trial, kept in state.kept.items():
        assert len(vault.load(kept.name)["visits"]) == kept.visits, trial
    for trial, how in state.ended.items():
        assert how == "finished"
        assert state.kept[trial].samples == state.known[trial].samples


def check_whole(study: shoal.Study, trials: int) -> None:
    """All trials were trained to their end, and only newest states are there."""
    state = study.state
    assert len(state.ended) == trials == len(state.known)
    vault = Checkpoints(study.folder.checkpoints, state.run)
    named = {kept.name for kept in state.kept.values()}
    assert named <= set(vault.names())
    assert len(vault.names()) <= 2 * trials
    finished = [line.entry.trial for line in study.lines() if isinstance(line.entry, Finished)]
    assert sorted(finished) == sorted(state.known), "each trial finishes once"
    some = sorted(state.known)[:: max(1, trials // 5)]
    assert all(row["equal"] for row in study.replay(some))
    assert study.load_model(some[0]) is not None


def go_through(folder: Path, trials: int, kills: int, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(kills):
        alive = killed(folder, trials, "fifo", draw.randint(0, trials // kills), draw.random())
        if (folder / "journal.jsonl").exists():
            check_promises(folder)
        if not alive:
            break
    study = shoal.create_study(TinyTrials(trials), storage=folder, load_if_exists=True)
    study.optimize(policy="fifo", progress=False)
    check_promises(folder)
    check_whole(study, trials)


def test_kill_9_among_tiny_trials(tmp_path: Path) -> None:
    go_through(tmp_path / "s", trials=60, kills=2, seed=0)
    assert list((tmp_path / "s" / "checkpoints").glob("pack-*.zip"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2, 3))]
)
def test_kill_9_again_and_again(tmp_path: Path, seed: int) -> None:
    go_through(tmp_path / "s", trials=600, kills=4, seed=seed)


def test_at_most_about_a_second_is_trained_again(tmp_path: Path) -> None:
    """What was kept before the last groups is not trained again by the next run."""
    folder = tmp_path / "s"
    killed(folder, 200, "fifo", finished=40, after=0.0)
    before = {
        line.entry.trial for line in read(folder / "journal.jsonl") if isinstance(line.entry, Kept)
    }
    study = shoal.create_study(TinyTrials(200), storage=folder, load_if_exists=True)
    study.optimize(policy="fifo", progress=False)
    lines = study.lines()
    again = max(n for n, line in enumerate(lines) if isinstance(line.entry, Opened))
    after = {line.entry.trial for line in lines[again:] if isinstance(line.entry, Kept)}
    assert not before & after
    assert len(before) >= 40


def test_a_former_study_with_a_file_each_goes_on(tmp_path: Path) -> None:
    """Files of one state each, as they were written before, are read and go on."""
    folder = tmp_path / "s"
    study = shoal.create_study(TinyTrials(6), storage=folder)
    study.optimize(policy="fifo", progress=False, checkpoint_every=0)
    assert len(list((folder / "checkpoints").rglob("*.pt"))) >= 6
    study.enqueue({"lr": 0.5}, max_epochs=2)
    study.clone(next(iter(study.state.known)), {"lr": 0.25}, max_epochs=4)
    study.resume(progress=False)
    assert all(row["equal"] for row in study.replay())
    assert len(study.state.ended) == 8
    check_promises(folder)
