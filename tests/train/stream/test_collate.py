"""Batches that collate makes of items: those of a DataLoader, and the same in company."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from pack_kit import SEED, by_hand, packed
from pack_kit import trial as timed_trial
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, default_collate
from train_kit import S0, Small, go, planned, trainer

from shoal.train.data.data import Data, DataError
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.shard import arrays
from shoal.train.stream.reader import Reader
from shoal.train.stream.stream import Batches, Stream

WORDS = 11


def sentences(count: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Sequences of 1 to 7 words, whose label is the most frequent word's parity."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        words = rng.integers(1, WORDS, rng.integers(1, 8))
        made.append(
            {"words": torch.from_numpy(words), "label": int(words[0] % 2), "id": str(number)}
        )
    return made


def padded(items: list[dict[str, Any]]) -> dict[str, Any]:
    words = pad_sequence([item["words"] for item in items], batch_first=True)
    labels = torch.tensor([item["label"] for item in items])
    return {"words": words, "label": labels, "id": [item["id"] for item in items]}


def masked(items: list[dict[str, Any]]) -> dict[str, Any]:
    """As a masked language model's collator: it draws."""
    batch = padded(items)
    batch["words"] = batch["words"] * (torch.rand(batch["words"].shape) > 0.2)
    return batch


class Text(Small):
    """A bag of words with dropout."""

    batch_size = 8

    def __init__(self, collate: Any = padded, **settings: Any) -> None:
        super().__init__(**settings)
        self.put_together = collate

    def data(self) -> Data:
        data = Data.dataset(sentences(), shards=2, collate=self.put_together)
        data.chunk = 7  # so that batches lie across chunks
        return data

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(
            nn.Embedding(WORDS, 6), nn.Flatten(0, 1), nn.Dropout(0.3), nn.Linear(6, 2)
        )

    def logits(self, model: nn.Module, batch: Any) -> Any:
        rows, length = batch["words"].shape
        return model(batch["words"]).reshape(rows, length, 2).mean(1)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.logits(model, batch), batch["label"])

    def validation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"accuracy": (self.logits(model, batch).argmax(1) == batch["label"]).float()}


def batches(data: Data, size: int, turn: int = 0) -> list[Any]:
    stream = Stream(Small(), data, seed=SEED, device=torch.device("cpu"), memory_gb=1.0)
    cut, made = Batches(size), []
    for chunk in stream.chunks(S0, turn):
        made += [batch.batch() for batch, _ in cut.of(chunk)]
    rest = cut.end()
    return made if rest is None else [*made, rest[0].batch()]


def order(data: Data) -> list[int]:
    """The numbers of the items of the first shard, in the order of training."""
    numbered = Data.dataset(
        [{**item, "id": item["label"], "place": n} for n, item in enumerate(sentences())],
        shards=2,
        collate=lambda items: [item["place"] for item in items],
    )
    numbered.chunk = data.chunk
    return [n for batch in batches(numbered, 5) for n in batch]


@pytest.mark.parametrize("size", [3, 8, 64])
def test_batches_are_those_of_a_loader_with_the_same_order(size: int) -> None:
    data = Text().data()
    items = sentences()
    plain = DataLoader(items, size, sampler=order(data), collate_fn=padded)  # type: ignore[arg-type]
    for mine, theirs in zip(batches(data, size), plain, strict=True):
        assert mine["id"] == theirs["id"]
        assert torch.equal(mine["words"], theirs["words"])
        assert torch.equal(mine["label"], theirs["label"])


def test_a_shard_recipe_gets_what_collate_makes_as_arrays() -> None:
    stream = Stream(Small(), Text().data(), seed=SEED, device=HERE, memory_gb=1.0)
    found = arrays(next(stream.chunks(S0, 0)))
    assert isinstance(found["words"], np.ndarray) and found["words"].ndim == 2
    assert isinstance(found["id"][0], str)


def test_torchs_default_collate_makes_nested_batches() -> None:
    items = [{"x": (torch.ones(2) * n, {"y": n / 3}), "name": f"n{n}"} for n in range(6)]
    data = Data.dataset(items, None)
    numbers = [int(batch["x"][0][0, 0]) for batch in batches(data, 1)]
    for batch, start in zip(batches(data, 3), (0, 3), strict=True):
        expected = default_collate([items[n] for n in numbers[start : start + 3]])
        assert repr(batch) == repr(expected)


def test_collate_draws_by_place_and_pass_and_disturbs_nothing() -> None:
    data = Text(masked).data()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = batches(data, 8), batches(data, 8), batches(data, 8, turn=1)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a["words"], b["words"]) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a["words"], b["words"]) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("collate", [padded, masked])
