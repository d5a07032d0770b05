"""What the driver asks of a cluster: of its nodes, and of the slots' processes there.

`Fleet` is all that the slots, gangs and states of a run know of Ray. `RayFleet` is a Ray cluster.
The tests have one without processes, whose events come in any order.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayTaskError

from shoal.backend.cluster_start import MOST_EACH
from shoal.backend.node import data_copy
from shoal.backend.node.feed import Windows
from shoal.backend.node.messages import FeederSetup
from shoal.backend.node.process import end
from shoal.backend.node.slot_actor import GROUPS, SlotActor
from shoal.backend.node.validator import ValidatorsElsewhere, elsewhere_of
from shoal.backend.ray import cluster, reaper
from shoal.backend.ray.cluster import SMALLEST_STORE, Node, Unanswered, all_nodes, only_at
from shoal.backend.ray.cluster_pulse import ClusterPulse
from shoal.backend.ray.setup import RaySetup
from shoal.backend.ray.slot_process import Events, SlotProcess
from shoal.core.event import Fed
from shoal.core.trial import Seconds
from shoal.engine.process import cpus_here
from shoal.train.data.catalogue import LOCAL
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe

# Reasons of a node's end in Ray's numbers: it was told to end, or drained.
IN_ORDER = (1, 3, 4)

Happening = Callable[[], Events]  # works off what happened; returns its events
Then = Callable[[Any], Events]  # what to do about a future that is done


class Actor(Protocol):
    """A slot's process, to be called."""

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        """A reference to the result of a method of `SlotActor`, or to each of several results.

        `group`: the threads that run the method. Those of a group run in the order of the calls.
        """
        ...


class Fleet(Protocol):
    """A cluster of nodes on which slots' processes run.

    What happens there becomes events in the driver's thread, at its next moment: `put` from any
    thread, `follow` for what a call answers, and `gather` to have them.
    """

    started_here: bool  # the cluster, by this process
    limit: int | None  # the most slots that are to be; None: as many as fit
    here: str  # this machine's node
    gpus: float  # that a slot has
    store_room: int  # bytes of the object store that states at rest may take
    joined: bool  # this process was in no cluster before

    # -- nodes -----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, Node]:
        """The nodes that are there."""
        ...

    def lends(self) -> bool:
        """Whether any node lends a CPU or a GPU."""
        ...

    def own_room(self) -> int:
        """The slots that fit a cluster started here, whose slots share its CPUs."""
        ...

    def seconds_left(self, node: str) -> Seconds:
        """Seconds until the node leaves; infinity if that is not known."""
        ...

    def taken_back(self, node: str) -> bool:
        """Whether the node left in good order, as where a batch system takes it back.

        That is no trial's doing. One that crashed or hangs did not; what ran there may have done
        it.
        """
        ...

    # -- processes -------------------------------------------------------------------------------

    def start(self, node: str) -> Actor:
        """Start a slot's process at the node."""
        ...

    def serve(self, nodes: Iterable[Node]) -> None:
        """Start what serves the slots that were started at these nodes."""
        ...

    def offer_data(self) -> None:
        """Have the data of this process serve the slots of this machine."""
        ...

    def kill(self, actor: Any) -> None:
        """End the process, also one that is out of reach and may be asked again."""
        ...

    def end(self, node: str, pid: int, born: str) -> None:
        """End a process that hangs, and may not hear `kill`."""
        ...

    def follow(self, ref: Any, then: Then, at_once: Callable[[Any], None] | None = None) -> None:
        """Put `then` of the reference's future, once its value is there or will never be.

        `at_once`: called with it before, in whatever thread that is.
        """
        ...

    def answer(self, process: SlotProcess, ref: Any, patience: Seconds) -> Any:
        """Wait for what the call returns, or raises. It may take as long as it likes.

        `patience`: seconds in which the process must answer another call meanwhile.

        Raises:
            GetTimeoutError: it did not.
        """
        ...

    # -- events ----------------------------------------------------------------------------------

    def put(self, happening: Happening) -> None:
        """Have it worked off by the next `gather`; any thread may call this."""
        ...

    def gather(self, wait: Seconds) -> Events:
        """Work off what happened, after at most `wait` seconds if nothing has yet.

        Raises:
            ConnectionError: the cluster is lost.
        """
        ...

    def answers(self) -> bool:
        """Whether the cluster answers at once: then questions about its nodes do not block."""
        ...

    def explained(self, error: Unanswered) -> ConnectionError:
        """What the user is told where the run had to know something of the cluster."""
        ...

    def fed(self) -> list[Fed]:
        """What the feeders did, all in all, if it is not what was reported before."""
        ...

    def close(self, actors: Sequence[Actor], one_each: Sequence[Actor]) -> None:
        """End these processes and what serves them, and leave the cluster.

        `one_each`: those that clear their nodes of the copies of the data.
        """
        ...

    def leave(self) -> None:
        """Leave the cluster, or end it if it was started here."""
        ...


