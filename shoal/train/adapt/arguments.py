"""The fields of Hugging Face's TrainingArguments that Shoal follows, and those that it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

# fields that a trial's configuration may have, too
SEARCHED = (
    "learning_rate",
    "weight_decay",
    "warmup_steps",
    "warmup_ratio",
    "lr_scheduler_type",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
)
# fields that are attributes of a recipe, under another name
ATTRIBUTES = {
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "accumulate_grad_batches",
    "max_grad_norm": "gradient_clip_val",
    "bf16": "precision",
    "dataloader_drop_last": "drop_last",
}
# fields that change what is learnt, and that Shoal does not follow, with what to do instead
REFUSED = {
    "adafactor": "write a Recipe with that optimizer",
    "deepspeed": "leave it out",
    "fp16": "give bf16, or leave it out",
    "fsdp": "leave it out",
    "group_by_length": "leave it out",
    "label_smoothing_factor": "compute that loss in the model",
    "lr_scheduler_kwargs": "write a Recipe with that schedule",
    "max_steps": "give num_train_epochs",
    "neftune_noise_alpha": "leave it out",
    "seed": "give shoal.create_study(…, seed=N)",
    "train_sampling_strategy": "leave it out",
}
SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


@dataclass(frozen=True)
class Arguments:
    """How to train, in Trainer's words and with its defaults.

    Raises:
        ValueError: a field that Shoal does not follow.
    """

    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    warmup_steps: float = 0
    warmup_ratio: float | None = None
    lr_scheduler_type: str = "linear"
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    bf16: bool = False
    dataloader_drop_last: bool = False
    num_train_epochs: float = 3
    optim: str = "adamw_torch"

    def __post_init__(self) -> None:
        if self.lr_scheduler_type not in SCHEDULES:
            raise ValueError(
                f"lr_scheduler_type must be one of {', '.join(SCHEDULES)}; "
                f"got {self.lr_scheduler_type}"
            )
        if self.optim not in OPTIMIZERS:
            raise ValueError(
                f"optim must be one of {', '.join(OPTIMIZERS)}; got {self.optim}"
            )
        if self.num_train_epochs != int(self.num_train_epochs):
            raise ValueError(
                f"num_train_epochs must be a whole number; got {self.num_train_epochs}"
            )

    @classmethod
    def of(cls, given: Any) -> Self:
        """The arguments in a dict, or in a TrainingArguments.

        Raises:
            TypeError, ValueError: it is neither, or has a field that Shoal does not follow.
        """
        known = {field.name for field in fields(cls)}
        values = _changed(given)
        for name in sorted(set(values) - known):
            remedy = REFUSED.get(name)
            if remedy is not None:
                raise ValueError(
                    f"args has {name}, which Shoal does not follow: {remedy}"
                )
            if isinstance(given, Mapping):
                raise ValueError(
                    f"args has {name!r}; Shoal follows {', '.join(sorted(known))}"
                )
        return cls(**{name: _plain(values[name]) for name in known & set(values)})

    def with_config(self, config: Mapping[str, Any]) -> Arguments:
        """These arguments, with a trial's values in their place."""
        own = {name: config[name] for name in SEARCHED if name in config}
        return Arguments(**{**vars(self), **own})

    def warmup(self, steps: int) -> int:
        """Steps of warm-up, of so many steps in all."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return -int(-steps * (self.warmup_ratio or self.warmup_steps) // 1)


def _changed(given: Any) -> dict[str, Any]:
    """The fields of a dict, or those of a dataclass that are not its defaults."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if not hasattr(type(given), "__dataclass_fields__"):
        raise TypeError(
            "args must be a transformers.TrainingArguments or a dict of its fields; "
            f"got {type(given).__name__}"
        )
    found = {}
    for field in fields(given):
        value = getattr(given, field.name)
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        if _plain(value) != _plain(default) and value not in (None, [], {}, ""):
            found[field.name] = value
    return found


def _plain(value: Any) -> Any:
    """The value of an enumeration; anything else as it is."""
    return getattr(value, "value", value)
