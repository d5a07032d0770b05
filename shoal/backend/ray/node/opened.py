"""What a slot's process opens: the data, the station and what makes units with it."""

import os
import pickle
import secrets
import signal
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import ray

from shoal.backend.ray import cluster
from shoal.backend.ray.node import data as node_data
from shoal.backend.ray.node import feed
from shoal.backend.ray.node.inplace.deals import with_deals
from shoal.backend.ray.node.inplace.validator import elsewhere_of
from shoal.backend.ray.node.outcomes import Hello
from shoal.backend.ray.node.process import born, limit_space
from shoal.backend.ray.node.rounds import OnProgress, SlotRounds
from shoal.backend.ray.node.setup import SlotSetup
from shoal.core.cluster import GiB
from shoal.core.trial import TrialId
from shoal.engine.process import dedicate, in_forks
from shoal.train.data.data import Data
from shoal.train.function.recipe import FunctionRecipe
from shoal.train.function.station import FunctionStation
from shoal.train.lane.checkpoint import Checkpoints
from shoal.train.lane.device import limit_memory
from shoal.train.overdue import watch_calls
from shoal.train.slot.setup import StationSetup
from shoal.train.slot.station import Station
from shoal.train.wide.gate import Meeting


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """A slot that is ready."""

    station: Station | FunctionStation
    rounds: SlotRounds
    checkpoints: Checkpoints
    meeting: Meeting  # of processes that train a wide lane, kept open as long as the slot is there
    hello: Hello

    def close(self) -> None:
        """End what runs here beside units."""
        if isinstance(self.station, FunctionStation):
            self.station.close()


def open_slot(
    setup: SlotSetup,
    folder: Path,
    void: Set[int],
    on_progress: OnProgress,
    turn_of: Callable[[TrialId], None],
) -> OpenSlot:
    """Get the data, and make the station.

    `folder`: of the node's copy of the data. `void`, `on_progress`: see `SlotRounds`. `turn_of`:
    called before a trial's code runs.

    Raises:
        DataError, OSError: as `data.shared`.
    """
    recipe, pace, placed = pickle.loads(setup.user)
    data = node_data.data_here(recipe, placed, folder, setup.fingerprint)
    data = with_deals(data, folder, setup.user)
    # Slots on several machines write side by side: a name of its own for each.
    name = secrets.token_hex(4)
    checkpoints = Checkpoints(setup.checkpoints, setup.station.run, name)
    device = "cpu"
    if setup.gpus > 0:
        device = "cuda"
    memory = _memory(setup, device)
    station_setup = replace(_limited(setup, memory), device=device, pace=pace)
    node = ray.get_runtime_context().get_node_id()
    window = feed.find(setup.token, node, setup.feeders, setup.stream_samples)
    station: Station | FunctionStation
    if isinstance(recipe, FunctionRecipe):
        logs = Path(setup.logs) if setup.logs else None
        station = FunctionStation(recipe, checkpoints, station_setup, logs=logs, turn_of=turn_of)
    else:
        station = Station(
            recipe,
            data,
            checkpoints,
            station_setup,
            turn_of=turn_of,
            feed=window,
            elsewhere=elsewhere_of(setup, data),
        )
    watch_calls(setup.station.calls)
    dedicate(f"trials of the study with checkpoints in {setup.checkpoints}")
    # Ray's handler of it has no meaning in what a trial forks, and would keep that alive.
    in_forks(lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    rounds = SlotRounds(station, void, on_progress)
    meeting = Meeting(cluster.address())
    if device == "cpu" and setup.slot_memory_gb is not None:
        limit_space(setup.slot_memory_gb)
    hello = _hello(device, memory, meeting.address, data)
    return OpenSlot(station, rounds, checkpoints, meeting, hello)


def _hello(device: str, memory: GiB, meeting: str, data: Data) -> Hello:
    """That the slot is ready, and which shards lie here."""
    damaged = data.damaged()
    shards = frozenset(data.shards) - damaged.keys()
    pid = os.getpid()
    return Hello(
        host=cluster.node_here().host,
        kind=device,
        memory=memory,
        pid=pid,
        born=born(pid),
        meeting=meeting,
        shards=frozenset(filter(data.is_here, shards)),
        damaged=damaged,
    )


def _memory(setup: SlotSetup, device: str) -> GiB:
    """What the slot may use of the device's memory."""
    share = 1.0
    if _shares_gpu(setup):
        share = setup.gpus
    data_memory = setup.station.data_memory_gb
    return limit_memory(device, setup.slot_memory_gb, share, data_memory)


def _limited(setup: SlotSetup, memory: GiB) -> StationSetup:
    """The station's setup: told of its memory only where others use the rest."""
    if _shares_gpu(setup) or setup.slot_memory_gb is not None:
        return replace(setup.station, slot_memory_gb=memory)
    return replace(setup.station, slot_memory_gb=inf)


def _shares_gpu(setup: SlotSetup) -> bool:
    return 0 < setup.gpus < 1
