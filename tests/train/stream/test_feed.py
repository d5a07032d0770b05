"""A stream that is fed: the same chunks as it would make itself, in every order, with every
hook.
"""

import pickle
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from device_kit import HERE
from train_kit import S0, Small

from shoal.train.data.columns import Columns, pack_layout, unpack_layout
from shoal.train.data.data import Data
from shoal.train.stream.stream import Key, Stream, feeding


class Varied(Small):
    """Counts what is prepared."""

    def __init__(self) -> None:
        self.prepared = 0

    def prepare(self, samples: Any) -> Any:
        self.prepared += 1
        return (np.sqrt(samples[0].astype("float64")),)

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        return (samples[0] + rng.normal(size=samples[0].shape),)


class Near:
    """A feed in this process; every `lost`-th chunk is not to be had."""

    ahead = 6

    def __init__(self, source: Stream, lost: int = 0) -> None:
        self.source, self.lost = source, lost
        self.asked: list[Any] = []
        self.trained: list[float | None] = []
        self.own: list[float] = []

    def chunk(self, keys: Sequence[Any], trained: float | None) -> Columns | None:
        self.asked.append(list(keys))
        self.trained.append(trained)
        if self.lost and len(self.asked) % self.lost == 0:
            return None
        return self.source.array_chunk(*keys[0])

    def made(self, key: Key, seconds: float) -> None:
        self.own.append(seconds)


def numbers() -> Data:
    data = Data.arrays(np.arange(30), shards=2, validation=0.2)
    data.chunk = 4
    return data


def stream(data: Data, recipe: Any, feed: Any = None) -> Stream:
    return Stream(recipe, data, seed=1, device=HERE, memory_gb=1.0, feed=feed)


def passes(of: Stream, shuffle: str) -> list[bytes]:
    """Two passes and the validation data."""
    chunks = [chunk for turn in range(2) for chunk in of.chunks(S0, turn, shuffle)]
    return [chunk[0].numpy().tobytes() for chunk in [*chunks, *of.validation()]]


@pytest.mark.parametrize("shuffle", ["once", "each"])
@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("hooks", [("prepare", "augment"), ("prepare",), ("augment",)])
def test_what_is_fed_is_what_would_be_made(shuffle: str, lost: int, hooks: tuple[str, ...]) -> None:
    kind = type("Kind", (Small,), {name: vars(Varied)[name] for name in hooks} | {"prepared": 0})
    data = numbers()
    near = Near(feeding(kind(), data, 1, 1.0), lost)
    assert passes(stream(data, kind(), near), shuffle) == passes(stream(data, kind()), shuffle)
    assert near.asked
    assert bool(near.own) == bool(lost)


def test_augmenting_is_a_function_of_seed_pass_and_sample() -> None:
    data = numbers()
    source = feeding(Varied(), data, 1, 0.0)
    key = (S0, 1, 3, "each")
    column = source.array_chunk(*key)[0].tobytes()
    assert column == feeding(Varied(), data, 1, 1.0).array_chunk(*key)[0].tobytes()
    assert column != source.array_chunk(S0, 1, 4, "each")[0].tobytes()
    assert column != feeding(Varied(), data, 2, 0.0).array_chunk(*key)[0].tobytes()


def test_what_comes_next_is_said_and_how_long_training_took() -> None:
    data = numbers()
    near = Near(feeding(Varied(), data, 1, 0.0))
    list(stream(data, Varied(), near).chunks(S0, 0, "once"))
    assert [[key[1] for key in keys] for keys in near.asked] == [[0, 1, 2], [1, 2], [2]], (
        "6 samples ahead are two chunks of 4"
    )
    assert near.trained[0] is None
    assert all(isinstance(seconds, float) for seconds in near.trained[2:])


def test_a_feeder_prepares_once_what_it_augments_in_each_pass() -> None:
    data, recipe = numbers(), Varied()
    source = feeding(recipe, data, 1, 1.0)
    for turn in range(3):
        for number in range(2):
            source.array_chunk(S0, number, turn, "once")
    assert recipe.prepared == 2


class Whole:
    """A source that cannot read some rows alone."""

    def __init__(self, source: Any) -> None:
        self.serial = source.serial
        self.read = source.read


def reads(data: Data, whole: bool = True) -> tuple[list[str], list[int]]:
    """The parts that are read of the data from now on, and by which threads.

    `whole`: the data cannot be read by rows.
    """
    seen: list[str] = []
    where: list[int] = []
    if whole:
        data._source = Whole(data._source)

    def noting(read: Any) -> Any:
        def noted(part: Any, *index: Any) -> Columns:
            seen.append(part)
            where.append(get_ident())
            columns: Columns = read(part, *index)
            return columns

        return noted

    data.read = noting(data.read)  # type: ignore[method-assign]
    if not whole:
        data.rows = noting(data.rows)  # type: ignore[method-assign]
    return seen, where


