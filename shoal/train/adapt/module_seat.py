"""What a LightningModule asks in place of a Trainer, and what it logs: its seat in Shoal."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from shoal.core.errors import warn
from shoal.train.adapt.lightning_classes import is_module
from shoal.train.adapt.lightning_data import Terms
from shoal.train.adapt.module_code import names_in_steps
from shoal.train.adapt.module_log import Means, StepLog, ValidationLog, items_of, reduction
from shoal.train.recipe.adapter import NotOfferedError, TrialProgress

# what modules set on their trainer, and what to do instead
ASSIGNED = {"should_stop": 'stop trials by a searcher, as "patience(epochs=3)"'}


class TrainerStandIn:
    """Answers what a module may ask of its trainer.

    Raises:
        NotOfferedError: it is asked for something that it does not have, or something is assigned.
    """

    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = num_devices = num_nodes = 1
    sanity_checking = testing = predicting = False
    fast_dev_run = barebones = should_stop = False
    logger = progress_bar_callback = checkpoint_callback = None

    def __init__(self, seat: Any) -> None:
        # past __setattr__, which refuses assignments
        vars(self).update(_seat=seat, loggers=[], callbacks=[])

    def __setattr__(self, name: str, value: Any) -> None:
        remedy = ASSIGNED.get(name, "leave the assignment out")
        raise NotOfferedError(
            f"self.trainer.{name} = {value!r:.40}: a LightningModule in Shoal has no Trainer that "
            f"would follow it; {remedy}"
        )

    def __getattr__(self, name: str) -> Any:
        known = [each for each in dir(type(self)) if not each.startswith("_")]
        raise NotOfferedError(
            f"self.trainer.{name}: a LightningModule in Shoal has no Trainer, and what stands in "
            f"for it offers {', '.join(known)}"
        )

    @property
    def current_epoch(self) -> int:
        """The epoch at hand, from 0; in validation and at its end, the one that was trained."""
        return int(self._seat.epoch)

    @property
    def global_step(self) -> int:
        """Optimizer steps taken so far."""
        return int(self._seat.steps)

    @property
    def max_epochs(self) -> int:
        """Epochs that a trial is trained for.

        Raises:
            ValueError: nobody said how many.
        """
        return int(self._seat.terms.max_epochs_or_error())

    @property
    def num_training_batches(self) -> int:
        """Batches in an epoch."""
        return int(self._seat.terms.batches_an_epoch(self._seat.batch_size))

    @property
    def estimated_stepping_batches(self) -> int:
        """Optimizer steps in all epochs."""
        seat = self._seat
        steps = seat.terms.steps_an_epoch(seat.batch_size, seat.accumulate)
        return self.max_epochs * int(steps)

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches to an optimizer step."""
        return int(self._seat.accumulate)

    @property
    def training(self) -> bool:
        """Whether a training step runs."""
        return not self.validating

    @property
    def validating(self) -> bool:
        """Whether the model is validated."""
        return bool(self._seat.is_validating)

    @property
    def is_last_batch(self) -> bool:
        """Whether the epoch ends with this batch."""
        return bool(self._seat.is_last_batch)

    @property
    def optimizers(self) -> list[Optimizer]:
        """The module's optimizers."""
        return list(self._seat.optimizers)

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The module's schedulers, each as `config.scheduler`."""
        return list(self._seat.scheduler_configs)

    @property
    def datamodule(self) -> Any:
        """The LightningDataModule; None if there is none."""
        return self._seat.terms.data_module


@dataclass(frozen=True)
class NotBegun:
    """The progress of a trial that no lane has yet."""

    epochs: int = 0
    steps: int = 0
    batches: int = 0
    newest_epoch: int = 0
    group: int = 0


@dataclass(frozen=True)
class SchedulerConfig:
    """A scheduler, as `trainer.lr_scheduler_configs` has it."""

    scheduler: Any


def _refuse(*_: Any) -> Any:
    raise RuntimeError("the step reads batch_idx, which differs between fused trials")


class Unknown:
    """Stands for a number that a step gets, and may not read."""

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __int__ = __float__ = __index__ = __hash__ = __str__ = __repr__ = _refuse
    __neg__ = __format__ = _refuse


