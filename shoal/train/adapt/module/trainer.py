"""What stands in for Lightning's Trainer: what a module asks of `self.trainer`."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from shoal.train.recipe.adapted import NotOfferedError

# what modules set on their trainer, and what to do instead
ASSIGNED = {
    "should_stop": 'stop trials by a searcher, as "patience(epochs=3)"',
}


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
        own = {
            "_seat": seat,
            "loggers": [],
            "callbacks": [],
        }  # the module's `ModuleSeat`
        vars(self).update(own)

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
