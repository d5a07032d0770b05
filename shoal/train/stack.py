"""The tensors of several lanes in one memory, of which the lanes' own tensors become views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn


class Layout:
    """Where n tensors lie in a lane's row: tensor j has the columns `ends[j]` to `ends[j + 1]`."""

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        self.shapes = shapes
        self.ends = [0, *accumulate(shape.numel() for shape in shapes)]
        self.width = self.ends[-1]

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Views of (k, width) as n tensors (k, *shape)."""
        k, spans = len(flat), zip(pairwise(self.ends), self.shapes, strict=True)
        return [flat[:, a:b].view(k, *shape) for (a, b), shape in spans]

    def row(self, flat: Tensor, lane: int) -> list[Tensor]:
        """Views of one lane's row of (k, width) as its n tensors."""
        row = flat[lane]
        return [row[a:b].view(shape) for (a, b), shape in zip(pairwise(self.ends), self.shapes, strict=True)]


class Stack:
    """The same n tensors of k lanes, of one dtype, on one device; from here on the lanes' tensors are views of it.

    `parts`: the n tensors (k, *shape). By rows, `flat` is (k, width) and a lane's tensors are its row; otherwise each part is
    contiguous, as kernels want it that write to it.
    """

    def __init__(self, rows: Sequence[Sequence[Tensor]], *, by_rows: bool) -> None:
        first, k = rows[0], len(rows)
        self._rows = [list(row) for row in rows]
        self.layout = Layout([tensor.shape for tensor in first])
        self.flat = torch.empty(k, self.layout.width, dtype=first[0].dtype, device=first[0].device)
        if by_rows:
            self.parts = self.layout.parts(self.flat)
        else:
            spans = zip(pairwise(self.layout.ends), self.layout.shapes, strict=True)
            self.parts = [self.flat.view(-1)[k * a : k * b].view(k, *shape) for (a, b), shape in spans]
        self._views = [[part[i] for part in self.parts] for i in range(k)]
        self.gather()

    def gather(self) -> None:
        """Take over what lies elsewhere."""
        for tensor, view in self._pairs():
            if tensor.data_ptr() != view.data_ptr() or tensor.stride() != view.stride():
                view.copy_(tensor.data)
                tensor.data = view

    def part(self) -> None:
        """Give every lane memory of its own."""
        for tensor, view in self._pairs():
            tensor.data = view.clone()

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        for row, views in zip(self._rows, self._views, strict=True):
            yield from zip(row, views, strict=True)


def stacks(rows: Sequence[Sequence[Tensor]]) -> tuple[list[Stack], list[tuple[int, int]]]:
    """A stack for each dtype and device; and where each tensor went: (stack, position in it)."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for j, tensor in enumerate(rows[0]):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(j)
    made = [Stack([[row[j] for j in numbers] for row in rows], by_rows=False) for numbers in kinds.values()]
    where = {j: (s, i) for s, numbers in enumerate(kinds.values()) for i, j in enumerate(numbers)}
    return made, [where[j] for j in range(len(rows[0]))]


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each tensor once, in order."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def is_lazy(tensor: Tensor) -> bool:
    """Whether it waits for the first batch to get its shape."""
    return isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
