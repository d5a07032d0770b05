"""A lane's scores on validation data, chunk by chunk: several lanes can share the chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from shoal.core.errors import warn
from shoal.train.data import columns as cols
from shoal.train.data.columns import Columns
from shoal.train.lane.device import doubled
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.tensors import buffers, flags_kept
from shoal.train.lane.training_metrics import check_names
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
    """The scores over the chunks so far: means, and those that need all samples at once."""

    def __init__(self, lane: TrainingLane) -> None:
        self._lane = lane
        self._totals: dict[str, list[Any]] = {}  # by name: sum and samples
        self._whole: WholeSetScores | None = None
        # by name the first batch's value, where it is one number, and the batch's samples
        self._first: dict[str, tuple[Any, int]] = {}
        # of validation steps that hand a state from batch to batch, each row its own stream
        self._cut: Batches | None = None
        if lane.settings.carries:
            self._cut = Batches(lane.settings.batch_size)
            lane.hooks.scored.restart()
        if scores_whole(lane.recipe):
            with lane.rng, torch.no_grad():
                self._whole = WholeSetScores(lane)

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

    def record(self, chunk: Columns) -> Record:
        """Validate on these samples; the outcomes in main memory, as `take` takes them.

        Raises:
            TypeError, ValueError: `validation_step` returns something that is no score.
        """
        record: Record = []
        with self._lane.rng, torch.no_grad():
            for batch in self._batches(chunk):
                count = cols.rows(batch)
                by_name: dict[str, Any] = {}
                for name, values in self._outcome(batch).items():
                    if self._whole is not None and self._whole.takes(name):
                        by_name[name] = self._whole.output(name, values, count)
                    elif isinstance(values, ValueSum):
                        by_name[name] = values
                    else:
                        by_name[name] = ValueSum(float(_sum(name, values, count)), count)
                record.append((count, by_name))
        return record

    def take(self, record: Record) -> None:
        """Take what `record` gave, here or in another process, as if it had been added."""
        with self._lane.rng, torch.no_grad():
            for count, by_name in record:
                self._take(by_name, count)

    def _add(self, batch: Columns) -> None:
        """Validate on one batch."""
        self._take(self._outcome(batch), cols.rows(batch))

    def _outcome(self, batch: Columns) -> Mapping[str, Any]:
        """The outcome of the validation step for the batch, by name."""
        lane = self._lane
        with lane.casting():
            outcome = lane.hooks.validation_step(lane.model, batch, lane.progress)
        return score_values(outcome)

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
        scores = {name: float(total) / count for name, (total, count) in self._totals.items()}
        for name, (value, count) in self._first.items():
            _warn_of_count(type(self._lane.recipe), name, float(value), count)
        self._first = {}
        if self._whole is not None:
            with self._lane.rng, torch.no_grad():
                scores |= self._whole.scores()
        scores |= self._lane.adapter.scores()
        check_names(scores)
        return scores


def score_values(outcome: Any) -> Mapping[str, Any]:
    """The values that a validation step returned, by name.

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
    warn(
        f"validation gives {name!r} = {value:g} for a batch of {samples} samples, and it is taken "
        "for their mean. If it is a count or a sum, give one value for each sample, as "
        "(predicted == y).float(), or divide by their number"
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
    """A remedy for values in that shape, where there should be one for each sample."""
    if shape in ((samples, 1), (1, samples)):
        return ": give it flattened, .reshape(-1)"
    if shape == (samples, samples):
        return ": shapes (n, 1) and (n,) were compared, make both (n,) by .reshape(-1)"
    if shape[0] == samples:
        return ": give its mean over the other axes, .flatten(1).mean(1)"
    return ": give its .mean()"


@contextmanager
def scoring(lane: TrainingLane) -> Iterator[Scoring]:
    """Validate the lane within, which afterwards is as before.

    No buffer, random state or training flag has changed, nor what else belongs to the trial's
    state: see `ModelChanges`.
    """
    before = buffers(lane.model)
    mark = lane.rng.mark()
    try:
        with lane.changes.undone(lane.device):
            try:
                with flags_kept(lane.model):
                    lane.model.eval()
                    with lane.adapter.validating():
                        yield Scoring(lane)
            finally:
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


OUTPUTS_RULE = (
    "validation_step, in a recipe with validation_epoch, must return {name: tensor}, the first "
    "axis of each the n samples of the batch; or one number, the mean over the batch"
)
EPOCH_RULE = "validation_epoch must return {name: one number}"
METRICS_RULE = (
    "configure_metrics must return {name: metric}, each with update(…), compute() and reset(), as "
    "torchmetrics has them"
)


class NotANumberError(TypeError):
    """What should be a score is not one number, however many samples there are."""


class WholeSetScores:
    """The inputs of `validation_epoch` and of the metrics of `configure_metrics` in one evaluation.

    Neither is part of the trial's state.

    Raises:
        TypeError: what `configure_metrics` returned are no metrics.
        SharedError: one of them is another trial's, too.
    """

    def __init__(self, lane: TrainingLane) -> None:
        self._lane = lane
        self._outputs: dict[str, list[Tensor]] = {}
        self._metrics = lane.hooks.metrics(lane.device)
        self._updated: set[str] = set()
        for name, metric in self._metrics.items():
            for method in ("update", "compute", "reset"):
                if not callable(getattr(metric, method, None)):
                    kind = type(metric).__name__
                    raise TypeError(f"{METRICS_RULE}; {name}: {kind} has no {method}")
        lane.ownership.hold_objects("configure_metrics", self._metrics.values())
        for metric in self._metrics.values():
            metric.reset()

    def take(self, values: Mapping[str, Any], samples: int) -> dict[str, Any]:
        """Take what one batch of so many samples gave; returns the values that are to be averaged.

        Raises:
            TypeError, ValueError: a value is not what is needed under its name.
        """
        averaged = {}
        for name, value in values.items():
            if name in self._metrics:
                self._update(name, value)
            elif self._lane.hooks.gathers:
                output = _output(name, value, samples)
                self._outputs.setdefault(name, []).append(output)
            else:
                averaged[name] = value
        return averaged

    def takes(self, name: str) -> bool:
        """Whether the values of this name are needed as they are, and not as sums."""
        return name in self._metrics or self._lane.hooks.gathers

    def output(self, name: str, value: Any, samples: int) -> Any:
        """A batch's value in main memory, for `take` in another process.

        Raises:
            TypeError, ValueError: as `take`.
        """
        if name not in self._metrics:
            return _output(name, value, samples)
        if not isinstance(value, tuple):
            return value  # which `take` refuses
        return tuple(each.detach().cpu() if isinstance(each, Tensor) else each for each in value)

    def _update(self, name: str, value: Any) -> None:
        """Show a batch to one metric."""
        if not isinstance(value, tuple):
            raise TypeError(
                f"configure_metrics has {name!r}, so that validation_step must return "
                f"{{{name!r}: (predictions, targets)}}; got {type(value).__name__}"
            )
        device = self._lane.device
        on_device = (each.to(device) if isinstance(each, Tensor) else each for each in value)
        self._metrics[name].update(*on_device)
        self._updated.add(name)

    def scores(self) -> dict[str, float]:
        """The scores of all batches so far.

        Raises:
            NotANumberError: a score is not one number.
            ValueError: a metric saw no batch.
        """
        scores: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if name not in self._updated:
                raise ValueError(
                    f"configure_metrics has {name!r}, and validation_step returned nothing under "
                    f"that name: return {{{name!r}: (predictions, targets)}}"
                )
            scores |= dict(_computed(name, metric.compute()))
            metric.reset()
        if self._outputs:
            scores |= self._of_epoch()
        return scores

    def _of_epoch(self) -> dict[str, float]:
        """The scores of `validation_epoch`."""
        lane = self._lane
        outputs = {name: torch.cat(parts) for name, parts in self._outputs.items()}
        with flags_kept(lane.model):
            # of fused lanes only the first one's model is in evaluation mode by now
            if lane.hooks.epoch_gets_model:
                lane.model.eval()
            outcome = lane.hooks.validation_epoch(lane.model, outputs, lane.progress)
        if not isinstance(outcome, Mapping):
            raise TypeError(f"{EPOCH_RULE}; got {type(outcome).__name__}")
        return {name: _number(name, value, EPOCH_RULE) for name, value in outcome.items()}


def _output(name: str, value: Any, samples: int) -> Tensor:
    """A batch's output in main memory, with a row for each sample."""
    if isinstance(value, Real):
        value = torch.tensor(float(value))
    if not isinstance(value, Tensor):
        raise TypeError(f"{OUTPUTS_RULE}; {name}: got {type(value).__name__}")
    if value.dim() == 0:
        value = value.expand(samples)
    shape = tuple(value.shape)
    if shape[0] != samples:
        raise ValueError(f"{OUTPUTS_RULE}; {name}: got shape {shape} for {samples} samples")
    rows: Tensor = value.detach().cpu()
    return rows


def _computed(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """A metric's result by name; of one that computes several, each with its own name behind."""
    if isinstance(value, Mapping):
        for part, each in value.items():
            yield from _computed(f"{name}_{part}", each)
        return
    yield name, _number(name, value, "compute() of a metric must give one number")


def _number(name: str, value: Any, rule: str) -> float:
    """The value as a number.

    Raises:
        NotANumberError: it is not one number.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise NotANumberError(
            f"{rule}; {name}: got shape {shape}: give its mean, or each of its numbers under a "
            "name of its own"
        )
    if not isinstance(value, Real):
        raise NotANumberError(f"{rule}; {name}: got {str(value)[:60]}")
    return float(value)
