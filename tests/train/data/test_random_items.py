"""Items that draw random numbers: each pass reads them anew, and a replay reads the same again."""

import itertools
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, WeightedRandomSampler

import shoal
from shoal.train.data import columns as cols
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.recipe.recipe_data import bring
from shoal.train.stream.stream import Stream

CPU = torch.device("cpu")


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self) -> float:
        if isinstance(self.generator, torch.Generator):
            return torch.rand((), generator=self.generator).item()
        return float(self.generator.random())


DRAWS: dict[str, Any] = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": np.random.rand,
    "python": random.random,
    "seldom": lambda: float(np.random.rand() < 0.02),
    "own torch": Jitter(torch.Generator()),
    "own numpy": Jitter(np.random.default_rng(5)),
    "own legacy": Jitter(np.random.RandomState(5)),
    "own python": Jitter(random.Random(5)),
}


class Noisy(Dataset[Any]):
    """Its number, and a draw."""

    def __init__(self, kind: str = "torch", count: int = 40) -> None:
        self.transforms = [{"draw": DRAWS[kind]}]
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        return torch.tensor([number / 40, self.transforms[0]["draw"]()]), number % 2


class Kept(Noisy):
    """As people write datasets with transforms: it has tensors, and is no TensorDataset."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = (torch.zeros(40, 2), torch.zeros(40))


def stream(data: Data, seed: int = 0, recipe: Recipe | None = None) -> Stream:
    return Stream(recipe or Recipe(), data, seed=seed, device=CPU, memory_gb=1.0)


def seen(data: Data, turn: int, seed: int = 0, shuffle: str = "once") -> bytes:
    """What a pass over all shards gives."""
    made = []
    for shard in data.shards:
        torch.rand(3), np.random.rand(2), random.random()  # what others draw
        for chunk in stream(data, seed).chunks(shard, turn, shuffle):
            made += [np.array(each).tobytes() for each in cols.parts(chunk)]
    return b"".join(made)


@pytest.mark.parametrize("shuffle", ["once", "each", "sequential"])
@pytest.mark.parametrize("kind", DRAWS)
def test_each_pass_reads_them_anew_and_the_same_when_it_is_made_again(
    kind: str, shuffle: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, other = (Data.dataset(Noisy(kind), shards=2) for _ in range(2))
    assert one.anew and one.fingerprint.endswith("-anew")
    assert one.fingerprint == other.fingerprint
    one.chunk = other.chunk = 8
    passes = [seen(one, turn, shuffle=shuffle) for turn in range(4)]
    assert len(set(passes)) == 4 or kind == "seldom"
    assert [seen(other, turn, shuffle=shuffle) for turn in (2, 0)] == [passes[2], passes[0]]
    assert seen(one, 0, seed=1, shuffle=shuffle) != passes[0]


def test_what_the_study_scores_on_stays_the_same() -> None:
    for data in (Data.dataset(Noisy()), Data.dataset(Noisy(), Noisy("own numpy", 20))):
        once = stream(data)
        scored = [
            [chunk[0].numpy().tobytes() for chunk in each.validation()]
            for each in (once, once, stream(data))
        ]
        assert scored[0] == scored[1] == scored[2]


def test_items_that_no_seed_repeats_are_kept_and_warned_of() -> None:
    count = itertools.count()

    class Counting(Noisy):
        def __getitem__(self, number: int) -> Any:
            return float(next(count))

    with pytest.warns(UserWarning, match="whatever the seed.*Recipe.augment"):
        data = Data.dataset(Counting())
    assert not data.anew and data.fingerprint.endswith("-rows")


def padded(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"x": list(range(40))})
    made.set_transform(lambda rows: {"x": [x + np.random.rand() for x in rows["x"]]})
    return made


BROUGHT: dict[str, Any] = {
    "loader": lambda: Data.loader(DataLoader(Noisy(), 8, num_workers=2), 0.2),
    "collate": lambda: Data.loader(DataLoader(Noisy(), 8, collate_fn=padded)),
    "subset": lambda: Data.dataset(Subset(Noisy(), list(range(30)))),
    "with tensors": lambda: Data.dataset(Kept()),
    "weights": lambda: Data.loader(
        DataLoader(Noisy(), 8, sampler=WeightedRandomSampler([1.0] * 40, 40))
    ),
    "sampler": lambda: Data.loader(DataLoader(Noisy(), 8, sampler=range(40))),
    "buckets": lambda: Data.dataset(Noisy()).bucketed(lambda item: float(item[1])),
    "balanced": lambda: Data.dataset(Noisy()).balanced(1),
    "folds": lambda: Data.dataset(Noisy(), None, 2).folds(4),
    "reshuffled": lambda: Data.dataset(Noisy(), None, 2).reshuffle(),
    "hugging face": lambda: Data.dataset(hugging_face()),
}


@pytest.mark.parametrize("way", BROUGHT)
def test_however_they_are_brought(way: str) -> None:
    def read() -> list[bytes]:
        recipe = Recipe()
        recipe.data = BROUGHT[way]  # type: ignore[method-assign]
        data = bring(recipe)
        assert data.anew
        made = []
        for turn in range(3):
            chunks = list(stream(data).chunks(data.shards[0], turn))
            first = cols.parts(chunks[0])[0]
            made.append(np.sort(np.array(first), axis=0).tobytes())
        return made

    passes = read()
    assert len(set(passes)) == 3, "the same items, other draws"
    assert read() == passes


def test_hooks_of_the_recipe_see_what_was_drawn() -> None:
    class Hooked(Recipe):
        def prepare(self, samples: Any) -> Any:
            return (samples[0] * 2, samples[1])

        def augment(self, samples: Any, rng: np.random.Generator) -> Any:
            return (samples[0] + rng.integers(10, 20), samples[1])

    data = Data.dataset(Noisy(), None)
    plain, made = (
        [next(stream(data, 0, recipe).chunks(data.shards[0], t)) for t in range(2)]
        for recipe in (Recipe(), Hooked())
    )
    for one, other in zip(plain, made, strict=True):
        added = other[0].double() - 2 * one[0].double()
        assert 10 <= added.mean() < 20 and added.std() < 1e-5
    assert not torch.equal(made[0][0] - made[0][0].mean(), made[1][0])


class Trains(shoal.Recipe):
    """Learns from random items."""

    search_space = {"lr": shoal.grid([0.1, 0.01])}
    metric, mode, max_epochs, batch_size = "loss", "min", 3, 8

    def data(self) -> Data:
        return Data.dataset(Noisy("own numpy"), shards=2)

    def configure_model(self, config: Any) -> nn.Module:
        return nn.Linear(2, 2)

    def configure_optimizers(self, model: nn.Module, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        assert isinstance(batch, tuple)
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        return {"loss": loss}


def weights(study: shoal.Study) -> list[torch.Tensor]:
    return [study.load_model(trial.id).weight for trial in study.trials]


def test_a_study_that_goes_on_or_packs_learns_the_same(tmp_path: Path) -> None:
    studies = []
    for name, epochs, policy in (
        ("whole", [3], "fifo"),
        ("grown", [1, 3], "fifo"),
        ("hop", [3], "hop"),
    ):
        study = shoal.create_study(Trains(), storage=tmp_path / name)
        for most in epochs:
            study.optimize(policy=policy, max_epochs=most, progress=False)
        studies.append(study)
        assert [row["equal"] for row in study.replay()] == [True] * 2
    whole, grown, hopped = map(weights, studies)
    assert all(map(torch.equal, whole, grown)) and len(whole) == len(hopped) == 2
    assert "read anew in each pass" in repr(Trains().data())


def test_a_pass_in_another_order_than_the_last_reads_nothing_of_it() -> None:
    data = Data.dataset(Noisy(), None)
    of = stream(data)
    first = [chunk[0].clone() for chunk in of.chunks(data.shards[0], 0)]
    list(of.chunks(data.shards[0], 1))
    again = [chunk[0].clone() for chunk in of.chunks(data.shards[0], 0)]
    assert all(map(torch.equal, first, again))


def test_what_another_thread_draws_is_not_taken_for_the_items() -> None:
    class Disturbed(Noisy):
        reads = 0

        def __getitem__(self, number: int) -> Any:
            self.reads += 1
            if self.reads % 2:
                random.random()
            return torch.ones(2) * number

    assert not Data.dataset(Disturbed()).anew


def test_items_that_a_former_version_pickled_are_read() -> None:
    source = Data.dataset(Noisy())._source
    state = [getattr(source, name) for name in source.__slots__]  # type: ignore[attr-defined]
    for length in (6, 8, 9, 10):
        old = object.__new__(type(source))
        old.__setstate__(state[:length])  # type: ignore[attr-defined]
        assert old.drawn is None and len(old.read("s000")[0]) == 32  # type: ignore[attr-defined]
