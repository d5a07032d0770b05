"""Batches for models of Hugging Face: a data collator's, and what of them a model takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from shoal.train.adapt.of_transformers import default_data_collator

LABELS = "labels"
# what a data set may call them
OTHER_LABELS = ("label", "label_ids")
# columns that tokenizers make, and pad
PADDED = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "special_tokens_mask",
    "position_ids",
)


class TensorColumns:
    """A data collator of transformers, which gets no columns that it cannot make tensors of.

    The Trainer leaves out all columns that the model does not take. Those that are tensors are
    left out later, by `inputs_of`.
    """

    def __init__(self, collator: Callable[[list[Any]], Any]) -> None:
        self.collator = collator
        self.__qualname__ = getattr(collator, "__qualname__", type(collator).__name__)

    def __call__(self, items: list[Any]) -> Any:
        """The batch of these items."""
        if isinstance(items[0], Mapping):
            names = [name for name in items[0] if self._usable(name, items)]
            items = [{name: item[name] for name in names} for item in items]
        return self.collator(items)

    def _usable(self, name: str, items: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the collator can make a tensor of the column."""
        if name in PADDED or "label" in name:
            return True
        return makes_tensor([item[name] for item in items])


def makes_tensor(values: Sequence[Any]) -> bool:
    """Whether these are numbers, or lists or arrays of them that have equal shapes."""
    if all(is_array(each) for each in values):
        return len({np.shape(each) for each in values}) == 1
    if not all(isinstance(each, int | float | list | tuple) for each in values):
        return False
    try:
        return np.asarray(values).dtype.kind in "biuf"
    except ValueError:  # unequal shapes
        return False


def is_array(value: Any) -> bool:
    """Whether the value is an array, a tensor, or a number of NumPy's."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def collator_for(collator: Any, item: Any, unused: bool) -> Any:
    """What makes batches of items such as this one; None: torch's default collate does.

    `item`: None if it is not known yet. `unused`: columns that the model does not take are to be
    left out.
    """
    if collator is None and _wants_collator(item):
        collator = default_data_collator
    if collator is None or not unused:
        return collator
    named = collator if hasattr(collator, "__code__") else type(collator)
    if named.__module__.partition(".")[0] != "transformers":
        return collator
    return TensorColumns(collator)


def first_item(dataset: Any) -> Any:
    """The first item of a data set that is read by numbers; None of any other."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    return dataset[0] if len(dataset) else None


def _wants_collator(item: Any) -> bool:
    """Whether torch's default collate is not what the Trainer makes a batch of such items by."""
    if not isinstance(item, Mapping):
        return False
    plain = all(isinstance(each, int | float) or is_array(each) for each in item.values())
    return not plain


def inputs_of(model: nn.Module, batch: Any, columns: Collection[str]) -> Mapping[str, Any]:
    """The arguments of the model in a batch.

    Labels get the name that the model has for them. `columns`: those of the data set, which are
    left out if the model does not take them.

    Raises:
        TypeError: the batch is no dict.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"the collator must return a dict of the model's arguments; got {type(batch).__name__}"
        )
    taken = arguments_of(type(model).forward)
    if not taken or all(name in taken for name in batch):
        return batch
    inputs = dict(batch)
    for name in OTHER_LABELS:
        if name in inputs and LABELS in taken.difference(inputs):
            inputs[LABELS] = inputs.pop(name)
    return {name: value for name, value in inputs.items() if name in taken or name not in columns}


@lru_cache(maxsize=16)
def arguments_of(forward: Callable[..., Any]) -> frozenset[str]:
    """The names of the arguments of a model's method; none if it takes any."""
    parameters = inspect.signature(forward).parameters
    any_name = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [name for name, each in parameters.items() if each.kind not in any_name]
    return frozenset(named[1:])


def rows_in(inputs: Mapping[str, Any]) -> int:
    """How many samples a batch has."""
    tensors = [each for each in inputs.values() if isinstance(each, Tensor)]
    return len(tensors[0])
