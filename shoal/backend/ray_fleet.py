"""The slots' processes: started, followed, replaced when they die, and the shards registered with them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.backend import ray_feeder
from shoal.backend.course import Run
from shoal.backend.ray_cluster import Node, Share, here, mend, nodes, spread
from shoal.backend.ray_slot import GROUPS, Broken, Hello, Host, Setup
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event, Fed, Joined, Left
from shoal.core.trial import Samples, TrialId
from shoal.train.unit import Unit

POLL = 3.0  # seconds between two looks at a cluster's nodes
TRIES = 3  # times that a slot's process may die while it starts
Then = Callable[[Any], list[Event]]  # what to do about a future that is done
Post = Callable[[Callable[[], list[Event]]], None]


@dataclass(eq=False, slots=True)
class Call:
    """A round given to a slot, a unit of each lane of its gang, and not yet reported."""

    number: int
    units: Mapping[TrialId, Unit]
    origins: Mapping[TrialId, SlotId]  # the slot that made the state that a unit goes on from, where it lies in the object store
    states: Mapping[TrialId, Any] = field(default_factory=dict)  # references to the states that it returns
    void: bool = False  # whatever comes of it does not count
    dropped: set[TrialId] = field(default_factory=set)  # whose units came after one that failed: they come to nothing


@dataclass(eq=False, slots=True)
class Berth:
    """A slot's process. What replaces it after its death is another one, of the same slot."""

    id: SlotId
    node: str
    actor: Any
    tries: int = 1
    slot: Slot | None = None  # once it is ready
    pid: int = 0
    meeting: str = ""  # where processes of wide lanes meet
    run: Run | None = None  # the gang at work here alone
    calls: list[Call] = field(default_factory=list)  # of it
    shares: list[Call] = field(default_factory=list)  # units that it makes together with other slots
    stopping: bool = False  # the gang, after the round under way
    leaving: bool = False  # the slot, after the round under way

    @property
    def at_work(self) -> bool:
        return bool(self.calls or self.shares)

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        """A reference to the method's result, or to each of them. `group`: the threads that run it."""
        return getattr(self.actor, method).options(concurrency_group=group, num_returns=results).remote(*arguments)


