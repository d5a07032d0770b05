"""How fast lanes go that share slots or a stream."""

from collections.abc import Callable

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import TrialId


def lockstep(gang: Gang, alone: Callable[[Lane], float]) -> dict[TrialId, float]:
    """Samples/s of each lane, from what each makes alone on its slots.

    Lanes on one slot take turns, so that their seconds per sample add up; all lanes keep the pace of the slowest slot,
    since they advance together over one stream.
    """
    if len(gang.lanes) == 1:
        lane = gang.lanes[0]
        return {lane.trial: alone(lane)}
    per_sample: dict[SlotId, float] = {}
    for lane in gang.lanes:
        seconds = 1.0 / alone(lane)
        for slot in lane.slots:
            per_sample[slot] = per_sample.get(slot, 0.0) + seconds
    pace = 1.0 / max(per_sample.values())
    return dict.fromkeys(gang.trials, pace)


def only_shrinks(before: Gang | None, after: Gang | None) -> bool:
    """The change stops lanes, or takes some out, and leaves the others where they are."""
    return after is None or (before is not None and set(after.lanes) <= set(before.lanes))
