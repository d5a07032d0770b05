"""A part of the data as raw blocks, in the study's order, and functions on their columns."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data

Order = np.ndarray[Any, Any]  # numbers of samples
# What is drawn: the order within a shard, or the order of one pass.
ORDER = 1
EACH = 2


def stable(shard: ShardId) -> int:
    """A number for the shard, the same on every machine."""
    return int.from_bytes(blake2b(shard.encode(), digest_size=8).digest(), "big")


class UnreadError(Exception):
    """The feed does not have the chunk, and only the thread that trains may read the data."""


class Blocks:
    """The raw blocks of one part. The part is read when its first block is asked for.

    `seed`: of the random order of the samples; None: they are in the order of the data.
    """

    def __init__(self, data: Data, part: ShardId, seed: int | None) -> None:
        self._data = data
        self._seed = seed
        self._size = data.size(part)  # samples in the part
        self._chunk = data.chunk  # samples in a block
        self._raw: Columns | None = None
        self._order: Order | None = None
        self.part = part
        self.count = -(-self._size // self._chunk)
        self.missed: set[int] = set()  # blocks that the feed did not have

    @property
    def unread(self) -> bool:
        """Whether the part has still to be read."""
        return self._raw is None

    def load(self) -> Columns:
        """All samples of the part as they lie in the data; read once.

        Raises:
            DataError: the part cannot be read.
        """
        if self._raw is None:
            if self._seed is not None:
                drawn = draw(ORDER, self._seed, self.part)
                self._order = drawn.permutation(self._size)
            self._raw = self._data.read(self.part)
        return self._raw

    def rows(self, number: int) -> int:
        """Samples in a block: the last may have fewer."""
        return min(self._chunk, self._size - number * self._chunk)

    def block(self, number: int) -> Columns:
        """The samples of a block.

        Raises:
            DataError: the part cannot be read.
        """
        raw = self.load()
        start = number * self._chunk
        chosen: Any = slice(start, start + self._chunk)
        if self._order is not None:
            chosen = self._order[chosen]
        return cols.apply(raw, lambda column: column[chosen])


def draw(what: int, seed: int, shard: ShardId, *more: int) -> np.random.Generator:
    """A generator for one of the draws (`ORDER`, `EACH`) of a shard."""
    return np.random.default_rng([what, seed, stable(shard), *more])


def taken(chunk: Columns, order: Order) -> Columns:
    """The chunk's samples in another order."""
    index = torch.from_numpy(order)

    def reordered(column: Any) -> Any:
        if isinstance(column, Tensor):
            return column[index.to(column.device)]
        return column[order]

    return cols.apply(chunk, reordered)


def locked(column: Any) -> Any:
    """The column as an array that cannot be written to, so that a kept chunk stays as it was."""
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def tensor(column: Any) -> Tensor:
    """The column as a tensor: a tensor stays where it is, an array becomes one in main memory."""
    if isinstance(column, Tensor):
        return column
    array = np.asarray(column)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def checked(made: Any, rows: int, hook: str) -> Columns:
    """What a recipe's hook returned, as columns.

    Raises:
        ValueError: they do not have so many samples.
    """
    columns = cols.form(made)
    got = {len(column) for column in cols.parts(columns)}
    if got != {rows}:
        raise ValueError(
            f"{hook} must return columns with as many samples as it got, {rows}; got {sorted(got)}"
        )
    return columns


def on_device(chunk: Columns, device: torch.device, copies: Any) -> Columns:
    """The chunk as tensors on the device. `copies`: the CUDA stream for copies; else None."""
    chunk = cols.apply(chunk, tensor)
    if copies is None:
        if device.type == "cpu":
            return chunk
        return cols.apply(chunk, lambda column: column.to(device))
    with torch.cuda.stream(copies):
        chunk = cols.apply(
            chunk, lambda column: column.pin_memory().to(device, non_blocking=True)
        )
    copies.synchronize()
    # The memory may be used again only when training, on the main stream, is done with it.
    training = torch.cuda.default_stream(device)
    for column in cols.parts(chunk):
        column.record_stream(training)
    return chunk
