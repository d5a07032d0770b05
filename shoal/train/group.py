"""The processes of one generation of a wide lane, connected: an explicit process group with a store of its own."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch import Tensor

from shoal.core.trial import Seconds
from shoal.train.seat import Orders, Seat

dist: Any = torch.distributed  # some of what is public in it has no types
LOOK = 0.5  # seconds between two looks at orders while a peer is waited for
POLL = 0.002  # seconds between two looks at a store
SOON = 0.05  # seconds in which the store of a process that lives has answered
LARGE = 64 * 1024  # bytes: an array of so many is sent by itself, smaller ones together


class PeerLost(Exception):  # noqa: N818
    """A process of the generation is gone, or was not heard of in time: the generation is over."""


class Meeting:
    """A store in this process, at which the processes of lanes meet; `address` goes into their seats."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        with socket.create_server((host, 0)) as at:
            port = at.getsockname()[1]
            self._store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=at.detach(),
                timeout=timedelta(seconds=10),
                use_libuv=False,  # the other server (torch 2.13) was seen to accept a connection and never to read from it
            )
        self.address = f"{host}:{port}"


class Gate:
    """The way into a generation. Those that stay look from outside whether those that join are there.

    Raises (every method):
        PeerLost: no store at that address, or not any more.
    """

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.store: Any = None
        self._found: list[Any] = []
        self._soon, self._until = monotonic() + SOON, monotonic() + seat.patience + 1.0
        # its own timeout ends with the connection's first byte: it would wait for ever for an answer
        threading.Thread(target=_reach, args=(seat, self._found), daemon=True).start()

    def reached(self) -> bool:
        """Whether the store has answered. Nobody waits long for that who could train meanwhile: its process may be gone."""
        while not self._found and monotonic() < self._soon:
            sleep(POLL / 4)
        if self.store is None and self._found:
            if isinstance(self._found[0], RuntimeError):
                raise PeerLost(f"lane {self.seat.lane}: no store at {self.seat.store}: {self._found[0]}") from self._found[0]
            self.store = dist.PrefixStore(f"{self.seat.lane}/{self.seat.generation}", self._found[0])
        if self.store is None and monotonic() > self._until:
            raise PeerLost(f"lane {self.seat.lane}: the store at {self.seat.store} does not answer")
        return self.store is not None

    def arrive(self) -> None:
        """Show that this process is ready to connect."""
        with _losing():
            self.store.set(f"here{self.seat.rank}", "")

    def there(self, ranks: Sequence[int]) -> bool:
        """Whether these ranks are ready."""
        with _losing():
            return bool(self.store.check([f"here{rank}" for rank in ranks]))

    def connect(self, orders: Orders) -> Group:
        """Wait for all, and connect: either every one of them, or none.

        Raises:
            PeerLost: one did not come, or the driver wants another generation by now.
        """
        wait(self.reached, self.seat, lambda: _overtaken(self.seat, orders), POLL)
        self.arrive()
        patient = monotonic() + self.seat.patience

        def vain() -> bool:
            late = monotonic() > patient and orders.after(self.seat.generation) is not None
            return late or _overtaken(self.seat, orders)

        try:
            wait(lambda: self._judged() or self.there(range(self.seat.width)), self.seat, vain, POLL)
            go = self._judge("go")
        except PeerLost:
            if _broken(self.seat, orders) or not self._judge("no"):
                raise
            go = True  # the others saw all of them here, and wait inside
        if not go:
            raise PeerLost(f"lane {self.seat.lane}, generation {self.seat.generation}: one of its processes gave it up")
        return Group(self.seat, self.store, orders)

    def _judged(self) -> bool:
        with _losing():
            return bool(self.store.check(["verdict"]))

    def _judge(self, verdict: str) -> bool:
        """Whether the generation is to be; the first one's word counts."""
        with _losing():
            return bool(self.store.compare_set("verdict", "", verdict) == b"go")


def _reach(seat: Seat, found: list[Any]) -> None:
    host, _, port = seat.store.rpartition(":")
    try:
        found.append(dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=seat.patience)))
    except RuntimeError as error:
        found.append(error)


