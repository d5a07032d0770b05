"""Ray's side of the cluster: starting or joining one, and its nodes."""

import getpass
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isnan
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from shoal.backend.cluster_start import UNTIL, check_reached
from shoal.backend.ray import reaper
from shoal.core.cluster import GiB
from shoal.core.errors import StudyError
from shoal.core.trial import Seconds
from shoal.engine.ownership import own_folder, token_file
from shoal.engine.process import cpus_here

# Nothing is reported to anyone, and there is no notice about it either.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray._private import worker as ray_worker
from ray._private.authentication.authentication_token_setup import (
    AUTH_MODE_ENV_VAR,
    maybe_enable_token_auth_if_token_available,
)
from ray._private.services import canonicalize_bootstrap_address, find_gcs_addresses
from ray._private.utils import read_ray_address
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationTokenLoader,
    Config,
    GcsClient,
)
from ray.job_config import JobConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

GIB = 1024**3
LONGEST_FOLDER = 36  # characters: a socket's path may have 107, and Ray adds up to 70
# Ray takes 127.0.0.1 for the machine's outside address, and others of the loopback as they are.
LOOPBACK = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
# What tells Ray which token to show, beside AUTH_MODE_ENV_VAR.
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
SMALLEST_STORE = 256 * 2**20
# Seconds that Ray may take to shut down. It waits without an end for a process that is stopped,
# and 60 s after its head was killed Ray ends this process.
FAREWELL: Seconds = 20.0
FAREWELL_TO_LOST: Seconds = 5.0
ANSWER: Seconds = 15.0  # that the head of the cluster may take
LATE = "timed out during startup"  # is in Ray's error where its processes are not there in time
HEAD: Seconds = 20.0  # that it may take to say, the first time, which cluster it is of
# How gradients travel between slots.
Gradients = Literal["gloo", "nccl"]
# An object that nobody needs any more is freed at once, not in batches each second. The next state
# then gets its pages, which are mapped already. Measured for 100 MB: 25 ms to hop, against 200 ms
# through fresh pages.
TUNED = {"free_objects_period_milliseconds": 0}
_former: dict[str, str | None] = {}  # the environment before Shoal's own token was shown


class Unanswered(ConnectionError):  # noqa: N818
    """The head of the cluster does not answer."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the cluster, and how many slots fit it."""

    id: str
    host: str  # the name that it was given, else that of its machine
    room: int
    names: tuple[str, ...] = ()  # by which a catalogue of data may call it


@dataclass(frozen=True, slots=True)
class Share:
    """What one slot takes of a node."""

    cpus: float
    gpus: float


ONE_CPU = Share(1.0, 0.0)


# -- starting and ending ------------------------------------------------------------------------


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray's would end the process with exit code 15."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ray leaves it alone, too
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:  # one that was not set from Python cannot be set again
            signal.signal(signal.SIGTERM, before)


@_own_handler()
def join(
    address: str | None, slots: int | None, threads: int, store_gb: GiB, cpus: int | None = None
) -> tuple[bool, int | None]:
    """Join the cluster at the address, or the one this process is in already, or start one here.

    `cpus`: that one started here lends; None: those of this machine.

    One started here prints nothing. Its processes are at addresses of this machine, and refuse
    all who do not know its token.

    Returns whether it was started here, and then with how many slots.

    Raises:
        ConnectionError: no cluster is at the address, or this process cannot leave the one that
            it was in before.
        StudyError: one that is started here is not there in time.
    """
    if reaper.is_parting():
        raise ConnectionError(
            "this process cannot leave the Ray cluster that it was in before, which does not "
            "answer: run this again in a new process"
        )
    if ray.is_initialized():
        return False, slots
    try:
        return _joined(address, slots, threads, store_gb, cpus)
    except BaseException:
        _forget_token()
        raise


