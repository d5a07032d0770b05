"""Elastic trials on slots that come and go: the best widths for the next while, at each event.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes",
2021, section 3, solved exactly over counts (see `knapsack`). Nothing migrates: shrinking
trials release slots, growing ones take free ones. As a policy is asked at every moment, completions
are decided upon at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from shoal.core.cluster import GiB, SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, TrialId
from shoal.policy.elastic.knapsack import best_counts, steady
from shoal.policy.elastic.objective import (
    Objective,
    check_hysteresis,
    check_objective,
    known_ends,
    learned,
    watched,
    worth,
)
from shoal.policy.elastic.problem import (
    Held,
    Problem,
    free_slots,
    longest_first,
    pool_of,
)
from shoal.policy.elastic.settle import Claim, Moved, by_index, by_rack, paying
from shoal.policy.elastic.spatial import Spatial
from shoal.policy.elastic.table import (
    FORBIDDEN,
    Counts,
    Table,
    gains,
    shortened,
)
from shoal.profile.known import widest

Lanes = Mapping[TrialId, tuple[SlotId, ...]]  # the slots that each trial holds
Widths = tuple[int, int]  # the fewest and the most slots that a trial can have

PLACEMENTS = ("index", "spatial")
SPARE = SlotId("\0")  # stands for any slot more
LEAST = 1e-3  # of the horizon: what growing costs at least, so that it is done for a gain only
LEARNED = "learned"  # a horizon that is estimated
Cohorts = Mapping[str, int]
Memory = dict[str, Any]  # "cohorts": when each slot joined; "departures": see `watched`


@dataclass(frozen=True, slots=True)
class Elastic:
    """As many slots for each trial as gain most within `horizon` seconds, less what changing costs.

    `horizon`: "learned" for the mean time between departures of slots, as far as they were seen.
    `up`, `down`: seconds that a trial's slots stand still when it grows or shrinks; as the profile
    says if not given. A slot of which the end is known counts only for the time that it has left.
    `admit`: at most so many trials at a time, first come first served.
    `objective`: "throughput" in samples/s; "efficiency", that over the trial's rate on one slot;
    "priority", the latter times the trial's priority; or a function of a trial and its rates at 1,
    2, … slots, which gives what it is worth per second at each. `placement`: "index", the free
    slots in the order in which they joined; "spatial", those likely to leave together for one
    trial; or a `Spatial`. `hysteresis`: a trial gives up slots only if that gains more than this
    part of what it makes within the horizon. So measured speeds may be off by half of it without
    equal trials exchanging slots.

    Raises:
        ValueError: a horizon, cost, admit, objective, placement or hysteresis that cannot be.
    """

    horizon: Seconds | Literal["learned"] = 120.0
    up: Seconds | None = None
    down: Seconds | None = None
    admit: int | None = None
    objective: Objective = "throughput"
    placement: Literal["index", "spatial"] | Spatial = "index"
    hysteresis: float = 0.01

    def __post_init__(self) -> None:
        _check_horizon(self.horizon)
        _check_cost("up", self.up)
        _check_cost("down", self.down)
        if self.admit is not None and self.admit < 1:
            raise ValueError(
                f"elastic must admit 1 trial or more, or None for all; got {self.admit!r}"
            )
        check_objective("elastic", self.objective)
        check_hysteresis("elastic", self.hysteresis)
        if not isinstance(self.placement, Spatial) and self.placement not in PLACEMENTS:
            raise ValueError(
                "elastic's placement is index, spatial or a Spatial; "
                f"got {self.placement!r}"
            )

    @property
    def _spatial(self) -> Spatial | None:
        """How slots are placed; None if by index."""
        if isinstance(self.placement, Spatial):
            return self.placement
        if self.placement == "spatial":
            return Spatial()
        return None

    def start(self) -> Memory:
        return {}

    def decide(self, view: View, memory: Memory) -> tuple[Plan, Memory]:
        remembered = self._remembered(view, memory)
        asked = problem(self, view, self._seconds(view, remembered))
        claims = _claims(view, asked, _counts)
        if asked is None or not claims:
            return view.plan, remembered
        cohorts = remembered.get("cohorts", {})
        moved = _moved(view, claims, self._spatial, cohorts)
        if asked.ends.parts:
            moved = paying(claims, moved, view.slots, asked.makes)
        return plan_of(view, moved), remembered

    def _remembered(self, view: View, memory: Memory) -> Memory:
        """What the next decision needs to know of the slots that are here."""
        found: Memory = {}
        spatial = self._spatial
        if spatial is not None and spatial.by_cohort:
            found["cohorts"] = _cohorts(view, memory.get("cohorts", {}))
        if isinstance(self.horizon, str):
            found["departures"] = watched(view, memory.get("departures", {}))
        return found

    def _seconds(self, view: View, remembered: Memory) -> Seconds:
        """The horizon at this moment."""
        if isinstance(self.horizon, str):
            return learned(view, remembered["departures"])
        return self.horizon


def _counts(asked: Problem) -> Counts:
    """The optimum of the program (16)."""
    gain = gains(asked.curve, asked.held, asked.up, asked.down, asked.horizon)
    if asked.ends.parts:
        parts = [asked.parts(row) for row in range(len(asked.trials))]
        less = asked.horizon * shortened(asked.curve, parts)
        gain = np.where(asked.curve > FORBIDDEN, gain - less, gain)
    return steady(gain, best_counts(gain, asked.free), asked.held)


def _check_horizon(horizon: Seconds | Literal["learned"]) -> None:
    """Raise ValueError unless it is a time or to be learned."""
    if horizon == LEARNED:
        return
    if isinstance(horizon, str) or not (isfinite(horizon) and horizon > 0):
        raise ValueError(
            f'elastic\'s horizon must be > 0 seconds, or "learned"; got {horizon!r}'
        )


def _check_cost(name: str, cost: Seconds | None) -> None:
    """Raise ValueError unless the cost of growing or shrinking can be one."""
    if cost is not None and not (isfinite(cost) and cost >= 0):
        raise ValueError(
            f"elastic's {name} must be >= 0 seconds, or None for the profile's; got {cost!r}"
        )


def _moved(
    view: View,
    claims: Sequence[Claim],
    spatial: Spatial | None,
    cohorts: Cohorts,
) -> Moved:
    """The slots of each trial that gets more or fewer."""
    free = longest_first(view, free_slots(view))
    if spatial is None:
        return by_index(claims, free, view.slots)
    return by_rack(claims, free, view.slots, spatial, cohorts)


def problem(rule: Elastic, view: View, horizon: Seconds) -> Problem | None:
    """The allocation to be decided now, for so long; None where no trial can run."""
    lanes = dict(_eligible(view, rule.admit))
    if not lanes:
        return None
    room = _room(view, lanes)
    needs = _needs(view, lanes)
    widths = _widths(view, needs, room)
    if max(most for _, most in widths.values()) < 1:
        return None

    held = np.array([len(lane) for lane in lanes.values()])
    curve = _curves(rule, view, widths, int(held.max()))
    up, down = _costs(rule, view, lanes, horizon)
    slots = tuple(lanes.values())
    memory = tuple(needs.values())
    ends = known_ends(view, lanes, horizon)
    names = tuple(lanes)
    pool = pool_of(view, slots) if ends.parts else ()
    return Problem(
        names, slots, curve, held, up, down, horizon, room, memory, ends, pool
    )


def _room(view: View, lanes: Lanes) -> int:
    """How many slots are to be shared out: those without work, and those of these trials."""
    unused = len(view.slots) - len(view.busy)
    return unused + sum(map(len, lanes.values()))


def _least_memory(view: View) -> GiB:
    """The memory of the smallest slot."""
    return min(map(attrgetter("memory"), view.slots.values()), default=inf)


def _needs(view: View, trials: Iterable[TrialId]) -> dict[TrialId, GiB]:
    """The memory of each trial; 0 where no slot's memory is limited."""
    if _least_memory(view) == inf:
        return dict.fromkeys(trials, 0.0)
    return {trial: view.profile.cost(trial).memory for trial in trials}


