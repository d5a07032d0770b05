"""A process that times, without the process: what it answers over its link."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import torch
from torch import nn
from train_kit import Linear, blobs, trial

from shoal.train.data.data import Data
from shoal.train.lane.measure import COUNTED
from shoal.train.recipe.pickling import dumps
from shoal.train.recipe.seat import Seat
from shoal.train.tools.timing import SETTLED, TimedSetup, serve

ALONE = Seat("a", 1, 0, 1)


class Timely(Linear):
    """Small; `bad` raises in the model."""

    batch_size: Any = 8

    def data(self) -> Data:
        return blobs(chunk=16)

    def configure_model(self, config: Mapping[str, Any]) -> nn.Module:
        if config.get("bad"):
            raise KeyError("no such layer")
        return super().configure_model(config)


@contextmanager
def timing(recipe: Timely, folder: Path) -> Iterator[Any]:
    """The link to what times the recipe; it ends with its link."""
    ours, theirs = Pipe()
    setup = TimedSetup(dumps((recipe, None)), str(folder / "lock"), metric="accuracy")
    threads = torch.get_num_threads()
    server = threading.Thread(target=serve, args=(theirs, setup), daemon=True)
    server.start()
    kind, address = ours.recv()
    assert kind == "at" and address.startswith("127.0.0.1:")
    yield ours
    ours.close()
    server.join(30)
    torch.set_num_threads(threads)
    assert not server.is_alive()


def asked(link: Any, name: str, *arguments: Any) -> Any:
    """The answer to a request."""
    link.send((name, arguments))
    kind, found = link.recv()
    assert kind == name, found
    return found


def test_trials_of_one_kind_have_one_signature_and_failures_are_told(tmp_path: Path) -> None:
    with timing(Timely(), tmp_path) as link:
        trials = [trial("a", width=1), trial("b", width=1), trial("c", bad=True)]
        found = asked(link, "probe", trials)
    assert [name for name, (_, _, why) in found.items() if why is None] == ["a", "b"]
    first, second = found["a"], found["b"]
    assert first[0] == second[0] and first[1]["rate"] > 0
    assert "no such layer" in found["c"][2] and "test_timing.py" in found["c"][2]


def test_the_last_batches_count(tmp_path: Path) -> None:
    with timing(Timely(), tmp_path) as link:
        whole = asked(link, "train", trial(), ALONE)
        short = asked(link, "train", trial(), ALONE, False, 4)
    # The first shard has 30 samples: in each pass three batches of 8 and one of 6.
    assert (whole["steps"], whole["batch"]) == (COUNTED, 8)
    assert 6 * COUNTED < whole["samples"] <= 8 * COUNTED and whole["seconds"] > 0
    assert short["steps"] == 3
    assert sum(whole["spent"].values()) > 0


def test_steps_of_several_batches_count_as_one(tmp_path: Path) -> None:
    with timing(Timely(accumulate_grad_batches=4), tmp_path) as link:
        found = asked(link, "train", trial(), ALONE)
    assert (found["steps"], found["batch"]) == (COUNTED // 4, 32)


def test_it_trains_until_told_to_halt(tmp_path: Path) -> None:
    with timing(Timely(), tmp_path) as link:
        link.send(("train", (trial(), ALONE, False, None)))
        assert link.recv() == ("settled", 1)
        link.send(("halt", None))
        assert link.recv() == ("train", {"rescales": []})
        assert asked(link, "train", trial(), ALONE, False, SETTLED)["steps"] > 0


def test_each_feeder_prepares_what_the_counted_batches_need_and_for_a_while(tmp_path: Path) -> None:
    with timing(Timely(), tmp_path) as link:
        for number in range(2):
            samples, seconds = asked(link, "feed", trial(), 8, number, 2)
            assert samples >= COUNTED * 8 and seconds >= 0.5


def test_what_cannot_be_timed_says_why(tmp_path: Path) -> None:
    with timing(Timely(batch_size="max"), tmp_path) as link:
        link.send(("train", (trial(), ALONE)))
        kind, why = link.recv()
    assert kind == "failed" and "to profile widths, give a number" in why
