"""Whether fused lanes compute what each would alone, tried on one batch; on copies, so that nothing is disturbed."""

from __future__ import annotations

import random
import weakref
from copy import deepcopy
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.device import doubled
from shoal.train.graph import attributes
from shoal.train.lane import Lane, named
from shoal.train.recipe import Recipe
from shoal.train.stacked import Unfusable, others, trained

_CLOSE = {torch.float64: (1e-8, 1e-12), torch.float32: (1e-3, 1e-7)}  # relative to the norm, and absolute
_COARSE = (0.1, 1e-3)
SHORT = 1e-2  # relative, where factors have ten bits
KINK = 10  # times as much as rounding, that one sample's unit may change a gradient


class Differing(Unfusable):
    """Fused, a lane's gradient is not quite what it is alone: by more than rounding, by no more than a unit at a kink makes."""


_agreed: dict[int, dict[tuple[str, Any], bool]] = {}  # by recipe's id: it may be a dataclass, and those cannot be hashed


def agreed(recipe: Recipe) -> dict[tuple[str, Any], bool]:
    """What has been tried in this process, by what was tried; a recipe that cannot be remembered is tried again."""
    if id(recipe) not in _agreed:
        try:
            weakref.finalize(recipe, _agreed.pop, id(recipe), None)
        except TypeError:
            return {}
    return _agreed.setdefault(id(recipe), {})


class Own(NamedTuple):
    """A lane's own loss and gradient (None: not used) on a batch, and its tensors that are not trained, after it."""

    loss: Tensor
    grads: list[Tensor | None]
    rest: list[Tensor]
    draws: bool  # random numbers were drawn


def own(lane: Lane, batch: Any, *, evaluating: bool = False) -> Own:
    """The lane's loss and gradient, from a copy of its model.

    Raises:
        Unfusable: the model cannot be copied, changes more than buffers, or has sparse gradients.
    """
    try:
        model = deepcopy(lane.model)
    except Exception as error:
        raise Unfusable(f"the model cannot be copied: {error}") from error
    names = {id(p): name for name, p in lane.model.named_parameters()}
    parameters = [model.get_parameter(names[id(p)]) for p in trained(lane)]
    if evaluating:
        model.eval()
    was = attributes(model)
    with lane.rng.untouched(), lane._casting(), torch.enable_grad():
        before = _random_states(lane)
        loss = named(lane._recipe.training_step(model, batch))["loss"]
        draws = _random_states(lane) != before
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    pairs = zip(trained(lane), parameters, strict=True)
    if not all(torch.equal(old.detach().nan_to_num(), new.detach().nan_to_num()) for old, new in pairs):
        raise Unfusable("the step writes to parameters that are trained")  # a step that is undone would not bring them back
    if attributes(model) != was:
        raise Unfusable("the model's attributes change in training")
    if any(grad is not None and grad.layout is not torch.strided for grad in grads):
        raise Unfusable("gradients are sparse")
    return Own(loss.detach(), list(grads), others(model, parameters), draws)


def _random_states(lane: Lane) -> tuple[Any, ...]:
    device = torch.cuda.get_rng_state(lane._device).numpy().tobytes() if lane._device.type == "cuda" else b""
    words: Any = np.random.get_state(legacy=True)
    numpy = (words[1].tobytes(), *words[2:])
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy, device


def compare(mine: Own, fused: Own, bf16: bool) -> None:
    """Compare one lane's own with its share of the fused step.

    Raises:
        Differing: the gradients do, by as much as one unit may that a sum moved over its kink.
        Unfusable: they differ by more than rounding.
    """
    if [grad is None for grad in mine.grads] != [grad is None for grad in fused.grads]:
        raise Unfusable("other parameters get a gradient than alone")
    relative, absolute = _COARSE if bf16 else _CLOSE.get(mine.loss.dtype, _COARSE)
    if mine.loss.dtype == torch.float32 and mine.loss.device.type == "cuda" and _short():
        relative = SHORT
    grads = [(a, b) for a, b in zip(mine.grads, fused.grads, strict=True) if a is not None and b is not None]
    rest = list(zip(mine.rest, fused.rest, strict=True))
    for what, pairs in (("loss", [(mine.loss, fused.loss)]), ("gradient", grads), ("buffers", rest)):
        norm, gap = _norm([a for a, _ in pairs]), _norm([doubled(a) - doubled(b) for a, b in pairs])
        if norm.isfinite() and not gap <= relative * norm + absolute:
            kind = Differing if what == "gradient" and gap <= KINK * relative * norm else Unfusable
            raise kind(f"fused, a lane's {what} differ by {float(gap):.2g} (norm {float(norm):.2g}) from what they are alone")


def _short() -> bool:
    """Whether kernels on CUDA may round factors to TF32 (cuDNN's do by default), alone and fused not in the same places."""
    try:
        return bool(torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # it was set by layers, in a newer way
        return True


def tells(mine: Own) -> bool:
    """Whether there is a gradient to compare: of samples that are masked out there is none."""
    return bool(0 < _norm([grad for grad in mine.grads if grad is not None]) < inf)


def _norm(tensors: list[Tensor]) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(
        torch.cat([torch.zeros(1).double(), *(doubled(tensor).reshape(-1).cpu() for tensor in tensors)])
    )
    return norm


def flags_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Every module's training flag."""
    return [(module, module.training) for module in model.modules()]


def same_scores(alone: dict[str, float], fused: dict[str, float], samples: int) -> bool:
    """Whether mean scores over so many samples agree: a few of them may lie on the edge of a decision."""
    return alone.keys() == fused.keys() and all(
        abs(value - fused[name]) <= (0.005 + 1.5 / samples) * (1 + abs(value)) or (isnan(value) and isnan(fused[name]))
        for name, value in alone.items()
    )
