"""How long units took, and so when a slot of which the end is known begins no more of them."""

import warnings
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backend.cluster_start import UNTIL
from shoal.backend.ray.cluster import _until
from shoal.backend.ray.slot_watch import SPARE, UnitTimes, due
from shoal.core.cluster import Slot, SlotId
from shoal.core.event import Advanced, Joined
from shoal.core.trial import TrialId
from shoal.engine.journal import decode, encode

A, B, C = map(TrialId, "abc")


def made(trial: TrialId, train: float, **more: float) -> Advanced:
    return Advanced({trial: 1.0}, spent={trial: {"train": train, **more}})


def process(name: str, until: float, *trials: TrialId, shared: bool = False) -> Any:
    calls = [SimpleNamespace(units=dict.fromkeys(trials))] if trials else []
    return SimpleNamespace(
        id=SlotId(name),
        ready_slot=Slot(SlotId(name), until=until),
        leaving=False,
        ends=False,
        worked=True,
        node="n",
        calls=[] if shared else calls,
        shares=calls if shared else [],
    )


def test_a_unit_needs_as_long_as_the_longest_of_late_and_what_keeps_it() -> None:
    times = UnitTimes()
    assert times.needed([A]) == SPARE
    for seconds in (50.0, 1.0, 1.0, 8.0, 1.0):  # the first was long ago
        times.learn([made(A, seconds)])
    assert times.needed([A]) == SPARE + 10.0
    times.learn([made(B, 2.0, save=2.0)])
    assert times.needed([B]) == SPARE + 5.0 + 4.0
    assert times.needed([C]) == SPARE + 10.0 + 4.0  # as the slowest
    assert times.to_keep([B]) == SPARE + 4.0
    assert times.least() == SPARE + 5.0 + 4.0


def test_trials_of_one_round_wait_for_each_other() -> None:
    times = UnitTimes()
    times.learn([made(A, 4.0), made(B, 8.0)])
    assert times.needed([A]) == times.needed([B]) == SPARE + 15.0


def test_who_leaves() -> None:
    times = UnitTimes()
    times.learn([made(A, 80.0)])
    times.learn([made(B, 8.0)])
    slow = SPARE + 100.0
    quick = SPARE + 10.0
    assert due([process("s", inf, A)], times, 1e9) == []
    assert due([process("s", 1000.0, A)], times, 1000.0 - slow) == []
    assert due([process("s", 1000.0, A)], times, 1001.0 - slow) == ["s"]
    assert due([process("s", 1000.0)], times, 1001.0 - slow) == []
    assert due([process("s", 1000.0)], times, 1001.0 - quick) == ["s"]
    gone = process("s", 1000.0)
    gone.leaving = True
    assert due([gone], times, 1000.0) == []


def test_slots_of_a_wide_lane_leave_when_another_one_has_the_state() -> None:
    times = UnitTimes()
    times.learn([made(A, 80.0)])
    short = process("s", 1000.0, A, shared=True)
    long = process("l", 2000.0, A, shared=True)
    equal = process("e", 1000.0, A, shared=True)
    assert due([short, long], times, 990.0) == []
    assert due([short, long], times, 998.0) == ["s"]
    assert due([short, equal], times, 990.0) == ["s", "e"]


OTHERS = st.text().filter(lambda name: name != UNTIL)


@given(st.dictionaries(OTHERS, st.text()) | st.just({UNTIL: "nan"}))
def test_the_labels_of_others_are_no_ends(labels: dict[str, str]) -> None:
    assert _until(labels) == inf


def test_a_label_says_when_a_node_leaves() -> None:
    assert _until({"shoal-until": "1800000000"}) == 1.8e9


@pytest.mark.parametrize("until", [inf, 12.5])
def test_a_journal_says_when_a_slot_leaves(until: float) -> None:
    joined = Joined((Slot(SlotId("a"), until=until),))
    assert decode(encode(1.0, joined)).entry == joined


def test_slots_of_former_journals_have_no_known_end() -> None:
    line = b'{"t":0,"e":"Joined","d":{"slots":[{"id":"a","node":"n","kind":"cpu","memory":1.0}]}}'
    entry = decode(line).entry
    assert isinstance(entry, Joined) and entry.slots[0].until == inf


def test_an_end_is_a_time() -> None:
    with pytest.raises(ValueError, match="until must be a time"):
        Slot(SlotId("a"), until=float("nan"))


def test_a_slot_that_was_never_of_use_says_why() -> None:
    """Where no slot lasts for a unit, nothing would go on, and nobody would know why."""
    times = UnitTimes()
    times.learn([made(A, 80.0)])
    new = process("s", 1000.0)
    new.worked = False
    with pytest.warns(UserWarning, match="s at n leaves unused: .* in 50 s, .* takes 103 s"):
        assert due([new], times, 950.0) == ["s"]
    used = process("s", 1000.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert due([new, used], times, 950.0) == ["s", "s"]  # it was said once
