"""What one rank of a wide lane gives to the others, and how a lane goes back to before a step that a lost peer spoilt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from shoal.train import tree
from shoal.train.buffers import buffers
from shoal.train.lane import Lane

Mark = tuple[Any, ...]


def mark(lane: Lane) -> Mark:
    """Where the lane is before a group of batches. Parameters and optimizer need no copy: they change only in a step."""
    return lane.rng.mark(), buffers(lane.model), lane._passed, lane._samples


def back(lane: Lane, to: Mark) -> None:
    """As if the group of batches under way had not begun."""
    states, held, lane._passed, lane._samples = to
    lane._batches = lane._grouped = 0
    lane._noted = {}
    lane.rng.back(states)
    held.put_back()


def whole(lane: Lane) -> Mapping[str, Any]:
    """All that its further training depends on; of the arrays, views."""
    return {"whole": lane.state()}


def light(lane: Lane) -> Mapping[str, Any]:
    """What may differ between ranks that took the same steps: buffers, random states, and what followed the metric."""
    own = lane.scheduler
    return {
        "buffers": tree.to_numpy(dict(lane.model.named_buffers())),
        "groups": tree.to_numpy([{k: v for k, v in group.items() if k != "params"} for group in lane.optimizer.param_groups]),
        "scheduler": tree.to_numpy(own.state_dict()) if isinstance(own, LRScheduler) else None,
        "rng": tree.to_numpy(lane.rng.state()),
    }


def take(lane: Lane, given: Mapping[str, Any]) -> None:
    """Become what `whole` or `light` told of."""
    if "whole" in given:
        lane.load(given["whole"])
        return
    for name, buffer in lane.model.named_buffers():
        tree.fill(buffer, given["buffers"][name])
    for group, told in zip(lane.optimizer.param_groups, tree.to_torch(given["groups"]), strict=True):
        for key, value in told.items():
            if isinstance(group[key], Tensor):
                group[key].fill_(value)
            else:
                group[key] = value
    if isinstance(lane.scheduler, LRScheduler):
        lane.scheduler.load_state_dict(tree.to_torch(given["scheduler"]))
    lane.rng.load(given["rng"])
