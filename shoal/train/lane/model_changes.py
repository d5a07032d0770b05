"""What training changes of a model and its optimizers that no `state_dict()` holds.

Kept with the trial's state: `requires_grad`, training flags, plain attributes (numbers, texts,
tensors, arrays, lists, tuples, dicts) of modules, parameters and optimizers, private or not,
attributes of a library's class with a `state_dict()` (a `GradScaler`), and buffers that are not
persistent. Whatever else changes is refused (`ChangeError`): a trial that is resumed, or moved to
another slot, would go on without.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import UserDict, UserList
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from io import IOBase
from itertools import islice
from operator import is_
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from shoal.core.errors import warn
from shoal.train import private
from shoal.train.lane import tree
from shoal.train.lane.optimization import Schedule
from shoal.train.lane.ownership import Ownership, SharedError
from shoal.train.lane.tensors import is_sparse
from shoal.train.recipe.shard import ShardModel

PLAIN = (bool, int, float, str, type(None))
ARRAY = "~array"  # marks an array of NumPy's among the tensors of a state
KIND = "kind"
PIECE = 2**18  # items of arrays that are compared at once
DEEP = 5  # levels of an object that are looked at
# attributes of every optimizer, which torch keeps or Shoal looks at by themselves
OF_OPTIMIZERS = frozenset({"state", "param_groups", "step", *private.OF_STEPS})
# what configure_optimizers returns
STEPPED = (Optimizer, LRScheduler)
# the attribute of modules whose attributes an adapter keeps: see `adapt.module.kept`
SEAT = "shoal_seat"
# where LightningModules have what `save_hyperparameters` found
HYPER_PARAMETERS = "_hparams"
# methods that torchmetrics sets as attributes of each object
OF_METRICS = frozenset({"update", "compute"})
BUILD = "build it in configure_model or configure_optimizers, as it is to be in the whole training"
# classes of models of which a warning said that their validation changes them
_warned: set[type] = set()


class ChangeError(ValueError):
    """Training changed something that is not part of a trial's state."""

    def __init__(self, change: str, remedy: str) -> None:
        super().__init__(
            f"training changed {change}, which no state of the trial can hold: resumed, or moved "
            f"to another slot, the trial would go on without that; {remedy}"
        )


