"""What happened: the only input of the fold, and with the plans the whole content of a journal."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit

Sum = tuple[float, float]  # a named value as (sum, number of samples), so that parts add up


@dataclass(frozen=True, slots=True)
class Opened:
    """A run of the study began: nothing of a former run is at work any more; its slots are gone, its gangs void."""

    run: int  # the incarnation: 1, 2, …
    shards: Mapping[ShardId, int]  # the training data: samples in each shard
    head: Mapping[str, Any] = field(default_factory=dict)  # recipe, versions, options: for people and for resume


@dataclass(frozen=True, slots=True)
class Submitted:
    """A trial was asked for, or extended."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Retired:
    """A searcher or a person took the trial out before its end."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class Advanced:
    """Trials trained on: samples since the last report, sums of training values, visits completed.

    `spent`: where the seconds since the last report went: switch, data, train, evaluate, save.
    `moved`: bytes of a trial's state that came from another slot.
    """

    samples: Mapping[TrialId, Samples]
    values: Mapping[TrialId, Mapping[str, Sum]] = field(default_factory=dict)
    visits: Mapping[TrialId, tuple[Visit, ...]] = field(default_factory=dict)
    spent: Mapping[TrialId, Mapping[str, Seconds]] = field(default_factory=dict)
    moved: Mapping[TrialId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """The trial's state after its first `visits` visits, `samples` in all, is durable in the checkpoint `name`."""

    trial: TrialId
    visits: int
    samples: Samples
    name: str = ""


@dataclass(frozen=True, slots=True)
class Fell:
    """The trial lost what it did after its first `visits` visits, `samples` in all: later shards are pending again."""

    trial: TrialId
    visits: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Validation at the end of a unit, after `epoch` complete epochs (a fraction within an epoch)."""

    trial: TrialId
    epoch: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of all trials with this signature (rate, memory, step, build, evaluate, save …), seen on this trial."""

    trial: TrialId
    signature: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ended:
    """The gang met its quota; or it could not go on as it was, and `why`: its trials had no room together."""

    gang: Gang
    why: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The trial met its samples, or converged."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class Failed:
    """The trial raised, diverged, or took its slot down too often."""

    trial: TrialId
    why: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Slots came, or hold other shards than before."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """Slots went. `died`: unexpectedly while at work, which counts against the trials they ran."""

    slots: frozenset[SlotId]
    died: bool = False


@dataclass(frozen=True, slots=True)
class Fed:
    """What the processes that prepare data for a node's slots did so far in this run: counts, seconds, bytes, by name."""

    node: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A person, a time limit or the system asked for something: "stop" ends the run; the study can be resumed."""

    what: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """A decision, as changes against the plan before it; counts the turns."""

    stop: tuple[Gang, ...]
    start: tuple[Gang, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """A decider's memory changed; `who` is "policy" or "searcher". JSON-able."""

    who: str
    memory: Any


Event = (
    Opened
    | Submitted
    | Retired
    | Advanced
    | Kept
    | Fell
    | Evaluated
    | Measured
    | Ended
    | Finished
    | Failed
    | Joined
    | Left
    | Fed
    | Commanded
)
Entry = Event | Planned | Remembered
