"""Workers: the bits that one process would make, in order; and how they end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from multiprocessing import Pipe, current_process
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pytest
import torch
from device_kit import HERE
from train_kit import S0, Small

import shoal
from shoal.study import backends
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.recipe.recipe import Recipe
from shoal.train.stream import stream as stream_module
from shoal.train.stream import worker_pool as pool
from shoal.train.stream.shared_memory import place_columns
from shoal.train.stream.stream import Stream, Streams
from shoal.train.stream.worker import Result, Worker
from shoal.train.stream.worker_pool import PoolSetup, Workers

SHARED = Path("/dev/shm")


class Slow(Small):
    """Preparing takes long enough for workers."""

    def prepare(self, samples: Any) -> Any:
        time.sleep(0.006)
        return (np.sqrt(samples[0].astype("float64")), samples[0])

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        # Not contiguous: the layout decides how sums are rounded.
        noise = rng.normal(size=(3, len(samples[0]))).T
        return (samples[0][:, None] + noise, samples[1])


class Plain(Slow):
    augment = Small.augment


class Broken(Slow):
    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        if 7 in samples[1]:
            raise ZeroDivisionError("seven")
        return super().augment(samples, rng)


class Drawn:
    """A dataset whose items are drawn anew each time."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, number: int) -> Any:
        time.sleep(0.002)
        return np.random.rand(), number


def numbers() -> Data:
    data = Data.arrays(np.arange(30), shards=2, validation=0.2)
    data.chunk = 4
    return data


@contextmanager
def workers(recipe: Any, data: Data, count: int = 2, at_once: bool = True) -> Iterator[Workers]:
    made = Workers(recipe, data, PoolSetup(1, count, 1.0, at_once))
    try:
        yield made
    finally:
        made.close()


def start(of: Workers) -> None:
    """Start the workers, and wait until all are ready."""
    of.made(1.0)
    until(lambda: of.ready() == len(of.pids))


def until(there: Any) -> None:
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.01)


def passes(recipe: Any, data: Data, feed: Any, shuffle: str = "each") -> list[Any]:
    """The bytes and the layout of two passes and the validation data."""
    if feed is not None:
        feed = feed.of(())
    of = Stream(recipe, data, seed=1, device=HERE, memory_gb=0.0, feed=feed)
    chunks = []
    for turn in range(2):
        for shard in data.shards:
            chunks += list(of.chunks(shard, turn, shuffle))
    chunks += list(of.validation())
    return [[(column.numpy().tobytes(), column.stride()) for column in chunk] for chunk in chunks]


def left(names: str) -> set[str]:
    """Pieces of shared memory whose names begin so."""
    if not SHARED.is_dir():
        return set()
    return {path.name for path in SHARED.glob(f"{names}*")}


@pytest.mark.slow
@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_workers_give_the_bits_of_one_process(count: int) -> None:
    data = numbers()
    for recipe in (Slow(), Plain()):
        with workers(recipe, data, count) as feed:
            start(feed)
            for shuffle in ("once", "each"):
                alone = passes(recipe, data, None, shuffle)
                assert passes(recipe, data, feed, shuffle) == alone
                assert feed.chunks_taken >= len(alone)
        assert not left(feed._names)
        assert not feed.pids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:two reads")
def test_what_items_draw_is_the_same_in_any_process() -> None:
    data = Data.dataset(Drawn(), shards=2)
    data.chunk = 5
    alone = passes(Small(), data, None)
    with workers(Small(), data) as feed:
        assert passes(Small(), data, feed) == alone, "while the workers start"
        until(lambda: feed.ready() == 2)
        assert passes(Small(), data, feed) == alone
        assert feed.chunks_taken


def test_the_recipes_error_is_raised_where_it_trains() -> None:
    data = numbers()
    with workers(Broken(), data, 1) as feed:
        start(feed)
        with pytest.raises(ZeroDivisionError, match="seven"):
            passes(Broken(), data, feed)


class Leaving(Slow):
    """Ends the process that augments."""

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        raise SystemExit("enough")