class ModelChanges:
    """The changes of a model and its optimizers since they were configured."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedules: Sequence[Schedule],
        adapted: bool,
        ownership: Ownership,
    ) -> None:
        self._model = model
        self._ownership = ownership
        model_parts = _ModelParts(
            model, _with_inner([*optimizers, *(s.scheduler for s in schedules)])
        )
        self._modules: list[_Module] = []
        # what is in a shard recipe's model is its own affair, and so is its state
        modules = () if isinstance(model, ShardModel) else model.named_modules()
        for name, module in modules:
            seated = module is model and SEAT in vars(module)
            # the adapter keeps what a metric counts
            by_adapter = adapted and (seated or _is_metric(module))
            self._modules.append(_Module(name, module, model_parts, by_adapter))
        self._parameters = dict(model.named_parameters())
        self._of_parameters = {}
        if not isinstance(model, ShardModel):
            self._of_parameters = {
                name: _Attributes(
                    each, f"the model's parameter {name}", model_parts, frozenset(), adapted=False
                )
                for name, each in self._parameters.items()
            }
        self._trained = [p.requires_grad for p in self._parameters.values()]
        self._optimizers = [_Optimizer(each, model_parts) for each in optimizers]
        self._schedules = [_Scheduler(each, model_parts) for each in schedules]

    def check(self, whole: bool = False) -> None:
        """Check that all changes can be kept in a state.

        `whole`: also into tensors that objects hold, which `.data` changes without a trace.

        Raises:
            ChangeError: one cannot; the first one is named.
            SharedError: one is of what several models have.
        """
        self._ownership.check()
        for module in self._modules:
            module.check(whole)
            if self._ownership.is_shared(module.module) and module.state():
                raise SharedError(
                    f"training changed attributes or flags of {module.label}, a module that other "
                    "models have, too: build it anew in each call of configure_model, or "
                    "copy.deepcopy(…) it"
                )
        for attributes in self._of_parameters.values():
            attributes.check(whole)
        for optimizer in self._optimizers:
            optimizer.check(whole)
        for schedule in self._schedules:
            schedule.check()

    def state(self) -> dict[str, Any]:
        """The changes as part of a trial's state; {} where there are none.

        Raises:
            ChangeError: as `check`.
        """
        self.check(whole=True)
        return self.unchecked_state()

    def unchecked_state(self) -> dict[str, Any]:
        """The changes as in `state`, without `check`: for each step of a wide trial."""
        saved: dict[str, Any] = {}
        trained = {
            name: parameter.requires_grad
            for (name, parameter), was in zip(self._parameters.items(), self._trained, strict=True)
            if parameter.requires_grad != was
        }
        if trained:
            saved["requires_grad"] = trained
        modules = {each.name: each.state() for each in self._modules}
        modules = {name: state for name, state in modules.items() if state}
        if modules:
            saved["modules"] = modules
        parameters = {name: each.state() for name, each in self._of_parameters.items()}
        parameters = {name: state for name, state in parameters.items() if state}
        if parameters:
            saved["parameters"] = parameters
        optimizers = [each.attributes.state() for each in self._optimizers]
        if any(optimizers):
            saved["optimizers"] = optimizers
        return {"changes": tree.to_numpy(saved)} if saved else {}

    @contextmanager
    def undone(self, device: torch.device) -> Iterator[None]:
        """Undoes whatever changes within it; a warning names it. `device`: the model's.

        Raises:
            ChangeError: as `check`.
        """
        before = deepcopy(self.state())  # its arrays are views
        try:
            yield
        except BaseException:
            self.load(before, device)
            raise
        after = self.state()
        if not same(before, after):
            warn_of_undone(type(self._model), list(_changed(before, after)))
            self.load(before, device)

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore what `state` saved; states of earlier versions have nothing of it."""
        saved = tree.to_torch(state.get("changes", {}))
        trained = saved.get("requires_grad", {})
        for (name, parameter), was in zip(self._parameters.items(), self._trained, strict=True):
            parameter.requires_grad_(trained.get(name, was))
        modules = saved.get("modules", {})
        for module in self._modules:
            module.load(modules.get(module.name, {}), device)
        parameters = saved.get("parameters", {})
        for name, attributes in self._of_parameters.items():
            attributes.load(parameters.get(name, {}), device)
        optimizers = saved.get("optimizers", [{}] * len(self._optimizers))
        for optimizer, attributes in zip(self._optimizers, optimizers, strict=False):
            optimizer.attributes.load(attributes, device)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """The names of what differs between two states of `ModelChanges`."""
    old, new = before.get("changes", {}), after.get("changes", {})
    if not same(old.get("requires_grad", {}), new.get("requires_grad", {})):
        yield "requires_grad"
    for kind in ("modules", "parameters"):
        old_states, new_states = old.get(kind, {}), new.get(kind, {})
        for place in {**old_states, **new_states}:
            was, now = old_states.get(place, {}), new_states.get(place, {})
            for form in ("attributes", "stateful"):
                for name in differing(was.get(form, {}), now.get(form, {})):
                    yield f"{place}.{name}".lstrip(".")


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names that are in one of the two only, or have another value there."""
    absent = object()
    names = {**one, **other}
    return [n for n in names if not same(one.get(n, absent), other.get(n, absent))]


def _with_inner(objects: Iterable[Any]) -> list[Any]:
    """Optimizers and schedulers, with those that they wrap."""
    all_objects: list[Any] = []
    for each in objects:
        all_objects.append(each)
        if isinstance(each, STEPPED):
            for value in vars(each).values():
                inner = value if isinstance(value, list | tuple) else (value,)
                all_objects += [one for one in inner if isinstance(one, STEPPED)]
    return all_objects


def warn_of_undone(kind: type, names: Sequence[str]) -> None:
    """Say once for a class that what validation changed of a model is undone."""
    if not names or kind in _warned:
        return
    _warned.add(kind)
    warn(
        f"validation changes {', '.join(names)} of {kind.__name__}: Shoal undoes that, for how "
        "often a trial is validated must not change what it learns"
    )


class _ModelParts:
    """The model's modules, parameters and buffers, and the memory that these lie in.

    `objects`: the trial's optimizers and schedulers, which keep their state themselves.
    """

    def __init__(self, model: nn.Module, objects: Sequence[Any] = ()) -> None:
        self.objects = {id(each) for each in objects}
        tensors = [*model.parameters(), *model.buffers()]
        self.modules = set(model.modules())
        self._keep = tensors  # so that no id is used twice
        self._ids = {id(tensor) for tensor in tensors}
        self._memory = {_memory(tensor) for tensor in tensors} - {0}

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._ids or _memory(tensor) in self._memory


def _memory(tensor: Tensor) -> int:
    """Where the tensor's memory begins; 0: it has none, or none of one piece."""
    if type(tensor) not in (Tensor, nn.Parameter) or is_sparse(tensor):
        return 0
    return tensor.untyped_storage().data_ptr()


