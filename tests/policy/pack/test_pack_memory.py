"""A pack's memory is what its lanes take at once: where they take turns, more of them fit."""

from dataclasses import replace
from typing import Any

import pytest
from simkit import SHARDS, started, trial

from shoal.core.check import PlanError, check
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Measured
from shoal.core.fold import fold
from shoal.core.plan import Plan
from shoal.core.state import View, view
from shoal.core.trial import TrialId
from shoal.policy.pack.pack import Pack
from shoal.profile.measure import believe

NAMES = "abcdef"
ROOM = 10.0
STATE, STEP = 1.0, 3.0  # GiB; together they are a trial's memory


def seen(forms: str, **figures: float) -> View:
    """Six trials, each with the form of its letter, which gain by waiting for data once."""
    slot = Slot(SlotId("w0"), memory=ROOM, shards=frozenset(SHARDS))
    state = started(
        *(trial(name, net=form) for name, form in zip(NAMES, forms, strict=True)), at=[slot]
    )
    known = {"rate": 100.0, "step": 0.1, "data": 0.01, "memory": STATE + STEP, **figures}
    told = [
        Measured(TrialId(name), 12 * form + name, known)
        for name, form in zip(NAMES, forms, strict=True)
    ]
    state = fold(state, told)
    return view(state, 0.0, believe(state))


def packed(forms: str, fuse: bool = True, **figures: float) -> int:
    """How many the slot takes; the plan obeys the rules."""
    policy = Pack("random", fuse=fuse)
    here = seen(forms, **figures)
    plan, _ = policy.decide(here, policy.start())
    check(plan, here)
    (gang,) = plan.gangs
    return len(gang.lanes)


SUM = int(ROOM // (STATE + STEP))
TURNS = int((ROOM - STEP) // STATE)
SLOWER = {"fused:2": 0.25, "fused:6": 0.7}
QUICKER = {"fused:2": 0.1, "fused:6": 0.2}


@pytest.mark.parametrize("grouping", ["contiguous", "nearest", "random", "batch_size"])
def test_unlike_trials_take_turns(grouping: str) -> None:
    policy = Pack(grouping)
    here = seen("uvwxyz", transient=STEP)
    plan, _ = policy.decide(here, policy.start())
    check(plan, here)
    assert [len(gang.lanes) for gang in plan.gangs] == [min(6, TURNS)]


@pytest.mark.parametrize(
    ("forms", "figures", "most"),
    [
        ("uvwxyz", {}, SUM),  # nothing is known of their steps
        ("uuuuuu", {"transient": STEP}, SUM),  # nor whether they will be fused
        ("uuuuuu", {"transient": STEP, **QUICKER}, SUM),
        ("uuuuuu", {"transient": STEP, **SLOWER}, TURNS),
        ("uuuuuu", {"transient": STEP, "unfusable": 1.0}, TURNS),
        ("uuuvvv", {"transient": STEP, **QUICKER}, 4),  # two and two: 4 + 2 * 3 = 10
        ("uvwxyz", {"transient": STEP, "crowded": STATE + STEP}, SUM),  # it ran out once
    ],
)
def test_as_many_as_take_their_steps_at_once(
    forms: str, figures: dict[str, Any], most: int
) -> None:
    assert packed(forms, **figures) == min(6, most)


def test_without_fusing_all_take_turns() -> None:
    assert packed("uuuuuu", fuse=False, transient=STEP) == min(6, TURNS)


def test_the_rules_know_a_pack_that_is_too_large() -> None:
    """One that is fused, of trials that might all step at once."""
    here = seen("uuuuuu", transient=STEP)
    policy = Pack("random", fuse=False)
    plan, _ = policy.decide(here, policy.start())
    (gang,) = plan.gangs
    with pytest.raises(PlanError, match="needs 24 GiB"):
        check(Plan(frozenset([replace(gang, fused=True)])), here)
