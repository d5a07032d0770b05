"""Elastic trials on slots that come and go: the best widths for the next while, at each event.

Liu et al., "BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes",
2021, section 3, solved exactly over counts (see `knapsack`). Nothing migrates: shrinking
trials release slots, growing ones take free ones. As a policy is asked at every moment, completions
are decided upon at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf, isfinite
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from shoal.core.cluster import GiB, Slot, SlotId
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import View
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.policy.elastic.knapsack import best_counts, steady
from shoal.policy.elastic.objective import (
    KnownEnds,
    Objective,
    check_hysteresis,
    check_objective,
    departures_seen,
    known_ends,
    learned_horizon,
    worth,
)
from shoal.policy.elastic.placement import (
    Claim,
    LaneSlots,
    Moved,
    Spatial,
    by_index,
    by_rack,
    paying,
)
from shoal.policy.elastic.table import FORBIDDEN, Counts, Table, gains, lasting, shortened
from shoal.policy.hop.hop import Hop
from shoal.policy.hop.hybrid import joint_unit, readers
from shoal.policy.idle import idle_slots, with_more
from shoal.profile.evidence import widest

Lanes = Mapping[TrialId, tuple[SlotId, ...]]  # the slots that each trial holds
Widths = tuple[int, int]  # the fewest and the most slots that a trial can have

PLACEMENTS = ("index", "spatial")
SPARE = SlotId("\0")  # stands for any slot more
LEAST = 1e-3  # of the horizon: what growing costs at least, so that it is done for a gain only
LEARNED = "learned"  # a horizon that is estimated
Cohorts = Mapping[str, int]
Memory = dict[str, Any]  # "cohorts": when each slot joined; "departures": see `departures_seen`
HOP = Hop("lrw")  # remembers nothing, and is best where times are uncertain


class RowCache:
    """The rows of the last decision, so that the next one costs what changed.

    They could all be computed again: no decision depends on the ones before.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._rows: _Rows | None = None
        # The slots of which the end is known, of these slots.
        self._slots: Mapping[SlotId, Slot] | None = None
        self._ending: list[Slot] = []

    def ending(self, view: View) -> list[Slot]:
        """The slots of which the end is known."""
        if view.slots is not self._slots:
            self._slots = view.slots
            self._ending = [slot for slot in view.slots.values() if slot.until < inf]
        return self._ending

    def rows_in(self, rule: Elastic, view: View) -> _Rows | None:
        """The rows in this view; None where no trial may change."""
        before, self._view = self._view, view
        if self._rows is None or before is None or not self._follow(rule, view, before):
            lanes = dict(_eligible(view, rule.admit))
            room = _room(view, lanes)
            self._rows = _Rows.of(rule, view, lanes, room) if lanes else None
        if self._rows is not None and not self._rows.trials:
            self._rows = None
        return self._rows

    def _follow(self, rule: Elastic, view: View, before: View) -> bool:
        """Take in what changed since the view before; False: too much, rows are made anew."""
        rows = self._rows
        assert rows is not None
        changed = view.news.since(before.news)
        stopped, started = view.plan.since(before.plan)
        gangs = (*stopped, *started)
        if rule.admit is not None or changed is None or not _is_alike(view, before):
            return False
        if any(_free_to_change(gang) is None for gang in gangs):
            return False
        new: list[TrialId] = []
        gone: list[TrialId] = []
        for name in changed:
            trial = view.trials.get(name)
            if trial is rows.trials.get(name):
                continue
            if trial is None:
                gone.append(name)
            elif name in rows.trials:
                return False  # it was submitted again
            else:
                new.append(name)

        def slots_of(name: TrialId) -> LaneSlots:
            return _free_to_change(view.running.get(name)) or ()

        for name in gone:
            rows.drop(name)
        for name in {lane.trial for gang in gangs for lane in gang.lanes}:
            if name in rows.trials:
                rows.hold(rule, view, name, slots_of(name))
        if new:
            lanes = {name: slots_of(name) for name in new}
            rows.append(_Rows.of(rule, view, lanes, rows.room))
        return True


