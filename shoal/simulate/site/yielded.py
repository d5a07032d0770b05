"""What harvesting would yield, from the journal of a simulated study."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.engine.journal import Line
from shoal.reporting import account
from shoal.reporting.format import number, share
from shoal.simulate.trace import IdleLog

Figures = dict[str, Any]


def figures_of(idle: IdleLog | None, finished: int, lines: Iterable[Line]) -> Figures | None:
    """What slots that come and go would yield, as the report of such a study has it.

    None: they do not come and go. `idle`: the log, of which pilots got a part. `finished`: trials.
    """
    found = account(lines).harvest
    if found is None:
        return None
    whole = found.whole
    there = 0.0
    if idle is not None:
        there = idle.window(idle.begin, idle.begin + whole.end).node_seconds
    return {
        "idle_node_hours": there / 3600.0,
        "offered_node_hours": whole.offered / 3600.0,
        "used_node_hours": whole.used / 3600.0,
        "equivalent_nodes": whole.slots,
        "efficiency": whole.efficiency,
        "preempted_node_hours": whole.preempted / 3600.0,
        "rescaled_node_hours": whole.rescaled / 3600.0,
        "trials_a_day": finished / ((whole.end - whole.start) / 86400.0),
    }


def lines_of(results: Mapping[str, Figures]) -> Iterator[str]:
    """What harvesting would yield, a line for each policy whose slots came and went."""
    for label, row in results.items():
        if row.get("harvest"):
            yield f"{label}: {_line(row['harvest'])}"


def _line(found: Figures) -> str:
    """The figures for people."""
    offered = found["offered_node_hours"]
    efficiency = share(found["efficiency"] or 0.0, 1.0)
    return (
        f"{number(found['idle_node_hours'])} node-hours idle, {number(offered)} harvested, "
        f"as {number(found['equivalent_nodes'])} nodes that stay; U {efficiency}, "
        f"{number(found['trials_a_day'])} trials a day; "
        f"{share(found['preempted_node_hours'], offered)} lost to preemption, "
        f"{share(found['rescaled_node_hours'], offered)} to rescaling"
    )
