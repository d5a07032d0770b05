"""What idle slots waited for, by hand-made journals."""

from typing import Any

import pytest
from report_kit import A, B, C, Timed, joined, journal, trained

from shoal import reporting
from shoal.core.cluster import ShardId, SlotId
from shoal.core.event import (
    Advanced,
    Commanded,
    Ended,
    Finished,
    Measured,
    Opened,
    Planned,
    Submitted,
)
from shoal.core.plan import Gang, Lane
from shoal.core.trial import Trial, TrialId, Visit
from shoal.engine.journal import Line

U, V = SlotId("u"), SlotId("v")
P, Q = ShardId("p"), ShardId("q")
Entries = list[Timed]


def asked(trial: TrialId, samples: float = 100.0, width: int = 1, **more: object) -> Submitted:
    return Submitted(Trial(trial, samples, {}, widths=(width, 2), **more))


def ran(*lanes: tuple[TrialId, SlotId], since: int = 1, **more: object) -> Gang:
    return Gang(tuple(Lane(trial, (slot,)) for trial, slot in lanes), since=since, **more)


def begun(*entries: Timed, **slots: Any) -> list[Line]:
    """Slot u trains trial a, and slot v has nothing to do, from 0 s to 10 s."""
    held = slots.pop("shards", {})
    two = [joined(each, shards=held.get(each, frozenset()), **slots) for each in (U, V)]
    return journal(*((0.0, each) for each in two), *entries, shards={P: 50, Q: 50})


def waits(lines: list[Line]) -> dict[str, float]:
    return dict(reporting.account(lines).idle)


ALONE = ran((A, U))
BEGIN: Entries = [(0.0, asked(A)), (0.0, Planned((), (ALONE,)))]
END: Entries = [(10.0, trained(A, 100.0, train=10.0)), (10.0, Ended(ALONE)), (10.0, Finished(A))]
FURTHER: Entries = [  # a goes on from its rung, on slot u
    (10.0, asked(A, 200.0)),
    (10.0, Planned((), (ran((A, U), since=2), ran((B, V), since=3)))),
    (12.0, trained(A, 100.0, train=2.0)),
    (12.0, trained(B, 100.0, train=2.0)),
]


def test_no_trial_is_left() -> None:
    assert waits(begun(*BEGIN, *END)) == {"no trial left": 10.0}


def test_a_rung() -> None:
    """Trials at their rung's end are asked to go on once the last one has come there."""
    first: Entries = [(0.0, asked(B)), (0.0, Finished(B))]
    again: Entries = [(10.0, asked(B, 200.0)), *FURTHER]
    assert waits(begun(*first, *BEGIN, *END, *again)) == {"waits for a rung": 10.0}


def test_the_searcher() -> None:
    lines = begun(*BEGIN, *END, (10.0, asked(B)), *FURTHER[1:])
    assert waits(lines) == {"waits for the searcher": 10.0}


def test_what_is_asked_for_in_a_later_run_is_nothing_that_was_waited_for() -> None:
    later = (10.0, Opened(2, {}, {})), (10.0, asked(B))
    assert waits(begun(*BEGIN, *END, *later))["no trial left"] == 10.0


@pytest.mark.parametrize(
    ("entries", "slots", "says"),
    [
        ([(0.0, asked(B, width=2))], {}, "waits for a node"),
        (
            [(0.0, asked(B)), (0.0, Measured(B, "s", {"memory": 9.0}))],
            {"memory": 8.0},
            "waits for memory",
        ),
        (
            [(0.0, asked(B, shards=frozenset({P})))],
            {"shards": {U: frozenset({P}), V: frozenset({Q})}},
            "waits for a shard",
        ),
        ([(0.0, asked(B))], {}, "held back by the policy"),
        ([(0.0, asked(B)), (0.0, Commanded("stop", "x"))], {}, "the run was stopping"),
    ],
)
def test_what_a_trial_that_waits_lacks(
    entries: Entries, slots: dict[str, object], says: str
) -> None:
    assert waits(begun(*entries, *BEGIN, *END, **slots)) == {says: 10.0}


def test_a_busy_pack() -> None:
    pack = ran((A, U), (C, U))
    lines = begun(
        *[(0.0, asked(each)) for each in (A, B, C)],
        (0.0, Planned((), (pack,))),
        (10.0, Advanced({A: 100.0, C: 100.0}, spent={A: {"train": 5.0}, C: {"train": 5.0}})),
        (10.0, Ended(pack)),
    )
    assert waits(lines) == {"waits for a busy pack": 10.0}


def test_a_trial_that_is_at_work_elsewhere_is_wanted_at_this_slot() -> None:
    """Of two shards a trial visits one at slot u; the other lies at slot v."""
    shards = {U: frozenset({P}), V: frozenset({Q})}
    here = ran((A, U), shards=(P,), quota=50.0)
    lines = begun(
        (0.0, asked(A, shards=frozenset({P, Q}))),
        (0.0, Planned((), (here,))),
        (10.0, Advanced({A: 50.0}, visits={A: (Visit(0, P, 0, 0),)}, spent={A: {"train": 10.0}})),
        (10.0, Ended(here)),
        shards=shards,
    )
    assert waits(lines) == {"waits for a shard": 10.0}


def test_reasons_follow_one_another_and_add_up_to_the_idle_time() -> None:
    """v waits for the pack's end, then nothing is left: the chart says both, in their order."""
    lines = begun(
        *[(0.0, asked(each, width=width)) for each, width in ((A, 1), (B, 2))],
        (0.0, Planned((), (ALONE,))),
        (4.0, trained(A, 40.0, train=4.0)),
        (4.0, Finished(B)),
        *[(time, entry) for time, entry in END],
    )
    told = reporting.account(lines)
    assert dict(told.idle) == {"no trial left": 6.0, "waits for a node": 4.0}
    assert sum(told.idle.values()) == told.used["idle"]
    (bar,) = told.chart.bars[V]
    assert bar.why == "waits for a node, then no trial left"
    said = reporting.status_lines(reporting.summary(lines))
    (slots,) = [line for line in said if line.startswith("slots")]
    assert "50 % idle (30 % no trial left, 20 % waits for a node)" in slots
    page = reporting.page(lines, "study")
    assert "no work" not in page and "what idle slots waited for" in page
