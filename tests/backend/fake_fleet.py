"""A fleet without processes: its slots only count visits, and what happens comes in any order.

A state is the visits that it has learned. So whoever goes on from a wrong one is found out at once.
See `shoal.backend.ray.fleet.Fleet`; what slots do is as in `shoal.backend.node.slot_actor`.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayError

from shoal.backend.node.messages import Cut, Drifting, Hello, Lost, Trained
from shoal.backend.ray.cluster import Node
from shoal.backend.ray.fleet import EventQueue
from shoal.backend.ray.silence import PULSE
from shoal.core.cluster import ShardId
from shoal.core.trial import TrialId, Visit
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.recipe.unit import Done, Made, Reached, TrialError, Unit

Visits = tuple[Visit, ...]
Step = Callable[[], None]
STEP = 0.01  # seconds of the fake clock
LONGEST = 200.0  # seconds in which something must happen


class Ref(Future[Any]):
    """A reference to what a call returns. `lost`: the object went with its node."""

    lost = False

    def value(self) -> Any:
        """What `ray.get` gives, or raises."""
        if self.lost:
            raise ObjectLostError("ref", "node", "call")
        return self.result(timeout=0)


@dataclass
class ActorCall:
    """A call that waits for its thread, or is under way there."""

    method: str
    arguments: tuple[Any, ...]
    refs: list[Ref]

    def answer(self, *values: Any) -> None:
        for ref, value in zip(self.refs, values, strict=True):
            ref.set_result(value)


@dataclass
class SharedUnit:
    """A unit that a slot makes with others. `whole`: it has the trial's state."""

    unit: Unit
    whole: bool
    made: bool = False

    def makes(self, unit: Unit) -> bool:
        return self.unit.visit == unit.visit and self.unit.visits == unit.visits


@dataclass
class WideCall:
    """A slot's part in a unit under way: it waits for its generation, is in it, or lost it."""

    call: ActorCall
    number: int
    unit: Unit
    seat: Seat
    orders: Orders
    shared: SharedUnit
    at: str = "waits"  # then "joined", and "lost" or "made"


