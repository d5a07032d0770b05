"""Batches out of items: torch's default collate, or the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, DataError, Lot
from shoal.train.data.items import ItemForm
from shoal.train.private import writes
from shoal.train.rng import Rng

Collate = Callable[[list[Any]], Any]
TRIED = 4  # items that make the first batch, before any training
DRAW = 4  # tells the draws of collate from those of orders


class Collator:
    """Makes batches for the lanes of one slot, on their device.

    `collate` runs under random states of its own, which depend on the seed and on the samples'
    place in the pass: lanes that train side by side share the batch.
    """

    def __init__(
        self, form: ItemForm, collate: Collate | None, seed: int, device: torch.device
    ) -> None:
        self._form = form
        self._collate = collate or default_collate
        self._seed = seed
        self._device = device
        self._versions: list[int] = []
        # whether two passes may see unlike batches of the same items
        self.may_draw = self._collate is not default_collate

    def make(self, lot: Lot) -> Any:
        """The batch of these samples."""
        container: Columns = lot
        if all(isinstance(name, int) for name in lot):
            container = tuple(lot.values())
        items = self._form.of(container).items(lot)
        if self.may_draw:
            sequence = np.random.SeedSequence([DRAW, self._seed, *lot.place, lot.start])
            with Rng(int(sequence.generate_state(1)[0]), torch.device("cpu")):
                batch = self._collate(items)
        else:
            batch = self._collate(items)
        batch = batch_to_device(batch, self._device)
        lot.versions = [writes(tensor) for tensor in tensors_in(batch)]
        return batch

    def check(self, batch: Any, lot: Lot) -> None:
        """See that no step wrote into the batch.

        Raises:
            ValueError: one did.
        """
        if [writes(tensor) for tensor in tensors_in(batch)] != lot.versions:
            raise ValueError(
                "a step wrote into its batch, which trials share: "
                "make a new tensor (x = x / 255, not x /= 255)"
            )


def batch_to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor) or callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: batch_to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[batch_to_device(value, device) for value in batch])
    if isinstance(batch, tuple | list):
        return type(batch)([batch_to_device(value, device) for value in batch])
    return batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors of a batch, in its containers' order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from tensors_in(value)


def check_collate(
    items: Sequence[Any], collate: Collate | None, beside: Sequence[Any] = ()
) -> None:
    """Make a batch of the first items, before any training.

    `beside`: the first items to train on, where `items` are those to validate on.

    Raises:
        DataError: that does not work.
    """
    first = list(items[:TRIED])
    with Rng(0, torch.device("cpu")):
        try:
            (collate or default_collate)(first)
        except Exception as error:
            text = _refusal(first, collate, error)
            if beside:
                text = (
                    f"{text}. These are items to validate on; those to train on are "
                    f"{_shapes(beside)}: give validation= a DataLoader with a collate_fn of its own"
                )
            raise DataError(text) from error


def _refusal(items: Sequence[Any], collate: Collate | None, error: Exception) -> str:
    """The error's text for a user whose items make no batch."""
    name = "torch's default collate"
    if collate is not None:
        name = getattr(collate, "__qualname__", type(collate).__name__)
    line = str(error).strip().splitlines() or [""]
    return (
        f"items must make a batch, and {name} cannot make one of {_shapes(items)} "
        f"({type(error).__name__}: {line[0]}); give collate=, a function of a list of items that "
        "makes one (that pads them, say), or have the dataset give tensors of one shape"
    )


def _shapes(items: Sequence[Any]) -> str:
    """The shapes of the items, in short."""
    shapes = dict.fromkeys(map(_shape, items))
    return " and ".join(list(shapes)[:3])


def _shape(value: Any) -> str:
    """The value's shape or type, in short."""
    if isinstance(value, Mapping):
        inner = [f"{name}: {_shape(item)}" for name, item in value.items()]
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shape, value)) + ")"
    if isinstance(value, Tensor | np.ndarray):
        return f"shape {tuple(value.shape)}"
    return type(value).__name__


def as_lot(columns: Columns, maker: Collator, place: tuple[int, int], start: int) -> Lot:
    """The columns as a lot, whose first sample is at that place of the pass."""
    return Lot(cols.named(columns), maker, place, start)
