"""Whether fused lanes compute what each would alone, tried on one batch on copies of models."""

from __future__ import annotations

import random
import weakref
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isnan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.fuse.graph import attributes
from shoal.train.fuse.memory import Row
from shoal.train.fuse.models import StackedModels, gradients_of
from shoal.train.fuse.obstacles import Lanes, Unfusable, other_tensors, trained_parameters
from shoal.train.lane.device import doubled
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.tensors import flags_kept
from shoal.train.lane.training_metrics import step_values
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.unit import RAISED

# differences allowed: relative to the norm, and absolute
Allowed = tuple[float, float]
CLOSE = {torch.float64: (1e-8, 1e-12), torch.float32: (1e-3, 1e-7)}
COARSE = (0.1, 1e-3)  # in shorter numbers
TF32 = 1e-2  # relative, where kernels round factors to ten bits
KINK = 10  # times as much as rounding, that one sample's unit may change a gradient
HALVED = 4  # samples of a batch that can be halved, at least

Agreements = dict[
    tuple[str, Any], bool
]  # by graph key and what was tried: whether it does (agree, draw, be quicker)
# by recipe's id: it may be a dataclass, and those cannot be hashed
_agreed: dict[int, Agreements] = {}


class Differing(Unfusable):
    """Fused, a lane's gradient differs by more than rounding, but not by much.

    One sample may move a unit over its kink.
    """


class Reference(NamedTuple):
    """A lane's loss and gradient (None: not used) on a batch, and its other tensors after it."""

    loss: Tensor
    gradients: list[Tensor | None]
    rest: list[Tensor]
    draws: bool  # random numbers were drawn


def agreements_of(recipe: Recipe) -> Agreements:
    """The agreements that were tried in this process with the recipe.

    A recipe that cannot be remembered is tried again.
    """
    if id(recipe) not in _agreed:
        try:
            weakref.finalize(recipe, _agreed.pop, id(recipe), None)
        except TypeError:
            return {}
    return _agreed.setdefault(id(recipe), {})


# -- the check -----------------------------------------------------------------------------------


def draws_numbers(models: StackedModels, lanes: Lanes, batch: Columns, may_draw: bool) -> bool:
    """Try the fused step on a batch; returns whether the step draws random numbers.

    Numbers drawn differ from those drawn alone: such steps are compared in evaluation mode, as
    far as that turns off what is random.

    Raises:
        Unfusable: the step draws random numbers although it must not (`may_draw`), or a lane
            computes something else than alone.
    """
    if not reference_step(lanes[0], batch).draws:
        check_lanes(models, lanes, batch)
        return False
    if not may_draw:
        raise Unfusable(
            "the step draws random numbers: fused they would be others than alone "
            "(fuse_random allows it)"
        )

    with flags_kept(models.model):
        if not reference_step(lanes[0], batch, evaluating=True).draws:
            models.model.eval()
            check_lanes(models, lanes, batch, evaluating=True)
    return True


