"""The fields of Hugging Face's TrainingArguments: which Shoal follows, and which it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, Self

import torch

from shoal.train.adapt.transformers_api import TrainingArguments

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
SEED = "give shoal.create_study(…, seed=N)"
LEFT_OUT = "leave it out"
NO_GPU = "hide the GPUs: CUDA_VISIBLE_DEVICES="
WHOLE = "compute_metrics gets predictions and labels of the whole validation set"
# Fields that change what is learnt or given back, and that Shoal does not follow, and what to do
# instead. A field that no list here has is refused, too.
REFUSED = {
    "adafactor": "write a Recipe with that optimizer",
    "auto_find_batch_size": 'give batch_size="max"',
    "batch_eval_metrics": WHOLE,
    "data_seed": SEED,
    "deepspeed": LEFT_OUT,
    "eval_do_concat_batches": WHOLE,
    "fp16": "give bf16, or leave it out",
    "fsdp": LEFT_OUT,
    "group_by_length": LEFT_OUT,
    "include_for_metrics": WHOLE,
    "label_smoothing_factor": "compute that loss in the model",
    "max_steps": "give num_train_epochs",
    "neftune_noise_alpha": LEFT_OUT,
    "no_cuda": NO_GPU,
    "push_to_hub": "push what study.best_model() returns",
    "resume_from_checkpoint": "shoal.load_study(…), or `shoal resume`, goes on",
    "seed": SEED,
    "train_sampling_strategy": 'give shuffle="sequential", or leave it out',
    "use_cpu": NO_GPU,
}
WITHOUT_GPU = ("no_cuda", "use_cpu")  # say nothing where there is none
# Fields of what the Trainer does around the training, which Shoal does in its own way or not at
# all: they change nothing that is learnt.
AROUND = {
    "disable_tqdm",
    "do_eval",
    "do_predict",
    "do_train",
    "full_determinism",
    "ignore_data_skip",
    "load_best_model_at_end",
    "output_dir",
    "overwrite_output_dir",
    "per_device_eval_batch_size",
    "prediction_loss_only",
    "project",
    "report_to",
    "run_name",
    "skip_memory_metrics",
    "torch_empty_cache_steps",
    "use_cache",
}
AROUND_BEGIN = ("dataloader_", "ddp_", "eval_", "hub_", "log_", "logging_", "save_")
NUMBERS = (*SEARCHED[:4], *SEARCHED[5:], "max_grad_norm", "num_train_epochs")
# those that are a function of the step alone
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "warmup_stable_decay",
)
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
CHOICES = {"lr_scheduler_type": SCHEDULES, "optim": OPTIMIZERS}
# the newer name of a field, by which it may be given, too
NEWER = {
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
    "evaluation_strategy": "eval_strategy",
}


@dataclass(frozen=True)
class Arguments:
    """How to train, in Trainer's words and with its defaults.

    Raises:
        ValueError: a value that Shoal does not follow.
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
    lr_scheduler_kwargs: Mapping[str, Any] | None = None
    gradient_checkpointing: bool = False
    gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    remove_unused_columns: bool = True
    label_names: list[str] | None = None
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    eval_strategy: str = "no"
    eval_steps: float | None = None
    logging_steps: float = 500

    def __post_init__(self) -> None:
        wrong = _wrong_values(vars(self))
        if wrong:
            raise ValueError("; ".join(wrong))

    @classmethod
    def of(cls, args: Any) -> Self:
        """The arguments in a dict, or in a TrainingArguments.

        Raises:
            TypeError: it is neither.
            ValueError: it has fields or values that Shoal does not follow; the error has them all.
        """
        known = [field.name for field in fields(cls)]
        values = _changed(args)
        followed = {name: values[name] for name in known if name in values}
        wrong = _refused(sorted(values.keys() - followed.keys()), known)
        wrong += _wrong_values(followed)
        if wrong:
            raise ValueError("; ".join(wrong))
        return cls(**followed)

    def with_config(self, config: Mapping[str, Any]) -> Arguments:
        """These arguments, with a trial's values in their place."""
        values = {name: config[name] for name in SEARCHED if name in config}
        return Arguments(**{**vars(self), **values})

    def warmup(self, steps: int) -> int:
        """Steps of warm-up, of so many steps in all."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return -int(-steps * (self.warmup_ratio or self.warmup_steps) // 1)

    @property
    def metric(self) -> str | None:
        """The score that says which model is best; None if the arguments do not tell."""
        name = self.metric_for_best_model
        if name is None:
            return None
        return name if name.startswith("eval_") else f"eval_{name}"

    @property
    def validate_every(self) -> float | str | None:
        """When trials are evaluated; None if the arguments do not tell."""
        if self.eval_strategy != "steps":
            return None
        steps = self.eval_steps or self.logging_steps
        if steps < 1:  # a part of all steps
            return steps * self.num_train_epochs
        return f"{int(steps)} steps"

    @property
    def mode(self) -> str | None:
        """Whether `metric` is to be large ("max") or small ("min")."""
        if self.metric is None:
            return None
        larger = self.greater_is_better
        if larger is None:
            larger = not self.metric.endswith("loss")
        return "max" if larger else "min"


def _wrong_values(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with values of fields that Shoal follows."""
    wrong = []
    for name, value in values.items():
        if name in NUMBERS and not isinstance(value, Real) and value is not None:
            wrong.append(f"{name} must be a number; got {value!r}")
        elif name in CHOICES and value not in CHOICES[name]:
            wrong.append(f"{name} must be one of {', '.join(CHOICES[name])}; got {value}")
        elif name == "num_train_epochs" and value != int(value):
            wrong.append(f"num_train_epochs must be a whole number; got {value}")
    return wrong


def _refused(names: list[str], known: list[str]) -> list[str]:
    """Those of these fields that may not be left unread, and what to do instead of each."""
    refused, misspelt, unknown = [], [], []
    for name in names:
        if name in WITHOUT_GPU and not torch.cuda.is_available():
            continue
        if name in REFUSED:
            refused.append(f"{name} ({REFUSED[name]})")
        elif name not in AROUND and not name.startswith(AROUND_BEGIN):
            near = get_close_matches(name, known, 1)
            if near:
                misspelt.append(f"args has {name!r}: did you mean {near[0]}?")
            else:
                unknown.append(repr(name))
    listed = refused + unknown
    if not listed:
        return misspelt
    text = f"args has {', '.join(listed)}, which Shoal does not follow"
    if unknown:
        text += f" (it follows {', '.join(sorted(known))})"
    return [text, *misspelt]


def _changed(args: Any) -> dict[str, Any]:
    """The fields in the user's arguments, without those that have their defaults."""
    if args is None:
        return {}
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(TrainingArguments)
    }
    if isinstance(args, Mapping):
        values = dict(args)
    elif isinstance(args, TrainingArguments):
        values = {field.name: getattr(args, field.name) for field in fields(args)}
        # Making the object fills in fields, in the same way for a fresh one.
        defaults = vars(type(args)(output_dir=args.output_dir))
    else:
        raise TypeError(
            "args must be a transformers.TrainingArguments or a dict of its fields; "
            f"got {type(args).__name__}"
        )
    return {
        NEWER.get(name, name): _plain(value)
        for name, value in values.items()
        if not _is_off(name, value) and _plain(value) != _plain(defaults.get(name))
    }


def _is_off(name: str, value: Any) -> bool:
    """Whether the value says that something is not wanted."""
    if name in REFUSED and value is False:
        return True
    return value is None or value in ([], {}, "")


def _plain(value: Any) -> Any:
    """The value of an enumeration; anything else as it is."""
    return getattr(value, "value", value)
