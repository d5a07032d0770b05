"""LightningModules as recipes: the user's code as it is, without a Trainer."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, Literal
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer

from shoal.core.install import install
from shoal.train.adapt import module_steps
from shoal.train.adapt.lightning_classes import (
    PACKAGES,
    is_data_module_class,
    is_module,
    is_module_class,
    overrides,
)
from shoal.train.adapt.lightning_data import GivenData, Terms, as_data
from shoal.train.adapt.module_attributes import (
    KeptAttributes,
    leave_out_of_graph,
    metrics_in_training,
)
from shoal.train.adapt.module_code import assigns, functions_of, names_in_steps, names_of
from shoal.train.adapt.module_log import ValidationLog
from shoal.train.adapt.module_optimizers import recipe_form, scheduler_of
from shoal.train.adapt.module_seat import (
    ModuleSeat,
    SchedulerConfig,
    attach_seat,
    clip,
    detached,
    own_class,
    seat_of,
)
from shoal.train.adapt.module_steps import check_hooks, unfusable
from shoal.train.data.data import Data
from shoal.train.lane.model_changes import copied, differing, warn_of_undone
from shoal.train.recipe.adapter import Adapted, TrialProgress, set_attributes
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import adopt
from shoal.train.recipe.settings import Settings


def lightning(
    module: Any,
    *,
    datamodule: Any = None,
    train: Any = None,
    valid: Any = None,
    validation: float | None = None,
    shards: int | None = None,
    samples: int | None = None,
    max_epochs: int | None = None,
    automatic_optimization: bool | None = None,
    gradient_clip_algorithm: Literal["norm", "value"] = "norm",
    **attributes: Any,
) -> LightningRecipe:
    """A recipe of a LightningModule, whose code stays as it is.

    Args:
        module: the class, which is built for each trial with those keys of the configuration that
            its __init__ takes; or a function that gets the configuration and returns a module.
        datamodule: a LightningDataModule, its class, or a function that returns one.
        train: instead, a DataLoader, a Dataset, or a function that returns one. None, as
            `datamodule`: the module's own train_dataloader is called.
        valid: the same to validate on. None: the module's own val_dataloader is called.
        validation: the fraction of the training data to validate on, where there is no other
            validation data.
        shards: how many, as for `Data.dataset`.
        samples: of an endless IterableDataset, how many are read.
        max_epochs: epochs, as in the Trainer; `self.trainer.max_epochs` and
            `estimated_stepping_batches` tell it. No trial of a module that asks for these trains
            longer. None: the study's.
        automatic_optimization: as the module has it, where its class does not show that.
        gradient_clip_algorithm: "norm" or "value": what `gradient_clip_val` limits.
        **attributes: those of a `Recipe`, by name: batch_size, accumulate_grad_batches,
            gradient_clip_val, precision, search_space, metric, mode, and so on.

    Raises:
        TypeError: the module is none, or an attribute is unknown.
        ValueError: an attribute is out of range, or the class has a hook that Shoal cannot call.
    """
    check_module(module)
    recipe_class = LightningRecipe
    if automatic_optimization is None and isinstance(module, type):
        automatic_optimization = not assigns(module, "automatic_optimization")
    if automatic_optimization is False:
        recipe_class = ManualLightningRecipe
    recipe = recipe_class(module, GivenData(train, valid, datamodule, shards, validation, samples))
    recipe.terms.max_epochs = max_epochs
    if max_epochs is not None:
        attributes["max_epochs"] = max_epochs
    if gradient_clip_algorithm not in ("norm", "value"):
        raise ValueError(
            f'gradient_clip_algorithm must be "norm" or "value"; got {gradient_clip_algorithm!r}'
        )
    if gradient_clip_algorithm == "value":
        recipe.clip_by_value = attributes.pop("gradient_clip_val", None)
    set_attributes(recipe, attributes)
    return recipe


def check_module(module: Any) -> None:
    """Raise TypeError unless this is a LightningModule class, or a function that may make one."""
    if is_module(module):
        raise TypeError(
            f"give the class {type(module).__name__}, or a function config -> module: each trial "
            "builds a module of its own; got a module"
        )
    if is_data_module_class(module):
        raise TypeError(
            f"{module.__name__} is a LightningDataModule: give it as datamodule=, and a "
            "LightningModule first"
        )
    if isinstance(module, type) and not is_module_class(module):
        hint = ""
        if not any(find_spec(package.partition(".")[0]) for package in PACKAGES):
            hint = f": Lightning is not installed; {install('lightning')}"
        raise TypeError(f"{module.__name__} is no LightningModule class{hint}")
    if not callable(module):
        raise TypeError(
            "shoal.lightning takes a LightningModule class, or a function config -> module; got "
            f"{type(module).__name__}"
        )
    if is_module_class(module):
        check_hooks(module)


# what a module may ask its trainer that depends on the number of epochs
OF_EPOCHS = {"max_epochs", "estimated_stepping_batches"}
ModuleMaker = Callable[[Mapping[str, Any]], nn.Module]
OWN_KEYS = {field.name for field in fields(Settings)} - {"data_key"} | {"seed"}


class LightningRecipe(Adapted):
    """Trains a LightningModule; made by `shoal.lightning`."""

    # what `lane.optimization` advises, in Lightning's words
    OWN_STEPS = "set self.automatic_optimization = False in __init__"

    def __init__(self, module: type | ModuleMaker, given: GivenData) -> None:
        self.module = module
        self.clip_by_value: float | None = None
        self.terms = Terms(given, module)

    def data(self) -> Data:
        """The data of the given loaders, or of the data module's or module's own."""
        given = self.terms.given
        sources = given.sources(self.module)
        data = as_data(sources, given.shards, given.fraction, given.samples)
        adopt(self, data)
        self.terms.drop_last = self.drop_last
        self.terms.learn(sources, tuple(data.sizes.values()))
        return data

    # -- how long trials train ---------------------------------------------------------------------

    def for_study(self) -> LightningRecipe:
        """The same recipe, whose number of epochs is one study's."""
        recipe = copy(self)
        recipe.terms = copy(self.terms)
        return recipe

    def plan(self, epochs: int | None, asked: bool = False) -> None:
        """Set what `self.trainer.max_epochs` is, where the recipe was given none."""
        self.terms.planned = epochs
        self.terms.asked = asked

    def planned(self) -> int | None:
        """`self.trainer.max_epochs`; None if the module neither asked for it nor has code to."""
        if self.terms.asked:
            return self.terms.epochs
        if isinstance(self.module, type):
            for _, function in functions_of(self.module):
                names = names_of(function.__code__)
                if "trainer" in names and names & OF_EPOCHS:
                    return self.terms.epochs
        return None

    # -- the user's code ---------------------------------------------------------------------------

    def brought(self) -> tuple[Any, ...]:
        """The user's classes and functions."""
        return (self.module, *self.terms.given.brought())

    def named(self) -> Any:
        """The module's class, or the function that makes it."""
        return self.module

    def trained(self, model: nn.Module) -> nn.Module:
        """The module without what Shoal added to it."""
        return detached(model)

    def renew(self, kind: Any) -> None:
        """Train this class from now on: its file has changed."""
        self.module = kind
        self.terms.module = kind

    def check_config(self, config: Mapping[str, Any]) -> None:
        """Raise ValueError if the module's class does not take a key."""
        if not isinstance(self.module, type):
            return
        check_hooks(self.module)
        names, takes_any = parameters_of(self.module)
        unknown = set(config) - names - OWN_KEYS - set(self.data_keys)
        if unknown and not takes_any:
            raise ValueError(
                f"the search space has {', '.join(sorted(unknown))}, which "
                f"{self.module.__name__}.__init__ does not take; it takes "
                f"{', '.join(sorted(names)) or 'nothing'}"
            )

    # -- the module --------------------------------------------------------------------------------

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        """The user's module, which asks Shoal instead of a Trainer."""
        module = self._built(config)
        check_hooks(type(module))
        self._check_optimization(module)
        self._check_clipping(type(module), config)
        size = config.get("batch_size", self.batch_size)
        accumulate = config.get("accumulate_grad_batches", self.accumulate_grad_batches)
        seat = ModuleSeat(module, self.terms, size, int(accumulate))
        attach_seat(module, seat)
        module_steps.call(module, "setup", "fit")
        module_steps.call(module, "configure_model")
        names = names_in_steps(own_class(module), training=True)
        leave_out_of_graph(module, names)
        model: nn.Module = module
        return model

    def _built(self, config: Mapping[str, Any]) -> Any:
        """A new module of this configuration.

        Raises:
            TypeError: the user's function returns something else.
        """
        if isinstance(self.module, type):
            return self.module(**arguments_for(self.module, config))
        module = self.module(config)
        if not is_module(module):
            raise TypeError(
                "the function given to shoal.lightning must return a LightningModule; "
                f"got {type(module).__name__}"
            )
        return module

    def _check_optimization(self, module: Any) -> None:
        """Raise ValueError if the module steps in another way than this recipe thinks."""
        if not module.automatic_optimization:
            raise ValueError(
                f"{type(module).__name__} has automatic_optimization = False, which its class "
                "does not show: give shoal.lightning(…, automatic_optimization=False)"
            )

    def _check_clipping(self, kind: type, config: Mapping[str, Any]) -> None:
        """Raise ValueError if both the module and the recipe clip gradients."""
        limit = config.get("gradient_clip_val", self.gradient_clip_val)
        if limit is None:
            limit = self.clip_by_value
        if limit is not None and overrides(kind, "configure_gradient_clipping"):
            raise ValueError(
                f"{kind.__name__}.configure_gradient_clipping clips gradients itself, and "
                f"gradient_clip_val={limit} is given: leave that out, and give the number to "
                "self.clip_gradients in the hook"
            )

    def attributes_instead(
        self, model: Any, names: Sequence[str], unread: Sequence[str]
    ) -> list[str]:
        """The names that the class's __init__ takes and never reads, or the function leaves alone.

        Only where the module has an attribute of that name, and its code reads it.
        """
        if isinstance(self.module, type):
            ignored = [name for name in names if is_ignored(self.module, name)]
        else:
            ignored = list(unread)
        if model is None:
            return []
        codes = [function.__code__ for _, function in functions_of(own_class(model))]
        read = set().union(*map(names_of, codes))
        return [name for name in ignored if name in read and hasattr(model, name)]

    def obstacle(self, model: nn.Module) -> str | None:
        """Why the module's code cannot run for several models at once."""
        if self.clip_by_value is not None:
            return "gradients are clipped by value"
        kind = own_class(model)
        used = metrics_in_training(model, names_in_steps(kind, training=True))
        if used:
            return f"training updates self.{used[0]}, a metric of one model"
        return unfusable(kind)

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        """The module's optimizers and schedulers."""
        seat = seat_of(model)
        configured = model.configure_optimizers()
        optimizers, forms = recipe_form(configured, seat.steps_itself, seat.counts)
        seat.optimizers = optimizers
        schedulers = [scheduler_of(form) for form in forms if form is not None]
        seat.scheduler_configs = [SchedulerConfig(each) for each in schedulers]
        pairs = [
            optimizer if form is None else {"optimizer": optimizer, "lr_scheduler": form}
            for optimizer, form in zip(optimizers, forms, strict=True)
        ]
        return pairs[0] if len(pairs) == 1 else pairs

    def training_step(self, model: Any, batch: Any) -> dict[str, Any]:
        """The module's loss, and what it logs."""

        def before_backward(outcome: Any) -> None:
            module_steps.call_before_backward(model, module_steps.loss_of(outcome))

        outcome, values = module_steps.train(model, batch, self.terms, before_backward)
        return {**values, "loss": module_steps.loss_of(outcome)}

    def validation_step(self, model: Any, batch: Any) -> dict[str, Any]:
        """The means that the module logs; other values are collected until the end."""
        return module_steps.validate(model, batch, self.terms)

    # -- what the lane tells -----------------------------------------------------------------------

    def attach(self, model: Any, progress: TrialProgress) -> None:
        """Call the hooks at the start; what they leave on the module is its beginning."""
        seat = seat_of(model)
        seat.lane_progress = progress
        module_steps.call(model, "on_fit_start")
        module_steps.call(model, "on_train_start")
        seat.initial_attributes = KeptAttributes(model)

    def begin_pass(self, model: Any) -> None:
        """Call `on_train_epoch_start` if an epoch begins with the pass."""
        seat = seat_of(model)
        seat.after_batch = False
        if seat.progress.batches == 0:
            module_steps.call(model, "on_train_epoch_start")

    def after_backward(self, model: Any) -> None:
        """Call `on_after_backward`."""
        module_steps.call(model, "on_after_backward")

    def before_step(self, model: Any, optimizer: Optimizer) -> None:
        """Call the hooks before a step, and clip in the module's way."""
        seat_of(model).after_batch = True  # the batch is counted
        module_steps.call(model, "on_before_optimizer_step", optimizer)
        module_steps.call(model, "configure_gradient_clipping", optimizer, None, None)
        clip(optimizer, self.clip_by_value, "value")

    def after_batch(self, model: Any) -> None:
        """Call `on_train_batch_end`."""
        seat = seat_of(model)
        seat.after_batch = True
        # the step of a group that the epoch's end cuts short comes before the hook
        if seat.last and not seat.awaits_step:
            module_steps.end_batch(model)

    def begin_validation(self, model: Any) -> None:
        """Call the hooks at the start, and keep what validation must not change."""
        seat = seat_of(model)
        seat.changed_attributes = copied(seat.initial_attributes.changed(model))
        seat.validation_batches = 0
        seat.validation_log = ValidationLog()
        seat.after_batch = seat.is_validating = True
        with torch.no_grad():
            module_steps.call(model, "on_validation_start")
            module_steps.call(model, "on_validation_epoch_start")

    def end_validation(self, model: Any) -> Mapping[str, float]:
        """The scores that were collected."""
        module_steps.call(model, "on_validation_epoch_end")
        module_steps.call(model, "on_validation_end")
        log = seat_of(model).validation_log
        return {} if log is None else log.results()

    def leave_validation(self, model: Any) -> None:
        """Undo what validation did to the module's attributes; a warning names them, once."""
        seat = seat_of(model)
        seat.validation_log = None
        seat.is_validating = False
        before = seat.changed_attributes["attributes"]
        after = seat.initial_attributes.changed(model)["attributes"]
        names = [f"self.{name}" for name in differing(before, after)]
        warn_of_undone(own_class(model), names)
        seat.initial_attributes.restore(model, seat.changed_attributes)

    def end_epoch(self, model: Any) -> Mapping[str, float]:
        """Call `on_train_epoch_end`; returns what it logs, and the metrics of the epoch's steps."""
        seat = seat_of(model)
        with seat.at_epoch_end() as log:
            module_steps.call(model, "on_train_epoch_end")
            log.add_of_steps(seat.step_metrics)
            return log.results()

    def state(self, model: Any) -> Any:
        """The module's attributes that changed, its metrics, and the steps it took by itself."""
        seat = seat_of(model)
        return {**seat.initial_attributes.changed(model), "steps": seat.own_steps}

    def load(self, model: Any, state: Any) -> None:
        """Restore what `state` gave."""
        seat = seat_of(model)
        seat.own_steps = state["steps"]
        seat.initial_attributes.restore(model, state)


