"""A recipe's methods as a lane calls them, and the state that steps hand from batch to batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.data import columns as cols
from shoal.train.data.collate import batch_to_device
from shoal.train.data.columns import Lot
from shoal.train.data.data import Data
from shoal.train.recipe.guard import guarded
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.shard import SHARD_ON_ONE_SLOT, ShardRecipe, is_scored

STATE = "state"  # the argument of a step that gets the state, and returns it
RULE = (
    "a step that names an argument `state` must return two things: what a step returns otherwise, "
    "and the state for the next batch"
)


class Carried:
    """The state of one trial in one pass: None at its start, and at a smaller last batch."""

    def __init__(self) -> None:
        self.state: Any = None
        self._rows = 0  # of the batch before

    def restart(self) -> None:
        """Begin a pass."""
        self.state = None
        self._rows = 0

    def saved(self, export: Callable[[Any], Any]) -> dict[str, Any]:
        """What a checkpoint within a pass must hold, as arrays. Nothing between passes."""
        if self.state is None:
            return {}
        return {"carried": export(self.state)}

    def load(
        self, saved: Mapping[str, Any], tensors: Callable[[Any], Any], device: torch.device
    ) -> None:
        """Go on with the state of a checkpoint, on the device."""
        self.restart()
        self.state = batch_to_device(tensors(saved.get("carried")), device)

    def step(self, step: Callable[[Any], Any], batch: Any) -> Any:
        """What the step returns without the state, which is kept for the next batch.

        Raises:
            TypeError: it does not return two things.
        """
        rows = _rows(batch)
        if self.state is not None and self._rows not in (0, rows):
            self.state = None
        outcome = step(self.state)
        if not isinstance(outcome, tuple) or len(outcome) != 2:
            raise TypeError(f"{RULE}; got {type(outcome).__name__}")
        values, state = outcome
        self.state = detached(state)
        self._rows = rows
        return values


def _rows(batch: Any) -> int:
    """Samples in the batch."""
    if isinstance(batch, Lot | tuple | dict):
        return cols.rows(batch)
    return 0


def detached(state: Any) -> Any:
    """The state without the graph that it was computed by."""
    if isinstance(state, Tensor):
        return state.detach()
    if isinstance(state, Mapping):
        return {name: detached(value) for name, value in state.items()}
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*map(detached, state))
    if isinstance(state, tuple | list):
        return type(state)(map(detached, state))
    return state


OPTIONAL = ("config", "epoch", "step", STATE)  # arguments that a step gets if it names them
# the argument by which `validation_epoch` gets the model, and the usual name of the other one
MODEL = "model"
OUTPUTS = "outputs"
# the argument of a training step that steps its optimizers by itself
OPTIMIZERS = "optimizers"
ONE_SLOT = (
    "training_step takes `optimizers` and steps them itself, so that Shoal cannot sum gradients "
    "over several slots: such a trial has one slot: give widths=(1, 1), or leave them out"
)

STATE_ON_ONE_SLOT = (
    "training_step takes `state`, which belongs to whole batches, so that such a trial has one "
    "slot: give widths=(1, 1), or leave them out"
)


class Progress(NamedTuple):
    """How far a trial is: whole epochs, and steps of its optimizers.

    `steps`: None for a trial that an earlier Shoal began, which did not count them.
    """

    epochs: int
    steps: int | None


def on_batches(step: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: the step gets the batch that `collate` makes of a lot; it must not change it."""

    @wraps(step)
    def step_on_batch(self: Any, model: nn.Module, batch: Any, *more: Any) -> Any:
        if type(batch) is not Lot:
            return step(self, model, batch, *more)
        outcome = step(self, model, batch.batch(), *more)
        batch.check()
        return outcome

    return step_on_batch


