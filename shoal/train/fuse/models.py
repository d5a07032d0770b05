"""The models of several lanes as one: each parameter and buffer stacked, one model's code for all.

Stacking models and differentiating them at once follows torch.func's model ensembling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shoal.train.data.columns import Columns, step_batch
from shoal.train.fuse.memory import Rows, Stack
from shoal.train.fuse.obstacles import Lanes, Unfusable, other_tensors, trained_parameters
from shoal.train.fuse.rewrites import Rewritten, mean_class_loss, recurrent_layers_lent
from shoal.train.lane.training_metrics import step_values
from shoal.train.lane.trunk import in_common
from shoal.train.private import class_losses, vmapped

Values = dict[str, Any]  # by name
Function = Callable[[nn.Module], Mapping[str, Any]]


class StackedModels:
    """k models of one graph in stacks: `weights` of trained tensors, `other_stacks` of the rest.

    Code runs on the first lane's model, whose tensors are exchanged meanwhile. `leaves` are the
    trained parameters (k, *shape) that a loss is differentiated by, `rest` the other tensors.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._first = lanes[0]
        self.model = self._first.model

        self.rows = [trained_parameters(lane) for lane in lanes]
        self.weights = Stack(self.rows, by_lane=True)
        self.leaves = [part.detach().requires_grad_() for part in self.weights.parts]

        pairs = zip(lanes, self.rows, strict=True)
        rest = [other_tensors(lane.model, row) for lane, row in pairs]
        self._lanes = lanes
        self._common = in_common(lanes)  # ids of the tensors that are held once
        self.other_stacks, self.rest = _stacked_by_place(rest, self._common)
        self._before = [stack.flat.clone() for stack in self.other_stacks]

        self._caller = _Caller(self.model)
        names = _names(self._caller)
        self._names = [names[id(tensor)] for tensor in [*self.rows[0], *rest[0]]]
        # a tensor may have several names
        parameters = list(self._caller.named_parameters(remove_duplicate=False))
        buffers = list(self._caller.named_buffers(remove_duplicate=False))
        self._tied = len(names) < len(parameters) + len(buffers)

        self._on_cpu = self.weights.flat.device.type == "cpu"
        # watching every function that is called takes a tenth of a small model's step
        self._rewrites = not self._on_cpu or any(
            isinstance(module, nn.RNNBase) for module in self.model.modules()
        )

    # -- running the recipe's code -----------------------------------------------------------------

    def train(self, batch: Columns, *, draws: bool = False) -> Values:
        """The outcome of the recipe's training step for each lane.

        `draws`: it draws random numbers, each lane numbers of its own.

        Afterwards the mode of gradients is what it was, whatever the recipe does.
        """
        first = self._first
        step_batch(batch)

        def forward(model: nn.Module) -> Mapping[str, Any]:
            return step_values(first.hooks.training_step(model, batch, first.progress))

        with torch.enable_grad(), first.casting():
            if not draws:
                return self.run(forward)
            with first.rng:
                return self.run(forward, "different")

    def run(self, function: Function, randomness: str = "error") -> Values:
        """The outcome of the function for each lane's model: tensors (k, ...).

        What is no tensor is the same for all lanes.

        Raises:
            Unfusable: a buffer got another form, or is no longer one.
        """
        one_lane = _OneLane(self._caller, function, self._names, len(self.leaves))
        one_lane.tied = self._tied
        with ExitStack() as contexts:
            # what cannot be vectorized is replaced meanwhile
            if self._rewrites:
                contexts.enter_context(recurrent_layers_lent(self.model))
                contexts.enter_context(Rewritten())
            if self._on_cpu:
                flash = torch.backends.cuda  # flash attention's kernel for the CPU is such a thing
                if flash.flash_sdp_enabled():  # type: ignore[no-untyped-call]
                    flash.enable_flash_sdp(False)
                    contexts.callback(flash.enable_flash_sdp, True)
                contexts.enter_context(class_losses(mean_class_loss))
            values = vmapped(one_lane, [*self.leaves, *self.rest], randomness)

        buffers = values[len(one_lane.names) :]
        with torch.no_grad():
            for number, value in zip(one_lane.replaced, buffers, strict=True):
                self.rest[number].copy_(value)
        return {**one_lane.plain, **dict(zip(one_lane.names, values, strict=False))}

    # -- the tensors -------------------------------------------------------------------------------

    def keep(self) -> None:
        """Remember the tensors that are not trained."""
        for before, stack in zip(self._before, self.other_stacks, strict=True):
            before.copy_(stack.flat)

    def undo(self) -> None:
        """Restore the tensors that are not trained, as they were at `keep`."""
        with torch.no_grad():
            for before, stack in zip(self._before, self.other_stacks, strict=True):
                stack.flat.copy_(before)

    def gather(self) -> None:
        """Take over tensors that lie elsewhere by now.

        Raises:
            Unfusable: a lane changed what it had in common with the others.
        """
        if self._common and in_common(self._lanes) != self._common:
            raise Unfusable("frozen parameters that the lanes had in common differ now")
        for stack in (self.weights, *self.other_stacks):
            stack.gather()

    def part(self) -> None:
        """Give every lane memory of its own."""
        for stack in (self.weights, *self.other_stacks):
            stack.part()


