"""How fast trials train and what they cost: what policies believe, and what simulations go by."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang
from shoal.core.trial import Samples, Seconds, TrialId

# What trains, as far as its speed is concerned, and the slot where it does.
Place = tuple[str, SlotId]
Work = tuple[Samples, Seconds]
FADES = 0.7  # of what was trained at a place before, this part still counts
SETTLED = 3.0  # seconds of work at a place, from which on a pack's rate there counts
SHARED = "shared:"  # begins the names of figures: GiB of a trial that others have, too
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
    `transient`: the part of `memory` that lasts only as long as a step of the trial's. `in_turns`:
    whether trials of its form are known to take their steps one after the other. `shared`: the part
    of `memory`, none of it transient, that trials of the same `trunk` hold once for all on a slot.
    """

    memory: GiB = 0.0
    build: Seconds = 0.0
    evaluate: Seconds = 0.0
    save: Seconds = 0.0
    first: Seconds = 0.0
    form: Hashable = None
    transient: GiB = 0.0
    in_turns: bool = False
    shared: GiB = 0.0
    trunk: Hashable = None


def stepping_in_turns(cost: Cost) -> Cost:
    """The costs of the trial in a pack in which none is fused."""
    return cost if cost.in_turns else replace(cost, in_turns=True)


class MemoryTogether:
    """What trials that share a slot take of it at once: a sum that grows by trials.

    Their states lie there together, of which a trunk that several have counts once. What a step
    takes besides is there as long as the step: of trials that take turns only one has it, of those
    of one form, which may be fused, all.
    """

    def __init__(self, costs: Iterable[Cost] = ()) -> None:
        self._states: GiB = 0.0
        self._steps: dict[Hashable, GiB] = {}  # by form: of those that may step at once
        self._largest: GiB = 0.0  # of these
        self._trunks: dict[Hashable, GiB] = {}
        for cost in costs:
            self.add(cost)

    @property
    def now(self) -> GiB:
        """What they take."""
        return self._states + self._largest

    def with_one(self, cost: Cost) -> GiB:
        """What they take with this trial."""
        states = self._states + self._state(cost)
        return states + max(self._largest, self._step(cost))

    def add(self, cost: Cost) -> GiB:
        """Take this one in, too; returns what they take then."""
        step = self._steps[cost.form] = self._step(cost)
        self._states += self._state(cost)
        if cost.shared:
            trunk = max(cost.shared, self._trunks.get(cost.trunk, 0.0))
            self._trunks[cost.trunk] = trunk
        self._largest = max(self._largest, step)
        return self.now

    def _state(self, cost: Cost) -> GiB:
        """What the trial's state takes beside those that are there."""
        there = min(cost.shared, self._trunks.get(cost.trunk, 0.0))
        return cost.memory - cost.transient - there

    def _step(self, cost: Cost) -> GiB:
        """What a step takes of those of the trial's form, with the trial."""
        others = self._steps.get(cost.form, 0.0)
        if cost.in_turns:
            return max(others, cost.transient)
        return others + cost.transient


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
