"""Bytes that tensors hold while operations run, on any device: also on torch's "meta" device."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """Adds up the storages that operations make, from when they are made until they are freed.

    `most`: the most bytes that were held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor):
                self._count(each.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        at, size = id(storage), storage.nbytes()
        if at in self._known:
            return
        self._known.add(at)
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self._freed, at, size)

    def _freed(self, at: int, size: int) -> None:
        self._known.discard(at)
        self.bytes -= size
