"""Obstacles that keep lanes from being fused, looked for before anything is tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from shoal.train.fuse.graph import graph_key, tensors_met
from shoal.train.fuse.memory import Row
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.tensors import is_lazy, unique
from shoal.train.private import has_hooks, is_compiled


class Unfusable(Exception):  # noqa: N818
    """Raised where lanes cannot be trained as one; they can be trained one after the other."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why  # one line


STEPS_ITSELF = "training_step steps its optimizers by itself"
Lanes = Sequence[TrainingLane]


def trained_parameters(lane: TrainingLane) -> list[Tensor]:
    """The parameters that the lane's optimizer steps, in its order."""
    return [p for p in unique(lane.parameters) if p.requires_grad]


def other_tensors(model: nn.Module, row: Row) -> list[Tensor]:
    """The model's parameters and buffers that are not of the row."""
    row_ids = {id(tensor) for tensor in row}
    return [tensor for tensor in tensors_of(model) if id(tensor) not in row_ids]


def tensors_of(model: nn.Module) -> list[Tensor]:
    """The model's parameters and buffers, each once."""
    return unique([*model.parameters(), *model.buffers()])


def check(lanes: Lanes) -> str:
    """Check that the lanes can be fused; returns their graph key.

    Raises:
        Unfusable: their models, optimizers or graphs do not allow it.
    """
    first = lanes[0]
    if any(lane.recipe is not first.recipe for lane in lanes):
        raise Unfusable("the models are of several recipes")
    for lane in lanes:
        for why in _obstacles(lane):
            raise Unfusable(why)
    for why in _hidden(first.model):
        raise Unfusable(why)
    key = graph_key(first)
    if any(graph_key(lane) != key for lane in lanes[1:]):
        raise Unfusable("the models are not of one graph")
    check_groups(lanes)
    return key


def check_groups(lanes: Lanes) -> None:
    """Check that the lanes have equally many batches in their gradients.

    Raises:
        Unfusable: some have more than others.
    """
    if len({(lane.batches, lane.grouped) for lane in lanes}) > 1:
        raise Unfusable("the models are not at the same batch of those whose gradients are summed")


def _obstacles(lane: TrainingLane) -> Iterator[str]:  # noqa: PLR0912 - one for each
    """Why a lane's model cannot be stacked, most telling first."""
    for name, module in lane.model.named_modules():
        label = f"module {name or type(module).__name__}"
        if is_compiled(module):
            yield f"{label} is compiled"
        elif has_hooks(module):
            yield f"{label} has hooks"
    if lane.hooks.steps_itself:
        yield STEPS_ITSELF
    elif isinstance(lane.optimizer, torch.optim.LBFGS):
        yield "LBFGS steps need a closure"
    tensors = tensors_of(lane.model)
    if any(is_lazy(tensor) for tensor in tensors):
        yield "parameters are not initialized yet"
        return

    row = trained_parameters(lane)
    if not row:
        yield "nothing is trained"
    ids = {id(tensor) for tensor in tensors}
    if any(id(parameter) not in ids for parameter in lane.parameters):
        yield "the optimizer has parameters that are not the model's"
    if len({(p.dtype, p.device) for p in row}) > 1:
        yield "trained parameters are of several dtypes or devices"
    for parameter in row:
        if parameter.is_complex():
            yield "trained parameters are complex"
        if has_hooks(parameter):
            yield "parameters have hooks"

    for tensor in tensors:
        if tensor.layout is not torch.strided or type(tensor.data) is not Tensor:
            yield "parameters or buffers are not plain dense tensors"
            return
        if not tensor.is_contiguous():
            yield "parameters or buffers are not contiguous in memory"
    places = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    if len(set(places)) < len(places):
        yield "parameters or buffers share memory"


def _hidden(model: nn.Module) -> Iterator[str]:
    """Why the model's code may find parameters or buffers outside of their own places.

    Fused, it would use one lane's there. Lanes of one graph have them at the same places.
    """
    tensors = tensors_of(model)
    ids = {id(tensor) for tensor in tensors}
    memory = {_memory(tensor) for tensor in tensors} - {0}
    for tensor in tensors_met(model):
        if id(tensor) in ids:
            yield "parameters or buffers are held by other objects, too"
        elif tensor.layout is torch.strided and _memory(tensor) in memory:
            yield "attributes share memory with parameters or buffers"


def _memory(tensor: Tensor) -> int:
    """Where the memory begins in which the tensor lies; 0: it has none."""
    return tensor.untyped_storage().data_ptr()