@dataclass(frozen=True, slots=True)
class Elastic:
    """As many slots for each trial as gain most within `horizon` seconds, less what changing costs.

    A slot of which the end is known counts only for the time that it has left.

    Args:
        horizon: seconds. "learned": the mean time between departures of slots, as far as they were
            seen.
        up: seconds that a trial's slots stand still when it grows. None: as the profile says.
        down: the same when it shrinks.
        admit: at most so many trials at a time, first come first served. None: any number.
        objective: "throughput" in samples/s; "efficiency", that over the trial's rate on one slot;
            "priority", the latter times the trial's priority; or a function of a trial and its
            rates at 1, 2, … slots, which gives what it is worth per second at each.
        placement: "index": the free slots in the order in which they joined. "spatial": those
            likely to leave together for one trial; or a `Spatial`.
        hysteresis: a trial gives up slots only if that gains more than this part of what it makes
            within the horizon. So measured speeds may be off by half of it without equal trials
            exchanging slots.
        placed: data stays at nodes, so that each slot of a trial reads a shard that lies there, and
            counts change between units; see `joint_plan`.

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
    placed: bool = False
    cache: RowCache = field(default_factory=RowCache, init=False, repr=False, compare=False)

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
                f"elastic's placement is index, spatial or a Spatial; got {self.placement!r}"
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
        # What the next decision needs to know of the slots that are here.
        remembered: Memory = {}
        spatial = self._spatial
        if spatial is not None and spatial.by_cohort:
            remembered["cohorts"] = _cohorts(view, memory.get("cohorts", {}))
        if isinstance(self.horizon, str):
            remembered["departures"] = departures_seen(view, memory.get("departures", {}))
        seconds = self._seconds(view, remembered)
        if self.placed:
            problem = pose_for(self, view, seconds, joint_lanes(view, self.admit))
            if problem is None:
                return view.plan, remembered
            return joint_plan(view, problem, _counts(problem)), remembered
        problem = pose(self, view, seconds)
        # By rack, those that stay may change places with those that grow.
        claims = _claims(view, problem, _counts, everybody=self._spatial is not None)
        if problem is None or not claims:
            return view.plan, remembered
        cohorts = remembered.get("cohorts", {})
        moved = _moved(view, claims, self._spatial, cohorts)
        if problem.ends.parts:
            moved = paying(claims, moved, view.slots, problem.makes)
        return plan_of(view, moved), remembered

    def _seconds(self, view: View, remembered: Memory) -> Seconds:
        """The horizon at this moment."""
        if isinstance(self.horizon, str):
            return learned_horizon(view, remembered["departures"])
        return self.horizon


def _counts(problem: Problem) -> Counts:
    """The slots that each trial should have: the optimum of the program (16)."""
    gain = gains(problem.curve, problem.held, problem.up, problem.down, problem.horizon)
    if problem.ends.parts:
        parts = [problem.parts(row) for row in range(len(problem.trials))]
        less = problem.horizon * shortened(problem.curve, parts)
        gain = np.where(problem.curve > FORBIDDEN, gain - less, gain)
    return steady(gain, best_counts(gain, problem.free), problem.held)


def _check_horizon(horizon: Seconds | Literal["learned"]) -> None:
    """Raise ValueError unless it is a time or to be learned."""
    if horizon == LEARNED:
        return
    if isinstance(horizon, str) or not (isfinite(horizon) and horizon > 0):
        raise ValueError(f'elastic\'s horizon must be > 0 seconds, or "learned"; got {horizon!r}')


def _check_cost(name: str, cost: Seconds | None) -> None:
    """Raise ValueError unless the cost of growing or shrinking can be one."""
    if cost is not None and not (isfinite(cost) and cost >= 0):
        raise ValueError(
            f"elastic's {name} must be >= 0 seconds, or None for the profile's; got {cost!r}"
        )


def _moved(view: View, claims: Sequence[Claim], spatial: Spatial | None, cohorts: Cohorts) -> Moved:
    """The slots of each trial that gets more or fewer."""
    free = longest_first(view, free_slots(view))
    if spatial is None:
        return by_index(claims, free, view.slots)
    return by_rack(claims, free, view.slots, spatial, cohorts)


def pose(rule: Elastic, view: View, horizon: Seconds) -> Problem | None:
    """The allocation to be decided now, for so long; None where no trial can run."""
    return _pose(rule, view, horizon, rule.cache.rows_in(rule, view))


def pose_for(rule: Elastic, view: View, horizon: Seconds, lanes: Lanes) -> Problem | None:
    """The allocation to be decided for these trials, which hold these slots; see `pose`."""
    rows = _Rows.of(rule, view, lanes, _room(view, lanes)) if lanes else None
    return _pose(rule, view, horizon, rows)


def _pose(rule: Elastic, view: View, horizon: Seconds, rows: _Rows | None) -> Problem | None:
    """The allocation to be decided for the trials in these rows; see `pose`."""
    if rows is None or int(rows.most.max()) < 1:
        return None
    columns = max(int(rows.most.max()), int(rows.held.max())) + 1
    slots = tuple(rows.lanes)
    names = tuple(rows.trials)
    ends = known_ends(view, rule.cache.ending(view), names, horizon)
    # A cost of 0 was mostly never measured, and speeds that were are a little off. Believed, both
    # would let equal trials change places for nothing. For one trial to gain by another's slots,
    # the other must shrink: `hysteresis` is charged there, and slots that nobody has stay cheap to
    # take. What a trial that holds no slot is charged does not matter: its present rate is 0.
    least = LEAST * horizon
    enough = max(rule.hysteresis, LEAST) * horizon
    return Problem(
        names,
        slots,
        rows.curve[:, :columns],
        rows.held,
        np.maximum(rows.up, least),
        np.maximum(rows.down, enough),
        horizon,
        len(view.slots) - len(view.busy) + int(rows.held.sum()),
        tuple(rows.needs),
        ends,
        pool_of(view, slots) if ends.parts else (),
    )


# -- the rows of trials, updated by what changed


@dataclass(slots=True)
class _Rows:
    """The figures by which a decision goes: a row for each trial that may change, in their order.

    `room`: the slots to be shared out. `most`: slots that the trial can have. `up`, `down`: seconds
    that it stands still when it grows or shrinks.
    """

    room: int
    trials: dict[TrialId, Trial]
    lanes: list[LaneSlots]
    needs: list[GiB]
    most: Counts
    held: Counts
    curve: Table
    up: Table
    down: Table

    @classmethod
    def of(cls, rule: Elastic, view: View, lanes: Lanes, room: int) -> _Rows:
        """The rows of these trials."""
        needs = _needs(view, lanes)
        # How many of `room` slots each trial can have, on slots with memory enough; none has more
        # than pay, as far as was measured.
        least = _least_memory(view)
        widths = {}
        for name, need in needs.items():
            fewest, most = view.trials[name].widths
            fitting = room
            if need > least:
                fitting = sum(slot.memory >= need for slot in view.slots.values())
            most = min(most, room, fitting)
            widths[name] = (fewest, widest(view.profile, name, fewest, most))
        held = np.array([len(lane) for lane in lanes.values()])
        return cls(
            room,
            {name: view.trials[name] for name in lanes},
            list(lanes.values()),
            list(needs.values()),
            np.array([most for _, most in widths.values()]),
            held,
            _curves(rule, view, widths, int(held.max())),
            np.array([_growing(rule, view, *lane) for lane in lanes.items()], float),
            np.array([_shrinking(rule, view, *lane) for lane in lanes.items()], float),
        )

    def drop(self, name: TrialId) -> None:
        """Take out the trial's row."""
        row = list(self.trials).index(name)
        del self.trials[name], self.lanes[row], self.needs[row]
        for table in ("most", "held", "curve", "up", "down"):
            setattr(self, table, np.delete(getattr(self, table), row, axis=0))

    def hold(self, rule: Elastic, view: View, name: TrialId, slots: LaneSlots) -> None:
        """Note that the trial holds these slots now."""
        row = list(self.trials).index(name)
        self.lanes[row] = slots
        self.held[row] = len(slots)
        self.up[row] = _growing(rule, view, name, slots)
        self.down[row] = _shrinking(rule, view, name, slots)

    def append(self, more: _Rows) -> None:
        """Add rows of other trials at the end."""
        self.trials |= more.trials
        self.lanes += more.lanes
        self.needs += more.needs
        wide = max(self.curve.shape[1], more.curve.shape[1])
        self.curve = np.vstack([_padded(self.curve, wide), _padded(more.curve, wide)])
        for table in ("most", "held", "up", "down"):
            both = getattr(self, table), getattr(more, table)
            setattr(self, table, np.concatenate(both))


