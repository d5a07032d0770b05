"""Rewritten functions of torch that vmap cannot vectorize, or only lane by lane.

Recurrent layers have kernels that vmap knows nothing of. Losses of class indices it computes
lane by lane, which on a GPU takes hundreds of small kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from shoal.train.private import is_of_each_lane

State = tuple[Tensor, ...]  # (hidden,), or (hidden, cell)
Cell = Callable[[Tensor, Tensor, State], State]
# options of losses that are left to torch
RARE = ("weight", "size_average", "reduce")
# attributes of nn.RNNBase: its parameters once more
FLAT_WEIGHTS = ("_flat_weights", "_flat_weight_refs")


class Rewritten(TorchFunctionMode):
    """Replaces torch's functions within by those of this module; rarer forms are left to torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or the one that replaces it."""
        kwargs = kwargs or {}
        if func in (F.cross_entropy, F.nll_loss):
            return _class_loss(func, *args, **kwargs)
        cell = CELLS.get(getattr(func, "__name__", ""))
        if (
            cell is None
            or len(args) != len(_RecurrentCall._fields)
            or not isinstance(args[3], bool)
        ):
            return func(*args, **kwargs)
        return _recurrent(func.__name__, cell, _RecurrentCall(*args))  # no packed sequence


# -- losses --------------------------------------------------------------------------------------


def _class_loss(func: Any, input: Tensor, target: Tensor, *more: Any, **named: Any) -> Tensor:
    """cross_entropy or nll_loss of (samples, classes): picked logarithms, summed."""
    plain = input.dim() == 2 and target.shape == input.shape[:1]
    rare = named.get("label_smoothing") or any(named.get(option) is not None for option in RARE)
    if more or not plain or target.is_floating_point() or rare:
        result: Tensor = func(input, target, *more, **named)
        return result

    logs = input
    if func is F.cross_entropy:
        if torch.is_autocast_enabled(input.device.type):  # as torch's own
            input = input.float()
        logs = torch.log_softmax(input, -1)

    counted = target != named.get("ignore_index", -100)
    classes = target.where(counted, 0).unsqueeze(-1)
    # a product would make nan of an infinite one that does not count
    losses = -logs.gather(-1, classes).squeeze(-1).where(counted, 0)
    reduction = named.get("reduction", "mean")
    if reduction == "none":
        return losses
    total: Tensor = losses.sum(-1)
    return total / counted.sum(-1) if reduction == "mean" else total


MEAN = 1  # torch's number of that reduction


def mean_class_loss(
    name: str,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor | None:
    """torch._C._nn's cross_entropy_loss or nll_loss_nd in the commonest form; None in others.

    That is the mean over (samples, classes) of each lane, with classes in common that all count:
    four operations. The classes are looked at, for which a GPU would be waited for.
    """
    if weight is not None or reduction != MEAN or label_smoothing:
        return None
    plain = input.dim() == 2 and target.shape == input.shape[:1]
    if not plain or target.dtype != torch.int64 or is_of_each_lane(target):
        return None
    if not (target != ignore_index).all():
        return None
    logs = input
    if name == "cross_entropy_loss":
        if torch.is_autocast_enabled(input.device.type):  # as torch's own
            input = input.float()
        logs = torch.log_softmax(input, -1)
    return -logs.gather(-1, target.unsqueeze(-1)).mean()


# -- recurrent layers ----------------------------------------------------------------------------


def _gru(from_input: Tensor, from_state: Tensor, state: State) -> State:
    input_reset, input_update, input_new = from_input.chunk(3, -1)
    reset, update, new = from_state.chunk(3, -1)
    candidate = torch.tanh(input_new + torch.sigmoid(input_reset + reset) * new)
    keep = torch.sigmoid(input_update + update)
    return (candidate + keep * (state[0] - candidate),)


def _lstm(from_input: Tensor, from_state: Tensor, state: State) -> State:
    enter, forget, candidate, leave = (from_input + from_state).chunk(4, -1)
    keep = torch.sigmoid(forget) * state[1]
    cell = keep + torch.sigmoid(enter) * torch.tanh(candidate)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


# by torch's name: given what the layer makes of its input and of its state, and the state
CELLS: dict[str, Cell] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_tanh": lambda from_input, from_state, state: (torch.tanh(from_input + from_state),),
    "rnn_relu": lambda from_input, from_state, state: (torch.relu(from_input + from_state),),
}


class _RecurrentCall(NamedTuple):
    """The arguments of torch.gru and its like."""

    x: Tensor
    start: Any  # a tensor, or several
    weights: Sequence[Tensor]
    biased: bool
    layers: int
    dropout: float
    training: bool
    both_ways: bool
    batch_first: bool


def _recurrent(name: str, cell: Cell, call: _RecurrentCall) -> tuple[Tensor, ...]:
    """A recurrent layer, or several, from the first time step to the last.

    Raises:
        NotImplementedError: it goes both ways, or has more weights: its outputs are projected.
    """
    per_layer = 4 if call.biased else 2  # tensors of weights a layer
    if call.both_ways or len(call.weights) != per_layer * call.layers:
        raise NotImplementedError(f"{name} of two directions, or projected, is not fused")
    x = call.x
    start = call.start
    state: State = (start,) if isinstance(start, Tensor) else tuple(start)

    if call.batch_first:
        x = x.transpose(0, 1)
    ends: list[State] = []
    for layer in range(call.layers):
        if layer and call.dropout and call.training:
            x = F.dropout(x, call.dropout)
        weights = call.weights[layer * per_layer : (layer + 1) * per_layer]
        begin = tuple(part[layer] for part in state)
        x, end = _layer(cell, x, begin, weights)
        ends.append(end)
    if call.batch_first:
        x = x.transpose(0, 1)
    return x, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def _layer(cell: Cell, x: Tensor, state: State, weights: Sequence[Tensor]) -> tuple[Tensor, State]:
    """One layer over x (time, batch, features)."""
    input_weights, state_weights, *biases = weights
    input_bias, state_bias = biases or (None, None)
    outputs = []
    for from_input in F.linear(x, input_weights, input_bias).unbind(0):
        from_state = F.linear(state[0], state_weights, state_bias)
        state = cell(from_input, from_state, state)
        outputs.append(state[0])
    return torch.stack(outputs), state


@contextmanager
def recurrent_layers_lent(model: nn.Module) -> Iterator[None]:
    """Lets recurrent layers be given other parameters within; afterwards they are as before.

    torch would lay the parameters out anew for cuDNN, and keeps them in a list besides.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    saved_weights = []
    for layer in layers:
        box = vars(layer)
        saved_weights.append({name: box[name] for name in FLAT_WEIGHTS if name in box})
        box["flatten_parameters"] = lambda: None
    try:
        yield
    finally:
        for layer, saved in zip(layers, saved_weights, strict=True):
            vars(layer).update(saved)
            del vars(layer)["flatten_parameters"]
