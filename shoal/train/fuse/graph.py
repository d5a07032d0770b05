"""Which lanes compute the same: the identity of what a training step does, the optimizer left out.

A model is described by words, in order: its modules, their attributes, and what those hold. Two
models with the same words compute the same from the same parameters. What cannot be described
by what it holds gets a word that no other object has.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.fuse.optimizers import formula_key
from shoal.train.fuse.rewrites import FLAT_WEIGHTS
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.optimizers import family
from shoal.train.lane.tensors import is_lazy, unique
from shoal.train.recipe.adapter import Adapted

PLAIN = (bool, int, float, str, bytes)
SHOWN = (  # kinds of values that `repr` describes whole
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    np.dtype,
    np.generic,
    range,
    slice,
    complex,
)
CODE = (FunctionType, staticmethod, classmethod, property)
NAMED = {"_parameters", "_buffers", "_modules"}  # described by name
_INNER = frozenset(vars(nn.Module())) - {"training"}  # hooks and such; empty as a rule


def graph_key(lane: TrainingLane) -> str:
    """The graph key: equal for lanes that may be fused, as far as their code can be described.

    Part of the key: the model's structure (classes, plain attributes, functions by their code,
    tied parameters), shapes and dtypes of parameters and buffers, the order in which the
    optimizer has them, batch size, precision, accumulation, training flags. Not part of it: the
    values of parameters and buffers, which of torch's usual optimizers it is, rates, betas,
    weight decay, clipping.

    Raises:
        ValueError: the lane cannot be fused, for its steps take more than the model and a batch.
    """
    if lane.hooks.per_trial:
        raise ValueError(
            "a step takes the configuration, the epoch or the step, which differ between models"
        )
    if isinstance(lane.recipe, Adapted):
        why = lane.recipe.obstacle(lane.model)
        if why is not None:
            raise ValueError(why)
    settings = lane.settings
    optimizer: Any = "usual"
    if family(lane.optimizer) is None:
        optimizer = formula_key(lane.optimizer)

    words = _Words(lane.model)
    for value in (
        type(lane.recipe),
        settings.batch_size,
        settings.shuffle,
        settings.drop_last,
        settings.accumulate_grad_batches,
        settings.precision,
        settings.data_key,
        str(lane.device),
        _parameters(lane),
        optimizer,
    ):
        words.add(value)
    words.model(lane.model)
    return words.digest()


def _parameters(lane: TrainingLane) -> list[Any]:
    """The form of each parameter, and its number in the optimizer."""
    numbers = {id(p): i for i, p in enumerate(unique(lane.parameters))}
    forms: list[Any] = [len(numbers)]
    for name, tensor in lane.model.named_parameters(remove_duplicate=False):
        shape = None if is_lazy(tensor) else tuple(tensor.shape)
        form = (tensor.dtype, tensor.requires_grad, str(tensor.device))
        forms.append((name, shape, form, numbers.get(id(tensor))))
    return forms


def attributes(model: nn.Module) -> str:
    """A hash of the model without the values of its parameters and buffers."""
    words = _Words(model)
    words.model(model)
    return words.digest()


def tensors_met(model: nn.Module) -> list[Tensor]:
    """The tensors in its modules' attributes, and in what those hold.

    Parameters and buffers in their own places are left out.
    """
    words = _Words(model)
    words.model(model)
    return words.met


class _Words:
    """Words that describe values; the model's own tensors by their number."""

    def __init__(self, model: nn.Module) -> None:
        tensors = unique([*model.parameters(), *model.buffers()])
        self._numbers = {id(tensor): i for i, tensor in enumerate(tensors)}
        self._registered = {id(module) for module in model.modules()}
        self._described: dict[int, int] = {}  # numbers of values described, by id
        self._keep: list[Any] = []  # so that no id is used twice
        self._words: list[str] = []
        self.met: list[Tensor] = []  # in attributes, whatever holds them

    def digest(self) -> str:
        """A hash of the words."""
        return _digest("\n".join(self._words).encode())

    # -- modules -----------------------------------------------------------------------------------

    def model(self, model: nn.Module) -> None:
        """Describe its modules, each with what it holds besides."""
        for name, module in model.named_modules(remove_duplicate=False):
            if self._was_described(module):
                continue
            self._words.append(name)
            self.add(type(module))
            if isinstance(module, torch.jit.ScriptModule):
                self._unique(module)
            else:
                self._module(module)

    def _module(self, module: nn.Module) -> None:
        """Describe a module by what it holds, but for the modules in it."""
        values = vars(module)
        outside: frozenset[str] = getattr(module, "outside_graph", frozenset())
        registered = id(module) in self._registered
        for kind in ("_parameters", "_buffers"):
            for name, tensor in values[kind].items():
                self._parameter_or_buffer(name, tensor, registered)

        for name, value in values.items():
            inner = name in _INNER and not value
            if inner or name in NAMED or name in FLAT_WEIGHTS or name in outside:
                continue
            self._words.append(name)
            self.add(value)

    def _parameter_or_buffer(self, name: str, tensor: Tensor | None, registered: bool) -> None:
        """Describe a module's tensor. Not `registered`: the module is in a list, say."""
        if tensor is None or is_lazy(tensor):
            self._words.append(f"{name} bare")
            return
        number = self._numbers.get(id(tensor))
        self._words.append(f"{name} {number} {tuple(tensor.shape)} {tensor.dtype}")
        if not registered:
            self._tensor(tensor)
        for key, value in vars(tensor).items():  # attributes that a user gave it
            self._words.append(key)
            self.add(value)

    # -- values ------------------------------------------------------------------------------------

    def add(self, value: Any) -> None:
        """Describe any value."""
        word = _word(value)
        if word is not None:
            self._words.append(word)
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self.model(value)
        elif not self._was_described(value):
            self._compound(value)

    def _tensor(self, tensor: Tensor) -> None:
        """Describe a tensor: by its number, if it is the model's own; else by its values."""
        self.met.append(tensor)
        number = self._numbers.get(id(tensor))
        if number is not None:
            self._words.append(f"tensor {number}")
        elif tensor.layout is torch.strided and tensor.device.type != "meta":
            line = tensor.detach().cpu().contiguous().reshape(-1)
            content = _digest(line.view(torch.uint8).numpy().tobytes())
            form = f"{tuple(tensor.shape)} {tensor.dtype}"
            self._words.append(f"tensor {form} {content}")
        else:
            self._unique(tensor)

    def _unique(self, value: Any) -> None:
        """Add a word that no other object has."""
        self._words.append(f"only {id(value)}")

    def _was_described(self, value: Any) -> bool:
        """Whether the value has been described; then a word says which it was."""
        number = self._described.get(id(value))
        if number is not None:
            self._words.append(f"#{number}")
            return True
        self._described[id(value)] = len(self._described)
        self._keep.append(value)
        return False

    def _compound(self, value: Any) -> None:
        """Describe a value by its parts."""
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, CodeType):
            names = f"{value.co_names} {value.co_varnames}"
            self._words.append(f"{value.co_code.hex()} {names}")
            self.add(value.co_consts)
        else:
            parts = _parts(value)
            if parts is None:
                self._unique(value)
            else:
                self._add_parts(*parts)

    def _add_parts(self, kind: str, parts: Iterable[Any]) -> None:
        """Describe the parts of a value of that kind, one after another."""
        self._words.append(f"{kind} of")
        for part in parts:
            self.add(part)
        self._words.append("end")

    # -- code --------------------------------------------------------------------------------------

    def _class(self, value: type) -> None:
        """Describe a class by its name; if it was made in a function, also by what it holds."""
        self._words.append(_full_name(value))
        if _is_importable(value):
            return
        self._add_parts("bases", value.__bases__)
        for name, part in vars(value).items():
            if isinstance(part, CODE) or not name.startswith("__"):
                self._words.append(name)
                for inner in _functions(part):
                    self.add(inner)

    def _function(self, value: FunctionType) -> None:
        """Describe a function by its name; if it was made in a function, also by what it holds."""
        self._words.append(_full_name(value))
        if _is_importable(value):
            return
        cells = [_content(cell) for cell in value.__closure__ or ()]
        defaults = (value.__defaults__, value.__kwdefaults__)
        self._add_parts("function", (value.__code__, defaults, cells))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _word(value: Any) -> str | None:  # noqa: PLR0911 - one for each kind
    """The word for a value that has no parts, or whose parts are not described one by one."""
    if value is None or type(value) in PLAIN:
        return repr(value)
    kind = type(value).__name__
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, SHOWN):
        return f"{kind} {value!r}"
    if isinstance(value, weakref.ref):
        return "ref"
    if isinstance(value, BuiltinFunctionType | type(torch.relu)):
        return _full_name(value)
    if isinstance(value, ModuleType):
        # in a closure: a recipe that was made in a function
        return f"module {value.__name__}"
    if isinstance(value, np.ndarray):
        form = f"{value.shape} {value.dtype}"
        return f"array {form} {_digest(value.tobytes())}"
    if isinstance(value, set | frozenset):
        return f"set {sorted(map(repr, value))}"
    return None


def _parts(value: Any) -> tuple[str, Iterable[Any]] | None:
    """The name and the parts of a value that is described by its parts; None of others."""
    kind = type(value).__name__
    if isinstance(value, Mapping):
        return kind, list(value.items())
    if isinstance(value, list | tuple):
        return kind, value
    if isinstance(value, MethodType):
        return kind, (value.__func__, value.__self__)
    if isinstance(value, partial):
        return kind, (value.func, value.args, value.keywords)
    if hasattr(value, "__dict__") and not hasattr(type(value), "__slots__"):
        return "object", (type(value), vars(value))
    return None


def _full_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _functions(part: Any) -> Iterator[Any]:
    """The functions that a class attribute consists of."""
    if isinstance(part, property):
        yield part.fget
        yield part.fset
    else:
        yield getattr(part, "__func__", part)


def _content(cell: Any) -> Any:
    """What a function's closure has in this cell."""
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return "empty"


def _is_importable(value: Any) -> bool:
    """Whether the value's module and name lead to it: then the name says all."""
    target: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is value