def test_code_that_exits_does_so_where_it_trains() -> None:
    """It is not taken for a worker that was killed."""
    data = numbers()
    with workers(Leaving(), data, 1) as feed:
        start(feed)
        pids = feed.pids
        for _ in range(3):
            with pytest.raises(SystemExit, match="enough"):
                passes(Leaving(), data, feed)
        assert feed.pids == pids


@pytest.mark.slow
def test_a_killed_worker_is_started_again_once() -> None:
    data = numbers()
    alone = passes(Slow(), data, None)
    with workers(Slow(), data, 1) as feed:
        start(feed)
        os.kill(feed.pids[0], signal.SIGKILL)
        assert passes(Slow(), data, feed) == alone
        until(lambda: feed.ready() == 1)
        assert passes(Slow(), data, feed) == alone
        os.kill(feed.pids[0], signal.SIGKILL)
        with pytest.raises(DataError, match=r"killed twice .exit code -9.*workers=0"):
            passes(Slow(), data, feed)
        assert not feed.pids
    assert passes(Slow(), data, feed) == alone


def test_chunks_that_cost_nothing_are_not_worth_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(stream_module, "perf_counter", lambda: clock[0])

    class Timed(Plain):
        seconds = 0.8 * pool.WORTH  # of a chunk of 4

        def prepare(self, samples: Any) -> Any:
            clock[0] += self.seconds * len(samples[0]) / 4
            return (samples[0] * 1.0, samples[0])

    data = numbers()
    with workers(Timed(), data) as feed:
        passes(Timed(), data, feed)
        assert not feed.pids
    Timed.seconds = 2 * pool.WORTH
    late = Workers(Timed(), data, PoolSetup(1, 1, 1.0, at_once=False))
    passes(Timed(), data, late)
    assert not late.pids, "less than a worker takes to start"
    with workers(Timed(), data) as feed:
        passes(Timed(), data, feed)
        assert feed.pids


class Unlike(Slow):
    """Its data cannot be pickled, and is another in each process."""

    def data(self) -> Data:
        return Data.arrays(np.arange(31), shards=2, validation=0.2)


@pytest.mark.slow
def test_workers_that_get_other_data_are_not_used() -> None:
    data = Data.dataset(Held(), shards=2)
    with workers(Unlike(), data) as feed:
        with pytest.warns(UserWarning, match="other data in a worker"):
            start(feed)
        assert passes(Unlike(), data, feed) == passes(Unlike(), data, None)
        assert not feed.chunks_taken


class Held(Drawn):
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lines = (line for line in "ab")

    def __getitem__(self, number: int) -> Any:
        return number * 0.5, number


