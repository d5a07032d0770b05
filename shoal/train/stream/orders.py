"""In which order a stream's passes take the samples, and the batches that collate makes of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing

import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.arrangement import stable
from shoal.train.data.collate import Collator, as_lot
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.private import writes
from shoal.train.stream.blocks import DRAWS, EACH, OF_PASS, Blocks, draw, lasting, mixes
from shoal.train.stream.feed import PassOrder

READING = 2  # parts whose blocks are kept at hand
Chunks = Generator[Columns, None, None]


class PassOrders:
    """The chunks of each pass, in order, of one stream.

    `drawn`: each pass has samples, or an order of them, of its own.
    """

    def __init__(self, data: Data, seed: int) -> None:
        self._data = data
        self._seed = seed
        self._blocks: OrderedDict[tuple[ShardId, str], Blocks] = OrderedDict()
        self._dealt = data.arrangement.reshuffles
        self._drawn = data.arrangement.draws is not None
        self.drawn = self._dealt or self._drawn or data.anew

    def name(self, shuffle: str, turn: int) -> str:
        """The order of a pass: `shuffle`, unless each pass has an order or samples of its own."""
        order = f"{DRAWS}{turn}" if self._drawn else shuffle
        if self._data.anew or (self._dealt and turn):
            order += f"{OF_PASS}{turn}"
        return order

    def of(self, shard: ShardId, turn: int, shuffle: str) -> PassOrder:
        """The chunks of a training pass."""
        blocks = Blocks(self._data, shard, self._seed, lasting(shuffle))
        numbers = list(range(blocks.count))
        if mixes(shuffle):
            drawn = draw(EACH, self._seed, shard, turn)
            numbers = drawn.permutation(blocks.count).tolist()
        return PassOrder(blocks, numbers, turn, shuffle)

    def scored(self, part: ShardId, order: str) -> PassOrder:
        """The chunks of a validation part."""
        blocks = Blocks(self._data, part, None, order)
        return PassOrder(blocks, range(blocks.count), None, order)

    def blocks(self, part: ShardId, order: str) -> Blocks:
        """The blocks of the part; those of the last few parts stay."""
        key = (part, order)
        if key not in self._blocks:
            seed = None
            if part in self._data.shards:
                seed = self._seed
            self._blocks[key] = Blocks(self._data, part, seed, order)
            while len(self._blocks) > READING:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(key)
        return self._blocks[key]


class Lots:
    """Makes lots of the chunks of data whose batches are made by collate.

    `varies`: two passes in one order may see unlike batches.
    """

    def __init__(self, data: Data, seed: int, device: torch.device) -> None:
        self._collator: Collator | None = None
        self._scored: Collator | None = None
        self._validation = data.validation
        if data.collates:
            scored = data.scored_collate or data.collate
            self._collator = Collator(data.form, data.collate, seed, device)
            form = data.scored_form or data.form
            self._scored = Collator(form, scored, seed, device)
        self.varies = self._collator is not None and self._collator.may_draw

    def of(self, chunks: Chunks, part: ShardId, turn: int, at: int) -> Chunks:
        """The chunks, of which the first begins at that sample of the pass; as lots if need be."""
        collator = self._collator
        if part in self._validation:
            collator = self._scored
        if collator is None:
            return chunks
        return _lots(chunks, collator, (stable(part), turn), at)


def _lots(chunks: Chunks, collator: Collator, place: tuple[int, int], at: int) -> Chunks:
    """The chunks as lots, the first of which begins at that sample of the pass."""
    with closing(chunks):
        for chunk in chunks:
            yield as_lot(chunk, collator, place, at)
            at += cols.rows(chunk)


def without(chunks: Chunks, skip: int) -> Chunks:
    """The chunks; the first one without so many samples."""
    with closing(chunks):
        for chunk in chunks:
            yield cols.cut(chunk, skip, cols.rows(chunk))
            skip = 0


def versions(chunk: Columns) -> list[int]:
    """How often each column's tensor was written to."""
    tensors = [each for each in cols.parts(chunk) if isinstance(each, torch.Tensor)]
    return [writes(tensor) for tensor in tensors]
