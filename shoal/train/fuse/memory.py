"""The tensors of several lanes in one memory, of which the lanes' own tensors become views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import ceil

import torch
from torch import Tensor

# tensors begin at multiples of so many elements, where processors read fastest
ROOM = 16


Row = Sequence[Tensor]  # of a lane
Rows = Sequence[Row]  # of several lanes


class Stack:
    """n tensors of each of k lanes in one memory: of one dtype, on one device, all contiguous.

    From here on the lanes' own tensors are views of `flat`, a tensor (k, width). `parts` are the
    n tensors as (k, *shape).

    With `by_lane`, each row of `flat` is one lane, as optimizers want it. Otherwise the k lanes
    of a part follow each other, as kernels want it that write to buffers.
    """

    def __init__(self, rows: Rows, *, by_lane: bool) -> None:
        self.rows = rows  # each lane's own tensors
        self._shapes = [tensor.shape for tensor in rows[0]]
        rooms = [ceil(shape.numel() / ROOM) * ROOM for shape in self._shapes]
        self.starts = [0, *accumulate(rooms)]

        like = rows[0][0]
        size = (len(rows), self.starts[-1])
        self.flat = torch.zeros(size, dtype=like.dtype, device=like.device)
        self.parts = self.parts_of(self.flat) if by_lane else self._blocks()
        self.gather()

    def parts_of(self, flat: Tensor) -> list[Tensor]:
        """The n tensors (k, *shape) that a tensor (k, width) with a row a lane consists of."""
        lanes = len(flat)
        parts = []
        for start, end, shape in self._spans():
            columns = flat[:, start:end]
            parts.append(columns.view(lanes, *shape))
        return parts

    def _blocks(self) -> list[Tensor]:
        """The n tensors, of which each one's lanes follow each other."""
        lanes = len(self.flat)
        line = self.flat.view(-1)
        blocks = []
        for start, end, shape in self._spans():
            block = line[lanes * start : lanes * end]
            blocks.append(block.view(lanes, *shape))
        return blocks

    def _spans(self) -> Iterator[tuple[int, int, torch.Size]]:
        """Where each tensor begins and ends in a row, and its shape."""
        for start, shape in zip(self.starts, self._shapes, strict=False):
            yield start, start + shape.numel(), shape

    def gather(self) -> None:
        """Take over the lanes' tensors that lie elsewhere by now."""
        for tensor, view in self._pairs():
            in_place = tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()
            if not in_place:
                view.copy_(tensor.data)
                tensor.data = view

    def part(self) -> None:
        """Give every lane memory of its own."""
        for tensor, view in self._pairs():
            tensor.data = view.clone()

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each lane's tensors, each with its place in the memory."""
        for lane, row in enumerate(self.rows):
            yield from zip(row, [part[lane] for part in self.parts], strict=True)
