"""The rules that every plan obeys, and the changes from one plan to the next."""

from collections.abc import Iterable
from math import inf

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Plan, goes_on
from shoal.core.state import View
from shoal.core.trial import TrialId

Change = tuple[Gang | None, Gang | None]


class PlanError(ValueError):
    """A policy asked for what the cluster cannot do."""


def check(plan: Plan, view: View) -> None:
    """Raise PlanError unless the plan can run; the same five rules for every policy.

    A slot is in at most one gang; a trial is in at most one gang; the lanes that meet on a slot fit
    its memory; a gang's shards lie at its slots; a gang with a quota is not cut short. Looks only at
    what changes: gangs that go on were checked when they started.
    """
    stops = view.plan.gangs - plan.gangs
    starts = plan.gangs - view.plan.gangs
    for gang in stops:
        if gang.quota is not None and not any(goes_on(gang, new) for new in starts):
            raise PlanError(f"{_name(gang)} has a quota and ends by itself; a policy may not stop it: keep it in the plan")
    slot_use: dict[SlotId, Gang] = {}
    trial_use: dict[TrialId, Gang] = {}
    for gang in starts:
        for slot in gang.slots:
            other = slot_use.setdefault(slot, gang)
            if other is gang:
                other = view.busy.get(slot, gang)
            if other is not gang and other not in stops:
                raise PlanError(f"slot {slot} is in {_name(other)} and in {_name(gang)}; it can be in one gang")
            if slot not in view.slots:
                raise PlanError(f"{_name(gang)} uses slot {slot}, which is not here; here: {_some(view.slots)}")
        for trial in gang.trials:
            other = trial_use.setdefault(trial, gang)
            if other is gang:
                other = view.running.get(trial, gang)
            if other is not gang and other not in stops:
                raise PlanError(f"trial {trial} is in {_name(other)} and in {_name(gang)}; it can be in one gang")
            if trial not in view.trials:
                raise PlanError(f"{_name(gang)} trains trial {trial}, which has no work left; with work: {_some(view.trials)}")
        _check_room(gang, view)


def _check_room(gang: Gang, view: View) -> None:
    for slot_id in gang.slots:
        slot = view.slots[slot_id]
        if slot.memory == inf:
            continue
        needs = sum(view.profile.cost(lane.trial).memory for lane in gang.lanes if slot_id in lane.slots)
        if needs > slot.memory:
            raise PlanError(f"{_name(gang)} needs {needs:g} GiB on slot {slot_id}, which has {slot.memory:g} GiB")
    for shard in gang.shards:
        if not any(shard in view.slots[slot].shards for slot in gang.slots):
            raise PlanError(f"{_name(gang)} reads shard {shard}, which lies at none of its slots")


def diff(old: Plan, new: Plan) -> Iterable[Change]:
    """The changes from one plan to the other: what only stops first, then what moves, then what only starts.

    A change pairs the gangs that share a trial, so that a backend can carry its state from one to the other;
    a trial whose gang splits or joins others appears in a stop and a start, and its state waits in between.
    """
    gone = {trial: gang for gang in old.gangs - new.gangs for trial in gang.trials}
    starts = sorted(new.gangs - old.gangs, key=in_order)
    moves, fresh, moved = [], [], set()
    for gang in starts:
        before = next((gone[t] for t in gang.trials if t in gone and gone[t] not in moved), None)
        if before is None:
            fresh.append((None, gang))
        else:
            moved.add(before)
            moves.append((before, gang))
    stops = sorted({gang for gang in gone.values() if gang not in moved}, key=in_order)
    return [*((gang, None) for gang in stops), *moves, *fresh]


def in_order(gang: Gang) -> tuple[int, tuple[TrialId, ...]]:
    """The order in which gangs are written down and changed: by age, then by name."""
    return gang.since, gang.trials


def _name(gang: Gang) -> str:
    what = f" on shard {', '.join(gang.shards)}" if gang.shards else ""
    return f"gang of {', '.join(gang.trials)}{what} (turn {gang.since})"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:8]) + (" …" if len(listed) > 8 else "") if listed else "none"
