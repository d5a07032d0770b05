"""Which model a tensor belongs to: what one trial trains, no other trial may have.

Trials are built in one process, at once and one after the other. A recipe that returns the same
module twice, or parameters in the same memory, would have them train each other's weights, or go
on from those that an earlier one left.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train import private
from shoal.train.lane.tensors import is_lazy, is_sparse
from shoal.train.recipe.shard import ShardModel

REMEDY = (
    "trials would train it together, or go on from what an earlier one left; build it anew in "
    "each call, copy.deepcopy(…) of what is ready-made; what no trial trains may be shared: "
    "requires_grad_(False)"
)


class SharedError(ValueError):
    """What a trial trains is another model's, too."""


@dataclass(eq=False, slots=True)
class _Holding:
    """Something that models hold, and what is known of its use."""

    gone: Callable[[], bool]
    holder: int  # the first model that had it
    trained: bool
    shared: bool = False  # whether other models had it, too
    # of a shared tensor: how often it was written to, and a hash of its values
    writes: int = 0
    values: bytes = b""


_lock = Lock()
_numbers = count()
_entries: dict[tuple[str, int], _Holding] = {}  # of this process, by kind and address
_cleared = [1024]  # look for what is gone once there are so many entries


class Ownership:
    """The tensors, modules and other objects that one model and its optimizers hold."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._untrained: dict[int, tuple[str, Tensor, _Holding]] = {}
        self._modules: dict[int, _Holding] = {}

    def hold(self, model: nn.Module) -> None:
        """Enter the model's tensors and modules; of a `ShardRecipe` its state.

        Raises:
            SharedError: another model had a tensor that one of the two trains, a metric, or the
                state.
        """
        if isinstance(model, ShardModel):
            self.hold_objects("init", [model.state])
        with _lock:
            try:
                for name, tensor in _tensors_of(model):
                    entry = self._enter_tensor(name, tensor)
                    if entry is not None and not entry.trained:
                        self._untrained[id(tensor)] = name, tensor, entry
            except SharedError:
                self._give_back(model)
                raise
            for name, module in model.named_modules():
                entry = self._enter(module)
                self._modules[id(module)] = entry
                if entry.shared and hasattr(module, "metric_state"):
                    raise SharedError(
                        f"the metric {name!r} of the model that configure_model returned is "
                        "another model's, too: make a new one in each call"
                    )

    def hold_objects(self, method: str, objects: Iterable[Any]) -> None:
        """Enter other objects that the method returned: each belongs to one trial.

        Raises:
            SharedError: another trial has one of them.
        """
        with _lock:
            for each in objects:
                if self._enter(each).shared:
                    raise SharedError(
                        f"{method} returned a {type(each).__name__} that an earlier call "
                        f"returned, too, so that trials would share it: make a new one in each call"
                    )

    def is_shared(self, module: nn.Module) -> bool:
        """Whether other models had this module, too."""
        entry = self._modules.get(id(module))
        return entry is not None and entry.shared

    def check(self) -> None:
        """Check the tensors that no trial was to train.

        Raises:
            SharedError: one that several models have is trained by now, or has other values.
        """
        for name, tensor, entry in self._untrained.values():
            if tensor.requires_grad and not entry.trained:
                with _lock:
                    if entry.shared:
                        raise SharedError(
                            f"training set requires_grad of {name!r}, which other models have, "
                            f"too: {REMEDY}"
                        )
                    entry.trained = True
            elif entry.shared and entry.writes != private.writes(tensor):
                if _values(tensor) != entry.values:
                    raise SharedError(
                        f"training changed the values of {name!r}, which other models have, too "
                        "(batch norm counts and averages unless it stays in eval()): build what "
                        "changes anew in each call of configure_model, or copy.deepcopy(…) it"
                    )
                entry.writes = private.writes(tensor)

    # -- the process's entries -----------------------------------------------------------------

    def _enter_tensor(self, name: str, tensor: Tensor) -> _Holding | None:
        """The tensor's entry, by its memory; None: it has no memory of one piece."""
        memory = private.memory_of(tensor)
        if memory is None:
            return None
        address, gone = memory
        trained = tensor.requires_grad
        entry = self._entry(("memory", address), gone, trained)
        if entry.holder == self._number:
            entry.trained |= trained
        if entry.shared and (trained or entry.trained):
            raise SharedError(
                f"configure_model returned {name!r} {tuple(tensor.shape)}, which an earlier call "
                f"returned, too: {REMEDY}"
            )
        if entry.shared and not entry.values:
            entry.writes, entry.values = private.writes(tensor), _values(tensor)
        return entry

    def _give_back(self, model: nn.Module) -> None:
        """Let other models' tensors be trained, or not, as before this one was configured.

        Who had them first goes on beside the trial that is refused, in the same pack.
        """
        for _, tensor in _tensors_of(model):
            memory = private.memory_of(tensor)
            entry = memory and _entries.get(("memory", memory[0]))
            if entry and entry.holder != self._number and tensor.is_leaf:
                tensor.requires_grad_(entry.trained)

    def _enter(self, instance: Any) -> _Holding:
        """The entry of an object."""
        try:
            reference = weakref.ref(instance)
        except TypeError:  # of a kind that nothing can watch
            return _Holding(lambda: True, self._number, False)
        return self._entry(("object", id(instance)), lambda: reference() is None, False)

    def _entry(self, key: tuple[str, int], gone: Callable[[], bool], trained: bool) -> _Holding:
        """The entry of that key; a new one if there is none, or if its object is gone."""
        entry = _entries.get(key)
        if entry is None or entry.gone():
            entry = _Holding(gone, self._number, trained)
            _entries[key] = entry
            if len(_entries) > _cleared[0]:
                for place in [place for place, each in _entries.items() if each.gone()]:
                    del _entries[place]
                _cleared[0] = max(1024, 2 * len(_entries))
        elif entry.holder != self._number:
            entry.shared = True
        return entry


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The model's parameters, buffers, and tensors among its modules' attributes."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_lazy(tensor):
            yield name, tensor
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if type(value) is Tensor:
                yield f"{name}.{attribute}" if name else attribute, value


def _values(tensor: Tensor) -> bytes:
    """A hash of the tensor's values."""
    if is_sparse(tensor):
        return b"sparse"
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(flat.numpy().data, digest_size=16).digest()
