"""The ways to bring data that has items, or one after another: what `Data` inherits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from torch.utils.data import DataLoader, IterableDataset

from shoal.train.data.items.dataset import from_dataset
from shoal.train.data.items.loader import (
    TakenLoader,
    check_left_out,
    loaded,
    scored_collate,
    scored_items,
)
from shoal.train.data.items.sequence import from_sequence
from shoal.train.data.items.stored import from_iterable
from shoal.train.data.parts import Division, Order, Parts, is_sequential

if TYPE_CHECKING:
    from torch.utils.data import Dataset


class ItemReaders:
    """Constructors of data out of torch's Datasets and DataLoaders, and of long sequences."""

    def __init__(self, parts: Parts) -> None:
        raise NotImplementedError

    def collate_scored_with(self, collate: Callable[[list[Any]], Any]) -> None:
        """Have the batches of validation made of items by this function."""
        raise NotImplementedError

    @classmethod
    def dataset(
        cls,
        dataset: Dataset[Any] | DataLoader[Any] | Sequence[Any],
        validation: Any = 0.2,
        shards: int | None = None,
        seed: int = 0,
        shard_weights: Sequence[float] | None = None,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        order: Order = "random",
        samples: int | None = None,
    ) -> Self:
        """A torch Dataset, or a list, whose items are tuples, dicts or single values.

        Items of equal shapes are kept as columns, and batches are slices of them. Items that hold
        arrays of unequal shapes, text, images or nested containers are kept as they are, and become
        a batch by `collate`: a function of a list of items, or None for torch's default collate.
        `collate` may draw random numbers; they depend on the seed and the place in the pass.

        Items that were read are kept; those beyond `data_memory_gb` are read again. Items that draw
        random numbers are read anew in each training pass, under seeds of the pass; those to
        validate on are drawn once. An IterableDataset is read once from its beginning to its end,
        or its first `samples` items are. `order`: "sequential" keeps the
        items in their order, and sets the last ones aside. A DataLoader: as `loader`.

        `validation`: another such dataset, a DataLoader, the fraction set aside at random, or None.
        `shards`, `shard_weights`: as for `arrays`.

        Raises:
            DataError: no items, items of unequal forms, nothing left to train or validate on.
        """
        if isinstance(dataset, DataLoader):
            check_left_out(collate=collate, order=order, shard_weights=shard_weights)
            return cls.loader(dataset, validation, shards, seed, samples)
        how = Division(seed, shards, shard_weights, is_sequential(order))
        scored = None
        if isinstance(validation, DataLoader):
            scored = scored_collate(validation, collate)
            validation = scored_items(validation)
        if isinstance(dataset, IterableDataset):
            data = cls(from_iterable(dataset, validation, how, collate, samples))
        else:
            data = cls(from_dataset(dataset, validation, how, collate))
        if scored is not None:
            data.collate_scored_with(scored)
        return data

    @classmethod
    def loader(
        cls,
        train: DataLoader[Any],
        valid: Any = None,
        shards: int | None = None,
        seed: int = 0,
        samples: int | None = None,
    ) -> Self:
        """A DataLoader as it is: its dataset, batch size, collate function and order.

        Batch size, `drop_last` and shuffling become the recipe's, where the recipe does not set
        them itself. shuffle=True draws a new order in each pass. A WeightedRandomSampler and a
        SubsetRandomSampler keep their meaning. The order of any other sampler or batch sampler is
        drawn in each pass, under the study's seed; the data has one shard then. `num_workers`
        becomes the study's `workers`, where that is "auto". A loader's own generator and
        `worker_init_fn` are not used. `valid`: another DataLoader or dataset, a fraction, or None.
        `samples`: of an endless IterableDataset, how many are read.

        Raises:
            DataError: a loader that makes batches in another way, or as `dataset`.
        """
        found: TakenLoader = loaded(train, valid)
        how = Division(seed, found.shards(shards), None, found.sequential)
        if isinstance(found.dataset, IterableDataset):
            parts = from_iterable(found.dataset, found.validation, how, found.collate, samples)
        else:
            parts = from_dataset(found.dataset, found.validation, how, found.collate)
        data: Self = found.arranged(cls(parts))
        return data

    @classmethod
    def sequence(
        cls,
        values: Any,
        window: int,
        validation: Any = 0.1,
        shards: int | None = None,
    ) -> Self:
        """One long sequence, as of a language model; batches are (inputs, targets).

        Each sample is a window of `window` steps. Targets are the values that follow the inputs.
        With a step that takes `state`, row i of each batch continues row i of the batch before: the
        sequence is cut in as many streams as a batch has rows. `values`: (n, …), the first axis
        steps. `validation`: another sequence, the fraction at the end, or None.

        Raises:
            DataError: not a window of values, or as `arrays`.
        """
        return cls(from_sequence(values, window, validation, shards))
