"""What fused lanes return: the values of their steps, and their scores on validation data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns, step_batch
from shoal.train.fuse.agreement import agreements_of, same_scores
from shoal.train.fuse.models import StackedModels
from shoal.train.fuse.obstacles import Lanes, Unfusable
from shoal.train.lane.device import doubled
from shoal.train.lane.scoring import EVALUATION_BATCHES, evaluate, score_values, scoring
from shoal.train.lane.tensors import flags_kept
from shoal.train.recipe.hooks import scores_whole
from shoal.train.recipe.unit import RAISED

Means = dict[str, float]
Values = dict[str, Any]  # by name
Items = list[tuple[int, Any]]  # samples of a step, and what it returned


class FusedScores:
    """Scores of fused lanes: all at once, or lane by lane where that is quicker.

    Validation changes no parameter, buffer, random state or training flag.
    """

    def __init__(self, lanes: Lanes, models: StackedModels, key: str) -> None:
        self._lanes = lanes
        self._models = models
        self._key = key
        self._size = EVALUATION_BATCHES * lanes[0].settings.batch_size
        # seconds of the newest evaluation that went into how to do it
        self.decision_seconds = 0.0

    def evaluate(self, validation: Iterable[Columns], timed: bool) -> list[Means]:
        """The scores of each lane, as `scoring.evaluate` gives them.

        Lane by lane where they cannot be had at once; `timed`: or where that is quicker.
        """
        self.decision_seconds = 0.0
        chunks = iter(validation)
        first = next(chunks, None)
        if first is None:
            return [{} for _ in self._lanes]

        begin = perf_counter()
        at_once = self._at_once(cols.cut(first, 0, self._size), timed)
        self.decision_seconds = perf_counter() - begin

        all_chunks = _joined([first], chunks)
        del first, chunks
        if at_once:
            return self.together(all_chunks)
        return self._one_by_one(all_chunks)

    # -- how to do it ------------------------------------------------------------------------------

    def _at_once(self, piece: Columns, timed: bool) -> bool:
        """Whether to validate all lanes at once; found out once in a process."""
        if scores_whole(self._lanes[0].recipe):
            return False
        agreements = agreements_of(self._lanes[0].recipe)
        key = (self._key, "scores")
        if key not in agreements:
            agreements[key] = self._agree(piece)
        if not agreements[key] or not timed:
            return agreements[key]

        speed_key = (self._key, len(self._lanes))
        if speed_key not in agreements:
            agreements[speed_key] = self._is_quicker(piece)
        return agreements[speed_key]

    def _agree(self, piece: Columns) -> bool:
        """Whether the lanes' scores at once are those of each alone."""
        alone = [evaluate(lane, [piece]) for lane in self._lanes]
        try:
            fused = self.together([piece])
        except RAISED:  # whatever cannot be vectorized can still be done lane by lane
            return False

        samples = cols.rows(piece)
        for alone_scores, fused_scores in zip(alone, fused, strict=True):
            if not same_scores(alone_scores, fused_scores, samples):
                return False
        return True

    def _is_quicker(self, piece: Columns) -> bool:
        """Whether a batch takes less time at once than lane by lane; the least of two counts."""
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for at_once in (True, False) * 2:
            begin = perf_counter()
            if at_once:
                self.together([piece])
            else:
                self._one_by_one([piece])
            seconds[at_once].append(perf_counter() - begin)
        return min(seconds[True]) < min(seconds[False])

    # -- lane by lane ------------------------------------------------------------------------------

    def _one_by_one(self, chunks: Iterable[Columns]) -> list[Means]:
        """Score the lanes one by one on each chunk, before the next is made."""
        with ExitStack() as opened:
            scores = [opened.enter_context(scoring(lane)) for lane in self._lanes]
            for chunk in chunks:
                for each in scores:
                    each.add(chunk)
            return [each.scores() for each in scores]

    # -- all at once -------------------------------------------------------------------------------

    def together(self, chunks: Iterable[Columns]) -> list[Means]:
        """The means of each lane, all computed at once."""
        totals: dict[str, Tensor] = {}  # by name (k,): sums
        counts: dict[str, int] = {}
        with self._validating():
            for chunk in chunks:
                for start in range(0, cols.rows(chunk), self._size):
                    batch = cols.cut(chunk, start, start + self._size)
                    count = cols.rows(batch)
                    for name, values in self._validated(batch).items():
                        totals[name] = totals.get(name, 0.0) + values
                        counts[name] = counts.get(name, 0) + count

        means: list[Means] = [{} for _ in self._lanes]
        for name, total in totals.items():
            by_lane = (total / counts[name]).tolist()
            for lane_means, value in zip(means, by_lane, strict=True):
                lane_means[name] = value
        return means

    @contextmanager
    def _validating(self) -> Iterator[None]:
        """Puts the model in evaluation mode within; afterwards all is as it was."""
        models = self._models
        fast = torch.backends.mha.get_fastpath_enabled()
        models.keep()
        try:
            # its kernels cannot be vectorized
            torch.backends.mha.set_fastpath_enabled(False)
            untouched = self._lanes[0].rng.untouched()
            with flags_kept(models.model), untouched, torch.no_grad():
                models.model.eval()
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
            models.undo()

    def _validated(self, batch: Columns) -> dict[str, Tensor]:
        """The lanes' sums (k,) of each score over the batch's samples."""
        first = self._lanes[0]
        step_batch(batch)

        def forward(model: nn.Module) -> dict[str, Tensor]:
            outcome = first.hooks.validation_step(model, batch, first.progress)
            return dict(score_values(outcome))

        with first.casting():
            scores = self._models.run(forward)
        lanes, samples = len(self._lanes), cols.rows(batch)
        sums = {}
        for name, values in scores.items():
            shape = tuple(values.shape) if isinstance(values, Tensor) else None
            if shape == (lanes, samples):
                sums[name] = doubled(values).sum(1)
            elif shape == (lanes,):  # means over the batch
                sums[name] = doubled(values) * samples
            else:
                raise Unfusable(f"validation_step: {name} is not a value for each sample")
        return sums


