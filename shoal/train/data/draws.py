"""Orders of a shard's samples in a pass that are not a plain shuffle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data.columns import Array, DataError
from shoal.train.data.parts import Index
from shoal.train.rng import Rng

DRAWN = 3  # tells these draws from those of orders and of collate


class SampleDraws(Protocol):
    """SampleDraws the samples of each pass."""

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """The places in the shard of the samples of one pass, as many as the shard has."""
        ...


def stable(shard: ShardId) -> int:
    """A number for the shard, the same on every machine."""
    return int.from_bytes(blake2b(shard.encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class Weighted:
    """Samples drawn with replacement in each pass, each with its share of the weights."""

    weights: Mapping[ShardId, Array]

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """See `SampleDraws`."""
        drawn = np.random.default_rng([DRAWN, seed, stable(shard), turn])
        weights = self.weights[shard]
        count = len(weights)
        return drawn.choice(count, count, p=weights / weights.sum())


def checked_weights(weights: Any, count: int) -> Array:
    """One weight for each training sample.

    Raises:
        DataError: another number of them, or one that is negative or not finite.
    """
    array = np.asarray(weights, np.float64)
    if array.shape != (count,):
        raise DataError(
            f"weights must be one number for each of the {count} samples; got shape {array.shape}"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise DataError("weights must be numbers >= 0; got one that is not")
    return array


def balancing(labels: Array) -> Array:
    """Weights with which each label is drawn equally often.

    Raises:
        DataError: there are several labels for a sample.
    """
    if labels.ndim != 1:
        raise DataError(
            f"balanced needs a column with one label per sample; got shape {labels.shape}"
        )
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights: Array = 1.0 / counts[which]
    return weights


@dataclass(frozen=True)
class Sampled:
    """The order of a torch Sampler, drawn anew in each pass. The data has one shard.

    `places`: by number of an item, its place in the shard.
    """

    sampler: Any
    places: Index

    def order(self, shard: ShardId, seed: int, turn: int) -> Index:
        """See `SampleDraws`.

        Raises:
            DataError: the sampler gives other samples than those of the shard.
        """
        count = len(self.places)
        drawn = np.random.SeedSequence([DRAWN, seed, stable(shard), turn])
        with Rng(int(drawn.generate_state(1)[0]), torch.device("cpu")):
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(turn)
            numbers = np.fromiter((int(n) for n in self.sampler), np.int64)
        if len(numbers) != count:
            raise DataError(
                f"a sampler must give as many samples as the data set has, {count}; "
                f"{sampler_name(self.sampler)} gave {len(numbers)}: give a Subset of the data set"
            )
        return self.places[numbers]


def sampler_name(sampler: Any) -> str:
    """The name of the user's class: a sampler, or what gives its batches."""
    return type(getattr(sampler, "batches", sampler)).__qualname__


def check_sampler(draws: Sampled, shard: ShardId) -> None:
    """Draw one order twice.

    Raises:
        DataError: the orders differ, or as `Sampled.order`.
    """
    if not np.array_equal(draws.order(shard, 0, 0), draws.order(shard, 0, 0)):
        raise DataError(
            f"{sampler_name(draws.sampler)} gives another order under the same seed: it must draw "
            "from torch's, NumPy's or Python's global generators, and remember nothing between "
            "passes; or give it a method set_epoch(number)"
        )


def streams(count: int, size: int) -> Index:
    """Places in the order in which each row of a batch continues that row of the batch before.

    The samples, in the order of the data, are cut in `size` streams of equal length. What is left
    over comes last.
    """
    length = count // size
    rows: Index = np.arange(length * size).reshape(size, length).T.reshape(-1)
    return np.concatenate([rows, np.arange(length * size, count)])


def bucketed(lengths: Array, group: int, drawn: np.random.Generator) -> Index:
    """Places such that samples of similar lengths stand together.

    The samples are sorted by length and cut in groups, which come in a random order. A smaller last
    group stays last, so that batches that divide a group lie within groups.
    """
    places = np.argsort(lengths, kind="stable")
    whole = len(places) // group
    cut = whole * group
    groups = places[:cut].reshape(whole, group)[drawn.permutation(whole)]
    return np.concatenate([groups.reshape(-1), places[cut:]])
