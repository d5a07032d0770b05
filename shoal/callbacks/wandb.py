"""Weights & Biases: a run a trial, written to files; `wandb sync` sends them."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal

import wandb

from shoal.callbacks.logger import apart
from shoal.core.masking import masked_config
from shoal.engine.ownership import make_folder, write_private
from shoal.engine.plain_files import is_there, read_file

# What a run's history and summary hold beside its scores.
OWN = ("epoch", "status", "_step", "_runtime", "_timestamp", "_wandb")


class WeightsAndBiases:
    """Offline runs below the folder `wandb`, of a project of the study's name.

    `online`: send them at once instead, which needs a login. An offline file cannot be added to:
    a trial that goes on gets another file of the same run, which `wandb sync` puts together.
    """

    def __init__(self, online: bool = False) -> None:
        self._mode: Literal["offline", "online"] = "offline"
        if online:
            self._mode = "online"

    def open(self, study: Any, folder: Path) -> None:
        self._project = study.folder.path.name
        self._folder = folder
        self._notes = folder / "logged"
        make_folder(self._notes)
        self._runs: dict[str, Any] = {}

    def logged(self, trial: Any) -> float:
        note = self._notes / trial.id
        if not is_there(note):
            return -inf
        return float(read_file(note) or -inf)

    def write(self, trial: Any, epoch: float, values: Mapping[str, float]) -> None:
        self._run(trial).log({**apart(values, OWN), "epoch": epoch})
        write_private(self._notes / trial.id, repr(epoch))

    def _run(self, trial: Any) -> Any:
        if trial.id not in self._runs:
            settings = wandb.Settings(
                silent=True, console="off", disable_git=True, x_disable_stats=True
            )
            run = wandb.init(
                project=self._project,
                dir=str(self._folder),
                id=f"{self._project}-{trial.id}",
                name=trial.id,
                config=masked_config(trial.config),
                mode=self._mode,
                resume="allow" if self._mode == "online" else None,
                reinit="create_new",
                settings=settings,
            )
            run.define_metric("*", step_metric="epoch")
            self._runs[trial.id] = run
        return self._runs[trial.id]

    def end(self, trial: Any) -> None:
        run = self._runs.pop(trial.id, None)
        if run is not None:
            run.summary["status"] = trial.status
            run.finish(exit_code=int(trial.status.startswith("failed")))

    def close(self) -> None:
        for run in self._runs.values():
            run.finish()
        self._runs = {}
