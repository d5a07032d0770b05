"""Models of Hugging Face as recipes: what a Trainer is given, without the Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from shoal.train.adapt.training_arguments import ATTRIBUTES, Arguments
from shoal.train.adapt.transformers_api import (
    EvalPrediction,
    default_data_collator,
    find_labels,
    get_parameter_names,
    get_scheduler,
    nested_concat,
    nested_detach,
    nested_numpify,
)
from shoal.train.data.data import Data
from shoal.train.data.parts import Order
from shoal.train.recipe.adapter import Adapted, set_attributes

# What a Trainer calls things, and what to give here.
MEANT = {
    "model": "model_init, a function that returns a new model",
    "train_dataset": "train",
    "eval_dataset": "valid",
    "data_collator": "collator",
    "tokenizer": "collator, such as DataCollatorWithPadding(tokenizer)",
    "processing_class": "collator, such as DataCollatorWithPadding(tokenizer)",
    "callbacks": "study.optimize(callbacks=[…]) objects of shoal.Callback, for nothing calls a "
    "TrainerCallback; in place of EarlyStoppingCallback searcher='patience(epochs=3)', and of "
    "those that log, loggers=['tensorboard']",
    "optimizers": "learning_rate, lr_scheduler_type and so on in args; or write a Recipe",
}
# names of parameters without weight decay, as Trainer has them
WITHOUT_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]

# fields of `Arguments` that are attributes of the recipe
FROM_ARGUMENTS = ("metric", "mode", "validate_every")


def huggingface(
    model_init: Callable[..., Any] | None = None,
    train: Any = None,
    valid: Any = None,
    collator: Callable[[list[Any]], Any] | None = None,
    args: Any = None,
    *,
    compute_metrics: Metrics | None = None,
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
    shards: int | None = None,
    **attributes: Any,
) -> HuggingFaceRecipe:
    """A recipe of a Hugging Face model, from what a Trainer gets.

    Args:
        model_init: a function of the configuration, or of nothing, that returns a new model whose
            output has a `loss`.
        train: a list of dicts, a torch Dataset or a datasets.Dataset.
        valid: the same to validate on, or a fraction of `train`.
        collator: makes a batch, a dict, of a list of items. None: as the Trainer does.
        args: a TrainingArguments, or a dict of its fields; a configuration's keys learning_rate,
            weight_decay and so on come first. The schedule ends after `num_train_epochs`.
        compute_metrics: gets an EvalPrediction of the whole validation set, and returns scores by
            name.
        preprocess_logits_for_metrics: gets the predictions and labels of a batch, and returns what
            is to be kept of the predictions.
        shards: how many, as for `Data.dataset`.
        **attributes: those of a `Recipe`, by name: search_space, metric, mode, and so on.

    Raises:
        TypeError: `model_init` is no function, `train` is no data set, or an attribute is unknown.
        ValueError: `args` has fields that Shoal does not follow, or an attribute is out of range.
    """
    for name in MEANT.keys() & attributes.keys():
        raise TypeError(f"shoal.huggingface takes no {name}: give {MEANT[name]}")
    for name in attributes.keys() & {field.name for field in fields(Arguments)}:
        raise TypeError(f"shoal.huggingface takes no {name}: give args={{{name!r}: …}}")
    if isinstance(model_init, nn.Module) or not callable(model_init):
        raise TypeError(
            "model_init must be a function that returns a new model, since each trial has its own; "
            f"got {type(model_init).__name__}"
        )
    if train is None or isinstance(train, Mapping):
        raise TypeError(
            "train must be one data set, such as data['train'] of a DatasetDict; "
            f"got {type(train).__name__}"
        )
    recipe = HuggingFaceRecipe(model_init, (train, valid, collator, shards), args)
    recipe.compute_metrics = compute_metrics
    recipe.preprocess = preprocess_logits_for_metrics
    set_attributes(recipe, attributes)
    return recipe


class HuggingFaceRecipe(Adapted):
    """Trains a model of Hugging Face; made by `shoal.huggingface`."""

    # what `preprocess_logits_for_metrics` is called here; old pickles lack these two
    preprocess: Callable[[Any, Any], Any] | None = None
    columns: frozenset[str] = frozenset()  # of the data set, which a model may not take

    def __init__(self, model_init: Callable[..., Any], given: tuple[Any, ...], args: Any) -> None:
        self.model_init = model_init
        self.given = given
        self.args = Arguments.of(args)
        self.compute_metrics: Metrics | None = None
        self.sizes: tuple[int, ...] = ()
        self.batch_size = self.args.per_device_train_batch_size
        self.accumulate_grad_batches = self.args.gradient_accumulation_steps
        self.gradient_clip_val = self.args.max_grad_norm or None
        self.precision = "bf16" if self.args.bf16 else "32"
        self.drop_last = self.args.dataloader_drop_last
        attributes = {name: getattr(self.args, name) for name in FROM_ARGUMENTS}
        set_attributes(self, {"max_epochs": int(self.args.num_train_epochs), **attributes})

    def data(self) -> Data:
        """The given items, which the collator makes batches of."""
        train, valid, collator, shards = self.given
        item = first_item(train)
        unused = self.args.remove_unused_columns
        collator = collator_for(collator, item, unused)
        if unused and isinstance(item, Mapping):
            self.columns = frozenset(item)
        order: Order = "sequential" if self.shuffle == "sequential" else "random"
        data = Data.dataset(train, valid, shards, collate=collator, order=order)
        self.sizes = tuple(data.sizes.values())
        return data

    def brought(self) -> tuple[Any, ...]:
        """The user's functions and classes."""
        functions = (self.model_init, self.compute_metrics, self.preprocess)
        parts = (*functions, *self.given[:3])
        return tuple(
            part if isinstance(part, type) or hasattr(part, "__code__") else type(part)
            for part in parts
            if part is not None
        )

    def named(self) -> Any:
        """The function that makes the model."""
        return self.model_init

    def renew(self, kind: Any) -> None:
        """Make models by this function from now on."""
        self.model_init = kind

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError if the configuration has a field under a name that is not read."""
        for name, attribute in ATTRIBUTES.items():
            if name in config:
                raise ValueError(
                    f"the search space has {name}, which a recipe calls {attribute}: search over "
                    f"{attribute}"
                )
        if "num_train_epochs" in config:
            raise ValueError(
                "the search space has num_train_epochs: all trials have as many, max_epochs"
            )
        args = self.args.with_config(config)
        if "warmup_ratio" in config and args.warmup_steps >= 1:
            raise ValueError(
                f"the search space has warmup_ratio, and warmup_steps={args.warmup_steps:g} counts "
                "instead, so that all trials would train alike: leave one of them out"
            )
        weights = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
        try:
            schedule_of(args, weights, 2)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"lr_scheduler_kwargs do not fit lr_scheduler_type {args.lr_scheduler_type}: "
                f"{error}"
            ) from error

    def obstacle(self, model: nn.Module) -> str | None:
        """Why such models cannot be fused: they look at the values of masks, which differ."""
        return "models of Hugging Face branch on the values of their batches"

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """The user's model.

        Raises:
            TypeError: `model_init` returns something else.
        """
        parameters = inspect.signature(self.model_init).parameters
        model = self.model_init(config) if parameters else self.model_init()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model_init must return a torch.nn.Module; got {type(model).__name__}")
        if self.args.gradient_checkpointing:
            checkpoint_activations(model, self.args.gradient_checkpointing_kwargs)
        return model

    def configure_optimizers(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """AdamW and its schedule, as Trainer makes them."""
        args = self.args.with_config(config)
        optimizer = torch.optim.AdamW(
            decayed(model, args.weight_decay),
            lr=args.learning_rate,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
        )
        schedule = schedule_of(args, optimizer, self._steps(config))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

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
        return loss_of(model(**inputs_of(model, batch, self.columns)))

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        """What the metric is to see: the loss, and for `compute_metrics` what was predicted."""
        inputs = inputs_of(model, batch, self.columns)
        output = model(**inputs)
        loss = (loss_of(output), rows_in(inputs))
        if self.compute_metrics is None:
            return {EVAL: loss}
        labels = labels_of(model, inputs, self.args.label_names)
        predictions = predictions_of(model, output)
        if self.preprocess is not None:
            predictions = self.preprocess(predictions, labels)
        return {EVAL: (*loss, predictions, labels)}

    def configure_metrics(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The metric of evaluations: eval_loss, and eval_<name> of what `compute_metrics` gives."""
        return {EVAL: EvalScores(self.compute_metrics)}


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters with weight decay, and those without: biases and those of norms."""
    names = set(get_parameter_names(model, [nn.LayerNorm], WITHOUT_DECAY))
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name not in names].append(parameter)
    pairs = zip(groups, (weight_decay, 0.0), strict=True)
    return [{"params": each, "weight_decay": decay} for each, decay in pairs if each]


def checkpoint_activations(model: Any, kwargs: Mapping[str, Any] | None) -> None:
    """Have the model's backward pass compute activations again, which takes less memory.

    Raises:
        TypeError: the model is none of transformers.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    if enable is None:
        raise TypeError(
            "args has gradient_checkpointing, which models of transformers can do; "
            f"got {type(model).__name__}"
        )
    model.config.use_cache = False  # does not go with it
    enable(kwargs)


