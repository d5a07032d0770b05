"""A simulated study as a TOML file. It says what there is; it never executes code.

title = "two kinds of trials on eight slots"
hours = 24                     # stop then; unset: with the log's end, or when all trials are through
seed = 0
checkpoint_every = 300         # seconds of a trial's training

[slots]                        # either slots that stay:
count = 8
per_node = 4                   # memory = 16.0 (GiB), kind = "gpu"

[log]                          # or slots that come and go, one a node of an idle-node log:
file = "log.csv"               # beside the spec; nodes = "nodes.csv" (column name) for all nodes and their order
first = 0                      # nodes first … first + count - 1 only
count = 1024
begin = 0                      # seconds of the log
[log.synthetic]                # or one made up: racks, per_rack, idle, hours, seed …
racks = 8

[data]                         # if trials visit shards
shards = 4
samples = 10000                # in all; replicas = 1: slots that hold each shard (unset: every slot holds all)

[[trials]]
count = 100                    # configurations {n = 0 … 99} and what `config` adds
samples = 130e6                # or epochs = 3 of the data
widths = [1, 64]
every = 36                     # seconds apart; or poisson = 36, a mean; or at = [0, 10, …]; begin = 0
config = { model = "ShuffleNet" }

[[profile]]                    # figures of the trials whose configuration has these values
config = { model = "ShuffleNet" }
points = { 1 = 2831, 2 = 5259, 64 = 145081.5 }   # samples/s, straight in between; or rates = [ … ] at widths 1, 2, …
up = 18                        # and down, build, switch, evaluate, save, memory

[policies.greedy]              # what to compare; the table's name is a label
name = "elastic"
horizon = 120
"""

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event
from shoal.core.ports import Policy
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy import rebuild
from shoal.profile.table import Row, Table
from shoal.simulate.arrivals import Arrival, even, poisson
from shoal.simulate.read import read_log
from shoal.simulate.synthetic import Machine, synthetic
from shoal.simulate.trace import IdleLog, TraceError


class SpecError(ValueError):
    """A spec says what cannot be: which file, which table, what it may say."""


@dataclass(frozen=True)
class Spec:
    """What a simulation needs. `script`: slots that come and go; `slots`: those there from the beginning."""

    title: str
    slots: tuple[Slot, ...]
    script: tuple[tuple[Seconds, Event], ...]
    shards: Mapping[ShardId, int]
    arrivals: tuple[Arrival, ...]
    profile: Table
    policies: Mapping[str, Policy[Any]]
    until: Seconds | None = None
    seed: int = 0
    checkpoint_every: Seconds = 300.0


TABLES = {
    "": {"title", "hours", "seed", "checkpoint_every", "slots", "log", "data", "trials", "profile", "policies"},
    "slots": {"count", "per_node", "memory", "kind"},
    "log": {"file", "nodes", "first", "count", "begin", "hours", "synthetic"},
    "log.synthetic": {f.name for f in fields(Machine)} | {"hours", "seed"},
    "data": {"shards", "samples", "replicas"},
    "trials": {"count", "samples", "epochs", "widths", "every", "poisson", "at", "begin", "config"},
    "profile": {f.name for f in fields(Row)} | {"points"},
}


def load_spec(path: str | Path) -> Spec:
    """Read and check a spec.

    Raises:
        SpecError: not TOML, an unknown field, or values that cannot be.
        TraceError: the log it names breaks a rule.
        OSError: as `open`.
    """
    path = Path(path)
    try:
        return _spec(path, tomllib.loads(path.read_text()))
    except (SpecError, TraceError):
        raise
    except (ValueError, TypeError, KeyError) as error:
        missing = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SpecError(f"{path}: {missing}") from error


def _spec(path: Path, data: Mapping[str, Any]) -> Spec:
    _known(path, "", data)
    if ("slots" in data) == ("log" in data):
        raise SpecError(f"{path}: it needs either [slots] or [log]")
    log = _log(path, data["log"]) if "log" in data else None
    shards = _shards(path, data.get("data"))
    slots = () if log else _slots(path, data["slots"], tuple(shards), data.get("data", {}).get("replicas"))
    arrivals = _arrivals(path, data.get("trials", []), shards, data.get("seed", 0))
    rows = [_row(path, row) for row in data.get("profile", [{}])]
    policies = {label: rebuild({"name": label, **given}) for label, given in data.get("policies", {}).items()}
    until = data["hours"] * 3600.0 if "hours" in data else log.span if log else None
    script = tuple(log.script()) if log else ()
    every = float(data.get("checkpoint_every", 300.0))
    title = data.get("title", path.stem)
    return Spec(title, slots, script, shards, arrivals, Table(tuple(rows)), policies, until, data.get("seed", 0), every)


