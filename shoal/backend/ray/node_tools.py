"""A tool's work is done at a node that holds shards, and other holders read the rest for it.

Checking, timing and replaying trials needs some shards after another, in one process. That is at
the node with most of them. Ray's object store carries the others' samples there, as much at a time
as is read at once.
"""

import io
import pickle
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Thread
from traceback import format_exc
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from shoal.backend.node.process import portable
from shoal.backend.ray import cluster
from shoal.backend.ray.cluster import Share
from shoal.backend.ray.node_survey import survey_nodes
from shoal.core.cluster import ShardId
from shoal.core.errors import warn
from shoal.core.trial import Seconds
from shoal.train.data.catalogue import LOCAL, Catalogue
from shoal.train.data.columns import Columns, DataError
from shoal.train.data.data import Data
from shoal.train.data.node_shards import PlacedFiles, Survey
from shoal.train.data.parts import Index
from shoal.train.recipe.pickling import dumps

BUSY: Seconds = 5.0  # until it is told that a node's CPUs or GPUs are awaited
Answer = tuple[Columns | None, str | None]  # samples, or why there are none


def ask_holder(
    catalogue: Catalogue,
    part: ShardId,
    lost: Collection[str],
    read: Callable[..., Answer],
    *arguments: Any,
) -> tuple[str, Any] | None:
    """Have a holder of the part call `read`: the node's id, and a reference to what it answers.

    None if no holder is in the cluster but those that are lost.
    """
    for node in cluster.live_nodes():
        if node.id not in lost and part in catalogue.at(node.names):
            task = ray.remote(num_cpus=0, max_retries=0)(read)
            at_node = task.options(scheduling_strategy=cluster.only_at(node.id))
            return node.id, at_node.remote(*arguments)
    return None


@dataclass
class ClusterHolders:
    """The holders in the cluster at this address. See `train.data.node_shards.Holders`."""

    address: str
    # The sources that were sent, by id, and a reference to each.
    _sent: dict[int, tuple[PlacedFiles, Any]] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return ClusterHolders, (self.address,)

    def read(self, source: PlacedFiles, part: ShardId, index: Index | None = None) -> Columns:
        """These samples of the part, from any holder; from another one if that is lost."""
        cluster.join(self.address, None, 1, 0.0)
        lost: dict[str, str] = {}  # why, by the node's id
        sent = self._reference(source)
        while True:
            reading = ask_holder(source.catalogue, part, lost, _read, sent, part, index)
            if reading is None:
                raise DataError(_of_none(source.catalogue, part, lost))
            node, reference = reading
            try:
                columns, why = ray.get(reference)
            except RayError as error:
                cause = error.cause if isinstance(error, RayTaskError) else error
                lost[node] = type(cause).__name__
                continue
            if why is not None:
                raise DataError(why)
            rows: Columns = columns
            return rows

    def _reference(self, source: PlacedFiles) -> Any:
        """A reference to the pickled source, which is sent once."""
        if id(source) not in self._sent:
            recipe = getattr(source.user_reader, "__self__", None)  # its reader's code goes along
            self._sent[id(source)] = source, ray.put(dumps((source.at(()), recipe)))
        return self._sent[id(source)][1]


def _of_none(catalogue: Catalogue, part: ShardId, lost: Mapping[str, str]) -> str:
    """Why no holder has read the part. `lost`: why not, by the id of the node that tried."""
    lies = f"{part} lies at {', '.join(catalogue.parts[part])}"
    ended = [f"{node.host} ({lost[node.id]})" for node in cluster.live_nodes() if node.id in lost]
    if not ended:
        return (
            f"{lies}, and none of these nodes is in the cluster: bring one back, then run this "
            "again"
        )
    return (
        f"{lies}, and the process at {', '.join(ended)} ended while it read {part}: either memory "
        "ran out there, or the recipe's read(path) ends its process; read this file by itself "
        "to see which"
    )


def _read(pickled: bytes, part: ShardId, index: Index | None) -> Answer:
    """Read at a holder: these samples of the part, or why they cannot be read."""
    source, _ = pickle.loads(pickled)
    here = source.at((*cluster.node_here().names, LOCAL))
    try:
        return (here.read(part) if index is None else here.rows(part, index)), None
    except DataError as error:
        return None, str(error)


@contextmanager
def reached(address: str) -> Iterator[Survey]:
    """The cluster's nodes, which look at the shards and read them for this process.

    Raises:
        ConnectionError: no cluster is at the address.
    """
    joined = not ray.is_initialized()
    cluster.join(address, None, 1, 0.0)
    try:
        yield Survey(
            surveyor=partial(survey_nodes, address=address, begun=True),
            names=(),
            holders=ClusterHolders(cluster.gcs()),  # as other nodes reach it, too
        )
    finally:
        if joined:
            cluster.leave(started_here=False, joined=True)


# -- a tool's work at a holder --------------------------------------------------------------------


