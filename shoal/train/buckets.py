"""Gradients in a few flat arrays, summed over a lane's processes while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train.group import Group, PeerLost
from shoal.train.stack import in_line, strides

BYTES = 25 * 2**20  # of a bucket, as in DDP


class Buckets:
    """The gradients of these parameters. A bucket's sum begins when its last gradient is there and those before it have begun.

    That order is the same on every rank, also on one that computes no gradient at all. A sum that fails changes no gradient
    that an optimizer sees: `fill` is called only once all are there.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        self._buckets = [_Bucket(some) for some in _parted(self.parameters[::-1])]
        self._group: Group | None = None  # while sums may begin
        self._begun: list[Any] = []
        self._lost: PeerLost | None = None
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]
            for bucket in self._buckets
            for p in bucket.parameters
        ]

    def open(self, group: Group) -> None:
        """The backward pass that comes completes the gradients."""
        self._group, self._begun, self._lost = group, [], None
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def flush(self) -> list[bool]:
        """The backward pass is over, or there was none: begin what has not begun. Which parameters have a gradient here."""
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
        """Wait for the sums, and make them the gradients of the parameters that have one on any rank.

        Raises:
            PeerLost: a sum could not be made; gradients are what they were.
        """
        assert self._group is not None, "open comes first"
        for work in self._begun:
            self._group.end(work)
        self._group, self._begun = None, []
        views = {p: view for bucket in self._buckets for p, view in zip(bucket.parameters, bucket.views, strict=True)}
        for parameter, there in zip(self.parameters, present, strict=True):
            parameter.grad = views[parameter] if there else None

    def drop(self) -> None:
        """Forget sums that are not finished."""
        self._group, self._begun, self._lost = None, [], None
        for bucket in self._buckets:  # a sum that hangs may still write into these
            bucket.renew()

    def close(self) -> None:
        """Never sum again."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, bucket: _Bucket) -> Any:
        def ready(_parameter: Tensor) -> None:
            if self._group is None:
                return
            bucket.missing -= 1
            if bucket.missing < 0:
                raise RuntimeError(
                    "a parameter's gradient was added to twice in one backward pass; with checkpointing use use_reentrant=False"
                )
            begun = len(self._begun)
            complete = next((i for i, one in enumerate(self._buckets[begun:], begun) if one.missing), len(self._buckets))
            self._begin(complete)

        return ready

    def _begin(self, upto: int) -> None:
        """Begin the sums of the first so many buckets."""
        try:
            for bucket in self._buckets[len(self._begun) : upto]:
                assert self._group is not None, "open comes first"
                if self._lost is None:
                    self._begun.append(self._group.begin_sum(bucket.collect()))
        except PeerLost as error:  # within a backward pass it would look like the recipe's fault
            self._lost = error


class _Bucket:
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = 0  # gradients
        self.renew()

    def renew(self) -> None:
        first = self.parameters[0]
        self._flat = torch.empty(sum(p.numel() for p in self.parameters), dtype=first.dtype, device=first.device)
        self.views = in_line(self._flat, [(p.shape, strides(p)) for p in self.parameters])

    def collect(self) -> Tensor:
        """The gradients as one array; zeros where there is none."""
        for parameter, view in zip(self.parameters, self.views, strict=True):
            grad = parameter.grad
            if grad is None:
                view.zero_()
            elif grad.is_sparse:
                raise ValueError("sparse gradients cannot be summed over slots: use sparse=False, or widths=(1, 1)")
            else:
                view.copy_(grad)
        return self._flat


def _parted(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Runs of parameters of one type and device, of at most `BYTES` where one parameter has no more."""
    parts: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        last = parts[-1][-1] if parts else None
        alike = last is not None and (last.dtype, last.device) == (parameter.dtype, parameter.device)
        if not alike or size + parameter.nbytes > BYTES:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.nbytes
    return parts