def _widths(
    view: View, needs: Mapping[TrialId, GiB], room: int
) -> dict[TrialId, Widths]:
    """How many of `room` slots each trial can have, on slots with memory enough.

    None has more than pay, as far as was measured.
    """
    least = _least_memory(view)
    widths = {}
    for name, need in needs.items():
        fewest, most = view.trials[name].widths
        fitting = room
        if need > least:
            fitting = sum(slot.memory >= need for slot in view.slots.values())
        most = min(most, room, fitting)
        widths[name] = (fewest, widest(view.profile, name, fewest, most))
    return widths


def _curves(
    rule: Elastic, view: View, widths: Mapping[TrialId, Widths], held: int
) -> Table:
    """O_j(n) of the paper: a row for each trial, a column for each count from 0 on.

    `held`: the most slots that any trial has now; there is a column for it.
    """
    widest = max(most for _, most in widths.values())
    curve = np.full((len(widths), max(widest, held) + 1), FORBIDDEN)
    curve[:, 0] = 0.0
    for row, (name, (fewest, most)) in zip(curve, widths.items(), strict=True):
        if fewest <= most:
            row[fewest : most + 1] = _scored(rule, view, name, most)[fewest - 1 :]
    return curve


def wanted(
    rule: Elastic, view: View, horizon: Seconds, solve: Callable[[Problem], Counts]
) -> list[Claim]:
    """How many slots each trial should have, where that is a change for any; else nothing."""
    return _claims(view, problem(rule, view, horizon), solve)


