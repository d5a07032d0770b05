"""Gradients in a few flat arrays, which a lane's processes sum during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train.lane.tensors import in_line, strides
from shoal.train.wide.group import Group
from shoal.train.wide.waiting import PeerLost

BYTES = 25 * 2**20  # of a bucket, as in torch's DistributedDataParallel


class Buckets:
    """The gradients of these parameters, in buckets.

    A bucket's sum begins when its last gradient is there and the sums before it have begun. That
    order is the same on every rank, also on one that computes no gradient at all. An optimizer sees
    no sum before all of them are there: `fill` waits for all.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self._buckets = [_Bucket(some) for some in _parted(self.parameters[::-1])]
        self._group: Group | None = None  # while sums may begin
        self._begun: list[Any] = []
        self._lost: PeerLost | None = None
        self._hooks: list[Any] = []
        for bucket in self._buckets:
            hook = self._hook(bucket)
            for parameter in bucket.parameters:
                register: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(register(hook))

    def open(self, group: Group) -> None:
        """Begin sums from now on: the backward pass that comes completes the gradients."""
        self._group = group
        self._begun = []
        self._lost = None
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def flush(self) -> list[bool]:
        """The backward pass is over, or there was none: begin the sums that have not begun.

        Returns which parameters have a gradient here.
        """
        self._begin(len(self._buckets))
        return [p.grad is not None for p in self.parameters]

    def check(self) -> None:
        """Whether all sums could begin.

        Raises:
            PeerLost: no.
        """
        if self._lost is not None:
            raise self._lost

    def fill(self, present: Sequence[bool]) -> None:
        """Wait for the sums, and make them the gradients.

        `present`: which parameters have a gradient on any rank.

        Raises:
            PeerLost: a sum could not be made; gradients are what they were.
        """
        assert self._group is not None, "open comes first"
        for work in self._begun:
            self._group.end(work)
        self._group = None
        self._begun = []
        views = self._views()
        for parameter, there in zip(self.parameters, present, strict=True):
            parameter.grad = None
            if there:
                parameter.grad = views[parameter]

    def _views(self) -> dict[nn.Parameter, Tensor]:
        """By parameter the place of its gradient in a bucket."""
        views: dict[nn.Parameter, Tensor] = {}
        for bucket in self._buckets:
            views.update(zip(bucket.parameters, bucket.views, strict=True))
        return views

    def drop(self) -> None:
        """Forget sums that are not finished."""
        self._group = None
        self._begun = []
        self._lost = None
        for bucket in self._buckets:  # a sum that hangs may still write into these
            bucket.renew()

    def close(self) -> None:
        """Never sum again."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: _Bucket) -> Any:
        """What runs when a parameter of the bucket has got its gradient."""

        def ready(_parameter: Tensor) -> None:
            if self._group is None:
                return
            bucket.missing -= 1
            if bucket.missing < 0:
                raise RuntimeError(
                    "a parameter's gradient was added to twice in one backward pass; "
                    "with checkpointing use use_reentrant=False"
                )
            self._begin(self._complete())

        return ready

    def _complete(self) -> int:
        """How many buckets, from the first on, have all their gradients."""
        complete = len(self._begun)
        for bucket in self._buckets[complete:]:
            if bucket.missing:
                break
            complete += 1
        return complete

    def _begin(self, upto: int) -> None:
        """Begin the sums of the first so many buckets."""
        try:
            for bucket in self._buckets[len(self._begun) : upto]:
                assert self._group is not None, "open comes first"
                if self._lost is None:
                    work = self._group.begin_sum(bucket.collect())
                    self._begun.append(work)
        except PeerLost as error:
            # Raised within a backward pass, it would look like the recipe's fault.
            self._lost = error


class _Bucket:
    """Parameters whose gradients are summed as one array."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = 0  # gradients
        self.renew()

    def renew(self) -> None:
        """Take a new array."""
        first = self.parameters[0]
        size = sum(p.numel() for p in self.parameters)
        shapes = [(p.shape, strides(p)) for p in self.parameters]
        self._flat = torch.empty(size, dtype=first.dtype, device=first.device)
        self.views = in_line(self._flat, shapes)

    def collect(self) -> Tensor:
        """The gradients as one array; zeros where there is none."""
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
    before: tuple[Any, ...] = ()
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        if kind != before or size + parameter.nbytes > BYTES:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.nbytes
        before = kind
    return parts
