"""How fast trials train and what they cost: what policies believe, and what simulations go by."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.core.cluster import GiB
from shoal.core.plan import Gang
from shoal.core.trial import Seconds, TrialId


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
