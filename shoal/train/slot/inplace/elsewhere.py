"""Scores on validation parts of which some lie at other nodes only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from shoal.core.cluster import ShardId
from shoal.train.lane.blame import blaming
from shoal.train.lane.lane import TrainingLane
from shoal.train.lane.scoring import Record, scoring
from shoal.train.recipe.unit import Unit
from shoal.train.slot.crew import Pass
from shoal.train.stream.stream import Stream

Records = Mapping[ShardId, Record]


class Elsewhere(Protocol):
    """Has models validated at the nodes where validation parts lie."""

    def begin(self, unit: Unit, parts: Collection[ShardId]) -> Callable[[], Records]:
        """Send the model there. What this returns waits for what the parts gave.

        `unit`: the trial's, whose source is the model's state. Waiting raises TrialError if the
        recipe's code raised there, and DataError if a part is nowhere to be read.
        """
        ...


def recorded(lane: TrainingLane, stream: Stream, parts: Collection[ShardId]) -> Records:
    """What the lane's validation steps give on these parts, which are read here."""
    order = lane.settings.scored_order
    records: dict[ShardId, Record] = {}
    with scoring(lane) as scores:
        for part in parts:
            records[part] = []
            for chunk in stream.validation_part(part, order):
                records[part] += scores.recorded(chunk)
    return records


def scores_in_place(
    each: Pass, stream: Stream, here: Mapping[ShardId, bool], elsewhere: Elsewhere
) -> dict[str, Any]:
    """A lane's scores, to the bit those of one process that reads all parts in this order.

    `here`: whether each part of the validation data lies at this node.

    Raises:
        TrialError: the recipe's code raised, here or there.
        DataError: a part is nowhere to be read.
    """
    lane = each.lane
    unit = replace(each.unit, source=lane.state(), visits=lane.visits)
    others = elsewhere.begin(unit, [part for part, own in here.items() if not own])
    with blaming():
        own = recorded(lane, stream, [part for part, own in here.items() if own])
    records = {**own, **others()}
    with blaming(), scoring(lane) as scores:
        for part in here:
            scores.take(records[part])
        return scores.scores()
