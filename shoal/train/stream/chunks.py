"""What streams do with chunks: keep them, sort them by length, make features of them, move them."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import bucketed
from shoal.train.data.columns import Columns, Ragged
from shoal.train.data.data import Data
from shoal.train.data.items import ItemForm, as_column
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.rng import Rng

Order = np.ndarray[Any, Any]  # numbers of samples
BATCHES = 4  # of the recipe's batch size, to a group of samples of similar lengths
USUAL = 32  # samples to a batch, where the recipe's batch size is to be found out
PIECE = 256  # samples of which a featurizer makes features at once


class LengthBuckets:
    """Sorts chunks by the lengths of their samples."""

    def __init__(self, data: Data, batch_size: int | str) -> None:
        size = batch_size if isinstance(batch_size, int) else USUAL
        self._group = BATCHES * size
        self._by = data.arrangement.buckets
        self._form = data.form or ItemForm()

    def sorted(self, chunk: Columns, rng: np.random.Generator) -> Columns:
        """The chunk in groups of similar lengths, which come in a random order."""
        return take_rows(chunk, bucketed(self._lengths(chunk), self._group, rng))

    def _lengths(self, chunk: Columns) -> Any:
        """The length of each sample.

        Raises:
            ValueError: there is no such column, or its values have no lengths.
        """
        named = cols.named(chunk)
        if callable(self._by):
            arrays = cols.apply(chunk, as_numpy)
            form = self._form.of(arrays)
            by_name = dict(zip(named, cols.parts(arrays), strict=True))
            return np.array([self._by(item) for item in form.items(by_name)])
        if self._by not in named:
            raise ValueError(
                f"buckets={self._by!r} must name a column; there are {', '.join(map(str, named))}"
            )
        column = as_numpy(named[self._by])
        if isinstance(column, Ragged):
            return column.lengths
        if column.ndim == 1:
            return column
        return np.full(len(column), column.shape[1])


class Features:
    """`Recipe.features` over whole chunks, in pieces, without gradients.

    `exists`: whether the recipe has a featurizer. `ready`: whether chunks may be made in another
    thread. They may only after the first one: that call may build a model and draw random numbers,
    which it does under the study's seed.
    """

    def __init__(self, recipe: Recipe, seed: int, device: torch.device) -> None:
        self.exists = overrides(recipe, "features")
        self.ready = not self.exists
        self._recipe = recipe
        self._seed = seed
        self._device = device

    def of(self, chunk: Columns) -> Columns:
        """The columns that steps see, on the device.

        Raises:
            ValueError: there are more or fewer samples than before. Or the same samples gave two
                results, which is noticed at the first chunk.
        """
        if not self.ready:
            self._check_first(cols.cut(chunk, 0, PIECE))
        pieces = []
        for start in range(0, cols.rows(chunk), PIECE):
            piece = cols.cut(chunk, start, start + PIECE)
            pieces.append(self._piece(piece))
        if len(pieces) == 1:
            return pieces[0]
        return cols.combine(pieces, torch.cat)

    def _check_first(self, piece: Columns) -> None:
        """Make the first piece twice, and compare the results."""
        with Rng(self._seed, self._device):
            first = self._piece(piece)
            state = torch.get_rng_state()
            second = self._piece(piece)
            drew = not torch.equal(state, torch.get_rng_state())
        are_equal = all(map(torch.equal, cols.parts(first), cols.parts(second)))
        if drew or not are_equal:
            raise ValueError(
                "features must give the same for the same samples: "
                "put its model into evaluation mode, draw nothing"
            )
        self.ready = True

    def _piece(self, piece: Columns) -> Columns:
        """The features of some samples."""
        rows = cols.rows(piece)
        with torch.no_grad():
            features = cols.form(self._recipe.features(piece))
            features = cols.apply(features, self._placed)
        got = {len(column) for column in cols.parts(features)}
        if got != {rows}:
            raise ValueError(
                "features must return columns with as many samples as it got, "
                f"{rows}; got {sorted(got)}"
            )
        return features

    def _placed(self, column: object) -> Tensor:
        """The column as a tensor on the device, without gradients."""
        return torch.as_tensor(column).detach().to(self._device)


class ChunkCache:
    """Prepared chunks by shard, within a limit of bytes.

    Room is made by dropping the shard used longest ago. Several streams can share a cache: each
    has a view of it, made by `of`.
    """

    def __init__(self, limit: float) -> None:
        self._limit = [limit]  # a list, so that all views share it
        self._key = ""  # begins the names of this view's shards
        self._chunks: OrderedDict[str, dict[int, Columns]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = Lock()

    def of(self, key: object) -> ChunkCache:
        """A view of the same cache, for data that is prepared in another way."""
        view = copy(self)
        view._key = repr(key)
        return view

    @property
    def total(self) -> int:
        """Bytes of all chunks."""
        return sum(self._sizes.values())

    def get(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk; None if it is not in the cache."""
        name = self._key + shard
        with self._lock:
            if name not in self._chunks:
                return None
            self._chunks.move_to_end(name)
            return self._chunks[name].get(number)

    def pop(self, shard: ShardId, number: int) -> Columns | None:
        """The chunk, which leaves the cache; None if it is not there."""
        name = self._key + shard
        with self._lock:
            chunk = self._chunks.get(name, {}).pop(number, None)
            if chunk is not None:
                self._sizes[name] -= cols.nbytes(chunk)
        return chunk

    def shrink(self) -> bool:
        """Drop all chunks, and keep half as much from now on; returns whether there were any."""
        with self._lock:
            if not self.total:
                return False
            self._limit[0] = self.total / 2
            self._chunks.clear()
            self._sizes.clear()
        return True

    def share(self, parts: int) -> None:
        """Divide the limit by `parts`, and drop what is beyond."""
        with self._lock:
            self._limit[0] /= parts
            while not self._fits(0):
                oldest, _ = self._chunks.popitem(last=False)
                self._sizes.pop(oldest, None)

    def drop(self, shard: ShardId) -> None:
        """Drop the shard's chunks."""
        name = self._key + shard
        with self._lock:
            self._chunks.pop(name, None)
            self._sizes.pop(name, None)

    def put(self, shard: ShardId, number: int, chunk: Columns) -> None:
        """Keep the chunk if there is room, or other shards can make room.

        A shard that is larger than the limit is kept in part.
        """
        size = cols.nbytes(chunk)
        name = self._key + shard
        with self._lock:
            chunks = self._chunks.setdefault(name, {})
            self._chunks.move_to_end(name)
            if number in chunks:
                return
            while not self._fits(size) and len(self._chunks) > 1:
                oldest, _ = self._chunks.popitem(last=False)
                self._sizes.pop(oldest, None)
            if self._fits(size):
                chunks[number] = chunk
                self._sizes[name] = self._sizes.get(name, 0) + size

    def _fits(self, size: int) -> bool:
        """Whether there is room for so many bytes."""
        return self.total + size <= self._limit[0]


# -- columns of chunks -------------------------------------------------------------------------


def take_rows(chunk: Columns, order: Order) -> Columns:
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


def copy_column(column: Any) -> Any:
    """The column in memory of its own."""
    if isinstance(column, Tensor):
        return column.clone()
    return column.copy()


def join_columns(columns: list[Any]) -> Any:
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


def hook_columns(returned: Any, rows: int, hook: str, whole: bool = False) -> Columns:
    """What a recipe's hook returned, as columns. `whole`: of items that collate puts together.

    Raises:
        ValueError: they do not have so many samples.
    """
    columns = cols.form(returned)
    if whole:
        named = cols.named(columns)
        arrays = {name: as_numpy(as_column(column, name)) for name, column in named.items()}
        columns = arrays if isinstance(columns, dict) else tuple(arrays.values())
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
