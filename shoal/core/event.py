"""What happened to a study.

A journal holds these events, the plans that were made, and what the deciders remembered. Folding
them gives the state of the study (`shoal.core.fold`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.plan import Gang
from shoal.core.trial import Samples, Seconds, Trial, TrialId, Visit

# A value as (sum, number of samples), so that the values of parts add up.
Sum = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Opened:
    """A run of the study began. The slots and the gangs of a former run are gone.

    `run`: counts the runs of the study from 1. `shards`: the samples in each training shard.
    `head`: recipe, versions and options, for people and for resuming.
    """

    run: int
    shards: Mapping[ShardId, int]
    head: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A trial was asked for, or extended, or is tried again after it failed."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Retired:
    """A searcher or a person took the trial out before its end."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class Advanced:
    """Trials trained on since they were last reported.

    `samples`: how many more were trained. `values`: sums of training values over these samples.
    `visits`: those completed. `spent`: where the seconds went: switch, data, train, evaluate, save.
    `moved`: bytes of a trial's state that came from another slot. `dealt`: bytes of samples that
    came from other nodes for its visits, where epochs deal them anew.
    """

    samples: Mapping[TrialId, Samples]
    values: Mapping[TrialId, Mapping[str, Sum]] = field(default_factory=dict)
    visits: Mapping[TrialId, tuple[Visit, ...]] = field(default_factory=dict)
    spent: Mapping[TrialId, Mapping[str, Seconds]] = field(default_factory=dict)
    moved: Mapping[TrialId, int] = field(default_factory=dict)
    dealt: Mapping[TrialId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """The trial's state after so many visits and samples is durable, in the checkpoint `name`."""

    trial: TrialId
    visits: int
    samples: Samples
    name: str = ""


@dataclass(frozen=True, slots=True)
class Fell:
    """The trial fell back to its state after so many visits and samples. Later work is lost.

    If its newest durable state came after more visits, that one cannot be read any more; `why` says
    why, and is empty else. The durable state before that one takes its place, if it is there.
    """

    trial: TrialId
    visits: int
    samples: Samples
    why: str = ""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The scores of the trial after so many epochs, which may be a fraction.

    `trained`: the names of those that are means over the training samples of the epoch so far. The
    others are of validation.
    """

    trial: TrialId
    epoch: float
    values: Mapping[str, float]
    trained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured on this trial: rate, memory, step, build, evaluate, save and so on.

    The figures hold for all trials with this signature.
    """

    trial: TrialId
    signature: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ended:
    """The gang met its quota or has read its shards, or it could not go on.

    `why`: why it could not go on, such as that its trials had no room together; else empty.
    """

    gang: Gang
    why: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The trial has trained all its samples, or converged."""

    trial: TrialId


@dataclass(frozen=True, slots=True)
class Failed:
    """The trial raised an error, diverged, or too many slots died under it."""

    trial: TrialId
    why: str


@dataclass(frozen=True, slots=True)
class Joined:
    """Slots came; or slots that were here have other shards or other memory than before."""

    slots: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Left:
    """Slots went.

    `died`: they went unexpectedly. This counts as a strike against the trials that ran on them.
    `why`: what is known of that, such as that they hung; else empty.
    """

    slots: frozenset[SlotId]
    died: bool = False
    why: str = ""


def last_words(entries: Iterable[object]) -> str:
    """What is known of the slots that died, such as that they hung, in brackets; else nothing."""
    words = {each.why for each in entries if isinstance(each, Left) and each.why}
    return "".join(f" ({each})" for each in sorted(words))


@dataclass(frozen=True, slots=True)
class Unread:
    """A shard that lies at the slot cannot be read there: it is gone, cut short or damaged.

    That is nobody's fault among the trials. `trials`: those that cannot go on without it, because
    they train over the whole data in a fixed order. They wait until the next run. If there are
    none, the trials may visit other shards meanwhile, and the slot counts as without this one.
    """

    slot: SlotId
    shard: ShardId
    why: str
    trials: tuple[TrialId, ...] = ()


@dataclass(frozen=True, slots=True)
class Fed:
    """What the processes that prepare data for a node's slots have done so far in this run.

    `figures`: counts, seconds and bytes, by name.
    """

    node: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decided:
    """How long the driver decided in this run so far; told now and then, and at its end.

    `seconds`: of the searcher, the policy, and of writing down and passing on what they said.
    """

    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Commanded:
    """A person, a time limit or the system asked for something.

    "stop" ends the run; the study can be resumed. "slots" gives it more, fewer or so many slots:
    `why` is "+2", "-1" or "4".
    """

    what: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """A policy made a plan, written down as the gangs that stop and the gangs that start."""

    stop: tuple[Gang, ...]
    start: tuple[Gang, ...]


@dataclass(frozen=True, slots=True)
class Remembered:
    """The memory of a decider changed.

    `who`: "policy" or "searcher". `memory`: anything that JSON can hold.
    """

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
    | Unread
    | Fed
    | Decided
    | Commanded
)
Entry = Event | Planned | Remembered


def trials_of(entry: Entry) -> Iterable[TrialId]:
    """The trials that an entry is about."""
    if isinstance(entry, Advanced):
        return entry.samples.keys() | entry.visits.keys()
    if isinstance(entry, Submitted):
        return (entry.trial.id,)
    trial: TrialId | None = getattr(entry, "trial", None)
    if trial is None:
        return ()
    return (trial,)


def ids_of(entry: Entry) -> Iterable[str]:
    """The ids that an entry holds of trials, slots and nodes, other than those of new ones.

    Trials and slots check their own when they are made.
    """
    match entry:
        case Advanced():
            for held in (entry.samples, entry.values, entry.visits, entry.spent):
                yield from held
            yield from entry.moved
            yield from entry.dealt
        case Submitted(trial):
            if trial.start is not None:
                yield trial.start[0]
        case Planned():
            for gang in (*entry.stop, *entry.start):
                yield from gang.trials
                yield from gang.slots
        case Ended(gang):
            yield from gang.trials
            yield from gang.slots
        case Left(slots):
            yield from slots
        case Unread():
            yield entry.slot
            yield from entry.trials
        case Fed(node):
            yield node
        case _:
            yield from trials_of(entry)
