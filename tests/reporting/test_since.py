"""What people are shown of a long journal: of its newest lines, and of a sample of many trials."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from simkit import study

from shoal.core.event import Opened
from shoal.engine.journal import Line, replay
from shoal.engine.snapshot import Snapshot, runs_in
from shoal.policy.fifo import Fifo
from shoal.policy.hop.hop import Hop
from shoal.reporting import accounting as metrics
from shoal.reporting.accounting import Account, account
from shoal.reporting.html import page_of
from shoal.reporting.text import status_lines, summary


def at(lines: list[Line], cut: int) -> Snapshot:
    """A snapshot after so many of the lines."""
    before = lines[:cut]
    return Snapshot(cut + 1, 0, before[-1].time, runs_in(before), replay(before))


def of_state(found: Account) -> list[tuple[object, ...]]:
    """Of each trial what a state says of it."""
    return [
        (
            *(row.id, row.number, row.status, row.config, row.samples, row.asked),
            *(row.epochs, row.last, row.best, row.best_epoch, row.signature, row.widths),
        )
        for row in found.trials
    ]


@pytest.mark.parametrize("policy", [Fifo(), Hop()])
def test_trials_and_scores_are_of_all_and_slots_of_the_newest_lines(policy) -> None:
    """Whatever the snapshot cuts: runs, gangs at work, trials that have ended or wait."""
    first, _ = study(policy, count=6, epochs=2, deadline=0.01)
    lines, _ = study(policy, count=6, epochs=2, former=first)
    assert sum(isinstance(line.entry, Opened) for line in lines) == 2
    whole = account(lines)
    for cut in range(1, len(lines), 3):
        since = at(lines, cut)
        found = account(lines[cut:], since=since)
        assert of_state(found) == of_state(whole), cut
        assert found.entries == whole.entries and found.since == (cut, since.time)
        assert found.status == whole.status and found.figures == whole.figures
        assert found.seconds == pytest.approx(whole.seconds)
        assert len(found.runs) == len(whole.runs)
        for slot, kinds in found.use.items():
            left = whole.chart.end - since.time
            assert sum(kinds.values()) <= left + 1e-9, (cut, slot)


def test_it_says_so() -> None:
    lines, _ = study(Hop(), count=4)
    cut = len(lines) // 2
    since = at(lines, cut)
    page = page_of(account(lines[cut:], since=since), None, "runs/it s")
    said = f"The journal has {len(lines)} entries."
    assert said in page and "--whole" in page and "runs/it s" in page
    text = "\n".join(status_lines(summary(lines[cut:], since=since)))
    assert f"of the newest {len(lines) - cut} of {len(lines)} entries" in text
    assert said not in page_of(account(lines), None, None)
    assert "since " not in "\n".join(status_lines(summary(lines)))


def test_of_many_trials_the_best_and_others_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = study(Fifo(), count=40)
    whole = account(lines)
    ranked = [replace(row, last=float(row.number)) for row in whole.trials]
    scored = replace(whole, metric="loss", trials=tuple(ranked))
    monkeypatch.setattr(metrics, "DRAWN", 12)
    monkeypatch.setattr(metrics, "BEST", 4)
    numbers = [row.number for row in scored.sampled().trials]
    assert len(numbers) == 12 and numbers[:4] == [0, 1, 2, 3]
    assert max(after - before for before, after in pairwise(numbers)) < 7
    page = page_of(scored, None, None)
    assert "Of 40 trials, 12 are listed and drawn" in page
    assert len(set(re.findall(r"</i>(t\d+)", page))) == 12
    monkeypatch.setattr(metrics, "DRAWN", 40)
    assert scored.sampled() is scored
