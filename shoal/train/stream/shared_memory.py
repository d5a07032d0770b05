"""Columns and recipes in shared memory, on their way from one process to another."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

from shoal.engine.process import away_from_folder
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns

SYSTEM = Path("/dev/shm")  # where Linux has shared memory; other systems need no check
ALIGN = 64  # bytes: arrays start at cache lines
Span = tuple[int, int]  # where some bytes begin and end


@dataclass(frozen=True, slots=True)
class Placed:
    """Something pickled that lies in a piece of shared memory: the pickle, then its arrays."""

    name: str  # of the piece
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True)
class _PackedArray:
    """An array on its way, with its layout: see `columns.pack_layout`."""

    form: cols.PackedColumn


def place(
    name: str,
    pickled: bytes,
    buffers: Sequence[pickle.PickleBuffer],
    free: list[SharedMemory] | None = None,
) -> tuple[Placed, SharedMemory]:
    """Copy a pickle and its buffers to a new piece of shared memory, or to a free one.

    Whoever needs the piece last has to unlink it. A free piece is taken out of the list: one that
    is used again, or one that was too small and is removed.

    Raises:
        OSError: there is not so much shared memory.
    """
    pieces = [memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    spans: list[Span] = []
    end = 0
    for piece in pieces:
        start = -(-end // ALIGN) * ALIGN
        end = start + piece.nbytes
        spans.append((start, end))
    memory = _reused(free or [], end)
    if memory is None:
        _check_room(end)
        memory = _piece(name, create=True, size=max(1, end))
    view = np.frombuffer(_buffer(memory), np.uint8)
    for (start, stop), piece in zip(spans, pieces, strict=True):
        view[start:stop] = np.frombuffer(piece, np.uint8)
    return Placed(memory.name, spans), memory


def _piece(name: str, **how: Any) -> SharedMemory:
    """The piece of this name; a process of Python's will remove it if nobody does."""
    if os.name == "posix":
        with away_from_folder():
            resource_tracker.ensure_running()
    return SharedMemory(name, **how)


def _reused(free: list[SharedMemory], size: int) -> SharedMemory | None:
    """A free piece that holds so many bytes; the system need not make its pages anew."""
    for memory in free:
        if memory.size >= size:
            free.remove(memory)
            return memory
    if free:
        smaller = free.pop()
        smaller.close()
        smaller.unlink()
    return None


def _check_room(size: int) -> None:
    """Raise OSError if so many bytes do not fit: writing to them would kill the process."""
    if not SYSTEM.is_dir():
        return
    free = shutil.disk_usage(SYSTEM).free
    if free < size:
        raise OSError(
            f"{size / 2**20:.0f} MB are needed and {free / 2**20:.0f} MB are free in {SYSTEM}: "
            "give the container more (docker run --shm-size=…)"
        )


def place_columns(
    name: str, columns: Columns, free: list[SharedMemory] | None = None
) -> tuple[Placed, SharedMemory]:
    """Copy a chunk's columns to a piece of shared memory: see `place`."""
    buffers: list[pickle.PickleBuffer] = []
    packed = cols.apply(columns, _packed)
    pickled = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    return place(name, pickled, buffers, free)


def take_columns(placed: Placed, last: bool = False) -> Columns:
    """The columns, in memory of their own. `last`: nobody needs the piece any more.

    Raises:
        FileNotFoundError: the piece is gone.
    """
    memory = _piece(placed.name)
    try:
        content = np.empty(placed.spans[-1][1] + ALIGN, np.uint8)
        shift = -content.ctypes.data % ALIGN
        content = content[shift : shift + placed.spans[-1][1]]
        content[:] = np.frombuffer(_buffer(memory), np.uint8, count=len(content))
    finally:
        memory.close()
        if last:
            memory.unlink()
    columns: Columns = _loaded(content.data, placed.spans)
    return cols.apply(columns, _unpacked)


def open_piece(placed: Placed) -> tuple[Any, SharedMemory]:
    """What was pickled; its arrays lie in the piece, which has to stay open. For reading only."""
    memory = _piece(placed.name)
    return _loaded(_buffer(memory).toreadonly(), placed.spans), memory


def remove(name: str) -> None:
    """Remove a piece that nobody will take, if it is there."""
    try:
        memory = _piece(name)
    except (FileNotFoundError, ValueError):
        return
    memory.close()
    memory.unlink()


def _loaded(view: memoryview, spans: Sequence[Span]) -> Any:
    """What was pickled, with its arrays as views."""
    (start, stop), *rest = spans
    buffers = [view[begin:end] for begin, end in rest]
    return pickle.loads(view[start:stop], buffers=buffers)


def _buffer(memory: SharedMemory) -> memoryview:
    """The content of a piece that is open."""
    view = memory.buf
    assert view is not None, "it is open"
    return view


def _packed(column: Any) -> Any:
    """The column for the way: an array with its layout."""
    if isinstance(column, np.ndarray):
        return _PackedArray(cols.pack_layout(column))
    return column


def _unpacked(column: Any) -> Any:
    """The column as it was before `_packed`."""
    if isinstance(column, _PackedArray):
        numbers, shape, strides = column.form
        return np.lib.stride_tricks.as_strided(numbers, shape, strides)
    return column