def _padded(curve: Table, columns: int) -> Table:
    """The table with so many columns: nobody can have as many slots as the new ones stand for."""
    more = np.full((len(curve), columns - curve.shape[1]), FORBIDDEN)
    return np.hstack([curve, more])


def _is_alike(view: View, before: View) -> bool:
    """Whether nothing changed that counts for all trials, in views of a whole state."""
    queues = view.queues
    whole = queues.trials is view.trials and queues.running is view.running
    same = view.profile is before.profile and view.slots is before.slots
    return whole and same and before.queues.trials is before.trials


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


def _curves(rule: Elastic, view: View, widths: Mapping[TrialId, Widths], held: int) -> Table:
    """O_j(n) of the paper: a row for each trial, a column for each count from 0 on.

    `held`: the most slots that any trial has now; there is a column for it.
    """
    most_slots = max(held, *(most for _, most in widths.values()))
    curve = np.full((len(widths), most_slots + 1), FORBIDDEN)
    curve[:, 0] = 0.0
    for row, (name, (fewest, most)) in zip(curve, widths.items(), strict=True):
        if fewest <= most:
            rates = view.profile.curve(name, most)
            values = worth(rule.objective, view.trials[name], rates)
            row[fewest : most + 1] = values[fewest - 1 :]
    return curve