def schedule_of(args: Arguments, optimizer: Any, steps: int) -> Any:
    """The learning rate's schedule over so many steps.

    Raises:
        TypeError, ValueError: it does not take what `lr_scheduler_kwargs` say.
    """
    kwargs = args.lr_scheduler_kwargs
    return get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        args.warmup(steps),
        steps,
        None if kwargs is None else dict(kwargs),
    )


LABELS = "labels"
# what a data set may call its labels
OTHER_LABELS = ("label", "label_ids")
# columns that tokenizers make, and pad
PADDED = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask", "position_ids")


class TensorColumns:
    """A data collator of transformers, which gets no columns that it cannot make tensors of.

    The Trainer leaves out all columns that the model does not take. Those that are tensors are
    left out later, by `inputs_of`.
    """

    def __init__(self, collator: Callable[[list[Any]], Any]) -> None:
        self.collator = collator
        self.__qualname__ = getattr(collator, "__qualname__", type(collator).__name__)

    def __call__(self, items: list[Any]) -> Any:
        """The batch of these items."""
        if isinstance(items[0], Mapping):
            names = [name for name in items[0] if self._usable(name, items)]
            items = [{name: item[name] for name in names} for item in items]
        return self.collator(items)

    def _usable(self, name: str, items: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the collator can make a tensor of the column."""
        if name in PADDED or "label" in name:
            return True
        return makes_tensor([item[name] for item in items])


def makes_tensor(values: Sequence[Any]) -> bool:
    """Whether the values are numbers, or lists or arrays of numbers that have equal shapes."""
    if all(is_array(each) for each in values):
        return len({np.shape(each) for each in values}) == 1
    if not all(isinstance(each, int | float | list | tuple) for each in values):
        return False
    try:
        return np.asarray(values).dtype.kind in "biuf"
    except ValueError:  # unequal shapes
        return False


def is_array(value: Any) -> bool:
    """Whether the value is an array, a tensor, or a number of NumPy's."""
    return isinstance(value, Tensor | np.ndarray | np.generic)


def collator_for(collator: Any, item: Any, unused: bool) -> Any:
    """What makes batches of items such as this one; None: torch's default collate does.

    `item`: None if it is not known yet. `unused`: columns that the model does not take are to be
    left out.
    """
    if collator is None and _wants_collator(item):
        collator = default_data_collator
    if collator is None or not unused:
        return collator
    owner = collator if hasattr(collator, "__code__") else type(collator)
    if owner.__module__.partition(".")[0] != "transformers":
        return collator
    return TensorColumns(collator)


def first_item(dataset: Any) -> Any:
    """The first item of a data set that is read by numbers; None of any other."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    return dataset[0] if len(dataset) else None


def _wants_collator(item: Any) -> bool:
    """Whether torch's default collate is not what the Trainer makes a batch of such items by."""
    if not isinstance(item, Mapping):
        return False
    plain = all(isinstance(each, int | float) or is_array(each) for each in item.values())
    return not plain


def inputs_of(model: nn.Module, batch: Any, columns: Collection[str]) -> Mapping[str, Any]:
    """The arguments of the model in a batch.

    Labels get the name that the model has for them. `columns`: those of the data set, which are
    left out if the model does not take them.

    Raises:
        TypeError: the batch is no dict.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"the collator must return a dict of the model's arguments; got {type(batch).__name__}"
        )
    arguments = arguments_of(type(model).forward)
    if not arguments or all(name in arguments for name in batch):
        return batch
    inputs = dict(batch)
    for name in OTHER_LABELS:
        if name in inputs and LABELS in arguments.difference(inputs):
            inputs[LABELS] = inputs.pop(name)
    return {
        name: value for name, value in inputs.items() if name in arguments or name not in columns
    }


@lru_cache(maxsize=16)
def arguments_of(forward: Callable[..., Any]) -> frozenset[str]:
    """The names of the arguments of a model's method; none if it takes any."""
    parameters = inspect.signature(forward).parameters
    any_name = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [name for name, each in parameters.items() if each.kind not in any_name]
    return frozenset(names[1:])


def rows_in(inputs: Mapping[str, Any]) -> int:
    """How many samples a batch has."""
    tensors = [each for each in inputs.values() if isinstance(each, Tensor)]
    return len(tensors[0])


EVAL = "eval"
Metrics = Callable[[Any], Mapping[str, float]]


class EvalScores:
    """The scores of one evaluation, over the whole validation set."""

    def __init__(self, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self.reset()

    def reset(self) -> None:
        """Begin an evaluation."""
        self._total, self._rows = 0.0, 0
        self._seen: Any = None

    def update(self, loss: Tensor, rows: int, *seen: Any) -> None:
        """Take the mean loss of so many rows; `seen`: their predictions and labels."""
        self._total += float(loss) * rows
        self._rows += rows
        if not seen:
            return
        arrays = nested_numpify(nested_detach(seen))
        if self._seen is not None:
            arrays = nested_concat(self._seen, arrays)
        self._seen = arrays

    def compute(self) -> dict[str, float]:
        """The scores, by name without the prefix."""
        scores = {"loss": self._total / self._rows}
        if self._metrics is not None:
            values = self._metrics(EvalPrediction(*self._seen))
            scores |= {name.removeprefix(f"{EVAL}_"): value for name, value in values.items()}
        return scores


def loss_of(output: Any) -> Tensor:
    """The loss in a model's output.

    Raises:
        ValueError: it has none.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else None
    if loss is None:
        raise ValueError("the model's output must have a loss: the collator's batch needs labels")
    return loss  # type: ignore[no-any-return]


def predictions_of(model: nn.Module, output: Mapping[str, Any]) -> Any:
    """All outputs but the loss: one, or a tuple of them."""
    config = getattr(model, "config", None)
    ignored = getattr(config, "keys_to_ignore_at_inference", None) or ["past_key_values"]
    outputs = [value for name, value in output.items() if name not in ("loss", *ignored)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def labels_of(model: nn.Module, inputs: Mapping[str, Any], names: list[str] | None) -> Any:
    """The labels among the model's inputs: one, or a tuple of them.

    `names`: of the labels; None: those that models of this class have.
    """
    label_names = names or find_labels(type(model))
    labels = [inputs[name] for name in label_names if name in inputs]
    return labels[0] if len(labels) == 1 else tuple(labels)
