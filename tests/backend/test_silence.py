"""When a slot counts as hung: the decider alone, without processes."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.backend.ray.silence import (
    TIMES_A_PULSE,
    Signs,
    SilenceLimits,
    Silences,
    WorkUnderWay,
    why_hung,
)

seconds = st.floats(0.01, 1e4)
works = st.builds(WorkUnderWay, st.none() | st.floats(0.0, 1e3), st.integers(0, 12)) | st.none()


@given(st.lists(st.floats(0.01, 60.0), min_size=1), works, st.floats(0.1, 100.0))
def test_who_answers_and_goes_on_is_never_given_up(pauses, work, least) -> None:
    """However long each answer takes, if none takes longer than the decider allows."""
    limits = SilenceLimits(least)
    signs = Signs.at(0.0)
    now = 0.0
    for number, pause in enumerate(pauses):
        hangs = 0 if work is None else work.hangs
        now += min(pause, 0.99 * limits.without_answer(signs.pause, hangs))
        if work is None or now - signs.went_on <= limits.without_progress(work.usual, hangs):
            assert why_hung(signs, now, limits, work) is None
        signs.reach(number, now)


@given(works, seconds, seconds)
def test_silence_ends_in_being_given_up_once_and_for_all(work, least, pause) -> None:
    """There is one moment from which on a silent process counts as hung; hangs delay it."""
    limits = SilenceLimits(least)
    signs = Signs(heard=0.0, went_on=0.0, pause=pause)
    hangs = 0 if work is None else work.hangs
    allowed = limits.without_answer(pause, hangs)
    assert allowed == max(least, TIMES_A_PULSE * pause) * 2 ** min(hangs, 10)
    if work is not None:
        still = limits.without_progress(work.usual, hangs)
        allowed = min(allowed, still)
    assert why_hung(signs, allowed * 0.999, limits, work) is None
    assert "it hung: no " in str(why_hung(signs, allowed * 1.001, limits, work))


def test_what_is_allowed() -> None:
    limits = SilenceLimits(30.0)
    signs = Signs.at(0.0)
    busy = WorkUnderWay(usual=2.0, hangs=0)
    assert why_hung(signs, 29.0, limits, busy) is None
    assert why_hung(signs, 31.0, limits, None) == (
        "it hung: no answer for 31 s, and 30 s are allowed"
    )
    for second in range(0, 2000, 5):  # it answers, and its work stands still
        signs.reach("the same", float(second))
    assert why_hung(signs, 1996.0, limits, busy) == (
        "it hung: no progress for 1996 s, and 300 s are allowed"
    )
    assert why_hung(signs, 1796.0, limits, WorkUnderWay(None, 0)) is None  # new work
    assert why_hung(signs, 1996.0, limits, WorkUnderWay(250.0, 0)) is None
    assert why_hung(signs, 1996.0, SilenceLimits(30.0, work=False), busy) is None
    assert why_hung(signs, 1e9, SilenceLimits(inf), busy) is None


def test_the_drivers_own_absence_is_no_silence() -> None:
    signs = Signs.at(0.0)
    signs.forgive(100.0)
    assert why_hung(signs, 110.0, SilenceLimits(30.0), None) is None


def test_usual_silences_are_those_of_the_slot_else_of_any() -> None:
    silences = Silences()
    assert silences.usual("slot0", "mlp") is None
    silences.learn("slot1", "mlp", 7.0)
    silences.learn("slot1", "cnn", 50.0)
    assert silences.usual("slot0", "mlp") == 7.0
    silences.learn("slot0", "mlp", 2.0)
    assert silences.usual("slot0", "mlp") == 2.0
    for _ in range(8):  # what was long ago counts no more
        silences.learn("slot1", "mlp", 1.0)
    assert silences.usual("slot1", "mlp") == 1.0


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.booleans()), min_size=1))
def test_a_rounds_silence_is_the_longest_time_between_two_steps_of_it(steps) -> None:
    signs = Signs.at(0.0)
    signs.begin(0.0)
    now, last, longest = 0.0, 0.0, 0.0
    for number, (pause, moves) in enumerate(steps):
        now += pause
        signs.reach(number if moves else signs.reached, now)
        if moves:
            longest, last = max(longest, now - last), now
    assert signs.finish(now + 3.0) == pytest.approx(max(longest, now + 3.0 - last))