def check_lanes(
    models: StackedModels, lanes: Lanes, batch: Columns, *, evaluating: bool = False
) -> None:
    """Compare each lane's own loss, gradient and buffers on the batch with the fused ones.

    A lane may differ by one sample, where a sum that rounds otherwise moves a unit over its kink.
    It must then agree on a half of the batch: what is wrong with the graph is wrong there, too.

    Raises:
        Unfusable: a lane differs.
    """
    check = _Check(models, lanes, evaluating)
    doubts = check.differing(batch, range(len(lanes)))
    if doubts and (rows := cols.rows(batch)) >= HALVED:
        for start, end in pairwise((0, rows // 2, rows)):
            half = cols.cut(batch, start, end)
            doubts = {i: doubts[i] for i in check.differing(half, doubts, must_tell=True)}
            if not doubts:
                return
    for doubt in doubts.values():
        raise doubt


@dataclass(frozen=True)
class _Check:
    """Compares the lanes with their stacks, perhaps in evaluation mode."""

    models: StackedModels
    lanes: Lanes
    evaluating: bool

    def differing(
        self, batch: Columns, numbers: Collection[int], must_tell: bool = False
    ) -> dict[int, Differing]:
        """The errors of lanes whose gradient differs, by number; only these `numbers` are compared.

        `must_tell`: a lane without a gradient on the batch counts as differing.
        """
        fused = self._fused_step(batch)
        errors = {}
        for i in numbers:
            lane = self.lanes[i]
            alone = reference_step(lane, batch, evaluating=self.evaluating)
            allowed = tolerance(lane, fused.loss.dtype)
            try:
                compare(alone, _of_lane(fused, i), allowed)
                if must_tell and not has_gradient(alone):
                    raise Differing("there is no gradient to compare")
            except Differing as error:
                # without the traceback, which holds the gradients of all
                errors[i] = error.with_traceback(None)
        return errors

    def _fused_step(self, batch: Columns) -> Reference:
        """A fused step of all lanes, undone: their losses, gradients and other tensors (k, ...)."""
        models = self.models
        try:
            losses = models.train(batch)["loss"]
            gradients = gradients_of(losses, models.leaves)
            rest = [tensor.clone() for tensor in models.rest]
        except RAISED as error:
            line = (str(error).strip().splitlines() or [""])[0]
            why = f"the step cannot be vectorized: {type(error).__name__}: {line}"
            raise Unfusable(why) from error
        finally:
            models.undo()
        return Reference(losses.detach(), list(gradients), rest, False)


def _of_lane(fused: Reference, i: int) -> Reference:
    """A lane's share of the fused step."""
    gradients = [None if gradient is None else gradient[i] for gradient in fused.gradients]
    rest = [tensor[i] for tensor in fused.rest]
    return Reference(fused.loss[i], gradients, rest, fused.draws)


# -- a lane alone --------------------------------------------------------------------------------


def reference_step(lane: TrainingLane, batch: Any, *, evaluating: bool = False) -> Reference:
    """The lane's loss and gradient alone, from a copy of its model.

    Raises:
        Unfusable: the model cannot be copied, changes more than buffers, or has sparse gradients.
    """
    model, parameters = _copied(lane)
    if evaluating:
        model.eval()
    before = attributes(model)

    with lane.rng.untouched(), lane.casting(), torch.enable_grad():
        states = _random_states(lane)
        loss = step_values(lane.hooks.training_step(model, batch, lane.progress))["loss"]
        draws = _random_states(lane) != states
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)

    for old, new in zip(trained_parameters(lane), parameters, strict=True):
        if not torch.equal(old.detach().nan_to_num(), new.detach().nan_to_num()):
            # a step that is undone would not bring them back
            raise Unfusable("the step writes to parameters that are trained")
    if attributes(model) != before:
        raise Unfusable("the model's attributes change in training")
    for gradient in _present(gradients):
        if gradient.layout is not torch.strided:
            raise Unfusable("gradients are sparse")
    return Reference(loss.detach(), list(gradients), other_tensors(model, parameters), draws)


def _copied(lane: TrainingLane) -> tuple[nn.Module, list[Tensor]]:
    """A copy of the lane's model, and its trained parameters in the optimizer's order."""
    try:
        model = deepcopy(lane.model)
    except Exception as error:
        raise Unfusable(f"the model cannot be copied: {error}") from error
    names = {id(p): name for name, p in lane.model.named_parameters()}
    return model, [model.get_parameter(names[id(p)]) for p in trained_parameters(lane)]


def _random_states(lane: TrainingLane) -> tuple[Any, ...]:
    """The states of all random generators that a step may draw from."""
    words: Any = np.random.get_state(legacy=True)
    states = [
        torch.get_rng_state().numpy().tobytes(),
        random.getstate(),
        words[1].tobytes(),
        words[2:],
    ]
    if lane.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(lane.device).numpy().tobytes())
    return tuple(states)


# -- comparing -----------------------------------------------------------------------------------