class _Attributes:
    """The attributes of a module, parameter or optimizer, and what they were at first.

    `skip`: names that are looked at elsewhere. `adapted`: an adapter keeps the plain ones, but for
    the training flag.
    """

    def __init__(
        self, owner: Any, label: str, model_parts: _ModelParts, skip: frozenset[str], adapted: bool
    ) -> None:
        self._owner = owner
        self._label = label
        self._model_parts = model_parts
        self._skip = skip
        self._adapted = adapted
        self._digest = partial(digest, model_parts=model_parts)
        kind: Any = type(owner)
        self._library_names = _names_of_libraries(kind) - {HYPER_PARAMETERS}
        now = vars(owner)
        self._first = list(now.values())
        self._plain: dict[str, Any] = {}
        self._objects: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}
        # states at first of objects that tell them
        self._stateful: dict[str, tuple[Any, Any]] = {}
        # attributes that can change while they stay the same object
        self._deep: list[str] = []
        for name, value in now.items():
            if name in skip:
                continue
            of_library = name in self._library_names
            if (
                not of_library
                and not isinstance(value, (nn.Module, *STEPPED))
                and is_stateful(value)
                and self._is_plain(value.state_dict())
            ):
                self._stateful[name] = value, copied(value.state_dict())
                self._deep.append(name)
            elif self._is_plain(value):
                self._plain[name] = copied(value)
                if not _stays(value):
                    self._deep.append(name)
            elif not of_library:
                self._objects[name] = self._digest(self._without_adapted(name, value))
                self._whole[name] = self._digest(self._without_adapted(name, value), whole=True)
                if not isinstance(value, FIXED):
                    self._deep.append(name)
        self._originals = {name: now[name] for name in self._plain}

    @property
    def _same(self) -> bool:
        """Whether certainly nothing has changed; the usual case, and cheap."""
        now = vars(self._owner)
        return (
            not self._deep
            and len(now) == len(self._first)
            and all(map(is_, now.values(), self._first))
        )

    def check(self, whole: bool) -> None:
        """Raise ChangeError if an object that is not plain is new, gone or another one.

        `whole`: as of `ModelChanges.check`.
        """
        if self._same:
            return
        objects = {
            name: value
            for name, value in vars(self._owner).items()
            if name not in self._library_names
            and name not in self._skip
            and not self._is_plain(value)
            and value is not self._stateful.get(name, (None,))[0]
        }
        for name, value in objects.items():
            before = (self._whole if whole else self._objects).get(name, self)
            now = self._digest(self._without_adapted(name, value), whole=whole)
            if before is self or now != before:
                change = f"the attribute {name!r} of {self._label} (now a {type(value).__name__})"
                if isinstance(value, STEPPED):
                    raise ChangeError(change, "return it from configure_optimizers, too")
                raise ChangeError(
                    change,
                    "keep such things as numbers, texts, tensors, lists or dicts (of an iterator "
                    "how far it is); delete an object that no later step reads at the step's end",
                )
        for name in (*self._objects, *self._stateful):
            if name not in objects and name not in vars(self._owner):
                raise ChangeError(f"{self._label}: the attribute {name!r} is gone", BUILD)

    def state(self) -> dict[str, Any]:
        """The plain attributes that are new or changed, and the names of those that are gone."""
        if self._same:
            return {}
        changed: dict[str, Any] = {}
        on_device: list[str] = []  # names of those that lie on a device
        now = vars(self._owner)
        for name, value in now.items():
            if name in self._skip or not self._is_plain(value) or self._is_adapted(name):
                continue
            if name in self._plain and same(value, self._plain[name]):
                continue
            changed[name] = _encoded(value)
            if any(tensor.device.type != "cpu" for tensor in _tensors_in(value)):
                on_device.append(name)
        gone = [n for n in self._plain if n not in now and not self._is_adapted(n)]
        saved: dict[str, Any] = {}
        stateful = {
            name: _encoded(value.state_dict())
            for name, (value, first) in self._stateful.items()
            if not same(value.state_dict(), first)
        }
        if stateful:
            saved["stateful"] = stateful
        if changed:
            saved["attributes"] = changed
        if on_device:
            saved["on_device"] = on_device
        if gone:
            saved["gone"] = gone
        return saved

    def load(self, saved: Mapping[str, Any], device: torch.device) -> None:
        """Restore the plain attributes that `state` saved, and those that it found unchanged."""
        if not saved and self._same:
            return
        now = vars(self._owner)
        for name in [n for n in now if n not in self._skip and not self._is_adapted(n)]:
            if name not in self._plain and self._is_plain(now[name]):
                del now[name]
        for name, first in self._plain.items():
            if not self._is_adapted(name):
                now[name] = self._renewed(name, first)
        for name, value in saved.get("attributes", {}).items():
            place = device if name in saved.get("on_device", ()) else None
            now[name] = self._renewed(name, _decoded(value, place))
        for name in saved.get("gone", ()):
            now.pop(name, None)
        saved_states = saved.get("stateful", {})
        for name, (stateful, first) in self._stateful.items():
            state = _decoded(saved_states[name], device) if name in saved_states else first
            stateful.load_state_dict(copied(state))

    def _renewed(self, name: str, value: Any) -> Any:
        """A copy of the value; a tensor in the first one's memory, which an optimizer may step."""
        first = self._originals.get(name)
        if isinstance(first, Tensor) and isinstance(value, Tensor):
            alike = first.shape == value.shape and first.dtype == value.dtype
            if alike and not is_sparse(first) and not is_sparse(value):
                with torch.no_grad():
                    first.copy_(value)
                return first
        return copied(value)

    def _is_adapted(self, name: str) -> bool:
        """Whether an adapter keeps this attribute."""
        return self._adapted and name != "training"

    def _without_adapted(self, name: str, value: Any) -> Any:
        """The value without the hyper-parameters that an adapter keeps."""
        if name != HYPER_PARAMETERS or not self._adapted:
            return value
        return {k: each for k, each in value.items() if not self._is_plain(each)}

    def _is_plain(self, value: Any) -> bool:
        """Whether the value can be part of a trial's state by itself."""
        if type(value) in PLAIN:
            return True
        if isinstance(value, Tensor):
            return type(value) is Tensor and value not in self._model_parts
        if type(value) is dict:
            texts = all(type(key) in (str, int) and key != tree.MARK for key in value)
            return texts and all(map(self._is_plain, value.values()))
        if type(value) in (list, tuple):
            return all(map(self._is_plain, value))
        if isinstance(value, np.ndarray):
            return value.dtype.kind in "biuf"
        return isinstance(value, np.generic) and value.dtype.kind in "biuf"


