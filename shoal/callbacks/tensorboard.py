"""TensorBoard's event files: a folder a trial, with its scores and its hyper-parameters."""

import time
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from shoal.callbacks.logger import last_epoch, step_of
from shoal.core.masking import masked_config


class TensorBoard:
    """The folder `tensorboard`, which `tensorboard --logdir` reads."""

    def open(self, study: Any, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, EventFileWriter] = {}

    def logged(self, trial: Any) -> float:
        if not (self._folder / trial.id).is_dir():
            return last_epoch(trial, -1)
        events = EventAccumulator(str(self._folder / trial.id)).Reload()
        steps = [events.Scalars(tag)[-1].step for tag in events.Tags()["scalars"]]
        return last_epoch(trial, max(steps, default=-1))

    def write(self, trial: Any, epoch: float, values: Mapping[str, float]) -> None:
        writer = self._writer(trial)
        scores = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        step = step_of(trial, epoch)
        now = time.time()
        writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=scores)))
        writer.flush()

    def _writer(self, trial: Any) -> EventFileWriter:
        """The trial's file, which begins with its hyper-parameters."""
        if trial.id not in self._writers:
            writer = EventFileWriter(str(self._folder / trial.id))
            self._writers[trial.id] = writer
            config = masked_config(trial.config)
            params = {name: _plain(value) for name, value in config.items()}
            began = hparams_pb(params, trial_id=trial.id, start_time_secs=time.time())
            writer.add_event(Event(wall_time=time.time(), summary=began))
        return self._writers[trial.id]

    def end(self, trial: Any) -> None:
        writer = self._writers.pop(trial.id, None)
        if writer is not None:
            writer.add_event(Event(wall_time=time.time(), summary=_ended(trial)))
            writer.close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}


def _plain(value: Any) -> Any:
    """A hyper-parameter as TensorBoard takes it: a number, a truth value or a text."""
    if isinstance(value, float) and isnan(value):
        return "nan"
    if isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _ended(trial: Any) -> Summary:
    """A note that the trial ended, and how, for the tab of hyper-parameters."""
    how = "STATUS_SUCCESS"
    if trial.status.startswith("failed"):
        how = "STATUS_FAILURE"
    over = plugin_data_pb2.SessionEndInfo(
        status=api_pb2.Status.Value(how), end_time_secs=time.time()
    )
    data = plugin_data_pb2.HParamsPluginData(
        session_end_info=over, version=metadata.PLUGIN_DATA_VERSION
    )
    about = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=data.SerializeToString()
    )
    tag = metadata.SESSION_END_INFO_TAG
    return Summary(value=[Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=about))])
