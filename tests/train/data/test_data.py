"""Data: how it is divided, what it refuses, and how it tells that it changed."""

import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from train_kit import S0, Small, go, planned, trainer, trial

from shoal.train.data import columns as cols
from shoal.train.data import parts as sources
from shoal.train.data.data import Data, DataError
from shoal.train.stream.stream import Stream

X, Y = np.arange(200, dtype=np.float32).reshape(100, 2), np.arange(100) % 4


def rows(data: Data, parts: Any) -> list[int]:
    return [int(x[0]) // 2 for part in parts for x in data.read(part)[0]]


def test_shards_and_validation_part_the_samples() -> None:
    data = Data.arrays(X, Y, shards=3, validation=0.25, seed=4)
    assert data.shards == ("s000", "s001", "s002") and data.validation == ("v000",)
    assert data.sizes == {"s000": 25, "s001": 25, "s002": 25} and data.samples == 75
    assert sorted(rows(data, [*data.shards, *data.validation])) == list(range(100))
    assert rows(data, data.shards) != sorted(rows(data, data.shards))
    x, y = data.read(S0)
    assert np.array_equal(x[:, 0] // 2 % 4, y)  # columns stay together
    assert rows(Data.arrays(X, Y, shards=3, validation=0.25, seed=4), data.shards) == rows(
        data, data.shards
    )
    assert rows(Data.arrays(X, Y, shards=3, validation=0.25, seed=5), data.shards) != rows(
        data, data.shards
    )


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(0, 3))
def test_shards_as_large_as_their_weights(weights: list[float], seed: int) -> None:
    data = Data.arrays(X, Y, shard_weights=weights, validation=None, seed=seed)
    sizes = list(data.sizes.values())
    assert sum(sizes) == 100 and min(sizes) >= 1 and len(sizes) == len(weights)
    assert sorted(rows(data, data.shards)) == list(range(100))
    for size, weight in zip(sizes, weights, strict=True):
        assert abs(size - 1 - (100 - len(weights)) * weight / sum(weights)) < 1
    again = Data.arrays(
        X, Y, shard_weights=weights, shards=len(weights), validation=None, seed=seed
    )
    assert again.fingerprint == data.fingerprint and again.sizes == data.sizes


def test_weights_are_a_property_of_the_data() -> None:
    even, uneven = (
        Data.arrays(X, Y, shard_weights=w, validation=0.2) for w in ([1, 1], [3.0, 1.0])
    )
    assert even.sizes == {"s000": 40, "s001": 40} and uneven.sizes == {"s000": 60, "s001": 20}
    assert even.fingerprint != uneven.fingerprint
    assert even.fingerprint == Data.arrays(X, Y, shards=2, validation=0.2).fingerprint, (
        "equal weights are no weights"
    )
    assert rows(even, even.validation) == rows(uneven, uneven.validation)
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert Data.dataset(pairs, None, shard_weights=[1, 2, 1]).sizes == {
        "s000": 25,
        "s001": 50,
        "s002": 25,
    }


@pytest.mark.parametrize(
    "weights", [[], [1, 0], [1, -1], [1, float("nan")], [1, float("inf")], ["a", 1], 3, [1] * 101]
)
def test_bad_weights_are_refused(weights: Any) -> None:
    with pytest.raises(DataError, match="shard_weights must be a number > 0 for each shard; got"):
        Data.arrays(X, Y, shard_weights=weights, validation=None)
    with pytest.raises(DataError, match="one for each of the 3 shards; got 2"):
        Data.arrays(X, Y, shards=3, shard_weights=[1, 2], validation=None)


def test_stratify_keeps_every_labels_share() -> None:
    y = np.repeat([0, 1, 2], [70, 20, 10])
    data = Data.arrays(X, y, validation=0.2, stratify=1)
    assert np.bincount(data.read(data.validation[0])[1]).tolist() == [14, 4, 2]
    named = Data.arrays(x=X, y=y, validation=0.2, stratify="y")
    assert np.bincount(named.read(named.validation[0])["y"]).tolist() == [14, 4, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"validation": None},
        {"validation": (X[:7], Y[:7])},
        {"validation": 0.2, "order": "sequential"},
    ],
)
def test_stratify_without_a_random_fraction_is_refused(options: Any) -> None:
    with pytest.raises(DataError, match="stratify= keeps labels' shares"):
        Data.arrays(X, Y, stratify=1, **options)