def _claims(
    view: View, asked: Problem | None, solve: Callable[[Problem], Counts]
) -> list[Claim]:
    """The same, from what is to be decided."""
    if asked is None:
        return []
    counts = solve(asked)
    if (counts == asked.held).all():
        return []
    kinds = _kinds(asked.curve)
    claims = []
    for j, trial in enumerate(asked.trials):
        fewest = view.trials[trial].widths[0]
        count = int(counts[j])
        need = asked.needs[j]
        claims.append(Claim(trial, asked.lanes[j], count, need, fewest, kinds[j]))
    return claims


def _kinds(curve: Table) -> list[int]:
    """A number for each trial; trials with equal curves have the same."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(row.tobytes(), len(numbers)) for row in curve]


def plan_of(view: View, moved: Moved) -> Plan:
    """What runs now, with these trials on these slots (none: stopped)."""
    before = [view.running[trial] for trial in moved if trial in view.running]
    return view.plan.but(stop=before, start=_begun(view, moved))


def _begun(view: View, moved: Moved) -> Iterator[Gang]:
    """The gangs of these trials on their new slots, without those that are stopped."""
    for trial, slots in moved.items():
        if slots:
            yield _gang(view, trial, slots)


def _eligible(view: View, admit: int | None) -> Iterator[tuple[TrialId, Held]]:
    """The trials admitted that are free to change, with the slots they hold."""
    for name in islice(view.trials, admit):
        slots = _free_to_change(view.running.get(name))
        if slots is not None:
            yield name, slots


def _free_to_change(gang: Gang | None) -> Held | None:
    """The slots of the trial that runs in this gang; None if it may not change.

    Without a gang the trial waits, and holds no slot.
    """
    if gang is None:
        return ()
    if gang.quota is None and len(gang.lanes) == 1:
        return gang.lanes[0].slots
    return None


def _scored(rule: Elastic, view: View, name: TrialId, most: int) -> Sequence[float]:
    """Objective per second at widths 1 … most."""
    rates = view.profile.curve(name, most)
    return worth(rule.objective, view.trials[name], rates)


def _costs(
    rule: Elastic, view: View, lanes: Lanes, horizon: Seconds
) -> tuple[Table, Table]:
    """Seconds to grow and to shrink, for each trial; at least a little of the horizon.

    A cost of 0 was mostly never measured, and speeds that were are a little off. Believed, both
    would let equal trials change places for nothing. For one trial to gain by another's slots, the
    other must shrink: `hysteresis` is charged there, and slots that nobody has stay cheap to take.
    What a trial that holds no slot is charged does not matter: its present rate is 0.
    """
    up = [_growing(rule, view, *lane) for lane in lanes.items()]
    down = [_shrinking(rule, view, *lane) for lane in lanes.items()]
    least = LEAST * horizon
    enough = max(rule.hysteresis, LEAST) * horizon
    return np.maximum(up, least), np.maximum(down, enough)


def _switch(view: View, name: TrialId, slots: Held) -> Seconds:
    """Seconds that a trial's change to these slots costs; 0 for one that does not run."""
    gang = view.running.get(name)
    if gang is None:
        return 0.0
    return view.profile.switch(gang, _gang(view, name, slots))


def _growing(rule: Elastic, view: View, name: TrialId, held: Held) -> Seconds:
    """Seconds that one slot more costs the trial: the policy's, else the profile's."""
    if rule.up is not None:
        return rule.up
    return _switch(view, name, (*held, SPARE))


def _gang(view: View, name: TrialId, slots: Held) -> Gang:
    """The trial alone on these slots, from now on."""
    return Gang((Lane(name, slots),), since=view.turn)


def _shrinking(rule: Elastic, view: View, name: TrialId, held: Held) -> Seconds:
    """Seconds that one slot fewer costs the trial: the policy's, else the profile's."""
    if rule.down is not None:
        return rule.down
    if len(held) < 2:
        return 0.0
    return _switch(view, name, held[:-1])


def _cohorts(view: View, memory: Mapping[str, int]) -> dict[str, int]:
    """The turn at which each slot was first seen since it joined."""
    return {name: memory.get(name, view.turn) for name in view.slots}
