"""Which slots have to leave now, because their ends are known and near."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from shoal.backend.ends import UnitTimes
from shoal.backend.ray.slots import SlotProcess
from shoal.core.cluster import SlotId
from shoal.core.trial import Seconds, TrialId


def due(processes: Sequence[SlotProcess], times: UnitTimes, now: Seconds) -> list[SlotId]:
    """The slots of these processes, which are ready, that have to leave at this time of the study.

    A slot makes its unit to the end. So it is told before another one would begin that could not
    end in time. An idle slot leaves once no trial's unit could.
    """
    if all(process.known.until == inf for process in processes):
        return []
    lasts = _lasts(processes)
    gone: list[SlotId] = []
    for process in processes:
        if process.leaving:
            continue
        if is_over(process, now, _needed(process, times, lasts)):
            gone.append(process.id)
    return gone


def is_over(process: SlotProcess, now: Seconds, needed: Seconds) -> bool:
    """Whether the slot has less time left than that, or had so before; it is noted.

    A slot that never made anything was of no use. Whoever has only such slots should know why
    nothing goes on.
    """
    left = process.known.until - now
    if not process.ends and left < needed:
        process.ends = True
        if not process.worked:
            warnings.warn(
                f"{process.id} at {process.node} leaves unused: its node ends in {left:.0f} s, and "
                f"a unit takes {needed:.0f} s with what makes it durable. Divide the data into "
                "more shards, or have nodes for longer",
                stacklevel=1,
            )
    return process.ends


def _needed(process: SlotProcess, times: UnitTimes, lasts: Mapping[TrialId, Seconds]) -> Seconds:
    """Seconds that the process needs to its next good end."""
    trials = [trial for call in process.calls for trial in call.units]
    if trials:
        return times.needed(sorted(set(trials)))
    shared = sorted(_shared(process))
    if not shared:
        return times.least()
    if all(lasts[trial] > process.known.until for trial in shared):
        return times.to_keep(shared)  # others go on with the unit
    return times.needed(shared)


def _shared(process: SlotProcess) -> set[TrialId]:
    """The trials whose units the process makes together with others, or could."""
    return {trial for call in process.shares for trial in call.units}


def _lasts(processes: Iterable[SlotProcess]) -> dict[TrialId, Seconds]:
    """When the last slot leaves of those that make a trial's unit together."""
    found: dict[TrialId, Seconds] = {}
    for process in processes:
        for trial in _shared(process):
            found[trial] = max(found.get(trial, 0.0), process.known.until)
    return found
