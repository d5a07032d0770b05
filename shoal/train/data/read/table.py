"""What readers of samples that can be read one by one have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch

from shoal.core.cluster import ShardId
from shoal.train.data import columns as cols
from shoal.train.data.columns import Array, Columns, DataError
from shoal.train.data.parts import (
    Division,
    Index,
    Parts,
    alike,
    divide,
    hash_array,
    is_fraction,
    seed_of_rows,
)
from shoal.train.rng import Rng

LOOKED_AT = 16  # samples that a fingerprint looks at


class SampleTable(Protocol):
    """Samples by number, in files."""

    @property
    def own_code(self) -> bool:
        """Whether reading runs the user's code."""
        ...

    def __len__(self) -> int: ...

    def take(self, numbers: Index) -> Columns:
        """These samples. Raises DataError, or whatever reading raises."""
        ...


@dataclass(frozen=True, slots=True)
class TableRows:
    """Which samples of which table make up each part."""

    training: SampleTable
    validation: SampleTable
    index: Mapping[ShardId, Index]
    apart: frozenset[ShardId]  # parts that index `validation`
    seed: int

    @property
    def serial(self) -> bool:
        """Whether reading may draw on global state."""
        return self.training.own_code

    def divided(self, index: Mapping[ShardId, Index]) -> TableRows:
        """The same training table, divided otherwise; nothing else is validated on."""
        return replace(self, index=index, apart=frozenset())

    def read(self, part: ShardId) -> Columns:
        """All samples of the part."""
        return self.rows(part, np.arange(len(self.index[part])))

    def rows(self, part: ShardId, index: Index) -> Columns:
        """These samples of the part."""
        table = self.training
        if part in self.apart:
            table = self.validation
        take = partial(table.take, self.index[part][index])
        if not table.own_code:
            return take()
        with Rng(seed_of_rows(self.seed, part, index), torch.device("cpu")):
            return take()


def from_table(
    table: SampleTable,
    validation: Any,
    how: Division,
    *,
    labels: Array | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    about: str = "",
) -> Parts:
    """Data out of a table.

    `validation`: a fraction, another table, or None. `labels`: keep their shares in the fraction.
    `about`: what else belongs into the fingerprint.
    """
    others = table
    train = how.order(len(table))
    test = train[:0]
    if is_fraction(validation):
        train, test = how.aside(train, float(validation), labels)
    elif validation is not None:
        others = validation
        test = np.arange(len(others))
    looked = [looked_at(each) for each in (table, others)]
    alike(looked[0], looked[1], "training", "validation")

    row_bytes = cols.nbytes(looked[0]) / cols.rows(looked[0])
    rows = divide(train, test, how, row_bytes)
    apart: frozenset[ShardId] = frozenset()
    if others is not table:
        apart = rows.validation
    hashed = blake2b(f"{len(table)} {len(others)} {about}".encode(), digest_size=16)
    for columns in looked:
        for column in cols.parts(columns):
            hash_array(hashed, column)
    for part, numbers in rows.index.items():
        hashed.update(part.encode() + numbers.astype("<i8").tobytes())
    return Parts(
        source=TableRows(table, others, rows.index, apart, how.seed),
        training=rows.of("s"),
        validation=rows.of("v"),
        row_bytes=max(1, int(row_bytes)),
        fingerprint=hashed.hexdigest(),
        names=dict(names or {}),
    )


def looked_at(table: SampleTable) -> Columns:
    """Some samples, spread over the table.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    if not len(table):
        raise DataError("data needs at least one sample; got none")
    numbers = np.unique(np.linspace(0, len(table) - 1, LOOKED_AT).astype(np.int64))
    with Rng(0, torch.device("cpu")):
        return table.take(numbers)
