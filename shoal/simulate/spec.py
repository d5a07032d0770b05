"""A simulated study as a TOML file. It says what there is; it never executes code. All fields: docs/simulate.md."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shoal.core.cluster import ShardId, Slot
from shoal.core.event import Event
from shoal.core.ports import Policy
from shoal.core.trial import Seconds
from shoal.policy import rebuild
from shoal.profile.table import Row, Table
from shoal.simulate.arrivals import Arrival
from shoal.simulate.fields import Fields, SpecError
from shoal.simulate.tables import arrivals_of, holding, log_of, row_of, shards_of, slots_of

__all__ = ["Spec", "SpecError", "load_spec"]

TOP = ("title", "hours", "seed", "checkpoint_every", "slots", "log", "data", "hop", "trials", "profile", "policies")


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


def load_spec(path: str | Path) -> Spec:
    """Read and check a spec.

    Raises:
        SpecError: not TOML, an unknown field, or values that cannot be.
        TraceError: the log it names breaks a rule.
        OSError: as `open`.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or no text at all
        raise SpecError(path, "", f"it is not TOML: {error}") from error
    return _spec(Fields(path, "", data).only(TOP))


def _spec(top: Fields) -> Spec:
    if top.one_of("slots", "log") is None:
        raise SpecError(top.file, "", "it needs either [slots] or [log]")
    log, speeds = log_of(top.table("log")) if "log" in top else (None, {})
    slots, fast = slots_of(top.tables("slots"))
    data = top.table("data") if "data" in top else None
    seed = top.whole("seed", 0)
    shards, replicas = shards_of(data, slots, fast)
    arrivals = arrivals_of(_some(top, "trials"), shards, seed)
    hop = top.table("hop", {})
    rows = _rows(top, hop)
    made = Table(tuple(rows), fast | speeds) if rows else replace(Table(), speeds=fast | speeds)
    _check(top, made, arrivals, slots or (log.slots if log else ()))
    return Spec(
        top.text("title", top.file.stem),
        holding(slots, tuple(shards), replicas),
        tuple(log.script()) if log else (),
        shards,
        arrivals,
        made,
        _policies(top),
        top.number("hours", above=0) * 3600.0 if "hours" in top else log.span if log else None,
        seed,
        top.number("checkpoint_every", 300.0, least=0),
    )


def _rows(top: Fields, hop: Fields) -> list[Row]:
    """The figures: [[profile]], or a file with [[rows]], as `shoal profile` writes it, beside the spec."""
    if isinstance(top.data.get("profile"), str):
        return list(top.made("profile", lambda: Table.load(top.file.parent / top.text("profile"))).rows)
    return [row_of(row, hop) for row in top.tables("profile")]


def _some(top: Fields, key: str) -> list[Fields]:
    found = top.tables(key)
    if not found:
        raise top.wrong("", f"it needs {key}, as [[{key}]]")
    return found


def _check(top: Fields, profile: Table, arrivals: tuple[Arrival, ...], slots: tuple[Slot, ...]) -> None:
    """Every trial has figures, and fits somewhere."""
    known = {trial.id: trial for _, trial in arrivals}
    table, most = profile.of(known), max((slot.memory for slot in slots), default=0.0)
    for trial in known.values():
        needs = top.made("[[profile]]", lambda trial=trial: table.cost(trial.id)).memory  # type: ignore[misc]
        if needs > most:
            raise SpecError(
                top.file, "[[profile]] memory", f"trial {trial.id} takes {needs:g} GiB; the largest slot has {most:g}"
            )
        if trial.widths[0] > len(slots):
            rule = f"trial {trial.id} needs {trial.widths[0]} slots or more; there are {len(slots)}"
            raise SpecError(top.file, "[[trials]] widths", rule)


def _policies(top: Fields) -> dict[str, Policy[Any]]:
    found = top.table("policies", {})
    made = {}
    for label in found.data:
        given = found.table(label)
        made[label] = given.made("", partial(rebuild, {"name": label, **given.data}))
    return made