def _joined(
    address: str | None, slots: int | None, threads: int, store_gb: GiB, cpus: int | None
) -> tuple[bool, int | None]:
    """Join or start a cluster as of `join`, in a process that is in none."""
    quiet: dict[str, Any] = {"logging_level": logging.CRITICAL, "log_to_driver": False}
    quiet["job_config"] = _job_config()
    # The only way to silence Ray's notices about processes that died.
    ray_worker._worker_logs_enabled = False
    if address is not None:
        check_reached(address)
        try:
            if "://" not in address and address != "local":
                address = _meant_by(address)
                _check_head(address)
            ray.init(address=address, **quiet)
        except ConnectionError as error:
            raise _no_cluster(address, str(error)) from error
        return False, slots

    if cpus is None:
        cpus = cpus_here()
    _own_token()
    # Ray lets everybody write to the folder that it is given: so that is one inside.
    folder = str(_own_folder() / "r")
    with reaper.marking() as mark:
        try:
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=_store_size(store_gb),
                _node_ip_address=LOOPBACK,
                _temp_dir=folder,
                _system_config=TUNED,
                **quiet,
            )
        except Exception as error:
            if LATE not in str(error):
                raise
            raise StudyError(
                "Ray did not start on this machine within the 30 s that it takes at most, as where "
                "other programs use all CPUs or the memory: run this again, with fewer programs "
                "beside it, or on one slot without Ray (backend='local')"
            ) from error
    reaper.guard(mark)
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return True, slots or gpus or max(1, cpus // threads)


class _SearchPath(list[str]):
    """Where the cluster's processes import from, first: folders that this process imports from.

    Ray adds the current folder, which may be a stranger's study.
    """

    def extend(self, folders: Iterable[str]) -> None:
        own_folders = {os.path.abspath(place) for place in sys.path}
        super().extend(place for place in folders if place in own_folders)


def _job_config() -> JobConfig:
    config = JobConfig()
    config._py_driver_sys_path = _SearchPath()
    return config


def _meant_by(address: str) -> str:
    """host:port of a cluster, as Ray takes it: 127.0.0.1 for the machine's outside address.

    "auto" is the cluster of `RAY_ADDRESS`, or else the one that `ray start` started last on this
    machine. Ray would take any that runs here, also one that another run keeps for itself.

    Raises:
        ConnectionError: "auto" finds none, or several and no last one.
    """
    if address == "auto" and not os.environ.get("RAY_ADDRESS"):
        use_token()  # as Ray does here, but before the head is asked
        find_gcs_addresses.cache_clear()
        addresses = sorted(each for each in find_gcs_addresses() if not _is_private(each))
        last = read_ray_address()
        if last in addresses or not addresses:
            address = last or address
        elif len(addresses) == 1:
            address = addresses[0]
        if address == "auto":
            why = f"several run here: {', '.join(addresses)}" if addresses else "none runs here"
            raise ConnectionError(f"{why} that others may join")
    return canonicalize_bootstrap_address(address) or address


def _is_private(address: str) -> bool:
    """Whether the address is that of a cluster that a run started for itself."""
    return sys.platform == "linux" and address.startswith(f"{LOOPBACK}:")


def _check_head(address: str) -> None:
    """Have the head of a cluster answer at host:port.

    Ray would ask whoever takes connections there for eight minutes.

    Raises:
        ConnectionError: none does within `HEAD` seconds.
    """
    answer: SimpleQueue[Exception | None] = SimpleQueue()

    def ask() -> None:
        try:
            GcsClient(address=address)
        except Exception as error:  # noqa: BLE001 - whatever Ray makes of a stranger's answer
            answer.put(error)
        else:
            answer.put(None)

    threading.Thread(target=ask, name="shoal-head", daemon=True).start()
    try:
        error = answer.get(timeout=HEAD)
    except Empty:
        raise ConnectionError(f"{address} does not speak Ray in {HEAD:g} s") from None
    if error is not None:
        raise ConnectionError(str(error)) from error


def _no_cluster(address: str, why: str) -> ConnectionError:
    """The error of an address that cannot be joined."""
    why = why.partition("\n")[0]
    remedy = "give the address that `ray start --head` printed where the cluster was started"
    if "AuthToken" in why:
        why, remedy = (
            "the cluster asks for a token that this process does not show",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the cluster's token",
        )
    return ConnectionError(f"no Ray cluster answers at {address} ({why}): {remedy}")


def asks_for_token() -> bool:
    """Whether the cluster that this process joined wants the user's token of others, too."""
    return os.environ.get(AUTH_MODE_ENV_VAR, "").lower() == "token"


def token_shown() -> str | None:
    """The file with the token that this process shows, if Shoal made it."""
    return os.environ.get(TOKEN_PATH) if TOKEN_PATH in _former else None


def use_token(file: str | None = None) -> None:
    """Show a token to clusters that this process joins or starts, until it leaves.

    A cluster that asks for none does not work with processes that show one.

    `file`: that holds it; None: the user's, if there is one.
    """
    if file is not None:
        for name, value in ((AUTH_MODE_ENV_VAR, "token"), (TOKEN_PATH, file)):
            _former.setdefault(name, os.environ.get(name))
            os.environ[name] = value
        _read_token_again()
        return
    _former.setdefault(AUTH_MODE_ENV_VAR, os.environ.get(AUTH_MODE_ENV_VAR))
    notices = logging.getLogger(maybe_enable_token_auth_if_token_available.__module__)
    level = notices.level
    notices.setLevel(logging.ERROR)  # it tells of the token, which is the pool's choice
    try:
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    finally:
        notices.setLevel(level)


def _own_token() -> None:
    """Have the cluster that is about to start refuse all who do not know a token of this user's.

    A token that the environment names is left as it is, and so is the wish for none. Where it asks
    for some token, as Ray itself does from a process's first cluster on, Ray would make one that
    all can read; and of processes that make it at the same time the last would have its way.
    """
    asks = os.environ.get(AUTH_MODE_ENV_VAR, "token").lower() == "token"
    if asks and not any(name in os.environ for name in (TOKEN, TOKEN_PATH)):
        use_token(str(token_file(_own_folder() / "token")))


def _forget_token() -> None:
    """Show the token that was shown before, if any."""
    for name, value in _former.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if _former:
        _former.clear()
        _read_token_again()


def _read_token_again() -> None:
    """Have Ray read the environment again, which it does only once by itself."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _own_folder() -> Path:
    """A folder for this user's clusters alone, where names of sockets are not too long.

    Ray's own choice can be read and written by everybody.

    Raises:
        PermissionError: the folder that is there already is not this user's alone.
    """
    name = f"shoal-ray-{getpass.getuser()}"
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / name
    if len(str(folder)) > LONGEST_FOLDER:
        folder = Path("/tmp") / name
    own_folder(folder)
    return folder


def _store_size(wanted: GiB) -> int:
    """Bytes for the object store.

    Not more than a third of the memory, nor than what is left of its file system.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = memory
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
    size = min(int(wanted * GIB), memory // 3, int(free * 0.9))
    return max(SMALLEST_STORE, size)


def leave(started_here: bool, joined: bool, lost: bool = False) -> None:
    """End the cluster that was started here, or leave the one that was `joined` here.

    `lost`: some of Ray's processes do not answer. Then this process leaves in any case.
    """
    if started_here and lost:
        reaper.dismiss()  # Ray waits for them, unless they are gone
    try:
        if joined and started_here:
            reaper.close(ray.shutdown, FAREWELL)
        elif joined or lost:
            reaper.part(ray.shutdown, FAREWELL_TO_LOST if lost else FAREWELL)
    finally:
        if joined:
            _forget_token()
    if lost and sys.excepthook is ray_worker.custom_excepthook:
        # Ray's own tells the head of errors that nobody caught, and waits for its answer.
        sys.excepthook = ray_worker.normal_excepthook
    if started_here:
        reaper.dismiss()


def lends() -> bool:
    """Whether any node of the cluster lends a CPU or a GPU. Raises as `all_nodes`."""
    alive(ANSWER)
    return bool({"CPU", "GPU"} & ray.cluster_resources().keys())


# -- what there is ------------------------------------------------------------------------------


def here() -> str:
    """The id of this process's node."""
    return str(ray.get_runtime_context().get_node_id())


def share_of(cpus: float | None, gpus: float | None, threads: int, slots: int | None) -> Share:
    """What a slot takes, where the user does not say.

    That is a GPU if the cluster has any, and a CPU for each thread.

    `slots`: how many there are to be in a cluster of our own. There more slots than fit may share
    its CPUs and GPUs.
    """
    if gpus is None:
        gpus = _gpu_share(slots)
    if slots is not None:
        cpus = 0.0
    elif cpus is None:
        cpus = float(threads)
    return Share(cpus, gpus)


def _gpu_share(slots: int | None) -> float:
    """The GPUs of a slot: one if the cluster has any, or 1 / n so that all `slots` fit."""
    gpus = int(ray.cluster_resources().get("GPU", 0.0))
    if gpus < 1:
        return 0.0
    if slots is None:
        return 1.0
    slots_each = -(-slots // gpus)  # rounded up
    return 1.0 / slots_each


def gcs() -> str:
    """The address at which other processes join this cluster."""
    return str(ray.get_runtime_context().gcs_address)


def address() -> str:
    """The address at which other nodes reach this process's node."""
    node_id = here()
    for node in all_nodes():
        if node["NodeID"] == node_id:
            return str(node["NodeManagerAddress"])
    raise LookupError(f"node {node_id} is not in the cluster")


def all_nodes() -> list[dict[str, Any]]:
    """What Ray knows of the cluster's nodes, those that are gone included.

    Raises:
        Unanswered: by the head. Ray alone would wait for it without an end.
    """
    alive(ANSWER)
    return list(ray.nodes())


def nodes(share: Share) -> dict[str, Node]:
    """The live nodes, and how many slots of this size each has room for."""
    return {node.id: node for node in live_nodes(share)}


def live_nodes(share: Share = Share(0.0, 0.0)) -> list[Node]:
    """The live nodes. `share`: what a slot takes, of which there is room for some."""
    live: list[Node] = []
    for node in all_nodes():
        if node["Alive"]:
            name, machine, address = (
                node[key] for key in ("NodeID", "NodeManagerHostname", "NodeManagerAddress")
            )
            label = node.get("NodeName") or address
            host = machine
            if label != address:
                host = label
            names = tuple(dict.fromkeys((host, machine, address, name)))
            live.append(Node(name, host, _room(node["Resources"], share), names))
    return live


def seconds_left(name: str) -> Seconds:
    """Seconds until the node with this id leaves, as its labels say; infinity: they do not."""
    for node in all_nodes():
        if node["NodeID"] == name:
            return _until(node.get("Labels") or {}) - time.time()
    return inf


def _until(labels: Mapping[str, str]) -> float:
    """When a node with these labels will leave; infinity where they do not say so."""
    try:
        until = float(labels.get(UNTIL, inf))
    except ValueError:  # somebody else's label
        return inf
    return inf if isnan(until) else until


def alive(patience: Seconds) -> frozenset[str]:
    """The ids of the live nodes, as the head of the cluster says within so many seconds.

    Raises:
        Unanswered: by the head.
    """
    client = ray_worker.global_worker.gcs_client
    try:
        infos = client.get_all_node_info(timeout=patience)
    except Exception as error:
        raise Unanswered(f"{type(error).__name__}: {error}") from error
    return frozenset(node.hex() for node, info in infos.items() if info.state == 0)


def raylet_socket() -> str:
    """The path at which the raylet of this process's node is reached."""
    return str(ray_worker.global_worker.node.raylet_socket_name)


def node_here() -> Node:
    """The node of this process."""
    node_id = here()
    for node in live_nodes():
        if node.id == node_id:
            return node
    raise LookupError(f"node {node_id} is not in the cluster")


def only_at(node: str) -> NodeAffinitySchedulingStrategy:
    """Ray's scheduling strategy for what runs at this node or not at all. `node`: its id."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def _room(resources: Mapping[str, float], share: Share) -> int:
    """How many slots of this size fit a node that has these resources."""
    rooms: list[float] = []
    if share.cpus > 0:
        rooms.append(resources.get("CPU", 0.0) // share.cpus)
    if share.gpus > 0:
        rooms.append(resources.get("GPU", 0.0) // share.gpus)
    return int(min(rooms, default=1))