def wanted(
    rule: Elastic, view: View, horizon: Seconds, solve: Callable[[Problem], Counts]
) -> list[Claim]:
    """How many slots each trial should have, where that is a change for any; else nothing."""
    return _claims(view, pose(rule, view, horizon), solve)


def _claims(
    view: View, problem: Problem | None, solve: Callable[[Problem], Counts], everybody: bool = False
) -> list[Claim]:
    """The solution as claims of the trials that change, or of `everybody`; else nothing."""
    if problem is None:
        return []
    counts = solve(problem)
    changed = (counts != problem.held).nonzero()[0].tolist()
    if not changed:
        return []
    kinds = [0] * len(counts)
    if everybody:
        kinds, changed = _kinds(problem.curve), range(len(counts))
    claims = []
    for j in changed:
        trial = problem.trials[j]
        fewest = view.trials[trial].widths[0]
        count = int(counts[j])
        need = problem.needs[j]
        claims.append(Claim(trial, problem.lanes[j], count, need, fewest, kinds[j]))
    return claims


def _kinds(curve: Table) -> list[int]:
    """A number for each trial; trials with equal curves have the same."""
    numbers: dict[bytes, int] = {}
    return [numbers.setdefault(row.tobytes(), len(numbers)) for row in curve]


def plan_of(view: View, moved: Moved) -> Plan:
    """The plan of now, but with these trials on these slots (none: stopped)."""
    before = [view.running[trial] for trial in moved if trial in view.running]
    after = [_gang(view, trial, slots) for trial, slots in moved.items() if slots]
    return view.plan.but(stop=before, start=after)


def _eligible(view: View, admit: int | None) -> Iterator[tuple[TrialId, LaneSlots]]:
    """The trials admitted that are free to change, with the slots they hold."""
    for name in islice(view.trials, admit):
        slots = _free_to_change(view.running.get(name))
        if slots is not None:
            yield name, slots


def _free_to_change(gang: Gang | None) -> LaneSlots | None:
    """The slots of the trial that runs in this gang; None if it may not change.

    Without a gang the trial waits, and holds no slot.
    """
    if gang is None:
        return ()
    if gang.quota is None and len(gang.lanes) == 1:
        return gang.lanes[0].slots
    return None


def _switch(view: View, name: TrialId, slots: LaneSlots) -> Seconds:
    """Seconds that a trial's change to these slots costs; 0 for one that does not run."""
    gang = view.running.get(name)
    if gang is None:
        return 0.0
    return view.profile.switch(gang, _gang(view, name, slots))


def _growing(rule: Elastic, view: View, name: TrialId, slots: LaneSlots) -> Seconds:
    """Seconds that one slot more costs the trial: the policy's, else the profile's."""
    if rule.up is not None:
        return rule.up
    return _switch(view, name, (*slots, SPARE))


def _gang(view: View, name: TrialId, slots: LaneSlots) -> Gang:
    """The trial alone on these slots, from now on."""
    return Gang((Lane(name, slots),), since=view.turn)


def _shrinking(rule: Elastic, view: View, name: TrialId, slots: LaneSlots) -> Seconds:
    """Seconds that one slot fewer costs the trial: the policy's, else the profile's."""
    if rule.down is not None:
        return rule.down
    if len(slots) < 2:
        return 0.0
    return _switch(view, name, slots[:-1])


def _cohorts(view: View, memory: Mapping[str, int]) -> dict[str, int]:
    """The turn at which each slot was first seen since it joined."""
    return {name: memory.get(name, view.turn) for name in view.slots}