class Entries(NamedTuple):
    """The digest of a mapping, or of an object's attributes."""

    kind: type
    keys: tuple[str, ...]
    values: tuple[Any, ...]


def digest(  # noqa: PLR0911, PLR0912 - one for each kind
    value: Any,
    model_parts: _ModelParts | None = None,
    depth: int = 0,
    whole: bool = False,
    most: int = sys.maxsize,
) -> Any:
    """A digest that stays equal as long as the object does, as far as that can be looked into.

    `model_parts`: the model's, if there is one, which are looked at elsewhere. `whole`: also into
    the memory of other tensors. `most`: of larger containers and arrays about so many items are
    looked at, evenly spread.
    """
    deeper = partial(digest, model_parts=model_parts, depth=depth + 1, whole=whole, most=most)
    if type(value) in PLAIN or isinstance(value, (bytes, complex)):
        return value
    if isinstance(value, Iterator) and not isinstance(value, IOBase):
        return object()  # nobody can see what was taken from it: as if something had been
    if depth > DEEP or isinstance(value, FIXED):
        return id(value)
    if model_parts is not None and id(value) in model_parts.objects:
        return id(value)
    if isinstance(value, nn.Module):
        if model_parts is not None and value in model_parts.modules:
            return id(value)
        tensors = [*value.parameters(), *value.buffers()]
        more = _plain_in(value) if model_parts is None else _counted(value)
        return id(value), tuple(map(deeper, tensors)), more
    state = _random_state(value)
    if state is not None:
        return state
    if isinstance(value, Tensor):
        if model_parts is not None and value in model_parts:
            return id(value)
        if value.numel() > most:  # NumPy may have written to it, too
            return id(value), private.writes(value), _sum_of(value, most)
        return id(value), _sum_of(value) if whole else private.writes(value)
    if isinstance(value, (np.ndarray, np.generic)):
        if value.size > most:
            return value.shape, value.flat[:: _stride(value.size, most)].tobytes()
        return value.tobytes()
    if isinstance(value, Mapping) and not _is_lazy(value):
        stride = _stride(len(value), most)
        keys = tuple(map(repr, islice(value, 0, None, stride)))
        items = islice(value.values(), 0, None, stride)
        return Entries(type(value), keys, tuple(map(deeper, items)))
    if isinstance(value, (set, frozenset)):
        return frozenset(map(repr, value)) if len(value) <= most else type(value)
    queue = hasattr(type(value), "popleft") and hasattr(type(value), "__len__")
    if queue or (isinstance(value, Sequence) and not _is_lazy(value)):
        items = islice(value, 0, None, _stride(len(value), most))
        return type(value), len(value), tuple(map(deeper, items))
    if isinstance(value, MethodType):
        return value.__func__, deeper(value.__self__)
    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        values = (*(value.__defaults__ or ()), *cells)
        return value.__code__, tuple(map(deeper, values))
    if is_stateful(value):
        return id(value), deeper(value.state_dict())
    if not is_users(type(value)):
        return id(value)
    return type(value), deeper(parts_of(value))


