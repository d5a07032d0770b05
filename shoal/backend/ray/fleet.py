"""How nodes of the cluster came to their end."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayTaskError

from shoal.backend.cluster_start import MOST_EACH
from shoal.backend.node.feed import Windows
from shoal.backend.node.messages import Broken, FeederSetup, Hello, SlotSetup
from shoal.backend.node.slot_actor import GROUPS, SlotActor
from shoal.backend.node.validator import ValidatorsElsewhere, elsewhere_of
from shoal.backend.ray.cluster import (
    Node,
    Share,
    all_nodes,
    here,
    lends,
    nodes,
    only_at,
    seconds_left,
)
from shoal.backend.ray.shard_register import NodeShards, ShardRegister
from shoal.backend.ray.slots import Events, FleetSize, SlotProcess, balance, staying
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Fed, Left, Unread
from shoal.core.trial import Seconds, TrialId
from shoal.engine.process import cpus_here
from shoal.train.data.catalogue import LOCAL
from shoal.train.data.data import Data
from shoal.train.recipe.unit import Reached

# Reasons of a node's end in Ray's numbers: it was told to end, or drained.
IN_ORDER = (1, 3, 4)


def taken_back(node: str) -> bool:
    """Whether the node left in good order, as where a batch system takes it back. `node`: its id.

    That is no trial's doing. One that crashed or hangs did not; what ran there may have done it.
    """
    return any(
        each["NodeID"] == node and not each["Alive"] and each["DeathReason"] in IN_ORDER
        for each in all_nodes()
    )


POLL = 1.0  # seconds between two looks at a cluster's nodes
NO_ROOM = (
    "no node of the Ray cluster (that holds shards) has room for a slot: lower "
    "cpus_per_slot or gpus_per_slot, or add nodes"
)
TRIES = 3  # times that a slot's process may die while it starts

Then = Callable[[Any], Events]  # what to do about a future that is done
Post = Callable[[Callable[[], Events]], None]  # have it done at the next moment


class Fleet:
    """All slots of a backend.

    Ray's futures are done in threads of its own. What follows from them is posted, so that it
    happens in the backend's thread, at its next moment, and comes back as events.

    `data`: what the slots read. `now`: the time of the study. `on_loss`: what else follows when a
    slot died or left, asked before its shards are registered elsewhere. `on_news`: what follows
    when a slot says how far the units of a round are.
    """

    def __init__(
        self,
        setup: SlotSetup,
        data: Data,
        shards: ShardRegister | NodeShards,
        share: Share,
        post: Post,
        now: Callable[[], Seconds],
        on_loss: Callable[[SlotProcess], Events],
        on_news: Callable[[SlotProcess, int, Mapping[TrialId, Reached]], Events],
    ) -> None:
        self._setup = ray.put(setup)
        self._windows = Windows(FeederSetup.of(setup), self.follow)
        # By node, whom its slots ask to validate. None: nobody, for all parts lie there.
        self._validators: dict[str, ValidatorsElsewhere | None] = {}
        self._elsewhere_of = partial(elsewhere_of, setup)
        self._data = data
        # What the feeders did, all in all, if it is not what was told before.
        self.fed: Callable[[], list[Fed]] = self._windows.fed
        self.shards = shards
        self._share = share
        self.post = post
        self.now = now
        self._on_loss = on_loss
        self._on_news = on_news
        self._numbers = count()
        self._nodes: dict[str, Node] = {}
        self.room = 0  # slots that fit the nodes, as they were seen last
        self._limit: int | None = None
        self._own = False
        self._assembled = False
        # When to look for new nodes, by the monotonic clock.
        self.look_at: float | None = None
        self.processes: dict[SlotId, SlotProcess] = {}

    @property
    def ready(self) -> list[SlotProcess]:
        """The processes that can train."""
        return [each for each in self.processes.values() if each.slot is not None]

    @property
    def opening(self) -> bool:
        """Whether a process is still starting."""
        return any(process.slot is None for process in self.processes.values())

    def size(self) -> FleetSize:
        """How many slots there are to be, and how many fit; safe to call from other threads."""
        return FleetSize(len(staying([*self.processes.values()])), self.room)

    @property
    def coming(self) -> bool:
        """Whether a slot may join unasked: one starts, or the cluster may get new nodes."""
        return self.opening or self.look_at is not None

    def at(self, node: str) -> bool:
        """Whether there are slots at the node."""
        return any(process.node == node for process in self.processes.values())

    def is_current(self, process: SlotProcess) -> bool:
        """Whether the process was not replaced, and its slot has not left."""
        return self.processes.get(process.id) is process

    def follow(self, ref: Any, then: Then) -> None:
        """When the reference's value is there, or will never be: post `then` of its future."""
        ref.future().add_done_callback(lambda future: self.post(partial(then, future)))

    # -- coming --------------------------------------------------------------------------------

    def man(self, limit: int | None, own: bool, elastic: bool) -> None:
        """Start the slots.

        `limit`: the most; all of them here in a cluster of our `own`. `elastic`: nodes come and go.

        Raises:
            ValueError: no node has room for one.
        """
        self._limit = limit
        self._own = own
        if own:
            self.room = _own_room(self._share)
            self.add(limit or 1)
        else:
            self.look()

        self.look_at = monotonic() + POLL if elastic else None
        if not self.processes and (lends() or not elastic):
            raise ValueError(NO_ROOM)

    def look(self) -> None:
        """See which nodes are there, and start slots on new ones."""
        self.look_at = monotonic() + POLL
        known = self._nodes
        seen = _suited(self.shards, self._share)
        self.room = sum(node.room for node in seen.values())
        served = known.keys() | {each.node for each in self.processes.values()}
        self._fill([node for name, node in seen.items() if name not in served])
        # Nodes without slots are looked at again: they may be of use later.
        self._nodes = {name: node for name, node in seen.items() if name in known or self.at(name)}

    def _fill(self, fresh: Sequence[Node]) -> None:
        """Start slots on these nodes, in turn, until they or the limit are full.

        Those who validate for them on what does not lie at their nodes start beside them.
        """
        most = max((node.room for node in fresh), default=0)
        for turn in range(most):
            for node in fresh:
                full = self._limit is not None and len(self.processes) >= self._limit
                if turn < node.room and not full:
                    self.start(node.id)
        for node in fresh:
            if self.at(node.id):
                here = self._data.at((*node.names, LOCAL))
                self._validators[node.id] = self._elsewhere_of(here)

    def add(self, n: int) -> Events:
        """Start so many slots, or as many as there is room for."""
        if self._own:
            places = [here()] * n
        else:
            suited = _suited(self.shards, self._share).values()
            places = _room(suited, self.processes.values())[:n]
        for node in places:
            self.start(node)
        return []

    def aim(self, n: int) -> list[SlotId]:
        """Start slots until there are so many; returns those that have to leave instead."""
        missing, gone, leaving = balance(self.processes.values(), n)
        self.add(missing)
        self._limit = n + leaving + len(gone)  # each slot that parts lowers it again
        return gone

    def start(self, node: str, slot: SlotId | None = None, tries: int = 1) -> SlotId:
        """Start a process there, of a new slot or of one that lost its own."""
        name = slot or SlotId(f"slot{next(self._numbers)}")
        self._windows.open(node)
        actor = _actor(node, self._share).remote(self._setup)
        until = self.now() + seconds_left(node)
        process = SlotProcess(name, node, actor, tries, until)
        self.processes[name] = process
        self.follow(process.call("watch", "watch"), partial(self._ended, process))
        self.follow(process.call("train", "open"), partial(self._opened, process))
        return name

    def _opened(self, process: SlotProcess, future: Any) -> Events:
        """The slot is ready, or cannot be."""
        if not self.is_current(process):
            return []

        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self.died(process, error)

        hello: Hello | Broken = future.result()
        if isinstance(hello, Broken):
            raise hello.error

        process.opened(hello)
        self._listen(process)
        if self._assembled:
            joined = self.shards.again(self.ready, [process])
            return [*joined, *_damaged(process, hello)]
        return []

    def assembled(self) -> tuple[Slot, ...]:
        """The slots that are ready at the start; from now on others join as they come."""
        self._assembled = True
        return self.shards.first(self.ready)

    def _listen(self, process: SlotProcess) -> None:
        """Ask the slot how far its units are."""
        self.follow(process.call("news", "news"), partial(self._told, process))

    def _told(self, process: SlotProcess, future: Any) -> Events:
        """How far the slot's units are."""
        if not self.is_current(process) or future.exception() is not None:
            return []
        self._listen(process)
        process.signs.reach(future.result(), monotonic())
        return self._on_news(process, *future.result())

    # -- going ---------------------------------------------------------------------------------

    def _ended(self, process: SlotProcess, future: Any) -> Events:
        """The slot left in good order, or its process is gone."""
        error = future.exception()
        if error is None:
            return []
        return self.died(process, error)

    def died(self, process: SlotProcess, error: BaseException) -> Events:
        """The process is gone; where its node is still there, another one takes its place.

        Raises:
            OSError: it died while it started, time and again.
        """
        if not self.is_current(process):
            return []
        del self.processes[process.id]
        if process.leaving and not process.ends and self._limit is not None:
            self._limit -= 1
        with suppress(Exception):
            # It may only be out of reach, and holds what the next one needs.
            ray.kill(process.actor)

        there = not _never_ran(error) and process.node in nodes(self._share)
        if not there:
            # should it be there after all, it is new
            self._nodes.pop(process.node, None)
        died = there or not taken_back(process.node)
        events = self._without(process, died, why=_why(error))
        tries = process.tries + 1 if process.slot is None else 1
        if tries > TRIES:
            _go_on_without(process, error, self.ready)
        elif there and not process.leaving:
            self.start(process.node, process.id, tries)
        return events

    def part(self, process: SlotProcess) -> Events:
        """Let go of a slot that has nothing left to do."""
        del self.processes[process.id]
        if not process.ends and self._limit is not None:
            self._limit -= 1
        process.call("control", "leave", False)
        ray.kill(process.actor)
        return self._without(process, died=False)

    def _without(self, process: SlotProcess, died: bool, why: str = "") -> Events:
        """What follows when the slot is gone: nothing, if it was never ready."""
        if process.slot is None:
            return []
        events: Events = [Left(frozenset((process.id,)), died, why)]
        events += self._on_loss(process)
        return events + self.shards.again(self.ready, ())

    def close(self) -> None:
        """End all processes, and clear the nodes of their copies of the data."""
        one_each = {process.node: process for process in self.ready}
        processes = list(self.processes.values())
        self.processes = {}
        refs = [process.call("control", "leave", True) for process in one_each.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=2.0)
        for process in processes:
            ray.kill(process.actor)

        for validators in filter(None, self._validators.values()):
            validators.close()
        self._windows.close()


