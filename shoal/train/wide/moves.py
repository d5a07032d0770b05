"""Which of the driver's orders a process of a wide lane follows, and when."""

from __future__ import annotations

import torch

from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.wide.gate import Gate
from shoal.train.wide.group import Group
from shoal.train.wide.waiting import PeerLost


class Halted(Exception):  # noqa: N818
    """The driver gave the pass up, which counts as not made."""


class Adrift(Exception):  # noqa: N818
    """A peer was lost and no order came. The lane is as it was after its last whole step."""


class Moves:
    """The orders that one process gets. It stays in its generation until the next is ready."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._gate: Gate | None = None
        self._vain = 0  # the generation whose gate was not found last

    def connect(self, seat: Seat, device: torch.device) -> Group:
        """Connect with the others of the seat's generation.

        Raises:
            PeerLost: not all of them came.
        """
        gate = self._gate
        if gate is None or gate.seat != seat:
            gate = Gate(seat)
        group = gate.connect(self.orders, device)
        self._gate = None
        return group

    def settle(self) -> None:
        """Note that the process is in the generation that it was ordered to."""
        self._gate = None

    def asked(self, seat: Seat, connected: bool) -> Move | None:
        """A move away from that seat that this process is ready for.

        Raises:
            PeerLost: the driver knows that a process of the generation is gone.
        """
        move = self.orders.after(seat.generation)
        if connected and self.orders.broken(seat.generation):
            raise PeerLost("the driver says so")
        if move is None or not self._ready(move):
            return None
        return move

    def after_loss(self, seat: Seat, lost: PeerLost) -> Move:
        """What the driver wants now that the generation is over.

        Raises:
            Halted: it gave the pass up.
            Adrift: no order came in time.
        """
        move = self.orders.wait(seat.generation, seat.patience)
        if self.orders.halted:
            raise Halted
        if move is None:
            raise Adrift(str(lost)) from lost
        return move

    def _ready(self, move: Move) -> bool:
        """Whether the processes that join are there.

        One rank of those that stay looks; the others take its word.
        """
        seat = move.seat
        if seat is None or not seat.joining:
            return True
        joined = seat.rank in seat.joining  # since the order was given
        if not joined and seat.rank != _first_to_stay(seat):
            return True
        if self._vain == seat.generation:
            return False
        try:
            return self._all_there(seat, joined)
        except PeerLost:
            self._vain = seat.generation
            return False

    def _all_there(self, seat: Seat, joined: bool) -> bool:
        """Whether those that join are at the gate. `joined`: this process is one of them.

        Raises:
            PeerLost: there is no store at the seat's address.
        """
        if self._gate is None or self._gate.seat != seat:
            self._gate = Gate(seat)
        if not self._gate.reached():
            return False
        if joined:
            self._gate.arrive()
            return True
        return self._gate.there(seat.joining)


def _first_to_stay(seat: Seat) -> int:
    """The first rank of those that were in the generation before."""
    stay = set(range(seat.width)) - set(seat.joining)
    return min(stay)
