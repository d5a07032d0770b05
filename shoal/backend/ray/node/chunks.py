"""The chunks that a window holds, within its memory, and those that are waited for."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

from shoal.backend.ray.node.sharing.directory import Key
from shoal.core.trial import Samples


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

    def put(self, key: Key, chunk: HeldChunk, others: int) -> tuple[int, Samples]:
        """Hold one more, and drop some if there is no room for it.

        Returns the bytes of all chunks before some are dropped, with so many `others` that are
        being made, and the samples that no slot asked for yet.
        """
        self._held[key] = chunk
        self.largest = max(self.largest, chunk.bytes)
        most = self.bytes() + others * self.largest
        self.clear(0)
        return most, sum(chunk.rows for chunk in self.unasked())

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


class AwaitedChunks:
    """Chunks that somebody waits for; who asked first comes first."""

    def __init__(self) -> None:
        self._futures: OrderedDict[Key, asyncio.Future[HeldChunk | None]] = OrderedDict()
        self._elsewhere: set[Key] = set()  # those that other nodes wait for

    def __iter__(self) -> Iterator[Key]:
        return iter(self._futures)

    def coming(self, key: Key, elsewhere: bool = False) -> asyncio.Future[HeldChunk | None]:
        """The chunk, once it is there; None if it does not come.

        `elsewhere`: another node waits for it.
        """
        loop = asyncio.get_running_loop()
        if elsewhere:
            self._elsewhere.add(key)
        return asyncio.shield(self._futures.setdefault(key, loop.create_future()))

    def next(self, making: Set[Key]) -> Key | None:
        """The chunk to make next; `making`: those that are being made."""
        return next((key for key in self._futures if key not in making), None)

    def next_elsewhere(self, making: Set[Key]) -> Key | None:
        """The same, of those that other nodes wait for."""
        waiting = (key for key in self._futures if key in self._elsewhere - making)
        return next(waiting, None)

    def answer(self, key: Key, held: HeldChunk | None) -> None:
        """Tell those who wait for the chunk."""
        self._elsewhere.discard(key)
        waiting = self._futures.pop(key, None)
        if waiting is not None:
            waiting.set_result(held)

    def answer_none(self) -> None:
        """Tell those who wait for any chunk that none comes."""
        for key in list(self._futures):
            self.answer(key, None)
