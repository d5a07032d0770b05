"""Models of Hugging Face as recipes: what a Trainer is given, without the Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.train.adapt.arguments import ATTRIBUTES, Arguments
from shoal.train.adapt.attributes import set_attributes
from shoal.train.data.data import Data
from shoal.train.recipe.adapted import Adapted

try:
    from transformers import get_scheduler
    from transformers.trainer_pt_utils import get_parameter_names, nested_concat
    from transformers.trainer_utils import EvalPrediction
except ImportError as error:
    raise ImportError(
        "shoal.huggingface needs transformers: pip install transformers"
    ) from error

EVAL = "eval"
# names of parameters without weight decay, as Trainer has them
WITHOUT_DECAY = [
    r"bias",
    r"layernorm",
    r"rmsnorm",
    r"(?:^|\.)norm(?:$|\.)",
    r"_norm(?:$|\.)",
]


def huggingface(
    model_init: Callable[..., Any],
    train: Any,
    valid: Any = None,
    collator: Callable[[list[Any]], Any] | None = None,
    args: Any = None,
    *,
    compute_metrics: Callable[[Any], Mapping[str, float]] | None = None,
    shards: int | None = None,
    **attributes: Any,
) -> HuggingFaceRecipe:
    """A recipe of a Hugging Face model, from what a Trainer gets.

    `model_init`: a function of the configuration, or of nothing, that returns a new model whose
    output has a `loss`. `train`, `valid`: lists of dicts, torch Datasets or datasets.Dataset;
    `valid` may be a fraction of `train`. `collator`: makes a batch, a dict, of a list of items.

    `args`: a TrainingArguments, or a dict of its fields; a configuration's keys learning_rate,
    weight_decay and so on come first. The schedule ends after `num_train_epochs`.
    `compute_metrics`: gets an EvalPrediction of the whole validation set. `shards`: as for
    `Data.dataset`. `attributes`: those of a recipe, by name: search_space, metric, mode, and so on.

    Raises:
        TypeError, ValueError: `model_init` is no function, `args` has a field that Shoal does not
            follow, or an attribute is unknown.
    """
    if isinstance(model_init, nn.Module) or not callable(model_init):
        raise TypeError(
            "model_init must be a function that returns a new model, since each trial has its own; "
            f"got {type(model_init).__name__}"
        )
    recipe = HuggingFaceRecipe(model_init, (train, valid, collator, shards), args)
    recipe.compute_metrics = compute_metrics
    set_attributes(recipe, attributes)
    return recipe


class HuggingFaceRecipe(Adapted):
    """Trains a model of Hugging Face; made by `shoal.huggingface`."""

    def __init__(
        self, model_init: Callable[..., Any], given: tuple[Any, ...], args: Any
    ) -> None:
        self.model_init = model_init
        self.given = given
        self.args = Arguments.of(args)
        self.compute_metrics: Callable[[Any], Mapping[str, float]] | None = None
        self.sizes: tuple[int, ...] = ()
        self.batch_size = self.args.per_device_train_batch_size
        self.accumulate_grad_batches = self.args.gradient_accumulation_steps
        self.gradient_clip_val = self.args.max_grad_norm or None
        self.precision = "bf16" if self.args.bf16 else "32"
        self.drop_last = self.args.dataloader_drop_last
        set_attributes(self, {"max_epochs": int(self.args.num_train_epochs)})

    def data(self) -> Data:
        """The given items, which the collator makes batches of."""
        train, valid, collator, shards = self.given
        data = Data.dataset(train, valid, shards, collate=collator)
        self.sizes = tuple(data.sizes.values())
        return data

    def brought(self) -> tuple[Any, ...]:
        """The user's functions and classes."""
        found = (self.model_init, self.compute_metrics, *self.given[:3])
        return tuple(
            each if isinstance(each, type) or hasattr(each, "__code__") else type(each)
            for each in found
            if each is not None
        )

    def named(self) -> Any:
        """The function that makes the model."""
        return self.model_init

    def renew(self, kind: Any) -> None:
        """Make models by this function from now on."""
        self.model_init = kind

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError if the configuration has a field under a name that is not read."""
        for name, own in ATTRIBUTES.items():
            if name in config:
                raise ValueError(
                    f"the search space has {name}, which a recipe calls {own}: search over {own}"
                )
        if "num_train_epochs" in config:
            raise ValueError(
                "the search space has num_train_epochs: all trials have as many, max_epochs"
            )
        self.args.with_config(config)

    def obstacle(self, model: nn.Module) -> str | None:
        """Such models look at the values of masks, which differ between models."""
        return "models of Hugging Face branch on the values of their batches"

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """The user's model.

        Raises:
            TypeError: `model_init` returns something else.
        """
        takes = inspect.signature(self.model_init).parameters
        made = self.model_init(config) if takes else self.model_init()
        if not isinstance(made, nn.Module):
            raise TypeError(
                f"model_init must return a torch.nn.Module; got {type(made).__name__}"
            )
        return made

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """AdamW and its schedule, as Trainer makes them."""
        args = self.args.with_config(config)
        optimizer = torch.optim.AdamW(
            decayed(model, args.weight_decay),
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
        )
        steps = self._steps(config)
        schedule = get_scheduler(
            args.lr_scheduler_type, optimizer, args.warmup(steps), steps
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _steps(self, config: Mapping[str, Any]) -> int:
        """Optimizer steps in `num_train_epochs`: each shard ends with a step of its own."""
        size = int(config.get("batch_size", self.batch_size))
        group = int(config.get("accumulate_grad_batches", self.accumulate_grad_batches))
        drops = config.get("drop_last", self.drop_last)
        batches = [each // size if drops else -(-each // size) for each in self.sizes]
        steps = sum(-(-each // group) for each in batches)
        return steps * int(self.args.num_train_epochs)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss in the model's output."""
        return loss_of(model(**named(batch)))

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """What the metric is to see: the loss, and for `compute_metrics` what was predicted."""
        output = model(**named(batch))
        rows = len(next(iter(batch.values())))
        if self.compute_metrics is None:
            return {EVAL: (loss_of(output), rows)}
        labels = batch["labels"]
        return {EVAL: (loss_of(output), rows, output["logits"], labels)}

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """eval_loss, and eval_ with what `compute_metrics` returns."""
        return {EVAL: EvalScores(self.compute_metrics)}


