"""Entries of journals that tests of the report write by hand."""

from collections.abc import Mapping
from typing import Any

from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Entry, Joined, Opened
from shoal.core.plan import Gang, Lane
from shoal.core.trial import TrialId
from shoal.engine.journal import Line

A, B, C = map(TrialId, "abc")
W = tuple(SlotId(f"w{number}") for number in range(3))
Timed = tuple[float, Entry]


def journal(
    *entries: Timed, head: Mapping[str, Any] | None = None, shards: Mapping[Any, int] | None = None
) -> list[Line]:
    """A run from 0 s on, with these entries."""
    begin: Timed = (0.0, Opened(1, shards or {}, head or {}))
    return [Line(time, entry) for time, entry in (begin, *entries)]


def joined(*slots: SlotId, node: str = "n", **more: Any) -> Joined:
    return Joined(tuple(Slot(slot, node, **more) for slot in slots))


def gang(trial: TrialId, *slots: SlotId, since: int = 0, **more: Any) -> Gang:
    """The trial on these slots together."""
    return Gang((Lane(trial, slots),), since=since, **more)


def trained(trial: TrialId, samples: float, **spent: float) -> Advanced:
    return Advanced({trial: samples}, spent={trial: spent})