def _counted(module: nn.Module) -> tuple[Any, ...]:
    """Checksums of the counts of metrics in a module that is no part of the model."""
    states = [each.metric_state for each in module.modules() if _is_metric(each)]
    sums: list[Any] = []
    for state in states:
        for value in state.values() if isinstance(state, dict) else ():
            sums.append([_sum_of(each) for each in _tensors_in(value)])
    return tuple(map(tuple, sums))


def _plain_in(module: nn.Module) -> tuple[Any, ...]:
    """The plain attributes of a module's modules of users' classes, but for flags of training."""
    entries = []
    for each in module.modules():
        if is_users(type(each)):
            plain = {n: v for n, v in vars(each).items() if type(v) in PLAIN}
            plain.pop("training", None)
            entries.append(Entries(type(each), tuple(plain), tuple(plain.values())))
    return tuple(entries)


def _stride(count: int, most: int) -> int:
    """The step between items to look at; a power of two, so that it seldom changes."""
    return int(1 << max(0, (count - 1) // most).bit_length())


def _is_lazy(value: Any) -> bool:
    """Whether iterating over the container may run a user's code."""
    kinds = (dict, list, tuple, UserDict, UserList)
    return is_users(type(value)) and not isinstance(value, kinds)


def _sum_of(tensor: Tensor, most: int = sys.maxsize) -> int:
    """A checksum of the tensor's numbers; how often it was written to, where it has no memory.

    `most`: see `digest`; then no other device is waited for.
    """
    elsewhere = most < sys.maxsize and tensor.device.type != "cpu"
    if is_sparse(tensor) or tensor.device.type == "meta" or elsewhere:
        return private.writes(tensor)
    numbers = tree.view_of(tensor)
    if numbers.size > most:
        return zlib.crc32(numbers.flat[:: _stride(numbers.size, most)].tobytes())
    return zlib.crc32(np.ascontiguousarray(numbers).tobytes())


def parts_of(value: Any) -> dict[str, Any]:
    """The attributes of an object of a user's class, also those in slots."""
    parts: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                parts[name] = getattr(value, name, None)
    try:
        return {**parts, **vars(value)}
    except Exception:  # noqa: BLE001 - what such a class raises is its own affair
        return parts


@cache
def _names_of_libraries(kind: type) -> frozenset[str]:
    """Private names that the libraries among an object's classes use: they are their affair."""
    names: set[str] = set()
    for base in kind.__mro__:
        if not is_users(base):
            for member in vars(base).values():
                names |= _names_in(member)
    return frozenset(name for name in names if name.startswith("_"))


def _names_in(member: Any) -> set[str]:
    """The attributes' names in the code of a function or property, also those given as texts."""
    if isinstance(member, property):
        return _names_in(member.fget) | _names_in(member.fset) | _names_in(member.fdel)
    code = member
    if not isinstance(member, CodeType):
        member = getattr(member, "__wrapped__", member)
        code = getattr(getattr(member, "__func__", member), "__code__", None)
    if not isinstance(code, CodeType):
        return set()
    names = set(code.co_names)
    for each in code.co_consts:
        names |= {each} if isinstance(each, str) else _names_in(each)
    return names


# compared by identity alone
FIXED = (ModuleType, BuiltinFunctionType, type, torch.dtype, torch.device)


def is_stateful(value: Any) -> bool:
    """Whether a library's object tells and takes its state, as torch's do."""
    names = ("state_dict", "load_state_dict")
    has_both = all(callable(getattr(type(value), name, None)) for name in names)
    return has_both and not is_users(type(value))


def _stays(value: Any) -> bool:
    """Whether a plain value cannot change while it stays the same object."""
    if isinstance(value, tuple):
        return all(map(_stays, value))
    return isinstance(value, PLAIN)


def is_users(kind: type) -> bool:
    """Whether a user wrote the class: objects of libraries note things that change nothing."""
    if kind is SimpleNamespace or kind.__module__ == "queue":
        return True
    file = str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
    root = kind.__module__.partition(".")[0]
    if root == "shoal":
        return False
    installed = any(part in file for part in ("site-packages", "dist-packages"))
    return root not in sys.stdlib_module_names and not installed


def _content(cell: Any) -> Any:
    """What a function's closure has in this cell."""
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None


def _random_state(value: Any) -> Any:
    """The state of a random generator; None of other objects."""
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    return None


class _Module:
    """One module of the model: its attributes, parameters, buffers, modules and hooks."""

    def __init__(
        self, name: str, module: nn.Module, model_parts: _ModelParts, adapted: bool
    ) -> None:
        self.name = name
        self.module = module
        self.label = f"the model's {name}" if name else "the model"
        inner = frozenset(vars(nn.Module())) - {"training"}
        skip = inner | {SEAT, "shoal_read", "outside_graph"}
        if _is_metric(module):
            skip |= OF_METRICS
        self._attributes = _Attributes(module, self.label, model_parts, skip, adapted)
        self._class = type(module)
        self._parts = private.parts_of_module(module)
        self._forms = _forms(self._parts)
        self._boxes = private.hook_boxes(module)
        self._hooks = private.hooks_in(self._boxes)
        self._unsaved = {
            name: buffer.detach().clone()
            for name, buffer in private.unsaved_buffers(module).items()
        }

    def check(self, whole: bool) -> None:
        """Raise ChangeError for what cannot be kept. `whole`: as of `ModelChanges.check`."""
        module = self.module
        self._attributes.check(whole)
        if type(module) is not self._class:
            raise ChangeError(
                f"the class of {self.label} from {self._class.__name__} to "
                f"{type(module).__name__} (a parametrization?)",
                BUILD,
            )
        parts = private.parts_of_module(module)
        if not parts.same(self._parts) or _forms(parts) != self._forms:
            self._refuse_parts(parts)
        if private.unsaved_buffers(module).keys() != self._unsaved.keys():
            raise ChangeError(f"which buffers of {self.label} are persistent", BUILD)
        if private.hooks_in(self._boxes) != self._hooks:
            raise ChangeError(
                f"the hooks of {self.label}",
                "register them in configure_model, or remove them in the step that adds them",
            )

    def _refuse_parts(self, parts: private.ModuleParts) -> None:
        """Raise ChangeError if a parameter, buffer or module came, went, or became another."""
        forms = _forms(parts)
        for kind, before, now in zip(parts._fields, self._parts, parts, strict=True):
            for name in {**before, **now}:
                place = (kind, name)
                was, is_now = self._forms.get(place), forms.get(place)
                replaced = kind != "buffers" and before.get(name) is not now.get(name)
                if was == is_now and not replaced:
                    continue
                change = "is another one"
                if was is None or is_now is None:
                    change = "is new" if was is None else "is gone"
                elif was != is_now:
                    change = f"was {_described(was)}, and is {_described(is_now)}"
                raise ChangeError(
                    f"{self.label}: the {kind[:-1]} {name!r} {change}",
                    "build it in configure_model, as it is to be in the whole training; what is "
                    "to be trained later can wait with requires_grad_(False)",
                )
        self._parts = parts  # with other buffers of the same form

    def state(self) -> dict[str, Any]:
        """The module's changes that are to be kept."""
        saved = self._attributes.state()
        buffers = {
            name: buffer
            for name, buffer in private.unsaved_buffers(self.module).items()
            if not same(buffer, self._unsaved[name])
        }
        return {**saved, "buffers": buffers} if buffers else saved

    def load(self, saved: Mapping[str, Any], device: torch.device) -> None:
        """Restore what `state` saved."""
        self._attributes.load(saved, device)
        values = {**self._unsaved, **saved.get("buffers", {})}
        for name, buffer in private.unsaved_buffers(self.module).items():
            with torch.no_grad():
                buffer.copy_(values[name])


def _forms(parts: private.ModuleParts) -> dict[tuple[str, str], tuple[Any, ...]]:
    """The forms of a module's own parts, by kind and name; those that are None have none."""
    return {
        (kind, name): _form(part)
        for kind, some in zip(parts._fields, parts, strict=True)
        for name, part in some.items()
        if part is not None
    }


def _form(part: Any) -> tuple[Any, ...]:
    """A tensor's form, and its hooks; a module's class."""
    if not isinstance(part, Tensor):
        return (type(part),)
    return (part.dtype, part.shape, part.device, *private.own_hooks_of(part))


def _described(form: tuple[Any, ...]) -> str:
    """A form in words."""
    if len(form) == 1:
        return str(form[0].__name__)
    dtype, shape, device, *hooks = form
    more = f" with {len(hooks)} hooks" if hooks else ""
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)} on {device}{more}"


