"""States as plain trees: nested dicts and lists of NumPy arrays and plain values, and back.

Tensors that NumPy has no arrays for become small dicts marked "~". {"~": "bfloat16", "bits": array}
keeps a dtype bit by bit. {"~": "sparse_coo", "shape": …, "indices": …, "values": …} keeps a sparse
tensor.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.lane.tensors import bytes_of, from_parts, is_sparse, parts_of

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARK = "~"
_PLAIN = (bool, int, float, str, bytes, type(None))


def view_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array; a copy only where it lies on another device.

    A dtype that NumPy lacks comes as integers of the same size.
    """
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor.view(_BITS[tensor.element_size()]).numpy()


def to_numpy(tree: Any) -> Any:
    """The tree with arrays for its tensors, sharing their memory where that is possible.

    Raises:
        TypeError: it holds something that is neither a tensor nor plain.
    """
    return _mapped(tree, _exported)


def to_torch(tree: Any, copy: bool = True) -> Any:
    """The tree with tensors for its arrays.

    Without `copy` they share the arrays' memory, where it may be written to.
    """
    if copy:
        return _mapped(tree, _copied)
    return _mapped(tree, _shared)


def _mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """The tree with its leaves mapped by the function."""
    if isinstance(tree, Mapping) and MARK not in tree:
        items = {key: _mapped(value, leaf) for key, value in tree.items()}
        if isinstance(tree, Counter):
            return Counter(items)
        return items
    if isinstance(tree, list):
        return [_mapped(value, leaf) for value in tree]
    if isinstance(tree, tuple):
        return tuple(_mapped(value, leaf) for value in tree)
    if isinstance(tree, _PLAIN) and type(tree) in _PLAIN:
        return tree
    return leaf(tree)


def _exported(value: Any) -> Any:
    """A leaf as an array or a plain value."""
    if isinstance(value, Tensor):
        return _exported_tensor(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | Mapping):
        return value
    if isinstance(value, _PLAIN):  # a subclass, as an enumeration's value
        return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
    rule = "a trial's state may hold tensors, arrays, numbers, texts, lists and dicts"
    raise TypeError(f"{rule}; got {type(value).__name__}")


def _exported_tensor(tensor: Tensor) -> Any:
    if is_sparse(tensor):
        marked: dict[str, Any] = {MARK: _name(tensor.layout)}
        marked["shape"] = list(tensor.shape)
        for name, part in parts_of(tensor.detach()).items():
            marked[name] = _exported(part)
        return marked

    array = view_of(tensor)
    dtype = _name(tensor.dtype)
    if array.dtype.name == dtype:
        return array
    return {MARK: dtype, "bits": array}


def _name(kind: torch.dtype | torch.layout) -> str:
    return str(kind).removeprefix("torch.")


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _unmarked(value, _copied)
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    return value


