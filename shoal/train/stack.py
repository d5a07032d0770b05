"""The tensors of several lanes in one memory, of which the lanes' own tensors become views."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

LINE = 64  # bytes: matrix products are rounded by where in such a line a matrix begins


class Layout:
    """Where n tensors lie in a lane's row: tensor j begins at column `ends[j]`, in its own order (strides).

    `apart`: with as much room (zeros) before `ends[j + 1]` as makes each tensor begin where memory of its own would.
    """

    def __init__(self, tensors: Sequence[Tensor], *, apart: bool) -> None:
        self.forms = [(tensor.shape, strides(tensor)) for tensor in tensors]
        self.unit = max(1, LINE // tensors[0].element_size())
        room = self.unit if apart else 1
        self.ends = [0, *accumulate(-(-tensor.numel() // room) * room for tensor in tensors)]
        self.width = self.ends[-1]

    def runs(self, first: int, last: int) -> list[tuple[int, int]]:
        """Columns, from that tensor's first on, of these tensors in as few runs as elementwise kernels treat as the tensors.

        Kernels take the end of a tensor, where it does not fill their registers, element by element, and round it otherwise.
        """
        runs, start = list[tuple[int, int]](), self.ends[first]
        for j in range(first, last):
            stop = self.ends[j] + self.forms[j][0].numel()
            if j + 1 == last or stop % self.unit or stop < self.ends[j + 1]:
                runs.append((start - self.ends[first], stop - self.ends[first]))
                start = self.ends[j + 1]
        return runs

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Views of (k, width) as n tensors (k, *shape)."""
        (k, _), (lane, _), start = flat.shape, flat.stride(), flat.storage_offset()
        places = zip(self.ends[:-1], self.forms, strict=True)
        return [flat.as_strided((k, *shape), (lane, *own), start + a) for a, (shape, own) in places]

    def row(self, flat: Tensor, lane: int) -> list[Tensor]:
        """Views of one lane's row of (k, width) as its n tensors."""
        row = flat[lane]
        at = row.storage_offset()
        return [row.as_strided(shape, own, at + a) for a, (shape, own) in zip(self.ends[:-1], self.forms, strict=True)]


class Stack:
    """The same n tensors of k lanes, of one dtype, on one device; from here on the lanes' tensors are views of it.

    `parts`: the n tensors (k, *shape). By rows, `flat` is (k, width) and a lane's tensors are its row; otherwise a part's lanes
    follow each other, as kernels want it that write to it. A tensor keeps its strides: one-pass kernels of optimizers walk
    through parameters, gradients and states alike without a look at strides.
    """

    def __init__(self, rows: Sequence[Sequence[Tensor]], *, by_rows: bool) -> None:
        first, k = rows[0], len(rows)
        self._rows = [list(row) for row in rows]
        self.layout = Layout(first, apart=by_rows)
        self.flat = torch.zeros(k, self.layout.width, dtype=first[0].dtype, device=first[0].device)
        if by_rows:
            self.parts = self.layout.parts(self.flat)
        else:
            places = zip(pairwise(self.layout.ends), self.layout.forms, strict=True)
            self.parts = [self.flat.as_strided((k, *shape), (b - a, *own), k * a) for (a, b), (shape, own) in places]
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


def strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's own; of one with gaps or overlaps in its memory, those of a copy."""
    return torch.empty_like(tensor, device="meta").stride()


def in_line(flat: Tensor, forms: Iterable[tuple[torch.Size, tuple[int, ...]]]) -> list[Tensor]:
    """Views of the flat tensor's elements, one after the other, as tensors of these shapes and strides."""
    views, at = [], flat.storage_offset()
    for shape, own in forms:
        views.append(flat.as_strided(shape, own, at))
        at += shape.numel()
    return views


def unique(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each tensor once, in order."""
    return list({id(tensor): tensor for tensor in tensors}.values())


def is_lazy(tensor: Tensor) -> bool:
    """Whether it waits for the first batch to get its shape."""
    return isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)
