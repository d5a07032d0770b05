"""Lanes of one graph trained as one: a vectorized step for all, with each lane's own numbers.

The lanes stay whole lanes: their parameters, buffers and optimizer states are views of stacks, so
that states, checkpoints and single steps work as if each were alone. Sums are made in another
order than alone: gradients agree to rounding, not to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf

import torch
from torch import Tensor, nn

from shoal.train.data.columns import Columns
from shoal.train.fuse.agreement import agreements_of, draws_numbers
from shoal.train.fuse.memory import Rows, Stack
from shoal.train.fuse.models import StackedModels, gradients_of
from shoal.train.fuse.obstacles import Lanes, Unfusable, check, check_groups
from shoal.train.fuse.optimizers import Errors, StepFailed, forget_gradients, give_gradients
from shoal.train.fuse.scores import FusedNotes, FusedScores, Means
from shoal.train.fuse.stacked import stepping
from shoal.train.recipe.unit import RAISED

__all__ = ["Fused", "StepFailed", "Unfusable"]

Gradients = Sequence[Tensor | None]  # of each parameter; None: it is not used


class GroupGradients:
    """The gradients of a group of batches so far, of all lanes.

    `flat`: all of them (k, width). `parts`: those of each parameter, views (k, *shape).
    `used`: whether each parameter has a gradient.
    """

    def __init__(self, weights: Stack) -> None:
        self.flat = torch.zeros_like(weights.flat)
        self.parts = weights.parts_of(self.flat)
        self.used: list[bool] = []

    def add(self, gradients: Gradients, begins: bool) -> None:
        """Add the gradients of a batch; `begins`: it is the group's first one."""
        used = [gradient is not None for gradient in gradients]
        if begins and not all(used):
            self.flat.zero_()

        for part, gradient in zip(self.parts, gradients, strict=True):
            if gradient is None:
                continue
            if begins:
                part.copy_(gradient)
            else:
                part.add_(gradient)

        if not begins:
            used = [a or b for a, b in zip(self.used, used, strict=True)]
        self.used = used

    def hand_out(self, rows: Rows) -> None:
        """Give each lane's parameters their gradients."""
        for i, row in enumerate(rows):
            gradients = [part[i] for part in self.parts]
            give_gradients(row, gradients, self.used)

    def take_over(self, rows: Rows) -> None:
        """Take over the gradients of each lane's parameters."""
        self.flat.zero_()
        self.used = [False] * len(self.parts)
        for i, row in enumerate(rows):
            for j, parameter in enumerate(row):
                if parameter.grad is not None:
                    self.parts[j][i].copy_(parameter.grad)
                    self.used[j] = True


