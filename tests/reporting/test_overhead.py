"""What deciding, profiling, checkpointing and waiting take, and how long flotillas ran."""

from collections.abc import Callable
from typing import Any

import pytest
from report_kit import A, B, C, Timed, W, gang, joined, journal, trained

from shoal import reporting
from shoal.core.event import Decided, Finished, Planned, Remembered, Submitted
from shoal.core.trial import Trial
from shoal.engine.journal import Line


def study(policy: str, within: Callable[[Any], Any] = lambda memory: memory) -> list[Line]:
    """`within`: what the policy that has the flotillas remembers of them."""
    first = gang(A, W[0]), gang(B, W[1])
    second = gang(B, *W[:2], since=1)
    last = gang(C, *W[:2], since=2)
    entries: list[Timed] = [
        (0.0, joined(*W[:2])),
        *((0.0, Submitted(Trial(name, 100.0, {}))) for name in (A, B, C)),
        (0.0, Remembered("policy", within({"paces": None, "tried": {}}))),
        (0.0, Planned((), (gang(C, W[0]), gang(B, W[1], since=9)))),
        (4.0, trained(B, 1.0, train=4.0)),
        (4.0, trained(C, 1.0, train=4.0)),
        (4.0, Remembered("policy", within({"paces": {"a": 1.0}, "tried": {}}))),
        (4.0, Planned((gang(C, W[0]), gang(B, W[1], since=9)), first)),
        (10.0, trained(A, 10.0, train=4.0, save=2.0)),
        (10.0, Finished(A)),
        (12.0, trained(B, 1.0, train=8.0)),
        (12.0, Planned((first[1],), (second,))),
        (16.0, trained(B, 1.0, train=4.0)),
        (16.0, Finished(B)),
        (16.0, Planned((), (last,))),
        (20.0, trained(C, 1.0, train=4.0)),
        (20.0, Finished(C)),
        (20.0, Decided(0.5)),
    ]
    return journal(*entries, head={"policy": {"name": policy}})


def test_shares_of_deciding_profiling_checkpointing_and_waiting() -> None:
    shares = reporting.account(study("flotilla")).shares
    assert shares["deciding"] == pytest.approx(0.5 / 20)
    assert shares["profiling"] == pytest.approx(4 / 20)
    assert shares["checkpointing"] == pytest.approx(2 / 40)
    assert shares["waiting"] == pytest.approx(2 / 40), "w0, while only B is at work"


@pytest.mark.parametrize(
    ("within", "measures"),
    [
        (lambda memory: [memory, None], True),
        (lambda memory: {"follows": "b", "inner": {"a": 0, "b": [memory, 1]}}, True),
        (lambda memory: {"follows": "a", "inner": {"a": 0, "b": memory}}, False),
    ],
)
def test_profiling_of_flotillas_within_another_policy(
    within: Callable[[Any], Any], measures: bool
) -> None:
    shares = reporting.account(study("auto", within)).shares
    if measures:
        assert shares["profiling"] == pytest.approx(4 / 20)
    else:
        assert "profiling" not in shares


def test_flotillas_and_how_long_their_trials_ran() -> None:
    formed = reporting.account(study("flotilla")).overhead.formed
    assert [each.trials for each in formed] == [(A, B), (B,), (C,)]
    assert [each.start for each in formed] == [4.0, 12.0, 16.0]
    assert [each.slots for each in formed] == [2, 2, 2]
    assert [each.mean for each in formed] == [7.0, 4.0, 4.0], "A: 6 s, B: 8 s"
    assert formed[0].deviation == 1.0


def test_other_policies_form_nothing() -> None:
    assert reporting.account(study("waterfill")).overhead.formed == ()


def test_the_summary_and_the_page_say_it() -> None:
    found = reporting.summary(study("flotilla"))
    assert found["shares"]["deciding"] == pytest.approx(0.025)
    assert set(found["waiting"]) == {"w0", "w1"}
    assert len(found["formed"]) == 3
    page = reporting.page(study("flotilla"), "flotilla")
    assert "What the policy took" in page and "Started together" in page
    assert ">run time<" in page and ">slot time<" in page
    assert page.count('class=r data-k="">–') == 2, "B and C, started alone, have no deviation"
