"""A simulated study as a TOML file. docs/simulate.md lists all fields.

A spec says what there is; it never executes code.
"""

import csv
import io
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.cluster import ShardId, Slot, SlotId, proportional
from shoal.core.event import Event
from shoal.core.ports import Policy
from shoal.core.trial import Seconds
from shoal.engine.files import read_named
from shoal.harvest.observer import SECOND
from shoal.policy import rebuild
from shoal.profile.pack import PackCost, Packing
from shoal.profile.table import MOST, Row, Table, is_width, through
from shoal.simulate.arrivals import Arrival, arrivals_of
from shoal.simulate.fields import MANY, Fields, SpecError
from shoal.simulate.idle_log import IdleLog
from shoal.simulate.log_files import read_log
from shoal.simulate.policy_files import with_log
from shoal.simulate.synthetic_log import Machine, synthetic

Script = tuple[tuple[Seconds, Event], ...]
TOP = (
    "title",
    "hours",
    "seed",
    "checkpoint_every",
    "slots",
    "log",
    "harvest",
    "data",
    "hop",
    "trials",
    "profile",
    "policies",
)


@dataclass(frozen=True)
class Spec:
    """What a simulation needs.

    `slots`: those there from the beginning. `script`: slots that come and go. `until`: seconds
    after which the simulation stops; None: at the end of the work. `idle`: the log, of which pilots
    get a part.
    """

    title: str
    slots: tuple[Slot, ...]
    script: Script
    shards: Mapping[ShardId, int]
    arrivals: tuple[Arrival, ...]
    profile: Table
    policies: Mapping[str, Policy[Any]]
    until: Seconds | None = None
    seed: int = 0
    checkpoint_every: Seconds = 300.0
    idle: IdleLog | None = None


def load_spec(path: str | Path) -> Spec:
    """Read and check a spec.

    Raises:
        SpecError: not TOML, an unknown field, or values that cannot be.
        TraceError: the log it names breaks a rule.
        OSError: as `open`.
    """
    path = Path(path)
    try:
        data = tomllib.loads(read_named(path).decode())
    except (ValueError, RecursionError) as error:  # not TOML, or no text at all
        raise SpecError(path, "", f"it is not TOML: {error}") from error
    top = Fields(path, "", data).only(TOP)
    if top.one_of("slots", "log") is None:
        raise SpecError(top.file, "", "it needs either [slots] or [log]")
    slots, speeds = slots_of(top.tables("slots"))
    all_slots = slots
    script: Script = ()
    until = None
    idle = None
    if "harvest" in top and "log" not in top:
        raise SpecError(top.file, "[harvest]", "there is nothing to harvest without [log]")
    if "log" in top:
        log, node_speeds = log_of(top.table("log"))
        speeds |= node_speeds
        idle = log
        if "harvest" in top:
            log = _pilots(top.table("harvest")).slots_in(log)
        script = tuple(log.script(knows_ends(top.table("log"))))
        until = log.span
        all_slots = slots or log.slots

    seed = top.whole("seed", 0)
    data_table = top.table("data") if "data" in top else None
    shards, replicas = shards_of(data_table, slots, speeds)
    kinds = top.tables("trials")
    if not kinds:
        raise top.wrong("", "it needs trials, as [[trials]]")
    arrivals = arrivals_of(kinds, shards, seed)
    profile = _profile(top, speeds)
    _check(top, profile, arrivals, all_slots)
    return Spec(
        title=top.text("title", top.file.stem),
        slots=holding(slots, tuple(shards), replicas),
        script=script,
        shards=shards,
        arrivals=arrivals,
        profile=profile,
        policies=_policies(top),
        until=top.number("hours", above=0) * 3600.0 if "hours" in top else until,
        seed=seed,
        checkpoint_every=top.number("checkpoint_every", 300.0, least=0),
        idle=idle,
    )


def _table_in(path: Path) -> Table:
    """The profile in this file."""
    read_named(path)  # raises if it has no end
    return Table.load(path)


def _pilots(table: Fields) -> "Pilots":
    """How idle nodes are taken, as [harvest] says."""
    default = Pilots()
    table.only(("tick", "min_ticks", "start"))
    return Pilots(
        table.number("tick", default.tick, above=0),
        table.whole("min_ticks", default.min_ticks, least=1),
        table.number("start", default.start, least=0),
    )


