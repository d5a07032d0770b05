"""One trial at work on one slot: model, optimizer, schedule and random states, and their steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from shoal.core.event import Sum
from shoal.core.trial import Visit
from shoal.profile.pace import FORM
from shoal.train.data.columns import Columns
from shoal.train.lane import optimizers, tree
from shoal.train.lane.blame import noting_rest
from shoal.train.lane.device import kind_of
from shoal.train.lane.model_changes import ModelChanges
from shoal.train.lane.optimization import Optimization, check_steps
from shoal.train.lane.ownership import Ownership
from shoal.train.lane.tensors import bytes_of, check_model, coalesce_buffers, text_hash
from shoal.train.lane.training_metrics import TrainingMetrics, own_step_values, step_values
from shoal.train.lane.trunk import LaneTrunk
from shoal.train.recipe.adapter import NoAdapter, adapter_of
from shoal.train.recipe.hooks import Progress, TrialHooks
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.settings import settings
from shoal.train.recipe.shard import ShardModel
from shoal.train.rng import Rng
from shoal.train.stream.stream import Batches


class TrialModel:
    """The lasting part of a trial: model, optimizer, schedule, random states, and visits made.

    Raises:
        TypeError, ValueError: the recipe's settings, model or optimizer are not what they must be.
    """

    def __init__(
        self, recipe: Recipe, config: Mapping[str, Any], *, seed: int, device: torch.device
    ) -> None:
        self.settings = settings(recipe, config)
        self.recipe = recipe
        self.hooks = TrialHooks(recipe, config)
        self.device = device
        self.visits: tuple[Visit, ...] = ()
        self.rng = Rng(seed, device)
        with self.rng:
            model = self.hooks.configure_model()
            check_model(model)
            self.ownership = Ownership()
            self.ownership.hold(model)
            coalesce_buffers(model)
            self.model: nn.Module = model.to(device)
            self.ownership.hold(self.model)  # where it lies on the device
            outcome = self.hooks.configure_optimizers(self.model)
        self.optimization = Optimization(outcome)
        self.ownership.hold_objects("configure_optimizers", self.optimization.objects)
        # the only ones where Shoal takes the steps
        self.optimizer = self.optimization.optimizers[0]
        self.schedule = self.optimization.schedules[0]
        check_steps(recipe, self.settings, self.optimization.optimizers)
        self._check_schedule()
        if not self.hooks.steps_itself:
            self.optimization.quicken(device)
        self.parameters = self.optimization.parameters
        # of the optimizers, so far; None: the state that the trial went on from did not say
        self.steps: int | None = 0
        # the batch size, where the configuration leaves it to be found out
        self.found_size: int | None = None
        # the frozen parameters that other lanes of the slot have, too, if any
        self.trunk: LaneTrunk | None = None
        self.metrics = TrainingMetrics(self.settings.nan_patience)
        # hears what a lane does, where the recipe was made out of another library's code
        self.adapter = NoAdapter()
        self.changes = self._changes()

    def _changes(self) -> ModelChanges:
        """A watch, from now on, of what training changes beside state dicts."""
        optimization = self.optimization
        return ModelChanges(
            self.model,
            optimization.optimizers,
            optimization.schedules,
            self.adapter.listens,
            self.ownership,
        )

    def _check_schedule(self) -> None:
        if self.schedule.by_step and self.settings.batch_per_slot:
            kind = type(self.scheduler).__name__
            raise ValueError(
                f"{kind} counts optimizer steps, and with batch_per_slot their number depends on "
                "the trial's widths: use a shoal.LRSchedule, which counts epochs or samples"
            )

    @property
    def scheduler(self) -> Any:
        """The recipe's scheduler; None where it has none."""
        return self.schedule.scheduler

    @cached_property
    def signature(self) -> str:
        """The cost signature: trials with equal ones have equal step cost and memory.

        It tells modules, parameters, optimizer, batch size, precision, kind of device, and way of
        preparing. The first `FORM` letters tell all but which of torch's usual optimizers it is.
        """
        s = self.settings
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in self.model.named_parameters()]
        modules = [type(module).__qualname__ for module in self.model.modules()]
        if isinstance(self.model, ShardModel):
            modules.append(self.model.form)
        optimizer = " ".join(type(each).__qualname__ for each in self.optimization.optimizers)
        usual = optimizers.family(self.optimizer) is not None and not self.hooks.steps_itself
        unusual = "" if usual else optimizer
        kind = kind_of(self.device)
        form = repr((shapes, modules, unusual, s.batch_size, s.precision, kind, *s.data_key))
        return text_hash(form, FORM // 2) + text_hash(optimizer, 2)

    def casting(self) -> AbstractContextManager[Any]:
        """The context in which the recipe's steps run: autocast, or nothing."""
        if self.settings.precision == "bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()

    def state(self) -> dict[str, Any]:
        """Everything that the trial's further training depends on.

        The arrays are views: they change when the lane trains on.
        """
        return {
            "model": tree.to_numpy(self.model.state_dict()),
            **self.optimization.state(),
            "rng": tree.to_numpy(self.rng.state()),
            "visits": [visit.as_list() for visit in self.visits],
            "steps": self.steps,
            **self.metrics.state(),
            "found": self.found_size,
            **tree.to_numpy(self.adapter.state()),
            **self.hooks.carried.saved(tree.to_numpy),
            **self.changes.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore that state.

        Arrays are copied, in place where this lane has memory of their shape. Of a trial with other
        hyper-parameters (this one starts from it) momenta and progress are taken over; learning
        rates, decays, the schedule's gamma and the like stay this trial's.

        Raises:
            ValueError: it is the state of another model.
        """
        self._load_weights(state)
        self.optimization.load(state)
        self.rng.load(state["rng"])
        self.visits = tuple(Visit(*visit) for visit in state["visits"])
        self.passed = float(sum(visit.samples for visit in self.visits))
        self.steps = state.get("steps")
        self.metrics.load(state)
        self.hooks.carried.load(state, tree.to_torch, self.device)
        self.load_changes(state)

    def load_model(self, state: Mapping[str, Any]) -> None:
        """Restore the model alone from that state.

        Raises:
            ValueError: it is the state of another model.
        """
        self._load_weights(state)
        self.load_changes(state)

    def _load_weights(self, state: Mapping[str, Any]) -> None:
        with self.rng:  # a recipe of one's own may build its model again
            tree.load_model(self.model, state["model"])

    def changes_now(self) -> dict[str, Any]:
        """A copy of what training changed of the model beside weights and buffers."""
        return deepcopy({**tree.to_numpy(self.adapter.state()), **self.changes.unchecked_state()})

    def load_changes(self, state: Mapping[str, Any]) -> None:
        """Restore the changes in what `changes_now` gave, or in a whole state."""
        adapted = {key: value for key, value in state.items() if key == "adapted"}
        self.adapter.load(tree.to_torch(adapted))
        self.changes.load(state, self.device)

    @property
    def bytes(self) -> int:
        """Memory held: parameters, buffers, gradients, optimizer."""
        tensors: list[Tensor] = [*self.model.parameters(), *self.model.buffers()]
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        shard_bytes = 0
        if isinstance(self.model, ShardModel):
            shard_bytes = self.model.bytes
        return shard_bytes + sum(map(bytes_of, tensors + grads)) + self.optimization.bytes


class TrainingLane(TrialModel):
    """A trial's model in training.

    `epoch`: samples to an epoch, for schedules. What runs the recipe's code in training (`feed`,
    `flush`, `step`, `end_epoch`) is to be called within `with lane.rng`.

    `batches` and `grouped` are the batches and samples in the gradient so far, `passed` the
    samples of all steps in all visits, `unreported` the samples taken since the last report,
    `of_pass` the samples of the present pass.
    """

    def __init__(
        self,
        recipe: Recipe,
        config: Mapping[str, Any],
        *,
        seed: int,
        device: torch.device,
        epoch: float,
    ) -> None:
        super().__init__(recipe, config, seed=seed, device=device)
        self.epoch_samples = epoch
        # of a whole batch; with `batch_per_slot` it changes with the lane's width
        self.size = self.settings.batch_size
        self.factor = 1.0  # on the learning rate, at this width
        self._cut = Batches(self.settings.batch_size)
        self.of_pass = 0
        self.batches = 0
        self.grouped = 0
        self.passed = 0.0
        self.unreported = 0
        self._steps_itself = self.hooks.steps_itself
        self.adapter = adapter_of(self)
        self.changes = self._changes()  # since the hooks at the start of training

    # -- training ----------------------------------------------------------------------------------

    def begin(self, samples: int, at: int = 0) -> None:
        """Start a pass over so many samples, after the visits made.

        `at`: samples of the pass that were trained before.

        Raises:
            ValueError: all of the samples would be dropped.
        """
        if self.settings.drop_last and samples < self.size and not at:
            raise ValueError(
                f"drop_last leaves nothing to train: the shard has {samples} samples, "
                f"a batch {self.size}; use fewer shards or a smaller batch_size"
            )
        self._cut = Batches(self.settings.batch_size)
        self.of_pass = samples
        self.hooks.carried.restart()
        self.restart(float(sum(visit.samples for visit in self.visits) + at), 0)
        self.adapter.begin_pass()

    def restart(self, passed: float, unreported: int) -> None:
        """Go on after so many samples, with no batch in the gradient and nothing noted."""
        self.batches = 0
        self.grouped = 0
        self.passed = passed
        self.unreported = unreported
        self.metrics.take()
        if self._steps_itself:
            self.model.zero_grad()
            self.optimization.forget_gradients()

    def feed(self, chunk: Columns) -> Iterator[int]:
        """Train on the chunk, batch by batch; yields the samples of each batch as it is done.

        What is left over waits for the next chunk.
        """
        for batch, count in self._cut.of(chunk):
            yield self.step(batch, count)

    def flush(self) -> Iterator[int]:
        """End the pass: train (or drop) the smaller last batch, and complete the last group."""
        rest = self._cut.end()
        if rest is not None:
            yield from self.last(*rest)
        self.close()

    def last(self, batch: Columns, count: int) -> Iterator[int]:
        """Train, or drop, the smaller batch at the end of a pass."""
        if self.settings.drop_last:
            self.drop(count)
            return
        with noting_rest(count, self.size, self.of_pass):
            trained = self.step(batch, count)
        yield trained

    def drop(self, count: int) -> None:
        """Count so many samples as trained on."""
        self.unreported += count
        self.passed += count

    def close(self) -> None:
        """Take the step of a group of batches that the end of the pass cut short."""
        if self.batches:
            self._apply()
            self.adapter.after_batch()
        self.hooks.carried.restart()

    def step(self, batch: Any, count: int) -> int:
        """Train on one batch of so many samples.

        With accumulation, the optimizer's step comes with the last batch of a group.
        """
        if not self._steps_itself:
            self.backward(self.forward(batch, count), count)
            self._after_gradient()
            return count
        optimization = self.optimization
        optimization.before_step(self.passed, self.epoch_samples)
        with self.casting():
            outcome = self.hooks.own_step(self.model, batch, self.progress, optimization.optimizers)
        self.metrics.add(own_step_values(outcome), count)
        self.drop(count)
        self._count_step()
        optimization.after_step()
        self.adapter.after_batch()
        return count

    def loss(self, batch: Any, count: int) -> Tensor:
        """The loss on the batch as it is to be differentiated, for a gradient taken elsewhere.

        Not for recipes that step by themselves. Once the gradient was added, `complete` is due.
        """
        loss = self.forward(batch, count)
        assert loss is not None, "there is a batch"
        return self._weighted(loss, count, 1.0)

    def complete(self, count: int) -> None:
        """The gradient of `loss` was added: take the optimizer's step, if it is due."""
        self.adapter.after_backward()
        self.count(count)
        self._after_gradient()

    def _after_gradient(self) -> None:
        """A batch is in the gradient."""
        if self.full:
            self._apply()
        self.adapter.after_batch()

    def forward(self, batch: Any | None, count: int) -> Tensor | None:
        """The loss on the batch of so many samples; the values of the step are noted.

        Without a batch (none of its samples falls to this process) there is no loss.
        """
        if self.batches == 0:
            optimizers.zero(self.optimizer)
        if batch is None:
            return None
        if self.settings.precision == "bf16":
            with self.casting():
                outcome = self.hooks.training_step(self.model, batch, self.progress)
        else:
            outcome = self.hooks.training_step(self.model, batch, self.progress)
        values = step_values(outcome)
        self.metrics.add(values, count)
        loss: Tensor = values["loss"]
        return loss

    @property
    def epochs_made(self) -> int:
        """Whole epochs trained so far."""
        return int(self.passed / self.epoch_samples)

    @property
    def progress(self) -> Progress:
        """How far the trial is, as its recipe's steps may ask."""
        return Progress(self.epochs_made, self.steps)

    def backward(self, loss: Tensor | None, count: int, share: float = 1.0) -> None:
        """Add the gradient on a batch of `count` samples.

        `share`: the part of the batch's samples that the loss is of.
        """
        if loss is not None:
            self._weighted(loss, count, share).backward()  # type: ignore[no-untyped-call]
            self.adapter.after_backward()
        self.count(count)

    def _weighted(self, loss: Tensor, count: int, share: float) -> Tensor:
        """The loss times its part of the group of batches that share a step."""
        s = self.settings
        if s.accumulate_grad_batches > 1:
            share *= count / (s.accumulate_grad_batches * self.size)
        return loss if share == 1.0 else loss * share

    def count(self, samples: int) -> None:
        """A batch of so many samples is in the gradient."""
        self.batches += 1
        self.grouped += samples
        self.unreported += samples

    @property
    def full(self) -> bool:
        """Whether the optimizer's step is due."""
        return self.batches == self.settings.accumulate_grad_batches

    @property
    def unfinished(self) -> bool:
        """Whether a group of batches still waits for its optimizer's step."""
        return self.batches > 0

    def _apply(self) -> None:
        """The step of a group of batches. A group cut short gets the mean over its samples."""
        s = self.settings
        full = s.accumulate_grad_batches * self.size
        if s.accumulate_grad_batches > 1 and self.grouped != full:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(full / self.grouped)
        self.adapter.before_step(self.optimizer)
        if s.gradient_clip_val is not None:
            clip_grad_norm_(self.parameters, s.gradient_clip_val)
        self.set_rates()
        # schedules and states know the learning rates of width 1
        optimizers.step_scaled(self.optimizer, self.factor)
        self.end_group()
        self.schedule.after_step()

    def set_rates(self) -> None:
        """Set the learning rates for the step that is due."""
        self.schedule.before_step(self.passed, self.epoch_samples)

    def end_group(self) -> None:
        """The gradient so far is used: the next batch begins another one."""
        self.passed += self.grouped
        self.batches = 0
        self.grouped = 0
        self._count_step()

    def _count_step(self) -> None:
        if self.steps is not None:
            self.steps += 1

    def taken(self) -> tuple[int, dict[str, Sum]]:
        """The samples taken since the last call (dropped ones too), and the sums of noted values.

        Raises:
            Diverged: too many steps in a row had a loss that is not finite.
            ChangeError: training changed what no state of the trial can hold.
        """
        self.changes.check()
        sums = self.metrics.sums()
        samples = self.unreported
        self.unreported = 0
        return samples, sums

    # -- around the visits -------------------------------------------------------------------------

    @property
    def steps_by_epoch(self) -> bool:
        """Whether an epoch's end changes anything beside the notes."""
        return self.optimization.by_epoch or self.adapter.listens

    def end_epoch(self, metric: float | None, name: str = "") -> Mapping[str, float]:
        """End the epoch: clear its notes, and step schedulers that count epochs.

        Returns the adapter's scores of the epoch, beside those of its validation. Where the metric
        `name` is among them, it counts instead of `metric`. ReduceLROnPlateau waits for an epoch
        with a metric.
        """
        self.metrics.epoch = {}
        scores = self.adapter.end_epoch()
        self.optimization.end_epoch(scores.get(name, metric))
        return scores
