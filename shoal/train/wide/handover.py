"""The handover of a wide lane's state from one rank to the others; the undoing of failed steps."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from shoal.train.lane import tree
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.tensors import Buffers, buffers
from shoal.train.wide.group import Group
from shoal.train.wide.notes import Notes
from shoal.train.wide.progress import PassProgress


class Mark(NamedTuple):
    """The state of a lane before a group of batches, as far as the group changes it."""

    random: Any
    buffers: Buffers
    changes: Mapping[str, Any]
    passed: float
    unreported: int


def mark(lane: TrainingLane) -> Mark:
    """A mark of where the lane is before a group of batches.

    Parameters, optimizer and schedule need no copy: they change only in the optimizer's step.
    """
    return Mark(
        lane.rng.mark(), buffers(lane.model), lane.changes_now(), lane.passed, lane.unreported
    )


def back(lane: TrainingLane, to: Mark) -> None:
    """Take the lane back there, as if the group of batches had not begun."""
    lane.restart(to.passed, to.unreported)
    lane.rng.back(to.random)
    to.buffers.put_back()
    lane.load_changes(to.changes)


class RankProgress(NamedTuple):
    """How far a rank with the trial's state is, and which handover its state comes from."""

    visits: int
    position: int  # samples of the pass
    lineage: int  # 0: none


NO_PROGRESS = RankProgress(-1, 0, 0)  # of a rank without the trial's state


def furthest(group: Group, progress: RankProgress | None) -> tuple[int, bool]:
    """The rank whose state all take over, and whether they need all of it.

    `progress` is None where this process does not have the trial's state.

    Raises:
        LookupError: no process has it.
    """
    gathered = group.gather(*(progress or NO_PROGRESS))
    ranks = [RankProgress(*numbers) for numbers in gathered]
    first = max(ranks, key=lambda rank: (rank.visits, rank.position))
    if first.visits < 0:
        raise LookupError(
            "no process of the lane has the trial's state: one of their units needs a source"
        )
    same = all(each == first for each in ranks)
    return ranks.index(first), not same or first.lineage == 0


class SharedState:
    """The trial's state in this process, and how it becomes that of the rank that is furthest.

    `whole`: this process has the trial's state, at the present position of the pass. `warned`: a
    rank has warned of batch norm. `warned_of_own`: one has warned of attributes that differ.
    """

    def __init__(self, lane: TrainingLane, notes: Notes) -> None:
        self._lane = lane
        self._notes = notes
        self._lineage = 0  # the handover that the state comes from; 0: none
        self.whole = False
        self.warned = False
        self.warned_of_own = False

    def restart(self, whole: bool, same: bool) -> None:
        """Begin a pass; for `whole` and `same` see `WideLane.begin`."""
        if not whole or not same:
            self._lineage = 0
        self.whole = whole

    def sync(self, group: Group | None, rank: int, progress: PassProgress) -> None:
        """Let all ranks take over the state of the one that is furthest.

        Raises:
            LookupError: no rank has the trial's state.
            PeerLost: a rank is gone.
        """
        if group is None:
            if self.whole:
                return
            raise LookupError(
                "the lane's only process does not have the trial's state: its unit needs a source"
            )
        lane = self._lane
        own_progress = None
        if self.whole:
            own_progress = RankProgress(len(lane.visits), progress.position, self._lineage)
        source, bulk = furthest(group, own_progress)
        if rank == source:
            tree = {
                "lane": whole(lane) if bulk else light(lane),
                **progress.for_joining(),
                "names": self._notes.names,
                "warned": self.warned,
                "warned_of_own": self.warned_of_own,
                "lineage": secrets.randbits(62) + 1,
            }
            sent = group.send(tree, source)
        else:
            # arrays that are not needed any more: the state that is sent can be written there
            sent = group.send(None, source, None if self.whole else {"lane": whole(lane)})
            with blaming():
                take(lane, sent["lane"])
            progress.take(sent)
            self._notes.names = sent["names"]
            self.warned = sent["warned"]
            self.warned_of_own = sent["warned_of_own"]
        self._lineage = sent["lineage"]
        self.whole = True


def whole(lane: TrainingLane) -> Mapping[str, Any]:
    """The whole state that the lane's further training depends on; the arrays are views."""
    return {"whole": lane.state()}


def light(lane: TrainingLane) -> Mapping[str, Any]:
    """The part of the lane's state that may differ between ranks that took the same steps.

    That is buffers, random states, and what followed the metric.
    """
    param_groups = lane.optimizer.param_groups
    groups = [{key: group[key] for key in group if key != "params"} for group in param_groups]
    return {
        "buffers": tree.to_numpy(dict(lane.model.named_buffers())),
        "groups": tree.to_numpy(groups),
        "scheduler": lane.schedule.state(),
        "rng": tree.to_numpy(lane.rng.state()),
        **lane.changes.state(),
    }


def take(lane: TrainingLane, sent: Mapping[str, Any]) -> None:
    """Bring the lane into the state that `whole` or `light` gave.

    Raises:
        ValueError: the two lanes found different largest batches.
    """
    if "whole" in sent:
        state = sent["whole"]
        if state.get("found", lane.found_size) != lane.found_size:
            raise ValueError(
                "the slots of a trial found different largest batches: "
                'say a number instead of batch_size="max"'
            )
        lane.load(state)
        return
    for name, buffer in lane.model.named_buffers():
        tree.fill(buffer, sent["buffers"][name])
    groups = tree.to_torch(sent["groups"])
    for group, sent_group in zip(lane.optimizer.param_groups, groups, strict=True):
        for key, value in sent_group.items():
            if isinstance(group[key], Tensor):
                group[key].fill_(value)
            else:
                group[key] = value
    lane.schedule.load(sent["scheduler"])
    lane.rng.load(sent["rng"])
    lane.changes.load(sent, lane.device)