class _Optimizer:
    """One optimizer: its groups, its hooks, and its attributes."""

    def __init__(self, optimizer: Optimizer, model_parts: _ModelParts) -> None:
        self._optimizer = optimizer
        self._label = f"the optimizer {type(optimizer).__name__}"
        skip = OF_OPTIMIZERS | {
            name
            for name, value in vars(optimizer).items()
            if isinstance(value, Optimizer) or name.endswith("_hooks")
        }
        self.attributes = _Attributes(optimizer, self._label, model_parts, skip, adapted=False)
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        self._keys = [set(group) for group in optimizer.param_groups]
        self._boxes = private.hook_boxes(optimizer)
        self._hooks = private.hooks_in(self._boxes)

    def check(self, whole: bool) -> None:
        """Raise ChangeError for what cannot be kept. `whole`: as of `ModelChanges.check`."""
        optimizer = self._optimizer
        self.attributes.check(whole)
        groups = optimizer.param_groups
        if len(groups) != len(self._groups):
            raise ChangeError(
                f"{self._label}: it had {len(self._groups)} parameter groups, "
                f"and has {len(groups)}",
                "give it all groups in configure_optimizers; parameters that wait have "
                "requires_grad False, or their group lr 0, until their time comes",
            )
        for number, (group, before) in enumerate(zip(groups, self._groups, strict=True)):
            now = group["params"]
            if len(now) != len(before) or not all(map(is_, now, before)):
                raise ChangeError(
                    f"{self._label}: the parameters of its group {number}",
                    "give each parameter its group in configure_optimizers; parameters that wait "
                    "have requires_grad False until their time comes",
                )
            gone = self._keys[number] - set(group)
            if gone:
                raise ChangeError(
                    f"{self._label}: its group {number} has lost {', '.join(sorted(gone))}", BUILD
                )
        if private.hooks_in(self._boxes) != self._hooks:
            raise ChangeError(
                f"the hooks of {self._label}", "register them in configure_optimizers"
            )