class ModuleSeat:
    """A trial's module in Shoal: what it asks, and what it logs."""

    def __init__(self, module: nn.Module, terms: Terms, batch_size: int, accumulate: int) -> None:
        self.terms = terms
        self.batch_size = batch_size
        self.accumulate = accumulate
        self.trainer = TrainerStandIn(self)
        # whether the newest batch was trained on, and the next has not begun: until then Lightning
        # counts the epoch of that batch
        self.after_batch = False
        # whether a step runs for several models at once
        self.together = False
        self.lane_progress: TrialProgress = NotBegun()
        self.optimizers: list[Optimizer] = []
        self.scheduler_configs: list[SchedulerConfig] = []
        # steps that the module took by itself
        self.own_steps = 0
        self.steps_itself = not module.automatic_optimization
        # the attributes as they were when a lane took the module
        self.initial_attributes: Any = None
        # what of them had changed when the validation began
        self.changed_attributes: dict[str, Any] = {}
        # outcome, batch and number of the newest training step
        self.last: tuple[Any, ...] = ()
        # within a training step, within a validation, at an epoch's end; else None
        self.step_log: StepLog | None = None
        self.validation_log: ValidationLog | None = None
        self.validation_batches = 0
        self.is_validating = False
        # metrics that the epoch's training steps logged: see `StepLog.metrics`
        self.step_metrics: dict[str, tuple[Any, bool]] = {}
        # the values that a validation step is to return, and the samples of its batch
        self._step_values: Means | None = None
        self._samples = 0

    @property
    def progress(self) -> TrialProgress:
        """How far the trial is.

        Raises:
            RuntimeError: a step runs for several models at once.
        """
        if self.together:
            raise RuntimeError(
                "the step asks how far the trial is, which differs between fused trials"
            )
        return self.lane_progress

    @property
    def steps(self) -> int:
        """Optimizer steps taken so far."""
        return self.own_steps if self.steps_itself else self.progress.steps

    @property
    def epoch(self) -> int:
        """The epoch at hand, from 0; after its last batch up to the start of the next one, too."""
        if self.after_batch:
            return self.progress.newest_epoch
        return self.progress.epochs

    @property
    def is_last_batch(self) -> bool:
        """Whether the epoch ends with the batch at hand; within an epoch's end: it does."""
        batches = self.progress.batches
        if self.after_batch:
            return batches == 0 or batches >= self.trainer.num_training_batches
        return batches + 1 >= self.trainer.num_training_batches

    @property
    def awaits_step(self) -> bool:
        """Whether the epoch's end cuts a group of batches short, whose step is yet to come."""
        return self.progress.group > 0 and self.is_last_batch

    @property
    def counts(self) -> dict[str, Callable[[], int]]:
        """What gives the batches of the epoch so far ("step"), and the epochs ("epoch")."""
        return {
            "step": lambda: self.lane_progress.batches,
            "epoch": lambda: self.lane_progress.epochs,
        }

    def count_step(self, *_: Any) -> None:
        """Count a step that the module made by itself."""
        self.own_steps += 1

    # -- logging -----------------------------------------------------------------------------------

    def log(
        self, name: str, value: Any, *, reduce_fx: Any, batch_size: int | None, on_epoch: Any
    ) -> None:
        """Keep what the module logs, wherever it does."""
        how = reduction(name, reduce_fx)
        if self.step_log is not None:
            self.step_log.add(name, value, how, batch_size, on_epoch is True)
        elif self._step_values is not None:
            if on_epoch is not False:
                self._log_in_validation(name, value, how, batch_size)
        elif self.validation_log is not None:
            self.validation_log.add(name, value, 1.0, how)
        elif name not in _unkept:
            _unkept.add(name)
            warn(
                f"self.log({name!r}, …) is not kept: Shoal keeps what training_step, "
                "on_train_batch_start, on_before_backward, validation and on_train_epoch_end log"
            )

    def _log_in_validation(self, name: str, value: Any, how: str, batch_size: int | None) -> None:
        """Have the step return a mean over all samples; collect other values until the end."""
        assert self._step_values is not None
        usual = how == "mean" and batch_size in (None, self._samples)
        if usual and not hasattr(value, "compute"):
            self._step_values.log(name, value)
            return
        if self.validation_log is None:
            raise RuntimeError(
                f"{name!r} cannot be computed for several models at once: it is no mean"
            )
        self.validation_log.add(name, value, float(batch_size or self._samples), how)

    @contextmanager
    def in_training(self, together: bool = False) -> Iterator[StepLog]:
        """Within it, what is logged is of a training step.

        `together`: the step runs for several models at once.
        """
        self.step_log = StepLog()
        self.after_batch = False
        self.together = together
        try:
            yield self.step_log
            self.step_metrics |= self.step_log.metrics
        finally:
            self.step_log = None
            self.together = False

    def batch_number(self) -> Any:
        """The number of the batch in its epoch; in a fused step, what must not be read."""
        return Unknown() if self.together else self.lane_progress.batches

    @contextmanager
    def in_validation(self, samples: int, together: bool = False) -> Iterator[dict[str, Any]]:
        """Within it, what is logged is of a validation step on so many samples.

        `together`: the step runs for several models at once.
        """
        before = self.after_batch, self.is_validating
        self.after_batch = self.is_validating = True
        self._step_values = Means()
        self._samples = samples
        self.together = together
        try:
            yield self._step_values
        finally:
            self._step_values = None
            self.together = False
            self.after_batch, self.is_validating = before

    @contextmanager
    def at_epoch_end(self) -> Iterator[ValidationLog]:
        """Within it, what is logged is of the whole epoch."""
        before = self.validation_log
        self.validation_log = ValidationLog()
        self.after_batch = True
        try:
            yield self.validation_log
        finally:
            self.validation_log = before
            self.step_metrics = {}


# names whose values were not kept, and a warning said so
_unkept: set[str] = set()
_seats: weakref.WeakKeyDictionary[nn.Module, ModuleSeat] = weakref.WeakKeyDictionary()
_attached_classes: dict[type, type] = {}


