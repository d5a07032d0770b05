"""States as plain trees: nested dicts and lists of NumPy arrays and plain values, and back to tensors."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MARK = "~"  # {"~": "bfloat16", "bits": array}: a dtype that NumPy lacks, kept bit by bit
_PLAIN = (bool, int, float, str, bytes, type(None))


def view_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array (a copy only where it lies on another device); a dtype NumPy lacks as integers."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.view(_BITS[tensor.element_size()]).numpy()


def to_numpy(tree: Any) -> Any:
    """The tree with arrays for its tensors, sharing their memory where it can.

    Raises:
        TypeError: it holds something that is neither a tensor nor plain.
    """
    return _mapped(tree, _exported)


def to_torch(tree: Any, copy: bool = True) -> Any:
    """The tree with tensors for its arrays; without `copy` they share their memory, where it may be written to."""
    return _mapped(tree, _copied if copy else _shared)


def _mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, Mapping) and _MARK not in tree:
        items = {key: _mapped(value, leaf) for key, value in tree.items()}
        return Counter(items) if isinstance(tree, Counter) else items
    if isinstance(tree, list | tuple):
        items_ = [_mapped(value, leaf) for value in tree]
        return items_ if isinstance(tree, list) else tuple(items_)
    if isinstance(tree, _PLAIN) and type(tree) in _PLAIN:
        return tree
    return leaf(tree)


def _exported(value: Any) -> Any:
    if isinstance(value, Tensor):
        array = view_of(value)
        name = str(value.dtype).removeprefix("torch.")
        return array if array.dtype.name == name else {_MARK: name, "bits": array}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | Mapping):
        return value
    if isinstance(value, _PLAIN):  # a subclass, as an enumeration's value
        return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    raise TypeError(f"a trial's state may hold tensors, arrays, numbers, texts, lists and dicts; got {type(value).__name__}")


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _copied(value["bits"]).view(getattr(torch, value[_MARK]))
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _shared(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _shared(value["bits"]).view(getattr(torch, value[_MARK]))
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return _copied(value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def fits(tensor: Tensor, value: Any) -> bool:
    """Whether the array has this tensor's shape and dtype."""
    name = value[_MARK] if isinstance(value, Mapping) else getattr(getattr(value, "dtype", None), "name", None)
    array = value["bits"] if isinstance(value, Mapping) else value
    return str(tensor.dtype).removeprefix("torch.") == name and tuple(tensor.shape) == array.shape


def fill(tensor: Tensor, value: Any) -> None:
    """Write the array's values into the tensor's memory: one copy, and nothing is shared afterwards."""
    if tensor.device.type == "cpu":
        source, target = value["bits"] if isinstance(value, Mapping) else value, view_of(tensor)
        if target.__array_interface__["data"] != source.__array_interface__["data"] or target.strides != source.strides:
            np.copyto(target, source)
    else:
        with torch.no_grad():
            tensor.copy_(_copied(value))


def size_of(tree: Any) -> int:
    """Bytes in the tree's arrays and tensors."""
    if isinstance(tree, Mapping):
        return sum(size_of(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(size_of(value) for value in tree)
    return int(tree.nbytes) if isinstance(tree, np.ndarray | Tensor) else 0


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Fill the model's parameters and buffers from `to_numpy(model.state_dict())`.

    Raises:
        ValueError: it is the state of another model.
    """
    own = model.state_dict()
    wrong = [name for name in state if name not in own]
    for name, value in own.items():
        if name not in state or (isinstance(value, Tensor) and not fits(value, state[name])):
            wrong.append(name)
    if wrong:
        raise ValueError(f"the state is not this model's: {', '.join(wrong[:5])} differ; was configure_model changed?")
    if all(isinstance(value, Tensor) for value in own.values()):
        for name, value in own.items():
            fill(value, state[name])
    else:  # modules with a state of their own making
        model.load_state_dict(to_torch(state))


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Make the optimizer what `to_numpy(optimizer.state_dict())` was of, in place where it holds tensors of that form.

    Raises:
        ValueError: other groups of parameters.
    """
    held = optimizer.state_dict()["state"]
    if held and type(optimizer).load_state_dict is Optimizer.load_state_dict and _alike(held, state["state"]):
        for number, values in held.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    fill(value, state["state"][number][key])
        groups = to_torch(state["param_groups"])
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
    else:
        saved = to_torch(dict(state))
        optimizer.load_state_dict(saved)
        if type(optimizer).load_state_dict is Optimizer.load_state_dict:
            _keep_dtypes(optimizer, saved["state"])
        for parameter, values in optimizer.state.items():
            if isinstance(parameter, Tensor) and isinstance(values, dict):
                values.update({key: _laid_like(parameter, value) for key, value in values.items()})


def _keep_dtypes(optimizer: Optimizer, saved: Mapping[Any, Any]) -> None:
    """What torch rounded to the parameter's dtype in loading, as it was saved: NAdam's products, say, are float32."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in saved.items():
        held = optimizer.state[parameters[number]] if isinstance(number, int) else {}
        for key, value in values.items() if isinstance(values, Mapping) else ():
            loaded = held.get(key)
            if isinstance(value, Tensor) and isinstance(loaded, Tensor) and loaded.dtype != value.dtype:
                held[key] = value.to(loaded.device)


def _laid_like(parameter: Tensor, value: Any) -> Any:
    """A state of the parameter's shape with its strides, which one-pass kernels take for granted."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or value.stride() == parameter.stride():
        return value
    return torch.empty_like(parameter.detach(), dtype=value.dtype).copy_(value)


def _alike(held: Mapping[Any, Any], state: Mapping[Any, Any]) -> bool:
    """Whether both hold the same tensors of the same form, and nothing but tensors."""
    return held.keys() == state.keys() and all(
        values.keys() == state[number].keys()
        and all(isinstance(value, Tensor) and fits(value, state[number][key]) for key, value in values.items())
        for number, values in held.items()
    )
