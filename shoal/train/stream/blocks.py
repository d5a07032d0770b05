"""A part of the data as raw blocks, in the study's order, and functions on their columns."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.core.trial import Seconds
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import stable, streams
from shoal.train.data.columns import Columns, Ragged
from shoal.train.data.data import Data
from shoal.train.data.items import as_column

Order = np.ndarray[Any, Any]  # numbers of samples
# What is drawn: the order within a shard, or the order of one pass.
ORDER = 1
EACH = 2
BUCKETS = 5
ONCE = "once"
DRAWS = "drawn:"  # begins an order that the data draws for one pass
# Ends an order, before the number of the only pass that has these samples: see `Data.of_pass`.
OF_PASS = "@"


def kept_name(part: ShardId, order: str) -> ShardId:
    """The name in a cache of what is made of the part's blocks in that order."""
    if order == ONCE:
        return part
    return ShardId(f"{part}/{order}")


def lasting(shuffle: str) -> str:
    """The order in which the chunks of such passes are kept."""
    kind, *turn = shuffle.split(OF_PASS)
    return OF_PASS.join([ONCE if kind == "each" else kind, *turn])


def mixes(shuffle: str) -> bool:
    """Whether each pass of this order has the samples in an order of its own."""
    return shuffle.partition(OF_PASS)[0] == "each"


class UnreadError(Exception):
    """A block was not read yet, and only the thread that trains may read the data."""


class Blocks:
    """The raw blocks of one part.

    Of data that can be read by rows a block is read alone, and not kept. Of other data the whole
    part is read when its first block is asked for. `seed`: of the random order of the samples;
    None: they are in the order of the data. `order`: "once", "sequential", "streams:N" (each row
    of a batch of N samples continues that row of the batch before), or "drawn:TURN" (as the data
    draws them for that pass). With "@TURN" at its end the part has the samples that the data gives
    to that pass.

    `name`: of what is made of these blocks, in a cache. `lasts`: they are the same in all passes.
    `trained`: they are of a training shard.
    """

    def __init__(self, data: Data, part: ShardId, seed: int | None, order: str = ONCE) -> None:
        self._kind, _, turn = order.partition(OF_PASS)
        if turn:
            assert seed is not None, "training shards have passes"
            data = data.of_pass(seed, int(turn))
        self._data = data
        self._seed = seed
        self._size = data.size(part)  # samples in the part
        self._chunk = data.chunk  # samples in a block
        self._raw: Columns | None = None  # the whole part
        self._brought: dict[int, Columns] = {}  # blocks that were read and not yet taken
        self._took: dict[int, Seconds] = {}  # for bringing blocks
        self.part = part
        self.order = order
        self.name = kept_name(part, order)
        self.trained = seed is not None
        self.lasts = not (order.startswith(DRAWS) or (turn and data.anew))
        self.count = -(-self._size // self._chunk)
        self.missed: set[int] = set()  # blocks that the feed did not have

    @cached_property
    def _order(self) -> Order:
        """The samples in the order of the blocks."""
        kind, _, number = self._kind.partition(":")
        if kind == "streams":
            return streams(self._size, min(int(number), self._size))
        if kind == "drawn":
            draws = self._data.arrangement.draws
            assert draws is not None and self._seed is not None, "the data draws"
            return draws.order(self.part, self._seed, int(number))
        if self._seed is None or kind == "sequential":
            return np.arange(self._size)
        return draw(ORDER, self._seed, self.part).permutation(self._size)

    def lacks(self, number: int) -> bool:
        """Whether the block has still to be read."""
        return self._raw is None and number not in self._brought

    def bring(self, number: int) -> None:
        """Read what the block is made of, in this thread.

        Raises:
            DataError: the part cannot be read.
        """
        if not self.lacks(number):
            return
        begin = perf_counter()
        if self._data.by_rows:
            self._brought[number] = self._read(number)
        else:
            self._raw = self._data.read(self.part)
        self._took[number] = perf_counter() - begin

    def forget(self, number: int) -> Seconds:
        """Drop what was brought for the block; returns the seconds that bringing it took."""
        self._brought.pop(number, None)
        return self._took.pop(number, 0.0)

    def _read(self, number: int) -> Columns:
        return self._data.rows(self.part, self._chosen(number))

    def _chosen(self, number: int) -> Order:
        """The samples of a block, by their places in the part."""
        start = number * self._chunk
        return self._order[start : start + self._chunk]

    def rows(self, number: int) -> int:
        """Samples in a block: the last may have fewer."""
        return min(self._chunk, self._size - number * self._chunk)

    def block(self, number: int) -> Columns:
        """The samples of a block.

        Raises:
            DataError: the part cannot be read.
            UnreadError: it was not read yet, and may only be read by `bring`.
        """
        if self._data.serial and self.lacks(number):
            raise UnreadError
        if number in self._brought:
            return self._brought.pop(number)
        if self._data.by_rows:
            return self._read(number)
        self.bring(number)
        chosen = self._chosen(number)
        raw = self._raw
        assert raw is not None, "it was just brought"
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
    if isinstance(column, Ragged):
        return column.locked()
    if isinstance(column, np.ndarray):
        column = column.view()
        column.flags.writeable = False
    return column


def copied(column: Any) -> Any:
    """The column in memory of its own."""
    if isinstance(column, Tensor):
        return column.clone()
    return column.copy()


def joined(columns: list[Any]) -> Any:
    """The pieces of one column, one after the other."""
    if isinstance(columns[0], Tensor):
        return torch.cat(columns)
    if any(isinstance(column, Ragged) for column in columns):
        return Ragged.joined(columns)
    return np.concatenate(columns)


def as_numpy(column: Any) -> Any:
    """The column in main memory, as an array or a `Ragged`."""
    if isinstance(column, Ragged):
        return column
    return np.asarray(column)


def tensor(column: Any) -> Tensor:
    """The column as a tensor: a tensor stays where it is, an array becomes one in main memory."""
    if isinstance(column, Tensor):
        return column
    array = np.asarray(column)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def _kept(column: Any, name: Any) -> Any:
    """A column of items: an array or a `Ragged`."""
    return as_numpy(as_column(column, name))


def checked(made: Any, rows: int, hook: str, whole: bool = False) -> Columns:
    """What a recipe's hook returned, as columns. `whole`: of items that collate puts together.

    Raises:
        ValueError: they do not have so many samples.
    """
    columns = cols.form(made)
    if whole:
        named = columns if isinstance(columns, dict) else dict(enumerate(columns))
        made = {name: _kept(column, name) for name, column in named.items()}
        columns = made if isinstance(columns, dict) else tuple(made.values())
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
        chunk = cols.apply(chunk, lambda column: column.pin_memory().to(device, non_blocking=True))
    copies.synchronize()
    # The memory may be used again only when training, on the main stream, is done with it.
    training = torch.cuda.default_stream(device)
    for column in cols.parts(chunk):
        column.record_stream(training)
    return chunk