@dataclass(eq=False)
class FakeActor:
    """A slot's process."""

    fleet: "FakeFleet"
    node: str
    pid: int
    alive: bool = True
    stopped: bool = False  # it does nothing any more, and says so to nobody
    stuck: bool = False  # its round does not end, and it says that it lives
    queues: dict[str, deque[ActorCall]] = field(
        default_factory=lambda: {name: deque() for name in ("train", "control", "watch", "news")}
    )
    memory: dict[TrialId, Visits] = field(default_factory=dict)
    shared: dict[TrialId, SharedUnit] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    off: set[int] = field(default_factory=set)
    orders: dict[int, Orders] = field(default_factory=dict)
    ended: int = -1
    round: ActorCall | None = None  # of the thread that trains, under way
    wide: WideCall | None = None
    progress: tuple[int, dict[TrialId, Reached]] = (-1, {})
    said: tuple[int, dict[TrialId, Reached]] = (-1, {})
    said_at: float = 0.0

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        call = ActorCall(method, arguments, [Ref() for _ in range(results)])
        if self.alive:
            self.queues[group].append(call)
        else:
            _fail(call)
        return call.refs[0] if results == 1 else call.refs

    def die(self) -> None:
        self.alive = False
        calls = [call for queue in self.queues.values() for call in queue]
        calls += [call for call in (self.round, self.wide and self.wide.call) if call]
        self.queues = {name: deque() for name in self.queues}
        self.round = self.wide = None
        for call in calls:
            _fail(call)

    # -- what can happen next --------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        train, control, news = (self.queues[name] for name in ("train", "control", "news"))
        if self.round is not None:
            if not self.stuck:
                yield self._finish_round
        elif self.wide is None and train and _ready(train[0]) and self._has_room():
            yield self._begin
        if control and _ready(control[0]):
            yield self._control
        late = self.fleet.clock >= self.said_at + PULSE
        if news and (self.progress != self.said or late):
            yield self._tell

    def _has_room(self) -> bool:
        """Whether the process runs: Ray starts it once its node has room beside older ones."""
        older = [each for each in self.fleet.actors if each.alive and each.node == self.node]
        return older.index(self) < self.fleet.rooms.get(self.node, 0)

    def _tell(self) -> None:
        self.said = self.progress[0], dict(self.progress[1])
        self.said_at = self.fleet.clock
        self.queues["news"].popleft().answer(self.said)

    def _control(self) -> None:
        call = self.queues["control"].popleft()
        if call.method == "save":
            trial, visits, parcel = call.arguments
            state = self._state(parcel[0])
            if state is None:
                call.refs[0].set_exception(ObjectLostError("ref", "node", "call"))
                return
            assert len(state) == visits
            call.answer(self.fleet.keep(trial, state))
            return
        if call.method == "leave":
            for watch in self.queues["watch"]:
                watch.answer(None)
            self.queues["watch"].clear()
        elif call.method == "move":
            number, to = call.arguments
            if number > self.ended:
                self.orders.setdefault(number, Orders()).move(to)
        elif call.method == "halt":
            self.void.add(call.arguments[0])
            if call.arguments[0] in self.orders:
                self.orders[call.arguments[0]].halt()
        else:
            assert call.method == "call_off"
            self.off.add(call.arguments[0])
        call.answer(None)

    def _begin(self) -> None:
        call = self.queues["train"].popleft()
        if call.method == "train":
            self._begin_round(call)
        elif call.method == "wide":
            self._begin_wide(call)
        elif call.method == "open":
            self.said_at = self.fleet.clock
            memory = self.fleet.memory
            call.answer(
                Hello(self.node, "cpu", memory, self.pid, "then", f"{self.node}:{self.pid}")
            )
        elif call.method == "forget":
            self._forget(call.arguments[0])
            call.answer(None)
        elif call.method == "conclude":
            trial, report = call.arguments
            visits, _, _, _ = pickle.loads(report)
            shared = self.shared.get(trial)
            if shared is not None and shared.made and shared.unit.is_made_in(visits):
                del self.shared[trial]
                self.memory[trial] = visits
            call.answer(None)
        elif call.arguments[0] not in self.memory:
            for ref in call.refs:
                ref.set_exception(LookupError("it is not here"))
        elif call.method == "keep":
            (trial,) = call.arguments
            call.answer(self.fleet.keep(trial, self.memory[trial]))
        else:
            assert call.method == "give"
            trial, forget = call.arguments
            state = self.memory[trial]
            if forget:
                self._forget(trial)
            call.answer((1, None), (state, None))

    def _forget(self, trial: TrialId) -> None:
        self.memory.pop(trial, None)
        self.shared.pop(trial, None)

    # -- units of one slot -----------------------------------------------------------------------

    def _begin_round(self, call: ActorCall) -> None:
        number, task, _ = call.arguments
        units, _, _ = pickle.loads(task)
        if number in self.off or number in self.void:
            call.answer(dict.fromkeys(units, Cut()), *(None for _ in units))
            return
        self.off.add(number)
        self.progress = number, {trial: Reached(1.0) for trial in units}
        self.round = call

    def _finish_round(self) -> None:
        call = self.round
        assert call is not None
        self.round = None
        number, task, parcels = call.arguments
        units, _, _ = pickle.loads(task)
        outcomes: dict[TrialId, Any] = {}
        states: dict[TrialId, Any] = {}
        for trial, unit in units.items():
            if not self._find(unit, parcels.get(trial)):
                outcomes[trial] = Lost()
            elif number in self.void:
                self._forget(trial)
                outcomes[trial] = Cut()
            elif unit.trial.config.get("fails") == len(unit.visits):
                self._forget(trial)
                outcomes[trial] = TrialError("thirteen", "a traceback", "alike")
            else:
                outcomes[trial], states[trial] = self._made(unit)
        call.answer(outcomes, *(states.get(trial) for trial in units))

    def _find(self, unit: Unit, parcel: Ref | None) -> bool:
        """Whether the state that the unit goes on from is here now; nothing else ever is."""
        trial = unit.trial.id
        here = self.memory.get(trial)
        if here is not None and unit.visits[: len(here)] != here:
            self._forget(trial)
        elif here is not None and unit.visits and here == unit.visits:
            return True
        if parcel is not None:
            state = self._state(parcel)
            if state is None:
                return False
        elif isinstance(unit.source, str):
            state = self.fleet.checkpoints[unit.source]
        elif unit.visits:
            return False
        else:
            state = ()
        assert state == unit.visits, "a unit goes on from the state after its visits"
        self.memory[trial] = state
        return True

    def _state(self, ref: Ref) -> Visits | None:
        with suppress(RayError, LookupError):
            state: Visits = ref.value()[0]
            return state
        return None

    def _made(self, unit: Unit) -> tuple[Trained, Any]:
        trial = unit.trial.id
        size = self.fleet.sizes[unit.visit.shard]
        visit = unit.visit._replace(samples=size)
        state = (*unit.visits, visit)
        self.memory[trial] = state
        kept = None
        if unit.last or self.fleet.rng.random() < 0.3:
            kept = self.fleet.keep(trial, state)
        scores = {"accuracy": 0.5} if unit.evaluate else None
        done = Done(visit, {"train": 1.0}, scores, kept=kept, age=0.0 if kept else 1.0)
        done = replace(done, signature="alike", figures={"rate": 10.0, "memory": 0.1})
        if unit.carry:
            return Trained(done, {}, 1, 1), (state, None)
        return Trained(done, {}, 0, 0), None

    # -- units of several slots ------------------------------------------------------------------

    def _begin_wide(self, call: ActorCall) -> None:
        number, task, parcel = call.arguments
        unit, seat, joins = pickle.loads(task)
        orders = self.orders.setdefault(number, Orders())
        trial = unit.trial.id
        shared = self.shared.get(trial)
        if shared is None or not shared.makes(unit):
            here = self._find_wide(unit, parcel[0] if parcel else None, joins)
            if here is None:
                self._answer_wide(call, number, Lost())
                return
            shared = self.shared[trial] = SharedUnit(unit, here)
        if number in self.void:
            self.shared.pop(trial, None)
            self._forget(trial)
            self._answer_wide(call, number, Cut())
            return
        self.wide = WideCall(call, number, unit, seat, orders, shared)

    def _find_wide(self, unit: Unit, parcel: Ref | None, joins: bool) -> bool | None:
        """Whether the state is here; None: it was to be, and is lost."""
        trial = unit.trial.id
        here = self.memory.get(trial)
        if here is not None and here == unit.visits and (here or not joins):
            return True
        if parcel is not None and self._state(parcel) is None:
            return None
        if parcel is None and unit.source is None and (unit.visits or joins):
            self._forget(trial)
            return False
        return self._find(unit, parcel) or None

    def _answer_wide(self, call: ActorCall, number: int, share: Any, state: Any = None) -> None:
        self.ended = number
        self.orders.pop(number, None)
        self.wide = None
        call.answer(share, state)

    def leave_wide(self, share: Any) -> None:
        """The slot's part in the unit is over, without a result."""
        wide = self.wide
        assert wide is not None
        trial = wide.unit.trial.id
        if not isinstance(share, Drifting):
            self.shared.pop(trial, None)
        if not wide.shared.whole or isinstance(share, Cut):
            self.memory.pop(trial, None)
        self._answer_wide(wide.call, wide.number, share)

    def report_wide(self) -> None:
        """The pass is made: rank 0 reports the unit."""
        wide = self.wide
        assert wide is not None and wide.at == "made"
        if wide.seat.rank != 0:
            self._answer_wide(wide.call, wide.number, Made())
            return
        self.shared.pop(wide.unit.trial.id, None)
        self._answer_wide(wide.call, wide.number, *self._made(wide.unit))


