"""Trees of arrays and plain values, packed so that large arrays travel by themselves."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

# What a pickle of arrays and plain values names, beside `ArrayPlace`.
OF_TREES = frozenset(
    {
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("builtins", "complex"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
    }
)
LARGE = 64 * 1024  # bytes: an array of so many is sent by itself, smaller ones together


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """Stands in a tree for an array that is sent by itself."""

    shape: tuple[int, ...]
    dtype: str

    def array(self, into: Any) -> np.ndarray[Any, Any]:
        """An array for this place: `into`, if that is one which fits, or else a new one."""
        dtype = np.dtype(self.dtype)
        if isinstance(into, np.ndarray):
            fits = into.shape == self.shape and into.dtype == dtype
            if fits and into.flags.c_contiguous:
                return into
        return np.empty(self.shape, dtype)


class TreeUnpickler(pickle.Unpickler):
    """Makes trees of arrays and plain values only: whoever can connect can send."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function that a pickle names.

        Raises:
            UnpicklingError: it is nothing that trees are made of.
        """
        if (module, name) == (ArrayPlace.__module__, ArrayPlace.__name__):
            return ArrayPlace
        if (module.replace("numpy.core", "numpy._core"), name) in OF_TREES:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"a process of a wide trial sent a {module}.{name}, which is in no state of a trial"
        )


def loads(content: bytes) -> Any:
    """The packed tree that another rank has pickled.

    Raises:
        UnpicklingError: it holds something else than arrays and plain values.
    """
    return TreeUnpickler(io.BytesIO(content)).load()


def pack(tree: Any, arrays: list[Tensor]) -> Any:
    """The tree with places for its large arrays, whose bytes are appended to `arrays`."""
    if _is_dict(tree):
        return {key: pack(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(pack(value, arrays) for value in tree)
    if isinstance(tree, np.ndarray) and tree.nbytes >= LARGE:
        arrays.append(_bytes_of(np.ascontiguousarray(tree)))
        return ArrayPlace(tree.shape, tree.dtype.str)
    return tree


def unpack(tree: Any, arrays: list[Tensor], into: Any = None) -> Any:
    """The tree with arrays at its places, whose bytes are appended to `arrays`, to be filled.

    `into`: a tree whose arrays are taken where they fit; elsewhere there are new ones.
    """
    if _is_dict(tree):
        if not isinstance(into, Mapping):
            into = {}
        return {key: unpack(value, arrays, into.get(key)) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(unpack(value, arrays) for value in tree)
    if isinstance(tree, ArrayPlace):
        array = tree.array(into)
        arrays.append(_bytes_of(array))
        return array
    return tree


def _is_dict(tree: Any) -> bool:
    """Whether to look into the tree: a scheduler's state may hold a Counter, which stays whole."""
    return isinstance(tree, dict) and not isinstance(tree, Counter)


def _bytes_of(array: np.ndarray[Any, Any]) -> Tensor:
    """The array's memory as bytes."""
    return torch.from_numpy(array).view(-1).view(torch.uint8)
