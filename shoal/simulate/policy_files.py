"""What a policy's description names in files: a log of idle nodes for `elastic`, an objective."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.trial import Seconds, is_in_file
from shoal.policy.description import SPATIAL
from shoal.policy.elastic.elastic import Elastic
from shoal.policy.elastic.objective import FileObjective, forward_time
from shoal.policy.elastic.placement import Spatial, rack_of
from shoal.simulate.idle_log import IdleLog, Ids
from shoal.simulate.log_files import read_log
from shoal.train.recipe.pickling import import_from

Chances = tuple[tuple[float, float, float], ...]  # as `Spatial.table`
Counts = NDArray[np.float64]  # [joined together or apart, distance, left along or all]
# Racks between two nodes, from which on another row of the table holds.
DISTANCES = (0, 1, 2, 3, 4, 6, 9, 13, 20, 40, 80)
# Of the nodes that leave at a time, so many are looked at: all of them would say little more.
LOOKED_AT = 6
# What is believed before anything is seen counts as much as so many pairs of nodes.
BELIEVED = 20.0
MOST = 0.99  # a chance that `Spatial` can take the logarithm of


def elastic_for(log: IdleLog, **others: Any) -> Elastic:
    """The policy for slots that come and go as in this log. `others`: more of its arguments.

    Raises:
        ValueError: an argument that cannot be.
    """
    return Elastic(**{**elastic_arguments(log), **others})


def elastic_arguments(log: IdleLog) -> dict[str, Any]:
    """The arguments of `elastic` that the log gives: the horizon, and the placement."""
    return {"horizon": horizon(log), "placement": Spatial(table=departure_chances(log))}


def horizon(log: IdleLog) -> Seconds:
    """The mean time from one departure of nodes to the next: BFTrainer's forward time."""
    leaves = sum(len(went) > 0 for _, _, went in log.changes())
    return forward_time(log.span, leaves)


def departure_chances(log: IdleLog) -> Chances:
    """How likely a node is to leave together with another one, by the racks between them.

    Rows are as `Spatial` takes them: from so many racks on, the chance if the two joined apart,
    and if they joined together. Where a log shows few such pairs, the formula of `Spatial` has its
    say. Racks are read from the nodes' names.
    """
    seen = _counted(log)
    usual = Spatial()
    rows = []
    for place, distance in enumerate(DISTANCES):
        believed = usual.chance * np.exp(-distance / usual.reach)
        row = [float(distance)]
        for joined in (0, 1):
            left, pairs = seen[joined, place]
            chance = (left + BELIEVED * believed) / (pairs + BELIEVED)
            row.append(round(min(MOST, float(chance)), 4))
        rows.append((row[0], row[1], row[2]))
    return tuple(rows)


def _counted(log: IdleLog) -> Counts:
    """How many of the idle nodes left along with one that left, and how many there were."""
    rack = np.array([rack_of(name) for name in log.nodes], float)
    rng = np.random.default_rng(0)
    seen = np.zeros((2, len(DISTANCES), 2))
    for idle, joined, went in _departures(log):
        leaving = np.isin(idle, went)
        for node in rng.permutation(went)[:LOOKED_AT]:
            others = idle != node
            far = np.abs(rack[idle] - rack[node])[others]
            bins = np.searchsorted(DISTANCES, far, side="right") - 1
            same = (joined[idle] == joined[node])[others].astype(int)
            np.add.at(seen, (same, bins, 1), 1.0)
            along = leaving[others]
            np.add.at(seen, (same[along], bins[along], 0), 1.0)
    return seen


def _departures(log: IdleLog) -> Iterator[tuple[Ids, Ids, Ids]]:
    """For each time at which nodes leave: the idle nodes, when each joined, and those that go."""
    since = np.full(len(log.nodes), -1, np.int64)
    for number, (_, came, went) in enumerate(log.changes()):
        idle = np.flatnonzero(since >= 0)
        # A node may have joined and left at once: it was not there to be seen.
        gone = went[since[went] >= 0]
        if len(gone):
            yield idle, since, gone
        since[went] = -1
        since[came] = number


# -- policies by name ------------------------------------------------------------------------------


def with_log(description: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's description, with what its `log` says in place of the log's name.

    So `elastic(log="site.csv")` stands in a journal with numbers, and nobody needs the file again.
    Other policies have no log. Arguments beside the log stay.

    Raises:
        TraceError: the log breaks a rule.
        OSError: as `open`.
    """
    fields = dict(description)
    if fields.get("name") != "elastic" or "log" not in fields:
        return fields
    seconds, table = _figures_of_file(Path(str(fields.pop("log"))).absolute())
    placement = {"name": SPATIAL, "table": table}
    return {"horizon": seconds, "placement": placement, **fields}


@lru_cache(maxsize=4)
def _figures_of_file(path: Path) -> tuple[Seconds, Chances]:
    """The horizon and the departure chances of the log in this file."""
    log = read_log(path)
    return horizon(log), departure_chances(log)


FIELD = "objective"


def objective_in(place: str) -> FileObjective:
    """The function at this place, FILE.py:NAME; the file is imported, and may import others beside.

    Raises:
        ValueError: there is no such file, it raises, or it has no function of that name.
    """
    file, _, name = place.rpartition(":")
    path = Path(file).absolute()
    if not path.is_file():
        raise ValueError(
            f"objective {place}: there is no file {path}: name a function in a file as FILE.py:NAME"
        )
    function = getattr(_imported(path, place), name, None)
    if not callable(function):
        raise ValueError(
            f"objective {place}: {path.name} has no function {name}: define one that takes a trial "
            "and its samples/s at 1, 2, … slots, and gives what each is worth per second"
        )
    return FileObjective(f"{path}:{name}", function)


def _imported(path: Path, place: str) -> ModuleType:
    """The module that the file is, under a name that nothing else imports.

    Raises:
        ValueError: it raises when imported.
    """
    import_from(path.parent)
    spec = spec_from_file_location(f"shoal_objective_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a file of Python"
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"objective {place}: {path.name} raised {type(error).__name__} when it was imported: "
            f"{error}"
        ) from error
    return module


def with_objective(description: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's description, with the function in place of FILE.py:NAME, also within it.

    Only what the user types, or has marked as their own, is given to this: it runs the file.

    Raises:
        ValueError: as of `objective_in`.
    """
    resolved = {}
    for name, value in description.items():
        if name == FIELD and is_in_file(value):
            value = objective_in(value)
        elif isinstance(value, Mapping):
            value = with_objective(value)
        resolved[name] = value
    return resolved


def with_files(description: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's description, with what the files say that the user typed.

    A spec of `shoal simulate` names no objective in a file: reading one runs no code.

    Raises:
        ValueError: as of `objective_in`.
        TraceError: as of `with_log`.
        OSError: as of `with_log`.
    """
    return with_objective(with_log(description))