def seat_of(module: Any) -> ModuleSeat:
    """The seat of a module, or of a copy of it."""
    seat = vars(module)["shoal_seat"]()
    assert isinstance(seat, ModuleSeat), "the module is attached as long as its lane is there"
    return seat


def attach_seat(module: nn.Module, seat: ModuleSeat) -> None:
    """Let the module, and LightningModules within it, ask this seat instead of a Trainer.

    Copies of the module ask the same seat.
    """
    _seats[module] = seat
    for part in module.modules():
        if is_module(part):
            vars(part)["shoal_seat"] = weakref.ref(seat)
            vars(part)["shoal_read"] = _read_hyper_parameters(part)
            kind = type(part)
            if kind not in _attached_classes:  # one for each, so that lanes have the same
                names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
                _attached_classes[kind] = type(kind.__name__, (Attached, kind), names)
            part.__class__ = _attached_classes[kind]


def own_class(module: Any) -> type:
    """The class that the user wrote, of an attached module."""
    kind: type = type(module).__mro__[2]
    return kind


def detached(module: nn.Module) -> nn.Module:
    """The module as its own class made it; other modules as they are."""
    for part in module.modules():
        if isinstance(part, Attached):
            del vars(part)["shoal_seat"], vars(part)["shoal_read"]
            part.__class__ = own_class(part)
    return module


def _read_hyper_parameters(module: Any) -> dict[str, Any]:
    """The module's saved hyper-parameters that its steps may read."""
    hyper_parameters = dict(getattr(module, "hparams", {}))
    kind: type = type(module)
    names = names_in_steps(kind)
    if names is None:
        return hyper_parameters
    if "hparams" not in names:
        return {}
    return {name: value for name, value in hyper_parameters.items() if name in names}


class Attached:
    """What an attached LightningModule does in another way than its class says."""

    # what models of one graph may differ in: see `fuse.graph`
    @property
    def outside_graph(self) -> frozenset[str]:
        """Attributes that no step reads."""
        attributes = {"shoal_seat", "_hparams", "_hparams_initial", "_trainer"}
        names = names_in_steps(own_class(self))
        if names is not None:
            attributes |= {name for name in vars(self) if name.strip("_") and name not in names}
            attributes -= READ_BY_LIBRARIES
        return frozenset(attributes)

    @property
    def trainer(self) -> TrainerStandIn:
        """What stands in for the Trainer."""
        return seat_of(self).trainer

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        """Shoal trains the module; another trainer is not taken."""

    @property
    def current_epoch(self) -> int:
        """The epoch at hand, from 0; in validation and at its end, the one that was trained."""
        return seat_of(self).epoch

    @property
    def global_step(self) -> int:
        """Optimizer steps taken so far."""
        return seat_of(self).steps

    @property
    def logger(self) -> None:
        """No logger: Shoal's own loggers write what is logged."""

    @property
    def loggers(self) -> list[Any]:
        """No loggers."""
        return []

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print as Python's `print` does."""
        print(*args, **kwargs)  # noqa: T201 - the user's own call

    def log(
        self,
        name: str,
        value: Any,
        *_: Any,
        reduce_fx: Any = "mean",
        batch_size: int | None = None,
        on_epoch: bool | None = None,
        **__: Any,
    ) -> None:
        """Keep the value: as one of the training, or as a score."""
        seat_of(self).log(
            name, value, reduce_fx=reduce_fx, batch_size=batch_size, on_epoch=on_epoch
        )

    def log_dict(self, dictionary: Any, *_: Any, **options: Any) -> None:
        """Keep each value of the dictionary."""
        for name, value in items_of(dictionary):
            self.log(name, value, **options)

    def optimizers(self, use_pl_optimizer: bool = True) -> Any:
        """The optimizer; a list, if there are several."""
        optimizers = seat_of(self).optimizers
        return optimizers[0] if len(optimizers) == 1 else optimizers

    def lr_schedulers(self) -> Any:
        """The scheduler; a list, if there are several; None, if there is none."""
        schedulers = [config.scheduler for config in seat_of(self).scheduler_configs]
        if not schedulers:
            return None
        return schedulers[0] if len(schedulers) == 1 else schedulers

    # the module's own hooks
    on_before_backward: Callable[[Any], None]
    on_after_backward: Callable[[], None]

    def manual_backward(self, loss: Any, *args: Any, **kwargs: Any) -> None:
        """Add the loss's gradient, between the hooks around it."""
        self.on_before_backward(loss)
        loss.backward(*args, **kwargs)
        self.on_after_backward()

    def clip_gradients(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient of the optimizer's parameters."""
        clip(optimizer, gradient_clip_val, gradient_clip_algorithm)


# attributes that steps read through torch's or Lightning's code
READ_BY_LIBRARIES = {"training", "shoal_read", "_device", "_dtype"}


def clip(optimizer: Optimizer, limit: float | None, algorithm: str | None) -> None:
    """Clip the gradient by its norm, or by the value of each number."""
    if not limit:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if algorithm == "value":
        nn.utils.clip_grad_value_(parameters, limit)
    else:
        nn.utils.clip_grad_norm_(parameters, limit)
