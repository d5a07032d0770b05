"""Elastic trials on slots that come and go: the best widths for the next while, at each event.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes", 2021, section 3, solved
exactly over counts (`policy/knapsack.py`). Nothing migrates: shrinking trials release slots, growing ones take free
ones. As a policy is asked at every moment, completions are decided upon at once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isfinite
from operator import attrgetter
from typing import Literal, get_args

import numpy as np

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.idle import priority_of
from shoal.policy.knapsack import FORBIDDEN, Counts, Table, best_counts, gains
from shoal.policy.settle import Claim, by_index, by_rack
from shoal.policy.spatial import Spatial

Objective = Literal["throughput", "efficiency", "priority"]
Own = Callable[[Trial, Sequence[float]], Sequence[float]]  # a trial and its samples/s at widths 1, 2, … -> objective per second


@dataclass(frozen=True, slots=True)
class Elastic:
    """As many slots for each trial as gain most within `horizon` seconds, less what changing costs.

    `up`, `down`: seconds that a trial's slots stand still when it grows or shrinks; as the profile says if not given.
    `admit`: at most so many trials at a time, first come first served. `objective`: "throughput" in samples/s;
    "efficiency", that over the trial's rate on one slot; "priority", the latter times the trial's priority; or a function of a
    trial and its rates. `placement`: "index", the free slots in the order in which they joined; "spatial", those likely to leave
    together for one trial; or a `Spatial`.

    Raises:
        ValueError: a horizon, cost, admit, objective or placement that cannot be.
    """

    horizon: Seconds = 120.0
    up: Seconds | None = None
    down: Seconds | None = None
    admit: int | None = None
    objective: Objective | Own = "throughput"
    placement: Literal["index", "spatial"] | Spatial = "index"

    def __post_init__(self) -> None:
        if not (isfinite(self.horizon) and self.horizon > 0):
            raise ValueError(f"elastic's horizon must be > 0 seconds; got {self.horizon!r}")
        for name, cost in (("up", self.up), ("down", self.down)):
            if cost is not None and not (isfinite(cost) and cost >= 0):
                raise ValueError(f"elastic's {name} must be >= 0 seconds, or None for the profile's; got {cost!r}")
        if self.admit is not None and self.admit < 1:
            raise ValueError(f"elastic must admit 1 trial or more, or None for all; got {self.admit!r}")
        if not callable(self.objective) and self.objective not in get_args(Objective):
            raise ValueError(
                f"elastic's objective is one of {', '.join(get_args(Objective))} or a function; got {self.objective!r}"
            )
        if self.placement not in ("index", "spatial") and not isinstance(self.placement, Spatial):
            raise ValueError(f"elastic's placement is index, spatial or a Spatial; got {self.placement!r}")

    @property
    def _spatial(self) -> Spatial | None:
        if self.placement == "index":
            return None
        return Spatial() if self.placement == "spatial" else self.placement

    def _counts(self, asked: "Problem") -> Counts:
        return best_counts(gains(asked.curve, asked.held, asked.up, asked.down, self.horizon), asked.free)

    def start(self) -> dict[str, int]:
        return {}

    def decide(self, view: View, memory: dict[str, int]) -> tuple[Plan, dict[str, int]]:
        spatial = self._spatial
        cohorts = _cohorts(view, memory) if spatial is not None and spatial.by_cohort else {}
        claims = wanted(self, view, self._counts)
        if not claims:
            return view.plan, cohorts
        busy = view.busy.keys()
        free = [slot for slot in view.slots if slot not in busy]
        if spatial is None:
            return plan_of(view, by_index(claims, free, view.slots)), cohorts
        return plan_of(view, by_rack(claims, free, view.slots, spatial, cohorts)), cohorts


@dataclass(frozen=True, slots=True)
class Problem:
    """What an allocation is decided from: a row of each table for each trial."""

    trials: tuple[TrialId, ...]
    lanes: tuple[tuple[SlotId, ...], ...]  # what they hold
    curve: Table
    held: Counts
    up: Table
    down: Table
    free: int  # slots to be shared out, those held included
    needs: tuple[float, ...]  # memory, GiB


def problem(rule: Elastic, view: View) -> Problem | None:
    """The allocation to be decided now; None where no trial can run."""
    lanes = dict(_eligible(view, rule.admit))
    room = len(view.slots) - len(view.busy) + sum(map(len, lanes.values()))
    least = min(map(attrgetter("memory"), view.slots.values()), default=inf)
    widths, needs = {}, []
    for name in lanes:
        need = view.profile.cost(name).memory if least < inf else 0.0
        fewest, most = view.trials[name].widths
        fitting = room if need <= least else sum(slot.memory >= need for slot in view.slots.values())
        widths[name] = (fewest, min(most, room, fitting))
        needs.append(need)
    widest = max((most for _, most in widths.values()), default=0)
    if not lanes or widest < 1:
        return None
    names = tuple(lanes)
    held = np.array([len(lane) for lane in lanes.values()])
    curve = np.full((len(names), max(widest, int(held.max())) + 1), FORBIDDEN)
    curve[:, 0] = 0.0
    for row, name in zip(curve, names, strict=True):
        fewest, most = widths[name]
        if fewest <= most:
            row[fewest : most + 1] = _scored(rule, view, name, most)[fewest - 1 :]
    up, down = _costs(rule, view, lanes)
    return Problem(names, tuple(lanes.values()), curve, held, up, down, room, tuple(needs))


def wanted(rule: Elastic, view: View, solve: Callable[[Problem], Counts]) -> list[Claim]:
    """How many slots each trial should have, where that is a change for any; else nothing."""
    asked = problem(rule, view)
    if asked is None:
        return []
    counts = solve(asked)
    if (counts == asked.held).all():
        return []
    kinds: dict[bytes, int] = {}
    return [
        Claim(name, lane, int(count), need, view.trials[name].widths[0], kinds.setdefault(row.tobytes(), len(kinds)))
        for name, lane, count, need, row in zip(asked.trials, asked.lanes, counts, asked.needs, asked.curve, strict=True)
    ]


def plan_of(view: View, moved: Mapping[TrialId, tuple[SlotId, ...]]) -> Plan:
    """What runs now, with these trials on these slots (none: stopped)."""
    gangs = set(view.plan.gangs)
    for trial, slots in moved.items():
        gangs.discard(view.running.get(trial))
        if slots:
            gangs.add(Gang((Lane(trial, slots),), since=view.turn))
    return Plan(frozenset(gangs))


def _eligible(view: View, admit: int | None) -> Iterator[tuple[TrialId, tuple[SlotId, ...]]]:
    """The trials admitted that are free to change, with the slots they hold."""
    for name in islice(view.trials, admit):
        gang = view.running.get(name)
        if gang is None:
            yield name, ()
        elif gang.quota is None and len(gang.lanes) == 1:
            yield name, gang.lanes[0].slots


def _scored(rule: Elastic, view: View, name: TrialId, most: int) -> Sequence[float]:
    """Objective per second at widths 1 … most."""
    trial, rates = view.trials[name], view.profile.curve(name, most)
    if rule.objective == "throughput":
        return rates
    if callable(rule.objective):
        return rule.objective(trial, rates)
    weight = priority_of(trial) if rule.objective == "priority" else 1.0
    return [weight * rate / rates[0] for rate in rates]


def _costs(rule: Elastic, view: View, lanes: Mapping[TrialId, tuple[SlotId, ...]]) -> tuple[Table, Table]:
    """Seconds to grow and to shrink; a trial that holds nothing starts for nothing."""
    up, down = (np.full(len(lanes), 0.0 if cost is None else cost) for cost in (rule.up, rule.down))
    if rule.up is None or rule.down is None:
        spare = SlotId("\0")  # stands for any slot more
        for j, (name, held) in enumerate(lanes.items()):
            gang = view.running.get(name)
            if gang is None:
                continue
            if rule.up is None:
                up[j] = view.profile.switch(gang, Gang((Lane(name, (*held, spare)),), since=view.turn))
            if rule.down is None and len(held) > 1:
                down[j] = view.profile.switch(gang, Gang((Lane(name, held[:-1]),), since=view.turn))
    return up, down


def _cohorts(view: View, memory: Mapping[str, int]) -> dict[str, int]:
    """The turn at which each slot was first seen since it joined."""
    return {name: memory.get(name, view.turn) for name in view.slots}
