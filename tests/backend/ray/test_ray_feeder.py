"""Feeders: chunks made once for all slots of a node, and the same as each slot would have made
them.
"""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.core.event import Fed
from shoal.options import Options
from shoal.policy.fifo import Fifo
from shoal.train.data import data as train_data
from shoal.train.recipe.recipe_data import bring
from shoal.train.recipe.recipes import Recipes


class Costly(Tiny):
    """With work to be done on each sample, some of it in each pass: `pause` seconds for each
    chunk.
    """

    shuffle = "each"

    def __init__(self, pause: float = 0.0, **more: Any) -> None:
        super().__init__(**more)
        self.pause = pause

    def prepare(self, samples: Any) -> Any:
        return np.tanh(samples[0]), samples[1]

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        time.sleep(self.pause)
        made = samples[0] + rng.normal(size=samples[0].shape).astype("float32") / 8
        return np.asfortranarray(made), samples[1]  # sums over another layout are rounded otherwise


class Stalling(Costly):
    """The trial of width 4 stands still, once, until the others are through with all their
    steps.
    """

    def __init__(self, marks: Path, others: int, **more: Any) -> None:
        super().__init__(**more)
        self.folder, self.others = marks, others

    def training_step(self, model: Any, batch: Any) -> Any:
        width = model[0].out_features
        if width == 4:
            until = time.monotonic() + 120
            while len(list(self.folder.glob("*.end"))) < self.others and time.monotonic() < until:
                time.sleep(0.02)
        return super().training_step(model, batch)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 samples; the slots and feeders get the data as it is made here."""
    monkeypatch.setattr(train_data, "CHUNK_BYTES", 8 * (12 * 4 + 8))
    monkeypatch.setattr(train_data, "CHUNK_ROWS", 1)


def figures(bench: Bench) -> Mapping[str, float]:
    """Of the one node's feeders, at the end."""
    return bench.events(Fed)[-1].figures


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
def test_each_chunk_is_made_once_for_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Costly(shards=2))
    bench.run(Given(trials_of(bench.data, [4, 5, 6, 7], 2)), Fifo(), slots=2, feeders=1)
    fed = figures(bench)
    training = 2 * 2  # chunks: a shard has one, and each is made anew in each of two epochs
    assert training <= fed["made"] <= training + 2, "the validation's chunks besides"
    assert fed["served"] >= 4 * training
    assert fed["waits"] <= fed["served"]
    assert fed["feeders"] == 1
    bench.check_visits(2)
    bench.check_weights()


@pytest.mark.nightly
@pytest.mark.usefixtures("small_chunks")
def test_feeders_work_ahead_within_their_memory(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Costly(shards=2, pause=0.01, slow=0.005))
    assert bench.data.chunk == 8
    chunk = 8 * (12 * 4 + 8)
    room = 6 * chunk
    bench.run(
        Given(trials_of(bench.data, [4, 5], 2)),
        Fifo(),
        slots=2,
        feeders=2,
        stream_memory_gb=room / 2**30,
    )
    fed = figures(bench)
    assert 0 < fed["ahead"] * chunk / 8 <= room / 2 + chunk
    assert fed["bytes"] <= room
    bench.check_weights()


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.nightly
@pytest.mark.usefixtures("small_chunks")
def test_a_lane_that_stands_still_holds_up_no_other(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    recipe = Stalling(marks, others=3, shards=1)
    bench = Bench(tmp_path, recipe)
    done: list[str] = []

    def note(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            for trial in state.ended:
                (marks / f"{trial}.end").touch()
                done.extend({trial} - set(done))

        return watch

    room = 3 * 8 * (12 * 4 + 8) / 2**30
    bench.run(
        Given(trials_of(bench.data, [4, 5, 6, 7], 3)),
        Fifo(),
        note,
        slots=2,
        feeders=1,
        stream_memory_gb=room,
    )
    assert done[-1] == "t4", "the others went on and ended"
    assert figures(bench)["bytes"] <= room * 2**30
    recipe.others = 0
    bench.check_weights()


@pytest.mark.nightly
@pytest.mark.usefixtures("small_chunks")
def test_feeders_are_started_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preparing takes much longer than training: one feeder comes, then more, up to the
    processors that are left.
    """
    # Else Ray makes a token in the home folder, and this process shows it from now on.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    ray.init(
        "local", num_cpus=6, include_dashboard=False, logging_level="error", log_to_driver=False
    )
    try:
        bench = Bench(tmp_path, Costly(shards=2, pause=0.05))
        bench.run(Given(trials_of(bench.data, [4, 5], 12)), Fifo(), slots=2, feeders="auto")
    finally:
        ray.shutdown()
    counts = [event.figures["feeders"] for event in bench.events(Fed)]
    assert counts[0] == 1
    assert 2 <= counts[-1] <= 4, "six processors less two slots"
    bench.check_weights()


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.nightly
@pytest.mark.usefixtures("small_chunks")
def test_none_is_started_where_preparing_costs_nothing(tmp_path: Path) -> None:
    # A step takes much longer than a slice of a busy machine's processor.
    bench = Bench(tmp_path, Costly(shards=2, slow=0.2))
    bench.run(Given(trials_of(bench.data, [4, 5], 1)), Fifo(), slots=2, feeders="auto")
    assert not bench.events(Fed)
    bench.check_weights()


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
def test_feeders_that_raise_leave_it_to_the_slots_to_tell(tmp_path: Path) -> None:
    class Wrong(Costly):
        def augment(self, samples: Any, rng: np.random.Generator) -> Any:
            raise ArithmeticError("no such picture")

    bench = Bench(tmp_path, Wrong(shards=2))
    bench.run(Given(trials_of(bench.data, [4, 5], 1)), Fifo(), slots=2, feeders=1)
    assert set(bench.state.ended.values()) == {"failed: ArithmeticError: no such picture"}


@pytest.mark.usefixtures("shared_ray")
@pytest.mark.slow
@pytest.mark.parametrize("what", ["feeder", "window"])
def test_a_process_that_dies_is_not_missed(tmp_path: Path, what: str) -> None:
    recipe = Costly(slow=0.01)
    recipe.ballast = bytes(2**18)  # type: ignore[attr-defined]  # a large pickle
    bench = Bench(tmp_path, recipe)
    killed: list[int] = []

    def kill(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not killed and sum(map(len, state.visits.values())) >= 3:
                (window,) = backend._fleet._windows.by_node.values()
                own, feeders = ray.get(window.pids.remote())
                killed.append(own if what == "window" else feeders[0])
                os.kill(killed[0], signal.SIGKILL)

        return watch

    bench.run(Given(trials_of(bench.data, [4, 5, 6], 2)), Fifo(), kill, slots=2, feeders=1)
    assert killed
    assert set(bench.state.ended.values()) == {"finished"}
    bench.check_weights()


def test_who_asks_for_feeders_with_several_recipes_hears_that_there_are_none() -> None:
    recipes = Recipes({"one": Costly(), "other": Costly()})
    data, setup = bring(recipes), RaySetup("", 0, Options("ray", feeders=2))
    assert setup.feeders_for(recipes, data) == 0
    with pytest.warns(UserWarning, match="feeders=2 has no effect, .* several recipes"):
        setup.warn_of_idle_feeders(recipes, data)
