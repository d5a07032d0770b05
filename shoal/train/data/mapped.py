"""Arrays that stay in their files: memory-mapped, read where they are asked for."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from mmap import mmap
from typing import Any

import numpy as np

PIECE = 2**16  # bytes of a place that a fingerprint looks at
PLACES = 64  # that it looks at


@dataclass(slots=True)
class MappedArray:
    """An array in a file. It travels as the file's name, and is mapped again where it arrives."""

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int  # bytes before it in the file
    order: str  # "C" or "F"
    _mapped: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, array: np.memmap[Any, Any]) -> MappedArray | None:
        """The whole file's array; None if this is a part of one, or its file is not known."""
        if not isinstance(array.base, mmap) or array.filename is None:
            return None
        order = "C"
        if not array.flags.c_contiguous:
            order = "F"
        return cls(str(array.filename), array.dtype, array.shape, int(array.offset), order)

    def __getstate__(self) -> Any:
        return self.path, self.dtype, self.shape, self.offset, self.order

    def __setstate__(self, state: Any) -> None:
        self.path, self.dtype, self.shape, self.offset, self.order = state
        self._mapped = None

    @property
    def array(self) -> Any:
        """The array, mapped.

        Raises:
            OSError: the file was cut short. To read what is not there would end the process.
        """
        end = self.offset + self.nbytes
        with suppress(FileNotFoundError):  # what is mapped stays as long as it is mapped
            there = os.stat(self.path).st_size
            if there < end:
                raise OSError(f"{self.path} has {there} bytes, and had {end} or more")
        if self._mapped is None:
            options: dict[str, Any] = {"offset": self.offset, "shape": self.shape}
            options["order"] = self.order
            self._mapped = np.memmap(self.path, self.dtype, mode="r", **options)
        return self._mapped

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.array, dtype=dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: Any) -> Any:
        taken = self.array[chosen]
        if isinstance(taken, np.memmap):
            return np.array(taken)
        return np.asarray(taken)  # rows by number are in memory of their own already

    @property
    def ndim(self) -> int:
        """Axes, with that of the samples."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.dtype.itemsize * prod(self.shape)

    def looked_at(self) -> bytes:
        """Some of its contents, spread over the file, for a fingerprint."""
        raw = np.memmap(self.path, np.uint8, mode="r", offset=self.offset, shape=(self.nbytes,))
        places = np.linspace(0, max(0, self.nbytes - PIECE), PLACES).astype(int)
        return b"".join(raw[at : at + PIECE].tobytes() for at in np.unique(places))
