"""The tables of a spec, each as what it says: slots, a log, shards, trials, figures."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import count as counting
from math import inf
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId, proportional
from shoal.core.trial import Trial, TrialId
from shoal.profile.pack import PackCost
from shoal.profile.packing import Packing
from shoal.profile.table import Row, through
from shoal.simulate.arrivals import Arrival, even, poisson
from shoal.simulate.fields import Fields
from shoal.simulate.read import read_log
from shoal.simulate.synthetic import Machine, synthetic
from shoal.simulate.trace import IdleLog

MACHINE = {f.name for f in fields(Machine)}
COSTS = ("memory", "build", "first", "evaluate", "save", "switch", "up", "down")
SECONDS = ("compute", "fixed", "moving", "joint", "repack")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def slots_of(groups: Sequence[Fields]) -> tuple[tuple[Slot, ...], dict[SlotId, float]]:
    """g0000, g0001, … of all [slots] or [[slots]], so many to a node; and the speeds of those that are not 1."""
    made: list[Slot] = []
    speeds: dict[SlotId, float] = {}
    node = counting()
    for group in groups:
        group.only(("count", "per_node", "memory", "kind", "speed"))
        count, per_node = group.whole("count", least=1), group.whole("per_node", 1, least=1)
        memory, kind = group.number("memory", inf, above=0), group.text("kind", "gpu")
        nodes = [next(node) for _ in range(-(-count // per_node))]
        for i, speed in enumerate(_speeds(group, count)):
            name = SlotId(f"g{len(made):04d}")
            made.append(Slot(name, f"n{nodes[i // per_node]:04d}", kind, memory))
            if speed != 1.0:
                speeds[name] = speed
    return tuple(made), speeds


def _speeds(group: Fields, count: int) -> list[float]:
    if not isinstance(group.get("speed", 1.0), list):
        return [group.number("speed", 1.0, above=0)] * count
    found = group.numbers("speed", above=0)
    if len(found) != count:
        raise group.wrong("speed", f"it must be one number, or one for each of the {count} slots; got {len(found)}")
    return found


def holding(slots: Sequence[Slot], shards: Sequence[ShardId], replicas: int | None) -> tuple[Slot, ...]:
    """The slots with their shards: shard i lies at slot i and the next ones, round and round; at all if `replicas` is None."""
    held: list[set[ShardId]] = [set() for _ in slots]
    for i, shard in enumerate(shards):
        for k in range(len(slots) if replicas is None else replicas):
            held[(i + k) % len(slots)].add(shard)
    return tuple(Slot(s.id, s.node, s.kind, s.memory, frozenset(mine)) for s, mine in zip(slots, held, strict=True))


def shards_of(
    data: Fields | None, slots: Sequence[Slot], speeds: Mapping[SlotId, float]
) -> tuple[dict[ShardId, int], int | None]:
    """Samples of each shard; and at how many slots each lies (None: at all)."""
    if data is None:
        return {}, None
    data.only(("shards", "samples", "replicas", "shard_weights"))
    weights, samples = _weights(data, slots, speeds), data.whole("samples", least=1)
    sizes = data.made("samples", lambda: proportional(samples, weights))
    if "replicas" not in data:
        return {ShardId(f"s{i:03d}"): size for i, size in enumerate(sizes)}, None
    replicas = data.whole("replicas", least=1)
    if replicas > len(slots):
        raise data.wrong("replicas", f"it must be a number of slots, of which there are {len(slots)} at first; got {replicas}")
    return {ShardId(f"s{i:03d}"): size for i, size in enumerate(sizes)}, replicas


def _weights(data: Fields, slots: Sequence[Slot], speeds: Mapping[SlotId, float]) -> list[float]:
    """One a shard: equal ones, those given, or the speeds of the slots."""
    if "shard_weights" not in data:
        return [1.0] * data.whole("shards", least=1)
    if data.get("shard_weights") == "speeds":
        found = [speeds.get(slot.id, 1.0) for slot in slots]
    else:
        found = data.numbers("shard_weights", above=0)
    if not found or data.whole("shards", len(found), least=1) != len(found):
        what = f"a weight for each of the {data.data.get('shards', 0)} shards"
        raise data.wrong("shard_weights", f'it must be {what}, or "speeds" with a shard a slot; got {len(found)}')
    return found


def log_of(given: Fields) -> tuple[IdleLog, dict[SlotId, float]]:
    """The log, as much of it as the spec wants; and the speeds of its nodes that are not 1."""
    given.only(("file", "nodes", "first", "count", "begin", "hours", "synthetic", "speeds"))
    log = _made_up(given.table("synthetic")) if given.one_of("file", "synthetic") == "synthetic" else _read(given)
    if "first" in given or "count" in given:
        first = given.whole("first", 0)
        log = log.subset(first, given.whole("count", max(1, len(log.nodes) - first), least=1))
    begin = given.number("begin", log.begin)
    finish = begin + given.number("hours", above=0) * 3600.0 if "hours" in given else log.finish
    if not begin < finish:
        raise given.wrong("begin", f"the log ends at {log.finish:g} s; got {begin:g}")
    speeds = given.table("speeds", {})
    strange = sorted(speeds.data.keys() - set(log.nodes))
    if strange:
        raise given.wrong("speeds", f"the log has no node {', '.join(strange[:5])}")
    return log.window(begin, finish), {SlotId(node): speeds.number(node, above=0) for node in speeds.data}


def _made_up(given: Fields) -> IdleLog:
    given.only(MACHINE | {"hours", "seed"})
    shape: dict[str, Any] = {k: v for k, v in given.data.items() if k in MACHINE}
    hours, seed = given.number("hours", 24.0, above=0), given.whole("seed", 0)
    return synthetic(given.made("", lambda: Machine(**shape)), hours, seed)


def _read(given: Fields) -> IdleLog:
    beside = given.file.parent
    names = None
    if "nodes" in given:
        with (beside / given.text("nodes")).open(newline="") as file:
            rows = list(csv.DictReader(file))
        names = given.made("nodes", lambda: [_name(row) for row in rows])
    return read_log(beside / given.text("file"), names)


def _name(row: Mapping[str, Any]) -> str:
    if not row.get("name"):
        raise ValueError("the file needs a column name with the nodes' names, in their order")
    return str(row["name"])


def arrivals_of(kinds: Sequence[Fields], shards: Mapping[ShardId, int], seed: int) -> tuple[Arrival, ...]:
    """The trials of all [[trials]], each kind with a letter of its own, by time."""
    found: list[Arrival] = []
    for k, kind in enumerate(kinds):
        kind.only(("count", "samples", "epochs", "widths", "every", "poisson", "at", "begin", "config"))
        samples, widths = _samples(kind, shards), _widths(kind)
        config = dict(kind.table("config", {}).data)
        for n, at in enumerate(_times(kind, seed + k)):
            name = TrialId(f"{LETTERS[k] if len(kinds) <= len(LETTERS) else f'k{k:03d}-'}{n:04d}")
            found.append((at, Trial(name, samples, {"n": n, **config}, widths, frozenset(shards))))
    return tuple(sorted(found, key=lambda arrival: arrival[0]))


def _samples(kind: Fields, shards: Mapping[ShardId, int]) -> float:
    if kind.one_of("samples", "epochs") != "epochs":
        return kind.number("samples", above=0)
    if not shards:
        raise kind.wrong("epochs", "an epoch is as long as the data: it needs [data]; or give samples")
    return kind.number("epochs", above=0) * sum(shards.values())


def _widths(kind: Fields) -> tuple[int, int]:
    found = kind.get("widths", [1, 1])
    whole = isinstance(found, list) and all(isinstance(w, int) and not isinstance(w, bool) for w in found)
    if not whole or len(found) != 2 or not 1 <= found[0] <= found[1]:
        raise kind.wrong("widths", f"it must be [fewest, most] slots, 1 <= fewest <= most; got {found!r}")
    return found[0], found[1]


def _times(kind: Fields, seed: int) -> list[float]:
    way, begin = kind.one_of("every", "poisson", "at"), kind.number("begin", 0.0, least=0)
    if way == "at":
        times = kind.numbers("at", least=0)
        if kind.whole("count", len(times)) != len(times):
            raise kind.wrong("at", f"there must be a time for each of the {kind.data['count']} trials; got {len(times)}")
        return times
    count = kind.whole("count", 1, least=1)
    if way == "poisson":
        return poisson(count, kind.number("poisson", above=0), seed, begin)
    return even(count, kind.number("every", 0.0, least=0), begin)


def row_of(given: Fields, hop: Fields) -> Row:
    """Figures of one [[profile]]. `hop`: what moving a state takes, [hop]."""
    given.only({f.name for f in fields(Row)} | {"points", "state"})
    costs: dict[str, Any] = {name: given.number(name, least=0) for name in COSTS if name in given}
    if given.one_of("switch", "state") == "state":
        costs["switch"] = _hop(hop, given.number("state", least=0))
    config = {k: tuple(v) if isinstance(v, list) else v for k, v in given.table("config", {}).data.items()}
    rates = _rates(given)
    packing = _packing(given.table("packing"), given, rates) if "packing" in given else None
    if packing is not None and rates is None:
        rates = (packing.rate(),)
    return given.made("", lambda: Row(rates or (1000.0,), config, packing=packing, **costs))


def _hop(hop: Fields, state: float) -> float:
    hop.only(("latency", "bandwidth"))
    return hop.number("latency", 0.0, least=0) + state / hop.number("bandwidth", 1.0, above=0)


def _rates(given: Fields) -> tuple[float, ...] | None:
    way = given.one_of("rates", "points")
    if way == "rates":
        return (
            tuple(given.numbers("rates", above=0)) if isinstance(given.data["rates"], list) else (given.number("rates", above=0),)
        )
    if way is None:
        return None
    points = given.table("points")
    if not points.data or not all(width.isdecimal() and int(width) >= 1 for width in points.data):
        raise given.wrong("points", f"it must have rates at widths 1, 2, …; got {', '.join(points.data) or 'none'}")
    return through({int(width): points.number(width, above=0) for width in points.data})


def _packing(given: Fields, beside: Fields, rates: tuple[float, ...] | None) -> Packing:
    """Either the `share` of a step that is common to all in a pack, or what a step takes in seconds."""
    given.only((*SECONDS, "share", "usual", "batch", "per_sample"))
    usual, batch = given.whole("usual", least=1), given.text("batch", "batch_size")
    per_sample = given.number("per_sample", 0.0, least=0)
    if given.one_of("share", "compute") is None:
        raise given.wrong("share", "it is missing: give share, or compute and what else a step takes in seconds")
    least = {name: given.number(name, least=0) for name in SECONDS if name in given}
    if "compute" in given:
        if rates is not None:
            raise beside.wrong("rates", "they follow from packing.compute and the like; leave them out, or give packing.share")
        cost = given.made("compute", lambda: PackCost(**least))
        return Packing(cost, usual, batch, per_sample)
    if "fixed" in given:
        raise given.wrong("fixed", "with share it is what moving leaves of the share; leave it out, or give compute")
    rate = (rates or (1000.0,))[0]
    share = given.number("share", least=0)
    more: dict[str, Any] = {"batch": batch, "per_sample": per_sample}
    return given.made("share", lambda: Packing.shared(share, rate, usual, **least, **more))
