"""What `auto` makes as early as it can: the end of all trials, of each in the mean, or of one."""

from collections.abc import Mapping
from math import inf
from typing import Literal

from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.arguments import check_one_of

Objective = Literal["makespan", "mean_completion", "first_result"]
MAKESPAN: Objective = "makespan"


def check_objective(objective: object) -> None:
    """Raise ValueError unless it is one of the objectives."""
    check_one_of("auto's objective", Objective, objective)


def aim_of(objective: Objective, view: View) -> Objective:
    """The objective from now on: once some trial is finished, the first result is there."""
    if objective == "first_result" and "finished" in view.ended.values():
        return MAKESPAN
    return objective


def score(aim: Objective, ends: Mapping[TrialId, Seconds]) -> Seconds:
    """The seconds to be made few, by when each trial ends; infinity: nothing ends."""
    if not ends:
        return inf
    if aim == "mean_completion":
        return sum(ends.values()) / len(ends)
    if aim == "first_result":
        return min(ends.values())
    return max(ends.values())


def wording(aim: Objective, trials: str) -> str:
    """The words before the seconds of a `score`. `trials`: as "the 3 trials left"."""
    if aim == "mean_completion":
        return f"{trials} would end, in the mean, after"
    if aim == "first_result":
        return f"the first of {trials} would end after"
    return f"{trials} would take"
