"""A lane's scores on validation data, chunk by chunk: several lanes can share the chunks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.lane.device import doubled
from shoal.train.lane.gathered import Gathered
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.noted import check_names
from shoal.train.lane.tensors import buffers
from shoal.train.recipe.hooks import scores_whole
from shoal.train.recipe.shard import ValueSum
from shoal.train.stream.stream import Batches

# without gradients a batch of so many training batches fits where one of those does
EVALUATION_BATCHES = 4
RULE = (
    "validation_step must return {name: values}, the values a tensor of shape (n,), one for each "
    "of the n samples, or one number, the mean over the batch; a tensor alone counts as the loss"
)


# recipes and names of values that a warning took for counts
_counts: set[tuple[type, str]] = set()
Record = list[tuple[int, dict[str, Any]]]  # of each batch its samples, and its values


class Scoring:
    """Scores over the chunks so far: means, and what needs all samples at once."""

    def __init__(self, lane: TrainingLane) -> None:
        self._lane = lane
        self._totals: dict[str, list[Any]] = {}  # by name: sum and samples
        self._whole: Gathered | None = None
        # by name the first batch's value, where it is one number, and the batch's samples
        self._first: dict[str, tuple[Any, int]] = {}
        # of validation steps that hand a state from batch to batch, each row its own stream
        self._cut: Batches | None = None
        if lane.settings.carries:
            self._cut = Batches(lane.settings.batch_size)
            lane.hooks.scored.restart()
        if scores_whole(lane.recipe):
            with lane.rng, torch.no_grad():
                self._whole = Gathered(lane)

    def add(self, chunk: Columns) -> None:
        """Validate on these samples, too.

        Raises:
            TypeError, ValueError: `validation_step` returns something that is no score.
        """
        lane = self._lane
        with lane.rng, torch.no_grad():
            for batch in self._batches(chunk):
                self._add(batch)
            for total in self._totals.values():  # on the device until here
                total[0] = float(total[0])

    def _batches(self, chunk: Columns) -> Iterator[Columns]:
        """The chunk in batches."""
        if self._cut is not None:
            for batch, _ in self._cut.of(chunk):
                yield batch
            return
        size = EVALUATION_BATCHES * self._lane.settings.batch_size
        for start in range(0, cols.rows(chunk), size):
            yield cols.cut(chunk, start, start + size)

    def recorded(self, chunk: Columns) -> Record:
        """What `take` takes in place of each batch of these samples, in main memory.

        Raises:
            TypeError, ValueError: `validation_step` returns something that is no score.
        """
        with self._lane.rng, torch.no_grad():
            return [self._kept(batch) for batch in self._batches(chunk)]

    def _kept(self, batch: Columns) -> tuple[int, dict[str, Any]]:
        count = cols.rows(batch)
        kept: dict[str, Any] = {}
        for name, values in self._outcome(batch).items():
            if self._whole is not None and self._whole.takes(name):
                kept[name] = self._whole.output(name, values, count)
            elif isinstance(values, ValueSum):
                kept[name] = values
            else:
                kept[name] = ValueSum(float(_sum(name, values, count)), count)
        return count, kept

    def take(self, record: Record) -> None:
        """Take what `recorded` gave, here or in another process, as if it had been added."""
        with self._lane.rng, torch.no_grad():
            for count, by_name in record:
                self._take(by_name, count)

    def _add(self, batch: Columns) -> None:
        """Validate on one batch."""
        self._take(self._outcome(batch), cols.rows(batch))

    def _outcome(self, batch: Columns) -> Mapping[str, Any]:
        """What the validation step gives for the batch."""
        lane = self._lane
        with lane.casting():
            outcome = lane.hooks.validation_step(lane.model, batch, lane.progress)
        return named_scores(outcome)

    def _take(self, by_name: Mapping[str, Any], count: int) -> None:
        """Take what one batch of so many samples gave."""
        if self._whole is not None:
            by_name = self._whole.take(by_name, count)
        for name, values in by_name.items():
            if name not in self._totals and count > 1 and _is_number(values):
                self._first[name] = values, count
            total = self._totals.setdefault(name, [0.0, 0])
            if isinstance(values, ValueSum):
                total[0] += values.total
                total[1] += values.samples
                continue
            total[0] = total[0] + _sum(name, values, count)
            total[1] += count

    def scores(self) -> dict[str, float]:
        """The scores of all samples so far. To be called where they may be added.

        Raises:
            TypeError, ValueError: a score is not one number.
        """
        rest = None if self._cut is None else self._cut.end()
        if rest is not None:
            with self._lane.rng, torch.no_grad():
                self._add(rest[0])
        found = {name: float(total) / count for name, (total, count) in self._totals.items()}
        for name, (value, count) in self._first.items():
            _warn_of_count(type(self._lane.recipe), name, float(value), count)
        self._first = {}
        if self._whole is not None:
            with self._lane.rng, torch.no_grad():
                found |= self._whole.scores()
        found |= self._lane.adapter.scores()
        check_names(found)
        return found


def named_scores(outcome: Any) -> Mapping[str, Any]:
    """What a validation step returned, by name.

    Raises:
        TypeError: it is neither a mapping nor a tensor.
    """
    if isinstance(outcome, Tensor):
        return {"loss": outcome}
    if isinstance(outcome, Mapping):
        check_names(outcome)
        return outcome
    raise TypeError(f"{RULE}; got {type(outcome).__name__}")


def _is_number(values: Any) -> bool:
    """Whether a batch's value is one number, which is taken for a mean."""
    if isinstance(values, Tensor):
        return values.dim() == 0
    return isinstance(values, Real)