def test_the_shared_memory_may_be_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullError(OSError):
        pass

    def none(*_: Any) -> Any:
        raise FullError("no room")

    monkeypatch.setattr(pool, "SentRecipe", none)
    with workers(Slow(), numbers()) as feed:
        with pytest.warns(UserWarning, match="in this process alone.*no room"):
            feed.made(1.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert passes(Slow(), numbers(), feed) == passes(Slow(), numbers(), None)


SCRIPT = """
import sys
sys.path[:0] = {path!r}
import test_workers as kit
from shoal.train.stream.worker_pool import PoolSetup, Workers

data = kit.numbers()
feed = Workers(kit.Slow(), data, PoolSetup(1, 2, 1.0, at_once=True))
kit.start(feed)
kit.passes(kit.Slow(), data, feed)
print(feed._names, *feed.pids, flush=True)
{then}
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "then",
    [
        "sys.stdin.read()",
        pytest.param("1 / 0", marks=pytest.mark.slow),
        pytest.param("", marks=pytest.mark.slow),
    ],
)
def test_workers_end_with_the_process_that_started_them(then: str) -> None:
    """Also without a guard in the script, and killed with SIGKILL."""
    path = [str(Path(__file__).parent), *sys.path]
    made = textwrap.dedent(SCRIPT).format(path=path, then=then)
    with preloaded.Popen(
        [sys.executable, "-c", made],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        names, *numbers = driver.stdout.readline().split()
        pids = [int(pid) for pid in numbers]
        assert len(pids) == 2
        if "stdin" in then:
            driver.kill()
        driver.communicate()
    until(lambda: not any(is_alive(pid) for pid in pids))
    until(lambda: not left(names))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_chunk_comes_first_that_training_waits_for() -> None:
    """A worker that is busy with what is wanted later does not keep it from being asked."""
    data = numbers()
    with workers(Slow(), data, 1) as feed:
        start(feed)
        keys = [(S0, number, 0, "once") for number in range(3)]
        for key in (keys[2], keys[0], keys[1], keys[2]):
            assert feed.of(()).chunk([key, *keys], None) is not None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weighted", "bucketed", "images"])
def test_workers_make_what_is_drawn_or_sorted_or_read_from_files(kind: str, tmp_path: Path) -> None:
    data = numbers()
    if kind == "weighted":
        data = data.weighted(np.arange(30) + 1.0)
    elif kind == "bucketed":
        data = data.bucketed(lambda item: float(item[0]))
    else:
        image = pytest.importorskip("PIL.Image", reason="pip install pillow")
        (tmp_path / "a").mkdir()
        for number in range(12):
            picture = image.new("RGB", (6, 4), (number, 0, 0))
            picture.save(tmp_path / "a" / f"{number}.png")
        data = Data.images(tmp_path, shards=2)
        data.chunk = 2
    recipe = Plain()
    if kind == "images":
        recipe = Read()
    alone = passes(recipe, data, None)
    with workers(recipe, data) as feed:
        start(feed)
        assert passes(recipe, data, feed) == alone
        assert feed.chunks_taken


class Read(Small):
    """Only reading takes work."""

    prepare = Recipe.prepare


class Noted(Slow):
    """Notes which process prepares."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def prepare(self, samples: Any) -> Any:
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} ")
        return super().prepare(samples)


def test_workers_take_over_what_the_slot_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = numbers()
    monkeypatch.setattr(pool, "START", inf)  # however long a chunk takes
    recipe = Noted(tmp_path / "pids")
    with workers(recipe, data, 1, at_once=False) as feed:
        streams = Streams(recipe, data, seed=1, device=HERE, memory_gb=1.0, feed=feed)
        feed.pop_block = streams.pop_block
        list(streams.of().chunks(S0, 0, "each"))
        assert not feed.pids, "all of this pass was made here"
        monkeypatch.setattr(pool, "START", 0.0)
        start(feed)
        given = feed.chunks_taken
        mixed = list(streams.of().chunks(S0, 1, "each"))
        assert feed.chunks_taken == given + len(mixed)
        list(streams.of().chunks(S0, 2, "each"))
    pids = recipe.file.read_text().split()
    assert pids == [str(os.getpid())] * data_chunks(data), "each block once, here"
    alone = Stream(Slow(), data, seed=1, device=HERE, memory_gb=0.0)
    for got, wanted in zip(mixed, alone.chunks(S0, 1, "each"), strict=True):
        assert all(map(torch.equal, got, wanted))
    assert not left(feed._names)