def parameters_of(kind: type) -> tuple[set[str], bool]:
    """The names of what the class's __init__ takes, and whether it takes any other name."""
    parameters = list(inspect.signature(kind).parameters.values())
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = {
        each.name
        for each in parameters
        if each.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    }
    return names, takes_any


def is_ignored(kind: type, name: str) -> bool:
    """Whether the class's __init__ takes this argument, by name, and its code never reads it."""
    constructor: Any = inspect.getattr_static(kind, "__init__", None)
    code = getattr(constructor, "__code__", None)
    if code is None:
        return False
    if name not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return False
    if set(code.co_names) & {"save_hyperparameters", "locals", "vars"}:
        return False
    inner = any(isinstance(each, CodeType) for each in code.co_consts)
    if inner and name in code.co_cellvars:
        return False
    return not any(
        each.argval == name or (isinstance(each.argval, tuple) and name in each.argval)
        for each in dis.get_instructions(code)
        if each.opname.startswith("LOAD_") and "CONST" not in each.opname
    )


def _is_needed(parameter: inspect.Parameter) -> bool:
    """Whether the argument must be given."""
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return False
    return parameter.default is inspect.Parameter.empty


def arguments_for(kind: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the configuration that the class's __init__ takes.

    Raises:
        KeyError: it needs one that the configuration lacks.
    """
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            rest = set(config) - OWN_KEYS - set(arguments)
            arguments |= {key: config[key] for key in rest}
        elif name in config or _is_needed(parameter):
            arguments[name] = config[name]
    return arguments


class ManualLightningRecipe(LightningRecipe):
    """Trains a LightningModule with automatic_optimization = False."""

    def training_step(  # type: ignore[override]
        self, model: Any, batch: Any, optimizers: Any
    ) -> dict[str, Any]:
        """Let the module step its optimizers; returns what it logs, and its loss."""
        outcome, values = module_steps.train(model, batch, self.terms, _nothing)
        if outcome is not None:
            values["loss"] = module_steps.loss_of(outcome).detach()
        return values

    def configure_optimizers(self, model: Any, config: Mapping[str, Any]) -> Any:
        """The module's optimizers, whose steps are counted."""
        configured = super().configure_optimizers(model, config)
        for optimizer in seat_of(model).optimizers:
            optimizer.register_step_pre_hook(_before_own_step(ref(model)))
            optimizer.register_step_post_hook(seat_of(model).count_step)
        return configured

    def _check_optimization(self, module: Any) -> None:
        if module.automatic_optimization:
            raise ValueError(
                f"{type(module).__name__} has automatic_optimization = True, and was to step by "
                "itself: leave out automatic_optimization=False"
            )

    def obstacle(self, model: nn.Module) -> str | None:
        """Why the module cannot be fused: its steps are its own."""
        return "the module steps its optimizers by itself"


def _before_own_step(model: ref[Any]) -> Callable[..., None]:
    """What an optimizer that the module steps calls before a step."""

    def before_step(optimizer: Optimizer, *_: Any) -> None:
        module = model()
        if module is not None:
            module_steps.call(module, "on_before_optimizer_step", optimizer)

    return before_step


def _nothing(_: Any) -> None:
    """Do nothing: the module calls manual_backward by itself."""


def recipe_in(module: ModuleType, name: str | None) -> Recipe | None:
    """The recipe of that name in the file; without a name, the only one.

    A LightningModule is trained on the data of the only LightningDataModule beside it, if there is
    one. Returns None if the name, or the file, is about a Recipe class.

    Raises:
        ValueError: it is not clear which LightningModule or data module is meant.
    """
    if name is not None:
        return _recipe_of(getattr(module, name, None), module)
    if _classes_in(module, lambda value: isinstance(value, type) and issubclass(value, Recipe)):
        return None
    recipes = [value for value in vars(module).values() if isinstance(value, Recipe)]
    modules = _classes_in(module, is_module_class)
    candidates = recipes or list(modules.values())
    if not candidates:
        return None
    if len(candidates) > 1:
        listed = ", ".join(modules) if not recipes else f"{len(recipes)} recipes"
        raise ValueError(f"{module.__file__} has {listed}: say which one with FILE.py:NAME")
    return _recipe_of(candidates[0], module)


def _recipe_of(value: Any, module: ModuleType) -> Recipe | None:
    """The recipe that the value is, or that its class makes; None: it is about neither."""
    if isinstance(value, Recipe):
        return value
    if not is_module_class(value):
        return None
    data_modules = _classes_in(module, is_data_module_class)
    if len(data_modules) > 1:
        raise ValueError(
            f"{module.__file__} has the data modules {', '.join(data_modules)}: name a recipe "
            "instead, recipe = shoal.lightning(Module, datamodule=…), with FILE.py:recipe"
        )
    return lightning(value, datamodule=next(iter(data_modules.values()), None))


def _classes_in(module: ModuleType, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The classes of that kind that the file itself defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if wanted(value) and value.__module__ == module.__name__
    }
