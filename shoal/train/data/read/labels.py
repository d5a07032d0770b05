"""A column's values by number, so that each keeps its share where validation data is set aside."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shoal.train.data.columns import Array, DataError


def label_numbers(name: str, column: Any) -> Array:
    """(n,) int64: equal numbers for equal values, text and numbers alike; -1 for a missing value.

    `column`: pyarrow's, in chunks.

    Raises:
        DataError: a value is no single thing, but a list, a struct or the like.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        raise DataError(
            f"stratify needs a column with one value per sample; column {name} holds {kind}"
        )
    if not pa.types.is_dictionary(kind):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    numbers: Array = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return numbers.astype("int64")
