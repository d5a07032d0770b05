"""How a process of a wide lane waits for its peers, and how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep

from shoal.core.trial import Seconds
from shoal.train.recipe.seat import Orders, Seat

POLL = 0.002  # seconds between two looks at a store


class PeerLost(Exception):  # noqa: N818
    """A process of the generation is gone, or was not heard of in time: the generation is over."""


@contextmanager
def losing_peers() -> Iterator[None]:
    """Turns what a collective operation raises within into `PeerLost`."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(str(error).split("\n")[0]) from error


def wait(
    ready: Callable[[], bool], seat: Seat, vain: Callable[[], bool], pause: Seconds = POLL
) -> None:
    """Wait until `ready`, at most `seat.stall` seconds, with a look at it every `pause` seconds.

    Raises:
        PeerLost: it never was ready, or waiting is in vain.
    """
    until = monotonic() + seat.stall
    while not ready():
        if monotonic() >= until:
            raise PeerLost(f"{describe(seat)}: a process was not heard of for {seat.stall:g} s")
        if vain():
            raise PeerLost(f"{describe(seat)}: called off")
        sleep(pause)


def describe(seat: Seat) -> str:
    """The seat's lane and generation."""
    return f"lane {seat.lane}, generation {seat.generation}"


def is_overtaken(seat: Seat, orders: Orders) -> bool:
    """Whether the seat's generation need not even begin.

    A process that joins must go to the newest generation's gate. Processes that train already go
    on to a wider generation later, once all are there.
    """
    if seat.rank in seat.joining:
        return orders.halted or orders.after(seat.generation) is not None
    return is_broken(seat, orders)


def is_broken(seat: Seat, orders: Orders) -> bool:
    """Whether the driver knows that this process waits for a peer in vain."""
    return orders.halted or orders.broken(seat.generation)
