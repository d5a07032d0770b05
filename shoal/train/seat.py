"""Where a process sits in a wide lane, and what it is told while it trains. Free of torch, so that a driver can speak it."""

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
    """One process's place in a generation: a set of processes that train one trial together, until the set changes.

    Raises:
        ValueError: no such rank, a generation below 1, or several processes and no store to meet at.
    """

    lane: str  # the trial, and whatever tells these processes from others that meet at the same store
    generation: int  # 1, 2, …: higher for every change of the lane's processes
    rank: int  # gang order; rank 0 reports
    width: int
    store: str = ""  # "host:port" of the `Meeting` of one of them
    host: str = "127.0.0.1"  # this process's own address, as the others reach it
    joining: tuple[int, ...] = ()  # ranks that take no part in the generation before: it trains on until they are ready
    gradients: Literal["gloo", "nccl"] = "gloo"  # how gradients travel; nccl: each rank has a GPU of its own
    patience: Seconds = 10.0  # for connecting, once all are there
    stall: Seconds = 300.0  # how long to wait for a peer that lives: one that dies is noticed at once

    def __post_init__(self) -> None:
        if self.generation < 1 or not 0 <= self.rank < self.width:
            raise ValueError(
                f"lane {self.lane}: a seat needs a generation >= 1 and 0 <= rank < width; "
                f"got generation {self.generation}, rank {self.rank}, width {self.width}"
            )
        if self.width > 1 and not self.store:
            raise ValueError(f"lane {self.lane}: {self.width} processes need a store to meet at; got none")


@dataclass(frozen=True, slots=True)
class Move:
    """Go over to that generation, or leave the lane where `seat` is None.

    `broken`: the present generation has lost a process; do not wait until all agree on a batch.
    """

    generation: int
    seat: Seat | None
    broken: bool = False


class Orders:
    """What the driver asks of a process while it trains: given in one thread, looked at in another between batches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._move: Move | None = None
        self._broken: Move | None = None  # the newest that is
        self._halted = False

    def move(self, to: Move) -> None:
        """Only the newest generation counts."""
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
        return self._halted

    def after(self, generation: int) -> Move | None:
        """The newest move beyond that generation."""
        move = self._move
        return move if move is not None and move.generation > generation else None

    def broken(self, generation: int) -> bool:
        """Whether that generation is known to have lost a process, whatever was ordered since."""
        return self._broken is not None and self._broken.generation > generation

    def wait(self, generation: int, patience: Seconds) -> Move | None:
        """A move beyond that generation, once there is one; None when halted, or after so many seconds.

        The newest; but before one that may have to wait for a slot, that of those that are left.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._halted or self.after(generation) is not None, patience)
        if self._halted:
            return None
        return self._broken if self.broken(generation) else self.after(generation)


@dataclass(frozen=True, slots=True)
class Rescale:
    """The lane went on in another generation; `seconds` from the last step before to the first batch after: no progress."""

    generation: int
    before: int  # widths
    after: int
    seconds: Seconds
    at: Samples  # of the pass
    bytes: int  # of state sent


def share(count: int, width: int, rank: int) -> tuple[int, int]:
    """The rows of a batch that fall to a rank: contiguous, in gang order, their numbers unequal by at most one."""
    return count * rank // width, count * (rank + 1) // width


def lr_factor(rule: LRRule, width: int) -> float:
    """What the learning rate is multiplied by when the batch is `width` times a slot's.

    "linear": by the width (Capes et al. 2019, eq. 7: the rate changes as the number of slots does); "sqrt": by its root.

    Raises:
        ValueError: an unknown rule, or a function's result that is not a positive number.
    """
    if callable(rule):
        factor = float(rule(width))
        if not (isfinite(factor) and factor > 0):
            raise ValueError(f"lr_rule must give a factor > 0 for every width; got {factor!r} for {width}")
        return factor
    known = {"linear": float(width), "sqrt": sqrt(width), "none": 1.0}
    if rule not in known:
        raise ValueError(f'lr_rule must be "linear", "sqrt", "none" or a function of the width; got {rule!r}')
    return known[rule]