def _joined(first: list[Columns], rest: Iterator[Columns]) -> Iterator[Columns]:
    """All chunks; those handed out are not kept."""
    return chain((first.pop() for _ in (0,)), rest)


class FusedNotes:
    """The values that each fused step returned since the lanes were last given theirs.

    Reading all values in one call takes a tenth of the time of reading them one by one.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        # of each step its samples, and its values by name
        self._steps: list[tuple[int, Values]] = []

    def add(self, outcome: Mapping[str, Any], samples: int) -> None:
        """Note what one step on so many samples returned: tensors (k, ...), numbers for all."""
        copies = {  # numbers, and tensors that stay as they are
            name: value.detach().clone() if isinstance(value, Tensor) else float(value)
            for name, value in outcome.items()
        }
        if not self._steps:
            for lane in self._lanes:
                lane.metrics.pending = self.tell
        self._steps.append((samples, copies))

    def tell(self) -> None:
        """Give the lanes what was noted of them."""
        for lane in self._lanes:
            lane.metrics.pending = None
        by_name: defaultdict[str, Items] = defaultdict(list)
        for samples, values in self._steps:
            for name, value in values.items():
                by_name[name].append((samples, value))
        self._steps = []
        for name, items in by_name.items():
            counts = [samples for samples, _ in items]
            by_lane = self._by_lane([value for _, value in items])
            for lane, lane_values in zip(self._lanes, by_lane, strict=True):
                noted = lane.metrics.by_name.setdefault(name, [])
                noted.extend(zip(counts, lane_values, strict=True))

    def _by_lane(self, values: Sequence[Any]) -> Iterable[Iterable[Any]]:
        """The values of one name by lane, from those by step."""
        if all(isinstance(value, Tensor) and value.dim() == 1 for value in values):
            numbers: list[list[float]] = torch.stack(list(values)).T.tolist()
            return numbers
        lanes = len(self._lanes)
        steps = [
            value.unbind() if isinstance(value, Tensor) else [value] * lanes for value in values
        ]
        return zip(*steps, strict=True)
