"""Flotillas stand: noise in the rates moves nobody, and what is measured costs 48 batches."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from small_studies import Arrivals, follow, nodes, state, table, trial

from shoal.backend.sim.meter import EXACT
from shoal.backend.sim.sim import Sim
from shoal.core.cluster import ShardId
from shoal.core.event import Event, Fell, Finished, Measured, Opened, Planned
from shoal.core.fold import fold
from shoal.core.state import State, view
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Journal, Line
from shoal.engine.run import run
from shoal.policy.width.ask import Ask
from shoal.policy.width.flotilla import Flotilla, noted_rates, smoothed, until_through
from shoal.profile.measure import Believer, believe
from shoal.profile.table import Table

# Samples/s of four trials on one slot and on two; the first is the pace of all.
TRUE = ((100.0, 190.0), (52.0, 99.0), (95.0, 180.0), (30.0, 57.0))


def simulated(
    policy: Flotilla,
    trials: Sequence[Trial],
    slots: int,
    profile: Table,
    shards: Mapping[ShardId, int] | None = None,
    script: Sequence[tuple[Seconds, Event]] = (),
) -> list[Line]:
    """A study that begins unmeasured, as a user's. With a script, that alone tells figures."""
    journal = Journal()
    before = State()
    if shards:
        opened = Opened(1, shards)
        journal.append(0.0, opened)
        before = fold(before, [opened])
    measuring = None if script else EXACT
    sim = Sim(profile.of, nodes(slots), script, shards=shards, measuring=measuring)
    arrivals = Arrivals(*((0.0, each) for each in trials))
    run(arrivals, policy, sim, Believer(), journal, before)
    return journal.lines


def plans(lines: Sequence[Line], since: Seconds) -> list[Seconds]:
    """When the plan was another one, after that time."""
    return [at for at, entry in lines if at > since and isinstance(entry, Planned)]


def noisy(seed: int, noise: float) -> list[tuple[Seconds, Event]]:
    """Rates that are off by a random part, up to `noise`, told each second by some slot."""
    rng = np.random.default_rng(seed)
    told: list[tuple[Seconds, Event]] = []
    for second in range(100):
        for number, rates in enumerate(TRUE):
            off = 1 + rng.uniform(-noise, noise, size=2)
            figures = {"rate": rates[0] * off[0], "rate@2": rates[1] * off[1]}
            name = TrialId(f"t{number}")
            told.append((second + 0.5, Measured(name, f"kind{number}", figures)))
    return told


@pytest.mark.parametrize("seed", range(4))
def test_noise_forms_no_flotilla_again(seed: int) -> None:
    """A pace that is off by 11 % of the fastest is as far off as paces may be in one flotilla."""
    trials = [trial(number, 1e5, (1, 2)) for number in range(4)]
    lines = simulated(Flotilla(), trials, 4, table(*TRUE, switch=5.0), script=noisy(seed, 0.15))
    changed = [at for at in plans(lines, 10.0) if at <= 100.0]
    assert not changed, f"formed again at {changed}"


def test_a_rate_that_is_told_twice_is_believed() -> None:
    """Paces that were far off at first are put right, though not at the first word of it."""
    known = state([trial(0, 2e6, (1, 1)), trial(1, 1e6, (1, 1))], nodes(2))
    policy = Flotilla(together=True)

    def told(rate: float) -> Measured:
        return Measured(TrialId("t1"), "kind1", {"rate": rate})

    known = follow(
        known,
        known.plan,
        Measured(TrialId("t0"), "kind0", {"rate": 100.0}),
        told(100.0),
    )
    memory: object = policy.start()
    gangs = []
    for rate in (100.0, 72.0, 71.0, 70.0, 69.0):
        known = follow(known, known.plan, told(rate))
        plan, memory = policy.decide(view(known, 0.0, believe(known)), memory)  # type: ignore[arg-type]
        known = follow(known, plan)
        gangs.append(len(plan.gangs))
    assert gangs[:2] == [1, 1]
    assert gangs[-1] == 2, "they go together no more"


def test_what_cannot_repay_itself_is_not_changed() -> None:
    """Evener paces that cost more seconds than they save, and a change just before an end."""
    rates = ((10.0, 19.0), (5.0, 9.6))
    even = table(*rates)
    for seconds, samples, again in ((0.0, 1e6, True), (400.0, 1000, False)):
        known = state([trial(i, samples, (1, 2)) for i in range(2)], nodes(2))
        policy = Flotilla(together=True)
        alike = table((10.0, 19.0), (10.0, 19.0)).of(known.known)
        plan, memory = policy.decide(view(known, 0.0, alike), policy.start())
        known = follow(known, plan)
        costly = table(*rates, switch=seconds) if seconds else even
        after, _ = policy.decide(view(known, 1.0, costly.of(known.known)), memory)
        assert (after.gangs != plan.gangs) == again