def gradients_of(losses: Tensor, leaves: list[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients (k, ...) of each lane's loss; None: the losses do not depend on a parameter.

    Lanes are independent: the gradient of the losses' sum is each lane's own. Given the sum, torch
    needs no gradient to start from; given one, it loads 486 modules to check that one's shape, for
    0.4 s.
    """
    return torch.autograd.grad(losses.sum(), leaves, allow_unused=True)


class _OneLane:
    """The function that is vectorized: from one lane's tensors to the outcome of the recipe's code.

    It notes the names of the tensors that it returns, the values that are no tensors, and the
    numbers of the buffers that were set anew: those come last.
    """

    def __init__(
        self, caller: nn.Module, function: Function, tensor_names: list[str], leaves: int
    ) -> None:
        self._caller = caller
        self._function = function
        self._tensor_names = tensor_names
        self._leaves = leaves  # how many of the tensors are trained; they come first
        self.tied = False  # whether a tensor has several names
        self.names: list[str] = []
        self.plain: Values = {}
        self.replaced: list[int] = []

    def __call__(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        by_name = dict(zip(self._tensor_names, tensors, strict=True))
        outcome = functional_call(self._caller, by_name, (self._function,), tie_weights=self.tied)

        results: list[Tensor] = []
        for name, value in outcome.items():
            if isinstance(value, Tensor):
                self.names.append(name)
                results.append(value)
            else:
                self.plain[name] = value
        # buffers that were set anew rather than written to
        for number, before in enumerate(tensors[self._leaves :]):
            name = self._tensor_names[self._leaves + number]
            now = by_name[name]
            if now is before:
                continue
            form = before.shape, before.dtype
            if not isinstance(now, Tensor) or (now.shape, now.dtype) != form:
                raise Unfusable(f"buffer {name} changes its form in training")
            self.replaced.append(number)
            results.append(now)
        return tuple(results)


class _Caller(nn.Module):
    """Calls a function with the model: `functional_call` exchanges a module's tensors meanwhile."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Function) -> Mapping[str, Any]:
        """The outcome of the function for the model."""
        return function(self.model)


def _stacked_by_place(rows: Rows, common: Collection[int]) -> tuple[list[Stack], list[Tensor]]:
    """A stack for each dtype and device, and the tensors (k, *shape) in their own order.

    A tensor that all lanes share, as of a frozen backbone, stays the one that it is; so do those
    that lie in one memory, whose ids are in `common`.
    """
    places: dict[Any, list[int]] = {}
    parts: dict[int, Tensor] = {}
    for j, tensor in enumerate(rows[0]):
        is_shared = all(row[j] is tensor for row in rows)
        if len(rows) > 1 and (is_shared or all(id(row[j]) in common for row in rows)):
            parts[j] = tensor.detach().expand(len(rows), *tensor.shape)
            continue
        places.setdefault((tensor.dtype, tensor.device), []).append(j)

    stacks = []
    for numbers in places.values():
        some_rows = [[row[j] for j in numbers] for row in rows]
        stack = Stack(some_rows, by_lane=False)
        stacks.append(stack)
        parts.update(zip(numbers, stack.parts, strict=True))
    return stacks, [parts[j] for j in range(len(rows[0]))]


def _names(module: nn.Module) -> dict[int, str]:
    """The first name of each parameter and buffer, by its id."""
    named_tensors = [*module.named_parameters(), *module.named_buffers()]
    return {id(tensor): name for name, tensor in named_tensors}
