"""Orders of samples: in order with a state, weighted, samplers, buckets, folds, loaders."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_kit import SEED, by_hand, packed
from pack_kit import trial as timed_trial
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from train_kit import S0, S1, Small, go, planned, trainer

from shoal.train.data import arrangement, iterables
from shoal.train.data.data import Data, DataError
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.stream.stream import Batches, Stream, Streams

CPU = torch.device("cpu")


def stream(data: Data, recipe: Any = None, memory_gb: float = 1.0) -> Stream:
    return Stream(recipe or Small(), data, seed=SEED, device=CPU, memory_gb=memory_gb)


def numbers(of: Stream, order: str = "once", turn: int = 0, shard: Any = S0) -> list[int]:
    """The first column of a pass."""
    return [n for chunk in of.chunks(shard, turn, order) for n in chunk[0].tolist()]


def equal_models(one: Any, other: Any) -> bool:
    pairs = zip(one["model"].values(), other["model"].values(), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


# -- in order, with a state ----------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 12))
def test_each_row_of_a_batch_continues_that_of_the_batch_before(count: int, size: int) -> None:
    size = min(size, count)
    order = arrangement.streams(count, size)
    assert sorted(order.tolist()) == list(range(count))
    whole = order[: count // size * size].reshape(-1, size)
    assert (np.diff(whole, axis=0) == 1).all()


def test_a_sequence_is_cut_as_in_pytorchs_language_model() -> None:
    tokens = np.arange(1 + 6 * 4 * 5)  # batches of 6 streams, 4 windows of 5 steps each
    data = Data.sequence(tokens, 5, validation=None)
    cut = Batches(6)
    found = []
    for chunk in stream(data).chunks(S0, 0, "streams:6"):
        found += [batch for batch, _ in cut.of(chunk)]
    batchified = torch.as_tensor(tokens[:-1]).view(6, -1)
    targets = torch.as_tensor(tokens[1:]).view(6, -1)
    assert len(found) == 4
    for number, (x, y) in enumerate(found):
        window = slice(5 * number, 5 * number + 5)
        assert torch.equal(x, batchified[:, window]) and torch.equal(y, targets[:, window])


class Next(Small):
    """A small recurrent model of the next token, whose state is carried."""

    batch_size = 4

    def data(self) -> Data:
        tokens = np.random.default_rng(1).integers(0, 9, 720).cumsum() % 9
        data = Data.sequence(tokens, 5, validation=0.2, shards=2)
        data.chunk = 7
        return data

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        model = nn.ModuleDict(
            {
                "in": nn.Embedding(9, 8),
                "rnn": nn.LSTM(8, 8, batch_first=True),
                "out": nn.Linear(8, 9),
            }
        )
        model["drop"] = nn.Dropout(0.2)
        return model

    def loss(self, model: Any, batch: Any, state: Any) -> Any:
        x, y = batch
        seen, state = model["rnn"](model["in"](x), state)
        out = model["out"](model["drop"](seen))
        return nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()), state

    def training_step(self, model: nn.Module, batch: Any, state: Any) -> Any:
        return self.loss(model, batch, state)

    def validation_step(self, model: nn.Module, batch: Any, state: Any) -> Any:
        loss, state = self.loss(model, batch, state)
        return {"accuracy": -loss}, state


def test_a_carried_state_is_the_trials_alone_packed_and_resumed() -> None:
    recipe = Next()
    data = bring(recipe)
    assert recipe.shuffle == "sequential"
    trials = [
        timed_trial("a", 2, data),
        timed_trial("b", 2, data, batch_size=6),
        timed_trial("c", 2, data, optimizer="momentum"),
    ]
    together = packed(recipe, data, trials)
    plain = packed(recipe, data, trials, fuse=True)
    for each in trials:
        alone = packed(recipe, data, [each])[each.id]
        mine = together[each.id]
        assert mine.error is None, mine.error
        assert mine.scores == alone.scores == plain[each.id].scores
        assert equal_models(mine.state, alone.state) and "carried" not in mine.state
    held = trainer(recipe, data)
    made = go(held, trials[0], planned(data, 1))
    moved = trainer(recipe, data)
    go(moved, trials[0], planned(data, 2)[2:], made, source=held.state(trials[0].id))
    assert equal_models(moved.state(trials[0].id), together[trials[0].id].state)


def test_the_state_of_a_step_reaches_the_next_one_without_its_graph() -> None:
    seen: list[Any] = []

    class Watched(Next):
        def training_step(self, model: nn.Module, batch: Any, state: Any) -> Any:
            seen.append(None if state is None else state[0].requires_grad)
            return super().training_step(model, batch, state)

    recipe = Watched()
    data = bring(recipe)
    what = timed_trial("a", 1, data)
    packed(recipe, data, [what])
    by_shard = data.size(S0) // 4
    assert data.size(S0) % 4, "a smaller last batch"
    first = seen[: by_shard + 1]
    assert first == [None, *[False] * (by_shard - 1), None]  # anew at the smaller last batch
    assert seen[by_shard + 1] is None  # and in the next pass


def test_steps_with_a_state_need_data_in_order_and_two_results() -> None:
    class Shuffled(Next):
        def data(self) -> Data:
            return Data.arrays(np.arange(50), np.arange(50))

    with pytest.raises(DataError, match=r"needs the samples in order: use Data\.sequence"):
        bring(Shuffled())

    class One(Next):
        def training_step(self, model: nn.Module, batch: Any, state: Any) -> Any:
            return super().training_step(model, batch, state)[0]

    recipe = One()
    data = bring(recipe)
    what = timed_trial("a", 1, data)
    error = packed(recipe, data, [what])[what.id].error
    assert error is not None and "must return two things" in str(error)


def test_sequential_data_stays_in_order() -> None:
    data = Data.arrays(np.arange(40), order="sequential", shards=2, validation=0.25)
    assert data.read(S0)[0].tolist() == list(range(15))
    assert data.read("v000")[0].tolist() == list(range(30, 40))  # type: ignore[arg-type]
    recipe = Small()
    recipe.data = lambda: data  # type: ignore[method-assign]
    assert bring(recipe) is data and recipe.shuffle == "sequential"
    data.chunk = 4
    assert numbers(stream(data), "sequential", shard=S1) == list(range(15, 30))
    with pytest.raises(DataError, match='order must be "random" or "sequential"'):
        Data.arrays(np.arange(40), order="other")  # type: ignore[arg-type]


# -- weights -------------------------------------------------------------------------------------


def test_weighted_passes_draw_anew_from_seed_shard_and_turn() -> None:
    weights = np.arange(40) % 4
    data = Data.arrays(np.arange(40), validation=None, shards=2).weighted(weights)
    data.chunk = 7
    first = numbers(stream(data))
    assert len(first) == data.size(S0) and 0 not in [n % 4 for n in first]
    assert set(first) <= set(data.read(S0)[0].tolist())
    assert numbers(stream(data, memory_gb=0.0)) == first
    assert numbers(stream(data), turn=1) != first
    many = [n for turn in range(60) for n in numbers(stream(data), turn=turn)]
    shares = np.bincount(np.array(many) % 4, minlength=4) / len(many)
    expected = np.bincount(data.read(S0)[0] % 4, minlength=4) * np.arange(4)
    assert np.allclose(shares, expected / expected.sum(), atol=0.05)


def test_balanced_draws_labels_equally_often() -> None:
    labels = np.r_[np.zeros(95, int), np.ones(5, int)]
    plain = Data.arrays(np.arange(100), labels, validation=0.2, stratify=1)
    data = plain.balanced(1)
    assert data.fingerprint != plain.fingerprint
    drawn = [
        n
        for turn in range(20)
        for chunk in stream(data).chunks(S0, turn)
        for n in chunk[1].tolist()
    ]
    assert 0.4 < np.mean(drawn) < 0.6
    with pytest.raises(DataError, match="there must be such a column; got 7"):
        plain.balanced(7)
    with pytest.raises(DataError, match="one number for each of the 100 samples"):
        plain.weighted(np.ones(80))
    with pytest.raises(DataError, match="must be numbers >= 0"):
        plain.weighted(-np.ones(100))


class Balanced(Small):
    def data(self) -> Data:
        rng = np.random.default_rng(0)
        y = (rng.random(90) < 0.2).astype(int)
        x = (rng.normal(size=(90, 6)) + y[:, None]).astype("float32")
        data = Data.arrays(x, y, shards=2, validation=0.2).balanced(1)
        data.chunk = 10
        return data


def test_weighted_trials_learn_alone_what_they_learn_together() -> None:
    recipe = Balanced()
    data = bring(recipe)
    trials = [timed_trial("a", 2, data), timed_trial("b", 2, data, batch_size=6)]
    together = packed(recipe, data, trials)
    for each in trials:
        alone = by_hand(recipe, data, each)
        assert together[each.id].scores == alone.scores
        assert equal_models(together[each.id].state, alone.state)


# -- buckets -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.integers(1, 9), st.integers(0, 9))
def test_buckets_keep_every_sample_and_sort_groups(
    lengths: list[int], group: int, seed: int
) -> None:
    order = arrangement.bucketed(np.array(lengths), group, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(lengths)))
    whole = len(lengths) // group
    found = np.array(lengths)[order][: whole * group].reshape(whole, group)
    assert (np.diff(found, axis=1) >= 0).all()
    spans = sorted((int(each[0]), int(each[-1])) for each in found)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize("shuffle", ["once", "each"])
def test_batches_of_buckets_are_alike_in_length_and_no_sample_is_lost(shuffle: str) -> None:
    rng = np.random.default_rng(0)
    items = [{"n": n, "x": torch.ones(int(rng.integers(1, 100)))} for n in range(600)]

    def collate(batch: list[Any]) -> Any:
        return [(item["n"], len(item["x"])) for item in batch]

    plain = Data.dataset(items, None, collate=collate)
    for by in ("x", lambda item: len(item["x"])):
        data = plain.bucketed(by)
        data.chunk = 200
        cut, found = Batches(8), []
        for chunk in stream(data).chunks(S0, 3, shuffle):
            found += [batch.batch() for batch, _ in cut.of(chunk)]
        assert sorted(n for batch in found for n, _ in batch) == list(range(600))
        spread = np.mean([np.ptp([size for _, size in batch]) for batch in found])
        assert spread < 15, "of lengths from 1 to 99"
    firsts = {tuple(len(b) for b in [found[0]]), str(found[0])}
    assert firsts and found[0] != found[1]


# -- folds ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.integers(6, 60), st.integers(2, 5), st.integers(1, 2), st.booleans())
def test_folds_part_the_samples(count: int, folds: int, shards: int, stratify: bool) -> None:
    y = np.arange(count) % 3
    data = Data.arrays(np.arange(count), y, validation=None, shards=shards)
    data = data.folds(folds, seed=1, stratify=1 if stratify else None)
    seen: list[int] = []
    for fold in range(folds):
        own = data.of_fold(fold)
        assert own.sizes == data.sizes
        train = [n for shard in own.shards for n in own.read(shard)[0].tolist()]
        valid = [n for part in own.validation for n in own.read(part)[0].tolist()]
        assert not set(train) & set(valid) and len(train) + len(valid) >= count - 1
        if stratify:
            shares = np.bincount(np.array(valid) % 3, minlength=3)
            assert np.ptp(shares) <= 1 + (count % 3 > 0)
        seen += valid
    assert sorted(seen) == list(range(count))


class Folded(Balanced):
    def data(self) -> Data:
        return Data.arrays(*self.columns(), shards=2, validation=None).folds(3, stratify=1)

    def columns(self) -> Any:
        rng = np.random.default_rng(0)
        y = (rng.random(90) < 0.4).astype(int)
        return (rng.normal(size=(90, 6)) + y[:, None]).astype("float32"), y


def test_trials_of_folds_learn_alone_what_they_learn_together() -> None:
    recipe = Folded()
    data = bring(recipe)
    assert recipe.data_folds == 3
    trials = [timed_trial(f"f{fold}", 2, data, fold=fold) for fold in (0, 1, 2)]
    together = packed(recipe, data, trials)
    scores = set()
    for each in trials:
        alone = packed(recipe, data, [each])[each.id]
        assert together[each.id].scores == alone.scores != []
        assert equal_models(together[each.id].state, alone.state)
        scores.add(str(alone.scores))
    assert len(scores) > 1
    streams = Streams(recipe, data, seed=SEED, device=CPU, memory_gb=1.0)
    assert streams.of((("fold", 1),)) is streams.of((("fold", 1),))
    for config in ({}, {"fold": 3}):
        what = timed_trial("x", 1, data, **config)
        error = packed(recipe, data, [what])[what.id].error
        assert error is not None and "a whole number from 0 to 2" in str(error)


def test_folds_need_all_of_the_data() -> None:
    with pytest.raises(DataError, match="give validation=None"):
        Data.arrays(np.arange(9)).folds(3)
    with pytest.raises(DataError, match="folds must be a whole number between 2 and"):
        Data.arrays(np.arange(9), validation=None).folds(1)


# -- loaders -------------------------------------------------------------------------------------


PAIRS = TensorDataset(torch.arange(24), torch.arange(24) % 2)


def of_loader(loader: Any, valid: Any = None) -> tuple[Data, Recipe]:
    recipe = Recipe()
    recipe.data = lambda: (loader, valid)  # type: ignore[method-assign]
    return bring(recipe), recipe


def test_a_loader_brings_its_batches_and_order() -> None:
    data, recipe = of_loader(DataLoader(PAIRS, 6, shuffle=True, drop_last=True), PAIRS)
    assert (recipe.batch_size, recipe.drop_last, recipe.shuffle) == (6, True, "each")
    assert sorted(numbers(stream(data))) == list(range(24)) and data.validation
    data, recipe = of_loader(DataLoader(PAIRS, 5))
    assert recipe.shuffle == "sequential" and not data.validation
    assert numbers(stream(data), "sequential") == list(range(24))
    data, recipe = of_loader(DataLoader(PAIRS, 5, sampler=SubsetRandomSampler(range(3, 9))))
    assert sorted(numbers(stream(data))) == list(range(3, 9))
    weighted = WeightedRandomSampler([0.0, 1.0] * 12, 24)
    data, _ = of_loader(DataLoader(PAIRS, 5, sampler=weighted))
    assert {n % 2 for n in numbers(stream(data))} == {1}


def test_the_recipes_own_attributes_come_first() -> None:
    class Own(Small):
        batch_size = 3
        shuffle = "once"

        def data(self) -> Any:
            return DataLoader(PAIRS, 6, shuffle=True)

    recipe = Own()
    bring(recipe)
    assert (recipe.batch_size, recipe.shuffle, recipe.drop_last) == (3, "once", False)


class Backwards(Sampler[int]):
    """An order of its own, which draws where it begins."""

    def __init__(self, count: int, drawn: bool = True) -> None:
        self.count, self.drawn, self.calls = count, drawn, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        start = int(torch.randint(self.count, ())) if self.drawn else self.calls
        return iter([(start - n) % self.count for n in range(self.count)])


def test_any_other_samplers_order_is_drawn_in_each_pass_under_the_studys_seed() -> None:
    data, _ = of_loader(DataLoader(PAIRS, 5, sampler=Backwards(24)))
    data.chunk = 10
    first = numbers(stream(data))
    assert all((a - b) % 24 == 1 for a, b in pairwise(first))
    assert numbers(stream(data)) == first
    assert len({str(numbers(stream(data), turn=turn)) for turn in range(5)}) > 1


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (
            lambda: DataLoader(PAIRS, 5, sampler=Backwards(24, False)),
            "another order under the same",
        ),
        (
            lambda: DataLoader(PAIRS, 5, sampler=Backwards(20)),
            "as many samples as .*, 24; .* gave 20",
        ),
        (lambda: DataLoader(PAIRS, batch_size=None), "needs a batch_size"),
        (
            lambda: DataLoader(PAIRS, 5, sampler=WeightedRandomSampler(torch.ones(24), 9)),
            "has num_samples=9",
        ),
    ],
)
def test_loaders_that_cannot_be_kept_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Data.loader(make())


# -- iterable datasets ---------------------------------------------------------------------------


class Counted(IterableDataset[Any]):
    def __init__(self, count: int | None, ragged: bool = False) -> None:
        self.count, self.ragged = count, ragged

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while self.count is None or number < self.count:
            yield number, torch.ones(1 + number % 3 if self.ragged else 2) * number
            number += 1


@pytest.mark.parametrize("spill", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_an_iterable_dataset_is_read_once(
    spill: bool, ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spill:
        monkeypatch.setattr(iterables, "SPILL_BYTES", 100)
    collate = (lambda items: [n for n, _ in items]) if ragged else None
    data = Data.dataset(Counted(700, ragged), 0.1, collate=collate, order="sequential")
    assert data.samples == 630 and data.size("v000") == 70  # type: ignore[arg-type]
    first, values = data.read(S0)
    assert first.tolist() == list(range(630))
    assert all(
        (values[n] == n).all() and len(values[n]) == (1 + n % 3 if ragged else 2) for n in first
    )
    memory = Data.dataset(Counted(700, ragged), 0.1, collate=collate, order="sequential")
    assert memory.fingerprint == data.fingerprint


def test_an_endless_dataset_needs_samples() -> None:
    data = Data.dataset(Counted(None), None, samples=300)
    assert sorted(data.read(S0)[0].tolist()) == list(range(300))
    with pytest.raises(DataError, match="should give samples=9 items; it gave 5"):
        Data.dataset(Counted(5), None, samples=9)
    loaded = Data.loader(DataLoader(Counted(40), 5))
    assert numbers(stream(loaded), "sequential") == list(range(40))
