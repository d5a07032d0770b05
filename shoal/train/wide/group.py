"""The processes of one generation of a wide lane, connected.

They form an explicit process group with a store of its own.
"""

from __future__ import annotations

import os
import pickle
import threading
from contextlib import suppress
from datetime import timedelta
from time import monotonic, perf_counter
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from shoal.core.trial import Seconds
from shoal.profile.all_reduce import Link, link_of, quickest, ring
from shoal.train.private import gloo_group, nccl_group
from shoal.train.recipe.seat import Orders, Seat
from shoal.train.wide import parcel
from shoal.train.wide.peers import POLL, PeerLost, describe, is_broken, losing_peers, wait

dist: Any = torch.distributed  # some of what is public in it has no types
LARGE = 2**20  # bytes of the sum that tells how long a byte takes
SUMS = 3  # of each size that are timed, after one that is not; the quickest counts
LOOK = 0.5  # seconds between two looks at orders while a peer is waited for


class Group:
    """Collective operations among the ranks. All ranks call the same ones in the same order.

    Raises (every method but `close`):
        PeerLost: a process is gone, did not come within `seat.stall`, or the driver said so.
    """

    def __init__(self, seat: Seat, store: Any, orders: Orders, device: torch.device) -> None:
        self.seat = seat
        self.sent = 0  # bytes of trees, so far
        self._orders = orders
        self._stall = timedelta(seconds=seat.stall)
        with losing_peers():
            prefixed = dist.PrefixStore("gloo", store)
            self._control = gloo_group(prefixed, seat.rank, seat.width, seat.host, seat.patience)
            self._gradients = self._control
            if seat.gradients == "nccl":
                # Its own watch would end the process when a peer is lost, which Shoal handles.
                for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING"):
                    os.environ.setdefault(name, "0")
                prefixed = dist.PrefixStore("nccl", store)
                self._gradients = nccl_group(prefixed, seat.rank, seat.width, seat.stall)
        if seat.gradients == "nccl":
            # NCCL connects with the first sum, so let that be now, while all are here.
            self.end(self.begin_sum(torch.zeros(1, device=device)))

    # -- sums ----------------------------------------------------------------------------------

    def begin_sum(self, gradients: Tensor) -> Any:
        """Start to sum a flat array over the ranks, in place; to be finished by `end`."""
        return self._begin_sum(self._gradients, gradients)

    def end(self, work: Any) -> None:
        """Wait until that sum is there. Only then may the array be used."""
        if self._gradients is self._control:
            self._finish(work)
            return
        # NCCL's own `wait` holds back the device only, and the loss of a peer would be noticed
        # after the step.
        wait(work.is_completed, self.seat, self._is_broken, POLL / 10)
        with losing_peers():
            work.wait(self._stall)  # with a limit it raises what went wrong

    def link(self, device: torch.device) -> Link:
        """The cost of a message between these ranks, by a small and a large sum of gradients."""
        small = self._quickest_sum(torch.zeros(1, device=device))
        large = self._quickest_sum(torch.zeros(LARGE // 4, device=device))
        how = ring if self.rings else quickest
        return link_of(how, self.seat.width, small, large, LARGE)

    @property
    def rings(self) -> bool:
        """Whether sums of any size go round a ring, as gloo's do; NCCL chooses."""
        return self.seat.gradients == "gloo"

    def _quickest_sum(self, gradients: Tensor) -> Seconds:
        """Seconds of a sum of this size, as steps make it."""
        seconds = []
        for _ in range(1 + SUMS):
            begin = perf_counter()
            self.end(self.begin_sum(gradients))
            seconds.append(perf_counter() - begin)
        return min(seconds[1:])

    def sum(self, numbers: Tensor) -> None:
        """Sum numbers in main memory, in place."""
        self._finish(self._begin_sum(self._control, numbers))

    def _begin_sum(self, group: Any, numbers: Tensor) -> Any:
        options = dist.AllreduceOptions()
        options.timeout = self._stall
        with losing_peers():
            return group.allreduce([numbers], options)

    # -- objects -------------------------------------------------------------------------------

    def gather(self, *numbers: int) -> list[tuple[int, ...]]:
        """Every rank's numbers, in gang order."""
        rows = self.gather_rows(torch.tensor(numbers, dtype=torch.int64))
        return [tuple(row) for row in rows.tolist()]

    def gather_rows(self, row: Tensor) -> Tensor:
        """Every rank's row of numbers in main memory, in gang order; all are equally long."""
        rows = torch.zeros(self.seat.width, len(row), dtype=row.dtype)
        rows[self.seat.rank] = row
        self.sum(rows)
        return rows

    def union(self, names: set[str]) -> list[str]:
        """The names that any rank has."""
        all_names: set[str] = set()
        for rank in range(self.seat.width):
            own_names = None
            if rank == self.seat.rank:
                own_names = sorted(names)
            all_names.update(self.send(own_names, rank))
        return sorted(all_names)

    def send(self, tree: Any, source: int, into: Any = None) -> Any:
        """The tree of arrays and plain values that rank `source` has.

        The other ranks pass None as the tree, and own what they get. `into`: a tree of arrays that
        are not needed any more; arrays that are sent go there if they fit.
        """
        arrays: list[Tensor] = []
        if self.seat.rank == source:
            packed = parcel.pack(tree, arrays)
            self._send_bytes(pickle.dumps(packed), source)
        else:
            packed = parcel.loads(self._send_bytes(b"", source))
            tree = parcel.unpack(packed, arrays, into)
        for array in arrays:
            self._broadcast(array, source)
            self.sent += array.nbytes
        return tree

    def _send_bytes(self, text: bytes, source: int) -> bytes:
        """The bytes that rank `source` has; the other ranks pass none."""
        size = torch.tensor([len(text)], dtype=torch.int64)
        self._broadcast(size, source)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if text:
            buffer = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._broadcast(buffer, source)
        self.sent += buffer.nbytes
        return buffer.numpy().tobytes()

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        """Send the tensor of rank `source` to all others, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        options.timeout = self._stall
        with losing_peers():
            work = self._control.broadcast([tensor], options)
        self._finish(work)

    def _finish(self, work: Any) -> None:
        """Wait for the operation, and look at orders meanwhile."""
        until = monotonic() + self.seat.stall
        while True:
            try:
                work.wait(timedelta(seconds=LOOK))
                return
            except RuntimeError as error:
                text = str(error)
                late = "timed out" in text.lower() and not work.is_completed()
                if not late or monotonic() >= until:
                    raise PeerLost(text.split("\n", maxsplit=1)[0]) from error
            if self._is_broken():
                raise PeerLost(f"{describe(self.seat)}: called off")

    def _is_broken(self) -> bool:
        """Whether the driver knows that a peer is waited for in vain."""
        return is_broken(self.seat, self._orders)

    def close(self) -> None:
        """Leave. A process that still waits for this one sees at once that it is gone."""
        groups = [self._control, self._gradients]
        del self._control, self._gradients
        # In a thread, for an operation that hangs delays the end.
        threading.Thread(target=_drop, args=(groups,), daemon=True).start()


def _drop(groups: list[Any]) -> None:
    """End the process groups: the one for control, and that of the gradients."""
    control, gradients = groups
    if control is not gradients:
        with suppress(RuntimeError):
            gradients.abort()
    del control, gradients
    groups.clear()
