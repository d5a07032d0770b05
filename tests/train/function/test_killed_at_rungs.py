"""A run of an objective is killed between two rungs, within a write of Optuna's log."""

import sys
from pathlib import Path

import preloaded
import pytest

import shoal
from shoal.core.event import Fell

SCRIPT = """
import os, signal, sys
from pathlib import Path
from optuna.storages.journal import JournalFileSymlinkLock
import shoal

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    for step in range(9):
        if trial.number == 2 and not Path("killed").exists():
            Path("killed").touch()
            JournalFileSymlinkLock("s/optuna.log").acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        trial.report(trial.number + 1 / (step + 1), step)
        if trial.should_prune():
            break
    return trial.number

def ended(study, trial):
    print(trial.id, trial.status, trial.epochs)

study = shoal.create_study(storage="s", direction="minimize", load_if_exists=True)
study.optimize(objective, "asha", n_trials=3, max_epochs=9, optuna_log=True,
               callbacks=[ended], progress=False)
"""


@pytest.mark.slow
def test_it_goes_on_and_counts_what_it_trains_again_once(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    killed = preloaded.run(command, cwd=tmp_path, timeout=240, check=False)
    assert killed.returncode == -9 and (tmp_path / "s/optuna.log.lock").is_symlink()

    done = preloaded.run(
        command, cwd=tmp_path, timeout=240, capture_output=True, text=True, check=True
    )
    assert "a killed process left the lock" in done.stderr
    assert not (tmp_path / "s/optuna.log.lock").is_symlink()

    study = shoal.load_study(tmp_path / "s")
    assert [trial.epochs for trial in study.trials] == [9.0, 1.0, 1.0]
    best = study.trials[0]
    assert [epoch for epoch, _ in best.scores] == [*range(1, 10)]
    lost = [entry.trial for _, entry in study.lines() if isinstance(entry, Fell)]
    assert lost.count("t000") == 1, "it had finished a rung, and kept nothing"
    # A trial ends once: the best at its end, another one when it cannot go on any more.
    said = done.stdout.split("\n")[:-1]
    assert said[0] == "t000 finished 9.0" and said[-1] == "t002 finished 1.0"
    assert len({line.partition(" ")[0] for line in said}) == len(said)

    storage = optuna.storages.journal.JournalFileBackend(str(tmp_path / "s/optuna.log"))
    log = optuna.load_study(study_name="s", storage=optuna.storages.JournalStorage(storage))
    assert len(log.trials[0].intermediate_values) == 9