def test_validation_may_be_given_or_left_out() -> None:
    given = Data.arrays(X, Y, validation=(X[:7] + 1000, Y[:7]))
    assert given.samples == 100
    assert given.read(given.validation[0])[0].tolist() == (X[:7] + 1000).tolist()
    assert Data.arrays(X, validation=None).validation == ()
    assert Data.arrays(x=X, y=Y, validation={"y": Y[:3], "x": X[:3]}).size(given.validation[0]) == 3


def test_tensors_lists_and_numbers_are_columns() -> None:
    data = Data.arrays(torch.from_numpy(X), Y.tolist(), validation=None)
    x, y = data.read(S0)
    assert x.dtype == np.float32 and y.dtype == np.int64


def test_shards_are_as_few_as_keep_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Data.arrays(X, validation=None).shards == ("s000",)
    monkeypatch.setattr(sources, "SHARD_BYTES", 200)
    data = Data.arrays(X, validation=0.5)
    assert set(data.sizes.values()) == {25} and len(data.validation) == 2
    assert sorted(rows(data, [*data.shards, *data.validation])) == list(range(100))


def test_chunks_are_about_eight_megabytes() -> None:
    assert Data.arrays(np.zeros((100, 2**13), "f4"), validation=None).chunk == 256
    assert Data.arrays(np.zeros((2, 3 * 2**22), "f4"), validation=None).chunk == 1


def test_chunks_of_large_samples_are_of_some_batches() -> None:
    images = np.zeros((2, 224, 224, 3), "u1")
    data = Data.arrays(images, validation=None)
    assert data.chunk == 32 * 2**20 // images[0].nbytes == 222
    assert data.fingerprint.endswith("-256"), "other chunks, so other studies"
    assert "-" not in Data.arrays(images[:, :16], validation=None).fingerprint


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_rows_are_rows_of_the_part(seed: int, shards: int) -> None:
    pairs = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    for data in (Data.arrays(X, Y, shards=shards), Data.dataset(pairs, shards=shards)):
        assert data.by_rows
        for part in (*data.shards, *data.validation):
            index = np.random.default_rng(seed).permutation(data.size(part))[:7]
            for whole, some in zip(data.read(part), data.rows(part, index), strict=True):
                assert np.array_equal(whole[index], some)


