"""The rules that every plan obeys, and the changes from one plan to the next."""

from collections.abc import Iterable
from math import inf

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Plan, goes_on
from shoal.core.profile import MemoryTogether, stepping_in_turns
from shoal.core.state import View
from shoal.core.trial import TrialId

# One gang turns into another. (None, gang) starts a gang, and (gang, None) stops one.
Change = tuple[Gang | None, Gang | None]
Gangs = frozenset[Gang]


class PlanError(ValueError):
    """A policy asked for what the cluster cannot do."""


def check(plan: Plan, view: View) -> None:
    """Check that the plan can run. The same rules hold for every policy.

    1. A gang with a quota is not cut short, unless it only measures.
    2. A slot is in at most one gang.
    3. A trial is in at most one gang.
    4. The lanes that meet on a slot fit its memory.
    5. Each shard that a gang reads lies at one of its slots. A joint gang is one lane with a shard
       for each of its slots, which lies there.

    Only the gangs that the plan starts or stops are checked. The others were checked when they
    started.

    Raises:
        PlanError: the plan breaks a rule, or names a slot or a trial that is not there.
    """
    stops, starts = plan.since(view.plan)
    for gang in stops:
        _check_stop(gang, starts)
    slot_use: dict[SlotId, Gang] = {}
    trial_use: dict[TrialId, Gang] = {}
    for gang in starts:
        _check_slots(gang, slot_use, stops, view)
        _check_trials(gang, trial_use, stops, view)
        _check_memory(gang, view)
        _check_shards(gang, view)


def _check_stop(gang: Gang, starts: Gangs) -> None:
    if gang.quota is None or gang.measures:
        return
    if not any(goes_on(gang, new) for new in starts):
        raise PlanError(
            f"{_name(gang)} has a quota and ends by itself;"
            " a policy may not stop it: keep it in the plan"
        )


def _check_slots(gang: Gang, slot_use: dict[SlotId, Gang], stops: Gangs, view: View) -> None:
    """Each slot of a starting gang is here, and in no other gang.

    `slot_use`: the starting gang of each slot, as far as they were checked; it grows.
    """
    for slot in gang.slots:
        other = slot_use.setdefault(slot, gang)
        if other is gang:
            other = view.busy.get(slot, gang)
        if other is not gang and other not in stops:
            raise PlanError(
                f"slot {slot} is in {_name(other)} and in {_name(gang)}; it can be in one gang"
            )
        if slot not in view.slots:
            raise PlanError(
                f"{_name(gang)} uses slot {slot}, which is not here; here: {_some(view.slots)}"
            )


def _check_trials(gang: Gang, trial_use: dict[TrialId, Gang], stops: Gangs, view: View) -> None:
    """Each trial of a starting gang has work left, and is in no other gang.

    `trial_use`: the starting gang of each trial, as far as they were checked; it grows.
    """
    for trial in gang.trials:
        other = trial_use.setdefault(trial, gang)
        if other is gang:
            other = view.running.get(trial, gang)
        if other is not gang and other not in stops:
            raise PlanError(
                f"trial {trial} is in {_name(other)} and in {_name(gang)}; it can be in one gang"
            )
        if trial not in view.trials:
            raise PlanError(
                f"{_name(gang)} trains trial {trial}, which has no work left;"
                f" with work: {_some(view.trials)}"
            )


def _check_memory(gang: Gang, view: View) -> None:
    for slot_id in gang.slots:
        slot = view.slots[slot_id]
        if slot.memory == inf:
            continue
        # What the gang's lanes on this slot need together.
        here = [lane.trial for lane in gang.lanes if slot.id in lane.slots]
        costs = map(view.profile.cost, here)
        if not gang.fused:
            costs = map(stepping_in_turns, costs)
        needs = MemoryTogether(costs).now
        if needs > slot.memory:
            raise PlanError(
                f"{_name(gang)} needs {needs:g} GiB on slot {slot_id},"
                f" which has {slot.memory:g} GiB"
            )


def _check_shards(gang: Gang, view: View) -> None:
    if gang.joint:
        _check_joint(gang, view)
    for shard in gang.shards:
        if not any(shard in view.slots[slot].shards for slot in gang.slots):
            raise PlanError(f"{_name(gang)} reads shard {shard}, which lies at none of its slots")


def _check_joint(gang: Gang, view: View) -> None:
    slots = gang.lanes[0].slots
    if len(gang.lanes) > 1 or len(gang.shards) != len(slots):
        raise PlanError(
            f"{_name(gang)} is joint, and needs one lane with a shard for each of its slots;"
            f" got {len(gang.lanes)} lanes, {len(gang.shards)} shards and {len(slots)} slots"
        )
    for slot, shard in zip(slots, gang.shards, strict=True):
        if shard not in view.slots[slot].shards:
            raise PlanError(
                f"{_name(gang)} is joint, and reads shard {shard} at slot {slot},"
                f" where it does not lie; there: {_some(view.slots[slot].shards)}"
            )


def diff(old: Plan, new: Plan) -> list[Change]:
    """The changes from one plan to another: first stops, then moves, then starts.

    A move pairs an old gang with a new one that shares a trial, so that a backend can carry the
    trial's state from one to the other. Each gang is in one change. If a gang is split, or gangs
    are joined, some trials therefore appear in a stop and in a start. Their state waits in between.
    """
    stopped, started = new.since(old)
    gone: dict[TrialId, Gang] = {}
    for gang in stopped:
        gone.update(dict.fromkeys(gang.trials, gang))
    moves: list[Change] = []
    starts: list[Change] = []
    moved: set[Gang] = set()
    for gang in sorted(started, key=in_order):
        before = _former(gang, gone, moved)
        if before is None:
            starts.append((None, gang))
        else:
            moved.add(before)
            moves.append((before, gang))
    left = sorted(set(gone.values()) - moved, key=in_order)
    stops: list[Change] = [(gang, None) for gang in left]
    return stops + moves + starts


def _former(gang: Gang, gone: dict[TrialId, Gang], moved: set[Gang]) -> Gang | None:
    """The first gang that one of these trials was in and that has not moved yet."""
    for trial in gang.trials:
        before = gone.get(trial)
        if before is not None and before not in moved:
            return before
    return None


def in_order(gang: Gang) -> tuple[int, tuple[TrialId, ...]]:
    """The order in which gangs are written down and changed: by age, then by name."""
    return gang.since, gang.trials


def _name(gang: Gang) -> str:
    """The gang in an error message."""
    what = ""
    if gang.shards:
        what = f" on shard {', '.join(gang.shards)}"
    return f"gang of {', '.join(gang.trials)}{what} (turn {gang.since})"


def _some(names: Iterable[str]) -> str:
    """The first few names in an error message."""
    listed = sorted(names)
    if not listed:
        return "none"
    text = ", ".join(listed[:8])
    if len(listed) > 8:
        text += " …"
    return text
