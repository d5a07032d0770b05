"""What the driver tells a node's processes when they start, and what a slot answers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shoal.core.cluster import GiB, ShardId
from shoal.core.event import Sum
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import Done, Made, Returned, Tree, TrialError
from shoal.train.slot.setup import TrainerSetup

# Processes of each node that prepare chunks; "auto": as many as are measured to be needed.
Feeders = int | Literal["auto"]
# Bytes that Ray sends with the call that starts a process. Larger arguments go through the object
# store, and Ray cannot start the process again once they have left it.
PIECE = 64 * 1024


@dataclass(frozen=True, slots=True)
class SlotSetup:
    """What a slot has to know of the study."""

    # (recipe, pace, data or None), pickled with their code; data that stays at its nodes comes so
    user: bytes
    checkpoints: str  # URL of their folder
    # device, pace and the memory of the slot are found out by the slot's process
    trainer: TrainerSetup
    gpus: float  # the slot's share of them
    fingerprint: str  # of the data
    token: str  # names this run's copies of the data
    cache: str | None  # folder for the node's copy of the data
    logs: str | None  # folder for what the trials' code prints


@dataclass(frozen=True, slots=True)
class FeederSetup:
    """What the feeders of a node have to know of the study."""

    user: bytes  # as of `SlotSetup`
    seed: int
    fingerprint: str  # of the data
    token: str  # names this run's copies of the data
    cache: str | None  # folder for the node's copy of the data
    count: Feeders  # feeders of each node
    window_gb: GiB  # of chunks held for others
    # For what `prepare` makes: of all feeders if their number is given, else of each.
    data_memory_gb: GiB
    threads: int  # of each slot

    @classmethod
    def of(cls, slot: SlotSetup) -> "FeederSetup":
        """The feeders' setup, from a slot's."""
        options = slot.trainer.options
        return cls(
            user=slot.user,
            seed=slot.trainer.seed,
            fingerprint=slot.fingerprint,
            token=slot.token,
            cache=slot.cache,
            count=options.feeders,
            window_gb=options.stream_memory_gb,
            data_memory_gb=options.data_memory_gb,
            threads=options.threads,
        )

    def sent(self) -> tuple[Any, ...]:
        """Arguments for a process that Ray may have to start again, each of them small."""
        starts = range(0, len(self.user), PIECE)
        pieces = [self.user[start : start + PIECE] for start in starts]
        return replace(self, user=b""), *pieces

    def received(self, pieces: Iterable[bytes]) -> "FeederSetup":
        """The setup again, from what `sent` gave."""
        return replace(self, user=b"".join(pieces))


def window_name(token: str, node: str) -> str:
    """The name, in the cluster, of the node's window."""
    return f"shoal-feeders-{token}-{node}"


@dataclass(frozen=True, slots=True)
class Hello:
    """The slot is ready."""

    host: str
    kind: str
    memory: GiB
    pid: int
    born: str  # when its process began: numbers of processes are used again
    meeting: str  # where processes of wide lanes can meet: "host:port"
    # Of data that stays at its nodes: the shards that lie here, and why others that should cannot
    # be read.
    shards: frozenset[ShardId] = frozenset()
    damaged: Mapping[ShardId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trained:
    """The unit was made; its state travels apart from this."""

    done: Done
    values: dict[str, Sum]
    fetched: int  # bytes of state read from the object store for it
    size: int  # bytes of the state returned


@dataclass(frozen=True, slots=True)
class Cut:
    """The unit was not made here: halted, called off before it began, or left to others."""


@dataclass(frozen=True, slots=True)
class Drifting:
    """A peer of a unit that several slots make was lost, and nobody said how to go on.

    The slot is to be asked again for the same unit.
    """


@dataclass(frozen=True, slots=True)
class Lost:
    """The unit was not made, because the state that it goes on from is nowhere any more."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The unit was not made, because this shard cannot be read here. The trial is not to blame."""

    shard: ShardId
    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Disk, data or Shoal itself failed, not the trial: the study must pause."""

    error: BaseException


Parcel = tuple[Tree, Any]  # a state, and filling
Outcome = Trained | Cut | Lost | Returned | TrialError | Unreadable
Outcomes = Mapping[TrialId, Outcome] | Broken  # of a round
# What came of a process's part in a unit that several make.
Share = Outcome | Made | Drifting | Broken