def _ready(call: ActorCall) -> bool:
    """Whether the states are there that the call is given."""
    parcels = call.arguments[-1] if call.method in ("train", "wide", "save") else ()
    refs: Iterable[Ref] = parcels.values() if isinstance(parcels, dict) else parcels
    return all(ref.lost or ref.done() for ref in refs)


def _fail(call: ActorCall) -> None:
    for ref in call.refs:
        ref.set_exception(RayActorError())


class FakeFleet:
    """Nodes with so much room each, and what happens there in the order that `rng` draws.

    `faults`: what else may happen, each once; `after`: about how many steps lie between two.
    """

    started_here = False
    limit = None
    here = "driver"
    gpus = 0.0
    store_room = 10**9
    joined = True

    def __init__(
        self, rng: Random, rooms: dict[str, int], sizes: dict[ShardId, int], after: float = 20.0
    ) -> None:
        self.rng = rng
        self.rooms = dict(rooms)
        self.sizes = sizes
        self.after = after
        self.memory = 100.0
        self.faults: list[Callable[[], None]] = []
        self.actors: list[FakeActor] = []
        self.checkpoints: dict[str, Visits] = {}
        self.clock = 0.0
        self.idle = 0.0
        self._events = EventQueue()
        self.put = self._events.put
        self._pids = count(1)
        self._names = count()

    def connect(self, *_: Any) -> "FakeFleet":
        return self

    def keep(self, trial: TrialId, state: Visits) -> str:
        """Make the state durable."""
        name = f"{trial}/{len(state)}-{next(self._names)}"
        self.checkpoints[name] = state
        return name

    # -- the protocol ----------------------------------------------------------------------------

    def nodes(self) -> dict[str, Node]:
        return {name: Node(name, name, room, (name,)) for name, room in self.rooms.items()}

    def lends(self) -> bool:
        return bool(self.rooms)

    def own_room(self) -> int:
        raise AssertionError("of a cluster started here")

    def seconds_left(self, node: str) -> float:
        return float("inf")

    def taken_back(self, node: str) -> bool:
        return False

    def start(self, node: str) -> FakeActor:
        actor = FakeActor(self, node, next(self._pids), alive=node in self.rooms)
        self.actors.append(actor)
        return actor

    def serve(self, nodes: Iterable[Node]) -> None:
        """There is nothing to serve."""

    def offer_data(self) -> None:
        """There is no data."""

    def kill(self, actor: FakeActor) -> None:
        actor.die()

    def end(self, node: str, pid: int, born: str) -> None:
        for actor in self.actors:
            if actor.pid == pid:
                actor.die()

    def follow(
        self, ref: Ref, then: Callable[[Any], Any], at_once: Callable[[Any], None] | None = None
    ) -> None:
        if at_once is not None:
            ref.add_done_callback(at_once)
        ref.add_done_callback(lambda future: self.put(partial(then, future)))

    def answer(self, process: Any, ref: Ref, patience: float) -> Any:
        while not ref.done():
            if process.actor.stopped:
                self.clock += patience
                raise GetTimeoutError("it stands still")
            self.advance(late=True)
        return ref.value()

    def gather(self, wait: float) -> list[Any]:
        events = self._events.gather(0)
        if events:
            return events
        if self.faults and self.rng.random() < 1.0 / self.after:
            self.faults.pop(self.rng.randrange(len(self.faults)))()
        elif not self.advance(late=wait > 0.0):
            self.clock += wait
            self.idle += wait
            assert self.idle < LONGEST, "nothing happens any more"
            return self._events.gather(0)
        return self._events.gather(0)

    def answers(self) -> bool:
        return True

    def explained(self, error: Exception) -> ConnectionError:
        raise AssertionError(error)

    def fed(self) -> list[Any]:
        return []

    def close(self, actors: Sequence[FakeActor], one_each: Sequence[FakeActor]) -> None:
        for actor in actors:
            actor.die()

    def leave(self) -> None:
        """There is nothing to leave."""

    # -- what happens ----------------------------------------------------------------------------

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Nobody knows another clock."""
        with (
            patch("shoal.backend.ray.backend.monotonic", self.now),
            patch("shoal.backend.ray.slots.monotonic", self.now),
            patch("shoal.backend.ray.slot_process.monotonic", self.now),
            patch("shoal.backend.ray.slot_watch.monotonic", self.now),
            patch("shoal.backend.ray.gangs.monotonic", self.now),
        ):
            yield

    def now(self) -> float:
        return self.clock

    def advance(self, late: bool = False) -> bool:
        """Have one of the things happen that can; returns whether any could."""
        live = [actor for actor in self.actors if actor.alive and not actor.stopped]
        steps = [step for actor in live for step in actor.steps()]
        steps += self._wide_steps(live)
        if not steps and late:
            steps += self._impatient(live)
        if not steps:
            return False
        self.clock += STEP
        step = self.rng.choice(steps)
        if getattr(step, "__name__", "") == "_tell":
            self.idle += STEP
            assert self.idle < LONGEST, "slots only say that they live"
        else:
            self.idle = 0.0
        step()
        return True

    def kill_any(self) -> None:
        """A process dies."""
        live = [actor for actor in self.actors if actor.alive]
        if live:
            self.rng.choice(live).die()

    def stop_any(self) -> None:
        """A process stands still."""
        live = [actor for actor in self.actors if actor.alive and actor.said_at]
        if live:
            self.rng.choice(live).stopped = True

    def stick_any(self) -> None:
        """Code of a round never returns; if there is none, it is tried later."""
        live = [actor for actor in self.actors if actor.alive and actor.round is not None]
        if live:
            self.rng.choice(live).stuck = True
        else:
            self.faults.append(self.stick_any)

    def lose_node(self, node: str) -> None:
        """A node goes, with all that lies there."""
        self.rooms.pop(node, None)
        for actor in self.actors:
            if actor.node == node:
                actor.die()

    # -- units of several slots ------------------------------------------------------------------

    def _wide_steps(self, live: Sequence[FakeActor]) -> list[Step]:
        at_work = [actor for actor in live if actor.wide is not None]
        steps: list[Step] = []
        for actor in at_work:
            wide = actor.wide
            assert wide is not None
            here = _generation(at_work, wide)
            complete = len(here) == wide.seat.width
            if wide.at == "made":
                steps.append(actor.report_wide)
            elif wide.at == "waits" and wide.orders.halted:
                steps.append(partial(actor.leave_wide, Cut()))
            elif wide.at == "waits" and wide.orders.after(wide.seat.generation):
                steps.append(partial(self._after_loss, actor))
            elif wide.at == "waits" and complete and wide.seat.rank == 0:
                steps.append(partial(self._connect, here))
            elif (wide.at == "joined" and not complete) or (
                wide.at == "joined" and wide.orders.broken(wide.seat.generation)
            ):
                wide.at = "lost"
            elif wide.at == "joined" and wide.seat.rank == 0:
                steps += self._group_steps(here, at_work)
            if wide.at == "lost":
                steps.append(partial(self._after_loss, actor))
        return steps

    def _connect(self, members: Sequence[FakeActor]) -> None:
        """The generation is complete: all get the state of one that has it."""
        wides = [actor.wide for actor in members if actor.wide is not None]
        if not any(wide.shared.whole for wide in wides):
            for actor in members:
                actor.leave_wide(Lost())
            return
        for wide in wides:
            wide.shared.whole = True
            wide.at = "joined"

    def _group_steps(self, here: Sequence[FakeActor], at_work: Sequence[FakeActor]) -> list[Step]:
        """What a generation at work can do: end the pass, halt, or move on together."""
        wides = [actor.wide for actor in here if actor.wide is not None]
        if any(wide.orders.halted for wide in wides):
            return [lambda: [actor.leave_wide(Cut()) for actor in here] and None]
        steps: list[Step] = [partial(_end_pass, wides)]
        moves = [wide.orders.after(wide.seat.generation) for wide in wides]
        if all(moves) and len({move.generation for move in moves if move}) == 1:
            joining = {rank for move in moves if move and move.seat for rank in move.seat.joining}
            there = {
                actor.wide.seat.rank
                for actor in at_work
                if actor.wide is not None
                and actor.wide.unit.trial.id == wides[0].unit.trial.id
                and moves[0] is not None
                and actor.wide.seat.generation == moves[0].generation
            }
            own = {move.seat.rank for move in moves if move and move.seat}
            if joining <= there | own:
                steps.append(lambda: [_go_over(actor) for actor in here] and None)
        return steps

    def _after_loss(self, actor: FakeActor) -> None:
        """The generation is over: go where the driver says, or tell that it says nothing."""
        wide = actor.wide
        assert wide is not None
        move = wide.orders.wait(wide.seat.generation, 0.0)
        if wide.orders.halted:
            actor.leave_wide(Cut())
        elif move is None:
            if self.rng.random() < 0.2:
                actor.leave_wide(Drifting())
        elif move.seat is None:
            actor.leave_wide(Cut())
        else:
            wide.seat = move.seat
            wide.at = "waits"

    def _impatient(self, live: Sequence[FakeActor]) -> list[Step]:
        """Those who wait for others that do not come."""
        waiting = [actor for actor in live if actor.wide is not None and actor.wide.at == "waits"]
        return [partial(actor.leave_wide, Drifting()) for actor in waiting]


def _generation(at_work: Sequence[FakeActor], wide: WideCall) -> list[FakeActor]:
    """Those who are in the same generation, or wait for it, by rank."""
    there = [
        actor
        for actor in at_work
        if actor.wide is not None
        and actor.wide.unit.trial.id == wide.unit.trial.id
        and actor.wide.seat.generation == wide.seat.generation
        and (actor.wide.at == wide.at)
    ]
    return sorted(there, key=lambda actor: actor.wide.seat.rank if actor.wide else 0)


def _end_pass(wides: Sequence[WideCall]) -> None:
    for wide in wides:
        wide.shared.made = True
        wide.at = "made"


def _go_over(actor: FakeActor) -> None:
    wide = actor.wide
    assert wide is not None
    move = wide.orders.after(wide.seat.generation)
    assert move is not None
    if move.seat is None:
        actor.leave_wide(Cut())
    else:
        wide.seat = move.seat
        wide.at = "waits"
