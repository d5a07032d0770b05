"""The stream: its order, its two hooks, and what it keeps."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from device_kit import HERE
from train_kit import S0, S1, Small, blobs, drive, go, planned, trainer, trial

from shoal.core.trial import Visit
from shoal.train.data.arrangement import stable
from shoal.train.data.data import Data
from shoal.train.recipe.unit import TrialError
from shoal.train.slot.trainer import Unit
from shoal.train.stream.chunks import ChunkCache
from shoal.train.stream.stream import Stream


def numbers(samples: int = 30, shards: int = 2, chunk: int = 4) -> Data:
    """Data whose one column numbers the samples."""
    data = Data.arrays(np.arange(samples), shards=shards, validation=None)
    data.chunk = chunk
    return data


def stream(data: Data, recipe: Any = None, seed: int = 1, memory_gb: float = 1.0) -> Stream:
    return Stream(recipe or Small(), data, seed=seed, device=HERE, memory_gb=memory_gb)


def order(of: Stream, shard: Any = S0, turn: int = 0, shuffle: str = "once") -> list[list[int]]:
    return [chunk[0].tolist() for chunk in of.chunks(shard, turn, shuffle)]


def flat(chunks: list[list[int]]) -> list[int]:
    return [n for chunk in chunks for n in chunk]


def test_shuffle_once_is_a_function_of_seed_and_shard() -> None:
    data = numbers()
    first = order(stream(data))
    assert [len(chunk) for chunk in first] == [4, 4, 4, 3]
    assert sorted(flat(first)) == sorted(data.read(S0)[0].tolist()) != flat(first)
    assert order(stream(data), turn=1) == first
    assert order(stream(data, memory_gb=0)) == first
    assert order(stream(data, seed=2)) != first
    by_place = [data.read(S0)[0].tolist().index(n) for n in flat(first)]
    other = [data.read(S1)[0].tolist().index(n) for n in flat(order(stream(data), S1))]
    assert by_place != other


def test_shuffle_each_draws_chunks_and_samples_anew_in_every_pass() -> None:
    data = numbers()
    passes = [order(stream(data), turn=turn, shuffle="each") for turn in range(4)]
    once = {frozenset(chunk) for chunk in order(stream(data))}
    for turn, made in enumerate(passes):
        assert {frozenset(chunk) for chunk in made} == once  # what forms a chunk never changes
        assert order(stream(data, memory_gb=0), turn=turn, shuffle="each") == made
    assert len({str(made) for made in passes}) == 4
    assert len({str(sorted(made)) for made in passes}) == 4


def test_streams_of_both_orders_share_what_is_prepared() -> None:
    calls = []

    class Counted(Small):
        def prepare(self, samples: Any) -> Any:
            calls.append(len(samples[0]))
            return tuple(column * 10 for column in samples)

    one = stream(numbers(), Counted())
    first = order(one)
    order(one, shuffle="each")
    assert order(one) == first
    assert calls == [4, 4, 4, 3]
    assert all(n % 10 == 0 for n in flat(first))
    calls.clear()
    none = stream(numbers(), Counted(), memory_gb=0)
    assert order(none) == first == order(none)
    assert len(calls) == 8


class Noisy(Small):
    """Augments with the numbers it draws, and notes them."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[int] = []

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        self.drawn.append(int(rng.integers(2**40)))
        return (samples[0] * 1,)


def test_augment_draws_from_seed_turn_shard_and_chunk_alone() -> None:
    data, recipe = numbers(), Noisy()
    order(stream(data, recipe), S1, turn=5)
    expected = [int(np.random.default_rng([1, stable(S1), 5, k]).integers(2**40)) for k in range(4)]
    assert recipe.drawn == expected
    for shuffle, memory_gb in (("once", 0.0), ("each", 1.0)):
        again = Noisy()
        busy = stream(data, again, memory_gb=memory_gb)
        order(busy, S0, turn=2)
        again.drawn.clear()
        order(busy, S1, turn=5, shuffle=shuffle)
        assert sorted(again.drawn) == sorted(expected)
    for shard, turn in ((S0, 5), (S1, 6)):
        other = Noisy()
        order(stream(data, other), shard, turn=turn)
        assert set(other.drawn).isdisjoint(expected)


