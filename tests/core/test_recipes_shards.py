"""The shards of a study of several recipes: which are a trial's, and in which order."""

import pytest

from shoal.core.cluster import (
    ShardId,
    epoch_size,
    of_recipe,
    own_name,
    shard_order,
    shards_of,
)

PLAIN = {ShardId(name): 10 + number for number, name in enumerate("abcd")}
BOTH = {of_recipe(recipe, name): size for recipe in ("one", "two") for name, size in PLAIN.items()}


def test_all_shards_are_a_trials_where_there_is_one_recipe() -> None:
    assert shards_of(PLAIN, {"recipe": "anything"}) is PLAIN
    assert epoch_size(PLAIN, {}) == 46


def test_a_trial_has_the_shards_of_its_recipe() -> None:
    own = shards_of(BOTH, {"recipe": "two"})
    assert [own_name(name) for name in own] == list(PLAIN)
    assert all(name.startswith("two") for name in own)
    assert epoch_size(BOTH, {"recipe": "two"}) == 46


def test_no_recipe_is_one_error() -> None:
    with pytest.raises(ValueError, match=r"one of one, two; got 'three'"):
        shards_of(BOTH, {"recipe": "three"})


@pytest.mark.parametrize("epoch", range(5))
def test_the_order_is_that_of_the_recipe_alone(epoch: int) -> None:
    own = shard_order(3, epoch, shards_of(BOTH, {"recipe": "one"}))
    assert [*map(own_name, own)] == [*shard_order(3, epoch, PLAIN)]
