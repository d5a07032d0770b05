"""The gauge: which widths it tries, what it chooses, and that a disturbed try is made good."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.profile.pace import SAVED, WORTH_FUSING
from shoal.train.fuse.gauge import TRIES, Gauge
from shoal.train.slot.passes import split_evenly


def measured(gauge: Gauge, lanes: int, step: Callable[[int], float], mix: str = "") -> list[int]:
    """Try what it wants until it wants no more; the widths tried."""
    tried = []
    while (width := gauge.wants("a", lanes, mix)) is not None:
        tried.append(width)
        for _ in range(TRIES):
            gauge.took("a", width, step(width), mix)
        assert len(tried) < 20
    return tried


def test_it_tries_alone_then_all_then_halves_while_that_is_faster() -> None:
    gauge = Gauge()
    assert measured(gauge, 8, lambda w: 1.0 + 0.1 * w) == [1, 8, 4]
    assert gauge.choose("a", 8) == 8
    assert gauge.choose("a", 5) == 5, (
        "that of 4 speaks for it: by 4 they would be parted in 2 and 3"
    )
    assert gauge.choose("a", 6) == 4, "the one that was measured and fits"
    gauge = Gauge()
    assert measured(gauge, 8, lambda w: 0.5 * w**1.5 if w > 1 else 1.0) == [1, 8, 4, 2]
    assert gauge.choose("a", 8) == 2


def test_a_round_that_a_chunk_cut_short_is_not_begun_again() -> None:
    gauge = Gauge()
    assert gauge.wants("a", 4) == 1 and gauge.missing("a", 1) == TRIES
    for _ in range(TRIES - 1):
        gauge.took("a", 1, 1.0)
    assert gauge.wants("a", 4) == 1 and gauge.missing("a", 1) == 1
    gauge.took("a", 1, 1.0)
    assert gauge.wants("a", 4) == 4 and gauge.missing("a", 4) == TRIES


@given(st.integers(2, 100))
def test_it_wants_only_widths_in_which_lanes_are_parted(lanes: int) -> None:
    gauge = Gauge()
    for width in measured(gauge, lanes, lambda w: w**1.2):  # the narrower the better
        assert width == 1 or any(
            len(part) == width for part in split_evenly([None] * lanes, width)
        ), width  # type: ignore[list-item]


def test_what_does_not_gain_is_left_alone() -> None:
    gauge = Gauge()
    measured(gauge, 4, lambda w: w * (1 + SAVED) / 2)
    assert gauge.choose("a", 4) == 1
    gauge.never("b", "an attribute changes")
    assert (
        gauge.wants("b", 4) is None
        and gauge.choose("b", 4) == 1
        and gauge.why("b") == "an attribute changes"
    )


def test_a_disturbed_try_is_made_good() -> None:
    gauge = Gauge()
    measured(gauge, 4, lambda w: 10.0 if w == 4 else 1.0 * w)  # somebody else was busy
    assert gauge.choose("a", 4) == 1
    for _ in range(100):
        measured(gauge, 4, lambda w: 1.0 + 0.1 * w)
    assert gauge.choose("a", 4) == 4


def test_only_what_is_in_doubt_is_tried_again_soon() -> None:
    """A short search would lose by it."""

    def tries(step: Callable[[int], float], most: int = 10) -> list[int]:
        gauge = Gauge()
        return [width for _ in range(most) for width in measured(gauge, 4, step)]

    assert tries(lambda w: 2.0 * w if w > 1 else 1.0) == [1, 4, 2], "far slower"
    assert tries(lambda w: 1.0) == [1, 4, 2], "far faster"
    assert tries(lambda w: 0.9 * w if w > 1 else 1.0) == [1, 4, 2] * 3
    assert tries(lambda w: {1: 1.0, 2: 4.0, 4: 3.6}[w]) == [1, 4, 2, 1, 4, 1, 4], (
        "by 2 is far slower"
    )
    assert tries(lambda w: 1.0, 40) == [1, 4, 2] * 2
    assert tries(lambda w: {1: 1.0, 2: 0.55, 4: 1.0}[w]) == [1, 4, 2] + [4, 2] * 2, (
        "only by how many is in doubt"
    )


@given(st.floats(1.0, 2.0), st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3))
def test_one_disturbed_try_does_not_settle_by_how_many(
    disturbed: float, speeds: list[float]
) -> None:
    """Where fusing is far faster in any case, widths are compared with each other again, at
    whatever speed.
    """
    gauge, costs = Gauge(), {1: 1.0, 2: 1.0, 4: 1.2, 8: 1.7 * disturbed}
    rounds = []
    for speed in speeds:
        for _ in range(5):
            if tried := measured(gauge, 8, lambda w: speed * costs[w]):
                costs[8] = 1.7
                rounds.append(tried)
                break
    assert rounds == [[1, 8, 4] if costs[8] * disturbed < 2.4 else [1, 8, 4, 2], [8, 4], [8, 4]]
    assert gauge.choose("a", 8) == 8


def test_a_width_met_in_a_round_without_lanes_alone_is_compared_with_them() -> None:
    gauge = Gauge()
    assert [measured(gauge, 16, lambda w: 1.0 + 0.2 * w) for _ in range(2)] == [[1, 16, 8], [16, 8]]
    assert measured(gauge, 3, lambda w: 1.0 + 0.2 * w) == [1, 3, 2]
    assert gauge.ratio("a", 3) == pytest.approx(1.6 / 3 / 1.2)


def test_fewer_lanes_compare_their_own_widths_in_terms_of_those_near() -> None:
    """A crew's mix names every lane's optimizer, so one of 14 lanes has another than one of 16."""
    gauge = Gauge()
    assert measured(gauge, 16, {1: 1.0, 16: 4.0, 8: 1.6, 4: 2.0}.__getitem__, "16") == [
        1,
        16,
        8,
        4,
    ], "16 was disturbed"
    assert measured(gauge, 14, lambda w: 9 * (1 + 0.1 * w), "14") == [14, 7]
    found = gauge.ratios("a")
    assert found[14] / found[7] == pytest.approx(2.4 / 14 / (1.7 / 7)) and (
        found[16],
        found[8],
    ) == (0.25, 0.2)
    assert gauge.choose("a", 14) == 14


def test_in_doubt_are_widths_that_these_lanes_can_have() -> None:
    gauge, costs = Gauge(), {1: 1.0, 64: 6.0, 32: 3.4, 8: 2.4, 4: 1.4}
    assert measured(gauge, 64, costs.__getitem__, "64") == [1, 64, 32]
    assert measured(gauge, 8, costs.__getitem__, "8") == [1, 8, 4, 8, 4], (
        "though 64 is far faster than both"
    )


def test_a_machine_that_changes_its_speed_between_rounds_does_not_mislead() -> None:
    """Seconds of different rounds are not compared with each other."""
    gauge = Gauge()
    for speed in (1.0, 3.0, 0.5):
        for _ in range(5):
            measured(gauge, 2, lambda w, speed=speed: speed * (1.0 if w == 1 else 2.4))  # type: ignore[misc]
    assert gauge.choose("a", 2) == 1


@given(st.integers(2, 64), st.lists(st.floats(0.1, 10.0), min_size=64, max_size=64))
def test_it_chooses_none_that_was_measured_slower(lanes: int, costs: list[float]) -> None:
    gauge = Gauge()
    tried = measured(gauge, lanes, lambda w: costs[w - 1] * w)
    chosen = gauge.choose("a", lanes)
    assert chosen in tried
    assert (
        costs[chosen - 1] <= costs[0]
        and costs[chosen - 1] * SAVED <= min(costs[w - 1] for w in tried) / SAVED + 1e-9
    )


def test_what_is_known_of_one_mix_of_optimizers_holds_for_others_but_times_are_not_mixed() -> None:
    gauge = Gauge()
    for _ in range(TRIES):  # of dear optimizers, alone; then the slot goes to lanes with cheap ones
        gauge.took("a", 1, 3.0, "dear")
    assert gauge.wants("a", 4, "cheap") == 1
    while (width := gauge.wants("a", 4, "cheap")) is not None:
        gauge.took("a", width, 1.0 if width == 1 else 2.0 * width, "cheap")
    assert gauge.ratio("a", 4) == 2.0, "not 2.0 / 3"
    assert gauge.choose("a", 4) == 1
    assert gauge.wants("a", 4, "others") is None and gauge.wants("a", 5, "others") is None, (
        "enough is known"
    )
    assert gauge.wants("a", 9, "others") == 1
    assert gauge.wants("a", 4, "dear") == 4, "what was begun is brought to an end"


def test_what_has_no_room_is_fused_by_less() -> None:
    gauge = Gauge()
    for _ in range(TRIES):
        gauge.took("a", 1, 1.0)
    gauge.crowded("a", 32)
    assert gauge.wants("a", 32) == 16 and gauge.why("a") is None
    gauge.crowded("a", 16)
    assert measured(gauge, 32, lambda w: 1.0 + 0.1 * w) == [8, 4]
    assert gauge.choose("a", 32) == gauge.room("a", 32) == 8
    assert gauge.choose("a", 5) == 5 and gauge.choose("b", 2) == 1
    gauge.crowded("d", 9)
    assert [gauge.room("d", lanes) for lanes in (0, 1, 4, 9, 10)] == [0, 1, 4, 3, 4]
    gauge.crowded("c", 3)
    assert gauge.wants("c", 3) is None and gauge.choose("c", 3) == 1


def test_nothing_is_tried_where_too_few_steps_are_left_to_gain_by_it() -> None:
    gauge = Gauge()
    assert gauge.wants("kind", 4, left=WORTH_FUSING - 1) is None
    assert gauge.choose("kind", 4) == 1
    assert gauge.wants("kind", 4, left=WORTH_FUSING) == 1, "alone, to compare with"
