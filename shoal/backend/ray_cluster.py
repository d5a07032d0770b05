"""Ray's side of the cluster: starting or joining one, its nodes, and where slots and shards go."""

import getpass
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import cloudpickle

from shoal.backend import ray_reaper
from shoal.core.cluster import GiB, ShardId, SlotId

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # no notice about it either

import ray
from ray._private import worker as ray_worker

GIB = 1024**3
LONGEST_FOLDER = 36  # characters: a socket's path may have 107, and Ray adds up to 70
SMALLEST_STORE = 256 * 2**20
# An object that nobody needs any more is freed at once, not in batches each second: the next state then gets its pages, which
# are mapped already. Measured for 100 MB: 25 ms to hop, against 200 ms through fresh pages.
TUNED = {"free_objects_period_milliseconds": 0}


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster, and how many slots fit it."""

    id: str
    host: str
    room: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one slot takes of a node."""

    cpus: float
    gpus: float


def join(address: str | None, slots: int | None, threads: int, store_gb: GiB) -> tuple[bool, int | None]:
    """Join the cluster at the address, or the one this process is in already, or start one: quiet, and bound to this machine.

    Returns whether it was started here, and then with how many slots.
    """
    if ray.is_initialized():
        return False, slots
    quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    ray_worker._worker_logs_enabled = False  # the only way to silence its notices about processes that died
    if address is not None:
        ray.init(address=address, **quiet)
        return False, slots
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ray.init(
        address="local",
        num_cpus=max(cpus, 1),
        include_dashboard=False,
        object_store_memory=_store_size(store_gb),
        _node_ip_address="127.0.0.1",
        _system_config=TUNED,
        **quiet,
        **_folder(),
    )
    ray_reaper.guard()
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return True, slots or gpus or max(1, cpus // threads)


def _folder() -> dict[str, str]:
    """Ray's own choice, but where names of sockets in it would become too long for the system."""
    own = os.environ.get("RAY_TMPDIR", tempfile.gettempdir())
    return {} if len(own) <= LONGEST_FOLDER else {"_temp_dir": f"/tmp/ray-{getpass.getuser()}"}


def _store_size(wanted: GiB) -> int:
    """Bytes for the object store: not more than a third of the memory, nor than what is left of its file system."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    left = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else memory
    return max(SMALLEST_STORE, min(int(wanted * GIB), memory // 3, int(left * 0.9)))


def leave(own: bool) -> None:
    """End the cluster that was started here."""
    if own:
        ray.shutdown()
        ray_reaper.dismiss()


def store_room() -> int:
    """Bytes of the object store that states at rest may take up, lest others find no way through."""
    return int(0.6 * ray.cluster_resources().get("object_store_memory", SMALLEST_STORE))


def here() -> str:
    """The id of this process's node."""
    return str(ray.get_runtime_context().get_node_id())


def share_of(cpus: float | None, gpus: float | None, threads: int, slots: int | None) -> Share:
    """What a slot takes, where the user does not say: a GPU where the cluster has any, and a CPU for each thread.

    `slots`: how many there are to be in a cluster of our own, where more than fit may share its CPUs and GPUs.
    """
    there = ray.cluster_resources().get("GPU", 0.0)
    if gpus is None:
        gpus = 0.0 if there < 1 else 1.0 if slots is None else 1.0 / -(-slots // int(there))
    if slots is not None:
        cpus = 0.0
    return Share(float(threads) if cpus is None else cpus, gpus)


def address() -> str:
    """This process's node, as others reach it."""
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here()))


def nodes(share: Share) -> dict[str, Node]:
    """The live nodes, and how many slots of this size each has room for."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: Node(node["NodeID"], node["NodeManagerHostname"], _room(node["Resources"], share)) for node in alive}


def _room(resources: Mapping[str, float], share: Share) -> int:
    counts = [resources.get(name, 0.0) // each for name, each in (("CPU", share.cpus), ("GPU", share.gpus)) if each > 0]
    return int(min(counts, default=1))


def spread(shards: Sequence[ShardId], slots: Sequence[SlotId], copies: int) -> dict[SlotId, frozenset[ShardId]]:
    """Shard i at slots i, i + 1, … modulo their number: the first placing."""
    held: dict[SlotId, set[ShardId]] = {slot: set() for slot in slots}
    for i, shard in enumerate(shards):
        for k in range(min(copies, len(slots))):
            held[slots[(i + k) % len(slots)]].add(shard)
    return {slot: frozenset(at) for slot, at in held.items()}


def mend(
    shards: Sequence[ShardId],
    held: Mapping[SlotId, frozenset[ShardId]],
    copies: int,
    busy: Set[tuple[SlotId, ShardId]],
) -> dict[SlotId, frozenset[ShardId]]:
    """After slots came or went: every shard at enough slots again, and then as evenly as can be without moving `busy` ones."""
    new = {slot: set(at) for slot, at in held.items()}
    for shard in shards:
        for _ in range(min(copies, len(new)) - sum(shard in at for at in new.values())):
            new[min((s for s in new if shard not in new[s]), key=lambda s: len(new[s]))].add(shard)
    while (move := _move(new, busy)) is not None:
        source, target, shard = move
        new[source].discard(shard)
        new[target].add(shard)
    return {slot: frozenset(at) for slot, at in new.items()}


def _move(held: Mapping[SlotId, Set[ShardId]], busy: Set[tuple[SlotId, ShardId]]) -> tuple[SlotId, SlotId, ShardId] | None:
    if not held:
        return None
    target = min(held, key=lambda s: len(held[s]))
    for source in sorted(held, key=lambda s: -len(held[s])):
        if len(held[source]) - len(held[target]) < 2:
            return None
        free = sorted(s for s in held[source] - held[target] if (source, s) not in busy)
        if free:
            return source, target, free[-1]
    return None


def packed(*things: Any) -> bytes:
    """Pickled together with the code of their classes and functions, but for that of installed packages."""
    registered = cloudpickle.list_registry_pickle_by_value()
    modules = {module for module in _own_modules(things) if module.__name__ not in registered}
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(things))
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _own_modules(things: Iterable[Any]) -> Iterator[Any]:
    for thing in things:
        for kind in (thing,) if isinstance(thing, FunctionType) else type(thing).__mro__:
            with suppress(AttributeError, KeyError):
                module = sys.modules[kind.__module__.partition(".")[0]]
                file = module.__file__ or ""
                if module.__name__ not in {"shoal", "__main__", *sys.stdlib_module_names} and not _installed(file):
                    yield module


def _installed(file: str) -> bool:
    return not file or "site-packages" in file or "dist-packages" in file
