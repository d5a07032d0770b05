"""torch's recurrent layers, step by step: their own kernels cannot be vectorized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

State = tuple[Tensor, ...]  # (hidden,), or (hidden, cell)
_BIDIRECTIONAL = 2


def _gru(own: Tensor, before: Tensor, state: State) -> State:
    own_r, own_z, own_n = own.chunk(3, -1)
    r, z, n = before.chunk(3, -1)
    new = torch.tanh(own_n + torch.sigmoid(own_r + r) * n)
    return (new + torch.sigmoid(own_z + z) * (state[0] - new),)


def _lstm(own: Tensor, before: Tensor, state: State) -> State:
    i, f, g, o = (own + before).chunk(4, -1)
    cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


_CELLS: dict[str, Callable[[Tensor, Tensor, State], State]] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_tanh": lambda own, before, state: (torch.tanh(own + before),),
    "rnn_relu": lambda own, before, state: (torch.relu(own + before),),
}


class Unrolled(TorchFunctionMode):
    """Within it torch.nn.RNN, LSTM and GRU are made of elementary operations; packed sequences are left to torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cell = _CELLS.get(getattr(func, "__name__", ""))
        if cell is not None and len(args) == 9 and isinstance(args[3], bool):
            return _unrolled(cell, *args)
        return func(*args, **(kwargs or {}))


def _unrolled(
    cell: Callable[[Tensor, Tensor, State], State],
    x: Tensor,
    start: Any,
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    training: bool,
    both: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    starts: State = (start,) if isinstance(start, Tensor) else tuple(start)
    ways = _BIDIRECTIONAL if both else 1
    each = len(weights) // (layers * ways)
    x = x.transpose(0, 1) if batch_first else x
    ends: list[State] = []
    for layer in range(layers):
        if layer and dropout and training:
            x = drop(x, dropout)
        outs = []
        for way in range(ways):
            number = layer * ways + way
            own = weights[number * each : (number + 1) * each]
            out, end = _layer(cell, x, tuple(s[number] for s in starts), own, biased, way == 1)
            outs.append(out)
            ends.append(end)
        x = torch.cat(outs, -1) if both else outs[0]
    return (x.transpose(0, 1) if batch_first else x, *(torch.stack(parts) for parts in zip(*ends, strict=True)))


def _layer(
    cell: Callable[[Tensor, Tensor, State], State],
    x: Tensor,
    state: State,
    weights: Sequence[Tensor],
    biased: bool,
    backwards: bool,
) -> tuple[Tensor, State]:
    """One layer in one direction over x (time, batch, features)."""
    bias_own, bias_before = (weights[2], weights[3]) if biased else (None, None)
    projection = weights[-1] if len(weights) % 2 else None
    own = linear(x, weights[0], bias_own).unbind(0)
    outs = []
    for now in reversed(own) if backwards else own:
        state = cell(now, linear(state[0], weights[1], bias_before), state)
        if projection is not None:
            state = (linear(state[0], projection), *state[1:])
        outs.append(state[0])
    return torch.stack(outs[::-1] if backwards else outs), state
