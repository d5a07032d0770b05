"""How fast lanes go that share slots or a stream, and how a gang differs from the one before."""

from collections.abc import Callable, Iterable, Mapping

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Seconds, TrialId

FORM = 12  # letters at a signature's beginning; lanes that have them in common may be fused
# Until fused steps were measured, k fused lanes are taken to cost as much as k ** GUESS alone.
GUESS = 0.6
# Fused steps must take less than this part of the time, or lanes take turns.
SAVED = 0.97
# A model of 4 x 64 units takes 8 steps' time a lane to be stacked and checked, and a round tries
# two widths or more, which may be slower than lanes alone. Where fusing saves a quarter of the
# time, it is after so many steps of each lane that it has earned that. With fewer it is not tried.
WORTH_FUSING = 100
# Steps on end of a lane that may have several slots, about equally long, that tell its rate.
ALIKE_STEPS = 6
FUSED = "fused:"  # the figure `fused:w` is the seconds of a step of w lanes


def lockstep(gang: Gang, alone: Callable[[Lane], float]) -> dict[TrialId, float]:
    """Samples/s of each lane, from what each makes `alone` on its slots.

    Lanes on one slot take turns, so their seconds per sample add up. All lanes keep the pace of the
    slowest slot, since they advance together over one stream.
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


def until_all_begin(lanes: Iterable[Lane], seconds_of: Callable[[TrialId], Seconds]) -> Seconds:
    """Seconds until all lanes have begun.

    Those of one slot begin one after the other. `seconds_of`: what it takes to begin a trial.
    """
    busy: dict[SlotId, Seconds] = {}
    for lane in lanes:
        seconds = seconds_of(lane.trial)
        for slot in lane.slots:
            busy[slot] = busy.get(slot, 0.0) + seconds
    return max(busy.values())


def only_shrinks(before: Gang | None, after: Gang | None) -> bool:
    """Whether the change stops lanes, or takes some out, and leaves the others where they are."""
    if after is None:
        return True
    return before is not None and set(after.lanes) <= set(before.lanes)


def new_lanes(before: Gang | None, after: Gang) -> tuple[Lane, ...]:
    """The lanes that were not there before."""
    if before is None:
        return after.lanes
    return tuple(lane for lane in after.lanes if lane not in before.lanes)


def repacked(before: Gang | None, after: Gang) -> bool:
    """Whether other lanes than before train in one step."""
    if before is None:
        return _is_fused(after)
    if not _is_fused(before) and not _is_fused(after):
        return False
    return set(before.trials) != set(after.trials)


def shares_one_slot(gang: Gang) -> bool:
    """Whether several lanes share a single slot."""
    return len(gang.lanes) > 1 and len(gang.slots) == 1


def _is_fused(gang: Gang) -> bool:
    """Whether several lanes train in one step."""
    return gang.fused and len(gang.lanes) > 1


def rescaled(before: Gang, after: Gang) -> str | None:
    """The direction in which one trial's lane changes its width: "up" or "down".

    Returns None for any other change, and where the lane keeps no slot.
    """
    if not len(before.lanes) == len(after.lanes) == 1:
        return None
    old = before.lanes[0]
    new = after.lanes[0]
    if old.trial != new.trial or set(old.slots).isdisjoint(new.slots):
        return None
    if len(new.slots) > len(old.slots):
        return "up"
    if len(new.slots) < len(old.slots):
        return "down"
    return None


def fused_steps(figures: Mapping[str, float]) -> dict[int, Seconds]:
    """Seconds of a step of so many fused lanes, by the numbers of lanes that were measured."""
    return {
        int(name.removeprefix(FUSED)): seconds
        for name, seconds in figures.items()
        if name.startswith(FUSED)
    }


def fused_seconds(figures: Mapping[str, float], lanes: int, alone: Seconds) -> Seconds:
    """Seconds per sample of so many lanes of one form that may be fused.

    `figures`: as measured; `fused:w` is the seconds of a step of w lanes, `step` those of one.
    `alone`: seconds per sample of one lane, in the mean. Lanes are fused by the width that takes
    least of those measured, or not at all.
    """
    one_by_one = lanes * alone
    if lanes < 2 or "unfusable" in figures:
        return one_by_one
    widths = fused_steps(figures)
    if not widths or not figures.get("step"):
        return float(alone * lanes**GUESS)
    # A width above the number of lanes counts as if its step took as long with fewer.
    per_lane = min(seconds / min(width, lanes) for width, seconds in widths.items())
    return min(one_by_one, lanes * alone * per_lane / figures["step"])


def take_turns(figures: Mapping[str, float]) -> bool:
    """Whether lanes of one form are known to be no faster fused, so that they take turns.

    `figures`: as of `fused_seconds`.
    """
    if "unfusable" in figures:
        return True
    step = figures.get("step")
    widths = fused_steps(figures)
    if not widths or not step:
        return False
    return all(seconds >= SAVED * width * step for width, seconds in widths.items())
