"""papers/bftrainer: the authors' accounting, on logs of a few nodes."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.simulate.idle_log import IdleLog

PAPER = Path(__file__).resolve().parents[2] / "papers" / "bftrainer"
RATES = np.array([0.0, 10.0, 20.0, 30.0, 40.0])  # samples/s by nodes
UP, DOWN = 2.0, 3.0


@pytest.fixture(scope="module")
def replays() -> Any:
    """papers/bftrainer/replay.py."""
    spec = importlib.util.spec_from_file_location("bftrainer_replay", PAPER / "replay.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def jobs(replays: Any, *samples: float) -> Any:
    """Trials of 1 to 4 nodes with these samples, there from the start."""
    count = len(samples)
    rates = np.tile(RATES, (count, 1))
    return replays.Jobs(
        names=("net",) * count,
        rates=rates,
        scores=rates,
        up=np.full(count, UP),
        down=np.full(count, DOWN),
        fewest=np.full(count, 1),
        most=np.full(count, 4),
        samples=np.array(samples),
        submit=np.zeros(count),
    )


# One node all the while, and a second one from 50 s on; both leave at 100 s.
GROWS = IdleLog.of([("a", 0.0, 100.0), ("b", 50.0, 100.0)])


@pytest.mark.parametrize(
    ("stall", "made", "rescaled", "preempted"),
    [
        (False, 500 + 1000 - UP * 10 - DOWN * 20, UP * 10, DOWN * 20),
        (True, (50 - UP) * 10 + (50 - UP) * 20, UP * 10 + UP * 20, 0.0),
    ],
    ids=["as the authors", "stall"],
)
def test_what_is_charged(
    replays: Any, stall: bool, made: float, rescaled: float, preempted: float
) -> None:
    """The authors: a start is free, growing costs `up` and a departure `down` at the old rate."""
    replay = replays.Replay(GROWS, jobs(replays, 1e9), stall=stall)
    found = replay.run(replays.milp(120.0))
    best = replay.static() * replay.span
    assert found["out"].sum() == pytest.approx(made)
    assert found["rescaled"] * best == pytest.approx(rescaled)
    assert found["preempted"] * best == pytest.approx(preempted)


def test_costs_are_not_capped_by_the_time_to_the_next_event(replays: Any) -> None:
    dear = replace(jobs(replays, 1e9), up=np.array([1000.0]))
    found = replays.Replay(GROWS, dear).run(replays.even)
    assert found["out"].sum() == pytest.approx(1500 - 1000 * 10 - DOWN * 20)


@pytest.mark.parametrize(("completions", "begun"), [(True, 10.0), (False, 50.0)])
def test_when_an_end_is_noticed(replays: Any, completions: bool, begun: float) -> None:
    """At once, as the paper says; or at the next event, and the over-run is thrown away."""
    two = jobs(replays, 100.0, 1e9)
    replay = replays.Replay(GROWS, two, parallel=1, completions=completions)
    found = replay.run(replays.milp(120.0))
    assert found["hours"][0] * 3600 == pytest.approx(begun), "the first was there at 0"
    free_start = (50 - begun) * 10 + 50 * 20
    grown = UP * 10 if completions else 0.0
    made = 100 + free_start - grown - DOWN * 20
    assert found["out"].sum() == pytest.approx(made)


@pytest.mark.parametrize(
    ("free", "theirs", "even"), [(8, [4, 2, 2], [3, 3, 2]), (5, [4, 1, 0], [2, 2, 1])]
)
def test_equal_shares_as_the_authors_have_them(
    replays: Any, free: int, theirs: list[int], even: list[int]
) -> None:
    """The remainder goes to the first trial, and a share of one node counts as none."""
    replay = replays.Replay(GROWS, jobs(replays, 1e9, 1e9, 1e9))
    active, held = [0, 1, 2], np.zeros(3, int)
    assert replays.heuristic(replay, active, held, free).tolist() == theirs
    assert replays.even(replay, active, held, free).tolist() == even
