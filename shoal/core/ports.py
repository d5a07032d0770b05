"""The four protocols that everything else is written against."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shoal.core.cluster import GiB
from shoal.core.event import Event
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId

M = TypeVar("M")  # a decider's memory: any plain, JSON-able value (its tuples come back as lists)
Moment = tuple[Seconds, tuple[Event, ...]]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a trial costs beside its training: memory held, and seconds to build, evaluate once, save once.

    `first`: what building takes longer when it is the first that a slot builds. `form`: equal for trials that may train in
    one fused step, as far as is known; None: nothing is.
    """

    memory: GiB = 0.0
    build: Seconds = 0.0
    evaluate: Seconds = 0.0
    save: Seconds = 0.0
    first: Seconds = 0.0
    form: Hashable = None


class Profile(Protocol):
    """How fast, how big, how dear to change: belief for a policy, truth for a simulator."""

    def rates(self, gang: Gang) -> Mapping[TrialId, float]:
        """Training speed of each lane in samples/s, evaluation and switches not counted."""
        ...

    def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
        """Samples/s of the trial alone at widths 1..upto; the rate at width w is item w - 1."""
        ...

    def cost(self, trial: TrialId) -> Cost: ...

    def switch(self, before: Gang | None, after: Gang | None) -> Seconds:
        """Time without training when the slots of `after` turn from `before` to it (start, hop, resize, repack)."""
        ...


class Policy(Protocol[M]):
    """Where trials run, when, on how many slots. Pure: no clock, no I/O, no hidden randomness."""

    def start(self) -> M: ...

    def decide(self, view: View, memory: M) -> tuple[Plan, M]:
        """The gangs that should run from now on. New gangs carry `since=view.turn`; gangs that go on are kept as they are."""
        ...


class Searcher(Protocol[M]):
    """Which trials exist, and how long they train. Pure, like a policy."""

    def start(self) -> M: ...

    def propose(self, view: View, memory: M) -> tuple[Proposal, M]: ...


class Backend(Protocol):
    """The only thing with side effects, and the only owner of time."""

    def moments(self) -> Iterator[Moment]:
        """All that happened at one time, once, in order of time; ends when nothing can happen any more.

        A trial's events come in this order: Advanced (with the visit), Evaluated, Kept, Ended, Finished or Failed.
        A lost slot comes as Left, followed by Fell for each trial whose newest state went with it.
        """
        ...

    def submit(self, trial: Trial) -> None: ...

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """Start (None, gang), stop (gang, None), or turn one gang into another; of an ended gang: nothing."""
        ...

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """Yield a moment at that time at the latest, empty if nothing happened; None: no need.

        `until`: how long slots that may come by themselves are worth waiting for; None: not at all, nothing is left to do.
        """
        ...
