"""A slot's process as the driver sees it, and the rounds that it was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Any

from shoal.backend.node.messages import Hello, Trained
from shoal.backend.positions import GangRun
from shoal.backend.ray.silence import Signs
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event
from shoal.core.trial import Seconds, TrialId
from shoal.train.recipe.unit import Unit

Events = list[Event]
Shards = frozenset[ShardId]
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
        """Note that the answer came."""
        self.ended = monotonic()

    def measure_way(self, outcomes: Mapping[TrialId, object]) -> None:
        """Learn how long states were under way, from what came of all units of the round.

        That is the time in which the slot neither trained nor did anything else that it tells of.
        States came out of the object store and went back there, and calls went to and fro.
        """
        if self.begun is None:
            return
        accounted = 0.0
        for outcome in outcomes.values():
            if not isinstance(outcome, Trained):
                return
            accounted += sum(outcome.done.spent.values())
        rest = (self.ended or monotonic()) - self.begun - accounted
        self.way = max(0.0, rest) / max(1, len(outcomes))


@dataclass(eq=False, slots=True)
class SlotProcess:
    """A slot's process.

    A process that dies is replaced by another one, of the same slot. Whoever holds the old one
    asks `Slots.is_current` before it counts on it.
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
    # The answer to the newest call to give a state away; it comes after all earlier ones'.
    handover: Any = None
    # What was heard of the process, since it is ready.
    signs: Signs = field(default_factory=lambda: Signs.at(monotonic()))
    # Calls that it answered, and the longest silence in each; `Hangs` learns from them.
    answered: list[tuple[Call, Seconds]] = field(default_factory=list)

    @property
    def at_work(self) -> bool:
        """Whether anything is under way here."""
        return bool(self.calls or self.shares)

    @property
    def ready_slot(self) -> Slot:
        """The slot of a process that is ready."""
        assert self.slot is not None, "only of a process that is ready"
        return self.slot

    def call(self, group: str, method: str, *arguments: Any, results: int = 1) -> Any:
        """A reference to the method's result, or to each of them; see `fleet.Actor`."""
        return self.actor.call(group, method, *arguments, results=results)

    def begin(self, calls: list[Call], call: Call) -> None:
        """Note a call that the process was given, in `calls` or `shares`."""
        if not self.at_work:
            self.signs.begin(monotonic())
        calls.append(call)

    def finish(self, calls: list[Call], call: Call) -> None:
        """Note that the process answered the call, which was in `calls` or `shares`."""
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
        """Have the process forget the trial, which goes on elsewhere."""
        self.call("train", "forget", trial)

    def give(self, trial: TrialId, forget: bool) -> Any:
        """A reference to the trial's state here; with `forget` it lives on elsewhere."""
        self.handover, state = self.call("train", "give", trial, forget, results=2)
        return state

    def opened(self, hello: Hello) -> None:
        """Note what the process says of itself, now that it is ready."""
        self.pid = hello.pid
        self.born = hello.born
        self.signs = Signs.at(monotonic())
        self.meeting = hello.meeting
        self.holds = hello.shards
        self.slot = Slot(self.id, hello.host, hello.kind, hello.memory, until=self.until)

    def reading(self) -> set[Reading]:
        """The slot with each shard that a gang of one shard after another reads here."""
        if self.run is None or self.run.shards_left is None:
            return set()
        shards: set[Reading] = set()
        for call in self.calls:
            for unit in call.units.values():
                shards.update((self.id, shard) for shard in unit.visit.shards)
        return shards
