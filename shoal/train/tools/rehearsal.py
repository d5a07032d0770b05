"""A batch and a smaller last one, trained and validated before a study begins: to find mistakes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from difflib import get_close_matches
from functools import partial
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.collate import tensors_in
from shoal.train.data.columns import Columns
from shoal.train.data.data import Data
from shoal.train.data.parts import Index
from shoal.train.lane import tree
from shoal.train.lane.batch_size_search import is_open, with_size
from shoal.train.lane.blame import no_room, rest_remedy
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.model_changes import same
from shoal.train.lane.scoring import EVALUATION_BATCHES, NotANumberError, scoring
from shoal.train.private import delay_compiler
from shoal.train.recipe.adapter import Adapted, NotOfferedError
from shoal.train.recipe.guard import OWN_STATE, changing, shared_label, warn_of_shared
from shoal.train.recipe.hooks import scores_whole, validates
from shoal.train.recipe.recipe import Recipe, overrides
from shoal.train.recipe.recipe_code import NotInSpaceError, Watched
from shoal.train.recipe.settings import FOLD, data_key, seed_of, seen_by, settings
from shoal.train.recipe.shard import ShardRecipe
from shoal.train.recipe.unit import RAISED, named_apart
from shoal.train.rng import Rng
from shoal.train.slot.shared_state import SharedCode, SharedValues, attributes_of, own_copy
from shoal.train.stream.stream import Stream
from shoal.train.tools.error_text import said
from shoal.train.tools.keys import check_attributes
from shoal.train.tools.model_trial import lacking
from shoal.train.tools.verify import differences

LARGE = 20_000_000  # parameters of a model that is not worth a rehearsal
MOST_BYTES = 2**24  # of a batch that is rehearsed
SMALL = 32  # samples of a batch whose size is to be found out
SEARCHED = 2**26  # bytes of a shard that is searched for telling samples

REPEATS = 3  # rehearsals, each with what the one before left on the recipe


class Mistake(ValueError):  # noqa: N818
    """What is wrong with a recipe, in one line for people."""


def is_rehearsed(recipe: Recipe, data: Data) -> bool:
    """Whether a step can be tried: samples can be read one by one, and steps are the recipe's."""
    excluded = isinstance(recipe, ShardRecipe) or overrides(recipe, "features")
    return data.by_rows and not excluded


def rehearse(
    recipe: Recipe,
    data: Data,
    config: Mapping[str, Any],
    seed: int,
    device: str,
    metric: str | None,
    mode: str | None = None,
) -> None:
    """Train a new model of this configuration, validate it, and throw it away.

    It is trained on a whole batch, and on a batch as small as the smallest at the end of a pass.
    No random state changes. No step is taken with a model that is compiled first, and with large
    batches. The recipe `is_rehearsed`.

    Raises:
        Mistake: the recipe's code raised, or what it gives is not what it must be.
    """
    size_is_open = is_open(recipe, config)
    if size_is_open:
        config = with_size(config, SMALL)
    delay_compiler()
    torch_device = torch.device(device)

    def rehearsal(variant: Recipe) -> _Rehearsal:
        return _Rehearsal(variant, data, config, seed, torch_device, metric, mode, not size_is_open)

    _train_twice(rehearsal, recipe)


def _train_twice(rehearsal: Callable[[Recipe], _Rehearsal], recipe: Recipe) -> None:
    """Rehearse; where steps change what the recipe holds, again with what they left there.

    Raises:
        Mistake: see `rehearse`; or what they left there changes what a trial learns.
    """
    used, fresh = own_copy(recipe), own_copy(recipe)
    if isinstance(recipe, Adapted):  # each trial has a module of its own
        rehearsal(used).run()
        return
    shared_values = SharedValues(partial(attributes_of, used))
    first = rehearsal(used).run()
    names = shared_values.changed()
    if not names or first is None:
        return
    differs = False
    for _ in range(REPEATS):
        left = own_copy(used)
        differs = any(differences(first, rehearsal(used).run()))
        changed = shared_values.changed()
        if differs or not changed:  # a cache is full by now
            break
    if differs and not any(differences(first, rehearsal(fresh).run())):
        guilty = []
        for name in names:
            alone = own_copy(recipe)
            vars(alone)[name] = getattr(left, name)
            if any(differences(first, rehearsal(alone).run())):
                guilty.append(name)
        raise Mistake(
            f"{changing(_labels(recipe, guilty or names))}, and results differ by it; {OWN_STATE}"
        )
    sure = [name for name in changed if differs or name not in shared_values.unknown]
    labels = _labels(recipe, sure)
    notes = [] if differs else SharedCode(recipe).notes(labels)
    warn_of_shared([label for label in labels if label not in notes])