class EventQueue:
    """A queue of happenings. `put` works from any thread, `gather` from one."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening] = SimpleQueue()
        self._failure: Exception | None = None

    def put(self, happening: Happening) -> None:
        """Have it worked off by the next `gather`."""
        self._queue.put(happening)

    def gather(self, wait: Seconds) -> Events:
        """Work off what is there, and return the events of all of it.

        `wait`: seconds to wait for something if there is nothing.

        Raises:
            Exception: whatever a happening raised, but only after the events of those before it
                were returned.
        """
        if self._failure is not None:
            raise self._failure

        events: Events = []
        try:
            happening = self._queue.get(timeout=wait)
            while True:
                events += happening()
                happening = self._queue.get_nowait()
        except Empty:
            return events
        except Exception as failure:
            if not events:
                raise
            self._failure = failure

        return events


# -- Ray -------------------------------------------------------------------------------------------


class RayActor:
    """A slot's process as an actor of Ray."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        """See `Actor`."""
        remote = getattr(self.handle, method)
        remote = remote.options(concurrency_group=group, num_returns=results)
        return remote.remote(*arguments)


def await_node(say: Callable[[str], None]) -> None:
    """Wait until some node of the cluster lends a CPU or a GPU: nodes may have to come first.

    Only then it is known whether slots are GPUs.
    """
    announced = False
    while not cluster.lends():
        if not announced:
            say("no node of the cluster lends CPUs or GPUs yet: waiting for one …")
            announced = True
        time.sleep(0.2)


