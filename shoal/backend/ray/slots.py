"""The slots of a run: started, followed, replaced when they die, and their shards registered."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import monotonic
from typing import Any

from ray.exceptions import ActorUnschedulableError, RayTaskError

from shoal.backend.node.messages import Broken, Hello
from shoal.backend.ray.cluster import Node
from shoal.backend.ray.fleet import Fleet
from shoal.backend.ray.shard_register import NodeShards, ShardRegister
from shoal.backend.ray.slot_process import Events, SlotProcess
from shoal.core.cluster import Slot, SlotId
from shoal.core.errors import warn
from shoal.core.event import Left, Unread
from shoal.core.trial import Seconds, TrialId
from shoal.train.recipe.unit import Reached

POLL = 1.0  # seconds between two looks at a cluster's nodes
NO_ROOM = (
    "no node of the Ray cluster (that holds shards) has room for a slot: lower "
    "cpus_per_slot or gpus_per_slot, or add nodes"
)
TRIES = 3  # times that a slot's process may die while it starts


def check_known(slots: Iterable[SlotId], known: Iterable[SlotId]) -> None:
    """Raise ValueError if there are no such slots."""
    unknown = sorted(set(slots) - set(known))
    if unknown:
        raise ValueError(f"no slot {', '.join(unknown)}; there are {', '.join(sorted(known))}")


@dataclass(frozen=True, slots=True)
class FleetSize:
    """How many slots there are to be.

    `asked`: those that are there or start, without those that leave. `room`: those that fit the
    nodes, as they were seen last.
    """

    asked: int
    room: int


def staying(processes: Iterable[SlotProcess]) -> list[SlotProcess]:
    """The processes that do not leave."""
    return [each for each in processes if not each.leaving]


def balance(processes: Collection[SlotProcess], n: int) -> tuple[int, list[SlotId], int]:
    """How many slots have to start so that there are `n`; or which leave so that `n` stay.

    The third result is how many leave already, as they were asked to.

    A slot that is not ready leaves before an idle one, and that before one at work.
    """
    remaining = staying(processes)
    remaining.sort(key=lambda each: (each.slot is not None, each.at_work))
    leavers = [each.id for each in remaining[: max(0, len(remaining) - n)]]
    leaving = sum(each.leaving and not each.ends for each in processes)
    return max(0, n - len(remaining)), leavers, leaving


class Slots:
    """All slots of a backend.

    `now`: the time of the study. `on_loss`: what else follows when a slot died or left, asked
    before its shards are registered elsewhere. `on_news`: what follows when a slot says how far the
    units of a round are.
    """

    def __init__(
        self,
        fleet: Fleet,
        shards: ShardRegister | NodeShards,
        now: Callable[[], Seconds],
        on_loss: Callable[[SlotProcess], Events],
        on_news: Callable[[SlotProcess, int, Mapping[TrialId, Reached]], Events],
    ) -> None:
        self._fleet = fleet
        self.shards = shards
        self.now = now
        self._on_loss = on_loss
        self._on_news = on_news
        self._numbers = count()
        self._nodes: dict[str, Node] = {}
        self.room = 0  # slots that fit the nodes, as they were seen last
        self._limit = fleet.limit
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

    # -- coming --------------------------------------------------------------------------------

    def start_all(self, elastic: bool) -> None:
        """Start the slots, all of them here in a cluster of our own.

        `elastic`: nodes come and go.

        Raises:
            ValueError: no node has room for one.
        """
        fleet = self._fleet
        if fleet.started_here:
            self.room = fleet.own_room()
            self.add(self._limit or 1)
        else:
            self.look()

        self.look_at = monotonic() + POLL if elastic else None
        if not self.processes and (fleet.lends() or not elastic):
            raise ValueError(NO_ROOM)

    def look(self) -> None:
        """See which nodes are there, and start slots on new ones."""
        self.look_at = monotonic() + POLL
        known = self._nodes
        seen = self._suited()
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
        self._fleet.serve([node for node in fresh if self.at(node.id)])

    def _suited(self) -> dict[str, Node]:
        """The live nodes at which slots are of use."""
        nodes = self._fleet.nodes()
        return {name: node for name, node in nodes.items() if self.shards.suits(node.names)}

    def add(self, n: int) -> Events:
        """Start so many slots, or as many as there is room for.

        A slot that leaves makes room, unless its node leaves with it.
        """
        if self._fleet.started_here:
            places = [self._fleet.here] * n
        else:
            suited = self._suited().values()
            occupants = [each for each in self.processes.values() if not each.leaving or each.ends]
            places = _room(suited, occupants)[:n]
        for node in places:
            self.start(node)
        return []

    def aim(self, n: int) -> list[SlotId]:
        """Start slots until there are so many; returns those that have to leave instead."""
        missing, leavers, leaving = balance(self.processes.values(), n)
        self.add(missing)
        self._limit = n + leaving + len(leavers)  # each slot that parts lowers it again
        return leavers

    def start(self, node: str, slot: SlotId | None = None, tries: int = 1) -> SlotId:
        """Start a process there, of a new slot or of one that lost its own."""
        name = slot or SlotId(f"slot{next(self._numbers)}")
        actor = self._fleet.start(node)
        until = self.now() + self._fleet.seconds_left(node)
        process = SlotProcess(name, node, actor, tries, until)
        self.processes[name] = process
        self._fleet.follow(process.call("watch", "watch"), partial(self._ended, process))
        self._fleet.follow(process.call("train", "open"), partial(self._opened, process))
        return name

    def _opened(self, process: SlotProcess, future: Any) -> Events:
        """The events of a slot that is ready, or cannot be."""
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
            joined = self.shards.update(self.ready, [process])
            damaged = hello.damaged.items()  # shards that cannot be read at the slot's node
            return [*joined, *(Unread(process.id, shard, why) for shard, why in damaged)]
        return []

    def assembled(self) -> tuple[Slot, ...]:
        """The slots that are ready at the start; from now on others join as they come."""
        self._assembled = True
        return self.shards.register(self.ready)

    def _listen(self, process: SlotProcess) -> None:
        """Ask the slot how far its units are."""
        self._fleet.follow(process.call("news", "news"), partial(self._on_progress, process))

    def _on_progress(self, process: SlotProcess, future: Any) -> Events:
        """The events of how far the slot's units are; it is asked again."""
        if not self.is_current(process) or future.exception() is not None:
            return []
        self._listen(process)
        process.signs.reach(future.result(), monotonic())
        return self._on_news(process, *future.result())

    # -- going ---------------------------------------------------------------------------------

    def _ended(self, process: SlotProcess, future: Any) -> Events:
        """The events of a slot that left in good order, or whose process is gone."""
        error = future.exception()
        if error is None:
            return []
        return self.died(process, error)

    def died(self, process: SlotProcess, error: BaseException) -> Events:
        """The events of a process that is gone; if its node is there, another takes its place.

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
            self._fleet.kill(process.actor)

        # There was no process if its node is gone, though Ray may not have noticed yet.
        never_ran = isinstance(error, ActorUnschedulableError) or "never ran" in str(error)
        node_lives = not never_ran and process.node in self._fleet.nodes()
        if not node_lives:
            # should it be there after all, it is new
            self._nodes.pop(process.node, None)
        died = node_lives or not self._fleet.taken_back(process.node)
        why = str(error) if isinstance(error, TimeoutError) else ""
        events = self._without(process, died, why)
        tries = process.tries + 1 if process.slot is None else 1
        if tries > TRIES:
            _go_on_without(process, error, self.ready)
        elif node_lives and not process.leaving:
            self.start(process.node, process.id, tries)
        return events

    def part(self, process: SlotProcess) -> Events:
        """Let go of a slot that has nothing left to do."""
        del self.processes[process.id]
        if not process.ends and self._limit is not None:
            self._limit -= 1
        process.call("control", "leave", False)
        self._fleet.kill(process.actor)
        return self._without(process, died=False)

    def _without(self, process: SlotProcess, died: bool, why: str = "") -> Events:
        """The events of a slot that is gone: none, if it was never ready."""
        if process.slot is None:
            return []
        events: Events = [Left(frozenset((process.id,)), died, why)]
        events += self._on_loss(process)
        return events + self.shards.update(self.ready, ())

    def close(self) -> None:
        """End all processes, and clear the nodes of their copies of the data."""
        one_each = {process.node: process.actor for process in self.ready}
        actors = [process.actor for process in self.processes.values()]
        self.processes = {}
        self._fleet.close(actors, [*one_each.values()])


def _go_on_without(
    process: SlotProcess, error: BaseException, others: Sequence[SlotProcess]
) -> None:
    """Warn of a slot whose processes die while they start, if others can go on.

    Raises:
        OSError: there are no others to go on with.
    """
    why = f"{process.id} died {TRIES} times while it started at {process.node}"
    if not others:
        raise OSError(f"{why}: {error}")
    warn(f"{why}: going on without it")


def _room(suited: Iterable[Node], processes: Iterable[SlotProcess]) -> list[str]:
    """The nodes that have room for more slots, once for each."""
    used = Counter(process.node for process in processes)
    places: list[str] = []
    for node in suited:
        places += [node.id] * (node.room - used[node.id])
    return places