def _known(path: Path, table: str, given: Mapping[str, Any]) -> None:
    wrong = sorted(given.keys() - TABLES[table])
    if wrong:
        where = f"[{table}]" if table else "a spec"
        raise SpecError(f"{path}: {where} has no field {', '.join(wrong)}; it has {', '.join(sorted(TABLES[table]))}")


def _log(path: Path, given: Mapping[str, Any]) -> IdleLog:
    _known(path, "log", given)
    if "synthetic" in given:
        made = dict(given["synthetic"])
        _known(path, "log.synthetic", made)
        hours, seed = made.pop("hours", 24.0), made.pop("seed", 0)
        return synthetic(Machine(**made), hours, seed)
    names = None
    if "nodes" in given:
        with (path.parent / given["nodes"]).open() as file:
            names = [row["name"] for row in csv.DictReader(file)]
    log = read_log(path.parent / given["file"], names)
    if "first" in given or "count" in given:
        log = log.subset(given.get("first", 0), given.get("count", len(log.nodes)))
    begin = float(given.get("begin", log.begin))
    return log.window(begin, begin + given["hours"] * 3600.0 if "hours" in given else log.finish)


def _shards(path: Path, given: Mapping[str, Any] | None) -> dict[ShardId, int]:
    if given is None:
        return {}
    _known(path, "data", given)
    count, size = given["shards"], given["samples"]
    return {ShardId(f"s{i:03d}"): size * (i + 1) // count - size * i // count for i in range(count)}


def _slots(path: Path, given: Mapping[str, Any], shards: tuple[ShardId, ...], replicas: int | None) -> tuple[Slot, ...]:
    _known(path, "slots", given)
    count, per_node = given["count"], given.get("per_node", 1)
    held: list[set[ShardId]] = [set() for _ in range(count)]
    for i, shard in enumerate(shards):
        for k in range(count if replicas is None else replicas):
            held[(i + k) % count].add(shard)
    memory, kind = float(given.get("memory", inf)), given.get("kind", "gpu")
    return tuple(Slot(SlotId(f"g{i:04d}"), f"n{i // per_node:04d}", kind, memory, frozenset(mine)) for i, mine in enumerate(held))


def _arrivals(path: Path, given: list[Mapping[str, Any]], shards: Mapping[ShardId, int], seed: int) -> tuple[Arrival, ...]:
    if not given:
        raise SpecError(f"{path}: it needs trials, as [[trials]]")
    found: list[Arrival] = []
    for k, kind in enumerate(given):
        _known(path, "trials", kind)
        count, begin = kind.get("count", len(kind.get("at", [0]))), float(kind.get("begin", 0.0))
        if "poisson" in kind:
            times = poisson(count, float(kind["poisson"]), seed + k, begin)
        else:
            times = [float(at) for at in kind["at"]] if "at" in kind else even(count, float(kind.get("every", 0.0)), begin)
        samples = float(kind["epochs"]) * sum(shards.values()) if "epochs" in kind else float(kind["samples"])
        widths = tuple(kind.get("widths", (1, 1)))
        for n, at in zip(range(count), times, strict=True):
            name = TrialId(f"{'abcdefghijklmnopqrstuvwxyz'[k % 26]}{n:04d}")
            config = {"n": n, **kind.get("config", {})}
            found.append((at, Trial(name, samples, config, (widths[0], widths[-1]), frozenset(shards))))
    return tuple(sorted(found, key=lambda arrival: arrival[0]))


def _row(path: Path, given: Mapping[str, Any]) -> Row:
    _known(path, "profile", given)
    fields_of = {k: v for k, v in given.items() if k != "points"}
    if "points" in given:
        points = sorted((int(n), float(rate)) for n, rate in given["points"].items())
        widths, rates = zip(*points, strict=True)
        fields_of["rates"] = tuple(np.interp(np.arange(1, widths[-1] + 1), (0, *widths), (0.0, *rates)).tolist())
    return Row(**fields_of)
