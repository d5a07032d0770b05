"""A module's steps and hooks, called in the order in which Lightning calls them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial
from math import isclose
from typing import Any

from torch import Tensor, nn

from shoal.core.errors import warn
from shoal.train.adapt.lightning_classes import is_metric, overrides
from shoal.train.adapt.lightning_data import Terms, in_form, samples_in
from shoal.train.adapt.module_log import one_number
from shoal.train.adapt.module_seat import own_class, seat_of

# hooks that take over what Shoal does itself, with what to do instead
REFUSED = {
    "optimizer_step": "step in training_step, with self.automatic_optimization = False",
    "optimizer_zero_grad": "leave it out: gradients are set to None",
    "backward": "call it in training_step, with self.automatic_optimization = False",
    "lr_scheduler_step": "make the scheduler one of torch's, which step() steps",
    "on_validation_model_eval": "set modes in on_validation_start",
    "on_validation_model_train": "set modes in on_train_epoch_start",
    "on_validation_model_zero_grad": "leave it out: gradients are set to None",
    "configure_sharded_model": "build the model in __init__ or configure_model",
}
# hooks that are not called
IGNORED = (
    "on_fit_end",
    "on_train_end",
    "teardown",
    "configure_callbacks",
    "on_save_checkpoint",
    "on_load_checkpoint",
)
# hooks that run for each batch of one model
OF_STEPS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "configure_gradient_clipping",
)
OF_VALIDATION = (
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
)
OF_TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")

_warned: set[type] = set()


def check_hooks(kind: type) -> None:
    """Warn, once for a class, of hooks that are not called.

    Raises:
        ValueError: it has a hook or step that Shoal cannot call.
    """
    for name, remedy in REFUSED.items():
        if overrides(kind, name):
            raise ValueError(f"{kind.__name__}.{name} takes over what Shoal does itself: {remedy}")
    if not overrides(kind, "training_step"):
        raise ValueError(f"{kind.__name__} needs a method training_step(self, batch, batch_idx)")
    step: Any = getattr(kind, "training_step", None)
    if "dataloader_iter" in inspect.signature(step).parameters:
        raise ValueError(
            f"{kind.__name__}.training_step(dataloader_iter) fetches batches itself: take "
            "(batch, batch_idx)"
        )
    ignored = [name for name in IGNORED if overrides(kind, name)]
    if ignored and kind not in _warned:
        _warned.add(kind)
        warn(f"Shoal does not call {', '.join(ignored)} of {kind.__name__}")


def unfusable(kind: type) -> str | None:
    """Why the class's models cannot be fused; None if its code does not tell."""
    hooks = [name for name in OF_STEPS if overrides(kind, name)]
    if hooks:
        return f"{kind.__name__} has the hook {hooks[0]}, which runs for one model at a time"
    return None


def positional(step: Any) -> int:
    """How many arguments the method takes by position, `self` not counted."""
    parameters = inspect.signature(step).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
        return 2
    return sum(each.kind in kinds for each in parameters)


# classes whose logged loss was compared with the one that they return
_compared: set[type] = set()


def call(module: Any, hook: str, *arguments: Any) -> Any:
    """Call the hook if the user's class has it."""
    if overrides(type(module), hook):
        return getattr(module, hook)(*arguments)
    return None


def transfer_batch(module: Any, batch: Any, terms: Terms, scored: bool) -> Any:
    """The batch as Lightning hands it to a step, after the hooks around its transfer.

    `scored`: it is of a validation.
    """
    batch = in_form(batch, terms.forms[scored])
    for hook, arguments in zip(OF_TRANSFER, ((0,), (module.device, 0), (0,)), strict=True):
        data_module_class = terms.data_module_class
        if data_module_class is not None and overrides(data_module_class, hook):
            batch = getattr(terms.data_module, hook)(batch, *arguments)
        elif overrides(type(module), hook):
            batch = getattr(module, hook)(batch, *arguments)
    return batch


# -- training --------------------------------------------------------------------------------------