class TrialHooks:
    """The recipe's methods for one trial.

    Steps that name an argument `config` get the trial's configuration. Steps that name `epoch` get
    how many whole epochs the trial has trained so far, those that name `step` how many steps its
    optimizers have taken. Steps that name `state` get what they returned with the batch before.
    `steps_itself`: the training step names `optimizers`, and steps them by itself.
    """

    def __init__(self, recipe: Recipe, config: Mapping[str, Any]) -> None:
        self._recipe = recipe
        self._config = config
        self._training_names = _optional_names(recipe.training_step)
        self._validation_names = _optional_names(recipe.validation_step)
        self._epoch_names = _optional_names(recipe.validation_epoch)
        # whether `validation_epoch` names the model, and by which name it takes the outputs
        of_epoch = inspect.signature(recipe.validation_epoch).parameters
        self.epoch_gets_model = MODEL in of_epoch
        self._outputs_name = next((name for name in of_epoch if name != MODEL), OUTPUTS)
        self.steps_itself = steps_itself(recipe)
        # whether other epochs may give other scores
        self.scores_by_epoch = not {"epoch", "step"}.isdisjoint(
            (*self._validation_names, *self._epoch_names)
        )
        # whether the whole validation set's outputs are asked for
        self.gathers = overrides(recipe, "validation_epoch")
        self._metrics: Mapping[str, Any] | None = None
        # what training steps and validation steps hand from batch to batch
        self.carried = Carried()
        self.scored = Carried()

    @property
    def per_trial(self) -> bool:
        """Whether a step gets what may differ between trials, beside its model and batch."""
        return bool(self._training_names or self._validation_names)

    def configure_model(self) -> nn.Module:
        """A new model."""
        with guarded("configure_model"):
            return self._recipe.configure_model(self._config)

    def configure_optimizers(self, model: nn.Module) -> Any:
        """The model's optimizers, alone or with their schedulers."""
        with guarded("configure_optimizers"):
            return self._recipe.configure_optimizers(model, self._config)

    @on_batches
    def training_step(self, model: nn.Module, batch: Any, progress: Progress) -> Any:
        """The loss on a batch, or the loss and other values by name."""
        with guarded("training_step"):
            if not self._training_names:
                return self._recipe.training_step(model, batch)
            arguments = self._arguments(self._training_names, progress)
            step = partial(self._recipe.training_step, model, batch, **arguments)
            return self._stepped(step, self._training_names, self.carried, batch)

    @on_batches
    def own_step(
        self, model: nn.Module, batch: Any, progress: Progress, optimizers: Sequence[Optimizer]
    ) -> Any:
        """Let the training step step the optimizers; returns the values to note."""
        with guarded("training_step"):
            arguments = self._arguments(self._training_names, progress)
            arguments[OPTIMIZERS] = optimizers
            step = partial(self._recipe.training_step, model, batch, **arguments)
            return self._stepped(step, self._training_names, self.carried, batch)

    @on_batches
    def validation_step(self, model: nn.Module, batch: Any, progress: Progress) -> Any:
        """The values of each sample of a batch, by name."""
        with guarded("validation_step"):
            if not self._validation_names:
                return self._recipe.validation_step(model, batch)
            arguments = self._arguments(self._validation_names, progress)
            step = partial(self._recipe.validation_step, model, batch, **arguments)
            return self._stepped(step, self._validation_names, self.scored, batch)

    def _stepped(self, step: Any, names: tuple[str, ...], carried: Carried, batch: Any) -> Any:
        """What the step returns, to which the state is handed if it names one."""
        if STATE not in names:
            return step()
        return carried.step(lambda state: step(state=state), batch)

    def validation_epoch(
        self, model: nn.Module, outputs: dict[str, Tensor], progress: Progress
    ) -> Any:
        """The scores of the whole validation set's outputs."""
        with guarded("validation_epoch"), torch.no_grad():
            arguments = self._arguments(self._epoch_names, progress)
            if not self.epoch_gets_model:
                return self._recipe.validation_epoch(outputs, **arguments)
            arguments |= {MODEL: model, self._outputs_name: outputs}
            validation_epoch: Any = self._recipe.validation_epoch
            return validation_epoch(**arguments)

    def metrics(self, device: torch.device) -> Mapping[str, Any]:
        """The trial's metric objects, which are made at the first call, on that device."""
        if self._metrics is None:
            with guarded("configure_metrics"):
                metrics = dict(self._recipe.configure_metrics(self._config))
            for metric in metrics.values():
                if hasattr(metric, "to"):
                    metric.to(device)
            self._metrics = metrics
        return self._metrics

    def _arguments(self, names: tuple[str, ...], progress: Progress) -> dict[str, Any]:
        """The optional arguments of these names."""
        if "step" in names and progress.steps is None:
            raise ValueError(
                "a step takes `step`, and this trial began with an earlier Shoal, which did not "
                "count steps: train it anew, in another study"
            )
        values = {"config": self._config, "epoch": progress.epochs, "step": progress.steps}
        return {name: values[name] for name in names if name in values}


def _optional_names(step: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the optional arguments the step names."""
    parameters = inspect.signature(step).parameters
    return tuple(name for name in OPTIONAL if name in parameters)


def steps_itself(recipe: Recipe) -> bool:
    """Whether the recipe's training step steps the optimizers, so that Shoal does not."""
    return OPTIMIZERS in inspect.signature(recipe.training_step).parameters


def why_one_slot(recipe: Recipe) -> str | None:
    """Why the recipe's trials cannot have several slots; None if they can."""
    if isinstance(recipe, ShardRecipe):
        return SHARD_ON_ONE_SLOT
    if steps_itself(recipe):
        return ONE_SLOT
    if carries_state(recipe):
        return STATE_ON_ONE_SLOT
    return None


def carries_state(recipe: Recipe) -> bool:
    """Whether the recipe's steps hand a state from batch to batch."""
    steps = (recipe.training_step, recipe.validation_step)
    return any(STATE in inspect.signature(step).parameters for step in steps)


def scores_whole(recipe: Recipe) -> bool:
    """Whether scores need the whole validation set at once."""
    names = ("validation_epoch", "configure_metrics")
    return any(overrides(recipe, name) for name in names)


def validates(recipe: Recipe, data: Data) -> bool:
    """Whether trials can be scored on validation data."""
    return bool(data.validation) and is_scored(recipe)
