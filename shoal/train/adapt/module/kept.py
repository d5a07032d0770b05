"""What a module keeps outside its parameters and buffers, so that it travels with the trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from shoal.train.adapt.kinds import is_metric
from shoal.train.lane.model_changes import copied, same

PLAIN = (bool, int, float, str, bytes, type(None))
# attributes that torch, Lightning and Shoal set
THEIRS = set(vars(nn.Module())) | {"shoal_seat", "shoal_read"}


class KeptAttributes:
    """The plain attributes of a module, and what has become of them since `configure_model`.

    Numbers, texts, tensors, arrays, and lists, tuples and dicts of them are kept. Other objects
    that change are refused: see `lane.model_changes`, which also keeps what belongs to the modules
    within.
    """

    def __init__(self, module: nn.Module) -> None:
        self._begun = _plain_attributes(module)

    def changed(self, module: nn.Module) -> dict[str, Any]:
        """The attributes that are new or have other values, and the metrics that were updated."""
        attributes = {
            name: value
            for name, value in _attributes(module)
            if name not in self._begun or not same(value, self._begun[name])
        }
        gone = [name for name in self._begun if name not in vars(module)]
        return {"attributes": attributes, "gone": gone, "metrics": _metrics(module)}

    def restore(self, module: nn.Module, kept: Mapping[str, Any]) -> None:
        """Make the attributes and metrics what they were when `changed` gave this."""
        for name, _ in list(_attributes(module)):
            if name not in self._begun:
                delattr(module, name)
        for name, value in {**self._begun, **kept["attributes"]}.items():
            vars(module)[name] = copied(value)
        for name in kept["gone"]:
            vars(module).pop(name, None)
        _restore_metrics(module, kept["metrics"])


def _plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Copies of the plain attributes."""
    return {name: copied(value) for name, value in _attributes(module)}


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The module's own plain attributes."""
    for name, value in vars(module).items():
        if name not in THEIRS and is_plain(value):
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
        name
        for name, child in children
        if is_metric(child) and (names is None or name in names)
    ]


def leave_out_of_graph(module: nn.Module, names: frozenset[str] | None) -> None:
    """Let models differ in the metrics that only validation updates, and be fused all the same."""
    used = metrics_in_training(module, names)
    for name, child in module.named_children():
        if is_metric(child) and name not in used:
            for each in child.modules():
                vars(each)["outside_graph"] = frozenset(vars(each)) | {"outside_graph"}


# -- torchmetrics ----------------------------------------------------------------------------------


def metrics_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The metrics within the module that have a state of their own."""
    for name, each in module.named_modules():
        if is_metric(each) and hasattr(each, "metric_state"):
            yield name, each


def _metrics(module: nn.Module) -> dict[str, Any]:
    """The states of the metrics that were updated since their reset, by name."""
    return {
        name: {"state": dict(metric.metric_state), "updates": metric.update_count}
        for name, metric in metrics_of(module)
        if metric.update_count
    }


def _restore_metrics(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Give the metrics these states; those that have none are reset."""
    for name, metric in metrics_of(module):
        metric.reset()
        if name in states:
            for key, value in states[name]["state"].items():
                setattr(metric, key, value)
            vars(metric)["_update_count"] = states[name]["updates"]
