"""The chunks of a pass, each of them begun while the one before is in use."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import torch

from shoal.core.cluster import ShardId
from shoal.train.data.columns import Columns
from shoal.train.stream.blocks import Blocks, UnreadError
from shoal.train.stream.feed import PassOrder

Begun = Callable[[], Columns]  # waits for the chunk


class SideThread:
    """The thread beside training in which a stream makes its chunks; it starts when needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, make: Callable[[int], Columns], number: int) -> Future[Columns]:
        """Begin to make the chunk."""
        if self._pool is None:
            self._pool = _one_thread()
        return self._pool.submit(make, number)


@dataclass(frozen=True, slots=True)
class EarlyPass:
    """A pass that was begun before the pass before it was over."""

    order: PassOrder
    first: Future[Columns] | None  # its first chunk, if that was begun

    def fits(self, shard: ShardId, turn: int, shuffle: str) -> bool:
        """Whether it is this pass."""
        order = self.order
        return (order.blocks.part, order.turn, order.shuffle) == (shard, turn, shuffle)


class PassChunks:
    """Hands out the chunks of one pass in order.

    `make` makes a chunk, in the thread beside training. `at_once`: whether a chunk is rather made
    when it is asked for, in the thread that trains. `reads_here`: whether what a chunk is made of
    must be read now, in the thread that trains. `begun`: the first chunk, if it was begun early.
    `go_on` is called when the last chunk is about to be handed out.
    """

    def __init__(
        self,
        blocks: Blocks,
        numbers: Sequence[int],
        make: Callable[[int], Columns],
        thread: SideThread,
        *,
        at_once: Callable[[int], bool],
        reads_here: Callable[[int], bool],
        begun: Future[Columns] | None = None,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        self._early = begun
        self._go_on = go_on
        self._blocks = blocks
        self._numbers = numbers
        self._make = make
        self._thread = thread
        self._at_once = at_once
        self._reads_here = reads_here
        self._pending: list[Future[Columns]] = []  # the last two that were begun

    def chunks(self) -> Generator[Columns, None, None]:
        """The chunks. The next one is begun when a chunk is handed out."""
        try:
            coming = self._begin(self._numbers[0])
            for following in self._numbers[1:]:
                ready = coming
                coming = self._begin(following)
                yield ready()
            ready = coming
            last = ready()
            self._go_on()
            yield last
        finally:
            # If the caller stops early, nothing may go on beside what comes next.
            wait(self._pending)

    def _begin(self, number: int) -> Begun:
        """Begin to make a chunk."""
        if self._early is not None:
            begun = self._early
            self._early = None
            return partial(self._finish, begun.result, number)
        if len(self._numbers) == 1 or self._at_once(number):
            make = partial(self._make, number)
            return partial(self._finish, make, number)
        if self._reads_here(number):
            self._blocks.bring(number)
        begun = self._thread.submit(self._make, number)
        self._pending = [*self._pending[-1:], begun]
        return partial(self._finish, begun.result, number)

    def _finish(self, begun: Begun, number: int) -> Columns:
        """Wait for the chunk. If it could not be made for want of the data, read that here."""
        try:
            return begun()
        except UnreadError:
            wait(self._pending)  # one chunk is prepared at a time
            self._blocks.bring(number)
            return self._make(number)


def _one_thread() -> ThreadPoolExecutor:
    """A thread in which torch may use as many threads as in this one."""
    count = torch.get_num_threads()
    return ThreadPoolExecutor(1, "shoal-chunks", torch.set_num_threads, (count,))