def test_what_augment_makes_is_never_kept_and_what_it_gets_cannot_be_changed() -> None:
    class Doubling(Small):
        def augment(self, samples: Any, rng: np.random.Generator) -> Any:
            return (samples[0] * 2,)

    one = stream(numbers(), Doubling())
    assert (
        order(one) == order(one) == [[2 * n for n in chunk] for chunk in order(stream(numbers()))]
    )

    class Writing(Small):
        def augment(self, samples: Any, rng: np.random.Generator) -> Any:
            samples[0][:] = 0
            return samples

    with pytest.raises(ValueError, match="read-only"):
        order(stream(numbers(), Writing()))


@pytest.mark.parametrize("hook", ["prepare", "augment"])
def test_hooks_must_keep_the_number_of_samples(hook: str) -> None:
    recipe = Small(**{hook: lambda samples, rng=None: (samples[0][1:],)})
    with pytest.raises(
        ValueError,
        match=rf"{hook} must return columns with as many samples as it got, 4; got \[3\]",
    ):
        order(stream(numbers(), recipe))


def test_the_next_chunk_is_made_while_one_is_in_use() -> None:
    began = [threading.Event() for _ in range(4)]
    threads = set()

    class Slow(Small):
        def prepare(self, samples: Any) -> Any:
            next(event for event in began if not event.is_set()).set()
            threads.add(threading.current_thread())
            return samples

    chunks = stream(numbers(), Slow()).chunks(S0, 0)
    next(chunks)
    assert began[1].wait(60) and not began[2].is_set()
    next(chunks)
    assert began[2].wait(60) and not began[3].is_set()
    chunks.close()
    assert threading.current_thread() not in threads


def test_resident_chunks_are_the_same_memory_in_every_pass() -> None:
    one = stream(numbers())
    first = [chunk[0].data_ptr() for chunk in one.chunks(S0, 0)]
    assert [chunk[0].data_ptr() for chunk in one.chunks(S0, 1)] == first
    before = set(threading.enumerate())
    list(one.chunks(S0, 2))
    assert not set(threading.enumerate()) - before


def test_leaving_early_waits_for_what_was_begun() -> None:
    working = threading.Event()

    class Slow(Small):
        def prepare(self, samples: Any) -> Any:
            working.set()
            threading.Event().wait(0.05)
            working.clear()
            return samples

    chunks = stream(numbers(), Slow()).chunks(S0, 0)
    next(chunks)
    chunks.close()
    assert not working.is_set()


def test_a_shelf_keeps_within_its_limit_and_gives_up_the_shard_used_longest_ago() -> None:
    shelf, block = ChunkCache(100), (np.zeros(40, "u1"),)
    shelf.put(S0, 0, block)
    shelf.put(S1, 0, block)
    assert shelf.get(S0, 0) is block  # now S1 is older
    shelf.put(S0, 1, block)
    assert shelf.total == 80 and shelf.get(S1, 0) is None
    shelf.put(S0, 2, block)  # no room, and no other shard to give up: kept in part
    assert shelf.get(S0, 2) is None and shelf.get(S0, 1) is block and shelf.total == 80
    shelf.drop(S0)
    assert shelf.total == 0


def test_a_chunk_that_a_shelf_has_counts_once() -> None:
    shelf, block = ChunkCache(100), (np.zeros(40, "u1"),)
    shelf.put(S0, 0, block)
    shelf.put(S0, 0, block)
    assert shelf.total == 40