def test_alone_packed_and_from_its_parts_a_trial_learns_the_same(collate: Any) -> None:
    recipe = Text(collate)
    data = bring(recipe)
    trials = [
        timed_trial("a", 2, data),
        timed_trial("b", 3, data, batch_size=5),
        timed_trial("c", 2, data, optimizer="momentum"),
    ]
    together = packed(recipe, data, trials)
    for each in trials:
        alone = by_hand(recipe, data, each)
        mine = together[each.id]
        assert mine.error is None and mine.scores == alone.scores
        weights = zip(mine.state["model"].values(), alone.state["model"].values(), strict=True)
        assert all(np.array_equal(a, b) for a, b in weights)
    held = trainer(recipe, data)
    made = go(held, trials[0], planned(data, 1))
    state = held.state(trials[0].id)
    moved = trainer(recipe, data)
    go(moved, trials[0], planned(data, 2)[2:], made, source=state)
    resumed = moved.state(trials[0].id)["model"]
    expected = together[trials[0].id].state["model"]
    assert all(np.array_equal(expected[name], resumed[name]) for name in expected)


def test_a_reader_of_other_batch_sizes_sees_the_same_items() -> None:
    data = Text(lambda items: [item["id"] for item in items]).data()
    stream = Stream(Small(), data, seed=SEED, device=HERE, memory_gb=1.0)
    reader = Reader(lambda skip: stream.chunks(S0, 0, "once", skip), data.size(S0))
    seen: list[str] = []
    for size in (3, 8, 2, 100):
        batch, _ = reader.take(size) or (None, 0)
        seen += batch.batch()  # type: ignore[union-attr]
        if len(seen) == 11:
            reader.keep()
            reader.close()
    assert seen == [n for batch in batches(data, 4) for n in batch]


def test_a_step_that_writes_into_its_batch_fails_and_no_other_trial() -> None:
    class Writes(Text):
        def training_step(self, model: nn.Module, batch: Any) -> Any:
            if getattr(model, "writes", False):
                batch["words"] += 1
                batch["words"] -= 1
            return super().training_step(model, batch)

        def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
            model = super().configure_model(config)
            model.writes = config.get("writes", False)  # type: ignore[assignment]
            return model

    recipe = Writes()
    data = bring(recipe)
    trials = [timed_trial("a", 1, data, writes=True), timed_trial("b", 1, data)]
    found = packed(recipe, data, trials)
    error = found[trials[0].id].error
    assert error is not None and "a step wrote into its batch" in str(error)
    alone = by_hand(recipe, data, trials[1])
    assert found[trials[1].id].scores == alone.scores


def test_hooks_see_ragged_columns_and_may_return_lists() -> None:
    class Hooked(Text):
        def prepare(self, samples: Any) -> Any:
            return {**samples, "words": [words[:3] for words in samples["words"]]}

        def augment(self, samples: Any, rng: np.random.Generator) -> Any:
            return {**samples, "label": 1 - samples["label"]}

    recipe = Hooked()
    stream = Stream(recipe, recipe.data(), seed=SEED, device=HERE, memory_gb=1.0)
    items = {item["id"]: item for item in sentences()}
    for chunk in stream.chunks(S0, 0):
        batch = chunk.batch()  # type: ignore[union-attr]
        assert batch["words"].shape[1] <= 3
        for number, label in zip(batch["id"], batch["label"].tolist(), strict=True):
            assert label == 1 - items[number]["label"]
    data = bring(recipe)
    what = timed_trial("a", 1, data)
    assert packed(recipe, data, [what])[what.id].scores == by_hand(recipe, data, what).scores


class Bare(Text):
    def data(self) -> Data:
        return Data.dataset([{k: item[k] for k in ("words", "label")} for item in sentences()])


def test_items_that_make_no_batch_are_refused_before_training() -> None:
    rule = r"default collate cannot make one of \{words: shape .*give collate="
    with pytest.raises(DataError, match=rule):
        bring(Bare())

    class Own(Bare):
        def collate(self, items: list[Any]) -> Any:
            return padded([{**item, "id": "0"} for item in items])

    data = bring(Own())
    assert data.collates and batches(data, 4)[0]["words"].dim() == 2

    def broken(items: list[Any]) -> Any:
        return items[0]["nothing"]

    with pytest.raises(DataError, match="broken cannot make one of .*KeyError"):
        bring(Text(broken))


def test_unequal_items_found_late_say_so() -> None:
    items = [torch.ones(2 + (n == 501)) for n in range(1000)]
    data = Data.dataset(items, None)
    with pytest.raises(DataError, match="must have equal shapes.*give collate="):
        data.read(S0)
