"""Gangs on Ray's driver without Ray: plans, losses and answers in any order."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("ray", reason="the ray backend needs Ray")
from fake_fleet import FakeFleet
from ray_kit import SEED, Given

from shoal.backend.positions import Positions
from shoal.backend.ray.backend import Ray
from shoal.backend.ray.setup import RaySetup
from shoal.core.check import in_order
from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import Advanced, Fell, Left
from shoal.core.fold import fold
from shoal.core.plan import Gang, Lane, Plan
from shoal.core.state import State, View
from shoal.core.trial import Trial, TrialId
from shoal.core.visits import ValidateEvery
from shoal.engine.journal import Journal
from shoal.engine.run import reopened, run
from shoal.options import Options
from shoal.profile.measure import believe


@dataclass
class AnyPlans:
    """A policy that changes its mind: `kinds` of gangs, begun, stopped, widened, in any order.

    `calm`: the part of the decisions that leave everything as it is.
    """

    rng: Random
    kinds: Sequence[str]
    calm: float = 0.7

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        gangs = [self._kept(gang, view) for gang in sorted(view.plan.gangs, key=in_order)]
        plan = {gang for gang in gangs if gang is not None}
        free = sorted(set(view.slots) - {slot for gang in plan for slot in gang.slots})
        waiting = sorted(set(view.trials) - {t for gang in plan for t in gang.trials})
        self.rng.shuffle(free)
        self.rng.shuffle(waiting)
        while free and waiting:
            gang = self._new(free, waiting, view)
            plan.add(gang)
            free = [slot for slot in free if slot not in gang.slots]
            waiting = [trial for trial in waiting if trial not in gang.trials]
        return Plan(frozenset(plan)), memory

    def _kept(self, gang: Gang, view: View) -> Gang | None:
        """The gang as it goes on; None: it is stopped."""
        if self.rng.random() < self.calm or (gang.quota is not None and not gang.measures):
            return gang
        if len(gang.lanes) == 1 and not gang.shards and "wide" in self.kinds:
            (lane,) = gang.lanes
            free = sorted(set(view.slots) - view.busy.keys())
            slots = [*lane.slots, *free[: self.rng.randint(0, 2)]]
            self.rng.shuffle(slots)
            slots = slots[: self.rng.randint(1, len(slots))]
            if tuple(slots) != lane.slots and self._still_free(slots, gang, view):
                return Gang((Lane(lane.trial, tuple(slots)),), since=view.turn)
            return gang
        if len(gang.lanes) > 1 and self.rng.random() < 0.5:
            lanes = list(gang.lanes)
            lanes.pop(self.rng.randrange(len(lanes)))
            return replace(gang, lanes=tuple(lanes), since=view.turn)
        return None

    def _still_free(self, slots: Sequence[SlotId], gang: Gang, view: View) -> bool:
        """No other gang of this decision was given one of them."""
        taken = self.__dict__.setdefault("_taken", (view.turn, set()))
        if taken[0] != view.turn:
            taken = self._taken = (view.turn, set())
        fresh = set(slots) - gang.slots
        if fresh & taken[1]:
            return False
        taken[1].update(fresh)
        return True

    def _new(self, free: Sequence[SlotId], waiting: Sequence[TrialId], view: View) -> Gang:
        kind = self.rng.choice(self.kinds)
        first = Lane(waiting[0], (free[0],))
        some = self.rng.randint(1, 3)
        if kind == "pack":
            lanes = [Lane(trial, (free[0],)) for trial in waiting[:some]]
            return Gang(tuple(lanes), since=view.turn)
        if kind == "together":
            lanes = [Lane(t, (s,)) for t, s in zip(waiting[:some], free[:some], strict=False)]
            return Gang(tuple(lanes), since=view.turn)
        if kind == "wide":
            return Gang((replace(first, slots=tuple(free[:some])),), since=view.turn)
        shards = view.slots[free[0]].shards & view.pending[first.trial]
        if kind == "hop" and shards:
            return Gang((first,), (min(shards),), quota=None, since=view.turn)
        if kind == "quota":
            return Gang((first,), quota=15.0, since=view.turn)
        return Gang((first,), since=view.turn)


class FakeStudy:
    """A study on a fake fleet: run it, and see that all trials learned what they should."""

    def __init__(self, seed: int, kinds: Sequence[str], trials: int = 4, **rooms: int) -> None:
        self.rng = Random(seed)
        self.sizes = {ShardId(f"s{i}"): 10 + i for i in range(self.rng.randint(1, 3))}
        self.kinds = kinds
        self.epochs = self.rng.randint(1, 3)
        self.fleet = FakeFleet(self.rng, rooms or {"a": 2, "b": 2}, self.sizes)
        most = 3 if "wide" in kinds else 1
        samples = float(self.epochs * sum(self.sizes.values()))
        self.trials = [
            Trial(TrialId(f"t{i}"), samples, {}, widths=(1, most)) for i in range(trials)
        ]
        self.journal = Journal()
        self.state = fold(State(), reopened(State(), self.sizes, {}))

    def run(self, policy: Any = None, **options: Any) -> State:
        positions = Positions(SEED, self.sizes, ValidateEvery(), self.state)
        setup = RaySetup("checkpoints", self.state.run, Options("ray", address="x", **options))
        data: Any = SimpleNamespace(catalogue=None, shards=tuple(self.sizes))
        recipe: Any = None
        with self.fleet.patched():
            self.backend = Ray(recipe, data, positions, setup, connect=self.fleet.connect)
            self.state = run(
                Given(self.trials),
                policy or AnyPlans(self.rng, self.kinds),
                self.backend,
                believe,
                self.journal,
                self.state,
            )
            self.backend.close()
        return self.state

    def remove_any(self) -> None:
        """Some slots are asked to leave."""
        slots = sorted(self.backend.pids())
        if len(slots) > 1:
            self.backend.remove_slots(slots[: self.rng.randint(1, len(slots) - 1)])

    def resize(self) -> None:
        """There are to be more slots, or fewer."""
        self.backend.resize(self.rng.randint(1, 5))

    def swap_nodes(self) -> None:
        """A node goes, and another one comes."""
        self.fleet.lose_node(self.rng.choice(sorted(self.fleet.rooms)))
        self.fleet.rooms[f"n{self.rng.random()}"] = self.rng.randint(1, 3)

    def lines(self, kind: type) -> list[Any]:
        return [line for line in self.journal.lines if isinstance(line.entry, kind)]

    def count(self, kind: type) -> int:
        return len(self.lines(kind))

    def trained_again(self) -> list[TrialId]:
        """The trials that fell back behind visits that they had made."""
        made: Counter[TrialId] = Counter()
        fell = []
        for line in self.journal.lines:
            if isinstance(line.entry, Advanced):
                made.update({trial: len(own) for trial, own in line.entry.visits.items()})
            elif isinstance(line.entry, Fell) and line.entry.visits < made[line.entry.trial]:
                made[line.entry.trial] = line.entry.visits
                fell.append(line.entry.trial)
        return fell

    def check(self) -> None:
        """Every trial made each visit once, and its durable state says so."""
        for trial in self.trials:
            visits = self.state.visits[trial.id]
            if self.state.ended[trial.id] == "finished":
                assert Counter((visit.epoch, visit.shard) for visit in visits) == Counter(
                    (epoch, shard) for epoch in range(self.epochs) for shard in self.sizes
                )
                kept = self.state.kept[trial.id]
                assert self.fleet.checkpoints[kept.name] == visits


KINDS = {
    "one": ("one",),
    "packs": ("one", "pack"),
    "hops": ("hop", "quota", "one"),
    "wide": ("wide", "one"),
    "all": ("one", "pack", "hop", "quota", "wide", "together"),
}
seeds = st.integers(0, 2**32)


def many(function: Any) -> Any:
    """Happenings in many orders."""
    return settings(max_examples=25, deadline=None, derandomize=True)(given(seed=seeds)(function))


def in_any_order(function: Any) -> Any:
    """Each kind of gangs, with everything that happens in many orders."""
    ordered = settings(max_examples=25, deadline=None, derandomize=True)(
        given(seed=seeds)(function)
    )
    return pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)(ordered)


@in_any_order
def test_every_trial_makes_each_visit_once(kinds: Sequence[str], seed: int) -> None:
    study = FakeStudy(seed, kinds)
    study.run()
    study.check()
    assert set(study.state.ended.values()) == {"finished"}


@in_any_order
@example(seed=2000024)  # a unit that was given up is made all the same, in a lane without a slot
def test_also_where_processes_die(kinds: Sequence[str], seed: int) -> None:
    study = FakeStudy(seed, kinds)
    study.fleet.faults = [study.fleet.kill_any] * 4
    study.run()
    study.check()


@in_any_order
@example(seed=2000038)  # a slot is to come back to a unit that nobody makes any more
def test_also_where_slots_nodes_and_plans_come_and_go(kinds: Sequence[str], seed: int) -> None:
    study = FakeStudy(seed, kinds)
    fleet = study.fleet
    fleet.faults = [study.swap_nodes, study.resize, fleet.stop_any, fleet.kill_any]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no trial can run on the")
        study.run()
    study.check()


@in_any_order
@example(seed=2000115)  # a lane is to go on at a slot that is about to leave its unit
def test_slots_that_are_asked_to_leave_do_so_in_good_order(kinds: Sequence[str], seed: int) -> None:
    study = FakeStudy(seed, kinds)
    study.fleet.faults = [study.remove_any] * 2
    study.run()
    study.check()
    assert not any(line.entry.died for line in study.lines(Left))
    assert study.trained_again() == []


@many
def test_slots_come_back_when_all_were_told_to_leave(seed: int) -> None:
    study = FakeStudy(seed, ["one"])

    def renew() -> None:
        study.backend.remove_slots(study.backend.pids())
        study.backend.resize(study.rng.randint(1, 4))

    study.fleet.faults = [renew]
    study.run()
    study.check()


@many
def test_a_trial_that_fails_costs_the_others_nothing(seed: int) -> None:
    study = FakeStudy(seed, KINDS["packs"])
    study.trials[0] = replace(study.trials[0], config={"fails": 1})
    study.run()
    study.check()
    most = study.state.visits[study.trials[1].id]
    fails = len(most) > 1  # else it has made its only visit
    assert study.state.ended["t0"] == ("failed: thirteen" if fails else "finished")
    assert [study.state.ended[f"t{i}"] for i in (1, 2, 3)] == ["finished"] * 3


def test_a_slot_that_stands_still_is_given_up_and_comes_back() -> None:
    study = FakeStudy(1, ["one"])
    study.fleet.faults = [study.fleet.stop_any]
    study.run()
    study.check()
    (left,) = study.lines(Left)
    assert "it hung: no answer for" in left.entry.why


@many
def test_code_that_never_returns_costs_its_slot_and_nobody_else(seed: int) -> None:
    """The process answers, but its work makes no progress."""
    study = FakeStudy(seed, ["one", "pack"])
    study.fleet.faults = [study.fleet.stick_any]
    study.run(hang_after=1.0)
    study.check()
    stuck = [actor for actor in study.fleet.actors if actor.stuck]
    assert [left.entry.died for left in study.lines(Left)] == [True] * len(stuck)
    assert all("it hung: no progress for" in left.entry.why for left in study.lines(Left))
    assert set(study.state.ended.values()) == {"finished"}


@dataclass
class Together:
    """All slots make the units of the first trial that is there together."""

    def start(self) -> None:
        return None

    def decide(self, view: View, memory: None) -> tuple[Plan, None]:
        if view.plan.gangs or not view.trials or len(view.slots) < 2:
            return view.plan, memory
        lane = Lane(min(view.trials), tuple(sorted(view.slots)))
        return Plan(frozenset([Gang((lane,), since=view.turn)])), memory


@many
def test_who_reports_dies_just_as_the_others_have_made_their_pass(seed: int) -> None:
    """The others have left the unit by then, and one of them has to come back to report it."""
    study = FakeStudy(seed, ["wide"], trials=1, a=3)
    fleet = study.fleet
    fleet.after = 1.0

    def die() -> None:
        wides = [(each.wide.seat.rank, each) for each in fleet.actors if each.wide is not None]
        if wides and all(each.wide.at == "made" for _, each in wides) and min(wides)[0] == 0:
            dies, *others = [each for _, each in sorted(wides, key=lambda pair: pair[0])]
            dies.die()
            for each in others:
                each.report_wide()
        else:
            fleet.advance()
            fleet.faults.append(die)

    fleet.faults = [die]
    study.run(Together())
    study.check()
    assert study.count(Left) == 1
