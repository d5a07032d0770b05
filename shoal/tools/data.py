"""What `shoal data …` does: write shards, and keep the catalogue that says where they lie."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from shoal.core.cluster import ShardId
from shoal.core.errors import StudyError
from shoal.core.event import Joined
from shoal.engine.files import write_durably
from shoal.engine.journal import Line, replay
from shoal.options import Options, number_in
from shoal.profile.slot_speeds import SlotSpeeds
from shoal.reporting.format import plural, size
from shoal.study.backends import survey_for
from shoal.study.folder import Folder
from shoal.tools.outcome import errors, show
from shoal.train.data.catalogue import (
    Catalogue,
    as_path,
    here,
    is_url,
    of_this_machine,
    read_catalogue,
)
from shoal.train.data.columns import DataError
from shoal.train.data.data import Data
from shoal.train.data.node_shards import surveying


@errors()
def data_shard(
    source: list[str], folder: Path, drop: list[str] | None, as_json: bool, **options: Any
) -> None:
    """Write shards. `options`: what else `shard_files` takes."""
    names = [name.strip() for each in drop or () for name in each.split(",")]
    figures = shard_files(source, folder, drop=names, **options)
    show(figures, as_json, shard_lines)


def shard_files(
    source: Sequence[str],
    folder: Path,
    nodes: str | None,
    proportional: str | None,
    validation: str | None,
    **options: Any,
) -> dict[str, Any]:
    """Make shards; figures of them. `options`: what else `Data.make_shards` takes."""
    names = [name.strip() for name in nodes.split(",")] if nodes else []
    speeds = None
    if proportional is not None:
        if not names:
            raise StudyError("--proportional needs the nodes whose speeds differ: --nodes a,b,c")
        speeds = speeds_of(proportional, names)
    apart: Any = validation
    if validation is not None and isinstance(number_in(validation), float):
        apart = number_in(validation)
    files = source[0] if len(source) == 1 else list(source)
    figures = Data.make_shards(
        files, folder, nodes=names, speeds=speeds, validation=apart, **options
    )
    return {**figures, "speeds": speeds}


def shard_lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures of shards that were made, in words."""
    rows: Mapping[str, int] = figures["rows"]
    lines = [
        f"shards:    {len(rows)}, {sum(rows.values()):,} rows, {size(figures['bytes'])} written"
    ]
    if figures["speeds"]:
        speeds = ", ".join(f"{node} {speed:.3g}" for node, speed in figures["speeds"].items())
        lines.append(f"speeds:    {speeds}")
    return [*lines, f"catalogue: {figures['catalogue']}"]


def speeds_of(source: str, nodes: Sequence[str]) -> dict[str, float]:
    """Speeds of nodes: figures as "a=2,b=1", or the folder of a study that trained on them.

    Raises:
        StudyError: it is neither; the study did not train on one of the nodes; or as
            `measured_speeds`.
    """
    if "=" in source and not Path(source).exists():
        try:
            pairs = [part.split("=") for part in source.split(",")]
            return {name.strip(): float(value) for name, value in pairs}
        except ValueError as error:
            raise StudyError(
                f"--proportional is NODE=SPEED,… or a study's folder; got {source!r} ({error})"
            ) from error
    folder = Folder(Path(source))
    folder.check_begun()
    speeds = measured_speeds(folder.lines())
    missing = [node for node in nodes if node not in speeds]
    if missing:
        raise StudyError(
            f"{source} has no speed of node {', '.join(missing)}: it trained on "
            f"{', '.join(sorted(speeds)) or 'none'}; give figures, --proportional a=2,b=1"
        )
    return {node: speeds[node] for node in nodes}


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
    joined = [line.entry for line in lines if isinstance(line.entry, Joined)]
    node_of = {slot.id: slot.node for entry in joined for slot in entry.slots}
    for slot in slots:
        by_node[node_of[slot]].append(speeds.of(slot))
    return {node: geometric_mean(speeds_there) for node, speeds_there in by_node.items()}


@errors()
def data_register(
    file: Path, paths: list[str], node: str, validation: bool, name: str | None, as_json: bool
) -> None:
    """Write into a catalogue that a node holds files."""
    show(register(file, paths, node, validation, name), as_json, lines)