def _labels(recipe: Recipe, names: Iterable[str]) -> list[str]:
    """The attributes as messages name them."""
    return [shared_label(recipe, name) for name in names]


class _Rehearsal:
    """A step of one configuration, and a validation."""

    def __init__(
        self,
        recipe: Recipe,
        data: Data,
        config: Mapping[str, Any],
        seed: int,
        device: torch.device,
        metric: str | None,
        mode: str | None,
        trains_rest: bool,
    ) -> None:
        self._recipe = recipe
        self._data = data
        self._config = Watched(config)
        self._seed = seed
        self._device = device
        self._chunk: Columns | None = None  # that a step got last
        self._metric = metric
        self._mode = mode
        self._trains_rest = trains_rest  # whether the size of batches is known

    def run(self) -> dict[str, Any] | None:
        """Train, validate, and look at what came out.

        Returns weights, values and scores; None where no step was taken. That memory ran out is no
        mistake: the trial will say so.

        Raises:
            Mistake: see `rehearse`.
        """
        try:
            with Rng(seed_of(self._config, self._seed), self._device):
                return self._run()
        except Mistake:
            raise
        except NotInSpaceError as error:
            raise Mistake(lacking(self._recipe, self._config, error)) from error
        except RAISED as error:
            if not no_room(error):
                raise Mistake(said(error, self._described())) from error
        return None

    def _run(self) -> dict[str, Any] | None:
        key = data_key(self._recipe, self._config)
        data = self._data
        if data.arrangement.folds is not None:
            data = data.of_fold(dict(key)[FOLD])
        few = self._few(data)
        lane = TrainingLane(
            self._recipe,
            self._config,
            seed=seed_of(self._config, self._seed),
            device=self._device,
            epoch=float(self._data.samples),
        )
        lane.optimization.check_metric(self._metric, self._mode)
        if few is None or hasattr(lane.model, "_orig_mod"):  # to compile takes long
            return None
        stream = Stream(
            seen_by(self._recipe, key), few, seed=self._seed, device=self._device, memory_gb=0.0
        )
        trained = self._trained(lane, stream, few.shards[0])
        self._check_trained(lane, trained.get("loss", 0.0))
        self._train_rest(lane, data)
        scores = None
        if validates(self._recipe, few):
            scores = self._scored(lane, stream, data)
            if scores is not None and not lane.hooks.scores_by_epoch:
                _check_metric(self._metric, {*scores, *named_apart(trained, scores)})
        try:
            check_attributes(self._recipe, self._config, lane.model, stepped=True)
        except ValueError as error:
            raise Mistake(str(error)) from error
        weights = tree.to_numpy(lane.model.state_dict())
        return {"weights": weights, "trained": trained, "scores": scores or {}}

    # -- the samples -------------------------------------------------------------------------------

    def _few(self, data: Data) -> Data | None:
        """A batch of training data, and as much validation data; None if that is a lot."""
        size = settings(self._recipe, self._config).batch_size
        if size * data.row_bytes > MOST_BYTES:
            return None
        parts = (*data.shards[:1], *data.validation[:1])
        return data.few({part: _telling_index(data, part, size) for part in parts})

    def _described(self) -> str:
        """The batch that a step got last, in words; empty if none did."""
        if self._chunk is None:
            return ""
        try:
            return described(cols.step_batch(self._chunk))
        except RAISED:  # collate cannot make it
            return ""

    # -- the steps ---------------------------------------------------------------------------------

    def _trained(self, lane: TrainingLane, stream: Stream, shard: ShardId) -> dict[str, float]:
        """Train on the batch; returns what the last step gave, by name."""
        lane.begin(self._data.size(shard))
        with closing(stream.chunks(shard, 0, lane.settings.order)) as chunks:
            for chunk in chunks:
                self._chunk = chunk
                with lane.rng:
                    deque(lane.feed(chunk), maxlen=0)
        with lane.rng:
            deque(lane.flush(), maxlen=0)
        lane.changes.check()
        return {name: float(items[-1][1]) for name, items in lane.metrics.take().items()}

    def _train_rest(self, lane: TrainingLane, data: Data) -> None:
        """Train on the first samples of the batch, as many as the smallest last batch has.

        Raises:
            Mistake: its loss makes the model's numbers useless.
        """
        size = lane.settings.batch_size
        rests = [(n % size, n) for n in data.sizes.values() if n % size and n > size]
        if not rests or not self._trains_rest or lane.settings.drop_last:
            return
        rest, shard = min(rests)
        if self._chunk is None or cols.rows(self._chunk) <= rest:
            return
        self._chunk = cols.cut(self._chunk, 0, rest)
        lane.begin(shard, at=shard - rest)
        were_finite = _are_finite(lane.model.parameters())
        with lane.rng:
            deque(lane.last(self._chunk, rest), maxlen=0)
            lane.close()
        lane.changes.check()
        if were_finite and not _are_finite(lane.model.parameters()):
            raise Mistake(
                "the loss or its gradient is not finite (NaN) on few samples; "
                + rest_remedy(rest, size, shard)
            )

    def _check_trained(self, lane: TrainingLane, loss: float) -> None:
        """Raise Mistake if the loss is of another model, or not finite because of the data."""
        gradients = [parameter.grad for parameter in lane.parameters]
        if not lane.hooks.steps_itself and all(each is None for each in gradients):
            raise Mistake(
                "the loss of training_step depends on no parameter that the optimizer steps: "
                "compute it with the model that training_step gets"
            )
        numbers = tensors_in(cols.step_batch(self._chunk))
        parameters = lane.model.parameters()
        if not isfinite(loss) and not _are_finite(parameters) and not _are_finite(numbers):
            raise Mistake(
                "the data holds numbers that are not finite (NaN), and so is the loss; the batch: "
                f"{self._described()}; fill them in, or leave such samples out"
            )

    def _scored(self, lane: TrainingLane, stream: Stream, data: Data) -> dict[str, float] | None:
        """The scores of the validation batch; None where so few samples may have none."""
        weights = {n: p.detach().clone() for n, p in lane.model.named_parameters()}
        with scoring(lane) as scores:
            for chunk in stream.validation(lane.settings.scored_order):
                self._chunk = chunk
                scores.add(chunk)
                rest = _smallest_scored(data, lane.settings.batch_size)
                if rest < cols.rows(chunk):
                    self._chunk = cols.cut(chunk, 0, rest)
                    scores.add(self._chunk)
            self._chunk = None
            values = self._scores_or_none(scores.scores)
        for name, weight in lane.model.named_parameters():
            if not same(weight.detach(), weights[name]):
                raise Mistake(
                    f"validation changes the weights {name!r}, and how often a trial is validated "
                    "must not change what it learns: change them in training_step"
                )
        if values is None:
            return None
        with lane.rng:
            name = self._metric or ""
            end_scores = self._scores_or_none(lambda: lane.end_epoch(values.get(name), name))
        return None if end_scores is None else {**values, **end_scores}

    def _scores_or_none(
        self, scores: Callable[[], Mapping[str, float]]
    ) -> Mapping[str, float] | None:
        """The scores; None where so few samples may have none."""
        try:
            return scores()
        except (NotOfferedError, NotANumberError):
            raise
        except RAISED:
            if scores_whole(self._recipe) or isinstance(self._recipe, Adapted):
                return None
            raise