def test_data_larger_than_the_memory_is_trained_alike() -> None:
    ends = []
    for memory in (1.0, 0.0, 1e-6):
        held = trainer(Small(shuffle="each"), blobs(chunk=6), data_memory_gb=memory)
        go(held, trial(), planned(blobs(), 2))
        ends.append(held.state(trial().id)["model"]["0.weight"].copy())
    assert np.array_equal(ends[0], ends[1]) and np.array_equal(ends[0], ends[2])


def test_a_step_that_writes_into_its_batch_is_set_aside_and_the_data_stays_whole() -> None:
    class Writing(Small):
        def training_step(self, model: Any, batch: Any) -> Any:
            if self.writes:
                batch[0].mul_(0)
            return super().training_step(model, batch)

    data, visit = blobs(chunk=12), Visit(0, S0, 0, 0)
    recipe = Writing(writes=True)
    shared = trainer(recipe, data)
    with pytest.raises(TrialError, match="a step wrote into its batch"):
        drive(shared.train(Unit(trial("bad"), (), visit)))
    recipe.writes = False
    go(shared, trial(), [visit])
    fresh = trainer(Small(), data)
    go(fresh, trial(), [visit])
    assert np.array_equal(
        shared.state(trial().id)["model"]["0.weight"], fresh.state(trial().id)["model"]["0.weight"]
    )


def test_validation_comes_in_the_order_of_the_data_unaugmented() -> None:
    data = Data.arrays(np.arange(30), validation=(np.arange(100, 110),))
    data.chunk = 4
    one = stream(data, Noisy())
    for _ in range(2):
        assert [chunk[0].tolist() for chunk in one.validation()] == [
            [100, 101, 102, 103],
            [104, 105, 106, 107],
            [108, 109],
        ]


def test_named_columns_come_as_dicts() -> None:
    data = Data.arrays(x=np.arange(8), y=np.arange(8) * 2, validation=None)
    (chunk,) = stream(data).chunks(S0, 0)
    assert isinstance(chunk, dict) and torch.equal(chunk["x"] * 2, chunk["y"])
    held = trainer(
        _Named(), Data.arrays(x=np.ones((20, 6), "f4"), y=np.zeros(20, int), validation=0.25)
    )
    go(held, trial(), [Visit(0, S0, 0, 0)])


class _Named(Small):
    def training_step(self, model: Any, batch: Any) -> Any:
        return super().training_step(model, (batch["x"], batch["y"]))

    def validation_step(self, model: Any, batch: Any) -> Any:
        return super().validation_step(model, (batch["x"], batch["y"]))


def test_a_shelf_that_shrinks_keeps_half_as_much() -> None:
    shelf, block = ChunkCache(100), (np.zeros(40, "u1"),)
    other = shelf.of("otherwise")
    shelf.put(S0, 0, block)
    other.put(S0, 0, block)
    assert shelf.total == 80 and shelf.shrink() and shelf.total == other.total == 0
    other.put(S0, 0, block)
    assert other.get(S0, 0) is block and other.total == 40, "80 were held: 40 may be"
    assert shelf.shrink()
    shelf.put(S0, 0, block)
    assert shelf.total == 0 and not shelf.shrink()


def test_nothing_of_a_shard_is_held_beyond_its_chunks() -> None:
    """A shard may be larger than memory, if its rows can be read alone."""
    data = numbers(samples=40, shards=1)
    asked: list[int] = []
    rows = data.rows

    def noted(part: Any, index: Any) -> Any:
        asked.append(len(index))
        return rows(part, index)

    data.rows = noted  # type: ignore[method-assign]
    data.read = None  # type: ignore[assignment, method-assign]
    of = stream(data, memory_gb=0)
    chunks = of.chunks(S0, 0)
    next(chunks)
    assert max(asked) == 4 and sum(asked) <= 2 * 4
    chunks.close()
    assert flat(order(of)) == flat(order(stream(numbers(40, 1))))
