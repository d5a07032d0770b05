"""One trial at work on one slot: model, optimizer, schedule and random states, and the steps they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from hashlib import blake2b
from math import isfinite
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from shoal.core.event import Sum
from shoal.core.trial import Visit
from shoal.profile.together import FORM
from shoal.train import optimizers, schedules, tree
from shoal.train.batched import family
from shoal.train.batches import Batches
from shoal.train.columns import Columns
from shoal.train.recipe import LRSchedule, Recipe, optimizing, settings
from shoal.train.rng import Rng
from shoal.train.scoring import scoring
from shoal.train.unit import Diverged

Notes = dict[str, list[tuple[int, Any]]]  # by name, of each step: samples and value


class Lane:
    """A trial's model in training.

    `epoch`: samples to an epoch, for schedules. `kind`: of the device, as signatures tell it. What runs the recipe's code in
    training (`feed`, `flush`, `step`, `end_epoch`) is to be called within `with lane.rng`.
    """

    def __init__(
        self, recipe: Recipe, config: Mapping[str, Any], *, seed: int, device: torch.device, epoch: float, kind: str = "cpu"
    ) -> None:
        self.settings = settings(recipe, config)
        self.visits: tuple[Visit, ...] = ()
        self.rng = Rng(seed, device)
        self._recipe, self._device, self._epoch, self._kind = recipe, device, epoch, kind
        with self.rng:
            self.model: nn.Module = recipe.configure_model(config).to(device)
            self.optimizer, self.scheduler = optimizing(recipe.configure_optimizers(self.model, config))
        self._scheduled = schedules.made_with(self.scheduler)
        optimizers.quicken(self.optimizer, device)
        self._bases = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._configured = [_plain(group) for group in self.optimizer.param_groups]
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.found: int | None = None  # the batch size, where the configuration leaves it to be found out
        self.size = self.settings.batch_size  # of a whole batch; with `batch_per_slot` it changes with the lane's width
        self.factor = 1.0  # on the learning rate, at this width
        self._cut = Batches(self.settings.batch_size)
        self._grouped = 0  # samples in the gradient so far
        self._batches = 0  # batches in it
        self._passed = 0.0  # samples taken, in all visits
        self._notes: Notes = {}
        self.pending: Callable[[], None] | None = None  # adds what was noted of several lanes at once
        self._samples = 0  # taken, and not yet reported
        self._bad = 0  # steps in a row whose loss was not finite

    @cached_property
    def signature(self) -> str:
        """Equal for trials that cost the same: modules, parameters, optimizer, batch size, precision, kind of device, way of
        preparing. The first `FORM` letters tell all but which of torch's usual optimizers it is.
        """
        s = self.settings
        shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in self.model.named_parameters()]
        modules = [type(module).__qualname__ for module in self.model.modules()]
        optimizer = type(self.optimizer).__qualname__
        other = optimizer if family(self.optimizer) is None else ""
        form = repr((shapes, modules, other, s.batch_size, s.precision, self._kind, *s.data_key))
        parts = ((form, FORM // 2), (optimizer, 2))
        return "".join(blake2b(part.encode(), digest_size=size).hexdigest() for part, size in parts)

    # -- training ------------------------------------------------------------------------------------------------------

    def begin(self, samples: int, at: int = 0) -> None:
        """Start a pass over so many samples, after the visits made; `at`: samples of it that were trained before.

        Raises:
            ValueError: all of them would be dropped.
        """
        if self.settings.drop_last and samples < self.size and not at:
            raise ValueError(
                f"drop_last leaves nothing to train: the shard has {samples} samples, a batch {self.size}; "
                "use fewer shards or a smaller batch_size"
            )
        self._cut, self._grouped, self._batches, self._samples = Batches(self.settings.batch_size), 0, 0, 0
        self._passed = float(sum(visit.samples for visit in self.visits) + at)
        self._noted = {}

    def feed(self, chunk: Columns) -> Iterator[int]:
        """Train on the chunk, batch by batch: the samples of each as it is done. What is left over waits for the next chunk."""
        for batch, count in self._cut.of(chunk):
            yield self.step(batch, count)

    def flush(self) -> Iterator[int]:
        """End the pass: train (or drop) the smaller last batch, and take the step of an incomplete group."""
        rest = self._cut.end()
        if rest is not None:
            yield from self.last(*rest)
        self.close()

    def last(self, batch: Columns, count: int) -> Iterator[int]:
        """Train, or drop, the smaller batch at the end of a pass."""
        if self.settings.drop_last:
            self.drop(count)
        else:
            yield self.step(batch, count)

    def drop(self, count: int) -> None:
        """So many samples count as trained on."""
        self._samples += count
        self._passed += count

    def close(self) -> None:
        """Take the step of a group of batches that the end of the pass cut short."""
        if self._batches:
            self._apply()

    def step(self, batch: Any, count: int) -> int:
        """Train on one batch of so many samples; with accumulation, the optimizer's step comes with the last of a group."""
        self.backward(self.forward(batch, count), count)
        if self.full:
            self._apply()
        return count

    def forward(self, batch: Any | None, count: int) -> Tensor | None:
        """The loss on so many samples, its values noted; None: no sample of the batch falls to this process."""
        if self._batches == 0:
            optimizers.zero(self.optimizer)
        if batch is None:
            return None
        if self.settings.precision == "bf16":
            with self._casting():
                outcome = self._recipe.training_step(self.model, batch)
        else:
            outcome = self._recipe.training_step(self.model, batch)
        return self._note(outcome, count)

    def backward(self, loss: Tensor | None, count: int, share: float = 1.0) -> None:
        """Add the gradient on a batch of `count` samples; `share`: the part of them that the loss is of."""
        s = self.settings
        if s.accumulate_grad_batches > 1:
            share *= count / (s.accumulate_grad_batches * self.size)
        if loss is not None:
            (loss * share if share != 1.0 else loss).backward()  # type: ignore[no-untyped-call]
        self._batches += 1
        self._grouped += count
        self._samples += count

    @property
    def full(self) -> bool:
        """Whether the optimizer's step is due."""
        return self._batches == self.settings.accumulate_grad_batches

    @property
    def unfinished(self) -> bool:
        """Whether a group of batches still waits for its optimizer's step."""
        return self._batches > 0

    def _apply(self) -> None:
        """The step of a group of batches. A group cut short gets the mean over the samples it has."""
        s = self.settings
        full = s.accumulate_grad_batches * self.size
        if s.accumulate_grad_batches > 1 and self._grouped != full:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(full / self._grouped)
        if s.gradient_clip_val is not None:
            clip_grad_norm_(self._parameters, s.gradient_clip_val)
        if isinstance(self.scheduler, LRSchedule):
            self._set_rates(self.scheduler)
        if self.factor == 1.0:
            optimizers.step(self.optimizer)
        else:
            self._step_scaled()
        self._passed += self._grouped
        self._batches = self._grouped = 0

    def _step_scaled(self) -> None:
        """The step at the learning rates of this width; schedules and states know those of width 1 only."""
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._rate([rate * self.factor for rate in rates])
        optimizers.step(self.optimizer)
        self._rate(rates)

    def _set_rates(self, schedule: LRSchedule) -> None:
        progress = self._passed / self._epoch if schedule.unit == "epochs" else self._passed
        factor = schedule.factor(progress)
        self._rate([base * factor for base in self._bases])

    def _rate(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _casting(self) -> AbstractContextManager[Any]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16) if self.settings.precision == "bf16" else nullcontext()

    # -- what it reports -----------------------------------------------------------------------------------------------

    @property
    def _noted(self) -> Notes:
        """What was noted since the last report."""
        if self.pending is not None:
            self.pending()
        return self._notes

    @_noted.setter
    def _noted(self, notes: Notes) -> None:
        if self.pending is not None:
            self.pending()
        self._notes = notes

    def _note(self, outcome: Any, count: int) -> Tensor:
        outcome = named(outcome)
        for name, value in outcome.items():
            noted = value.detach().clone() if isinstance(value, Tensor) else float(value)  # a parameter changes
            self._noted.setdefault(name, []).append((count, noted))  # read only in `taken`: here it would wait for the device
        loss: Tensor = outcome["loss"]
        return loss

    def taken(self) -> tuple[int, dict[str, Sum]]:
        """Samples taken since the last call (dropped ones included), and the sums of the values noted.

        Raises:
            Diverged: too many steps in a row had a loss that is not finite.
        """
        noted, self._noted = self._noted, {}
        sums = {}
        for name, items in noted.items():
            counts, values = [count for count, _ in items], _numbers([value for _, value in items])
            if name == "loss":
                self._watch(values)
            sums[name] = (sum(map(mul, counts, values)), float(sum(counts)))
        samples, self._samples = self._samples, 0
        return samples, sums

    def _watch(self, losses: list[float]) -> None:
        if self._bad == 0 and all(map(isfinite, losses)):
            return
        for loss in losses:
            self._bad = 0 if isfinite(loss) else self._bad + 1
            if self._bad > self.settings.nan_patience:
                raise Diverged(f"diverged: loss was not finite for {self._bad} steps")

    # -- around the visits ---------------------------------------------------------------------------------------------

    def evaluate(self, chunks: Iterable[Columns]) -> dict[str, float]:
        """The means of the validation step's values. Changes no parameter, buffer, random state or training flag."""
        with scoring(self) as scores:
            for chunk in chunks:
                scores.add(chunk)
        return scores.means()

    @property
    def steps_by_epoch(self) -> bool:
        """Whether an epoch's end changes anything."""
        return self.scheduler is not None and not isinstance(self.scheduler, LRSchedule)

    def end_epoch(self, metric: float | None) -> None:
        """Step torch's scheduler. ReduceLROnPlateau waits for an epoch with a metric."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            if metric is not None:
                self.scheduler.step(metric)
        elif self.scheduler is not None and not isinstance(self.scheduler, LRSchedule):
            self.scheduler.step()

    # -- state ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that its further training depends on. The arrays are views: they change when the lane trains on."""
        own = self.scheduler
        return {
            "model": tree.to_numpy(self.model.state_dict()),
            "optimizer": tree.to_numpy(self.optimizer.state_dict()),
            "scheduler": None if own is None or isinstance(own, LRSchedule) else tree.to_numpy(own.state_dict()),
            "rng": tree.to_numpy(self.rng.state()),
            "visits": [list(visit) for visit in self.visits],
            "bad": self._bad,
            "configured": tree.to_numpy(self._configured),
            "scheduled": tree.to_numpy(self._scheduled),
            "found": self.found,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Become that state. Its arrays are copied, in place where this lane has memory of their shape.

        Of a trial with other hyper-parameters (this one starts from it): momenta and progress are taken over, learning rates,
        decays, the schedule's gamma and the like stay those of this configuration.

        Raises:
            ValueError: it is the state of another model.
        """
        tree.load_model(self.model, state["model"])
        tree.load_optimizer(self.optimizer, state["optimizer"])
        optimizers.unsettle(self.optimizer)
        if state["scheduler"] is not None and self.scheduler is not None and not isinstance(self.scheduler, LRSchedule):
            self.scheduler.load_state_dict(tree.to_torch(state["scheduler"]))
            schedules.put_back(self.scheduler, self._scheduled, state.get("scheduled", {}))
        self.rng.load(state["rng"])
        self.visits = tuple(Visit(*visit) for visit in state["visits"])
        self._bad = state["bad"]
        if state.get("configured", self._configured) != self._configured:
            self._configure(state["configured"])

    def _configure(self, theirs: list[dict[str, Any]]) -> None:
        """Put this configuration's hyper-parameters over those loaded; a schedule's factor on the learning rate holds."""
        for group, own, other in zip(self.optimizer.param_groups, self._configured, theirs, strict=True):
            base, former = own.get("initial_lr", own["lr"]), other.get("initial_lr", other["lr"])
            rate = float(group["lr"]) * base / former if former else base
            group.update({k: tuple(v) if isinstance(v, list) else v for k, v in own.items() if k != "lr"})
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if isinstance(self.scheduler, LRScheduler):
            self.scheduler.base_lrs = [own.get("initial_lr", own["lr"]) for own in self._configured]
            self.scheduler._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    @property
    def bytes(self) -> int:
        """Memory held: parameters, buffers, gradients, optimizer."""
        grads = sum(p.grad.nbytes for p in self.model.parameters() if p.grad is not None)
        own = sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])
        return grads + own + tree.size_of([dict(state) for state in self.optimizer.state.values()])


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter group's hyper-parameters, as plain numbers."""
    plain: dict[str, Any] = {"lr": float(group["lr"])}
    for name, value in group.items():
        if isinstance(value, tuple) and all(isinstance(x, int | float) for x in value):
            plain[name] = list(value)
        elif isinstance(value, int | float):
            plain[name] = value
    return plain


def named(outcome: Any) -> Mapping[str, Any]:
    """What a training step returned, by name.

    Raises:
        TypeError, ValueError: it holds no loss that is one number.
    """
    if isinstance(outcome, Tensor):
        outcome = {"loss": outcome}
    elif not isinstance(outcome, Mapping) or not isinstance(outcome.get("loss"), Tensor):
        got = type(outcome).__name__
        raise TypeError(f'training_step must return the loss or {{"loss": loss, …}}, the loss a tensor; got {got}')
    loss: Tensor = outcome["loss"]
    if loss.dim():
        raise ValueError(f"training_step must return one number, the mean loss over the batch; got shape {tuple(loss.shape)}")
    named: Mapping[str, Any] = outcome
    return named


def _numbers(values: list[Any]) -> list[float]:
    """Tensors on a device are fetched at once."""
    if all(isinstance(value, Tensor) for value in values):
        fetched: list[float] = torch.stack([value.reshape(()) for value in values]).tolist()
        return fetched
    return [float(value) for value in values]
