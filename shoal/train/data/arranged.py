"""The same data in another arrangement: weighted, balanced, in buckets of length, in folds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

import numpy as np

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.draws import SampleDraws, Weighted, balancing, checked_weights
from shoal.train.data.folds import Folds, made_folds
from shoal.train.data.parts import Index, Source
from shoal.train.data.placed.at_nodes import AtNodes
from shoal.train.data.ragged import Ragged

By = str | int | Callable[[Any], float]


@dataclass(frozen=True)
class Arrangement:
    """How passes take the samples, beside the recipe's `shuffle`. Old pickles of data lack this.

    `draws`: what draws the samples of each pass. `buckets`: by what samples of similar length are
    put together. `folds`: the rows of each fold. `sequential`: the rows are in the order of the
    data. `reshuffles`: each epoch deals the samples anew between the shards. `defaults`: attributes
    of the recipe that the data brings along, for a recipe that does not set them. `workers`: the
    processes of the DataLoader that the data came with.
    """

    draws: SampleDraws | None = None
    buckets: By | None = None
    folds: Folds | None = None
    sequential: bool = False
    reshuffles: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 0


class Arranged(AtNodes):
    """What can be asked of data that is there, however it was brought."""

    arrangement = Arrangement()
    table: Any
    anew: bool
    fingerprint: str
    sizes: dict[ShardId, int]
    validation: tuple[ShardId, ...]
    _sizes: dict[ShardId, int]
    _source: Source
    _row_bytes: float

    def weighted(self, weights: Any) -> Self:
        """The data, whose samples are drawn with replacement in each pass, by their weights.

        `weights`: one number >= 0 for each sample, in the order of the data as it was given; those
        set aside for validation have one, too. A pass over a shard draws as many samples as the
        shard has, from (seed, shard, turn).

        Raises:
            DataError: another number of weights, or one that is no such number.
        """
        numbers = self.numbers()
        apart = getattr(self._source, "apart", frozenset(self.validation))
        aside = [part for part in self.validation if part not in apart]
        count = sum(self._sizes[part] for part in [*self.shards, *aside])
        checked = checked_weights(weights, count)
        return self._with_weights({part: checked[at] for part, at in numbers.items()})

    def balanced(self, by: str | int) -> Self:
        """The data, of which each pass draws samples of all labels equally often.

        `by`: the name or place of the column of labels; of a table the label's name. All labels
        are read once.

        Raises:
            DataError: there is no such column, or it has several values per sample.
        """
        labels = self._column(by)
        weights = balancing(np.concatenate(list(labels.values())))
        ends = np.cumsum([len(part) for part in labels.values()])[:-1]
        return self._with_weights(dict(zip(labels, np.split(weights, ends), strict=True)))

    def bucketed(self, by: By) -> Self:
        """The data, whose batches have samples of similar lengths.

        Each chunk is sorted by length and cut in groups of four batches of the recipe's
        `batch_size`, which come in a random order. `by`: the name or place of a column, whose
        values' first axes count (of text, its bytes), or a function of an item that gives a
        number. They see items as `prepare` leaves them.
        """
        label = by if isinstance(by, str | int) else getattr(by, "__qualname__", "function")
        return self._arranged(f"buckets {label}", buckets=by)

    def folds(self, count: int, seed: int = 0, stratify: str | int | None = None) -> Self:
        """The training samples in folds: `config["fold"]` is the one that a trial validates on.

        Search over it with {"fold": shoal.grid(range(count)), …}. Each sample is validated on in
        one fold. Trials of one fold share their stream of data. Where folds differ by a sample, one
        is left out of training, so that shards have one size in all folds. `stratify`: the column
        whose values keep their shares in each fold; of a table the label's name.

        Raises:
            DataError: fewer than two folds, more than samples, or data that has a validation part
                or that cannot be divided anew.
        """
        if self.validation:
            raise DataError(
                "folds divide all of the data: give validation=None where the data is made"
            )
        if not hasattr(self._source, "divided"):
            raise DataError(
                "folds divide samples of arrays and data sets; this data is divided by its files"
            )
        numbers = self.numbers()
        labels = None
        if stratify is not None:
            labels = np.concatenate(list(self._column(stratify).values()))
        rows = np.concatenate(list(numbers.values()))
        shards = len(self.shards)
        made = made_folds(count, rows, labels, seed, shards, self._row_bytes)
        of_first = self._arranged(f"{count} folds {seed} {stratify}", folds=made)
        return of_first.of_fold(0)

    def drawn_by(self, draws: SampleDraws, name: str) -> Self:
        """The data, each of whose passes is in an order that `draws` gives."""
        return self._arranged(f"drawn by {name}", draws=draws)

    def with_defaults(self, workers: int = 0, **values: Any) -> Self:
        """The data, which brings attributes for recipes that do not set them.

        `workers`: how many it would like for a study that does not say.
        """
        other = copy(self)
        defaults = {**self.arrangement.defaults, **values}
        other.arrangement = replace(self.arrangement, defaults=defaults, workers=workers)
        return other

    def of_fold(self, fold: Any) -> Self:
        """The data of trials with this fold.

        Raises:
            DataError: there is no such fold.
        """
        folds = self.arrangement.folds
        assert folds is not None, "the data is divided in folds"
        if isinstance(fold, bool) or fold not in range(folds.count):
            raise DataError(
                f'config["fold"] must be a whole number from 0 to {folds.count - 1}; got {fold!r}'
            )
        index = folds.index(int(fold))
        source = self._source.divided(index)  # type: ignore[attr-defined]
        return self._of_parts(source, index)

    def few(self, index: Mapping[ShardId, Index]) -> Self:
        """These rows of these parts alone, as data without weights and folds, to try code with."""
        other = self._of_parts(FewRows(self, index), index)
        other.arrangement = replace(self.arrangement, draws=None, folds=None, reshuffles=False)
        other.anew = False
        return other

    def _of_parts(self, source: Source, index: Mapping[ShardId, Index]) -> Self:
        """A copy that has these rows of the source, by part."""
        other = copy(self)
        other._source = source
        other._sizes = {part: len(rows) for part, rows in index.items()}
        other.sizes = {p: n for p, n in other._sizes.items() if p in self.shards}
        other.shards = tuple(other.sizes)
        other.validation = tuple(part for part in index if part not in self.shards)
        return other

    @property
    def row_bytes(self) -> float:
        """Bytes of a sample, as it is stored."""
        return self._row_bytes

    @property
    def is_shuffled(self) -> bool:
        """Whether rows were put in a random order before they were divided."""
        return hasattr(self._source, "index") and not self.arrangement.sequential

    # -- how -----------------------------------------------------------------------------------

    def _arranged(self, what: str, **changes: Any) -> Self:
        """A copy with another arrangement, which is part of the fingerprint.

        Raises:
            DataError: its samples cannot be dealt so.
        """
        other = copy(self)
        arranged = replace(self.arrangement, **changes)
        if arranged.reshuffles and (arranged.draws or arranged.folds or arranged.sequential):
            raise DataError(
                "reshuffle deals samples at random, each once in an epoch: it does not go with "
                "weights, samplers, folds or data in its own order"
            )
        other.arrangement = arranged
        other.fingerprint = f"{self.fingerprint}-{what}"
        return other

    def _with_weights(self, weights: Mapping[ShardId, Array]) -> Self:
        empty = [shard for shard, own in weights.items() if not own.sum() > 0]
        if empty:
            raise DataError(
                f"a shard needs a sample with a weight > 0; none in {', '.join(empty[:5])}"
            )
        hashed = blake2b(digest_size=8)
        for own in weights.values():
            hashed.update(own.astype("<f8").tobytes())
        what = f"weighted {hashed.hexdigest()}"
        return self._arranged(what, draws=Weighted(weights))

    def numbers(self) -> dict[ShardId, Any]:
        """By training shard, the numbers of its samples in the data as it was given."""
        index = getattr(self._source, "index", None)
        if index is not None:
            return {shard: index[shard] for shard in self.shards}
        found = {}
        start = 0
        for shard, size in self.sizes.items():
            found[shard] = np.arange(start, start + size)
            start += size
        return found

    def _column(self, by: str | int) -> dict[ShardId, Array]:
        """A column of each training shard.

        Raises:
            DataError: there is no such column, or it is not of numbers or text.
        """
        label = self.table and self.table.label
        if label is not None:
            if by not in (label, 1):
                raise DataError(
                    f"labels are those of the table's label, {label!r}, or by its place 1; "
                    f"got {by!r}"
                )
            by = 1
        return {shard: labels_of(self.read(shard), by) for shard in self.shards}

    def read(self, part: ShardId) -> Columns:
        """All samples of a part."""
        raise NotImplementedError

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of a part, in this order."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FewRows:
    """Some rows of other data's parts."""

    data: Arranged
    index: Mapping[ShardId, Index]

    @property
    def serial(self) -> bool:
        """Whether the other data must not be read beside training."""
        return self.data._source.serial

    def read(self, part: ShardId) -> Columns:
        """All of the rows of the part."""
        return self.data.rows(part, self.index[part])

    def rows(self, part: ShardId, index: Index) -> Columns:
        """Some of the rows of the part."""
        return self.data.rows(part, self.index[part][index])


def labels_of(columns: Columns, by: str | int) -> Array:
    """The values of a column, one for each sample.

    Raises:
        DataError: there is no such column.
    """
    named: dict[Any, Any] = dict(enumerate(cols.parts(columns)))
    if isinstance(columns, dict):
        named = columns
    if by not in named:
        raise DataError(
            f"there must be such a column; got {by!r}, and there are {', '.join(map(str, named))}"
        )
    column = named[by]
    if isinstance(column, Ragged):
        return np.array(list(column))
    return np.asarray(column)
