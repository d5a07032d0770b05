"""What a raw block goes through until it is a chunk that lanes train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shoal.train.data import columns as cols
from shoal.train.data.arrangement import stable
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.stream.blocks import (
    BUCKETS,
    EACH,
    Blocks,
    as_numpy,
    checked,
    draw,
    locked,
    on_device,
    taken,
)
from shoal.train.stream.buckets import LengthBuckets
from shoal.train.stream.features import Features


class ChunkMaker:
    """Makes chunks of blocks: prepares, mixes and augments them, and moves them to the device.

    `prepares`, `augments`: whether the recipe does so.
    """

    def __init__(self, recipe: Recipe, data: Data, seed: int, device: torch.device) -> None:
        self._recipe = recipe
        self._whole = data.collates
        self._buckets: LengthBuckets | None = None
        if data.arrangement.buckets is not None:
            self._buckets = LengthBuckets(data, recipe.batch_size)
        self._seed = seed
        self._device = device
        self._features = Features(recipe, seed, device)
        self._copies: Any = None  # the CUDA stream on which chunks are copied
        if device.type == "cuda":
            self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.prepares = overrides(recipe, "prepare")
        self.augments = overrides(recipe, "augment")

    @property
    def is_ready(self) -> bool:
        """Whether chunks may be finished in another thread: see `Features`."""
        return self._features.ready

    def prepared(self, blocks: Blocks, number: int) -> Columns:
        """The block as the recipe prepares it.

        Raises:
            ValueError: `prepare` gave another number of samples.
        """
        chunk = blocks.block(number)
        if self.prepares:
            made = self._recipe.prepare(chunk)
            chunk = checked(made, cols.rows(chunk), "prepare", self._whole)
        if self._buckets is None or not blocks.trained:
            return chunk
        return self._buckets.sorted(chunk, draw(BUCKETS, self._seed, blocks.part, number))

    def mixed(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk's samples in the random order of one pass."""
        drawn = draw(EACH, self._seed, blocks.part, turn, number + 1)
        mixed = taken(chunk, drawn.permutation(cols.rows(chunk)))
        if self._buckets is None:
            return mixed
        return self._buckets.sorted(mixed, drawn)

    def augmented(self, chunk: Columns, blocks: Blocks, turn: int, number: int) -> Columns:
        """The chunk as the recipe augments it in one pass.

        Raises:
            ValueError: `augment` gave another number of samples.
        """
        rng = np.random.default_rng([self._seed, stable(blocks.part), turn, number])
        given = cols.apply(chunk, locked)
        made = self._recipe.augment(given, rng)
        return checked(made, cols.rows(chunk), "augment", self._whole)

    def finished(self, chunk: Columns) -> Columns:
        """The chunk on the device, as steps see it; items that collate puts together stay here."""
        if self._whole:
            return cols.apply(chunk, as_numpy)
        moved = on_device(chunk, self._device, self._copies)
        if self._features.there:
            return self._features.of(moved)
        return moved
