"""What changes of a running trial's width cost and gained, by hand-made journals."""

from collections.abc import Sequence

import pytest
from report_kit import A, Timed, W, gang, joined, journal, trained

from shoal import reporting
from shoal.core.event import Finished, Left, Measured, Planned, Submitted
from shoal.core.trial import Trial
from shoal.engine.journal import Line
from shoal.reporting.rescales import WidthChange

NARROW = gang(A, W[0])
WIDE = gang(A, *W[:2], since=1)


def begun(*entries: Timed) -> list[Line]:
    submitted = Submitted(Trial(A, 1000.0, {}, widths=(1, 2)))
    return journal((0.0, joined(*W[:2])), (0.0, submitted), *entries)


def changes(*entries: Timed) -> Sequence[WidthChange]:
    return reporting.account(begun(*entries)).rescales


# 10 samples/s until 10 s; then the new slot prepares itself for 3 s, and the trial stands for 1 s.
ALONE: list[Timed] = [
    (0.0, Planned((), (NARROW,))),
    (4.0, trained(A, 20.0)),  # 2 s to build the model
    (10.0, trained(A, 60.0)),
    (10.0, Planned((NARROW,), (WIDE,))),
    (13.0, trained(A, 30.0)),
    (14.0, trained(A, 0.0)),
    (14.0, Measured(A, "s", {"up": 1.0, "rate@2": 99.0})),
]


def test_a_change_that_pays() -> None:
    (found,) = changes(*ALONE, (24.0, trained(A, 200.0)), (24.0, Finished(A)))
    assert found.trial == A
    assert (found.before, found.after) == (1, 2)
    assert found.time == 13.0, "when it stopped, not when it was planned"
    assert found.stood == 1.0
    assert found.old_rate == pytest.approx(10.0)
    assert found.new_rate == pytest.approx(20.0)
    assert found.saved == pytest.approx(200 / 10 - 10 - 1)


def test_evaluating_and_saving_take_as_long_at_any_width() -> None:
    after = trained(A, 200.0, evaluate=3.0, save=2.0, train=10.0, switch=7.0)
    (found,) = changes(*ALONE, (29.0, after), (29.0, Finished(A)))
    assert found.new_rate == pytest.approx(20.0)
    assert found.stood == 1.0


def test_a_change_that_does_not_pay() -> None:
    (found,) = changes(*ALONE, (44.0, trained(A, 200.0)), (44.0, Finished(A)))
    assert found.saved is not None and found.saved < 0
    assert "lost in all" in reporting.rescales_line([found])
    page = reporting.page(begun(*ALONE, (44.0, trained(A, 200.0))), "study")
    assert "Changes of width" in page and "1 → 2" in page


def test_without_a_time_that_was_measured_the_plan_counts() -> None:
    (found,) = changes(
        *ALONE[:4],
        (10.0, Planned((NARROW,), (WIDE,))),
        (22.0, trained(A, 200.0, switch=2.0, train=10.0)),
    )
    assert (found.time, found.stood) == (10.0, 2.0)
    assert found.old_rate == pytest.approx(10.0)
    assert found.new_rate == pytest.approx(20.0)
    assert found.saved == pytest.approx(20.0 - 12.0)


def test_a_trial_that_was_not_seen_before_goes_by_its_measured_rate() -> None:
    (found,) = changes(
        (0.0, Planned((), (NARROW,))),
        (4.0, trained(A, 20.0)),
        (4.0, Measured(A, "s", {"rate": 8.0})),
        (4.0, Planned((NARROW,), (WIDE,))),
        (14.0, trained(A, 160.0)),
    )
    assert found.old_rate == 8.0
    assert found.saved == pytest.approx(160 / 8 - 10)


def test_a_slot_that_dies_narrows_a_trial() -> None:
    (found,) = changes(
        (0.0, Planned((), (WIDE,))),
        (2.0, trained(A, 20.0)),
        (12.0, trained(A, 200.0)),
        (12.0, Left(frozenset(W[1:]), died=True)),
        (14.0, Measured(A, "s", {"down": 2.0})),
        (24.0, trained(A, 100.0)),
    )
    assert (found.before, found.after, found.stood) == (2, 1, 2.0)
    assert found.saved == pytest.approx(100 / 20 - 12)


