"""A DataLoader as it is: batch samplers, validation loaders of their own, its workers."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from train_kit import S0, Small

from shoal.options import Options
from shoal.train.data import columns as cols
from shoal.train.data.data import Data, DataError
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.stream.stream import Stream

CPU = torch.device("cpu")
PAIRS = TensorDataset(torch.arange(24), torch.arange(24) % 2)


def brought(loader: Any, valid: Any = None) -> tuple[Data, Recipe]:
    """The loader's data, and a recipe that got its attributes."""
    recipe = Recipe()
    recipe.data = lambda: (loader, valid)  # type: ignore[method-assign]
    return bring(recipe), recipe


def numbers(data: Data, turn: int = 0) -> list[int]:
    """The first column of a pass."""
    stream = Stream(Small(), data, seed=0, device=CPU, memory_gb=1.0)
    return [n for chunk in stream.chunks(S0, turn) for n in chunk[0].tolist()]


def scored(data: Data) -> list[int]:
    """The first column of the validation samples."""
    return [n for part in data.validation for n in data.read(part)[0].tolist()]  # type: ignore[index]


class InPairs:
    """Batches of a number and its neighbour, in an order drawn at random."""

    def __init__(self, sizes: tuple[int, ...] = (2,), most: int = 24) -> None:
        self.sizes, self.most = sizes, most

    def __len__(self) -> int:
        return self.most // 2

    def __iter__(self) -> Iterator[list[int]]:
        for at in torch.randperm(self.most // 2).tolist():
            yield [2 * at, 2 * at + 1][: self.sizes[at % len(self.sizes)]]


def test_a_batch_samplers_batches_are_those_of_each_pass() -> None:
    data, recipe = brought(DataLoader(PAIRS, batch_sampler=InPairs()))
    assert (recipe.batch_size, recipe.drop_last) == (2, False)
    passes = [numbers(data, turn) for turn in range(3)]
    assert passes[0] != passes[1] and numbers(data, 1) == passes[1]
    for drawn in passes:
        assert sorted(drawn) == list(range(24))
        assert all(b == a + 1 for a, b in zip(drawn[::2], drawn[1::2], strict=True))


def test_torchs_batch_sampler_is_a_batch_size_and_an_order() -> None:
    shuffled = BatchSampler(RandomSampler(PAIRS), 5, drop_last=True)
    _, recipe = brought(DataLoader(PAIRS, batch_sampler=shuffled))
    assert (recipe.batch_size, recipe.drop_last, recipe.shuffle) == (5, True, "each")
    weighted = WeightedRandomSampler([0.0, 1.0] * 12, 24)
    batches = BatchSampler(weighted, 4, drop_last=False)
    data, recipe = brought(DataLoader(PAIRS, batch_sampler=batches))
    assert recipe.batch_size == 4
    assert {n % 2 for n in numbers(data)} == {1}


def test_a_batch_sampler_that_leaves_out_the_rest_drops_the_last_batch() -> None:
    odd = Subset(PAIRS, range(23))
    data, recipe = brought(DataLoader(odd, batch_sampler=InPairs(most=22)))
    assert (recipe.batch_size, recipe.drop_last) == (2, True)
    assert numbers(data)[-1] == 22


@pytest.mark.parametrize(
    ("loader", "rule"),
    [
        (
            lambda: DataLoader(PAIRS, batch_sampler=InPairs((1, 2))),
            "must have one size.*InPairs gives",
        ),
        (
            lambda: DataLoader(PAIRS, batch_sampler=InPairs(most=12)),
            "as many samples as the data set has, 24; InPairs gave 12",
        ),
        (lambda: DataLoader(PAIRS, batch_size=None), "needs a batch_size"),
    ],
)
def test_batches_that_cannot_be_kept_are_refused(loader: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Data.loader(loader())


def test_a_validation_loader_goes_with_a_dataset() -> None:
    valid = DataLoader(Subset(PAIRS, [3, 5]), 5, collate_fn=doubled)
    data = Data.dataset(PAIRS, valid)
    assert scored(data) == [3, 5]
    stream = Stream(Small(), data, seed=0, device=CPU, memory_gb=1.0)
    (chunk,) = stream.validation()
    assert cols.step_batch(chunk)[0].tolist() == [6, 10]
    assert Data.dataset(PAIRS, DataLoader(PAIRS, 5)).scored_collate is None


@pytest.mark.parametrize(
    "options", [{"collate": list}, {"order": "sequential"}, {"shard_weights": [1, 2]}]
)
def test_what_a_loader_says_itself_is_not_said_twice(options: Any) -> None:
    with pytest.raises(DataError, match="of its own: leave out"):
        Data.dataset(DataLoader(PAIRS, 5), **options)


@pytest.mark.parametrize(
    "made",
    [
        lambda: Data.dataset({"a": PAIRS, "b": PAIRS}),  # type: ignore[arg-type]
        lambda: Data.dataset(PAIRS, {"a": PAIRS, "b": PAIRS}),
        lambda: Data.loader(DataLoader(PAIRS, 5), {"a": PAIRS, "b": PAIRS}),
    ],
)
def test_several_datasets_in_a_dict_are_refused(made: Any) -> None:
    with pytest.raises(DataError, match="must be one dataset; got a dict of a, b"):
        made()


class Backwards(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(reversed(range(24)))


def test_a_class_of_ones_own_is_not_taken_for_torchs() -> None:
    data, _ = brought(DataLoader(PAIRS, 5, sampler=Backwards(PAIRS)))
    assert numbers(data) == list(reversed(range(24)))


def test_a_validation_loader_without_a_batch_size_is_refused() -> None:
    train = DataLoader(PAIRS, 5)
    with pytest.raises(DataError, match="needs a batch_size"):
        Data.loader(train, DataLoader(PAIRS, batch_size=None))


def test_a_validation_loader_gives_the_items_of_its_sampler() -> None:
    split = list(range(24))
    train = DataLoader(PAIRS, 5, sampler=SubsetRandomSampler(split[:18]))
    valid = DataLoader(PAIRS, 5, sampler=SubsetRandomSampler(split[18:]))
    data, _ = brought(train, valid)
    assert sorted(numbers(data)) == split[:18]
    assert scored(data) == split[18:]
    drawn = WeightedRandomSampler([1.0] + [0.0] * 23, 7)
    assert scored(Data.loader(train, DataLoader(PAIRS, 5, sampler=drawn))) == [0] * 7
    shuffled = DataLoader(PAIRS, 5, shuffle=True)
    assert scored(Data.loader(train, shuffled)) == split
    batches = DataLoader(PAIRS, batch_sampler=[[3, 4], [9]])
    assert scored(Data.loader(train, batches)) == [3, 4, 9]


def doubled(items: list[Any]) -> Any:
    first, second = default_collate(items)
    return first * 2, second


@pytest.mark.parametrize(
    ("train", "valid"), [(doubled, None), (None, doubled), (doubled, default_collate)]
)
def test_a_validation_loader_may_have_a_collate_function_of_its_own(train: Any, valid: Any) -> None:
    data, _ = brought(
        DataLoader(PAIRS, 4, collate_fn=train), DataLoader(PAIRS, 4, collate_fn=valid)
    )
    stream = Stream(Small(), data, seed=0, device=CPU, memory_gb=1.0)
    (trained,) = stream.chunks(S0, 0, "sequential")
    (tried,) = stream.validation()
    ends = [chunk.batch()[0].sum() for chunk in (trained, tried)]  # type: ignore[union-attr]
    once = sum(range(24))
    assert ends == [once * (1 + (own is doubled)) for own in (train, valid)]


def test_a_loaders_workers_are_the_studys_where_it_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.options.cpus_here", lambda: 4)
    data, _ = brought(DataLoader(PAIRS, 4, num_workers=3), DataLoader(PAIRS, 4))
    asked = data.arrangement.workers
    assert Options().workers_here(asked) == 3
    assert Options(workers=1).workers_here(asked) == 1
    assert Options(workers=0).workers_here(asked) == 0
    assert Options().workers_here(9) == 4
    assert Options(threads=1).workers_here(0) == 3
