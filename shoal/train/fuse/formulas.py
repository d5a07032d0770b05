"""The formulas of torch's optimizers over (k, width): a row a lane, with numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

Group = Mapping[str, Any]
Names = tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Update:
    """One step of parameters that lie side by side, of k lanes.

    `numbers` are (k,) by name, of each lane's optimizer; `ages` (k,) the step's number in each;
    `fresh` (k,) which have made none before; `flags` are the same in all lanes.
    """

    weights: Tensor  # (k, width), as the two that follow
    gradients: Tensor
    states: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    ages: Any
    fresh: Any
    flags: Group

    def columns(self, *numbers: Any) -> Sequence[Tensor]:
        """The lanes' numbers, each (k,), as columns (k, 1) on the weights' device.

        All are sent in one copy, for which nothing waits: a formula asks once.
        """
        table = torch.from_numpy(np.stack(numbers)).to(self.weights.dtype)
        if self.weights.device.type == "cuda":
            table = table.pin_memory()
        on_device = table.to(self.weights.device, non_blocking=True)
        return on_device.unsqueeze(2).unbind()

    def direction(self, decay: Tensor | None = None) -> Tensor:
        """The gradient with its sign, and with weight decay where its column is given."""
        gradients = self.gradients
        if self.flags.get("maximize"):
            gradients = -gradients
        if decay is None or not self.numbers["weight_decay"].any():
            return gradients
        return gradients + self.weights * decay


def sgd(now: Update) -> None:
    """SGD, with momentum, dampening, Nesterov; the first step's buffer is the gradient."""
    numbers = now.numbers
    shares = np.where(now.fresh, 1.0, 1 - numbers["dampening"])
    rate, momentum, share, decay = now.columns(
        -numbers["lr"], numbers["momentum"], shares, numbers["weight_decay"]
    )
    gradients = now.direction(decay)
    direction = gradients
    buffer = now.states.get("momentum_buffer")
    if buffer is not None:
        buffer.mul_(momentum).addcmul_(gradients, share)
        direction = buffer
        if now.flags["nesterov"]:
            direction = gradients.addcmul(buffer, momentum)
    now.weights.addcmul_(direction, rate)


def adam(now: Update) -> None:
    """Adam and AdamW, with AMSGrad."""
    numbers = now.numbers
    decays = numbers["weight_decay"]
    beta1 = numbers["beta1"]
    beta2 = numbers["beta2"]
    new1, old2, new2, root, rate, epsilon, decay, shrink = now.columns(
        1 - beta1,
        beta2,
        1 - beta2,
        np.sqrt(1 - beta2**now.ages),
        -numbers["lr"] / (1 - beta1**now.ages),
        numbers["eps"],
        decays,
        1 - numbers["lr"] * decays,
    )

    if now.flags["decoupled_weight_decay"]:
        direction = now.direction()
        now.weights.mul_(shrink)
    else:
        direction = now.direction(decay)
    first = now.states["exp_avg"]
    second = now.states["exp_avg_sq"]
    first.lerp_(direction, new1)
    second.mul_(old2).addcmul_(direction * new2, direction)

    largest = now.states.get("max_exp_avg_sq")
    if largest is not None:
        second = torch.maximum(largest, second, out=largest)
    divisor = second.sqrt().div_(root).add_(epsilon)
    step = torch.div(first, divisor, out=divisor).mul_(rate)
    now.weights.add_(step)


def adagrad(now: Update) -> None:
    """Adagrad, with a rate that decays by the count."""
    numbers = now.numbers
    rate, epsilon, decay = now.columns(
        -numbers["lr"] / (1 + (now.ages - 1) * numbers["lr_decay"]),
        numbers["eps"],
        numbers["weight_decay"],
    )
    direction = now.direction(decay)
    total = now.states["sum"]
    total.addcmul_(direction, direction)
    divisor = total.sqrt().add_(epsilon)
    now.weights.add_(direction / divisor * rate)


def rmsprop(now: Update) -> None:
    """RMSprop, centered or not, with momentum or not."""
    numbers = now.numbers
    old, new, epsilon, rate, momentum, decay = now.columns(
        numbers["alpha"],
        1 - numbers["alpha"],
        numbers["eps"],
        -numbers["lr"],
        numbers["momentum"],
        numbers["weight_decay"],
    )
    direction = now.direction(decay)

    square = now.states["square_avg"]
    square.mul_(old).addcmul_(direction * new, direction)
    variance = square
    mean = now.states.get("grad_avg")
    if mean is not None:
        mean.lerp_(direction, new)
        variance = square.addcmul(mean, mean, value=-1)

    ratio = direction / variance.sqrt().add_(epsilon)
    buffer = now.states.get("momentum_buffer")
    if buffer is not None:
        ratio = buffer.mul_(momentum).add_(ratio)
    now.weights.addcmul_(ratio, rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """One of torch's optimizers: the numbers of its groups, the tensors it keeps, its formula."""

    numbers: Names  # each lane's own
    flags: Names  # the same in lanes that are stepped together
    keeps: Callable[[Group], Names]  # tensors of each parameter's form
    counts: bool = True  # whether it keeps "step"
    update: Callable[[Update], None]


def _sgd_keeps(group: Group) -> Names:
    return ("momentum_buffer",) if group["momentum"] else ()


def _adam_keeps(group: Group) -> Names:
    moments = ("exp_avg", "exp_avg_sq")
    return (*moments, "max_exp_avg_sq") if group["amsgrad"] else moments


def _adagrad_keeps(group: Group) -> Names:
    return ("sum",)


def _rmsprop_keeps(group: Group) -> Names:
    names = ["square_avg"]
    if group["momentum"] > 0:
        names.append("momentum_buffer")
    if group["centered"]:
        names.append("grad_avg")
    return tuple(names)


ADAM = Formula(
    numbers=("lr", "eps", "weight_decay"),  # and betas
    flags=("amsgrad", "maximize", "decoupled_weight_decay"),
    keeps=_adam_keeps,
    update=adam,
)
FORMULAS: Mapping[type[Optimizer], Formula] = {
    SGD: Formula(
        numbers=("lr", "momentum", "dampening", "weight_decay"),
        flags=("nesterov", "maximize"),
        keeps=_sgd_keeps,
        counts=False,
        update=sgd,
    ),
    Adam: ADAM,
    AdamW: ADAM,
    Adagrad: Formula(
        numbers=("lr", "lr_decay", "weight_decay", "eps"),
        flags=("maximize",),
        keeps=_adagrad_keeps,
        update=adagrad,
    ),
    RMSprop: Formula(
        numbers=("lr", "alpha", "eps", "weight_decay", "momentum"),
        flags=("centered", "maximize"),
        keeps=_rmsprop_keeps,
        update=rmsprop,
    ),
}
