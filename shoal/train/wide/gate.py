"""How processes meet in the generation of a wide lane that the driver wants, and connect."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed

from shoal.train.recipe.seat import Move, Orders, Seat
from shoal.train.wide.group import Group
from shoal.train.wide.peers import (
    POLL,
    PeerLost,
    describe,
    is_broken,
    is_overtaken,
    losing_peers,
    wait,
)

dist: Any = torch.distributed  # some of what is public in it has no types
SOON = 0.05  # seconds within which the store of a living process has answered


class Meeting:
    """A store in this process, where processes of lanes meet. Their seats name its `address`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
            self._store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=server.detach(),
                timeout=timedelta(seconds=10),
                # The other server (torch 2.13) was seen to accept a connection and never to read.
                use_libuv=False,
            )
        self.address = f"{host}:{port}"


class Gate:
    """The way into a generation: its processes show there that they are ready.

    Processes that stay in the lane look from outside whether those that join are there.

    Raises (every method):
        PeerLost: no store at that address, or not any more.
    """

    def __init__(self, seat: Seat) -> None:
        begin = monotonic()
        self.seat = seat
        self.store: Any = None
        self._outcomes: list[Any] = []  # the store, or the error instead of it
        self._soon = begin + SOON
        self._until = begin + seat.patience + 1.0
        # A thread, for the store's timeout ends with the first byte of the connection: if no
        # answer follows, it waits for ever.
        threading.Thread(target=self._reach, daemon=True).start()

    def reached(self) -> bool:
        """Whether the store has answered.

        Waits for that at most `SOON` seconds: the store's process may be gone, and the process
        that asks can train meanwhile.
        """
        if self.store is not None:
            return True
        while not self._outcomes and monotonic() < self._soon:
            sleep(POLL / 4)
        seat = self.seat
        if self._outcomes:
            [store] = self._outcomes
            if isinstance(store, RuntimeError):
                raise PeerLost(f"lane {seat.lane}: no store at {seat.store}: {store}") from store
            self.store = dist.PrefixStore(f"{seat.lane}/{seat.generation}", store)
            return True
        if monotonic() > self._until:
            raise PeerLost(f"lane {seat.lane}: the store at {seat.store} does not answer")
        return False

    def arrive(self) -> None:
        """Show that this process is ready to connect."""
        with losing_peers():
            self.store.set(f"here{self.seat.rank}", "")

    def are_ready(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks are ready."""
        keys = [f"here{rank}" for rank in ranks]
        with losing_peers():
            return bool(self.store.check(keys))

    def connect(self, orders: Orders, device: torch.device) -> Group:
        """Wait for all processes of the generation, and connect: either all connect, or none.

        Raises:
            PeerLost: one did not come, or the driver wants another generation by now.
        """
        seat = self.seat
        wait(self.reached, seat, lambda: is_overtaken(seat, orders))
        self.arrive()
        try:
            self._wait_for_all(orders)
            go = self._judge("go")
        except PeerLost:
            if is_broken(seat, orders) or not self._judge("no"):
                raise
            go = True  # the others saw all of them here, and wait inside
        if not go:
            raise PeerLost(f"{describe(seat)}: one of its processes gave it up")
        return Group(seat, self.store, orders, device)

    def _reach(self) -> None:
        """Connect to the store, in a thread."""
        host, _, port = self.seat.store.rpartition(":")
        timeout = timedelta(seconds=self.seat.patience)
        try:
            store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)
        except RuntimeError as error:
            self._outcomes.append(error)
        else:
            self._outcomes.append(store)

    def _wait_for_all(self, orders: Orders) -> None:
        """Wait until all ranks are ready, or one of them has judged."""
        seat = self.seat
        patient = monotonic() + seat.patience

        def ready() -> bool:
            with losing_peers():
                judged = bool(self.store.check(["verdict"]))
            return judged or self.are_ready(range(seat.width))

        def vain() -> bool:
            late = monotonic() > patient and orders.after(seat.generation) is not None
            return late or is_overtaken(seat, orders)

        wait(ready, seat, vain)

    def _judge(self, verdict: str) -> bool:
        """Whether the generation is to be; the verdict that comes first counts for all."""
        with losing_peers():
            return bool(self.store.compare_set("verdict", "", verdict) == b"go")


class Halted(Exception):  # noqa: N818
    """The driver gave the pass up, which counts as not made."""


class Adrift(Exception):  # noqa: N818
    """A peer was lost and no order came. The lane is as it was after its last whole step."""


class Moves:
    """The orders that one process gets. It stays in its generation until the next is ready."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._gate: Gate | None = None
        self._unreachable = 0  # the last generation of which no gate was found

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

    def ready_move(self, seat: Seat, connected: bool) -> Move | None:
        """The move away from that seat, once this process is ready for it; None before.

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
        """The move that the driver wants now that the generation is over.

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
        joins = seat.rank in seat.joining  # since the order was given
        if not joins and seat.rank != min(set(range(seat.width)) - set(seat.joining)):
            return True
        if self._unreachable == seat.generation:
            return False
        try:
            if self._gate is None or self._gate.seat != seat:
                self._gate = Gate(seat)
            ready = self._gate.reached()
            if ready and joins:
                self._gate.arrive()
            elif ready:
                ready = self._gate.are_ready(seat.joining)
        except PeerLost:  # there is no store at the seat's address
            self._unreachable = seat.generation
            return False
        return ready