def _profile(top: Fields, speeds: Mapping[SlotId, float]) -> Table:
    """The figures of all trials, with the speeds of the slots."""
    rows = _rows(top, top.table("hop", {}))
    if rows:
        return Table(tuple(rows), speeds)
    return replace(Table(), speeds=speeds)


def _rows(top: Fields, hop: Fields) -> list[Row]:
    """The figures: [[profile]]; or a file beside the spec, as `shoal profile` writes it."""
    if isinstance(top.data.get("profile"), str):
        path = top.file.parent / top.text("profile")
        return list(top.build("profile", lambda: _table_in(path)).rows)
    return [row_of(row, hop) for row in top.tables("profile")]


def _check(
    top: Fields, profile: Table, arrivals: tuple[Arrival, ...], slots: tuple[Slot, ...]
) -> None:
    """Raise SpecError unless every trial has figures, and fits somewhere."""
    known = {trial.id: trial for _, trial in arrivals}
    table = profile.of(known)
    most = max((slot.memory for slot in slots), default=0.0)
    for trial in known.values():
        needs = top.build("[[profile]]", partial(table.cost, trial.id)).memory
        if needs > most:
            rule = f"trial {trial.id} takes {needs:g} GiB; the largest slot has {most:g}"
            raise SpecError(top.file, "[[profile]] memory", rule)
        fewest, _ = trial.widths
        if fewest > len(slots):
            rule = f"trial {trial.id} needs {fewest} slots or more; there are {len(slots)}"
            raise SpecError(top.file, "[[trials]] widths", rule)


def _policy_with_log(description: Mapping[str, Any]) -> Policy[Any]:
    """The policy of this description, with what its log says."""
    return rebuild(with_log(description))


def _policies(top: Fields) -> dict[str, Policy[Any]]:
    """The policies of [policies], by their labels."""
    table = top.table("policies", {})
    policies = {}
    for label in table.data:
        entry = table.table(label)
        description = {"name": label, **entry.data}
        if "log" in description:
            description["log"] = top.file.parent / entry.text("log")
        policies[label] = entry.build("", partial(_policy_with_log, description))
    return policies


@dataclass(frozen=True, slots=True)
class Pilots:
    """How a harvester takes idle nodes.

    `tick`: seconds between two looks. `min_ticks`: looks in a row at which a node must be idle; the
    second one comes soon. `start`: seconds from there until its slot is open: the queue, the start
    of Ray, imports, data.
    """

    tick: Seconds = 10.0
    min_ticks: int = 2
    start: Seconds = 20.0

    def slots_in(self, log: IdleLog) -> IdleLog:
        """When nodes of this log would be slots; they go when the nodes do.

        Idle times that are too short come to nothing.
        """
        idle = np.maximum(log.start, log.begin) - log.begin
        first = np.ceil(idle / self.tick) * self.tick
        open_ = log.begin + first + self._seen() + self.start
        some = open_ < np.minimum(log.end, log.finish)
        return replace(log, node=log.node[some], start=open_[some], end=log.end[some])

    def _seen(self) -> Seconds:
        """From the look at which a node is first seen idle to the one at which it is taken."""
        if self.min_ticks == 1:
            return 0.0
        return min(SECOND, self.tick) + (self.min_ticks - 2) * self.tick


Slots = tuple[Slot, ...]
Speeds = dict[SlotId, float]
Rates = Sequence[float]  # samples/s at 1, 2, … slots
Shards = Mapping[ShardId, int]  # samples of each
MACHINE = {field.name for field in fields(Machine)}
LOG = ("file", "nodes", "first", "count", "begin", "hours", "synthetic", "speeds", "ends")


COSTS = ("memory", "build", "first", "evaluate", "save", "switch", "up", "down")
SECONDS = ("compute", "fixed", "moving", "joint", "repack")
ROW = {field.name for field in fields(Row)} | {"points", "state"}
RATE = 1000.0  # samples/s, where none is given