@pytest.mark.parametrize("hooks", [("prepare", "augment"), ("prepare",), ("augment",)])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("whole", [False, True])
def test_data_that_only_the_training_thread_may_read_is_read_where_the_feed_has_no_chunk(
    lost: int, hooks: tuple[str, ...], whole: bool
) -> None:
    kind = type("Kind", (Small,), {name: vars(Varied)[name] for name in hooks} | {"prepared": 0})
    data, own = numbers(), numbers()
    data.serial = own.serial = True
    seen, where = reads(own, whole)
    near = Near(feeding(kind(), data, 1, 1.0), lost)
    fed = stream(own, kind(), near)
    assert passes(fed, "each") == passes(stream(data, kind()), "each")
    assert (S0 in seen) == bool(lost)
    assert set(where) <= {get_ident()}
    keys = [keys[0] for keys in near.asked]
    assert len(keys) == len(set(keys)), "each is asked for once, had or not"


def test_a_feeder_keeps_the_shards_that_it_used_last() -> None:
    data = Data.arrays(np.arange(30), shards=3, validation=None)
    source, (seen, _) = feeding(Varied(), data, 1, 0.0), reads(data)
    one, two, three = data.shards
    for shard in (one, two, one, three, one):
        source.array_chunk(shard, 0, 0, "once")
    assert seen == [one, two, three]


def test_a_short_chunk_does_not_ask_for_more_of_the_others() -> None:
    data = Data.arrays(np.arange(33), shards=1, validation=None)
    data.chunk = 4
    near = Near(feeding(Varied(), data, 1, 0.0))
    fed = stream(data, Varied(), near)
    for turn in range(12):
        list(fed.chunks(S0, turn, "each"))
    assert max(len(keys) for keys in near.asked if keys[0][1] == 8) == 3, (
        "6 samples ahead are two chunks of 4"
    )


PLAIN = np.arange(120.0).reshape(2, 3, 4, 5)
DENSE = [
    PLAIN,
    PLAIN.transpose(0, 3, 1, 2),
    np.asfortranarray(PLAIN),
    np.arange(6).reshape(6, 1)[:, :, None],
    np.array(2.0),
]
OTHERS = [PLAIN[:, :, ::2], PLAIN[::-1], np.broadcast_to(np.float32(3.0), (4, 2)), np.zeros((0, 3))]


@pytest.mark.parametrize("array", [*DENSE, *OTHERS])
def test_an_array_keeps_its_layout_on_the_way(array: Any) -> None:
    got = unpack_layout(pickle.loads(pickle.dumps(pack_layout(array), protocol=5)))
    assert np.array_equal(got, array)
    assert got.flags.writeable
    if any(array is each for each in DENSE):
        assert got.strides == array.strides


@pytest.mark.parametrize("shuffle", ["once", "each"])
def test_the_first_chunks_of_the_next_pass_are_wanted_before_this_one_is_over(shuffle: str) -> None:
    data = numbers()
    near = Near(feeding(Varied(), data, 1, 0.0))
    fed = stream(data, Varied(), near)
    list(fed.chunks(S0, 0, shuffle, then=(data.shards[1], 1)))
    wanted = [key for key in near.asked[2] if key[0] == data.shards[1]]
    assert len(near.asked[2]) == 3 and len(wanted) == 2
    list(fed.chunks(data.shards[1], 1, shuffle))
    assert [keys[0] for keys in near.asked[3:5]] == wanted


@pytest.mark.parametrize("shuffle", ["once", "each"])
@pytest.mark.parametrize("kind", [Varied, Small])
def test_a_pass_that_was_begun_early_is_the_pass_that_would_be_made(
    kind: Any, shuffle: str
) -> None:
    data = numbers()

    def made(ahead: bool) -> list[bytes]:
        of = stream(data, kind())
        chunks = []
        for turn, shard in enumerate([*data.shards, *data.shards]):
            then = (data.shards[turn % 2], turn + 1) if ahead else None
            chunks += list(of.chunks(shard, turn, shuffle, then=then))
        return [chunk[0].numpy().tobytes() for chunk in chunks]

    assert made(True) == made(False)


def test_what_the_slot_keeps_is_not_wanted_of_its_feed() -> None:
    class Prepared(Small):
        prepare = Varied.prepare
        prepared = 0

    data = numbers()
    near = Near(feeding(Prepared(), data, 1, 1.0))
    fed = stream(data, Prepared(), near)
    passes(fed, "each")
    near.asked.clear()
    passes(fed, "each")
    assert near.asked == []