def _shared(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _unmarked(value, _shared)
    if isinstance(value, np.ndarray):
        if not value.flags.writeable:
            return _copied(value)
        return torch.from_numpy(value)
    return value


def _unmarked(marked: Mapping[str, Any], leaf: Callable[[Any], Any]) -> Tensor:
    """The tensor that a marked dict stands for."""
    if "bits" in marked:
        bits: Tensor = leaf(marked["bits"])
        return bits.view(getattr(torch, marked[MARK]))
    parts = {name: leaf(part) for name, part in marked.items() if name not in (MARK, "shape")}
    return from_parts(marked[MARK], parts, marked["shape"])


def fits(tensor: Tensor, value: Any) -> bool:
    """Whether the array has this tensor's shape and dtype, or layout if it is sparse."""
    if not isinstance(value, Mapping):
        name = getattr(getattr(value, "dtype", None), "name", None)
        return _name(tensor.dtype) == name and bool(tensor.shape == value.shape)
    if "bits" in value:
        same = _name(tensor.dtype) == value[MARK]
        return same and bool(tensor.shape == value["bits"].shape)
    same = _name(tensor.layout) == value[MARK]
    return same and bool(tensor.shape == tuple(value["shape"]))


def fill(tensor: Tensor, value: Any) -> None:
    """Write the array's values into the tensor's memory: one copy; nothing is shared afterwards."""
    if tensor.device.type != "cpu" or is_sparse(tensor):
        with torch.no_grad():
            tensor.copy_(_copied(value))
        return
    source = value["bits"] if isinstance(value, Mapping) else value
    target = view_of(tensor)
    same = target.__array_interface__["data"] == source.__array_interface__["data"]
    if not same or target.strides != source.strides:
        np.copyto(target, source)


def size_of(tree: Any) -> int:
    """Bytes in the tree's arrays and tensors."""
    if isinstance(tree, Mapping):
        return sum(size_of(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(size_of(value) for value in tree)
    if isinstance(tree, Tensor):
        return bytes_of(tree)
    if isinstance(tree, np.ndarray):
        return tree.nbytes
    return 0


def load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Fill the model's parameters and buffers from `to_numpy(model.state_dict())`.

    Raises:
        ValueError: it is the state of another model.
    """
    current = model.state_dict()
    wrong = [name for name in state if name not in current]
    wrong += [
        name
        for name, value in current.items()
        if name not in state or (isinstance(value, Tensor) and not fits(value, state[name]))
    ]
    if wrong:
        names = ", ".join(wrong[:5])
        raise ValueError(
            f"the state is not this model's: {names} differ; was configure_model changed?"
        )

    if any(not isinstance(value, Tensor) or is_sparse(value) for value in current.values()):
        # `current` holds copies of sparse buffers, and of what modules make themselves
        model.load_state_dict(to_torch(state))
        return
    for name, value in current.items():
        fill(value, state[name])


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore the optimizer from `to_numpy(optimizer.state_dict())`.

    Tensors are filled in place where the optimizer holds tensors of that form.

    Raises:
        ValueError: other groups of parameters.
    """
    current = optimizer.state_dict()["state"]
    usual = type(optimizer).load_state_dict is Optimizer.load_state_dict
    if current and usual and _alike(current, state["state"]):
        _fill_optimizer(optimizer, current, state)
        return
    saved = to_torch(dict(state))
    optimizer.load_state_dict(saved)
    if usual:
        _keep_dtypes(optimizer, saved["state"])
    for parameter, values in optimizer.state.items():
        if not isinstance(parameter, Tensor) or not isinstance(values, dict):
            continue
        for key, value in values.items():
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                continue
            if value.stride() != parameter.stride():  # one-pass kernels rely on the strides
                target = torch.empty_like(parameter.detach(), dtype=value.dtype)
                values[key] = target.copy_(value)


def _fill_optimizer(
    optimizer: Optimizer, current: Mapping[Any, Any], state: Mapping[str, Any]
) -> None:
    """Fill the tensors that the optimizer holds, and set its groups' numbers."""
    for number, values in current.items():
        saved_values = state["state"][number]
        for key, value in values.items():
            if isinstance(value, Tensor):
                fill(value, saved_values[key])

    groups = to_torch(state["param_groups"])
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        for key, value in saved.items():
            if key != "params":
                group[key] = value


def _keep_dtypes(optimizer: Optimizer, saved: Mapping[Any, Any]) -> None:
    """Restore the dtypes of values that torch rounded to the parameter's dtype in loading.

    NAdam's products, for example, are float32.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in saved.items():
        if not isinstance(number, int) or not isinstance(values, Mapping):
            continue
        loaded_values = optimizer.state[parameters[number]]
        for key, value in values.items():
            loaded = loaded_values.get(key)
            tensors = isinstance(value, Tensor) and isinstance(loaded, Tensor)
            if tensors and loaded.dtype != value.dtype:
                loaded_values[key] = value.to(loaded.device)


def _alike(current: Mapping[Any, Any], state: Mapping[Any, Any]) -> bool:
    """Whether both hold the same tensors of the same form, and nothing but tensors."""
    if current.keys() != state.keys():
        return False
    for number, values in current.items():
        saved = state[number]
        if values.keys() != saved.keys():
            return False
        for key, value in values.items():
            if not isinstance(value, Tensor) or not fits(value, saved[key]):
                return False
    return True
