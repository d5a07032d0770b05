"""Trees of arrays and plain values, packed to be sent."""

import pickle
from collections import Counter
from typing import Any

import numpy as np
from torch import Tensor

from shoal.train.wide.parcel import LARGE, pack, unpack


def sent(tree: Any, into: Any = None) -> Any:
    """The tree as another process gets it."""
    given: list[Tensor] = []
    packed = pickle.dumps(pack(tree, given))
    taken: list[Tensor] = []
    found = unpack(pickle.loads(packed), taken, into)
    for one, other in zip(given, taken, strict=True):
        other.copy_(one)
    return found


def test_a_tree_arrives_as_it_was_sent() -> None:
    large = np.arange(LARGE, dtype=np.float32).reshape(-1, 4)
    tree = {
        "large": large,
        "turned": large.T,
        "small": np.arange(3),
        "list": [1, "two", (3.0, None, large)],
        "counter": Counter("aab"),
    }
    found = sent(tree)
    np.testing.assert_array_equal(found["large"], large)
    np.testing.assert_array_equal(found["turned"], large.T)
    np.testing.assert_array_equal(found["list"][2][2], large)
    assert found["small"].tolist() == [0, 1, 2] and found["list"][:2] == [1, "two"]
    assert type(found["counter"]) is Counter and found["counter"] == Counter("aab")


def test_only_large_arrays_travel_by_themselves() -> None:
    arrays: list[Tensor] = []
    packed = pack({"small": np.zeros(8), "large": np.zeros(LARGE // 8)}, arrays)
    assert [array.nbytes for array in arrays] == [LARGE]
    assert isinstance(packed["small"], np.ndarray)
    assert not isinstance(packed["large"], np.ndarray)


def test_arrays_that_fit_are_written_in_place() -> None:
    large = np.arange(LARGE, dtype=np.float64)
    own = {"a": np.zeros_like(large), "b": np.zeros(LARGE, dtype=np.float32)}
    found = sent({"a": large, "b": large}, own)
    assert found["a"] is own["a"] and found["b"] is not own["b"]
    np.testing.assert_array_equal(own["a"], large)
    np.testing.assert_array_equal(found["b"], large)