def _go_on_without(
    process: SlotProcess, error: BaseException, others: Sequence[SlotProcess]
) -> None:
    """Processes of this slot die while they start.

    Raises:
        OSError: there are no others to go on with.
    """
    why = f"{process.id} died {TRIES} times while it started at {process.node}"
    if not others:
        raise OSError(f"{why}: {error}")
    warnings.warn(f"{why}: going on without it", stacklevel=2)


def _never_ran(error: BaseException) -> bool:
    """Whether there was no process: its node is gone, though Ray may not have noticed yet."""
    return isinstance(error, ActorUnschedulableError) or "never ran" in str(error)


def _why(error: BaseException) -> str:
    """What the journal says of a slot's end, beside that it died."""
    if isinstance(error, TimeoutError):
        return str(error)
    return ""


def _suited(shards: ShardRegister | NodeShards, share: Share) -> dict[str, Node]:
    """The live nodes at which slots are of use."""
    found = nodes(share)
    return {name: node for name, node in found.items() if shards.suits(node.names)}


def _own_room(share: Share) -> int:
    """The slots that fit a cluster started here, whose slots share its CPUs."""
    if share.gpus:
        return sum(node.room for node in nodes(share).values())
    return max(1, MOST_EACH * cpus_here())


def _room(suited: Iterable[Node], processes: Iterable[SlotProcess]) -> list[str]:
    """The nodes that have room for more slots, once for each."""
    used = Counter(process.node for process in processes)
    places: list[str] = []
    for node in suited:
        places += [node.id] * (node.room - used[node.id])
    return places


def _damaged(process: SlotProcess, hello: Hello) -> Events:
    """The shards that should lie at the slot's node, and cannot be read there."""
    about = hello.damaged.items()
    return [Unread(process.id, shard, why) for shard, why in about]


def _actor(node: str, share: Share) -> Any:
    """What makes a slot's process at the node."""
    return ray.remote(concurrency_groups=GROUPS)(SlotActor).options(
        num_cpus=share.cpus,
        num_gpus=share.gpus,
        scheduling_strategy=only_at(node),
    )
