"""The slots as the driver sees them: their processes, and the shards registered with them."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic
from typing import Any

from shoal.backend.gang_run import GangRun
from shoal.backend.ray.node.outcomes import Hello, Trained
from shoal.backend.silence import Signs
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event, Joined
from shoal.core.plan import Gang
from shoal.core.trial import Seconds, TrialId
from shoal.train.recipe.unit import Unit

Events = list[Event]
Shards = frozenset[ShardId]
Holders = dict[SlotId, Shards]  # the shards of each slot
Reading = tuple[SlotId, ShardId]  # a shard, and where it is being read


@dataclass(eq=False, slots=True)
class Call:
    """A round given to a slot, a unit of each lane of its gang, and not yet reported.

    Ray runs the rounds of a slot in the order of the calls. So a slot may be given a round while
    it is still at the one before, and `SlotActor.call_off` reaches it in between.
    """

    number: int
    units: Mapping[TrialId, Unit]
    # For units that go on from a state in the object store: the slot that made it.
    origins: Mapping[TrialId, SlotId]
    # References to the states that the round returns.
    states: Mapping[TrialId, Any] = field(default_factory=dict)
    void: bool = False  # whatever comes of it does not count
    # Trials whose units came after one that failed: they come to nothing.
    dropped: set[TrialId] = field(default_factory=set)
    # When a slot without other work was given it, and when the answer came, which is a moment
    # before the driver turns to it.
    begun: Seconds | None = None
    ended: Seconds | None = None
    # Seconds that the state of one trial was under way: see `measure_way`.
    way: Seconds = 0.0

    def note_end(self, _: object) -> None:
        """The answer came."""
        self.ended = monotonic()

    def measure_way(self, outcomes: Mapping[TrialId, object]) -> None:
        """Learn how long states were under way, from what came of all units of the round.

        That is the time in which the slot neither trained nor did anything else that it tells of.
        States came out of the object store and went back there, and calls went to and fro.
        """
        if self.begun is None:
            return
        told = 0.0
        for outcome in outcomes.values():
            if not isinstance(outcome, Trained):
                return
            told += sum(outcome.done.spent.values())
        rest = (self.ended or monotonic()) - self.begun - told
        self.way = max(0.0, rest) / max(1, len(outcomes))


@dataclass(eq=False, slots=True)
class SlotProcess:
    """A slot's process.

    A process that dies is replaced by another one, of the same slot. Whoever holds the old one
    asks `Fleet.is_current` before it counts on it.
    """

    id: SlotId
    node: str
    actor: Any
    tries: int = 1
    until: Seconds = inf  # when its node will leave, in seconds of the study
    slot: Slot | None = None  # once it is ready
    pid: int = 0
    born: str = ""  # when the process with that number began
    meeting: str = ""  # where processes of wide lanes meet
    holds: Shards = frozenset()  # shards that lie at its node, of data that stays there
    run: GangRun | None = None  # the gang at work here alone
    calls: list[Call] = field(default_factory=list)  # of that gang
    # Units that it makes together with other slots.
    shares: list[Call] = field(default_factory=list)
    stopping: bool = False  # the gang, after the round under way
    leaving: bool = False  # the slot, after the round under way
    # It leaves because its time is over: another one may take its place.
    ends: bool = False
    worked: bool = False  # it made a round, or a part of one
    # What was heard of the process, since it is ready.
    signs: Signs = field(default_factory=lambda: Signs.at(monotonic()))
    # Calls that it answered, and the longest silence in each; `Hangs` learns from them.
    answered: list[tuple[Call, Seconds]] = field(default_factory=list)

    @property
    def at_work(self) -> bool:
        """Whether anything is under way here."""
        return bool(self.calls or self.shares)

    @property
    def known(self) -> Slot:
        """The slot of a process that is ready."""
        assert self.slot is not None, "only of a process that is ready"
        return self.slot

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        """A reference to the method's result, or to each of them.

        `group`: the threads that run the method.
        """
        remote = getattr(self.actor, method)
        remote = remote.options(concurrency_group=group, num_returns=results)
        return remote.remote(*arguments)

    def begin(self, calls: list[Call], call: Call) -> None:
        """The process was given the call, which is one of `calls` or of `shares` from now on."""
        if not self.at_work:
            self.signs.begin(monotonic())
        calls.append(call)

    def finish(self, calls: list[Call], call: Call) -> None:
        """The process answered the call."""
        calls.remove(call)
        self.worked = True
        self.answered.append((call, self.signs.finish(monotonic())))

    def halt(self, call: Call) -> None:
        """Stop the round between two of its parts; it is void."""
        self.call("control", "halt", call.number)

    def call_off(self, call: Call) -> None:
        """Leave the round out, unless it has begun."""
        self.call("control", "call_off", call.number)

    def forget(self, trial: TrialId) -> None:
        """The trial goes on elsewhere."""
        self.call("train", "forget", trial)

    def opened(self, hello: Hello) -> None:
        """The process is ready."""
        self.pid = hello.pid
        self.born = hello.born
        self.signs = Signs.at(monotonic())
        self.meeting = hello.meeting
        self.holds = hello.shards
        self.slot = Slot(self.id, hello.host, hello.kind, hello.memory, until=self.until)

    def reading(self) -> set[Reading]:
        """The slot with each shard that a gang of one shard after another reads here."""
        if self.run is None or self.run.left is None:
            return set()
        shards: set[Reading] = set()
        for call in self.calls:
            for unit in call.units.values():
                shards.update((self.id, shard) for shard in unit.visit.shards)
        return shards


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
    """Those that do not leave."""
    return [each for each in processes if not each.leaving]


def balance(processes: Collection[SlotProcess], n: int) -> tuple[int, list[SlotId], int]:
    """How many slots have to start so that there are `n`, or which leave so that `n` stay.

    The third is how many leave already, as they were asked to.

    A slot that is not ready leaves before an idle one, and that before one at work.
    """
    there = staying(processes)
    there.sort(key=lambda each: (each.slot is not None, each.at_work))
    gone = [each.id for each in there[: max(0, len(there) - n)]]
    leaving = sum(each.leaving and not each.ends for each in processes)
    return max(0, n - len(there)), gone, leaving


# -- shards ----------------------------------------------------------------------------------


class ShardRegister:
    """Which slots hold the shards: each of them `copies`, if there are so many."""

    def __init__(self, shards: tuple[ShardId, ...], copies: int) -> None:
        self._shards = shards
        self._copies = copies
        # The nodes, by name, that cannot read some shards.
        self._barred: set[tuple[str, ShardId]] = set()

    def bar(self, process: SlotProcess, shard: ShardId) -> None:
        """The process's node cannot read the shard: in this run it counts as without it."""
        self._barred.add((process.node, shard))
        process.slot = replace(process.known, shards=process.known.shards - {shard})

    def missing(self, ready: Sequence[SlotProcess]) -> list[str]:
        """The shards that only other nodes have: none, each node has all of the data."""
        return []

    def suits(self, names: Sequence[str]) -> bool:
        """Whether slots are of use at the node with these names: everywhere."""
        return True

    def check(self, gang: Gang | None, processes: Mapping[SlotId, SlotProcess]) -> None:
        """Check that the slots can read what the gang reads: each has all of the data."""

    def first(self, ready: Sequence[SlotProcess]) -> tuple[Slot, ...]:
        """Register the shards with the first slots, which then know of them."""
        names = [process.id for process in ready]
        return self._give(ready, spread(self._shards, names, self._copies))

    def again(self, ready: Sequence[SlotProcess], fresh: Container[SlotProcess]) -> Events:
        """Put every shard at enough slots, evenly; tell what changed, and of `fresh` slots.

        No shard is taken from where it is being read.
        """
        held = {process.id: process.known.shards for process in ready}
        busy = {pair for process in ready for pair in process.reading()}
        placed = mend(self._shards, held, self._copies, busy, self._barred_at(ready))
        news: list[SlotProcess] = []
        for process in ready:
            slot = process.id
            if process in fresh or placed[slot] != held[slot]:
                news.append(process)

        if not news:
            return []
        return [Joined(self._give(news, placed))]

    def _barred_at(self, ready: Iterable[SlotProcess]) -> set[Reading]:
        """The slots with the shards that they cannot read."""
        barred: set[Reading] = set()
        for process in ready:
            for node, shard in self._barred:
                if process.node == node:
                    barred.add((process.id, shard))
        return barred

    def _give(self, processes: Iterable[SlotProcess], placed: Holders) -> tuple[Slot, ...]:
        """The slots, with their shards."""
        slots: list[Slot] = []
        for process in processes:
            process.slot = replace(process.known, shards=placed[process.id])
            slots.append(process.slot)
        return tuple(slots)


