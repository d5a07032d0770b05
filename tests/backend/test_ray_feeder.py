"""Feeders: chunks made once for all slots of a node, and the same as each slot would have made them."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray_kit import Bench, Given, Tiny, trials_of

from shoal.backend.ray import Ray
from shoal.policy.fifo import Fifo


class Costly(Tiny):
    """With work to be done on each sample, some of it in each pass."""

    shuffle = "each"

    def prepare(self, samples: Any) -> Any:
        return np.tanh(samples[0]), samples[1]

    def augment(self, samples: Any, rng: np.random.Generator) -> Any:
        return samples[0] + rng.normal(size=samples[0].shape).astype("float32") / 8, samples[1]


def test_each_chunk_is_made_once_for_all(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Costly(shards=2))
    seen: list[Any] = []

    def look(backend: Ray) -> Any:
        return lambda now, entries, state: seen.append(backend.fed()) if len(state.ended) == 4 and not seen else None

    bench.run(Given(trials_of(bench.data, [4, 5, 6, 7], 2)), Fifo(), look, slots=2, feeders=1)
    (fed,) = next(iter(seen[0].values()))
    training = 2 * 2  # chunks: a shard has one, and each is made anew in each of two epochs
    assert training <= fed.made <= training + 4, "the validation's chunks besides; those that fell out of the window again"
    assert fed.served >= 4 * training
    assert fed.seconds >= 0
    bench.check_visits(2)
    bench.check_weights()


@pytest.mark.slow
def test_a_feeder_that_dies_is_not_missed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Costly(slow=0.01))
    killed: list[int] = []

    def kill(backend: Ray) -> Any:
        def watch(now: float, entries: Any, state: Any) -> None:
            if not killed and sum(map(len, state.visits.values())) >= 3:
                feeders = [actor for actors in backend._fleet._feeders.values() for actor in actors]
                killed.append(ray.get(feeders[0].pid.remote()))
                os.kill(killed[0], signal.SIGKILL)

        return watch

    bench.run(Given(trials_of(bench.data, [4, 5, 6], 2)), Fifo(), kill, slots=2, feeders=1)
    assert killed
    assert set(bench.state.ended.values()) == {"finished"}
    bench.check_weights()
