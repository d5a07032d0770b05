"""One replay of BFTrainer's experiments, from plain words: it can run in another process."""

import csv
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import numpy as np  # noqa: E402
from common import SHARED  # noqa: E402
from replay import (  # noqa: E402
    Jobs,
    Replay,
    bins,
    even,
    foretold,
    heuristic,
    learned,
    load_jobs,
    milp,
    still,
)

from shoal.policy.elastic.placement import Spatial  # noqa: E402
from shoal.simulate.idle_log import IdleLog  # noqa: E402
from shoal.simulate.log_files import read_log  # noqa: E402

DATA = Path(os.environ.get("BFTRAINER_DATA", SHARED / "data" / "bftrainer"))
BEGIN = 72743.0  # seconds; row 1000 of the log, where the authors' replayer begins
WEEK = 168 * 3600.0
Rows = list[dict[str, Any]]
Goals = dict[str, dict[str, Any]]


@cache
def log() -> IdleLog:
    with (DATA / "nodes.csv").open() as file:
        names = [row["name"] for row in csv.DictReader(file)]
    return read_log(DATA / "summit_events.csv.gz", names)


@cache
def jobs(name: str = "hps-shufflenet-1000J") -> Jobs:
    return load_jobs(DATA / f"jobs-{name}.json")


@cache
def part(subset: int, week: int, hours: float = 168.0) -> IdleLog:
    """Nodes [1024 subset, +1024), or all with -1; of the first week or of the one held out."""
    begin = BEGIN + WEEK * (week - 1)
    chosen = log() if subset < 0 else log().subset(1024 * subset, 1024)
    return chosen.window(begin, min(begin + hours * 3600.0, log().finish))


UNLIKE = {"throughput": "ImageNet-imgps-1001J", "efficiency": "ImageNet-spdup-1001J"}
RULES = {"heuristic": heuristic, "even": even, "learned": learned, "foretold": foretold}


def case(what: dict[str, Any]) -> dict[str, Any]:
    """One replay, from plain words, so that it can run in another process.

    `static`: beside it the samples of the same queue on the equivalent nodes, as "static_U".
    """
    given = {
        "subset": 0,
        "week": 1,
        "hours": 168.0,
        "jobs": "hps-shufflenet-1000J",
        "rule": 120.0,
        "spatial": False,
        **what,
    }
    chosen = queue(given)
    how = {k: given[k] for k in ("parallel", "cost", "completions", "stall") if k in given}
    replay = Replay(part(given["subset"], given["week"], given["hours"]), chosen, **how)
    rule = RULES.get(given["rule"]) or milp(float(given["rule"]))
    found = replay.run(rule, Spatial() if given["spatial"] else None)
    six = bins(replay, found["out"])
    hours = found.pop("hours")
    mean = {
        n: float(np.nanmean(hours[[m == n for m in chosen.names]]))
        for n in dict.fromkeys(chosen.names)
    }
    found |= {"bins_mean": float(six.mean()), "bins_most": float(six.max())}
    found |= {"bins": six, "hours": mean, "mean_hours": float(np.nanmean(hours))}
    found |= {"times": replay.times}
    if given.get("static"):
        found["static_U"] = static_use(replay, found)
        span = last(replay, found)
        found["node_hours"] = equivalent(replay, span) * span / 3600.0
    return {**what, **found}


def queue(given: dict[str, Any]) -> Jobs:
    """The trials that a case is about."""
    chosen = jobs(given["jobs"])
    if given.get("only"):
        chosen = alike(chosen, given["only"])
    if given.get("poisson") is not None:
        gaps = np.random.default_rng(given["poisson"]).exponential(36.0, len(chosen.submit))
        chosen = replace(chosen, submit=np.cumsum(gaps) - gaps[0])
    if given.get("more"):
        chosen = longer(chosen, int(given["more"]))
    return chosen


def static_use(replay: Replay, found: dict[str, Any]) -> float:
    """Samples made over those of the same trials, and as many as are needed, on as many nodes.

    The objective on the static nodes is the one that makes more samples. Until the last trial
    ended, or the log; straight between whole numbers of nodes.
    """
    span = last(replay, found)
    nodes = equivalent(replay, span)
    best = max(
        between(nodes, partial(made, name, span, replay.parallel)) for name in UNLIKE.values()
    )
    return float(found["out"].sum()) / best


def last(replay: Replay, found: dict[str, Any]) -> float:
    """Seconds until the last trial ended, or the log."""
    through = found["done"] == len(replay.jobs.samples)
    return min(float(found["last"]), replay.span) if through else replay.span


def equivalent(replay: Replay, span: float) -> float:
    """Nodes that were idle on average, until then."""
    lengths = np.diff(np.minimum(replay.times, span))
    return float((replay.idle[:-1] * lengths).sum() / span)


def made(name: str, span: float, parallel: int, nodes: int) -> float:
    """Samples of an endless queue of these trials on so many nodes that stay."""
    static = Replay(still(nodes, span), longer(jobs(name), 4), parallel)
    return float(static.run(milp(120.0))["out"].sum())


def between(nodes: float, value: Callable[[int], float]) -> float:
    """Straight between whole numbers of nodes."""
    low = value(int(nodes))
    return low + (nodes - int(nodes)) * (value(int(nodes) + 1) - low)


def alike(given: Jobs, name: str) -> Jobs:
    """The HPO jobs, with the speed of another network."""
    diverse = jobs("ImageNet-imgps-1001J")
    i = [n.lower().rstrip("1") for n in diverse.names].index(name.lower())
    count = len(given.samples)
    rates = np.repeat(diverse.rates[[i]], count, 0)
    return replace(given, names=(name,) * count, rates=rates, scores=rates)


def longer(given: Jobs, times: int) -> Jobs:
    """So many times as many trials, one every 36 s, lest they be through before the log is."""
    many = {
        k: np.concatenate([getattr(given, k)] * times)
        for k in ("rates", "scores", "up", "down", "fewest", "most", "samples")
    }
    return replace(
        given, names=given.names * times, submit=36.0 * np.arange(len(given.names) * times), **many
    )


def replays(cases: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(case, cases))