def best_holder(
    catalogue: Catalogue, device: str, slots: int | None, threads: int
) -> tuple[cluster.Node, Share]:
    """The node that is to do a tool's work, and what it takes of it. Arguments as of `Perform`.

    That is the node that holds most; where a GPU is asked for, among those that have one.

    Raises:
        DataError: no holder is in the cluster.
    """
    cpus = cluster.nodes(Share(1.0, 0.0))
    gpus = cluster.nodes(Share(0.0, 1.0)) if device in ("auto", "cuda") else {}
    best: tuple[cluster.Node, Share] | None = None
    most = (False, 0)
    for node in sorted(cpus.values(), key=lambda node: node.host):
        node_gpus = gpus[node.id].room if node.id in gpus else 0
        worth = (node_gpus > 0, len(catalogue.at(node.names)))
        if worth[1] and worth > most:
            lanes = slots or node_gpus or node.room
            share = Share(min(node.room, lanes * threads), min(node_gpus, lanes))
            best, most = (node, share), worth
    if best is None:
        raise DataError(
            f"none of the nodes that hold shards ({', '.join(catalogue.nodes)}) is in the "
            "cluster: bring one back, then run this again"
        )
    return best


def work_at(
    node: cluster.Node,
    room: Share,
    work: Callable[..., Any],
    data: Data,
    arguments: Sequence[Any],
    recipe: Any,
    tell: Callable[[str], None],
) -> Any:
    """What `work(data, *arguments)` returns, which a process at this node calls.

    What it prints and warns of comes here as it goes; it ends with this process, or when this is
    interrupted. `recipe`: whose code it needs. `tell`: is told where it works.

    Raises:
        DataError: the node cannot load the work.
        ConnectionError: the process ended.
        Exception: what the work raises.
    """
    task = ray.remote(
        num_cpus=room.cpus, num_gpus=room.gpus, max_retries=0, num_returns="streaming"
    )(_work)
    at_node = task.options(scheduling_strategy=cluster.only_at(node.id))
    answers = at_node.remote(dumps((work, data, arguments, recipe)))
    done = False
    try:
        if not ray.wait([answers], timeout=BUSY)[0]:
            tell(
                f"Waiting at {node.host} for a process with {room.cpus:g} CPUs and "
                f"{room.gpus:g} GPUs, which others may have taken …"
            )
        for answer in answers:
            kind, content = ray.get(answer)
            done = kind in ("returned", "raised")
            if kind == "begun":
                tell(f"Working at {node.host} …")
            elif kind == "warned":
                warn(content)
            elif kind == "raised":
                raise content
            elif kind == "returned":
                return content
            else:
                getattr(sys, kind).write(content)
    except RayTaskError as error:
        why = f"{type(error.cause).__name__}: {error.cause}"
        raise DataError(
            f"{node.host} cannot do this: {why}; the recipe must load there, with the libraries "
            "that it imports"
        ) from error
    except RayError as error:
        raise ConnectionError(
            f"the process at {node.host} that did this ended ({type(error).__name__}): the node "
            "left the cluster, memory ran out there, or the recipe's code ends its process; run "
            "this again, and if it happens again, see Ray's logs at that node"
        ) from error
    finally:
        if not done:
            with suppress(Exception):
                ray.cancel(answers, force=True)
    raise ConnectionError(f"{node.host} has not said what came of this: run it again")


def _work(pickled: bytes) -> Iterator[tuple[str, Any]]:
    """Do a tool's work at the node: yields what is printed meanwhile, then what came of it."""
    work, data, arguments, _ = pickle.loads(pickled)
    data = data.at((*cluster.node_here().names, LOCAL), alone=False)
    news: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    news.put(("begun", None))
    Thread(target=_relayed, args=(news, partial(work, data, *arguments))).start()
    kind = ""
    while kind not in ("returned", "raised"):
        kind, content = news.get()
        yield kind, content


def _relayed(news: SimpleQueue[tuple[str, Any]], work: Callable[[], Any]) -> None:
    """Do the work. What it prints, warns of, and returns or raises goes to `news`."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        news.put(("warned", str(message)))

    with (
        redirect_stdout(_RelayedText("stdout", news)),
        redirect_stderr(_RelayedText("stderr", news)),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = show
        try:
            outcome = "returned", work()
        except BaseException as error:  # noqa: BLE001 - whoever asked for the work gets it
            error.add_note(f"At its node:\n{format_exc()}")
            outcome = "raised", portable(error)
    news.put(outcome)


class _RelayedText(io.TextIOBase):
    """A text file whose text is news of this kind."""

    def __init__(self, kind: str, news: SimpleQueue[tuple[str, Any]]) -> None:
        self._kind = kind
        self._news = news

    def writable(self) -> bool:
        """Always: `print` asks."""
        return True

    def write(self, text: str) -> int:
        """Tell the text."""
        self._news.put((self._kind, text))
        return len(text)