class Fused:
    """Several lanes of one graph, trained by one step for all.

    Meanwhile they must not be stepped or loaded by themselves, except after `loosen`.

    With `fuse_random` models that draw random numbers (dropout) are let in; then each lane still
    draws numbers of its own, but not those it would draw alone: results are equal in distribution
    only. Otherwise no random state is used or changed.

    Raises:
        Unfusable: the lanes are of unlike graphs, or their model, optimizer or step is of a kind
            that cannot be stacked.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes = tuple(lanes)
        self._key = check(lanes)
        self._settings = lanes[0].settings
        self._may_draw = all(lane.settings.fuse_random for lane in lanes)
        # whether each step draws random numbers; None: not tried yet
        self._draws: bool | None = None

        self._models = StackedModels(lanes)
        weights = self._models.weights
        self._gradients = GroupGradients(weights)
        optimizers = [lane.optimizer for lane in lanes]
        self._optimizers = stepping(optimizers, weights, self._gradients.flat)
        set_values = [lane.settings.gradient_clip_val for lane in lanes]
        limits = [inf if limit is None else limit for limit in set_values]
        # each lane's largest norm of a gradient (k,); None: no lane has one
        self._limits: Tensor | None = None
        if min(limits) < inf:
            self._limits = self._gradients.flat.new_tensor(limits)
        self._notes = FusedNotes(lanes)
        self._scores = FusedScores(lanes, self._models, self._key)
        self._bound = False  # whether the lanes' present tensors are taken up

    @property
    def _group(self) -> int:
        """Samples of a whole group of batches."""
        settings = self._settings
        return settings.accumulate_grad_batches * settings.batch_size

    # -- training ----------------------------------------------------------------------------------

    def step(self, batch: Columns, count: int) -> int:
        """Train every lane on the batch, as `TrainingLane.step` would.

        Raises:
            StepFailed: the optimizers of these lanes raised; the others have made the step.
            Exception: anything else (Unfusable, out of memory, what the recipe raises): nothing
                has changed, and every lane may take the step by itself; the next fused step goes
                on from there.
        """
        if not self._bound:
            self._bind()
        completes = self.lanes[0].batches + 1 == self._settings.accumulate_grad_batches

        self._models.keep()
        try:
            if completes:
                self._set_rates()
            outcome = self._models.train(batch, draws=self._draws_numbers(batch))
            losses = outcome["loss"]
            if self._settings.accumulate_grad_batches > 1:
                losses = losses * (count / self._group)
            gradients = gradients_of(losses, self._models.leaves)
        except BaseException:
            self._models.undo()
            self.loosen()
            raise

        self._gradients.add(gradients, begins=not self.lanes[0].batches)
        self._notes.add(outcome, count)
        for lane in self.lanes:
            lane.count(count)
        if completes:
            self._complete()
        return count

    def last(self, batch: Columns, count: int) -> Sequence[int]:
        """Train, or drop, the smaller batch at the end of a pass: the samples trained on."""
        if not self._settings.drop_last:
            return (self.step(batch, count),)
        for lane in self.lanes:
            lane.drop(count)
        return ()

    def close(self) -> None:
        """Take the step of a group of batches that the end of the pass cut short."""
        if not self.lanes[0].batches:
            return
        if not self._bound:
            self._bind()
        self._set_rates()
        self._complete()

    def _draws_numbers(self, batch: Columns) -> bool:
        """Whether the step draws random numbers: tried once for each graph in a process."""
        if self._draws is not None:
            return self._draws
        agreements = agreements_of(self.lanes[0].recipe)
        key = (self._key, self._may_draw)
        if key not in agreements:
            draws = draws_numbers(self._models, self.lanes, batch, self._may_draw)
            agreements[key] = draws
        self._draws = agreements[key]
        return self._draws

    # -- the optimizers' step ----------------------------------------------------------------------

    def _set_rates(self) -> None:
        """Set each lane's learning rates for the step that is due."""
        for lane in self.lanes:
            lane.set_rates()

    def _complete(self) -> None:
        """Take the step of a group of batches; what raises within must not be repeated."""
        gradients = self._gradients.flat
        grouped = self.lanes[0].grouped
        if self._settings.accumulate_grad_batches > 1 and grouped != self._group:
            # of a group cut short: the gradient of the samples that it has, as alone
            gradients.mul_(self._group / grouped)
        if self._limits is not None:  # as `clip_grad_norm_` does alone
            norms = torch.linalg.vector_norm(gradients, dim=1)
            shares = (self._limits / (norms + 1e-6)).clamp_(max=1.0)
            shares = torch.where(self._limits == inf, 1.0, shares)
            gradients.mul_(shares.unsqueeze(1))
        for lane in self.lanes:
            lane.end_group()

        errors: Errors = {}
        try:
            with torch.enable_grad():  # as alone
                self._optimizers.step(self._gradients.used)
        except StepFailed as failed:
            errors = failed.errors
        except RAISED as error:
            every = range(len(self.lanes))
            raise StepFailed(dict.fromkeys(every, error)) from error

        for i, lane in enumerate(self.lanes):
            if i not in errors:
                try:
                    lane.schedule.after_step()
                except RAISED as error:  # it was stepped too often, for example
                    errors[i] = error
        if errors:
            raise StepFailed(errors)

    # -- validation --------------------------------------------------------------------------------

    def evaluate(self, validation: Iterable[Columns], timed: bool = False) -> list[Means]:
        """The scores of each lane, as `FusedScores.evaluate` gives them."""
        if not self._bound:
            self._models.gather()
        return self._scores.evaluate(validation, timed)

    @property
    def decision_seconds(self) -> float:
        """Seconds of the newest evaluation that went into how to do it."""
        return self._scores.decision_seconds

    # -- coming and going --------------------------------------------------------------------------

    def tell(self) -> None:
        """Give the lanes what was noted of them."""
        self._notes.tell()

    def loosen(self) -> None:
        """Let lanes be stepped, loaded or evaluated by themselves.

        The next fused step takes up what they are then.
        """
        self.tell()
        if self._bound and self.lanes[0].batches:
            self._gradients.hand_out(self._models.rows)
        self._bound = False

    def _bind(self) -> None:
        """Take up the lanes' present tensors and gradients.

        Raises:
            Unfusable: some have made more batches of a group than others.
        """
        check_groups(self.lanes)
        self._models.gather()
        self._optimizers.gather()
        if self.lanes[0].batches:
            self._gradients.take_over(self._models.rows)
        for row in self._models.rows:
            forget_gradients(row)
        self._bound = True

    def split(self) -> None:
        """Give the lanes memory of their own again; this object is then of no use."""
        self.loosen()
        self._models.part()
        self._optimizers.part()

        flags = [module.training for module in self._models.model.modules()]
        for lane in self.lanes:
            for module, flag in zip(lane.model.modules(), flags, strict=True):
                module.training = flag
                # its weights side by side, as cuDNN wants them, if there is room
                if isinstance(module, nn.RNNBase):
                    with suppress(torch.OutOfMemoryError):
                        module.flatten_parameters()