class _Scheduler:
    """One schedule: the functions that its rates come from, which no state has."""

    def __init__(self, schedule: Schedule, model_parts: _ModelParts) -> None:
        self._schedule = schedule
        self._first = schedule.scheduler
        self._model_parts = model_parts
        self._functions = _functions(self._first, model_parts)

    def check(self) -> None:
        """Raise ChangeError if the scheduler, or one of its functions, is another."""
        now = _functions(self._schedule.scheduler, self._model_parts)
        if self._schedule.scheduler is not self._first or now != self._functions:
            raise ChangeError(
                f"the functions of the scheduler {type(self._first).__name__}, or what they hold",
                "let one function give the rates of the whole training, by their number alone",
            )


def _functions(scheduler: Any, model_parts: _ModelParts) -> list[Any]:
    """The functions and schedulers that a torch scheduler holds; its numbers are in its state."""
    if not isinstance(scheduler, LRScheduler):
        return []
    functions: list[Any] = [id(scheduler), id(scheduler.optimizer)]
    for name, value in vars(scheduler).items():
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, LRScheduler):
                functions += _functions(each, model_parts)
            elif callable(each) and name != "step" and not name.startswith("_"):
                # torch keeps the attributes of objects that are called, not what functions hold
                is_function = isinstance(each, (FunctionType, MethodType))
                functions.append(digest(each, model_parts) if is_function else id(each))
    return functions