class Group:
    """Collective operations among the ranks. All ranks call the same ones in the same order.

    Raises (every method but `close`):
        PeerLost: a process is gone, did not come within `seat.stall`, or the driver said so.
    """

    def __init__(self, seat: Seat, store: Any, orders: Orders) -> None:
        self.seat, self._orders = seat, orders
        with _losing():
            self._control = _gloo(seat, store)
            self._gradients = _nccl(seat, store) if seat.gradients == "nccl" else self._control
        self._stall = timedelta(seconds=seat.stall)
        if seat.gradients == "nccl":  # it connects with the first sum: now, while all are here
            self.end(self.begin_sum(torch.zeros(1, device="cuda")))
        self.sent = 0  # bytes of trees, so far

    # -- sums ----------------------------------------------------------------------------------------------------------

    def begin_sum(self, gradients: Tensor) -> Any:
        """Start to sum a flat array over the ranks, in place; to be finished by `end`."""
        options = dist.AllreduceOptions()
        options.timeout = self._stall
        with _losing():
            return self._gradients.allreduce([gradients], options)

    def end(self, work: Any) -> None:
        """Wait until that sum is there: only then may anything be made of it."""
        if self._gradients is self._control:
            self._finish(work)
        else:  # NCCL's `wait` only holds back the device: a lost peer would be noticed after the step was made
            wait(work.is_completed, self.seat, lambda: _broken(self.seat, self._orders), POLL / 10)
            with _losing():
                work.wait(self._stall)  # with a limit it raises what went wrong

    def sum(self, numbers: Tensor) -> None:
        """Sum numbers in main memory, in place."""
        options = dist.AllreduceOptions()
        options.timeout = self._stall
        with _losing():
            work = self._control.allreduce([numbers], options)
        self._finish(work)

    # -- objects -------------------------------------------------------------------------------------------------------

    def gather(self, *numbers: int) -> list[tuple[int, ...]]:
        """Every rank's numbers, in gang order."""
        found = torch.zeros(self.seat.width, len(numbers), dtype=torch.int64)
        found[self.seat.rank] = torch.tensor(numbers, dtype=torch.int64)
        self.sum(found)
        return [tuple(row) for row in found.tolist()]

    def union(self, names: set[str]) -> list[str]:
        """All ranks' names."""
        every: set[str] = set()
        for rank in range(self.seat.width):
            every |= set(self.send(sorted(names) if rank == self.seat.rank else None, rank))
        return sorted(every)

    def send(self, tree: Any, source: int, into: Any = None) -> Any:
        """The tree of arrays and plain values that rank `source` has; the others give None, and own what they get.

        `into`: a tree whose arrays are of no more use; those that are sent are written there where they have a counterpart.
        """
        arrays: list[Tensor] = []
        head = b""
        if self.seat.rank == source:
            head = pickle.dumps(_lifted(tree, arrays))
        size = torch.tensor([len(head)], dtype=torch.int64)
        self._broadcast(size, source)
        text = torch.frombuffer(bytearray(head), dtype=torch.uint8) if head else torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(text, source)
        if self.seat.rank != source:
            tree = _lowered(pickle.loads(text.numpy().tobytes()), arrays, into)
        for array in arrays:
            self._broadcast(array, source)
        self.sent += int(size) + sum(array.nbytes for array in arrays)
        return tree

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = source, self._stall
        with _losing():
            work = self._control.broadcast([tensor], options)
        self._finish(work)

    def _finish(self, work: Any) -> None:
        """Wait, and look at orders meanwhile."""
        until = monotonic() + self.seat.stall
        while True:
            try:
                work.wait(timedelta(seconds=LOOK))
                return
            except RuntimeError as error:
                if work.is_completed() or "timed out" not in str(error).lower() or monotonic() >= until:
                    raise PeerLost(str(error).split("\n")[0]) from error
            if _broken(self.seat, self._orders):
                raise PeerLost(f"lane {self.seat.lane}, generation {self.seat.generation}: called off")

    def close(self) -> None:
        """Leave; who still waits for this process sees at once that it is gone."""
        held = [self._control, self._gradients]
        del self._control, self._gradients
        threading.Thread(target=_drop, args=(held,), daemon=True).start()  # an operation that hangs holds its end up


def _drop(held: list[Any]) -> None:
    if held[0] is not held[1]:
        with suppress(RuntimeError):
            held[1].abort()
    held.clear()


class _losing:  # noqa: N801
    """What a collective raises, as PeerLost."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if isinstance(error, RuntimeError):
            raise PeerLost(str(error).split("\n")[0]) from error


def wait(ready: Callable[[], bool], seat: Seat, vain: Callable[[], bool], pause: Seconds) -> None:
    """Ask until it is so, at most `seat.stall` seconds.

    Raises:
        PeerLost: it never was, or waiting is in vain.
    """
    until = monotonic() + seat.stall
    while not ready():
        if monotonic() >= until:
            raise PeerLost(f"lane {seat.lane}, generation {seat.generation}: a process was not heard of for {seat.stall:g} s")
        if vain():
            raise PeerLost(f"lane {seat.lane}, generation {seat.generation}: called off")
        sleep(pause)


def _overtaken(seat: Seat, orders: Orders) -> bool:
    """Whether this generation need not even begin.

    Who joins must show itself at the newest gate; those that train go on to a wider one from within, once all are there.
    """
    if seat.rank in seat.joining:
        return orders.halted or orders.after(seat.generation) is not None
    return _broken(seat, orders)


def _broken(seat: Seat, orders: Orders) -> bool:
    """Whether the driver knows that a peer is waited for in vain."""
    return orders.halted or orders.broken(seat.generation)


def _gloo(seat: Seat, store: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=seat.patience)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=seat.host)]
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), seat.rank, seat.width, options)


def _nccl(seat: Seat, store: Any) -> Any:
    # a peer's loss is ours to handle: NCCL's own watch would end the process
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"):
        os.environ.setdefault(name, "0")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seat.stall)
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), seat.rank, seat.width, options)


class _Place:
    """Stands for an array that is sent by itself."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype


def _lifted(tree: Any, arrays: list[Tensor]) -> Any:
    """The tree with places for its large arrays, which go to the list."""
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        return {key: _lifted(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_lifted(value, arrays) for value in tree)
    if isinstance(tree, np.ndarray) and tree.nbytes >= LARGE:
        arrays.append(torch.from_numpy(np.ascontiguousarray(tree)).view(-1).view(torch.uint8))
        return _Place(tree.shape, tree.dtype.str)
    return tree


def _lowered(tree: Any, arrays: list[Tensor], into: Any = None) -> Any:
    """The tree with arrays at its places, new ones or those of `into`, whose memory goes to the list."""
    if isinstance(tree, dict) and not isinstance(tree, Counter):
        own = into if isinstance(into, Mapping) else {}
        return {key: _lowered(value, arrays, own.get(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_lowered(value, arrays) for value in tree)
    if isinstance(tree, _Place):
        array = np.empty(tree.shape, np.dtype(tree.dtype))
        if isinstance(into, np.ndarray) and (into.shape, into.dtype) == (array.shape, array.dtype) and into.flags.c_contiguous:
            array = into
        arrays.append(torch.from_numpy(array).view(-1).view(torch.uint8))
        return array
    return tree
