"""What a module keeps outside its parameters and buffers, so that it travels with the trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from shoal.train.adapt.lightning_classes import is_metric
from shoal.train.lane.model_changes import HYPER_PARAMETERS, copied, same

PLAIN = (bool, int, float, str, bytes, type(None))
# attributes that torch, Lightning and Shoal set
THEIRS = set(vars(nn.Module())) | {"shoal_seat", "shoal_read"}
NOTHING: Mapping[str, Any] = {
    "attributes": {},
    "gone": [],
}  # what `changed` gives where nothing has


class KeptAttributes:
    """The plain attributes of a module and of its metrics, and what has become of them since.

    Numbers, texts, tensors, arrays, and lists, tuples and dicts of them are kept. Other objects
    that change are refused: see `lane.model_changes`, which also keeps what belongs to the other
    modules within. All that a metric counts lies in such attributes.
    """

    def __init__(self, module: nn.Module) -> None:
        self._of_module = _Plain(module)
        self._metrics = {name: _Plain(metric) for name, metric in metrics_of(module)}

    def changed(self, module: nn.Module) -> dict[str, Any]:
        """The attributes that are new or have other values, of the module and of its metrics."""
        metrics = {
            name: self._metrics[name].changed(metric)
            for name, metric in metrics_of(module)
            if name in self._metrics
        }
        return {**self._of_module.changed(module), "metrics": metrics}

    def restore(self, module: nn.Module, changes: Mapping[str, Any]) -> None:
        """Make the attributes and metrics what they were when `changed` gave this."""
        self._of_module.restore(module, changes)
        for name, metric in metrics_of(module):
            if name in self._metrics:
                self._metrics[name].restore(metric, changes["metrics"].get(name, NOTHING))


class _Plain:
    """The plain attributes of one module, as they were at first."""

    def __init__(self, module: nn.Module) -> None:
        self._initial = {name: copied(value) for name, value in _attributes(module)}

    def changed(self, module: nn.Module) -> dict[str, Any]:
        """The attributes that are new or have other values, and the names of those gone."""
        now = dict(_attributes(module))
        attributes = {
            name: value
            for name, value in now.items()
            if name not in self._initial or not same(value, self._initial[name])
        }
        gone = [name for name in self._initial if name not in vars(module)]
        return {"attributes": attributes, "gone": gone}

    def restore(self, module: nn.Module, changes: Mapping[str, Any]) -> None:
        """Make the attributes what they were when `changed` gave this."""
        for name, _ in list(_attributes(module)):
            if name not in self._initial:
                delattr(module, name)
        for name, value in {**self._initial, **_attributes_in(changes)}.items():
            if name == HYPER_PARAMETERS:
                hyper_parameters = vars(module)[name]
                values = copied(value)
                for key in [key for key, value in hyper_parameters.items() if is_plain(value)]:
                    if key not in values:
                        del hyper_parameters[key]
                hyper_parameters.update(values)
            else:
                vars(module)[name] = copied(value)
        for name in changes.get("gone", ()):
            vars(module).pop(name, None)


def _attributes_in(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes in what `_Plain.changed` gave; earlier versions kept a metric's state."""
    if "state" in changes:
        return {**changes["state"], "_update_count": changes["updates"]}
    return dict(changes["attributes"])


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The module's own plain attributes, and the plain ones of its hyper-parameters."""
    for name, value in vars(module).items():
        if name == HYPER_PARAMETERS:
            yield name, {key: each for key, each in value.items() if is_plain(each)}
        elif name not in THEIRS and is_plain(value):
            yield name, value


def is_plain(value: Any) -> bool:
    """Whether the value can be part of a trial's state."""
    if isinstance(value, Mapping):
        if type(value) is not dict:
            return False
        texts = all(isinstance(key, str | int) for key in value)
        return texts and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    return type(value) in PLAIN or isinstance(value, Tensor | np.ndarray | np.generic)


def metrics_in_training(module: nn.Module, names: frozenset[str] | None) -> list[str]:
    """The module's metrics that its training steps may update; `names`: those that they read."""
    children = module.named_children()
    return [
        name for name, child in children if is_metric(child) and (names is None or name in names)
    ]


def leave_out_of_graph(module: nn.Module, names: frozenset[str] | None) -> None:
    """Let models differ in the metrics that only validation updates, and be fused all the same."""
    used = metrics_in_training(module, names)
    for name, child in module.named_children():
        if is_metric(child) and name not in used:
            for part in child.modules():
                vars(part)["outside_graph"] = frozenset(vars(part)) | {"outside_graph"}


# -- torchmetrics ----------------------------------------------------------------------------------


def metrics_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The metrics within the module that have a state of their own."""
    for name, child in module.named_modules():
        if is_metric(child) and hasattr(child, "metric_state"):
            yield name, child