def spread(shards: Sequence[ShardId], slots: Sequence[SlotId], copies: int) -> Holders:
    """Shard i at slots i, i + 1, … modulo their number: the first placing.

    `copies`: slots that hold each shard.
    """
    held: dict[SlotId, set[ShardId]] = {slot: set() for slot in slots}
    for i, shard in enumerate(shards):
        for k in range(min(copies, len(slots))):
            held[slots[(i + k) % len(slots)]].add(shard)
    return _frozen(held)


def mend(
    shards: Sequence[ShardId],
    held: Holders,
    copies: int,
    busy: Set[Reading],
    barred: Set[Reading] = frozenset(),
) -> Holders:
    """Where the shards go after slots came or went, or could not read a shard.

    Every shard is at `copies` slots again, if there are so many. Then the shards are spread as
    evenly as can be without moving those that are `busy`, being read. `barred`: where shards cannot
    be.
    """
    new = {slot: set(at) for slot, at in held.items()}
    for shard in shards:
        _supply(shard, new, copies, barred)

    move = _move(new, busy, barred)
    while move is not None:
        source, target, shard = move
        new[source].discard(shard)
        new[target].add(shard)
        move = _move(new, busy, barred)

    return _frozen(new)


def _supply(
    shard: ShardId,
    held: dict[SlotId, set[ShardId]],
    copies: int,
    barred: Set[Reading],
) -> None:
    """Have the shard at so many slots, each time at the one that holds fewest."""
    there = sum(shard in at for at in held.values())
    able = [slot for slot in held if (slot, shard) not in barred]
    for _ in range(min(copies, len(able)) - there):
        others = [slot for slot in able if shard not in held[slot]]
        emptiest = min(others, key=lambda slot: len(held[slot]))
        held[emptiest].add(shard)


def _move(
    held: Mapping[SlotId, Set[ShardId]], busy: Set[Reading], barred: Set[Reading]
) -> tuple[SlotId, SlotId, ShardId] | None:
    """From which slot to which one a shard should move; None if none should."""
    if not held:
        return None

    target = min(held, key=lambda slot: len(held[slot]))
    for source in sorted(held, key=lambda slot: -len(held[slot])):
        if len(held[source]) - len(held[target]) < 2:
            return None
        free = _free(source, held[source] - held[target], busy)
        free = _free(target, free, barred)
        if free:
            return source, target, max(free)

    return None


def _free(slot: SlotId, shards: Iterable[ShardId], busy: Set[Reading]) -> list[ShardId]:
    """Those of the shards that are not paired with the slot in `busy`."""
    return [shard for shard in shards if (slot, shard) not in busy]


def _frozen(held: Mapping[SlotId, Set[ShardId]]) -> Holders:
    return {slot: frozenset(shards) for slot, shards in held.items()}