def data_chunks(data: Data) -> int:
    return -(-data.size(S0) // data.chunk)


class Scaled(Slow):
    """Its data depends on the configuration."""

    data_keys = ("scale",)

    def prepare(self, samples: Any, scale: float) -> Any:
        one, other = super().prepare(samples)
        return one * scale, other

    def augment(self, samples: Any, rng: np.random.Generator, scale: float) -> Any:
        return super().augment(samples, rng)


def test_trials_whose_data_depends_on_their_configuration_get_workers() -> None:
    data = numbers()
    recipe = Scaled()
    how = {"seed": 1, "device": HERE, "memory_gb": 1.0}
    alone = Streams(recipe, data, **how)
    with workers(recipe, data, 1) as feed:
        start(feed)
        streams = Streams(recipe, data, feed=feed.of(()), **how)
        first = []
        for scale in (1.0, 2.0):
            key = (("scale", scale),)
            made = list(streams.of(key).chunks(S0, 0, "each"))
            for got, wanted in zip(made, alone.of(key).chunks(S0, 0, "each"), strict=True):
                assert all(map(torch.equal, got, wanted))
            first.append(made[0][0])
        assert feed.chunks_taken == 2 * data_chunks(data)
    assert not torch.equal(*first)


def test_a_block_that_a_worker_could_not_take_over_is_removed() -> None:
    name = f"shoal-untaken-{os.getpid()}"
    here, there = Pipe()
    worker = Worker(lambda: (current_process(), here))  # type: ignore[arg-type,return-value]
    key = ((), (S0, 0, 0, "each"))
    worker.give(key, name, (np.zeros(9),))
    assert there.recv().block is not None
    assert left(name)
    there.send(Result(key, why="no room"))
    assert worker.receive() is not None
    assert not left(name)


class Fake:
    """A worker without a process: it makes the chunks of the first pass at once, later one."""

    def __init__(self, _start: Any) -> None:
        self.pipe, self._there = Pipe()
        self.is_ready = True
        self.tasks: dict[Any, str] = {}
        self.taken: list[str] = []
        self.given: dict[int, list[int]] = {0: [], 1: []}
        self.later = -1  # of the second pass, the only chunk that it makes

    def give(self, key: Any, name: str, _block: Any) -> None:
        _, (_, number, turn, _) = key
        self.tasks[key] = name
        self.given[turn].append(number)
        if turn == 0 or number == self.later:
            placed, memory = place_columns(name, (np.zeros(1),))
            memory.close()
            self._there.send(Result(key, placed))

    def receive(self) -> Any:
        result = self.pipe.recv()
        del self.tasks[result.key]
        return result

    def end(self) -> None:
        self.pipe.close()

    def join(self) -> None:
        pass


def test_workers_make_chunks_of_the_blocks_that_they_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    fakes: list[Fake] = []

    def fake(start: Any) -> Fake:
        fakes.append(Fake(start))
        return fakes[-1]

    monkeypatch.setattr(pool, "Worker", fake)
    with workers(Slow(), numbers()) as feed:
        asks = feed.of(())
        feed.made(1.0)
        keys = [(S0, number, 0, "each") for number in range(12)]
        for at in range(12):
            assert asks.chunk(keys[at:], None) is not None
        one, other = (each.given[0] for each in fakes)
        assert len(one) > 2 and len(other) > 2

        fakes[0].later = one[0]
        keys = [(S0, number, 1, "each") for number in [*one, *other]]
        assert asks.chunk(keys, None) is not None
        for each in fakes:
            assert each.given[1] and set(each.given[1]) <= set(each.given[0])


class Learns(Slow):
    """A small net on what workers make."""

    def data(self) -> Data:
        return numbers()

    def configure_model(self, config: Any) -> Any:
        return torch.nn.Linear(3, 1, dtype=torch.float64)

    def configure_optimizers(self, model: Any, config: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=config["lr"])

    def training_step(self, model: Any, batch: Any) -> Any:
        return ((model(batch[0])[:, 0] - batch[1]) ** 2).mean()

    def validation_step(self, model: Any, batch: Any) -> Any:
        return {}


@pytest.mark.slow
def test_a_study_learns_the_same_with_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Workers] = []

    def noted(*args: Any) -> Workers:
        made.append(Workers(*args))
        start(made[-1])
        return made[-1]

    monkeypatch.setattr(backends, "Workers", noted)
    space = {"lr": shoal.grid([1e-4, 1e-3])}
    ends = []
    for count in (0, 2):
        study = shoal.create_study(Learns(), storage=tmp_path / f"{count}", search_space=space)
        study.optimize(
            policy="pack",
            max_epochs=5,
            workers=count,
            data_memory_gb=0.0,
            fuse=False,
            progress=False,
        )
        ends.append([bytes_of(study.load_model(trial, "last")) for trial in study.trials])
    (feed,) = made
    assert feed.chunks_taken, "workers made some of it"
    assert ends[0] == ends[1]
    assert not left(feed._names)


def bytes_of(model: Any) -> list[bytes]:
    return [each.numpy().tobytes() for each in model.state_dict().values()]


def test_a_daemonic_process_makes_its_chunks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have no children."""
    monkeypatch.setitem(current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with workers(Slow(), numbers()) as of:
        with pytest.warns(UserWarning, match="no process can be started here"):
            of.made(1.0)
        assert passes(Slow(), numbers(), of) == passes(Slow(), numbers(), None)
