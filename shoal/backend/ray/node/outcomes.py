"""What a slot answers: that it is ready, and what came of the units that it was given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.cluster import GiB, ShardId
from shoal.core.event import Sum
from shoal.core.trial import TrialId
from shoal.train.recipe.unit import Done, Made, Returned, Tree, TrialError


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
    """Of a unit that several slots make: a peer was lost, and nobody said how to go on.

    The slot is to be asked again for the same unit.
    """


@dataclass(frozen=True, slots=True)
class Lost:
    """The state it was to go on from is nowhere any more."""


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
