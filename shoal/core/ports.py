"""The protocols of what plugs into the engine: a searcher, a policy, a backend."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from shoal.core.event import Event
from shoal.core.plan import Gang, Plan, Proposal
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial

# The memory of a decider: anything that JSON can hold. Its tuples come back as lists.
M = TypeVar("M")
# A time of the study, and all that happened at that time.
Moment = tuple[Seconds, tuple[Event, ...]]


class Policy(Protocol[M]):
    """Where trials run, when, on how many slots. Pure: no clock, no I/O, no hidden randomness."""

    def start(self) -> M:
        """The memory of a policy that was never asked."""
        ...

    def decide(self, view: View, memory: M) -> tuple[Plan, M]:
        """The gangs that should run from now on, and the memory for the next call.

        New gangs have `since=view.turn`. Gangs that go on are those of `view.plan`,
        unchanged.
        """
        ...


class Searcher(Protocol[M]):
    """Which trials exist, and how long they train. Pure, like a policy."""

    def start(self) -> M:
        """The memory of a searcher that was never asked."""
        ...

    def propose(self, view: View, memory: M) -> tuple[Proposal, M]:
        """What to submit and what to retire, and the memory for the next call."""
        ...


class Backend(Protocol):
    """The only thing with side effects, and the only owner of time."""

    def moments(self) -> Iterator[Moment]:
        """Yield what happens, in order of time; end when nothing can happen any more.

        Between two moments the engine decides, and calls the other methods. A trial's events come
        in this order: Advanced (with the visit), Evaluated, Kept, Ended, Finished or Failed. A
        lost slot comes as Left, followed by Fell for each trial whose newest state went with it.
        """
        ...

    def submit(self, trial: Trial) -> None:
        """The trial may be in gangs from now on; a known trial has other samples to train."""
        ...

    def change(self, before: Gang | None, after: Gang | None) -> None:
        """Start a gang (None, gang), stop one (gang, None), or turn one gang into another.

        An ended gang may be stopped again, which does nothing.
        """
        ...

    def wake(self, at: Seconds | None, until: Seconds | None = None) -> None:
        """Yield a moment at this time at the latest, even an empty one; None: there is no need.

        `until`: the time up to which slots that may come by themselves are worth waiting for;
        None: nothing is left to do for them.
        """
        ...
