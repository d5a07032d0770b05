"""Columns of values of unequal sizes: what a list of the same values would give."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.train.data import columns as cols
from shoal.train.data.columns import Ragged
from shoal.train.data.items import column_of, columns_of

ARRAYS = st.lists(
    hnp.arrays(np.int32, st.tuples(st.integers(0, 4), st.integers(0, 3))), min_size=1, max_size=12
)
TEXTS = st.lists(st.text(max_size=6), min_size=1, max_size=12)
CHOSEN = st.one_of(
    st.integers(-12, 11),
    st.slices(12),
    st.lists(st.integers(0, 11), max_size=15).map(lambda n: np.array(n, np.int64)),
)


def same(ragged: Ragged, values: list[Any]) -> bool:
    if len(ragged) != len(values):
        return False
    pairs = zip(ragged, values, strict=True)
    return all(np.array_equal(a, b) and np.shape(a) == np.shape(b) for a, b in pairs)


@settings(deadline=None)
@given(st.one_of(ARRAYS, TEXTS), CHOSEN)
def test_indexing_is_that_of_a_list(values: list[Any], chosen: Any) -> None:
    kind = "text" if isinstance(values[0], str) else "array"
    column = Ragged.of(values, kind)  # type: ignore[arg-type]
    assert same(column, values)
    if isinstance(chosen, int):
        if -len(values) <= chosen < len(values):
            assert np.array_equal(column[chosen], values[chosen])
        else:
            with pytest.raises(IndexError):
                column[chosen]
    elif isinstance(chosen, slice):
        assert same(column[chosen], values[chosen])
        assert same(column[chosen][::-1], values[chosen][::-1])
    else:
        chosen = chosen[chosen < len(values)]
        assert same(column[chosen], [values[n] for n in chosen])


@settings(deadline=None)
@given(st.one_of(ARRAYS, TEXTS), st.integers(0, 12), st.integers(0, 12))
def test_pieces_join_and_travel(values: list[Any], a: int, b: int) -> None:
    kind = "text" if isinstance(values[0], str) else "array"
    column = Ragged.of(values, kind)  # type: ignore[arg-type]
    first, last = sorted((a, b))
    pieces = [column[:first], column[first:last], column[last:]]
    assert same(Ragged.joined(pieces), values)
    assert sum(piece.values.nbytes for piece in pieces) == column.values.nbytes
    for piece in pieces:
        sent = pickle.loads(pickle.dumps(piece))
        assert same(sent, list(piece)) and same(
            cols.unpack_layout(cols.pack_layout(piece)), list(piece)
        )


def test_arrays_of_equal_shape_join_ragged_ones() -> None:
    equal = np.arange(6).reshape(3, 2)
    ragged = Ragged.of([np.arange(3), np.arange(1)], "array")
    joined = Ragged.joined([equal, ragged])
    assert same(joined, [*equal, np.arange(3), np.arange(1)])
    with pytest.raises(ValueError, match="must be of one kind; got text and numbers"):
        Ragged.joined([equal, Ragged.of(["a"], "text")])


def test_what_is_kept_cannot_be_written_to_and_a_copy_can() -> None:
    column = Ragged.of([np.arange(3), np.arange(1)], "array")
    with pytest.raises(ValueError, match="read-only"):
        column.locked()[0][:] = 7
    column.copy()[0][:] = 7
    assert column[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "items",
    [
        [{"x": torch.ones(n), "text": "ä" * n, "y": n, "z": n / 3} for n in range(1, 5)],
        [(np.ones((n, 2)), b"b" * n, [1] * n, None) for n in range(1, 5)],
        [[torch.ones(2), {"boxes": torch.ones(n, 4), "id": n}] for n in range(1, 5)],
        [torch.ones(n, dtype=torch.bfloat16) for n in range(1, 5)],
        ["one", "two", "three"],
        [torch.eye(3).to_sparse() * n for n in range(1, 5)],
    ],
)
def test_items_of_any_form_come_back_as_they_were(items: list[Any]) -> None:
    columns, form = columns_of(items)
    named = columns if isinstance(columns, dict) else dict(enumerate(columns))
    for item, again in zip(items, form.items(named), strict=True):
        assert type(item) is type(again)
        assert repr(item) == repr(again)


def test_plain_columns_stay_arrays() -> None:
    for values in ([1, 2], [1.0, 2.0], [True, False], [np.ones(2)] * 2, [torch.ones(2)] * 2):
        assert isinstance(column_of(values, "x")[0], np.ndarray)
    assert column_of([1, 2.5, None], "x")[1] == "object"
