"""Lanes of one graph trained as one: a single vectorized step for all, with each lane's own numbers.

Stacking models and differentiating them at once follows torch.func's model ensembling; what is Shoal's is that lanes stay
whole lanes: their parameters, buffers and optimizer states are views of the stacks, so states, checkpoints and single steps
work as if each were alone. Sums are made in another order than alone, so gradients agree to rounding, not to the last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train import columns as cols
from shoal.train.agree import Differing, Own, agreed, compare, flags_of, own, same_scores, tells
from shoal.train.batched import StepFailed, batched
from shoal.train.columns import Columns
from shoal.train.device import doubled
from shoal.train.graph import graph_key
from shoal.train.lane import Lane, named
from shoal.train.lanewise import gradients
from shoal.train.recipe import LRSchedule, Recipe
from shoal.train.scoring import EVALUATION_BATCHES, scoring
from shoal.train.stack import strides
from shoal.train.stacked import Stacked, Unfusable, obstacle, trained
from shoal.train.unit import RAISED

__all__ = ["Fused", "StepFailed", "Unfusable", "graph_key"]


class Fused:
    """These lanes, trained together. They must not be stepped or loaded by themselves meanwhile, except after `loosen`.

    With `fuse_random` models that draw random numbers (dropout) are let in; then each lane still draws numbers of its own,
    but not those it would draw alone: results are equal in distribution only. Otherwise no random state is used or changed.

    Raises:
        Unfusable: the lanes are of unlike graphs, or their model, optimizer or step is of a kind that cannot be stacked.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = tuple(lanes)
        first = lanes[0]
        if any(lane._recipe is not first._recipe for lane in lanes):
            raise Unfusable("the lanes are of several recipes")
        why = obstacle(lanes)
        if why is not None:
            raise Unfusable(why)
        self._key = graph_key(first)
        if any(graph_key(lane) != self._key for lane in lanes[1:]):
            raise Unfusable("the lanes are not of one graph")
        if len({tuple(strides(p) for p in trained(lane)) for lane in lanes}) > 1:
            raise Unfusable("the lanes' parameters lie in memory in several ways")
        if any((lane._batches, lane._grouped) != (first._batches, first._grouped) for lane in lanes):
            raise Unfusable("the lanes are not at the same batch of a group")
        self._recipe, self._settings = first._recipe, first.settings
        self._random = all(lane.settings.fuse_random for lane in lanes)
        self._draws = False  # known at the first step
        self._bound = self._tried = False
        self._net = Stacked(lanes)
        self._optimizers = batched([lane.optimizer for lane in lanes], self._net.rows, self._net.weights)
        limits = [inf if lane.settings.gradient_clip_val is None else lane.settings.gradient_clip_val for lane in lanes]
        self._limits = None if min(limits) == inf else torch.tensor(limits, dtype=self._weights.dtype).to(self._weights.device)
        self._ones = torch.ones(len(lanes), device=self._weights.device)
        self._grads = torch.zeros_like(self._weights)  # of the batches of a group so far
        self._grad_parts = self._net.weights.layout.parts(self._grads)
        self._used: list[bool] = []
        self._notes: list[tuple[int, dict[str, Any]]] = []  # of each step since the lanes were told: samples and values
        self.found_out = 0.0  # seconds of the newest evaluation that went into how to do it

    @property
    def _weights(self) -> Tensor:
        return self._net.weights.flat

    # -- training ------------------------------------------------------------------------------------------------------

    def step(self, batch: Columns, count: int) -> int:
        """Train every lane on the batch, as `Lane.step` would.

        Raises:
            StepFailed: the optimizers of these lanes raised; the others have made the step.
            Exception: anything else (Unfusable, out of memory, what the recipe raises): nothing has changed, and every lane
                may take the step by itself; the next fused step goes on from there.
        """
        if not self._bound:
            self._bind()
        lanes, s = self.lanes, self._settings
        completes = lanes[0]._batches + 1 == s.accumulate_grad_batches
        self._net.keep()
        try:
            if completes:
                self._set_rates()
            if not self._tried:
                self._try(batch)
            outcome = self._run(batch)
            grads = self._differentiated(outcome["loss"], count)
        except BaseException:
            self._net.undo()
            self.loosen()
            raise
        self._add(grads)
        self._note(outcome, count)
        for lane in lanes:
            lane._batches += 1
            lane._grouped += count
            lane._samples += count
        if completes:
            self._complete()
        return count

    def last(self, batch: Columns, count: int) -> Sequence[int]:
        """Train, or drop, the smaller batch at the end of a pass: the samples trained on."""
        if not self._settings.drop_last:
            return (self.step(batch, count),)
        for lane in self.lanes:
            lane._samples += count
            lane._passed += count
        return ()

    def close(self) -> None:
        """Take the step of a group of batches that the end of the pass cut short."""
        if self.lanes[0]._batches:
            if not self._bound:
                self._bind()
            self._set_rates()
            self._complete()

    def _run(self, batch: Columns) -> dict[str, Any]:
        """The loss and what else the recipe's step gives, of each lane."""
        first = self.lanes[0]

        def forward(model: Any) -> Any:
            return named(self._recipe.training_step(model, batch))

        with torch.enable_grad(), first._casting():  # afterwards the mode is what it was, whatever the recipe does
            if not self._draws:
                return self._net.run(forward)
            with first.rng:
                return self._net.run(forward, "different")

    def _differentiated(self, losses: Tensor, count: int) -> Sequence[Tensor | None]:
        """The gradients (k, …); None: a parameter has none. Lanes are independent: each loss has its own."""
        s = self._settings
        share = self._ones if losses.dtype == self._ones.dtype else self._ones.to(losses.dtype)
        if s.accumulate_grad_batches > 1:
            share = share * (count / (s.accumulate_grad_batches * s.batch_size))
        return gradients(losses, self._net.leaves, share)

    def _add(self, grads: Sequence[Tensor | None]) -> None:
        used, add = [grad is not None for grad in grads], self.lanes[0]._batches > 0
        if not add:
            if not all(used):
                self._grads.zero_()
            self._used = used
        else:
            self._used = [a or b for a, b in zip(self._used, used, strict=True)]
        pairs = [(part, grad) for part, grad in zip(self._grad_parts, grads, strict=True) if grad is not None]
        if pairs:
            parts, given = zip(*pairs, strict=True)
            torch._foreach_add_(parts, given) if add else torch._foreach_copy_(parts, given)

    def _note(self, outcome: dict[str, Any], count: int) -> None:
        noted = {name: v.detach().clone() if isinstance(v, Tensor) else float(v) for name, v in outcome.items()}
        if not self._notes:
            for lane in self.lanes:
                lane.pending = self.tell
        self._notes.append((count, noted))

    def tell(self) -> None:
        """Give the lanes what was noted of them: read at once it takes a tenth of the time."""
        notes, self._notes = self._notes, []
        by_name: dict[str, list[tuple[int, Any]]] = {}
        for count, noted in notes:
            for name, value in noted.items():
                by_name.setdefault(name, []).append((count, value))
        for lane in self.lanes:
            lane.pending = None
        for name, items in by_name.items():
            counts = [count for count, _ in items]
            for lane, values in zip(self.lanes, self._told([value for _, value in items]), strict=True):
                lane._noted.setdefault(name, []).extend(zip(counts, values, strict=True))

    def _told(self, values: list[Any]) -> Iterable[Iterable[Any]]:
        """Each lane's, of one name."""
        if all(isinstance(value, Tensor) and value.dim() == 1 for value in values):
            found: list[list[float]] = torch.stack(values).T.tolist()
            return found
        each = [value.unbind() if isinstance(value, Tensor) else [value] * len(self.lanes) for value in values]
        return zip(*each, strict=True)

    def _set_rates(self) -> None:
        for lane in self.lanes:
            if isinstance(lane.scheduler, LRSchedule):
                lane._set_rates(lane.scheduler)

    def _complete(self) -> None:
        """The step of a group of batches; what raises within it leaves nothing that could be repeated."""
        try:
            self._apply()
        except StepFailed:
            raise
        except RAISED as error:
            raise StepFailed(dict.fromkeys(range(len(self.lanes)), error)) from error

    def _apply(self) -> None:
        """As `Lane._apply`."""
        s, first = self._settings, self.lanes[0]
        full = s.accumulate_grad_batches * s.batch_size
        if s.accumulate_grad_batches > 1 and first._grouped != full:
            self._grads.mul_(full / first._grouped)
        if self._limits is not None:
            norms = torch.linalg.vector_norm(self._grads, dim=1)
            shares = (self._limits / (norms + 1e-6)).clamp_(max=1.0)
            self._grads.mul_(torch.where(self._limits == inf, 1.0, shares).unsqueeze(1))
        for lane in self.lanes:
            lane._passed += lane._grouped
            lane._batches = lane._grouped = 0
        with torch.enable_grad():  # as alone
            self._optimizers.step(self._grads, self._used)

    # -- the first step ------------------------------------------------------------------------------------------------

    def _try(self, batch: Columns) -> None:
        """Compare each lane's own loss and gradient with the fused ones, once for each graph in a process."""
        known = agreed(self._recipe)
        if (self._key, self._random) not in known:
            known[self._key, self._random] = self._compare(batch)
        self._draws, self._tried = known[self._key, self._random], True

    def _compare(self, batch: Columns) -> bool:
        """Whether the models draw random numbers."""
        mine = own(self.lanes[0], batch)
        if mine.draws and not self._random:
            raise Unfusable("the step draws random numbers: fused they would be others than alone (fuse_random allows it)")
        if not mine.draws:
            self._agree(batch, False)
            return False
        self._draws = True
        flags = flags_of(self._net.model)
        try:  # without what is random, as far as evaluation mode turns it off
            if not own(self.lanes[0], batch, evaluating=True).draws:
                self._net.model.eval()
                self._agree(batch, True)
        finally:
            for module, flag in flags:
                module.training = flag
        return True

    def _agree(self, batch: Columns, evaluating: bool) -> None:
        """Lanes that differ may do so by one sample, where a sum that rounds otherwise moves a unit over a kink.

        They must agree on a half of the batch that has a gradient: what is wrong with the graph is wrong for others, too.
        """
        wrong = self._differing(batch, evaluating, dict.fromkeys(range(len(self.lanes))))
        if wrong and (rows := cols.rows(batch)) >= 4:
            for start, end in ((0, rows // 2), (rows // 2, rows)):
                wrong = wrong and self._differing(cols.cut(batch, start, end), evaluating, wrong)
        for error in wrong.values():
            raise error

    def _differing(self, batch: Columns, evaluating: bool, lanes: Mapping[int, Differing | None]) -> dict[int, Differing]:
        """Which of these lanes have another gradient, fused, than alone; of those in doubt also where there is none to tell."""
        draws, self._draws = self._draws, False
        try:
            losses = self._run(batch)["loss"]
            grads = gradients(losses, self._net.leaves, torch.ones_like(losses))
            rest = [tensor.clone() for tensor in self._net.rest]
        except RAISED as error:
            raise Unfusable(f"the step cannot be vectorized: {_line(error)}") from error
        finally:
            self._draws = draws
            self._net.undo()
        found = {}
        for i, doubt in lanes.items():
            mine = own(self.lanes[i], batch, evaluating=evaluating)
            share = Own(losses[i].detach(), [g if g is None else g[i] for g in grads], [t[i] for t in rest], False)
            try:
                compare(mine, share, self._settings.precision == "bf16")
                if doubt is not None and not tells(mine):
                    found[i] = doubt
            except Differing as error:
                found[i] = error.with_traceback(None)  # which holds the gradients of all
        return found

    # -- validation ----------------------------------------------------------------------------------------------------

    def evaluate(self, validation: Iterable[Columns], timed: bool = False) -> list[dict[str, float]]:
        """Each lane's scores, as `Lane.evaluate` gives them; lane by lane where they cannot be had at once.

        `timed`: or where that is quicker. Changes no parameter, buffer, random state or training flag.
        """
        self.found_out = 0.0
        if not self._bound:
            self._net.gather()
        chunks = iter(validation)
        start = next(chunks, None)
        if start is None:
            return [{} for _ in self.lanes]
        known, begin = agreed(self._recipe), perf_counter()
        if (self._key, "scores") not in known:
            known[self._key, "scores"] = self._scores_agree(start)
        at_once = known[self._key, "scores"]
        if at_once and timed:
            if (self._key, len(self.lanes)) not in known:
                known[self._key, len(self.lanes)] = self._scored_sooner(start)
            at_once = known[self._key, len(self.lanes)]
        self.found_out = perf_counter() - begin
        every = _joined([start], chunks)
        del start, chunks
        if at_once:
            return self._scores(every)
        with ExitStack() as opened:
            scores = [opened.enter_context(scoring(lane)) for lane in self.lanes]
            for chunk in every:
                for each in scores:
                    each.add(chunk)
        return [each.means() for each in scores]

    def _scores_agree(self, chunk: Columns) -> bool:
        piece = cols.cut(chunk, 0, EVALUATION_BATCHES * self._settings.batch_size)
        alone = [lane.evaluate([piece]) for lane in self.lanes]
        try:
            fused = self._scores([piece])
        except RAISED:  # whatever cannot be vectorized can still be done lane by lane
            return False
        return all(same_scores(a, b, cols.rows(piece)) for a, b in zip(alone, fused, strict=True))

    def _scored_sooner(self, chunk: Columns) -> bool:
        """Whether a batch of validation takes less time fused than lane by lane; the least of two counts."""
        piece = cols.cut(chunk, 0, EVALUATION_BATCHES * self._settings.batch_size)
        took: dict[bool, list[float]] = {True: [], False: []}
        for fused in (True, False) * 2:
            begin = perf_counter()
            if fused:
                self._scores([piece])
            else:
                deque((lane.evaluate([piece]) for lane in self.lanes), maxlen=0)
            took[fused].append(perf_counter() - begin)
        return min(took[True]) < min(took[False])

    def _scores(self, chunks: Iterable[Columns]) -> list[dict[str, float]]:
        net, first = self._net, self.lanes[0]
        flags, fast = flags_of(net.model), torch.backends.mha.get_fastpath_enabled()
        totals: dict[str, tuple[Tensor, int]] = {}
        net.keep()
        try:
            net.model.eval()
            torch.backends.mha.set_fastpath_enabled(False)  # kernels that cannot be vectorized
            with first.rng.untouched(), torch.no_grad():
                for chunk in chunks:
                    self._validate(chunk, totals)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            for module, flag in flags:
                module.training = flag
            net.undo()
        means = {name: (total / count).tolist() for name, (total, count) in totals.items()}
        return [{name: values[i] for name, values in means.items()} for i in range(len(self.lanes))]

    def _validate(self, chunk: Columns, totals: dict[str, tuple[Tensor, int]]) -> None:
        size = EVALUATION_BATCHES * self._settings.batch_size
        for at in range(0, cols.rows(chunk), size):
            batch = cols.cut(chunk, at, at + size)
            count = cols.rows(batch)
            with self.lanes[0]._casting():
                scores = self._net.run(partial(_validated, self._recipe, batch))
            for name, values in scores.items():
                if not isinstance(values, Tensor) or tuple(values.shape) != (len(self.lanes), count):
                    raise Unfusable(f"validation_step: {name} is not a value for each sample")
                total, before = totals.get(name, (0.0, 0))
                totals[name] = (total + doubled(values).sum(1), before + count)

    # -- coming and going ----------------------------------------------------------------------------------------------

    def loosen(self) -> None:
        """From now on lanes may be stepped, loaded or evaluated by themselves; the next fused step takes up what they are."""
        self.tell()
        if self._bound and self.lanes[0]._batches:
            for i, row in enumerate(self._net.rows):
                for parameter, grad, used in zip(row, self._net.weights.layout.row(self._grads, i), self._used, strict=True):
                    parameter.grad = grad.clone() if used else None
        self._bound = False

    def _bind(self) -> None:
        """Take up what the lanes are.

        Raises:
            Unfusable: some have made more batches of a group than others.
        """
        if len({(lane._batches, lane._grouped) for lane in self.lanes}) > 1:
            raise Unfusable("the lanes are not at the same batch of a group")
        self._net.gather()
        self._optimizers.gather()
        rows = self._net.rows
        if self.lanes[0]._batches:
            self._used = [any(row[j].grad is not None for row in rows) for j in range(len(rows[0]))]
            own = [[torch.zeros_like(p) if p.grad is None else p.grad for p in row] for row in rows]
            for i, grads in enumerate(own):
                for part, grad in zip(self._net.weights.layout.row(self._grads, i), grads, strict=True):
                    part.copy_(grad)
        for parameter in chain.from_iterable(rows):
            parameter.grad = None
        self._bound = True

    def split(self) -> None:
        """Give the lanes memory of their own again; this object is then of no use."""
        self.loosen()
        flags = [module.training for module in self._net.model.modules()]
        for lane in self.lanes[1:]:
            for module, flag in zip(lane.model.modules(), flags, strict=True):
                module.training = flag
        self._net.part()
        self._optimizers.part()
        for lane in self.lanes:
            for module in lane.model.modules():
                if isinstance(module, torch.nn.RNNBase):
                    with suppress(torch.OutOfMemoryError):  # cuDNN wants their weights side by side, for speed
                        module.flatten_parameters()


def _joined(first: list[Columns], rest: Iterator[Columns]) -> Iterator[Columns]:
    """With nothing held of what was handed out."""
    yield first.pop()
    yield from rest


def _validated(recipe: Recipe, batch: Columns, model: nn.Module) -> dict[str, Tensor]:
    return recipe.validation_step(model, batch)


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
