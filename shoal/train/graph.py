"""Which lanes compute the same: the identity of what a training step does, the optimizer left out."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.batched import family, formula
from shoal.train.lane import Lane
from shoal.train.stack import is_lazy, unique

_TEXTUAL = (torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, np.generic, range, slice, complex)
OWN = {"_parameters", "_buffers", "_modules"}  # told by name
_INNER = frozenset(vars(nn.Module())) - {"training"}  # hooks and such; empty as a rule
RENEWED = ("_flat_weights", "_flat_weight_refs")  # torch's RNNs make them again where a weight is another tensor


def graph_key(lane: Lane) -> str:
    """Equal for lanes that may be fused, in any process, as far as their code can be told.

    Part of it: the model's structure (classes, plain attributes, functions by their code, tied parameters), shapes and dtypes
    of parameters and buffers, the order in which the optimizer has them, batch size, precision, accumulation, training flags.
    Not part of it: the values of parameters and buffers, which of torch's usual optimizers it is, rates, betas, weight decay,
    clipping. An object that cannot be told by what it holds equals only itself.
    """
    s = lane.settings
    words = _Words(lane.model)
    words.add((type(lane._recipe), s.batch_size, s.shuffle, s.drop_last, s.accumulate_grad_batches, s.precision, *s.data_key))
    words.add(str(lane._device))
    places = {id(p): i for i, p in enumerate(unique(lane._parameters))}
    for name, tensor in lane.model.named_parameters(remove_duplicate=False):
        shape = None if is_lazy(tensor) else tuple(tensor.shape)
        words.add((name, shape, tensor.dtype, tensor.requires_grad, str(tensor.device), places.get(id(tensor))))
    words.add(len(places))
    words.add(formula(lane.optimizer) if family(lane.optimizer) is None else "usual")
    words.model(lane.model)
    return words.digest()


def attributes(model: nn.Module) -> str:
    """Equal as long as the model is the same but for what its parameters and buffers hold."""
    words = _Words(model)
    words.model(model)
    return words.digest()


def met(model: nn.Module) -> list[Tensor]:
    """The tensors in its modules' attributes, and in what those hold; parameters and buffers in their own places left out."""
    words = _Words(model)
    words.model(model)
    return words.met


def _numbered(model: nn.Module) -> dict[int, int]:
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    numbers: dict[int, int] = {}
    for _, tensor in tensors:
        numbers.setdefault(id(tensor), len(numbers))
    return numbers


class _Words:
    """Words that tell a value; the model's own tensors by their number, others by what they hold."""

    def __init__(self, model: nn.Module) -> None:
        self._known, self._registered = _numbered(model), {id(module) for module in model.modules()}
        self._seen: dict[int, int] = {}
        self._keep: list[Any] = []  # so that no id is used twice
        self._words: list[str] = []
        self.met: list[Tensor] = []  # in attributes, whatever holds them

    def digest(self) -> str:
        return blake2b("\n".join(self._words).encode(), digest_size=16).hexdigest()

    def model(self, model: nn.Module) -> None:
        """Its modules, each with what it holds besides."""
        for name, module in model.named_modules(remove_duplicate=False):
            if self._again(module):
                continue
            self._words.append(name)
            self.add(type(module))
            if isinstance(module, torch.jit.ScriptModule):
                self._words.append(f"only {id(module)}")
                continue
            for kind in (module._parameters, module._buffers):
                for own, tensor in kind.items():
                    bare = tensor is None or is_lazy(tensor)
                    about = bare or (self._known.get(id(tensor)), tuple(tensor.shape), tensor.dtype)
                    self._words.append(f"{own} {about}")
                    if not bare and id(module) not in self._registered:  # it is in a list, say
                        self._tensor(tensor)
            for key, value in vars(module).items():
                if (key not in _INNER or value) and key not in OWN and key not in RENEWED:
                    self._words.append(key)
                    self.add(value)

    def add(self, value: Any) -> None:
        if value is None or type(value) in (bool, int, float, str, bytes):
            self._words.append(repr(value))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, Enum):
            self._words.append(f"{type(value).__qualname__}.{value.name}")
        elif isinstance(value, _TEXTUAL):
            self._words.append(f"{type(value).__name__} {value!r}")
        elif isinstance(value, BuiltinFunctionType | type(torch.relu) | weakref.ref):
            self._words.append("ref" if isinstance(value, weakref.ref) else f"{value.__module__}.{value.__qualname__}")
        elif isinstance(value, nn.Module):
            self.model(value)
        elif not self._again(value):
            self._compound(value)

    def _tensor(self, value: Tensor) -> None:
        self.met.append(value)
        number = self._known.get(id(value))
        if number is None and value.layout is torch.strided and value.device.type != "meta":
            held = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            self._words.append(f"tensor {tuple(value.shape)} {value.dtype} {blake2b(held, digest_size=16).hexdigest()}")
        else:
            self._words.append(f"tensor {number}" if number is not None else f"only {id(value)}")

    def _again(self, value: Any) -> bool:
        """Whether it has been told; then only which it was is said."""
        number = self._seen.get(id(value))
        if number is not None:
            self._words.append(f"#{number}")
            return True
        self._seen[id(value)] = len(self._seen)
        self._keep.append(value)
        return False

    def _compound(self, value: Any) -> None:
        if isinstance(value, ModuleType):  # in a closure: a recipe that was made in a function
            self._words.append(f"module {value.__name__}")
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, CodeType):
            self._words.append(f"{value.co_code.hex()} {value.co_names} {value.co_varnames}")
            self.add(value.co_consts)
        elif isinstance(value, MethodType):
            self._parts("method", (value.__func__, value.__self__))
        elif isinstance(value, partial):
            self._parts("partial", (value.func, value.args, value.keywords))
        elif isinstance(value, np.ndarray):
            self._words.append(f"array {value.shape} {value.dtype} {blake2b(value.tobytes(), digest_size=16).hexdigest()}")
        elif isinstance(value, set | frozenset):
            self._words.append(f"set {sorted(map(repr, value))}")
        elif isinstance(value, Mapping):
            self._parts(type(value).__name__, [part for item in value.items() for part in item])
        elif isinstance(value, list | tuple):
            self._parts(type(value).__name__, value)
        elif hasattr(value, "__dict__") and not hasattr(type(value), "__slots__"):
            self._parts("object", (type(value), vars(value)))
        else:
            self._words.append(f"only {id(value)}")

    def _parts(self, kind: str, parts: Any) -> None:
        self._words.append(f"{kind} {len(parts)}")
        for part in parts:
            self.add(part)

    def _class(self, value: type) -> None:
        self._words.append(f"{value.__module__}.{value.__qualname__}")
        if not _found_by_name(value):  # made in a function: two of one name may differ
            self._parts("bases", value.__bases__)
            for name, part in vars(value).items():
                if isinstance(part, FunctionType | staticmethod | classmethod | property) or name[:2] != "__":
                    self._words.append(name)
                    for inner in _functions(part):
                        self.add(inner)

    def _function(self, value: FunctionType) -> None:
        self._words.append(f"{value.__module__}.{value.__qualname__}")
        if not _found_by_name(value):
            cells = [_content(cell) for cell in value.__closure__ or ()]
            self._parts("function", (value.__code__, value.__defaults__, value.__kwdefaults__, cells))


def _functions(part: Any) -> Iterator[Any]:
    if isinstance(part, property):
        yield from (part.fget, part.fset)
    else:
        yield getattr(part, "__func__", part)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return "empty"


def _found_by_name(value: Any) -> bool:
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value