def slots_of(groups: Sequence[Fields]) -> tuple[Slots, Speeds]:
    """The slots of all [slots] or [[slots]]; and the speeds that are not 1.

    The slots are g0000, g0001, … on the nodes n0000, n0001, …
    """
    slots: list[Slot] = []
    speeds: Speeds = {}
    for group in groups:
        nodes = len({slot.node for slot in slots})
        first = len(slots)
        group.only(("count", "per_node", "memory", "kind", "speed"))
        count = group.whole("count", least=1, most=MANY)
        per_node = group.whole("per_node", 1, least=1)
        memory = group.number("memory", inf, above=0)
        kind = group.text("kind", "gpu")
        for number, speed in enumerate(_speeds(group, count)):
            name = SlotId(f"g{first + number:04d}")
            slots.append(Slot(name, f"n{nodes + number // per_node:04d}", kind, memory))
            if speed != 1.0:
                speeds[name] = speed
    return tuple(slots), speeds


def _speeds(group: Fields, count: int) -> list[float]:
    """How fast each slot of the group is."""
    if not isinstance(group.get("speed", 1.0), list):
        return [group.number("speed", 1.0, above=0)] * count
    speeds = group.numbers("speed", above=0)
    if len(speeds) != count:
        wanted = f"one number, or one for each of the {count} slots"
        raise group.must_be("speed", wanted, len(speeds))
    return speeds


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
    shards_at: list[set[ShardId]] = [set() for _ in slots]
    for number, shard in enumerate(shards):
        for place in range(number, number + replicas):
            shards_at[place % len(slots)].add(shard)
    return tuple(
        replace(slot, shards=frozenset(lying)) for slot, lying in zip(slots, shards_at, strict=True)
    )


def shards_of(
    data: Fields | None, slots: Sequence[Slot], speeds: Speeds
) -> tuple[Shards, int | None]:
    """The samples of each shard, and at how many slots each lies (None: at all)."""
    if data is None:
        return {}, None
    data.only(("shards", "samples", "replicas", "shard_weights"))
    weights = _weights(data, slots, speeds)
    samples = data.whole("samples", least=1)
    sizes = data.build("samples", lambda: proportional(samples, weights))
    shards = {ShardId(f"s{number:03d}"): size for number, size in enumerate(sizes)}
    return shards, _replicas(data, len(slots))


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
        weights = [speeds.get(slot.id, 1.0) for slot in slots]
    else:
        weights = data.numbers("shard_weights", above=0)
    if not weights or data.whole("shards", len(weights), least=1) != len(weights):
        shards = data.data.get("shards", 0)
        wanted = f'a weight for each of the {shards} shards, or "speeds" with a shard a slot'
        raise data.must_be("shard_weights", wanted, len(weights))
    return weights


# -- slots that come and go ------------------------------------------------------------------------


def log_of(table: Fields) -> tuple[IdleLog, Speeds]:
    """The log, as much of it as the spec wants; and the speeds of its nodes that are not 1."""
    table.only(LOG)
    if table.one_of("file", "synthetic") == "synthetic":
        log = _synthetic_log(table.table("synthetic"))
    else:
        folder = table.file.parent
        names = None
        if "nodes" in table:
            path = folder / table.text("nodes")
            names = table.build("nodes", lambda: _node_names(path))
        log = read_log(folder / table.text("file"), names)
    log = _some_nodes(table, log)
    begin, finish = _span(table, log)
    return log.window(begin, finish), _node_speeds(table, log)


def knows_ends(table: Fields) -> bool:
    """Whether it is known of each slot that joins when it will leave."""
    ends = table.text("ends", "unknown")
    if ends not in ("known", "unknown"):
        raise table.wrong("ends", f"it must be known or unknown; got {ends!r}")
    return ends == "known"


def _some_nodes(table: Fields, log: IdleLog) -> IdleLog:
    """The log of the nodes that the spec wants."""
    if "first" not in table and "count" not in table:
        return log
    first = table.whole("first", 0)
    rest = max(1, len(log.nodes) - first)
    return log.subset(first, table.whole("count", rest, least=1))


def _span(table: Fields, log: IdleLog) -> tuple[Seconds, Seconds]:
    """From when to when the spec wants the log."""
    begin, finish = table.number("begin", log.begin), log.finish
    if "hours" in table:
        finish = begin + table.number("hours", above=0) * 3600.0
    if not begin < finish:
        raise table.wrong("begin", f"the log ends at {log.finish:g} s; got {begin:g}")
    return begin, finish


