"""How fast the nodes of a study trained, against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean

from shoal.core.cluster import SlotId
from shoal.core.event import Joined
from shoal.engine.journal import Line, replay
from shoal.profile.slot_speeds import SlotSpeeds
from shoal.study.folder import Folder, StudyError


def speeds_of(said: str, nodes: Sequence[str]) -> dict[str, float]:
    """Speeds of nodes: figures as "a=2,b=1", or the folder of a study that trained on them.

    Raises:
        StudyError: it is neither; the study did not train on one of the nodes; or as
            `measured_speeds`.
    """
    if "=" in said and not Path(said).exists():
        try:
            pairs = [part.split("=") for part in said.split(",")]
            return {name.strip(): float(value) for name, value in pairs}
        except ValueError as error:
            raise StudyError(
                f"--proportional is NODE=SPEED,… or a study's folder; got {said!r} ({error})"
            ) from error
    folder = Folder(Path(said))
    folder.check_begun()
    found = measured_speeds(folder.lines())
    missing = [node for node in nodes if node not in found]
    if missing:
        raise StudyError(
            f"{said} has no speed of node {', '.join(missing)}: it trained on "
            f"{', '.join(sorted(found)) or 'none'}; give figures, --proportional a=2,b=1"
        )
    return {node: found[node] for node in nodes}


def measured_speeds(lines: list[Line]) -> dict[str, float]:
    """The speed of each node on which gangs of one slot trained, 1 on average.

    That of a node is the geometric mean of its slots' speeds: see `profile.slot_speeds`.

    Raises:
        StudyError: the nodes cannot be compared, since they trained different models.
    """
    state = replay(lines)
    speeds = SlotSpeeds(state.speeds, state.rated)
    slots = dict.fromkeys(slot for _, slot in state.speeds)
    if not speeds.links().hang_together((), slots):
        raise StudyError(
            "the speeds of the nodes cannot be compared, since no models trained on several of "
            "them: give figures, --proportional a=2,b=1"
        )
    by_node: dict[str, list[float]] = defaultdict(list)
    node_of = _nodes(lines)
    for slot in slots:
        by_node[node_of[slot]].append(speeds.of(slot))
    return {node: geometric_mean(each) for node, each in by_node.items()}


def _nodes(lines: Sequence[Line]) -> dict[SlotId, str]:
    """The node of each slot that there ever was."""
    found: dict[SlotId, str] = {}
    for line in lines:
        if isinstance(line.entry, Joined):
            found |= {slot.id: slot.node for slot in line.entry.slots}
    return found
