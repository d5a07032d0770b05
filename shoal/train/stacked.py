"""The models of several lanes as one: every parameter and buffer with an axis more, the code written for one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train.graph import OWN, RENEWED, met
from shoal.train.lane import Lane
from shoal.train.lanewise import for_each_lane
from shoal.train.losses import Vectorized
from shoal.train.recurrent import Unrolled
from shoal.train.stack import Stack, is_lazy, stacks, unique


class Unfusable(Exception):  # noqa: N818
    """These lanes cannot be trained as one; they can be trained one after the other."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why  # one line


def trained(lane: Lane) -> list[Tensor]:
    """The parameters that the lane's optimizer steps, in its order."""
    return [p for p in unique(lane._parameters) if p.requires_grad]


class Stacked:
    """k models of one graph, whose tensors lie in stacks: `weights` those that are trained, `others` the rest.

    Code runs on the first lane's model, its tensors exchanged meanwhile.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.rows = [trained(lane) for lane in lanes]
        rest = [others(lane.model, row) for lane, row in zip(lanes, self.rows, strict=True)]
        self.model = lanes[0].model
        self.weights = Stack(self.rows, by_rows=True)
        self.others, where = stacks(rest) if rest[0] else ([], [])
        self.leaves = [part.detach().requires_grad_() for part in self.weights.parts]
        self.rest = [self.others[s].parts[i] for s, i in where]
        self._was = [other.flat.clone() for other in self.others]
        own = [*self.rows[0], *rest[0]]
        places: dict[int, list[tuple[Any, Any]]] = {id(tensor): [] for tensor in own}
        for box, key, tensor in _places(self.model):
            places[id(tensor)].append((box, key))
        self._places = [places[id(tensor)] for tensor in own]
        self._own = own
        self._recurrent = [vars(module) for module in self.model.modules() if isinstance(module, nn.RNNBase)]
        self._losses, self._layers = Vectorized(), Unrolled() if self._recurrent else nullcontext()
        self._renewed = [(vars(m), name) for m in self.model.modules() for name in RENEWED if name in vars(m)]

    def run(self, function: Callable[[nn.Module], Mapping[str, Any]], randomness: str = "error") -> dict[str, Any]:
        """What the function gives for each lane's model, stacked: tensors (k, …); what is no tensor is for all.

        Raises:
            Unfusable: a buffer got another form, or is no longer one.
        """
        names: list[str] = []
        same: dict[str, Any] = {}
        renewed: list[int] = []

        def one(tensors: list[Tensor]) -> tuple[Tensor, ...]:
            for places, tensor in zip(self._places, tensors, strict=True):
                for box, key in places:
                    box[key] = tensor
            found = []
            with self._losses, self._layers:
                given = function(self.model)
            for name, value in given.items():
                if isinstance(value, Tensor):
                    names.append(name)
                    found.append(value)
                else:
                    same[name] = value
            for number, tensor in self._replaced(tensors):
                renewed.append(number)
                found.append(tensor)
            return tuple(found)

        kept = self._lend()
        try:
            values = for_each_lane(one, [*self.leaves, *self.rest], randomness)
        finally:
            self._take_back(*kept)
        for number, value in zip(renewed, values[len(names) :], strict=True):
            with torch.no_grad():
                self.rest[number].copy_(value)
        return {**same, **dict(zip(names, values, strict=False))}

    def _replaced(self, tensors: list[Tensor]) -> Iterator[tuple[int, Tensor]]:
        """Buffers that were set anew rather than written to."""
        first = len(self.leaves)
        for number, (places, given) in enumerate(zip(self._places[first:], tensors[first:], strict=True)):
            box, key = places[0]
            now = box.get(key) if isinstance(box, dict) else box[key]
            if now is not given:
                if not isinstance(now, Tensor) or now.shape != given.shape or now.dtype != given.dtype:
                    raise Unfusable(f"buffer {key} changes its form in training")
                yield number, now

    def _lend(self) -> tuple[list[Any], bool]:
        """Before the model gets other tensors: what it holds besides, and whether flash attention was on."""
        flash = bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]
        for box in self._recurrent:  # torch would lay the exchanged weights out for cuDNN
            box["flatten_parameters"] = lambda: None
        plain = flash and self.leaves[0].is_cpu  # its kernel of flash attention cannot be vectorized
        if plain:
            torch.backends.cuda.enable_flash_sdp(False)
        return [box[name] for box, name in self._renewed], plain

    def _take_back(self, kept: list[Any], plain: bool) -> None:
        if plain:
            torch.backends.cuda.enable_flash_sdp(True)
        for places, tensor in zip(self._places, self._own, strict=True):
            for box, key in places:
                box[key] = tensor
        for (box, name), value in zip(self._renewed, kept, strict=True):
            box[name] = value
        for box in self._recurrent:
            del box["flatten_parameters"]

    def keep(self) -> None:
        """Remember what is not trained."""
        for was, other in zip(self._was, self.others, strict=True):
            was.copy_(other.flat)

    def undo(self) -> None:
        """Make what is not trained what it was at `keep`."""
        with torch.no_grad():
            for was, other in zip(self._was, self.others, strict=True):
                other.flat.copy_(was)

    def gather(self) -> None:
        """Take over tensors that lie elsewhere by now."""
        for stack in (self.weights, *self.others):
            stack.gather()

    def part(self) -> None:
        """Give every lane memory of its own."""
        for stack in (self.weights, *self.others):
            stack.part()


def others(model: nn.Module, row: Sequence[Tensor]) -> list[Tensor]:
    """Its parameters and buffers that are not of the row."""
    mine = {id(tensor) for tensor in row}
    return [tensor for tensor in unique([*model.parameters(), *model.buffers()]) if id(tensor) not in mine]


def _places(model: nn.Module) -> Iterator[tuple[Any, Any, Tensor]]:
    """Where the model's code finds its parameters and buffers: container, key, tensor. Also attributes, lists and dicts."""
    known = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    for module in model.modules():
        held = {name: value for name, value in vars(module).items() if name not in OWN and name not in RENEWED}
        boxes: list[Any] = [module._parameters, module._buffers, vars(module)]
        for box in [*boxes, *(value for value in held.values() if isinstance(value, list | dict))]:
            for key, value in list(box.items() if isinstance(box, dict) else enumerate(box)):
                if isinstance(value, Tensor) and id(value) in known:
                    yield box, key, value


