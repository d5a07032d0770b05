"""What the nodes of a Ray cluster find of the shards that lie there."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from shoal.backend.ray import cluster
from shoal.core.errors import warn
from shoal.train.data.columns import DataError
from shoal.train.data.node_shards import Survey
from shoal.train.data.survey import SHOWN, Finding, Inspection, SurveyRequest, look, tasks_of
from shoal.train.recipe.pickling import dumps

# What Ray raises when a process or a node is lost: with the task, or with what it has answered.
LOST = (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    TaskUnschedulableError,
    WorkerCrashedError,
)


def survey_of(address: str | None, begun: bool) -> Survey:
    """Who looks at the shards: the nodes that hold them.

    Without an `address`, in a process that has joined no cluster, that is this machine. `begun`:
    the study has trained before; nodes may then be away, as long as others hold their shards.
    """
    if address is None and not ray.is_initialized():
        return Survey()
    surveyor = partial(survey_nodes, address=address, begun=begun)
    return Survey(surveyor=surveyor, names=())


def survey_nodes(request: SurveyRequest, address: str | None, begun: bool) -> list[Finding]:
    """Have each node that the catalogue names look at its files, all of them at the same time.

    Raises:
        DataError: a node is not in the cluster or leaves it, its process ends while it reads, or
            it cannot look at all.
    """
    if ray.is_initialized():
        return _surveyed(request, begun)
    cluster.join(address, None, 1, 0.0)
    try:
        return _surveyed(request, begun)
    finally:
        cluster.leave(started_here=False, joined=True)


def _surveyed(request: SurveyRequest, begun: bool) -> list[Finding]:
    """The findings of the nodes of the cluster that this process has joined."""
    ids = _nodes_by_name()
    away = [node for node in request.catalogue.nodes if node not in ids]
    if away:
        _check_away(away, request, ids, begun)
    known = [node for node in request.catalogue.nodes if node in ids]
    anywhere = known[0] if known else next(iter(ids))
    recipe = dumps(request.recipe)
    tasks = tasks_of(request.catalogue, known, anywhere)
    under_way = [_begin(task, ids[task.node], request, recipe) for task in tasks]
    findings: list[Finding] = []
    ended = []
    for task, answers in zip(tasks, under_way, strict=True):
        seen = _answered(answers, task.node)
        if len(seen) < len(task.paths):  # once more: it may have been chance
            rest = _rest_of(task, seen)
            retry = _begin(rest, ids[task.node], request, recipe)
            seen += _answered(retry, task.node)
        if len(seen) < len(task.paths):
            ended.append(_rest_of(task, seen))
        findings += seen
    ids = _nodes_by_name()
    left_cluster = [task.node for task in ended if task.node not in ids]
    if left_cluster:
        _check_away(left_cluster, request, ids, begun)
    ended = [task for task in ended if task.node in ids]
    if ended:
        raise DataError(_of_ended(ended))
    return findings


def _nodes_by_name() -> dict[str, str]:
    """The id of each live node, by each of its names."""
    ids: dict[str, str] = {}
    for node in cluster.live_nodes():
        for name in node.names:
            ids.setdefault(name, node.id)
    return ids


def _check_away(
    away: Sequence[str], request: SurveyRequest, ids: Mapping[str, str], begun: bool
) -> None:
    """Warn of nodes that are away, if the study goes on and the others hold all shards.

    Raises:
        DataError: otherwise.
    """
    listed = ", ".join(sorted(dict.fromkeys(node.host for node in cluster.live_nodes())))
    text = f"the catalogue names {', '.join(away)}, and the cluster has the nodes {listed}"
    present = request.catalogue.at(ids)
    missing = [part for part in request.catalogue.parts if part not in present]
    if begun and not missing:
        warn(f"{text}; the others hold all shards")
        return
    if missing:
        text += f"; {', '.join(missing[:5])} lies nowhere else"
    raise DataError(
        f"{text}: name nodes as `ray start --node-name` does, or by host name or address; "
        "add the node, or leave it out of the catalogue"
    )


def _begin(task: Inspection, node: str, request: SurveyRequest, recipe: bytes) -> Any:
    """References to what the node finds, part by part.

    Ray tries nothing again by itself: it would do so for ever if memory runs out.
    """
    remote = ray.remote(num_cpus=0, max_retries=0, num_returns="streaming")(_look)
    at_node = remote.options(scheduling_strategy=cluster.only_at(node))
    return at_node.remote(task, request.cache, recipe)


def _answered(answers: Any, node: str) -> list[Finding]:
    """The node's findings until its process ended, which it does after the last part.

    Raises:
        DataError: it cannot look, as it cannot load the recipe.
    """
    findings: list[Finding] = []
    try:
        with suppress(*LOST):
            for answer in answers:
                findings.append(ray.get(answer))
    except RayTaskError as error:
        why = f"{type(error.cause).__name__}: {error.cause}"
        raise DataError(
            f"{node} cannot look at its shards: {why}; the recipe must load there, "
            "with the libraries that it imports"
        ) from error
    return findings


def _rest_of(task: Inspection, findings: Sequence[Finding]) -> Inspection:
    """The task with those parts alone that the findings lack."""
    seen = {each.part for each in findings}
    paths = {part: path for part, path in task.paths.items() if part not in seen}
    return replace(task, paths=paths)


def _of_ended(ended: Sequence[Inspection]) -> str:
    """Which shards the nodes read when their processes ended, and which they did not come to."""
    texts = []
    for task in ended:
        (part, path), *rest = task.paths.items()
        text = f"the process at {task.node} ended twice while it read {part} ({path})"
        if rest:
            shown = ", ".join(name for name, _ in rest[:SHOWN])
            more = f" and {len(rest) - SHOWN} more" if len(rest) > SHOWN else ""
            text += f", and had still to look at {shown}{more}"
        texts.append(text)
    return (
        "; ".join(texts) + ": either memory ran out there, or the recipe's read(path) ends "
        "its process; read this file by itself to see which"
    )


def _look(task: Inspection, cache: Any, pickled: bytes) -> Iterator[Finding]:
    """Look at the parts one by one; this runs at a node."""
    recipe = pickle.loads(pickled)
    for part, path in task.paths.items():
        one_part = replace(task, paths={part: path})
        [finding] = look(one_part, cache, getattr(recipe, "read", None))
        yield finding
