"""A simulated study as a TOML file. docs/simulate.md lists all fields.

A spec says what there is; it never executes code.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Event
from shoal.core.ports import Policy
from shoal.core.trial import Seconds, Trial
from shoal.engine.files import read_named
from shoal.policy import rebuild
from shoal.profile.table import Row, Table
from shoal.simulate.arrivals import Arrival, arrivals_of
from shoal.simulate.fields import Fields, SpecError
from shoal.simulate.site.learnt import with_log
from shoal.simulate.site.pilots import Pilots
from shoal.simulate.tables import (
    holding,
    knows_ends,
    log_of,
    row_of,
    shards_of,
    slots_of,
)
from shoal.simulate.trace import IdleLog

__all__ = ["Spec", "SpecError", "load_spec"]

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
    return _spec(Fields(path, "", data).only(TOP))


def _table_in(path: Path) -> Table:
    read_named(path)  # raises if it has no end
    return Table.load(path)


def _spec(top: Fields) -> Spec:
    """The spec that these tables say."""
    if top.one_of("slots", "log") is None:
        raise SpecError(top.file, "", "it needs either [slots] or [log]")
    slots, speeds = slots_of(top.tables("slots"))
    there = slots
    script: Script = ()
    until = None
    idle = None
    if "harvest" in top and "log" not in top:
        raise SpecError(top.file, "[harvest]", "there is nothing to harvest without [log]")
    if "log" in top:
        log, of_nodes = log_of(top.table("log"))
        speeds |= of_nodes
        idle = log
        if "harvest" in top:
            log = _pilots(top.table("harvest")).slots_in(log)
        script = tuple(log.script(knows_ends(top.table("log"))))
        until = log.span
        there = slots or log.slots

    seed = top.whole("seed", 0)
    shards, replicas = shards_of(_data(top), slots, speeds)
    arrivals = arrivals_of(_some(top, "trials"), shards, seed)
    profile = _profile(top, speeds)
    _check(top, profile, arrivals, there)
    return Spec(
        title=top.text("title", top.file.stem),
        slots=holding(slots, tuple(shards), replicas),
        script=script,
        shards=shards,
        arrivals=arrivals,
        profile=profile,
        policies=_policies(top),
        until=_until(top, until),
        seed=seed,
        checkpoint_every=top.number("checkpoint_every", 300.0, least=0),
        idle=idle,
    )


def _pilots(given: Fields) -> Pilots:
    """How idle nodes are taken."""
    usual = Pilots()
    given.only(("tick", "min_ticks", "start"))
    return Pilots(
        given.number("tick", usual.tick, above=0),
        given.whole("min_ticks", usual.min_ticks, least=1),
        given.number("start", usual.start, least=0),
    )


def _until(top: Fields, end: Seconds | None) -> Seconds | None:
    """When the simulation stops; `end`: where the log ends."""
    if "hours" not in top:
        return end
    return top.number("hours", above=0) * 3600.0


def _data(top: Fields) -> Fields | None:
    """The table [data] if it is there."""
    if "data" not in top:
        return None
    return top.table("data")


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
        return list(top.made("profile", lambda: _table_in(path)).rows)
    return [row_of(row, hop) for row in top.tables("profile")]


def _some(top: Fields, key: str) -> list[Fields]:
    """The tables of an array, of which there must be one at least."""
    found = top.tables(key)
    if not found:
        raise top.wrong("", f"it needs {key}, as [[{key}]]")
    return found


def _check(
    top: Fields, profile: Table, arrivals: tuple[Arrival, ...], slots: tuple[Slot, ...]
) -> None:
    """Every trial has figures, and fits somewhere."""
    known = {trial.id: trial for _, trial in arrivals}
    table = profile.of(known)
    most = max((slot.memory for slot in slots), default=0.0)
    for trial in known.values():
        needs = top.made("[[profile]]", partial(table.cost, trial.id)).memory
        if needs > most:
            takes = f"trial {trial.id} takes {needs:g} GiB"
            rule = f"{takes}; the largest slot has {most:g}"
            raise SpecError(top.file, "[[profile]] memory", rule)
        _check_width(top, trial, len(slots))


def _check_width(top: Fields, trial: Trial, slots: int) -> None:
    """There are slots enough for the trial."""
    fewest, _ = trial.widths
    if fewest > slots:
        rule = f"trial {trial.id} needs {fewest} slots or more; there are {slots}"
        raise SpecError(top.file, "[[trials]] widths", rule)


def _built(described: Mapping[str, Any]) -> Policy[Any]:
    """The policy, with what its log says."""
    return rebuild(with_log(described))


def _policies(top: Fields) -> dict[str, Policy[Any]]:
    """The policies of [policies], by their labels."""
    found = top.table("policies", {})
    made = {}
    for label in found.data:
        given = found.table(label)
        described = {"name": label, **given.data}
        if "log" in described:
            described["log"] = top.file.parent / given.text("log")
        made[label] = given.made("", partial(_built, described))
    return made