def compare(alone: Reference, fused: Reference, allowed: Allowed) -> None:
    """Compare what a lane computes alone with its share of the fused step.

    `allowed`: the difference over the norm, and the absolute one.

    Raises:
        Differing: the gradients do, by no more than a unit may that a sum moved over its kink.
        Unfusable: they differ by more, or something else differs.
    """
    used = [gradient is None for gradient in alone.gradients]
    if used != [gradient is None for gradient in fused.gradients]:
        raise Unfusable("other parameters get a gradient than alone")

    norms = _norms_and_gaps([alone.loss], [fused.loss])
    norms += _norms_and_gaps(_present(alone.gradients), _present(fused.gradients))
    norms += _norms_and_gaps(alone.rest, fused.rest)
    factor, absolute = allowed
    numbers = _joined(norms).tolist()  # waits for the device, once
    for kind in ("loss", "gradient", "buffers"):
        norm, gap, *numbers = numbers
        if not norm < inf or gap <= factor * norm + absolute:
            continue
        differ = f"differ by {gap:.2g} (norm {norm:.2g})"
        why = f"fused, a lane's {kind} {differ} from what they are alone"
        if kind == "gradient" and gap <= KINK * factor * norm:
            raise Differing(why)
        raise Unfusable(why)


def _norms_and_gaps(alone: Row, fused: Row) -> list[Tensor]:
    """The norm of the tensors alone, and of the difference; computed where the tensors are."""
    pairs = zip(alone, fused, strict=True)
    gaps = [doubled(a) - doubled(b) for a, b in pairs]
    return [_norm(alone), _norm(gaps)]


def tolerance(lane: TrainingLane, dtype: torch.dtype) -> Allowed:
    """Differences that are no more than rounding: relative to the norm, and absolute."""
    if lane.settings.precision == "bf16":
        return COARSE
    relative, absolute = CLOSE.get(dtype, COARSE)
    on_gpu = lane.device.type == "cuda"
    if on_gpu and dtype == torch.float32 and rounds_to_tf32(lane.model):
        return TF32, absolute
    return relative, absolute


def rounds_to_tf32(model: nn.Module) -> bool:
    """Whether CUDA's kernels may round factors to TF32, alone and fused not in the same places.

    By default cuDNN's do, which compute convolutions and recurrent layers, but no products of
    matrices: a convolution's weights have three dimensions or more.
    """
    backends = torch.backends
    try:
        if backends.cuda.matmul.allow_tf32:
            return True
        recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
        by_cudnn = recurrent or any(parameter.dim() > 2 for parameter in model.parameters())
        return by_cudnn and bool(backends.cudnn.allow_tf32)
    except RuntimeError:  # it was set by layers, in a newer way
        return True


def has_gradient(alone: Reference) -> bool:
    """Whether there is a gradient to compare: samples that are masked out give none."""
    return 0 < float(_norm(_present(alone.gradients))) < inf


def _present(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """The tensors of these that are not None."""
    return [tensor for tensor in tensors if tensor is not None]


def _norm(tensors: Row) -> Tensor:
    """The norm over all tensors, computed where they are."""
    filled = [doubled(tensor) for tensor in tensors if tensor.numel()]
    if not filled:
        return torch.zeros((), dtype=torch.float64)
    norms = [torch.linalg.vector_norm(tensor) for tensor in filled]
    norm: Tensor = torch.linalg.vector_norm(_joined(norms))
    return norm


def _joined(numbers: Row) -> Tensor:
    """The numbers as one tensor, on the first one's device."""
    first = numbers[0].device
    return torch.stack([number.to(first) for number in numbers])


def same_scores(alone: dict[str, float], fused: dict[str, float], samples: int) -> bool:
    """Whether mean scores over so many samples agree.

    A few of the samples may lie on the edge of a decision.
    """
    if alone.keys() != fused.keys():
        return False
    share = 0.005 + 1.5 / samples
    for name, value in alone.items():
        both_nan = isnan(value) and isnan(fused[name])
        if not both_nan and not abs(value - fused[name]) <= share * (1 + abs(value)):
            return False
    return True