class Fleet:
    """All slots of a backend. What happens to them is posted, and comes back as events.

    `on_loss`: what else follows when a slot died or left, asked before its shards are registered elsewhere.
    `on_news`: what follows when a slot says how far the units of a round are.
    """

    def __init__(
        self,
        setup: Setup,
        shards: tuple[ShardId, ...],
        share: Share,
        copies: int,
        post: Post,
        on_loss: Callable[[Berth], list[Event]],
        on_news: Callable[[Berth, int, Mapping[TrialId, Samples]], list[Event]],
    ) -> None:
        self._setup, self._given = ray.put(setup), setup
        self._windows: dict[str, Any] = {}  # of prepared chunks, by node
        self._fed: list[Fed] = []  # as told last
        self._totals = ray_feeder.Totals()
        self._shards, self._share, self._copies = shards, share, copies
        self._post, self._on_loss, self._on_news = post, on_loss, on_news
        self._numbers = count()
        self._nodes: dict[str, Node] = {}
        self._limit: int | None = None
        self._own = self._assembled = False
        self.look_at: float | None = None  # when to look for new nodes, by the monotonic clock
        self.berths: dict[SlotId, Berth] = {}

    @property
    def ready(self) -> list[Berth]:
        return [berth for berth in self.berths.values() if berth.slot is not None]

    @property
    def opening(self) -> bool:
        return any(berth.slot is None for berth in self.berths.values())

    @property
    def coming(self) -> bool:
        """Whether a slot may join without being asked to: it starts, or the cluster may get new nodes."""
        return self.opening or self.look_at is not None

    def at(self, node: str) -> bool:
        """Whether there are slots at the node."""
        return any(berth.node == node for berth in self.berths.values())

    def follow(self, ref: Any, then: Then) -> None:
        """When the reference's value is there, or will never be: post `then` of its future."""
        ref.future().add_done_callback(lambda future: self._post(partial(then, future)))

    # -- coming --------------------------------------------------------------------------------------------------------

    def man(self, limit: int | None, own: bool, elastic: bool) -> None:
        """Start the slots. `limit`: the most; all of them here in a cluster of our `own`. `elastic`: nodes come and go.

        Raises:
            ValueError: no node has room for one.
        """
        self._limit, self._own = limit, own
        if own:
            self.add(limit or 1)
        else:
            self.look()
        self.look_at = monotonic() + POLL if elastic else None
        if not self.berths:
            raise ValueError("no node of the Ray cluster has room for a slot: lower cpus_per_slot or gpus_per_slot, or add nodes")

    def look(self) -> None:
        """See which nodes are there, and start slots on new ones."""
        seen = nodes(self._share)
        known, self.look_at = self._nodes, monotonic() + POLL
        fresh = [node for name, node in seen.items() if name not in known and not self.at(name)]
        for turn in range(max((node.room for node in fresh), default=0)):
            for node in fresh:
                if turn < node.room and (self._limit is None or len(self.berths) < self._limit):
                    self.start(node.id)
        self._nodes = {name: node for name, node in seen.items() if name in known or self.at(name)}  # others may be of use later

    def add(self, n: int) -> list[Event]:
        """Start so many slots, or as many as there is room for."""
        for node in [here()] * n if self._own else self._room()[:n]:
            self.start(node)
        return []

    def _room(self) -> list[str]:
        """The nodes that have room for more slots, once for each."""
        used = [berth.node for berth in self.berths.values()]
        return [node.id for node in nodes(self._share).values() for _ in range(node.room - used.count(node.id))]

    def start(self, node: str, slot: SlotId | None = None, tries: int = 1) -> SlotId:
        """Start a process there, of a new slot or of one that lost its own."""
        name = slot or SlotId(f"slot{next(self._numbers)}")
        self._feed(node)
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        cpus, gpus = self._share.cpus, self._share.gpus
        made = ray.remote(concurrency_groups=GROUPS)(Host).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=where)
        berth = self.berths[name] = Berth(name, node, made.remote(self._setup), tries)
        self.follow(berth.call("watch", "watch"), partial(self._ended, berth))
        self.follow(berth.call("train", "open"), partial(self._opened, berth))
        return name

    def _feed(self, node: str) -> None:
        """Start the node's window of prepared chunks, before its first slot asks for it."""
        if self._given.feeders and node not in self._windows:
            self._windows[node] = ray_feeder.start(ray_feeder.FeederSetup.of(self._given), node)
            self._hear(node)

    def _hear(self, node: str) -> None:
        self.follow(self._windows[node].news.remote(), partial(self._heard, node))

    def _heard(self, node: str, future: Any) -> list[Event]:
        """What the node's feeders did so far."""
        error = future.exception()
        if not ray_feeder.gone(error):
            self._hear(node)
        return [] if error is not None else [self._totals.take(*future.result())]

    def fed(self) -> list[Fed]:
        """What the feeders did, all in all, where it is not what was told before."""
        before, self._fed = self._fed, [self._totals.take(*each) for each in ray_feeder.fed(self._windows.values())]
        return [event for event in self._fed if event not in before and any(event.figures.values())]

    def _opened(self, berth: Berth, future: Any) -> list[Event]:
        if self.berths.get(berth.id) is not berth:
            return []
        error = future.exception()
        if isinstance(error, RayTaskError):
            raise error.cause
        if error is not None:
            return self.died(berth, error)
        hello: Hello | Broken = future.result()
        if isinstance(hello, Broken):
            raise hello.error
        berth.pid, berth.meeting = hello.pid, hello.meeting
        berth.slot = Slot(berth.id, hello.host, hello.kind, hello.memory)
        self._listen(berth)
        return self.register([berth]) if self._assembled else []

    def _listen(self, berth: Berth) -> None:
        self.follow(berth.call("news", "news"), partial(self._told, berth))

    def _told(self, berth: Berth, future: Any) -> list[Event]:
        """How far it is."""
        if self.berths.get(berth.id) is not berth or future.exception() is not None:
            return []
        self._listen(berth)
        return self._on_news(berth, *future.result())

    def assembled(self) -> tuple[Slot, ...]:
        """The slots that are ready at the start; from now on others join as they come."""
        self._assembled = True
        placed = spread(self._shards, [berth.id for berth in self.ready], self._copies)
        for berth in self.ready:
            berth.slot = replace(_slot(berth), shards=placed[berth.id])
        return tuple(_slot(berth) for berth in self.ready)

    def register(self, fresh: Iterable[Berth] = ()) -> list[Event]:
        """Put every shard at enough slots, evenly, without taking it from where it is being read; tell what changed."""
        ready = self.ready
        reading = [b for b in ready if b.run is not None and b.run.left is not None]
        busy = {(b.id, unit.visit.shard) for b in reading for call in b.calls for unit in call.units.values()}
        placed = mend(self._shards, {b.id: _slot(b).shards for b in ready}, self._copies, busy)
        news = [b for b in ready if b in fresh or placed[b.id] != _slot(b).shards]
        for berth in news:
            berth.slot = replace(_slot(berth), shards=placed[berth.id])
        return [Joined(tuple(_slot(berth) for berth in news))] if news else []

    # -- going ---------------------------------------------------------------------------------------------------------

    def _ended(self, berth: Berth, future: Any) -> list[Event]:
        error = future.exception()
        return [] if error is None else self.died(berth, error)

    def died(self, berth: Berth, error: BaseException) -> list[Event]:
        """Its process is gone; where its node is still there, another one takes its place.

        Raises:
            OSError: it died while it started, time and again.
        """
        if self.berths.get(berth.id) is not berth:
            return []
        del self.berths[berth.id]
        with suppress(Exception):  # it may only be out of reach, and holds what the next one needs
            ray.kill(berth.actor)
        there = not isinstance(error, ActorUnschedulableError) and berth.node in nodes(self._share)
        events = [] if berth.slot is None else self._without(berth, died=True)
        tries = berth.tries + 1 if berth.slot is None else 1
        if tries > TRIES:
            raise OSError(f"{berth.id} died {TRIES} times while it started: {error}")
        if there and not berth.leaving:
            self.start(berth.node, berth.id, tries)
        return events

    def part(self, berth: Berth) -> list[Event]:
        """Let go of a slot that has nothing left to do."""
        del self.berths[berth.id]
        self._limit = None if self._limit is None else self._limit - 1
        berth.call("control", "leave", False)
        ray.kill(berth.actor)
        return [] if berth.slot is None else self._without(berth, died=False)

    def _without(self, berth: Berth, died: bool) -> list[Event]:
        return [Left(frozenset((berth.id,)), died), *self._on_loss(berth), *self.register()]

    def close(self) -> None:
        """End all processes, and clear the nodes of their copies of the data."""
        self.berths, berths = {}, self.berths
        one_each = {berth.node: berth for berth in berths.values() if berth.slot is not None}
        refs = [berth.call("control", "leave", True) for berth in one_each.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=2.0)
        for berth in berths.values():
            ray.kill(berth.actor)
        for window in self._windows.values():  # its feeders end with it
            ray.kill(window)


def _slot(berth: Berth) -> Slot:
    assert berth.slot is not None, "only of a berth that is ready"
    return berth.slot
