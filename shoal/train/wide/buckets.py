"""Gradients in a few flat arrays, which a lane's processes sum during the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.lane.tensors import in_line, strides
from shoal.train.wide.group import Group
from shoal.train.wide.notes import Bytes
from shoal.train.wide.peers import PeerLost

BYTES = 25 * 2**20  # of a bucket, as in torch's DistributedDataParallel
# Given which parameters have a gradient on this rank: what the rank tells the others.
Tell = Callable[[Sequence[bool]], Bytes]


class Buckets:
    """The gradients of these parameters, in buckets.

    A bucket's sum begins when its last gradient is there and the sums before it have begun. That
    order is the same on every rank, also on one that computes no gradient at all. With the last
    bucket travels what each rank tells the others: a message of its own would cost a small model
    as much as its gradients. An optimizer sees no sum before all of them are there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._all = [*dict.fromkeys(parameters)]
        self.parameters = [p for p in self._all if p.requires_grad]
        self._buckets = [_Bucket(part) for part in _parted(self.parameters[::-1])]
        self._group: Group | None = None  # while sums may begin
        self._tell: Tell | None = None
        self._works: list[Any] = []
        self._lost: PeerLost | None = None
        self._hooks: list[Any] = []
        for bucket in self._buckets:
            hook = self._hook(bucket)
            for parameter in bucket.parameters:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(register(hook))

    def open(self, group: Group, tell: Tell) -> None:
        """Begin sums from now on: the backward pass that comes completes the gradients."""
        self._group = group
        self._tell = tell
        self._works = []
        self._lost = None
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    @property
    def fit(self) -> bool:
        """Whether just these parameters need a gradient now."""
        needing = [p for p in self._all if p.requires_grad]
        return len(needing) == len(self.parameters) and all(map(is_, needing, self.parameters))

    def flush(self) -> None:
        """Begin the sums that have not begun, when the backward pass is over or there was none."""
        self._begin(len(self._buckets))

    def end(self) -> list[Bytes]:
        """Wait for the sums; returns what each rank told.

        Raises:
            PeerLost: a sum could not be made; gradients are what they were.
        """
        if self._lost is not None:
            raise self._lost
        assert self._group is not None, "open comes first"
        for work in self._works:
            self._group.end(work)
        width = self._group.seat.width
        self._group = None
        self._works = []
        return self._buckets[-1].messages(width)

    def fill(self, present: Sequence[bool]) -> None:
        """Set the parameters' gradients to the sums, after `end`.

        `present`: which parameters have a gradient on any rank.
        """
        has_gradient = dict(zip(self.parameters, present, strict=True))
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = None
                if has_gradient[parameter]:
                    parameter.grad = view

    def drop(self) -> None:
        """Forget sums that are not finished."""
        self._group = None
        self._works = []
        self._lost = None
        for bucket in self._buckets:  # a sum that hangs may still write into these
            bucket.renew()

    def close(self) -> None:
        """Remove the hooks: nothing is summed again."""
        for hook in self._hooks:
            hook.remove()

    def present(self) -> list[bool]:
        """Which parameters have a gradient here."""
        return [p.grad is not None for p in self.parameters]

    def _hook(self, bucket: _Bucket) -> Any:
        """The hook that runs when a parameter of the bucket has got its gradient."""

        def ready(_parameter: Tensor) -> None:
            if self._group is None:
                return
            bucket.missing -= 1
            if bucket.missing < 0:
                raise RuntimeError(
                    "a parameter's gradient was added to twice in one backward pass; "
                    "with checkpointing use use_reentrant=False"
                )
            if bucket.missing:
                return
            complete = len(self._works)  # buckets, from the first on, with all their gradients
            while complete < len(self._buckets) and not self._buckets[complete].missing:
                complete += 1
            self._begin(complete)

        return ready

    def _begin(self, upto: int) -> None:
        """Begin the sums of the first so many buckets, with what the rank tells in the last one."""
        group = self._group
        for bucket in self._buckets[len(self._works) : upto]:
            if self._lost is not None:
                return
            assert group is not None and self._tell is not None, "open comes first"
            try:
                if bucket is self._buckets[-1]:
                    bucket.tell(self._tell(self.present()), group.seat.rank, group.seat.width)
                self._works.append(group.begin_sum(bucket.collect()))
            except PeerLost as error:
                # Raised within a backward pass, it would look like the recipe's fault.
                self._lost = error


class _Bucket:
    """Parameters whose gradients are summed as one array, and perhaps a tail behind them."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = 0  # gradients
        self._size = sum(p.numel() for p in parameters)
        self._tail = 0  # numbers behind the gradients
        self.renew()

    def renew(self) -> None:
        """Take a new array."""
        first = self.parameters[0]
        size = self._size + self._tail
        shapes = [(p.shape, strides(p)) for p in self.parameters]
        self._flat = torch.empty(size, dtype=first.dtype, device=first.device)
        self.views = in_line(self._flat[: self._size], shapes)

    def tell(self, message: Bytes, rank: int, width: int) -> None:
        """Put the rank's message behind the gradients.

        Each byte is one number, at the rank's own place: the sum with the zeros of the other ranks
        is exact in every precision.
        """
        size = len(message)
        if self._tail != width * size:
            self._tail = width * size
            self.renew()
        tail = np.zeros(self._tail, np.uint8)
        tail[rank * size : (rank + 1) * size] = message
        self._flat[self._size :] = torch.from_numpy(tail)

    def messages(self, width: int) -> list[Bytes]:
        """The messages of all ranks, once the sum is there."""
        tail = self._flat[self._size :].to("cpu", torch.uint8)
        return list(tail.numpy().reshape(width, -1))

    def collect(self) -> Tensor:
        """The gradients and the tail as one array; zeros where there is no gradient."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            grad = parameter.grad
            if grad is None:
                view.zero_()
            elif grad.is_sparse:
                raise ValueError(
                    "sparse gradients cannot be summed over slots: "
                    "use sparse=False, or widths=(1, 1)"
                )
            else:
                view.copy_(grad)
        return self._flat


def _parted(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Successive parameters of one type and device, of at most `BYTES` together.

    A parameter that is larger has a part of its own.
    """
    parts: list[list[nn.Parameter]] = []
    size = 0
    last_kind: tuple[Any, ...] = ()
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        if kind != last_kind or size + parameter.nbytes > BYTES:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.nbytes
        last_kind = kind
    return parts