class RayFleet:
    """A Ray cluster, which is joined or started here.

    Ray's futures are done in threads of its own. What follows from them is put into a queue, and
    happens in the thread that gathers.
    """

    def __init__(
        self, recipe: Recipe, data: Data, setup: RaySetup, seed: int, now: Callable[[], Seconds]
    ) -> None:
        options = setup.options
        self.joined = not ray.is_initialized()
        store = setup.store_gb(recipe, data)
        self.started_here, self.limit = cluster.join(
            options.address, options.slots, options.threads, store, setup.cpus
        )
        self._pulse = ClusterPulse(self.started_here)
        self._events = EventQueue()
        self.put = self._events.put
        try:
            await_node(partial(setup.tell, now()))
            self._open(recipe, data, setup, seed)
        except BaseException:
            self.leave()
            raise

    def _open(self, recipe: Recipe, data: Data, setup: RaySetup, seed: int) -> None:
        """Prepare what each slot gets: its share of a node, its setup, its window."""
        slots = self.limit if self.started_here else None
        self._share = cluster.share_of(
            setup.cpus_per_slot, setup.gpus_per_slot, setup.options.threads, slots
        )
        self.gpus = self._share.gpus
        self.here = cluster.here()
        slot = setup.slot(recipe, data, seed, self.gpus)
        self._recipe = recipe
        self._data = data
        self._setup = ray.put(slot)
        self._elsewhere_of = partial(elsewhere_of, slot)
        # By node, whom its slots ask to validate. None: nobody, for all parts lie there.
        self._validators: dict[str, ValidatorsElsewhere | None] = {}
        self._windows = Windows(FeederSetup.of(slot), self.follow)
        self.fed = self._windows.fed
        store = ray.cluster_resources().get("object_store_memory", SMALLEST_STORE)
        self.store_room = int(0.6 * store)  # lest others find no way through
        self._shelf = data_copy.place(slot.token, self.here, slot.cache)
        reaper.clear_up(self._shelf)

    # -- nodes -----------------------------------------------------------------------------------

    def nodes(self) -> dict[str, Node]:
        """See `Fleet`."""
        return cluster.nodes(self._share)

    def lends(self) -> bool:
        """See `Fleet`."""
        return cluster.lends()

    def own_room(self) -> int:
        """See `Fleet`."""
        if self._share.gpus:
            return sum(node.room for node in self.nodes().values())
        return max(1, MOST_EACH * cpus_here())

    def seconds_left(self, node: str) -> Seconds:
        """See `Fleet`."""
        return cluster.seconds_left(node)

    def taken_back(self, node: str) -> bool:
        """See `Fleet`."""
        return any(
            each["NodeID"] == node and not each["Alive"] and each["DeathReason"] in IN_ORDER
            for each in all_nodes()
        )

    # -- processes -------------------------------------------------------------------------------

    def start(self, node: str) -> RayActor:
        """See `Fleet`. The node's window is there before its first slot asks for it."""
        self._windows.open(node)
        actor = ray.remote(concurrency_groups=GROUPS)(SlotActor).options(
            num_cpus=self._share.cpus, num_gpus=self._share.gpus, scheduling_strategy=only_at(node)
        )
        return RayActor(actor.remote(self._setup))

    def serve(self, nodes: Iterable[Node]) -> None:
        """Start who validates for these nodes' slots on what does not lie at their nodes."""
        for node in nodes:
            placed = self._data.at((*node.names, LOCAL))
            self._validators[node.id] = self._elsewhere_of(placed)

    def offer_data(self) -> None:
        """See `Fleet`. Data that stays at its nodes is there."""
        if self._data.catalogue is None:
            data_copy.offer(self._data, self._shelf, self._recipe)

    def kill(self, actor: Any) -> None:
        """See `Fleet`."""
        ray.kill(actor.handle)

    def end(self, node: str, pid: int, born: str) -> None:
        """See `Fleet`. Ray itself only asks a process to end, which it may not hear.

        `born`: when it began; a process of that number that began at another time is left alone.
        """
        if node == self.here:
            end(pid, born)
            return
        task = ray.remote(num_cpus=0, max_retries=0)(end)
        task.options(scheduling_strategy=only_at(node)).remote(pid, born)

    def follow(self, ref: Any, then: Then, at_once: Callable[[Any], None] | None = None) -> None:
        """See `Fleet`."""
        future = ref.future()
        if at_once is not None:
            future.add_done_callback(at_once)
        future.add_done_callback(lambda future: self.put(partial(then, future)))

    def answer(self, process: SlotProcess, ref: Any, patience: Seconds) -> Any:
        """See `Fleet`."""
        timeout = None
        if patience < inf:
            timeout = patience
        while not ray.wait([ref], timeout=timeout)[0]:
            sign = process.actor.handle.__ray_ready__.remote()
            if not ray.wait([ref, sign], timeout=timeout)[0]:
                raise GetTimeoutError(f"{process.id} gave no answer for {patience:g} s")
        try:
            return ray.get(ref)
        except RayTaskError as error:
            raise error.cause from None

    # -- events ----------------------------------------------------------------------------------

    def gather(self, wait: Seconds) -> Events:
        """See `Fleet`."""
        self._pulse.check()
        return self._events.gather(wait)

    def answers(self) -> bool:
        """See `Fleet`."""
        return self._pulse.answers()

    def explained(self, error: Unanswered) -> ConnectionError:
        """See `Fleet`."""
        return self._pulse.explained(error)

    # -- the end ---------------------------------------------------------------------------------

    def close(self, actors: Sequence[Actor], one_each: Sequence[Actor]) -> None:
        """See `Fleet`."""
        if ray.is_initialized():
            refs = [actor.call("control", "leave", True) for actor in one_each]
            if refs:
                ray.wait(refs, num_returns=len(refs), timeout=2.0)
            for actor in actors:
                self.kill(actor)
            for validators in filter(None, self._validators.values()):
                validators.close()
            self._windows.close()
        self.leave()
        shutil.rmtree(self._shelf, ignore_errors=True)

    def leave(self) -> None:
        """See `Fleet`."""
        self._pulse.close()
        lost = ray.is_initialized() and self._pulse.lost()
        cluster.leave(self.started_here, self.joined, lost)
        # What this process joins later is not ours to leave.
        self.started_here = self.joined = False
