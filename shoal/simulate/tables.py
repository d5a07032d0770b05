"""The tables of a spec, each as what it says: slots, shards, a log, figures."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId, proportional
from shoal.core.trial import Seconds
from shoal.engine.files import read_named
from shoal.profile.pack import PackCost, Packing
from shoal.profile.table import MOST, Row, is_width, through
from shoal.simulate.fields import MANY, Fields
from shoal.simulate.read import read_log
from shoal.simulate.synthetic import Machine, synthetic
from shoal.simulate.trace import IdleLog

Slots = tuple[Slot, ...]
Speeds = dict[SlotId, float]
Rates = Sequence[float]  # samples/s at 1, 2, … slots
Shards = Mapping[ShardId, int]  # samples of each

MACHINE = {field.name for field in fields(Machine)}
LOG = (
    "file",
    "nodes",
    "first",
    "count",
    "begin",
    "hours",
    "synthetic",
    "speeds",
    "ends",
)
COSTS = ("memory", "build", "first", "evaluate", "save", "switch", "up", "down")
SECONDS = ("compute", "fixed", "moving", "joint", "repack")
ROW = {field.name for field in fields(Row)} | {"points", "state"}
RATE = 1000.0  # samples/s, where none is given


def slots_of(groups: Sequence[Fields]) -> tuple[Slots, Speeds]:
    """The slots of all [slots] or [[slots]]; and the speeds that are not 1.

    The slots are g0000, g0001, … on the nodes n0000, n0001, …
    """
    made: list[tuple[Slot, float]] = []
    for group in groups:
        nodes = len({slot.node for slot, _ in made})
        made += _group(group, len(made), nodes)
    slots = tuple(slot for slot, _ in made)
    return slots, {slot.id: speed for slot, speed in made if speed != 1.0}


def _group(group: Fields, first: int, node: int) -> list[tuple[Slot, float]]:
    """The slots of one table, with their speeds.

    `first`, `node`: how many slots and nodes come before them.
    """
    group.only(("count", "per_node", "memory", "kind", "speed"))
    count = group.whole("count", least=1, most=MANY)
    per_node = group.whole("per_node", 1, least=1)
    memory = group.number("memory", inf, above=0)
    kind = group.text("kind", "gpu")

    found = []
    for number, speed in enumerate(_speeds(group, count)):
        name = SlotId(f"g{first + number:04d}")
        place = f"n{node + number // per_node:04d}"
        found.append((Slot(name, place, kind, memory), speed))
    return found


def _speeds(group: Fields, count: int) -> list[float]:
    """How fast each slot of the group is."""
    if not isinstance(group.get("speed", 1.0), list):
        return [group.number("speed", 1.0, above=0)] * count
    found = group.numbers("speed", above=0)
    if len(found) != count:
        wanted = f"one number, or one for each of the {count} slots"
        raise group.must_be("speed", wanted, len(found))
    return found


# -- data that is divided --------------------------------------------------------------------------


def holding(
    slots: Sequence[Slot], shards: Sequence[ShardId], replicas: int | None
) -> tuple[Slot, ...]:
    """The slots with their shards.

    Shard i lies at slot i and the next ones, `replicas` in all, round and round; if `replicas` is
    None, each shard lies at all slots.
    """
    if replicas is None:
        replicas = len(slots)
    found = []
    for slot, held in zip(slots, _held(shards, replicas, len(slots)), strict=True):
        found.append(replace(slot, shards=frozenset(held)))
    return tuple(found)


def _held(shards: Sequence[ShardId], replicas: int, slots: int) -> list[set[ShardId]]:
    """The shards of each slot."""
    held: list[set[ShardId]] = [set() for _ in range(slots)]
    for number, shard in enumerate(shards):
        for place in range(number, number + replicas):
            held[place % slots].add(shard)
    return held


def shards_of(
    data: Fields | None, slots: Sequence[Slot], speeds: Speeds
) -> tuple[Shards, int | None]:
    """The samples of each shard, and at how many slots each lies (None: at all)."""
    if data is None:
        return {}, None
    data.only(("shards", "samples", "replicas", "shard_weights"))
    weights = _weights(data, slots, speeds)
    return _divided(data, weights), _replicas(data, len(slots))


def _divided(data: Fields, weights: Sequence[float]) -> Shards:
    """Shards in proportion to the weights."""
    samples = data.whole("samples", least=1)
    sizes = data.made("samples", lambda: proportional(samples, weights))
    return {ShardId(f"s{number:03d}"): size for number, size in enumerate(sizes)}


def _replicas(data: Fields, slots: int) -> int | None:
    """At how many slots each shard lies; None: at all."""
    if "replicas" not in data:
        return None
    count = data.whole("replicas", least=1)
    if count > slots:
        wanted = f"a number of slots, of which there are {slots} at first"
        raise data.must_be("replicas", wanted, count)
    return count


def _weights(data: Fields, slots: Sequence[Slot], speeds: Speeds) -> list[float]:
    """A weight for each shard: all equal, those given, or the speeds of the slots."""
    if "shard_weights" not in data:
        return [1.0] * data.whole("shards", least=1, most=MANY)
    if data.get("shard_weights") == "speeds":
        found = [speeds.get(slot.id, 1.0) for slot in slots]
    else:
        found = data.numbers("shard_weights", above=0)
    if not found or data.whole("shards", len(found), least=1) != len(found):
        shards = data.data.get("shards", 0)
        wanted = f'a weight for each of the {shards} shards, or "speeds" with a shard a slot'
        raise data.must_be("shard_weights", wanted, len(found))
    return found


# -- slots that come and go ------------------------------------------------------------------------


def log_of(given: Fields) -> tuple[IdleLog, Speeds]:
    """The log, as much of it as the spec wants; and the speeds of its nodes that are not 1."""
    given.only(LOG)
    if given.one_of("file", "synthetic") == "synthetic":
        log = _made_up(given.table("synthetic"))
    else:
        log = _read(given)
    log = _some_nodes(given, log)
    begin, finish = _span(given, log)
    return log.window(begin, finish), _node_speeds(given, log)


def knows_ends(given: Fields) -> bool:
    """Whether it is known of each slot that joins when it will leave."""
    ends = given.text("ends", "unknown")
    if ends not in ("known", "unknown"):
        raise given.wrong("ends", f"it must be known or unknown; got {ends!r}")
    return ends == "known"


def _some_nodes(given: Fields, log: IdleLog) -> IdleLog:
    """The log of the nodes that the spec wants."""
    if "first" not in given and "count" not in given:
        return log
    first = given.whole("first", 0)
    rest = max(1, len(log.nodes) - first)
    return log.subset(first, given.whole("count", rest, least=1))


def _span(given: Fields, log: IdleLog) -> tuple[Seconds, Seconds]:
    """From when to when the spec wants the log."""
    begin = given.number("begin", log.begin)
    finish = _finish(given, begin, log.finish)
    if not begin < finish:
        raise given.wrong("begin", f"the log ends at {log.finish:g} s; got {begin:g}")
    return begin, finish


def _finish(given: Fields, begin: Seconds, last: Seconds) -> Seconds:
    """When the wanted hours are over; without them it is the end of the log."""
    if "hours" not in given:
        return last
    return begin + given.number("hours", above=0) * 3600.0


def _node_speeds(given: Fields, log: IdleLog) -> Speeds:
    """The speeds of nodes, where the spec gives them."""
    speeds = given.table("speeds", {})
    _check_nodes(given, speeds, log)
    return {SlotId(node): speeds.number(node, above=0) for node in speeds.data}


def _check_nodes(given: Fields, speeds: Fields, log: IdleLog) -> None:
    """The log has all nodes that speeds are given for."""
    strange = sorted(speeds.data.keys() - set(log.nodes))
    if strange:
        raise given.wrong("speeds", f"the log has no node {', '.join(strange[:5])}")


def _made_up(given: Fields) -> IdleLog:
    """A log that is made up."""
    given.only(MACHINE | {"hours", "seed"})
    hours = given.number("hours", 24.0, above=0)
    seed = given.whole("seed", 0)
    return synthetic(_machine(given), hours, seed)


def _machine(given: Fields) -> Machine:
    """The machine with the shape that the spec gives."""
    shape = {key: value for key, value in given.data.items() if key in MACHINE}
    return given.made("", lambda: Machine(**shape))


def _read(given: Fields) -> IdleLog:
    """The log in a file, beside the spec."""
    beside = given.file.parent
    names = None
    if "nodes" in given:
        path = beside / given.text("nodes")
        names = given.made("nodes", lambda: _node_names(path))
    return read_log(beside / given.text("file"), names)


NO_NAMES = "the file needs a column name with the nodes' names, in their order"


def _node_names(path: Path) -> list[str]:
    """The names of all nodes, in the order of the file.

    Raises:
        ValueError: there is no such column, or a row has no name.
    """
    text = read_named(path).decode()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    names = [row.get("name") or "" for row in rows]
    if not all(names):
        raise ValueError(NO_NAMES)
    return names


# -- figures ---------------------------------------------------------------------------------------


def row_of(given: Fields, hop: Fields) -> Row:
    """The figures of one [[profile]]. `hop`: [hop], which says what moving a state takes."""
    given.only(ROW)
    costs = _costs(given, hop)
    config = _config(given)
    rates = _rates(given)
    if "packing" in given:
        packing = _packing(given.table("packing"), given, rates)
        costs["packing"] = packing
        rates = rates or (packing.rate(),)
    return given.made("", lambda: Row(tuple(rates or (RATE,)), config, **costs))


def _costs(given: Fields, hop: Fields) -> dict[str, Any]:
    """What is given beside the rates: memory in GiB, and costs in seconds."""
    costs = _numbers(given, COSTS)
    if given.one_of("switch", "state") == "state":
        costs["switch"] = _hop(hop, given.number("state", least=0))
    return costs


def _numbers(given: Fields, names: Sequence[str]) -> dict[str, Any]:
    """The fields of these names that are there."""
    return {name: given.number(name, least=0) for name in names if name in given}


def _hop(hop: Fields, state: float) -> Seconds:
    """How long it takes to move a state of so many GiB."""
    hop.only(("latency", "bandwidth"))
    latency = hop.number("latency", 0.0, least=0)
    return latency + state / hop.number("bandwidth", 1.0, above=0)


def _config(given: Fields) -> dict[str, Any]:
    """The values of the trials for which the figures hold."""
    config = given.table("config", {}).data
    return {name: _constant(value) for name, value in config.items()}


def _constant(value: Any) -> Any:
    """The value; a list as a tuple."""
    if isinstance(value, list):
        return tuple(value)
    return value


# -- rates -----------------------------------------------------------------------------------------


def _rates(given: Fields) -> Rates | None:
    """The rates at 1, 2, … slots; None if none is given."""
    way = given.one_of("rates", "points")
    if way is None:
        return None
    if way == "points":
        return _through(given)
    if isinstance(given.data["rates"], list):
        return given.numbers("rates", above=0)
    return (given.number("rates", above=0),)


def _through(given: Fields) -> Rates:
    """Rates through the points that are given: some widths, with the rate at each."""
    points = given.table("points")
    _check_widths(given, points)
    return through({int(width): points.number(width, above=0) for width in points.data})


def _check_widths(given: Fields, points: Fields) -> None:
    """The names of the points are widths, and there is one at least."""
    if not points.data or not all(map(is_width, points.data)):
        widths = ", ".join(points.data) or "none"
        rule = f"it must have rates at widths 1, 2, … below {MOST}; got {widths}"
        raise given.wrong("points", rule)


# -- packing ---------------------------------------------------------------------------------------


def _packing(given: Fields, beside: Fields, rates: Rates | None) -> Packing:
    """What packing saves.

    Either `share`, the part of a step that all models of a pack have in common, or what the parts
    of a step take in seconds. `beside`: the table that [packing] belongs to.
    """
    given.only((*SECONDS, "share", "usual", "batch", "per_sample"))
    usual = given.whole("usual", least=1)
    batch = given.text("batch", "batch_size")
    per_sample = given.number("per_sample", 0.0, least=0)
    way = given.one_of("share", "compute")
    if way is None:
        rule = "it is missing: give share, or compute and what else a step takes in seconds"
        raise given.wrong("share", rule)

    seconds = _numbers(given, SECONDS)
    if way == "compute":
        _check_no_rates(beside, rates)
        cost = given.made("compute", lambda: PackCost(**seconds))
        return Packing(cost, usual, batch, per_sample)
    more = {**seconds, "batch": batch, "per_sample": per_sample}
    return _shared(given, (rates or (RATE,))[0], usual, more)


def _shared(given: Fields, rate: float, usual: int, more: dict[str, Any]) -> Packing:
    """What packing saves, from the share of a step that the models have in common."""
    if "fixed" in given:
        rule = "with share it is what moving leaves of the share; leave it out, or give compute"
        raise given.wrong("fixed", rule)
    share = given.number("share", least=0)
    return given.made("share", lambda: Packing.shared(share, rate, usual, **more))


def _check_no_rates(given: Fields, rates: Rates | None) -> None:
    """Raise SpecError if there are rates beside the seconds of a step, which say them too."""
    if rates is not None:
        rule = (
            "they follow from packing.compute and the like; leave them out, or give packing.share"
        )
        raise given.wrong("rates", rule)