def obstacle(lanes: Sequence[Lane]) -> str | None:
    """Why one of these lanes cannot be stacked; None: nothing is known against it."""
    for lane in lanes:
        for name, module in lane.model.named_modules():
            what = f"module {name or type(module).__name__}"
            if isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl or hasattr(module, "_orig_mod"):
                return f"{what} is compiled"
            if any(value for key, value in vars(module).items() if key.endswith("_hooks") and "state_dict" not in key):
                return f"{what} has hooks"
        reason = _tensors(lane)
        if reason is not None:
            return reason
    return _hidden(lanes[0].model)


def _hidden(model: nn.Module) -> str | None:
    """Whether its code may find parameters or buffers where they cannot be exchanged, as in a tuple: it would use one lane's.

    Lanes of one graph have them at the same places.
    """
    own, found = unique([*model.parameters(), *model.buffers()]), met(model)
    known, memory = {id(t) for t in own}, {t.untyped_storage().data_ptr() for t in own if t.numel()}
    registered = {id(box) for module in model.modules() for box in (module._parameters, module._buffers)}
    reached = {(id(box), key) for box, key, _ in _places(model) if id(box) not in registered}
    if sum(id(t) in known for t in found) > len(reached):
        return "parameters or buffers are held by other objects, too"
    plain = [t for t in found if id(t) not in known and t.layout is torch.strided and t.device.type != "meta"]
    if any(t.numel() and t.untyped_storage().data_ptr() in memory for t in plain):
        return "attributes share memory with parameters or buffers"
    return None


def _tensors(lane: Lane) -> str | None:
    row, model = trained(lane), lane.model
    own = unique([*model.parameters(), *model.buffers()])
    lazy = any(is_lazy(t) for t in own)
    held = [] if lazy else [t for t in own if t.numel()]
    rules = {
        "nothing is trained": not row,
        "the optimizer has parameters that are not the model's": not {id(p) for p in lane._parameters} <= {id(p) for p in own},
        "LBFGS steps need a closure": isinstance(lane.optimizer, torch.optim.LBFGS),
        "trained parameters are of several dtypes or devices": len({(p.dtype, p.device) for p in row}) > 1,
        "trained parameters are complex": any(p.is_complex() for p in row),
        "parameters have hooks": any(p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in row),
        "parameters are not initialized yet": lazy,
        "parameters or buffers are not plain dense tensors": any(
            t.layout is not torch.strided or type(t.data) is not Tensor for t in own
        ),
        "parameters or buffers share memory": len({t.data_ptr() for t in held}) < len(held)
        or any(0 in t.stride() and t.numel() > 1 for t in held),
    }
    return next((why for why, holds in rules.items() if holds), None)
