"""Where a process sits in a wide lane, and what the driver orders while it trains.

Without torch, for the driver uses it, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Literal

from shoal.core.trial import Samples, Seconds

LRRule = Literal["linear", "sqrt", "none"] | Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Seat:
    """One process's place in a generation.

    A generation is a set of processes that train one trial together, until the set changes.

    Raises:
        ValueError: no such rank, a generation below 1, or several processes and no store to meet
            at.
    """

    # the trial, and what distinguishes these processes from others that meet at the same store
    lane: str
    # 1, 2, …: higher for every change of the lane's processes
    generation: int
    # in gang order; rank 0 reports
    rank: int
    # the number of processes
    width: int
    # "host:port" of the `Meeting` of one of the processes
    store: str = ""
    # this process's own address, as the others reach it
    host: str = "127.0.0.1"
    # ranks that were not in the generation before, which trains until they are ready
    joining: tuple[int, ...] = ()
    # how gradients travel; for nccl each rank needs a GPU of its own
    gradients: Literal["gloo", "nccl"] = "gloo"
    # how long connecting may take, once all processes are there
    patience: Seconds = 10.0
    # how long to wait for a peer that lives; one that dies is noticed at once
    stall: Seconds = 300.0
    # whether to measure the links between the processes, once they are connected
    links: bool = False

    def __post_init__(self) -> None:
        no_such_rank = not 0 <= self.rank < self.width
        if no_such_rank or self.generation < 1:
            raise ValueError(
                f"lane {self.lane}: a seat needs a generation >= 1 and 0 <= rank < width; "
                f"got generation {self.generation}, rank {self.rank}, width {self.width}"
            )
        if self.width > 1 and not self.store:
            raise ValueError(
                f"lane {self.lane}: {self.width} processes need a store to meet at; got none"
            )


@dataclass(frozen=True, slots=True)
class Move:
    """An order: go over to that generation, or leave the lane if `seat` is None.

    `broken`: the present generation has lost a process, so that its ranks cannot agree on a batch
    after which to go.
    """

    generation: int
    seat: Seat | None
    broken: bool = False


class Orders:
    """What the driver wants of a process while it trains.

    One thread gives orders; the thread that trains looks at them between batches.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._move: Move | None = None
        self._broken: Move | None = None  # the newest move that says so
        self._halted = False

    def move(self, to: Move) -> None:
        """Order a move. Only the one to the newest generation counts."""
        with self._changed:
            if self._move is None or to.generation > self._move.generation:
                self._move = to
            if to.broken and not self.broken(to.generation - 1):
                self._broken = to
            self._changed.notify_all()

    def halt(self) -> None:
        """Give the pass up; it counts as not made."""
        with self._changed:
            self._halted = True
            self._changed.notify_all()

    @property
    def halted(self) -> bool:
        """Whether the pass is to be given up."""
        return self._halted

    def after(self, generation: int) -> Move | None:
        """The newest move beyond that generation."""
        move = self._move
        if move is None or move.generation <= generation:
            return None
        return move

    def broken(self, generation: int) -> bool:
        """Whether that generation is known to have lost a process, whatever was ordered since."""
        return self._broken is not None and self._broken.generation > generation

    def wait(self, generation: int, patience: Seconds) -> Move | None:
        """Wait for a move beyond that generation, at most `patience` seconds.

        Returns the newest one; None if there is none, or the pass is to be given up. If the
        generation has lost a process, the move of those that are left comes first: a newer one may
        have to wait for a slot.
        """

        def is_over() -> bool:
            return self._halted or self.after(generation) is not None

        with self._changed:
            self._changed.wait_for(is_over, patience)
        if self._halted:
            return None
        if self.broken(generation):
            return self._broken
        return self.after(generation)


@dataclass(frozen=True, slots=True)
class Rescale:
    """The lane went on in another generation."""

    generation: int
    before: int  # width
    after: int  # width
    seconds: Seconds  # without progress: from the last step before to the first batch after
    at: Samples  # of the pass
    bytes: int  # of state that was sent


def share(count: int, width: int, rank: int) -> tuple[int, int]:
    """The rows of a batch that fall to a rank: the first one, and the one after the last.

    Shares are contiguous and in gang order; their sizes differ by at most one row.
    """
    return count * rank // width, count * (rank + 1) // width


def lr_factor(rule: LRRule, width: int) -> float:
    """What the learning rate is multiplied by if the batch is `width` times a slot's.

    "linear": the width (Capes et al. 2019, eq. 7: the rate changes as the number of slots does).
    "sqrt": its square root. "none": 1.

    Raises:
        ValueError: an unknown rule, or a function's result that is not a positive number.
    """
    if callable(rule):
        factor = float(rule(width))
        if not (isfinite(factor) and factor > 0):
            raise ValueError(
                f"lr_rule must give a factor > 0 for every width; got {factor!r} for {width}"
            )
        return factor
    factors = {"linear": float(width), "sqrt": sqrt(width), "none": 1.0}
    if rule not in factors:
        raise ValueError(
            f'lr_rule must be "linear", "sqrt", "none" or a function of the width; got {rule!r}'
        )
    return factors[rule]