def _smallest_scored(data: Data, size: int) -> int:
    """Samples of the smallest batch of a validation, where those of training have `size`."""
    size *= EVALUATION_BATCHES
    sizes = []
    for part in data.validation:
        samples = data.size(part)
        for chunk in {min(samples, data.chunk), samples % data.chunk}:
            sizes += [min(chunk, size), chunk % size]
    return min(filter(None, sizes))


def _telling_index(data: Data, part: ShardId, size: int) -> Index:
    """So many samples of the part: those that may show a mistake, and the first ones."""
    count = min(size, data.size(part))
    rows = list(range(count))
    if data.in_memory and data.size(part) * data.row_bytes <= SEARCHED:
        telling = telling_rows(data.read(part))
        rows = list(dict.fromkeys([*telling, *rows]))[:count]
    return np.array(sorted(rows))


def telling_rows(columns: Columns) -> Iterator[int]:
    """Samples with the least and the largest whole number, and the first that is not finite."""
    for column in cols.parts(columns):
        if not isinstance(column, np.ndarray) or not column.size:
            continue
        rows = column.reshape(len(column), -1)
        if rows.dtype.kind in "iu":
            yield int(rows.min(1).argmin())
            yield int(rows.max(1).argmax())
        elif rows.dtype.kind == "f":
            yield int(np.isfinite(rows.sum(1)).argmin())


def _are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of the tensors are finite."""
    return all(bool(torch.isfinite(each).all()) for each in tensors)


def described(batch: Any) -> str:
    """The batch's tensors in words."""
    kinds = [(str(each.dtype), tuple(each.shape)) for each in tensors_in(batch)]
    return ", ".join(f"{kind.removeprefix('torch.')} {shape}" for kind, shape in kinds)


def _check_metric(metric: str | None, names: Collection[str]) -> None:
    """Raise Mistake if the metric is none of these values."""
    if metric is None or metric in names:
        return
    near = get_close_matches(metric, names, 1)
    meant = f" did you mean {near[0]!r}?" if near else ""
    raise Mistake(
        f"trials have no metric {metric!r}; evaluations give {', '.join(sorted(names))}:{meant} "
        "set metric= to one of them"
    )