# -- where data stays at nodes
#
# Elastic trials over data that stays at nodes: how many slots each is to have, unit by unit.
# BFTrainer (Liu et al., 2021) has every node read all of the data. Where each node holds some
# shards only, a trial on n slots reads n shards at once, each slot one of its own (a joint gang),
# and hops on. Such a unit is not cut short. So the program (16) is solved for all trials as ever,
# and a trial gets its count when its next unit begins.


def joint_lanes(view: View, admit: int | None) -> Mapping[TrialId, tuple[SlotId, ...]]:
    """The slots that each trial admitted has, in the unit under way."""
    lanes = {}
    for name in islice(view.trials, admit):
        gang = view.running.get(name)
        lanes[name] = () if gang is None else tuple(sorted(gang.slots))
    return lanes


def joint_plan(view: View, problem: Problem, counts: Counts) -> Plan:
    """The plan of now, and next units of trials that wait, on slots at which nothing runs.

    What is left by trials that are to have slots, as they lack no shard that lies there, goes to
    whoever lacks one: no slot is idle that a trial could use. Where nobody is to have more than one
    slot, trials hop: which of them visits which shard is all that counts.
    """
    if counts.max() <= 1 and len(counts) == len(view.trials):
        hopped, _ = HOP.decide(view, HOP.start())
        return hopped
    free = {slot.id: slot for slot in idle_slots(view)}
    waits = [
        (int(count), trial)
        for trial, count in zip(problem.trials, counts, strict=True)
        if trial not in view.running
    ]
    gangs: list[Gang] = []
    begun: set[TrialId] = set()
    for least in (0, 1):
        for count, trial in waits:
            if trial in begun:
                continue
            gang = _unit(view, trial, max(count, least), list(free.values()))
            if gang is None:
                continue
            begun.add(trial)
            gangs.append(gang)
            for slot in gang.slots:
                del free[slot]
    return with_more(view, gangs)


def _unit(view: View, trial: TrialId, count: int, slots: Sequence[Slot]) -> Gang | None:
    """The trial's next unit on so many of the slots; None if it cannot run on those there are."""
    fewest, _ = view.trials[trial].widths
    reads = readers(view, trial, slots, view.pending[trial])[:count]
    return joint_unit(view, trial, reads) if len(reads) >= fewest else None


# -- what an allocation is decided from


def free_slots(view: View) -> list[SlotId]:
    """The slots at which nothing runs."""
    return [slot.id for slot in idle_slots(view)]


@dataclass(frozen=True, slots=True)
class Problem:
    """An allocation to be decided: a row of each table for each trial."""

    trials: tuple[TrialId, ...]
    lanes: tuple[LaneSlots, ...]  # what they hold
    curve: Table
    held: Counts
    up: Table
    down: Table
    horizon: Seconds
    free: int  # slots to be shared out, those held included
    needs: tuple[float, ...]  # memory, GiB
    ends: KnownEnds
    pool: LaneSlots  # the free slots, and then those held; of either the longest lasting first

    def parts(self, row: int) -> Table:
        """The part of the horizon for which the slots of each count last; see `lasting`."""
        lane = self.lanes[row]
        part = partial(self.ends.part, self.trials[row])
        others = [part(slot) for slot in self.pool if slot not in lane]
        return lasting([part(slot) for slot in lane], others, self.curve.shape[1])

    def makes(self, trial: TrialId, slots: LaneSlots) -> float:
        """The gain of the trial on these slots within the horizon; see `Makes`."""
        row = self.trials.index(trial)
        steps = np.diff(np.maximum(self.curve[row], 0.0))
        parts = sorted((self.ends.part(trial, slot) for slot in slots), reverse=True)
        gain = self.horizon * float(steps[: len(slots)] @ np.array(parts))
        width = len(self.lanes[row])
        if len(slots) > width:
            gain -= float(self.up[row] * max(self.curve[row, width], 0.0))
        return gain


def pool_of(view: View, lanes: Iterable[LaneSlots]) -> LaneSlots:
    """The free slots, and then those of these lanes; of either the longest lasting first."""
    busy = [slot for lane in lanes for slot in lane]
    return (*longest_first(view, free_slots(view)), *longest_first(view, busy))


def longest_first(view: View, slots: Iterable[SlotId]) -> list[SlotId]:
    """The slots, those that leave last first, else as they come."""
    return sorted(slots, key=lambda slot: -view.slots[slot].until)
