"""MLflow: an experiment a study, a run a trial, in a file beside the study or at a URI."""

import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from mlflow.entities import Metric, Param, RunStatus
from mlflow.tracking import MlflowClient

from shoal.callbacks.logger import last_epoch, step_of
from shoal.core.masking import masked_config
from shoal.engine.ownership import make_folder
from shoal.engine.plain_files import is_there, open_file

TAG = "shoal.trial"
FAILED = RunStatus.to_string(RunStatus.FAILED)
KILLED = RunStatus.to_string(RunStatus.KILLED)
FINISHED = RunStatus.to_string(RunStatus.FINISHED)
# MLflow takes no more parameters in one call, and no longer texts.
PARAMETERS = 100
LETTERS = 6000
NAMES_FILE = bytes.fromhex("d9d505f920a163d7")  # ends a journal of SQLite that does


class MLflow:
    """The file `mlflow/mlflow.db` (`mlflow ui --backend-store-uri sqlite:///…`), or a URI.

    `uri`: of another tracking store; None: that file.
    """

    def __init__(self, uri: str | None = None) -> None:
        self._uri = uri

    def open(self, study: Any, folder: Path) -> None:
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        uri = self._uri
        artifacts = None
        if uri is None:
            make_folder(folder)
            _check_journal(folder)
            uri = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
            artifacts = (folder / "artifacts").resolve().as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        self._experiment = self._experiment_of(study.folder.path.name, artifacts)
        self._runs: dict[str, str] = {}
        token = None
        while True:
            page = self._client.search_runs([self._experiment], page_token=token)
            self._runs |= {run.data.tags.get(TAG, ""): run.info.run_id for run in page}
            token = page.token
            if not token:
                return

    def _experiment_of(self, name: str, artifacts: str | None) -> str:
        """The experiment of the study's name; a new one if there is none."""
        known = self._client.get_experiment_by_name(name)
        if known is not None:
            return str(known.experiment_id)
        return str(self._client.create_experiment(name, artifact_location=artifacts))

    def logged(self, trial: Any) -> float:
        step = -1
        if trial.id in self._runs:
            run = self._runs[trial.id]
            for name in self._client.get_run(run).data.metrics:
                history = self._client.get_metric_history(run, name)
                step = max(step, *(each.step for each in history))
        return last_epoch(trial, step)

    def write(self, trial: Any, epoch: float, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        step = step_of(trial, epoch)
        scores = [
            Metric(name, value, now, step)
            for name, value in zip(_names(values), values.values(), strict=True)
        ]
        self._client.log_batch(self._run(trial), metrics=scores)

    def _run(self, trial: Any) -> str:
        """The trial's run; a new one holds its configuration."""
        if trial.id not in self._runs:
            new = self._client.create_run(self._experiment, tags={TAG: trial.id}, run_name=trial.id)
            run = str(new.info.run_id)
            self._runs[trial.id] = run
            params = [
                Param(name, str(value)[:LETTERS])
                for name, value in zip(
                    _names(trial.config), masked_config(trial.config).values(), strict=True
                )
            ]
            for start in range(0, len(params), PARAMETERS):
                self._client.log_batch(run, params=params[start : start + PARAMETERS])
        return self._runs[trial.id]

    def end(self, trial: Any) -> None:
        how = FINISHED
        if trial.status.startswith("failed"):
            how = FAILED
        elif trial.status == "retired":
            how = KILLED
        self._client.set_terminated(self._run(trial), how)

    def close(self) -> None:
        """Nothing is to be done: each value is written at once."""


def _check_journal(folder: Path) -> None:
    """See that what a killed run left beside the database names no file, which SQLite would delete.

    SQLite writes such a name if one change is made to several databases, as nobody does here.

    Raises:
        ValueError: it names one.
    """
    journal = folder / "mlflow.db-journal"
    if not is_there(journal):
        return
    with open_file(journal) as file:
        file.seek(max(0, file.seek(0, 2) - len(NAMES_FILE)))
        if file.read() == NAMES_FILE:
            raise ValueError(
                f"{journal} names another file, which SQLite would delete: no run of Shoal left "
                "this, so do not use this folder, or move it away"
            )


def _names(keys: Collection[str]) -> list[str]:
    """The keys with letters that MLflow takes; of two that would be equal, one gets a number."""
    names: list[str] = []
    for key in keys:
        name = _name(key)
        if name != key and (name in keys or name in names):
            name = f"{name}_{crc32(key.encode()):08x}"
        names.append(name)
    return names


def _name(name: str) -> str:
    """The name with letters that MLflow takes."""
    return "".join(each if each.isalnum() or each in "_-. /" else "_" for each in name)
