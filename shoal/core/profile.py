"""How fast trials train and what they cost: what policies believe, and what simulations go by."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang
from shoal.core.trial import Samples, Seconds, TrialId

# What trains, as far as its speed is concerned, and the slot where it does.
Place = tuple[str, SlotId]
Work = tuple[Samples, Seconds]
FADES = 0.7  # of what was trained at a place before, this part still counts
SAME = 0.03  # rates that differ by less are the same


def kind_of(gang: Gang, signature: Mapping[TrialId, str]) -> str:
    """Equal for gangs on one slot that should go equally fast there.

    That is the signature of a trial alone, or its name until it has one. Gangs of several trials
    are of one kind if their signatures are.
    """
    kinds = [signature.get(trial, str(trial)) for trial in gang.trials]
    return "+".join(sorted(kinds))


def added(before: Work | None, samples: Samples, seconds: Seconds) -> Work:
    """The work at a place, with this more. Older work counts ever less, as slots change."""
    if before is None:
        return samples, seconds
    return FADES * before[0] + samples, FADES * before[1] + seconds


def is_same(rate: float | None, other: float) -> bool:
    """Whether a rate (None: it is not known) is as good as the other."""
    return rate is not None and abs(rate - other) <= SAME * other


@dataclass(frozen=True, slots=True)
class Cost:
    """What a trial costs beside its training.

    `memory`: what it takes of its slot. `build`, `evaluate`, `save`: the seconds to do each once.
    `first`: how much longer building takes if the slot has built no other model before.
    `form`: equal for trials that may train in one fused step, as far as is known; None: unknown.
    """

    memory: GiB = 0.0
    build: Seconds = 0.0
    evaluate: Seconds = 0.0
    save: Seconds = 0.0
    first: Seconds = 0.0
    form: Hashable = None


class Profile(Protocol):
    """How fast trials train, how much memory they take, and what changes of gangs cost.

    A policy believes it; a simulator takes it as the truth.
    """

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        """The training speed of each lane in samples/s. Evaluation and switches do not count."""
        ...

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        """Samples/s of the trial alone, on 1, 2, … `upto` slots; item w - 1 is for w slots."""
        ...

    def cost(self, trial: TrialId) -> Cost:
        """What the trial costs beside its training."""
        ...

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        """Seconds without training when `before` turns into `after`, on the slots of `after`.

        None before: a gang starts. None after: a gang stops, which costs nothing.
        """
        ...
