"""`Recipe.features`: once for each chunk, the same for all lanes, and the same as when it runs
inside each step.
"""

from typing import Any

import pytest
import torch
from device_kit import HERE
from pack_kit import SEED, Varied, Zoo, by_hand, packed, trial
from torch import nn

from shoal.train.recipe.unit import TrialError
from shoal.train.stream.stream import Stream
from shoal.train.tools.check import check_recipe
from shoal.train.tools.verify import differences


class Trunk:
    """A recipe's part: images through a random layer, built at the first call; `calls` counts
    samples.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.trunk: Any = None
        self.calls: list[int] = []

    def features(self, samples: Any) -> Any:
        x, y = samples
        assert not torch.is_grad_enabled()
        if self.trunk is None:
            self.trunk = nn.Sequential(
                nn.Conv2d(1, 1, 3, padding=1), nn.Dropout(0.5), nn.Tanh()
            ).eval()
        self.calls.append(len(x))
        return self.trunk(x), y


class Featured(Trunk, Zoo):
    pass


class FeaturedVaried(Trunk, Varied):
    pass


def trials_of(data: Any, shuffle: str = "once") -> list[Any]:
    return [
        trial(f"t{i}", 3, data, optimizer=o, batch_size=8 + 3 * i, drop=0.2, shuffle=shuffle)
        for i, o in enumerate(["sgd", "adam", "adamw", "sgd"])
    ]


@pytest.mark.parametrize("shuffle", ["once", "each"])
def test_once_for_each_chunk_of_a_pack_and_then_kept(shuffle: str) -> None:
    recipe = Featured(samples=64, shards=2, chunk=16, validation=16)
    data = recipe.data()
    packed(recipe, data, trials_of(data, shuffle))
    assert recipe.calls[:2] == [16, 16]  # to see that it gives the same
    assert (
        sum(recipe.calls[2:]) == 64 + 16
    )  # training and validation data, once in three epochs of four trials


def test_augmented_chunks_are_featured_in_each_pass() -> None:
    recipe = FeaturedVaried(samples=64, shards=2, chunk=16, validation=16)
    data = recipe.data()
    packed(recipe, data, trials_of(data))
    # The first chunk of a pass that could follow may be made, too.
    assert sum(recipe.calls[2:]) in (3 * 64 + 16, 3 * 64 + 16 + 16)


@pytest.mark.parametrize("shuffle", ["once", "each"])
@pytest.mark.parametrize("kind", [Featured, FeaturedVaried])
def test_the_same_alone_and_packed(kind: Any, shuffle: str) -> None:
    recipe = kind(samples=60, shards=2, chunk=16)
    data = recipe.data()
    trials = trials_of(data, shuffle)
    found = packed(recipe, data, trials)
    for each in trials:
        alone = by_hand(kind(samples=60, shards=2, chunk=16), data, each)
        assert list(differences(found[each.id].state, alone.state)) == []
        assert found[each.id].scores == alone.scores


def test_what_steps_see_is_what_the_trunk_gives() -> None:
    recipe, plain = Featured(samples=40, chunk=16), Zoo(samples=40, chunk=16)
    data = recipe.data()
    for shuffle in ("once", "each"):
        for shard in data.shards:
            seen = list(
                Stream(recipe, data, seed=SEED, device=HERE, memory_gb=1.0).chunks(
                    shard, 1, shuffle
                )
            )
            raw = list(
                Stream(plain, data, seed=SEED, device=HERE, memory_gb=1.0).chunks(shard, 1, shuffle)
            )
            for (x, y), (raw_x, raw_y) in zip(seen, raw, strict=True):
                with torch.no_grad():
                    assert torch.allclose(x, recipe.trunk(raw_x), atol=1e-6)
                assert torch.equal(y, raw_y) and not x.requires_grad
    torch.manual_seed(SEED)
    assert torch.equal(recipe.trunk[0].weight, nn.Conv2d(1, 1, 3, padding=1).weight)


def test_a_trial_draws_what_it_drew_without_it() -> None:
    """Building the trunk takes no random number from a trial."""

    class Same(Featured):
        def features(self, samples: Any) -> Any:
            return super().features(samples)[0] * 0 + samples[0], samples[1]

    recipe = Same(samples=40, chunk=16)
    data = recipe.data()
    what = trial("a", 2, data, drop=0.5)
    one, other = (by_hand(recipe, data, what), by_hand(Zoo(samples=40, chunk=16), data, what))
    assert list(differences(one.state, other.state)) == []
    assert check_recipe(Featured(samples=40, chunk=16), data, what.config)["ok"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda x, y: (x[:3], y[:3]), "as many samples"),
        (lambda x, y: (x + torch.rand(1), y), "the same"),
    ],
)
def test_what_it_may_not_do(made: Any, words: str) -> None:
    class Wrong(Zoo):
        def features(self, samples: Any) -> Any:
            return made(*samples)

    recipe = Wrong()
    data = recipe.data()
    found = packed(recipe, data, [trial("a", 1, data), trial("b", 1, data)])
    assert all(
        isinstance(record.error, TrialError) and words in record.error.why
        for record in found.values()
    )


def test_fused_lanes_get_them_too() -> None:
    recipe = Featured(samples=60, shards=2, dtype=torch.float64)
    recipe.trunk = nn.Conv2d(1, 1, 3, padding=1).double().eval()
    data = recipe.data()
    trials = [trial(f"t{i}", 2, data, lr=0.01 * (i + 1)) for i in range(3)]
    found = packed(recipe, data, trials, fuse=True, pace=lambda trial, samples: 1.0)
    for each in trials:
        alone = by_hand(recipe, data, each)
        assert (
            max(
                (
                    gap
                    for _, gap in differences(found[each.id].state["model"], alone.state["model"])
                ),
                default=0.0,
            )
            < 1e-8
        )
