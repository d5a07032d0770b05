"""How fast the nodes of a study trained, against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path

from shoal.core.cluster import SlotId
from shoal.core.event import Advanced, Joined, Planned
from shoal.core.trial import Samples, Seconds, TrialId
from shoal.engine.journal import Line
from shoal.study.folder import Folder, StudyError

Rates = dict[TrialId, dict[str, float]]  # samples a second of each trial, by node


def speeds_of(said: str, nodes: Sequence[str]) -> dict[str, float]:
    """Speeds of nodes: figures as "a=2,b=1", or the folder of a study that trained on them.

    Raises:
        StudyError: it is neither; the study did not train on one of the nodes.
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


def measured_speeds(lines: Sequence[Line]) -> dict[str, float]:
    """The nodes' speeds, 1 on average: of trials that trained on all nodes, if there are such.

    A trial's own rates are compared, since models differ. Trials on several nodes at once do not
    count.
    """
    rates = _rates(lines)
    nodes = {node for by_node in rates.values() for node in by_node}
    everywhere = {trial: by for trial, by in rates.items() if set(by) == nodes}
    some = everywhere or rates
    logs = defaultdict(list)
    for by_node in some.values():
        for node, rate in by_node.items():
            logs[node].append(log(rate))
    means = {node: sum(values) / len(values) for node, values in logs.items()}
    middle = sum(means.values()) / max(1, len(means))
    return {node: exp(mean - middle) for node, mean in means.items()}


def _rates(lines: Sequence[Line]) -> Rates:
    """Samples a second of training, by trial and node."""
    node_of: dict[SlotId, str] = {}
    at: dict[TrialId, str] = {}
    samples: dict[tuple[TrialId, str], Samples] = defaultdict(float)
    seconds: dict[tuple[TrialId, str], Seconds] = defaultdict(float)
    for line in lines:
        entry = line.entry
        if isinstance(entry, Joined):
            node_of |= {slot.id: slot.node for slot in entry.slots}
        elif isinstance(entry, Planned):
            _move(entry, node_of, at)
        elif isinstance(entry, Advanced):
            for trial, count in entry.samples.items():
                key = trial, at.get(trial, "")
                spent = entry.spent.get(trial, {})
                samples[key] += count
                seconds[key] += spent.get("train", 0.0) + spent.get("data", 0.0)
    rates: Rates = {}
    for (trial, node), count in samples.items():
        took = seconds[trial, node]
        if node and took > 0 and count > 0:
            rates.setdefault(trial, {})[node] = count / took
    return rates


def _move(
    entry: Planned, node_of: Mapping[SlotId, str], at: dict[TrialId, str]
) -> None:
    """Note the node at which each trial trains from now on; none if there are several."""
    for gang in entry.start:
        for lane in gang.lanes:
            nodes = {node_of.get(slot, "") for slot in lane.slots}
            at[lane.trial] = nodes.pop() if len(nodes) == 1 else ""