def train(
    module: Any, batch: Any, terms: Terms, before_backward: Callable[[Any], None]
) -> tuple[Any, dict[str, Any]]:
    """What the module's training step returns, and what it logs.

    `before_backward` gets what it returns.
    """
    seat = seat_of(module)
    kind: Any = type(module)
    end_batch(module)
    if module.automatic_optimization == seat.steps_itself:
        raise ValueError(
            f"{kind.__name__} changes automatic_optimization in training: set it in __init__"
        )
    with seat.in_training(is_fused(module)) as log:
        batch = transfer_batch(module, batch, terms, scored=False)
        log.samples = partial(samples_in, batch)
        number = seat.batch_number()
        if call(module, "on_train_batch_start", batch, number) == -1:
            raise ValueError(
                "on_train_batch_start returned -1: Shoal does not skip the rest of an epoch"
            )
        step = module.training_step
        outcome = step(*(batch, number)[: _count(kind, "training_step")])
        before_backward(outcome)
        values = log.values
    if overrides(kind, "on_train_batch_end"):
        seat.last = (outputs_of(outcome, seat), batch, number)
    if outcome is not None and "loss" in values:
        _compare_loss(module, values.pop("loss"), outcome)
    return outcome, values


def _compare_loss(module: Any, logged: Any, outcome: Any) -> None:
    """Warn, once for a class, if it logs as "loss" something else than the loss that it returns."""
    kind = own_class(module)
    if kind in _compared or is_fused(module):
        return
    _compared.add(kind)
    logged_loss, returned = float(logged), float(loss_of(outcome).detach())
    if not isclose(logged_loss, returned, rel_tol=1e-3):
        warn(
            f"{kind.__name__}.training_step logs {logged_loss:.4g} as 'loss' and returns "
            f"{returned:.4g}: among the scores, 'loss' is what it returns; log the other "
            "value by a name of its own"
        )


def end_batch(module: Any) -> None:
    """Call `on_train_batch_end` for the newest training step, if that was not done."""
    seat = seat_of(module)
    if seat.last:
        seat.after_batch = True
        call(module, "on_train_batch_end", *seat.last)
        seat.last = ()


def outputs_of(outcome: Any, seat: Any) -> dict[str, Any]:
    """What a training step returned, as Lightning hands it to on_train_batch_end."""
    outputs = dict(outcome) if isinstance(outcome, Mapping) else {}
    if isinstance(outcome, Tensor):
        outputs["loss"] = outcome
    if isinstance(outputs.get("loss"), Tensor):
        share = 1 if seat.steps_itself else seat.accumulate
        outputs["loss"] = outputs["loss"].detach() / share
    return outputs


def is_fused(module: nn.Module) -> bool:
    """Whether several models' tensors are in the places of the module's own."""
    return not isinstance(next(module.parameters()), nn.Parameter)


def call_before_backward(module: Any, loss: Tensor) -> None:
    """Call the hooks that come between the step and its gradient."""
    seat = seat_of(module)
    hooked = overrides(type(module), "on_before_zero_grad")
    if hooked and seat.progress.batches % seat.accumulate == 0:
        module.on_before_zero_grad(seat.optimizers[0])
    call(module, "on_before_backward", loss)


def loss_of(outcome: Any) -> Tensor:
    """The loss that a training step returned.

    Raises:
        TypeError: it returned none.
    """
    loss = outcome
    if isinstance(outcome, Mapping):
        loss = outcome.get("loss")
    if not isinstance(loss, Tensor):
        raise TypeError(
            'training_step must return the loss, a tensor, or {"loss": loss, …}; got '
            f"{type(loss).__name__}: Shoal does not skip batches"
        )
    return loss.reshape(()) if loss.numel() == 1 else loss


@cache
def _count(kind: Any, step: str) -> int:
    """How many of (batch, batch_idx) the step takes."""
    return positional(getattr(kind, step)) - 1


# -- validation ------------------------------------------------------------------------------------


def has_validation_hooks(kind: type) -> bool:
    """Whether the user's classes have hooks around validation."""
    return any(overrides(kind, hook) for hook in OF_VALIDATION)


def validate(module: Any, batch: Any, terms: Terms) -> dict[str, Any]:
    """The means that the module logs; other values are collected until the end.

    Raises:
        RuntimeError: several models are validated at once, which its code does not allow.
    """
    kind: Any = type(module)
    if not overrides(kind, "validation_step"):
        return {}
    seat = seat_of(module)
    if seat.validation_log is None and (
        has_validation_hooks(kind) or any(map(is_metric, module.modules()))
    ):
        raise RuntimeError("hooks and metrics of validation are for one model at a time")
    batch = transfer_batch(module, batch, terms, scored=True)
    number = seat.validation_batches
    with seat.in_validation(samples_in(batch), is_fused(module)) as returned:
        call(module, "on_validation_batch_start", batch, number)
        step = module.validation_step
        outcome = step(*(batch, number)[: _count(kind, "validation_step")])
        call(module, "on_validation_batch_end", outcome, batch, number)
    seat.validation_batches += 1
    return {name: one_number(name, value) for name, value in returned.items()}
