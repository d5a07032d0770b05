"""The chunks that a window holds, within its memory."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shoal.backend.ray.node.feeder import Key


@dataclass(eq=False, slots=True)
class HeldChunk:
    """A prepared chunk in the window."""

    ref: Any  # where it lies in the object store
    bytes: int
    rows: int
    asked: bool = False  # a slot got it


class HeldChunks:
    """Chunks by their keys, the one wanted longest ago first. `room`: bytes for all of them."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.largest = 0  # bytes of a chunk, at most so far
        self._held: OrderedDict[Key, HeldChunk] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def get(self, key: Key) -> HeldChunk | None:
        """The chunk; None if it is not held."""
        return self._held.get(key)

    def put(self, key: Key, chunk: HeldChunk) -> None:
        """Hold one more, before there is room for it: see `clear`."""
        self._held[key] = chunk
        self.largest = max(self.largest, chunk.bytes)

    def want(self, keys: Iterable[Key]) -> None:
        """These are wanted now, so that others are dropped before them; the last one last."""
        for key in keys:
            if key in self._held:
                self._held.move_to_end(key)

    def bytes(self) -> int:
        """Bytes of all chunks held."""
        return sum(chunk.bytes for chunk in self._held.values())

    def unasked(self) -> list[HeldChunk]:
        """The chunks that no slot asked for yet."""
        return [chunk for chunk in self._held.values() if not chunk.asked]

    def too_much(self, making: int) -> bool:
        """Whether so many chunks may not be made at a time, for want of memory.

        One at a time always may; before the first is made, nobody knows how large chunks are.
        """
        return making > 1 and making * (self.largest or self.room) > self.room

    def too_far_ahead(self, making: int) -> bool:
        """Whether chunks made early would leave no room for what others are still to take."""
        waiting = sum(chunk.bytes for chunk in self.unasked())
        return waiting + making * self.largest > self.room / 2

    def clear(self, more: int) -> None:
        """Drop chunks, longest unwanted first, until there is room for so many bytes more.

        With `more` 0 the last chunk stays, however large it is.
        """
        total = self.bytes() + more
        fewest = int(more == 0)
        while len(self._held) > fewest and total > self.room:
            _, dropped = self._held.popitem(last=False)
            total -= dropped.bytes