def _is_metric(module: nn.Module) -> bool:
    """Whether the module is one of torchmetrics' objects."""
    return hasattr(module, "metric_state")


# -- plain values ----------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:  # noqa: PLR0911 - one for each kind
    """Whether two values are equal to the last bit; values that are not plain: the same object."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        forms = one.dtype == other.dtype and one.device == other.device
        return forms and _equal(one.detach(), other.detach())
    if isinstance(one, np.ndarray | np.generic):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and _same_bytes(one.reshape(-1), other.reshape(-1)))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if not isinstance(one, PLAIN):
        return one is other
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _same_bytes(one: Any, other: Any) -> bool:
    """Whether two flat arrays of one length hold the same bytes; large ones are not copied."""
    return all(
        one[start : start + PIECE].tobytes() == other[start : start + PIECE].tobytes()
        for start in range(0, len(one), PIECE)
    )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether all numbers are the same; NaN is the same as NaN."""
    if torch.equal(one, other):
        return True
    numbers = one.is_floating_point() or one.is_complex()
    if not numbers or one.shape != other.shape or is_sparse(one):
        return False
    return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def copied(value: Any) -> Any:
    """A copy of a plain value that shares no memory with it, and no gradient."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a plain value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(each)


def _encoded(value: Any) -> Any:
    """The value with marked tensors for its arrays, which would come back as tensors."""
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {ARRAY: np.array(value), KIND: kind}
    if isinstance(value, dict):
        return {key: _encoded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encoded, value))
    return value


def _decoded(value: Any, device: torch.device | None) -> Any:
    """The value before `_encoded`, its tensors on the device."""
    if isinstance(value, Tensor):
        return value if device is None else value.to(device)
    if isinstance(value, dict):
        if ARRAY in value:
            array = tree.view_of(value[ARRAY]).copy()
            return array if value[KIND] == "array" else array[()]
        return {key: _decoded(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_decoded(each, device) for each in value)
    return value