def _node_speeds(table: Fields, log: IdleLog) -> Speeds:
    """The speeds of nodes, where the spec gives them."""
    speeds = table.table("speeds", {})
    unknown = sorted(speeds.data.keys() - set(log.nodes))
    if unknown:
        raise table.wrong("speeds", f"the log has no node {', '.join(unknown[:5])}")
    return {SlotId(node): speeds.number(node, above=0) for node in speeds.data}


def _synthetic_log(table: Fields) -> IdleLog:
    """A log that is made up."""
    table.only(MACHINE | {"hours", "seed"})
    hours = table.number("hours", 24.0, above=0)
    seed = table.whole("seed", 0)
    shape = {key: value for key, value in table.data.items() if key in MACHINE}
    return synthetic(table.build("", lambda: Machine(**shape)), hours, seed)


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


def row_of(table: Fields, hop: Fields) -> Row:
    """The figures of one [[profile]]. `hop`: [hop], which says what moving a state takes."""
    table.only(ROW)
    costs = _numbers(table, COSTS)  # memory in GiB, others in seconds
    if table.one_of("switch", "state") == "state":
        # How long it takes to move a state of so many GiB.
        state = table.number("state", least=0)
        hop.only(("latency", "bandwidth"))
        latency = hop.number("latency", 0.0, least=0)
        costs["switch"] = latency + state / hop.number("bandwidth", 1.0, above=0)
    # The values of the trials for which the figures hold.
    config = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in table.table("config", {}).data.items()
    }
    rates = _rates(table)
    if "packing" in table:
        packing = _packing(table.table("packing"), table, rates)
        costs["packing"] = packing
        rates = rates or (packing.rate(),)
    return table.build("", lambda: Row(tuple(rates or (RATE,)), config, **costs))


def _numbers(table: Fields, names: Sequence[str]) -> dict[str, Any]:
    """The fields of these names that are there."""
    return {name: table.number(name, least=0) for name in names if name in table}


# -- rates -----------------------------------------------------------------------------------------


def _rates(table: Fields) -> Rates | None:
    """The rates at 1, 2, … slots; None if none is given."""
    way = table.one_of("rates", "points")
    if way is None:
        return None
    if way == "points":
        points = table.table("points")  # some widths, with the rate at each
        if not points.data or not all(map(is_width, points.data)):
            widths = ", ".join(points.data) or "none"
            rule = f"it must have rates at widths 1, 2, … below {MOST}; got {widths}"
            raise table.wrong("points", rule)
        return through({int(width): points.number(width, above=0) for width in points.data})
    if isinstance(table.data["rates"], list):
        return table.numbers("rates", above=0)
    return (table.number("rates", above=0),)


# -- packing ---------------------------------------------------------------------------------------


def _packing(table: Fields, beside: Fields, rates: Rates | None) -> Packing:
    """The packing of a [[profile]]: what it saves.

    Either `share`, the part of a step that all models of a pack have in common, or what the parts
    of a step take in seconds. `beside`: the table that [packing] belongs to.
    """
    table.only((*SECONDS, "share", "usual", "batch", "per_sample"))
    usual = table.whole("usual", least=1)
    batch = table.text("batch", "batch_size")
    per_sample = table.number("per_sample", 0.0, least=0)
    way = table.one_of("share", "compute")
    if way is None:
        rule = "it is missing: give share, or compute and what else a step takes in seconds"
        raise table.wrong("share", rule)

    seconds = _numbers(table, SECONDS)
    if way == "compute":
        if rates is not None:
            rule = (
                "they follow from packing.compute and the like; leave them out, or give "
                "packing.share"
            )
            raise beside.wrong("rates", rule)
        cost = table.build("compute", lambda: PackCost(**seconds))
        return Packing(cost, usual, batch, per_sample)
    more = {**seconds, "batch": batch, "per_sample": per_sample}
    # What packing saves, from the share of a step that the models have in common.
    rate = (rates or (RATE,))[0]
    if "fixed" in table:
        rule = "with share it is what moving leaves of the share; leave it out, or give compute"
        raise table.wrong("fixed", rule)
    share = table.number("share", least=0)
    return table.build("share", lambda: Packing.shared(share, rate, usual, **more))