def there_and_back(second: float, wait: float) -> list[Timed]:
    """1 -> 2 -> 1 slots, 100 samples at each: at 10, then `second`, then 10 a second.

    Each change takes a second without training; the trial also waits at two slots.
    """
    back = gang(A, W[0], since=2)
    at = 21.0 + 100 / second + wait
    spent = {"train": 100 / second}
    return [
        (0.0, Planned((), (NARROW,))),
        (0.0, trained(A, 0.0)),
        (10.0, trained(A, 100.0, train=10.0)),
        (10.0, Planned((NARROW,), (WIDE,))),
        (20.0, trained(A, 100.0, train=10.0)),  # while the other slot prepares itself
        (21.0, trained(A, 0.0)),
        (21.0, Measured(A, "s", {"up": 1.0})),
        (at, trained(A, 100.0, **spent)),
        (at, Planned((WIDE,), (back,))),
        (at + 1, trained(A, 0.0)),
        (at + 1, Measured(A, "s", {"down": 1.0})),
        (at + 11, trained(A, 100.0, train=10.0)),
    ]


@pytest.mark.parametrize(("second", "saved"), [(10.0, -2.0), (5.0, -12.0), (20.0, 3.0)])
def test_what_is_saved_is_against_never_having_changed(second: float, saved: float) -> None:
    """At two slots as fast, slower, faster: to be back at one slot is no gain by itself."""
    up, down = changes(*there_and_back(second, wait=0.0))
    assert (up.after, down.after) == (2, 1)
    assert up.saved == pytest.approx(100 / 10 - 100 / second - 1)
    assert down.saved == pytest.approx(-1.0), "as fast as before the first change"
    assert up.saved + down.saved == pytest.approx(saved)
    assert down.old_rate == pytest.approx(second), "the speed before this change"


def test_what_a_trial_waits_for_is_not_its_widths_doing() -> None:
    up, down = changes(*there_and_back(10.0, wait=8.0))
    assert up.new_rate == pytest.approx(10.0)
    assert up.saved == down.saved == pytest.approx(-1.0)


def test_a_change_that_nobody_measured_ends_the_one_before() -> None:
    """What was made after the second change is not counted with the first one, too."""
    back = gang(A, W[0], since=2)
    up, down = changes(
        *ALONE,
        (24.0, trained(A, 200.0)),
        (24.0, Planned((WIDE,), (back,))),
        (44.0, trained(A, 200.0)),
    )
    assert up.saved == pytest.approx(200 / 10 - 10 - 1)
    assert down.saved == pytest.approx(0.0)


def test_a_trial_that_was_stopped_is_compared_with_how_it_began_again() -> None:
    again = gang(A, *W[:2], since=2)
    narrow = gang(A, W[0], since=3)
    *_, last = changes(
        *ALONE,
        (24.0, trained(A, 200.0)),
        (24.0, Planned((WIDE,), ())),
        (30.0, Planned((), (again,))),
        (31.0, trained(A, 0.0)),
        (36.0, trained(A, 100.0)),
        (36.0, Planned((again,), (narrow,))),
        (46.0, trained(A, 100.0)),
    )
    assert last.saved == pytest.approx(100 / 20 - 10)


def test_who_was_stopped_between_or_keeps_as_many_slots_was_not_rescaled() -> None:
    other = gang(A, W[1], since=1)
    assert not changes(*ALONE[:3], (10.0, Planned((NARROW,), (other,))))
    assert not changes(*ALONE[:3], (10.0, Planned((NARROW,), ())), (11.0, Planned((), (WIDE,))))
    assert "Changes of width" not in reporting.page(begun(*ALONE[:3]), "study")


def test_the_summary_has_them() -> None:
    lines = begun(*ALONE, (24.0, trained(A, 200.0)))
    found = reporting.summary(lines)
    assert found["rescales"][0]["after"] == 2
    (said,) = [x for x in reporting.status_lines(found) if x.startswith("rescaled")]
    assert said == "rescaled 1 change of width, 1 s without training, 9 s saved in all"