def _warn_of_count(recipe: type, name: str, value: float, samples: int) -> None:
    """Say once if a batch's value looks like a count of its samples, not like their mean."""
    if not (1 < value <= samples and value % 1 == 0) or (recipe, name) in _counts:
        return
    _counts.add((recipe, name))
    warnings.warn(
        f"validation gives {name!r} = {value:g} for a batch of {samples} samples, and it is taken "
        "for their mean. If it is a count or a sum, give one value for each sample, as "
        "(predicted == y).float(), or divide by their number",
        stacklevel=2,
    )


def _sum(name: str, values: Any, samples: int) -> Any:
    """The sum over the samples, of their values or of their mean."""
    if isinstance(values, Tensor):
        shape = tuple(values.shape)
        if shape == (samples,):
            return doubled(values).sum()
        if shape == ():
            return doubled(values) * samples
        raise ValueError(
            f"{RULE}; {name}: got shape {shape} for {samples} samples{_reshaped(shape, samples)}"
        )
    if isinstance(values, Real):
        return float(values) * samples
    raise TypeError(f"{RULE}; {name}: got {type(values).__name__}")


def _reshaped(shape: tuple[int, ...], samples: int) -> str:
    """What makes a value for each sample of values in that shape; empty if nobody knows."""
    if shape in ((samples, 1), (1, samples)):
        return ": give it flattened, .reshape(-1)"
    if shape == (samples, samples):
        return ": shapes (n, 1) and (n,) were compared, make both (n,) by .reshape(-1)"
    if shape[0] == samples:
        return ": give its mean over the other axes, .flatten(1).mean(1)"
    return ": give its .mean()"


@contextmanager
def scoring(lane: TrainingLane) -> Iterator[Scoring]:
    """Have the lane validated.

    Afterwards no buffer, random state or training flag has changed, nor what else belongs to the
    trial's state: see `ModelChanges`.
    """
    flags = [(module, module.training) for module in lane.model.modules()]
    before = buffers(lane.model)
    mark = lane.rng.mark()
    try:
        with lane.changes.undone(lane.device):
            try:
                lane.model.eval()
                with lane.adapter.validating():
                    yield Scoring(lane)
            finally:
                for module, flag in flags:
                    module.training = flag
                before.put_back()
    finally:
        lane.rng.back(mark)


def evaluate(lane: TrainingLane, chunks: Iterable[Columns]) -> dict[str, float]:
    """The lane's scores. Changes nothing of the lane, as `scoring`."""
    with scoring(lane) as scores:
        for chunk in chunks:
            scores.add(chunk)
        return scores.scores()


def rehearse(lane: TrainingLane, chunk: Columns) -> None:
    """Validate on these samples, whose scores nobody wants. Changes nothing of the lane."""
    with scoring(lane) as scores:
        scores.add(chunk)