@errors()
def data_list(file: Path, address: str | None, check: bool, as_json: bool) -> None:
    """Say which node holds what."""
    show(listed(file, address, check), as_json, lines)


def register(
    file: Path, paths: Sequence[str], node: str, validation: bool, name: str | None
) -> dict[str, Any]:
    """Write into the catalogue that the node holds these files; returns what `listed` does.

    A shard has the name of its file, without the ending. `name`: of the shard of a single file.

    Raises:
        StudyError: a relative path at another node, or several files of one name.
        DataError: the file is no catalogue, or a file is not on this machine, which is to hold it.
    """
    catalogue = read_catalogue(file) if file.exists() else None
    files = [Path(path.partition("?")[0].partition("::")[0]).name for path in paths]
    names = [name or each.partition(".")[0] for each in files]
    if len(set(names)) < len(names):
        raise StudyError(
            f"each shard needs a name of its own; got {', '.join(names)}: register one at a time, "
            "with --name"
        )
    for part, path in zip(names, paths, strict=True):
        place = _checked(path, node)
        if catalogue is not None:
            places = catalogue.parts.get(ShardId(part), {})
            others = [other for other in of_this_machine(places) if other != node]
            if others and of_this_machine([node]):
                raise StudyError(
                    f"{part} lies at {others[0]} already, and {node} is the same machine: both "
                    f"copies would be lost with it. Name the machine once: --node {others[0]} "
                    "changes its path"
                )
        if catalogue is None:
            alone = {ShardId(part): {node: place}}
            catalogue = Catalogue({}, alone) if validation else Catalogue(alone)
        else:
            catalogue = catalogue.with_place(part, node, place, validation)
    assert catalogue is not None, "a command has a path"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_durably(file, catalogue.text().encode())
    return listed(file, None, check=False)


def _checked(path: str, node: str) -> str:
    """The path as the catalogue has it; absolute, unless it is a URL.

    Raises:
        DataError: this machine is the node, and does not have the file.
        StudyError: the path is relative, and the node is another one.
    """
    path = as_path(path)
    if is_url(path):
        return path
    if node in here():
        if not Path(path).exists():
            raise DataError(f"{path} is not on this machine, which is {node}")
        return str(Path(path).resolve())
    if not Path(path).is_absolute():
        raise StudyError(f"at another node, {node}, a path is absolute; got {path}")
    return path


def listed(file: Path, address: str | None, check: bool) -> dict[str, Any]:
    """The catalogue: each part with its places. `check`: have the holders look at their files.

    `address`: of the Ray cluster whose nodes hold them; None: this machine does.

    Raises:
        DataError: the file is no catalogue, or does not fit what the holders have.
    """
    catalogue = read_catalogue(file)
    figures: dict[str, Any] = {"catalogue": str(file), "nodes": catalogue.nodes, "parts": []}
    data = None
    if check or address is not None:
        options = Options.of(backend="local" if address is None else "ray", address=address)
        with surveying(survey_for(options, begun=False)):  # its holders look at it
            data = Data.shards(file)
    for part, places in catalogue.parts.items():
        row: dict[str, Any] = {
            "part": part,
            "for": "train" if part in catalogue.train else "valid",
            "places": dict(places),
        }
        if data is not None:
            row["samples"] = data.size(part)
        figures["parts"].append(row)
    if data is not None:
        where = "on this machine"
        if address is not None:
            where = "at all nodes: copies are equal"
        figures |= {"samples": data.samples, "checked": where}
    return figures


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The catalogue in words: a line for each part."""
    parts: Sequence[Mapping[str, Any]] = figures["parts"]
    training = sum(row["for"] == "train" for row in parts)
    nodes = ", ".join(figures["nodes"]) or "every node"
    head = f"{plural(training, 'training shard')}, {len(parts) - training} to validate on; {nodes}"
    shown = [head]
    width = max(len(row["part"]) for row in parts)
    for row in parts:
        samples = f"{row['samples']:>12,} samples" if "samples" in row else ""
        shown.append(f"{row['part']:<{width}}  {row['for']}{samples}")
        shown += [f"    {node}: {path}" for node, path in row["places"].items()]
    if "samples" in figures:
        shown.append(f"checked {figures['checked']}; {figures['samples']:,} samples to train on")
    return shown