@pytest.mark.filterwarnings("ignore:two reads")
def test_random_items_are_a_function_of_the_rows_asked_for() -> None:
    def data() -> Data:
        return Data.dataset(Items(lambda i: torch.randn(3)), validation=None)

    one, other = data(), data()
    first, second = np.arange(4), np.arange(4, 9)
    drawn = one.rows(S0, first)[0]
    one.rows(S0, second)
    torch.randn(5)
    assert np.array_equal(other.rows(S0, second)[0], one.rows(S0, second)[0])
    assert np.array_equal(one.rows(S0, first)[0], drawn)
    assert len(np.unique(drawn)) == drawn.size
    assert one.fingerprint.endswith("-anew")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({}, "at least one column; got none"),
        ({"x": X, "y": Y[:50]}, "same number of samples; got x: 100, y: 50"),
        ({"x": X[:0]}, "at least one training sample; got none"),
        ({"x": 3.0}, "column x must have samples along its first axis; got the single value 3.0"),
        ({"x": ["a", "b"]}, "column x must hold numbers; got dtype <U1: encode"),
        ({"x": np.array([None, 1])}, "column x must hold numbers; got dtype object"),
        (
            {"x": X, "shards": 0},
            "shards must be a whole number between 1 and the 100 training samples; got 0",
        ),
        ({"x": X, "shards": 101}, "between 1 and the 100 training samples; got 101"),
        ({"x": X, "shards": 2.0}, "shards must be a whole number"),
        (
            {"x": X, "validation": 0.0},
            "validation must be a fraction between 0 and 1, the data itself, or None; got 0.0",
        ),
        ({"x": X, "validation": 1.0}, "fraction between 0 and 1"),
        (
            {"x": X[:3], "validation": 0.1},
            "validation=0.1 of 3 samples leaves 3 to train and 0 to validate on; both need one",
        ),
        ({"x": X, "validation": {"y": Y}}, "validation must have the columns x; got y"),
        (
            {"x": X, "validation": {"x": X[:, :1]}},
            r"column x must hold the same in every part; got .*\(2,\).*\(1,\)",
        ),
        ({"x": X, "validation": {"x": X.astype("f8")}}, "got float32 .* and float64"),
        ({"x": X, "validation": {"x": X[:0]}}, "validation data needs at least one sample"),
        (
            {"x": X, "validation": 0.2, "stratify": "z"},
            "stratify must be one of the columns x; got 'z'",
        ),
        (
            {"x": X, "validation": 0.2, "stratify": "x"},
            r"one value per sample; column x has shape \(100, 2\)",
        ),
    ],
)
def test_bad_arrays_are_refused(arguments: dict[str, Any], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Data.arrays(**{"validation": None, **arguments})


def test_more_bad_arrays() -> None:
    with pytest.raises(DataError, match="by position or by name, not both; got 1 and y"):
        Data.arrays(X, y=Y)
    with pytest.raises(DataError, match="a tuple of 2 columns as the training data is; got tuple"):
        Data.arrays(X, Y, validation=(X,))


def test_nan_is_data() -> None:
    assert np.isnan(Data.arrays(np.array([[np.nan]]), validation=None).read(S0)[0]).all()


def test_fingerprints_follow_content_and_division() -> None:
    def made(x: Any = X, y: Any = Y, **options: Any) -> str:
        return Data.arrays(x, y, **options).fingerprint

    changed = X.copy()
    changed[-1, -1] += 1
    other_validation = (X[:5], Y[:5]), (X[1:6], Y[1:6])
    prints = [
        made(),
        made(changed),
        made(X.astype("f8")),
        made(shards=2),
        made(validation=0.3),
        made(seed=1),
    ]
    prints += [made(validation=v) for v in other_validation] + [made(X.reshape(100, 2, 1))]
    assert len(set(prints)) == len(prints)
    assert made() == made(X.copy(), Y.copy()) == made(np.asfortranarray(X))
    assert made(np.array([True, False]), np.array([1.5, 2.5]), validation=None)


def test_data_can_travel() -> None:
    data = Data.arrays(X, Y, shards=2)
    twin = pickle.loads(pickle.dumps(data))
    assert (
        rows(twin, twin.shards) == rows(data, data.shards)
        and twin.fingerprint == data.fingerprint
        and twin.chunk == data.chunk
    )


# -- torch Datasets
# ----------------------------------------------------------------------------------------------


class Items:
    """A map-style dataset of whatever the function makes."""

    def __init__(self, make: Any, count: int = 20) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


def test_datasets_of_tuples_dicts_and_single_values() -> None:
    pairs = Data.dataset(Items(lambda i: (torch.full((2,), i), i)), validation=0.25, shards=2)
    assert pairs.samples == 15
    x, y = pairs.read(S0)
    assert x.shape == (8, 2) and np.array_equal(x[:, 0], y) and y.dtype == np.int64
    named = Data.dataset(Items(lambda i: {"x": np.ones(3), "y": i / 2}), validation=None).read(S0)
    assert named["x"].shape == (20, 3) and named["y"].dtype == np.float32
    assert Data.dataset(Items(lambda i: i), validation=Items(lambda i: -i, 3)).read("v000")[
        0
    ].tolist() == [0, -1, -2]
    held = Data.dataset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), validation=None)
    assert sorted(held.read(S0)[0][:, 0].tolist()) == X[:, 0].tolist()


@pytest.mark.parametrize("form", ["tuple", "dict", "one item"])
def test_random_transforms_in_a_dataset_are_warned_of(form: str) -> None:
    """They were drawn once and kept for all epochs, without a word."""
    draws = itertools.count()

    def make(i: int) -> Any:
        x = np.full(3, float(i))
        if form != "one item" or i == 19:
            x = x + next(draws)
        return {"x": x, "y": i} if form == "dict" else (x, i)

    with pytest.warns(UserWarning, match="two reads of item .* differ.*Recipe.augment"):
        Data.dataset(Items(make), validation=None)


def test_a_dataset_without_random_transforms_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Data.dataset(Items(lambda i: (np.array([i, np.nan]), i)), validation=0.2)
        Data.dataset(TensorDataset(torch.zeros(5)), validation=None)


@pytest.mark.filterwarnings("ignore:two reads")
def test_a_dataset_that_draws_gives_the_same_every_time_and_disturbs_no_trial() -> None:
    data = Data.dataset(
        Items(lambda i: (torch.randn(6) + torch.as_tensor(np.random.rand(6)).float(), i % 3)),
        shards=2,
    )
    assert np.array_equal(data.read(S0)[0], data.read(S0)[0])
    data.chunk = 3
    ends = []
    for memory in (1.0, 0.0):
        held = trainer(Small(), data, data_memory_gb=memory)
        go(held, trial(), planned(data, 2))
        ends.append(held.state(trial().id)["model"]["0.weight"].copy())
    assert np.array_equal(*ends)