def test_no_flotilla_is_formed_just_before_an_end() -> None:
    """One slot of two is idle, but the other trial ends sooner than a change is made."""
    for left, again in ((50.0, False), (500.0, True)):
        known = state([trial(0, left, (1, 2)), trial(1, 10.0, (1, 1))], nodes(2))
        profile = table((10.0, 19.0), (10.0,), switch=10.0).of(known.known)
        policy = Flotilla()
        plan, memory = policy.decide(view(known, 0.0, profile), policy.start())
        known = follow(known, plan, Finished(TrialId("t1")))
        after, _ = policy.decide(view(known, 1.0, profile), memory)
        assert (after.gangs != known.plan.gangs) == again


def formed_at(size: int) -> tuple[Seconds, list[Line]]:
    """When all kinds are measured, of six on two slots; the journal."""
    trials = [
        Trial(TrialId(f"t{i}"), 3.0 * size, {"x": i, "batch_size": 32}, widths=(1, 2))
        for i in range(6)
    ]
    rates = [(100.0 + 3 * i,) for i in range(6)]
    lines = simulated(Flotilla(), trials, 2, table(*rates), {ShardId("a"): size})
    told = {entry.trial: at for at, entry in reversed(lines) if isinstance(entry, Measured)}
    return max(told.values()), lines


def test_measuring_is_independent_of_the_size_of_the_data_set() -> None:
    small, lines = formed_at(20_000)
    large, more = formed_at(2_000_000)
    assert small == pytest.approx(large)
    assert large <= 3 * 48 * 32 / 100, "two by two, of at most 48 batches each"
    for journal in (lines, more):
        assert not [entry for _, entry in journal if isinstance(entry, Fell)]


def test_a_visit_shorter_than_the_quota_is_made_whole() -> None:
    _, lines = formed_at(500)
    first = next(entry for _, entry in lines if isinstance(entry, Measured))
    state_then = fold(State(), [entry for _, entry in lines])
    assert state_then.ended[first.trial] == "finished"
    assert len(state_then.visits[first.trial]) == 3


def test_a_trial_that_stays_goes_on_with_the_visit_in_which_it_was_measured() -> None:
    """As many kinds as slots: the quota is lifted, and nothing is trained twice."""
    trials = [Trial(TrialId(f"t{i}"), 1e5, {"x": i}, widths=(1, 2)) for i in range(2)]
    lines = simulated(
        Flotilla(),
        trials,
        2,
        table((100.0, 100.0), (99.0, 99.0)),
        {ShardId("a"): 100_000},
    )
    assert lines[-1].time == pytest.approx(1e5 / 99.0)


def test_a_forecast_of_flotillas() -> None:
    asks = [
        Ask(TrialId("a"), 100.0, (1, 2), (10.0, 20.0)),
        Ask(TrialId("b"), 100.0, (1, 2), (5.0, 10.0)),
    ]

    def form(rest: Sequence[Ask], capacity: int) -> list[dict[TrialId, int]]:
        return [{rest[0].trial: capacity}]

    apart = [{TrialId("a"): 1}, {TrialId("b"): 1}]
    together = [{TrialId("a"): 1, TrialId("b"): 1}]
    assert until_through(apart, asks, 2, 2, form) == pytest.approx(10.0 + 5.0)
    assert until_through(together, asks, 2, 2, form) == pytest.approx(20.0)
    assert until_through([], asks, 2, 2, form) == pytest.approx(5.0 + 10.0)


def test_rates_are_smoothed_and_unmeasured_widths_go_along() -> None:
    known = state([trial(0, 1e6, (1, 2))], nodes(2))
    told: Mapping[str, Mapping[str, Sequence[float]]] = {}
    for rate in (100.0, 120.0):
        known = follow(known, known.plan, Measured(TrialId("t0"), "k", {"rate": rate}))
        look = view(known, 0.0, believe(known))
        raw = Ask(TrialId("t0"), 1.0, (1, 2), (rate, 2 * rate))
        told = noted_rates(look, [raw], told)
    assert smoothed(raw, told).rates == pytest.approx((110.0, 220.0))
    far = noted_rates(look, [Ask(TrialId("t0"), 1.0, (1, 2), (50.0, 99.0))], told)
    assert far["t0"]["1"][1] == 50.0, "that is no noise"
