"""Which of Lightning's hooks Shoal calls, which it refuses, and which keep models from fusing."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from shoal.train.adapt.kinds import overrides

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
OF_TRANSFER = (
    "on_before_batch_transfer",
    "transfer_batch_to_device",
    "on_after_batch_transfer",
)

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
        warnings.warn(f"Shoal does not call {', '.join(ignored)} of {kind.__name__}", stacklevel=3)


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
