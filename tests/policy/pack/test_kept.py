"""What a policy keeps from one decision to the next tells it nothing that the view does not.

Each decision of a study is made twice: by the policy that has decided all the others before, and by
a new one that keeps nothing. Both make the same plan.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId, Slot, SlotId
from shoal.core.event import Joined, Left, Opened
from shoal.core.fold import fold
from shoal.core.plan import Plan, Proposal
from shoal.core.ports import Policy
from shoal.core.state import State, View
from shoal.core.trial import Trial, TrialId
from shoal.engine.journal import Journal
from shoal.engine.run import Stalled, run
from shoal.policy import Elastic, Pack
from shoal.policy.pack import figures
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table

SHARDS = {ShardId("all"): 20}
MAKE: list[Callable[[], Policy[Any]]] = [
    Pack,
    lambda: Pack(most=3),
    lambda: Pack(most=2, same=("depth",), refill=False),
    lambda: Pack(grouping="nearest", most=3),
    Elastic,
]


class Twice:
    """A policy that is held against a new one at each decision."""

    def __init__(self, make: Callable[[], Policy[Any]]) -> None:
        self.make = make
        self.keeps = make()
        self.asked = 0

    def start(self) -> Any:
        return self.keeps.start()

    def decide(self, view: View, memory: Any) -> tuple[Plan, Any]:
        self.asked += 1
        plan, after = self.keeps.decide(view, memory)
        anew, after_anew = self.make().decide(view, memory)
        assert (plan, after) == (anew, after_anew)
        if isinstance(self.keeps, Pack):
            check_figures(self.keeps, view)
        return plan, after


def check_figures(policy: Pack, view: View) -> None:
    """What is kept of each trial and gang is what is asked anew, also where no plan shows it."""
    kept = policy.cache.figures_in(view, policy.fuse)
    anew = figures.Figures(view, policy.fuse)
    for trial in view.trials:
        assert kept.left(trial) == anew.left(trial)
        assert kept.alone(trial) == anew.alone(trial)
    for gang in view.plan.gangs:
        assert kept.until_over(gang) == pytest.approx(anew.until_over(gang))


class Waves:
    """A searcher that submits a few trials at a time, and later gives some more to train."""

    def __init__(self, trials: list[Trial], wave: int) -> None:
        self.trials = trials
        self.wave = wave

    def start(self) -> int:
        return 0

    def propose(self, view: View, came: int) -> tuple[Proposal, int]:
        """The next few trials, once no more than those few are left."""
        if came >= len(self.trials) or len(view.trials) > self.wave:
            return Proposal(), came
        upto = came + self.wave
        again = [
            Trial(t.id, t.samples + 20.0, t.config, t.widths, t.shards)
            for t in self.trials[max(0, came - 2) : came]
            if t.id in view.trials
        ]
        return Proposal((*again, *self.trials[came:upto])), upto


@st.composite
def studies(draw: st.DrawFn) -> tuple[Waves, Sim, Table]:
    """Trials, some alike and some not, on slots that come and go; memory may be short."""
    count = draw(st.sampled_from([3, 8, 16, 60]))
    packed = draw(st.booleans())  # what packs alike has equal figures in all else, too
    rows = [
        Row(
            (10.0 * pace, 16.0 * pace),
            {"x": kind},
            memory=draw(st.sampled_from([0.0, 1.0, 4.0])),
            switch=draw(st.sampled_from([0.0, 0.3])),
            packing=Packing.shared(0.6, 10.0 * pace, 4, repack=0.2) if packed else None,
        )
        for kind, pace in enumerate(
            draw(st.lists(st.sampled_from([1.0, 1.3, 2.7]), min_size=1, max_size=4))
        )
    ]
    trials = [
        Trial(
            TrialId(f"t{number:02d}"),
            20.0 * draw(st.integers(1, 3)),
            {
                "x": draw(st.integers(0, len(rows) - 1)),
                "depth": draw(st.integers(0, 1)),
                "lr": number,
            },
            (1, 2),
            frozenset(SHARDS),
        )
        for number in range(count)
    ]
    memory = draw(st.sampled_from([float("inf"), 8.0]))
    slots = [
        Slot(SlotId(f"g{number}"), memory=memory, shards=frozenset(SHARDS))
        for number in range(draw(st.integers(1, 4)))
    ]
    script: list[Any] = []
    for slot in slots[1:]:
        if draw(st.booleans()):
            gone = draw(st.floats(0.5, 20.0))
            script.append((gone, Left(frozenset({slot.id}))))
            script.append((gone + draw(st.floats(0.5, 20.0)), Joined((slot,))))
    table = Table(tuple(rows))
    script.sort(key=lambda each: each[0])
    sim = Sim(table.of, slots, script, shards=SHARDS)
    return Waves(trials, draw(st.integers(2, count))), sim, table


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("most_kept", [30, figures.MOST_KEPT])
def test_a_policy_that_keeps_nothing_decides_the_same(
    make: Callable[[], Policy[Any]], most_kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "MOST_KEPT", most_kept)
    asked = []

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(studies())
    def holds(study: tuple[Waves, Sim, Table]) -> None:
        searcher, sim, table = study
        policy = Twice(make)
        opened = Opened(1, SHARDS)
        journal = Journal()
        journal.append(0.0, opened)
        state = fold(State(), [opened])
        with suppress(Stalled):
            run(searcher, policy, sim, table.believe, journal, state)
        asked.append(policy.asked)

    holds()
    assert sum(asked) > 10 * len(asked)