class EvalScores:
    """The scores of one evaluation, over the whole validation set."""

    def __init__(self, metrics: Callable[[Any], Mapping[str, float]] | None) -> None:
        self._metrics = metrics
        self.reset()

    def reset(self) -> None:
        """Begin an evaluation."""
        self._total, self._rows = 0.0, 0
        self._predicted: Any = None
        self._labels: Any = None

    def update(self, loss: Tensor, rows: int, *seen: Tensor) -> None:
        """Take the mean loss of so many rows; `seen`: their logits and labels."""
        self._total += float(loss) * rows
        self._rows += rows
        if not seen:
            return
        logits, labels = (each.detach().float().cpu().numpy() for each in seen)
        labels = labels.astype(np.int64) if not seen[1].is_floating_point() else labels
        if self._labels is None:
            self._predicted, self._labels = logits, labels
            return
        self._predicted = nested_concat(self._predicted, logits)
        self._labels = nested_concat(self._labels, labels)

    def compute(self) -> dict[str, float]:
        """The scores, by name without the prefix."""
        scores = {"loss": self._total / self._rows}
        if self._metrics is not None:
            seen = EvalPrediction(self._predicted, self._labels)
            scores |= {
                name.removeprefix(f"{EVAL}_"): value
                for name, value in self._metrics(seen).items()
            }
        return scores


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters with weight decay, and those without: biases and those of norms."""
    names = set(get_parameter_names(model, [nn.LayerNorm], WITHOUT_DECAY))
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name not in names].append(parameter)
    made = zip(groups, (weight_decay, 0.0), strict=True)
    return [{"params": each, "weight_decay": decay} for each, decay in made if each]


def loss_of(output: Any) -> Tensor:
    """The loss in a model's output.

    Raises:
        ValueError: it has none.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if loss is None:
        raise ValueError(
            "the model's output must have a loss: the collator's batch needs labels"
        )
    return loss  # type: ignore[no-any-return]


def named(batch: Any) -> Mapping[str, Any]:
    """The batch, if it is a dict.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            "the collator must return a dict of the model's arguments; "
            f"got {type(batch).__name__}"
        )
    return batch
