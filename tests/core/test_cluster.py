import pytest

from shoal.core.cluster import (
    ShardId,
    Slot,
    SlotId,
    epoch_size,
    of_recipe,
    own_name,
    shard_order,
    shards_of,
)
from shoal.core.trial import Trial, TrialId


@pytest.mark.parametrize(
    "wrong",
    [{"id": ""}, {"samples": 0}, {"samples": float("inf")}, {"widths": (0, 1)}, {"widths": (3, 2)}],
)
def test_wrong_trials_cannot_be_built(wrong: dict) -> None:
    with pytest.raises(ValueError, match="trial"):
        Trial(**{"id": TrialId("t"), "samples": 1.0, **wrong})


def test_lists_in_a_config_become_tuples_all_the_way_down() -> None:
    assert Trial(TrialId("t"), 1.0, {"layers": [[1, 2], (3, [4])]}).config == {
        "layers": ((1, 2), (3, (4,)))
    }


@pytest.mark.parametrize("wrong", [{"id": ""}, {"memory": 0.0}, {"memory": float("nan")}])
def test_wrong_slots_cannot_be_built(wrong: dict) -> None:
    with pytest.raises(ValueError, match="slot"):
        Slot(**{"id": SlotId("a"), **wrong})


def test_shard_order_is_a_function_of_seed_and_epoch() -> None:
    shards = [ShardId(f"s{i}") for i in range(6)]
    orders = {
        (seed, epoch): shard_order(seed, epoch, shards) for seed in range(4) for epoch in range(4)
    }
    assert all(sorted(order) == shards for order in orders.values())
    assert len(set(orders.values())) > 10, "orders hardly differ between seeds and epochs"
    assert shard_order(1, 2, reversed(shards)) == orders[1, 2]
    some = shards[1:4]
    assert shard_order(1, 2, some) == tuple(s for s in orders[1, 2] if s in some), (
        "leaving shards out must not change the others' order"
    )


def test_shard_order_stays_what_it_was() -> None:
    """A change would make old studies go on in another order: it needs a new schema."""
    assert shard_order(0, 0, [ShardId(x) for x in "abcd"]) == ("d", "b", "a", "c")


# -- the shards of a study of several recipes: which are a trial's, and in which order


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