@pytest.mark.parametrize(
    ("dataset", "rule"),
    [
        (iter([1]), "must be map-style, with __len__ and __getitem__; got list_iterator"),
        (Items(int, 0), "needs at least one item; got none"),
        (
            Items(lambda i: {"x": 1} if i % 2 else {"y": 1}),
            "must have equal forms.*got a dict of y and a dict of x",
        ),
        (
            Items(lambda i: (1, 2) if i % 2 else (1, 2, 3)),
            "must have equal forms.*got a tuple of 3 and a tuple of 2",
        ),
        (Items(lambda i: lambda: i), "holds a function that cannot be kept"),
    ],
)
def test_bad_datasets_are_refused(dataset: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Data.dataset(dataset, validation=None)


def test_validation_columns_must_be_alike() -> None:
    with pytest.raises(DataError, match=r"\(2,\) in training .*\(3,\) .*Data.dataset"):
        Data.arrays(np.zeros((4, 2)), validation=(np.zeros((4, 3)),))


class Streamed(IterableDataset[Any]):
    """The same items, one after the other."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return (self.items[i] for i in range(len(self.items)))


FORMS: dict[str, Any] = {  # what makes items, and what the first batch of two of them is
    "views": (lambda i: (torch.ones(2) * i, torch.ones(2), i), 3),
    "pair": (lambda i: (torch.ones(2) * i, i), 2),
    "wider": (lambda i: (torch.ones(5) * i, i), 2),
    "single": (lambda i: torch.ones(3) * i, 1),
    "dict": (lambda i: {"x": torch.ones(2) * i, "n": i}, {"x", "n"}),
    "texts": (lambda i: (torch.ones(2) * i, f"number {i}"), 2),
}


class Formed(Items):
    """Items of one of these forms."""

    def __init__(self, form: str) -> None:
        self.form, self.count = form, 6

    def make(self, number: int) -> Any:
        return FORMS[self.form][0](number)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("training", FORMS)
@pytest.mark.parametrize("validation", FORMS)
def test_validation_items_have_a_form_of_their_own(
    training: str, validation: str, streamed: bool
) -> None:
    made: list[Any] = [Formed(training), Formed(validation)]
    if streamed:
        made = [Streamed(each) for each in made]
    data = pickle.loads(pickle.dumps(Data.dataset(made[0], made[1])))
    data.check()
    stream = Stream(Small(), data, seed=0, device=torch.device("cpu"), memory_gb=0.0)
    chunks = (next(stream.chunks(S0, 0)), next(stream.validation()))
    for name, chunk in zip((training, validation), chunks, strict=True):
        batch = cols.step_batch(cols.cut(chunk, 0, 2))
        items = FORMS[name][1]
        if isinstance(items, set):
            assert set(batch) == items
        elif name == "single" and isinstance(batch, torch.Tensor):  # of collate
            assert batch.shape == (2, 3)
        else:
            assert len(batch) == items
            assert batch[0].shape == (2, 5 if name == "wider" else len(batch[0][0]))
            if name == "texts":
                assert sorted(batch[1])[0].startswith("number ")


def test_a_collate_that_does_not_fit_validation_items_says_both_forms() -> None:
    def views(items: list[Any]) -> Any:
        return [torch.stack(column) for column in zip(*items, strict=True)][2]

    def item(i: int) -> Any:
        return (torch.ones(2), torch.ones(2), torch.ones(1) * i)

    data = Data.dataset(Items(item), Items(lambda i: (torch.ones(2), torch.ones(1))), collate=views)
    with pytest.raises(DataError) as caught:
        data.check()
    assert "(shape (2,), shape (1,))" in str(caught.value)
    assert "train on are (shape (2,), shape (2,), shape (1,))" in str(caught.value)
    assert "collate_fn of its own" in str(caught.value)
    own = DataLoader(Items(lambda i: (torch.ones(2),)), collate_fn=len)
    data = Data.dataset(Items(item), own, collate=views)
    data.check()


def test_a_datasets_fingerprint() -> None:
    prints = [
        Data.dataset(Items(lambda i: i)).fingerprint,
        Data.dataset(Items(lambda i: i + 1)).fingerprint,
        Data.dataset(Items(lambda i: i, 21)).fingerprint,
        Data.dataset(TensorDataset(torch.zeros(1000))).fingerprint,
        Data.dataset(
            TensorDataset(torch.zeros(1000).index_fill(0, torch.tensor([501]), 1))
        ).fingerprint,
    ]
    assert len(set(prints)) == 5
    assert Data.dataset(Items(lambda i: i)).fingerprint == prints[0]


def test_a_dataset_that_raises_is_an_error_of_the_data() -> None:
    gone: list[int] = []
    data = Data.dataset(Items(lambda i: 1 / (not gone)), validation=None)
    gone.append(1)
    with pytest.raises(DataError, match="s000 cannot be read .ZeroDivisionError"):
        data.read(S0)
