"""A pool that makes most of an objective over its studies."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from shoal.cli import app
from shoal.core.event import Measured, Submitted
from shoal.core.fold import fold
from shoal.core.state import State
from shoal.core.trial import Trial, TrialId
from shoal.pool.division import MOVING, divided, shares, try_on_claim
from shoal.pool.folder import OpenPool, PoolFolder, SlotClaim, summary, summary_lines
from shoal.pool.member import PoolMember, rates_of
from shoal.profile.measure import Believer

rising = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=6)


def claim(name: str, rates: Sequence[float], least: int = 1, priority: float = 1.0) -> SlotClaim:
    """A claim of as many slots as rates are known for."""
    return SlotClaim(name, priority, least, len(rates), 0.0, tuple(rates))


@st.composite
def asked(draw: Any) -> list[SlotClaim]:
    found = []
    for i, steps in enumerate(draw(st.lists(rising, min_size=2, max_size=3))):
        least = draw(st.integers(1, len(steps)))
        total, rates = draw(st.floats(1.0, 100.0)), []
        for n, step in enumerate(steps, start=1):
            total += step
            rates.append(total if n >= least else 0.0)
        priority = draw(st.sampled_from([0.5, 1.0, 3.0]))
        found.append(claim(f"s{i}", rates, least, priority))
    return found


def worth(claims: Sequence[SlotClaim], given_: Mapping[str, int], fair: Mapping[str, int]) -> float:
    """Samples/s, less what is charged for each that is not made where `fair` has its slot."""
    total = 0.0
    for each in claims:
        if each.study in given_:
            makes = each.rates[given_[each.study] - 1]
            usual = each.rates[fair[each.study] - 1]
            total += makes - MOVING * abs(makes - usual)
    return total


@settings(deadline=None)
@given(st.integers(2, 12), asked())
def test_the_division_is_a_best_one(slots: int, claims: list[SlotClaim]) -> None:
    fair = shares(slots, claims, {})
    found = divided(slots, claims, {}, "throughput")
    assert sum(found.values()) == sum(fair.values()), "no slot is free that was not"
    assert {name for name, n in found.items() if n} == {n for n in fair if fair[n]}
    there = [each for each in claims if fair[each.study]]
    for each in there:
        assert each.least <= found[each.study] <= each.most
    room = sum(fair[each.study] for each in there)
    best = max(
        worth(there, dict(zip([e.study for e in there], counts, strict=True)), fair)
        for counts in product(*(range(e.least, e.most + 1) for e in there))
        if sum(counts) <= room
    )
    mine = worth(there, {e.study: found[e.study] for e in there}, fair)
    assert mine >= best - 1e-6 * abs(best)


def test_what_scales_gets_more_and_all_keep_their_least() -> None:
    steep = claim("steep", [100.0 * n for n in range(1, 9)])
    flat = claim("flat", [1000.0 * n**0.2 for n in range(1, 9)])
    both = [steep, flat]
    assert shares(8, both, {}) == {"steep": 4, "flat": 4}
    assert divided(8, both, {}, None) == {"steep": 4, "flat": 4}
    assert divided(8, both, {}, "efficiency") == {"steep": 7, "flat": 1}
    assert divided(8, both, {}, "throughput") == {"steep": 5, "flat": 3}
    wide = [steep, replace(flat, least=3)]
    assert divided(8, wide, {}, "efficiency") == {"steep": 5, "flat": 3}


def test_priority_weighs_efficiency() -> None:
    one = claim("one", [n**0.9 for n in range(1, 9)])
    two = claim("two", [n**0.9 for n in range(1, 9)], priority=3.0)
    assert divided(8, [one, two], {}, "efficiency") == shares(8, [one, two], {})
    assert divided(8, [one, two], {}, "priority")["two"] == 7


def test_where_all_gain_alike_the_division_is_that_by_priority() -> None:
    rates = [10.0 * n for n in range(1, 13)]
    both = [claim("a", rates), claim("b", rates, priority=2.0)]
    for held in ({}, {"a": 11, "b": 1}):
        assert divided(12, both, held, "efficiency") == {"a": 4, "b": 8}


def test_a_study_that_was_not_measured_has_what_its_priority_gives() -> None:
    steep = claim("steep", [100.0 * n for n in range(1, 13)])
    flat = claim("flat", [100.0] * 12)
    new = SlotClaim("new", 1.0, 1, 12)
    found = divided(12, [steep, flat, new], {}, "throughput")
    assert found == {"steep": 7, "flat": 1, "new": 4}
    assert divided(12, [steep, new], {}, "throughput") == {"steep": 6, "new": 6}


def test_nothing_moves_for_a_gain_of_next_to_nothing() -> None:
    steep = claim("steep", [100.0 * n for n in range(1, 9)])
    # Each slot of it makes 5 % + 5 % less than one of the other: as good here as there.
    less = claim("less", [300.0 + 90.5 * n for n in range(1, 9)])
    for held in ({"steep": 5, "less": 3}, {"steep": 4, "less": 4}):
        for wobble in (0.998, 1.0, 1.002):
            rates = tuple(wobble * rate for rate in less.rates)
            both = [steep, replace(less, rates=rates)]
            assert divided(8, both, held, "throughput") == held
    # From where much is to be gained it does move.
    held = {"steep": 1, "less": 7}
    assert divided(8, [steep, less], held, "throughput")["steep"] >= 4
    # A slot that nobody has is taken, whatever it gains.
    flat = [claim("a", [100.0] * 8), claim("b", [100.0] * 8)]
    assert sum(divided(8, flat, {"a": 3, "b": 4}, "throughput").values()) == 8


def test_an_objective_of_ones_own() -> None:
    def first(one: SlotClaim, rates: Sequence[float]) -> list[float]:
        return [rate * (9.0 if one.study == "a" else 1.0) for rate in rates]

    both = [claim(name, [100.0 * n**0.5 for n in range(1, 9)]) for name in "ab"]
    assert divided(8, both, {}, first) == {"a": 7, "b": 1}
    try_on_claim(first)
    with pytest.raises(ValueError, match="falls with each slot more"):
        try_on_claim(lambda one, rates: [1 / rate for rate in rates])
    with pytest.raises(ValueError, match="one of throughput, efficiency, priority"):
        try_on_claim("speed")  # type: ignore[arg-type]


def test_an_objective_that_fails_on_the_way_ends_no_study() -> None:
    pytest.importorskip("ray", reason="a pool needs Ray")
    from shoal.pool.pool import Divider

    bad = [True]

    def picky(one: SlotClaim, rates: Sequence[float]) -> Any:
        return None if bad[0] else rates

    said: list[str] = []
    divide = Divider(picky, said.append)
    both = [claim("a", [10.0, 20.0, 30.0]), claim("b", [10.0, 10.0, 10.0])]
    for _ in range(3):
        assert divide(4, both, {}) == shares(4, both, {})
    assert len(said) == 1 and "by priority for now" in said[0]
    bad[0] = False
    assert divide(4, both, {}) == {"a": 3, "b": 1}


@pytest.mark.parametrize("rates", [(float("nan"),), (-1.0,), (0.0, 5.0), (float("inf"),)])
def test_rates_of_a_claim_are_rates(rates: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="samples/s, above 0 from 1 slots on"):
        SlotClaim("a", 1.0, 1, 2, 0.0, rates)


# -- what a study says


def test_the_rates_of_a_study_are_those_of_its_best_division() -> None:
    widths = [(1, 3), (2, 4), (1, 1)]
    trials = {
        TrialId(f"t{i}"): Trial(TrialId(f"t{i}"), 100.0, {"i": i}, pair)
        for i, pair in enumerate(widths)
    }
    curves = {"t0": [10.0, 18.0, 24.0], "t1": [30.0, 52.0, 72.0, 90.0], "t2": [5.0]}

    class Known:
        def curve(self, trial: TrialId, upto: int) -> Sequence[float]:
            return curves[trial][:upto]

    profile: Any = Known()
    best = rates_of(trials, profile, 8, grows=False)
    for slots in range(1, 9):
        options = [[0, *range(fewest, most + 1)] for fewest, most in widths]
        expected = max(
            sum(
                profile.curve(name, n)[n - 1] if n else 0.0
                for name, n in zip(trials, counts, strict=True)
            )
            for counts in product(*options)
            if sum(counts) <= slots
        )
        assert best[slots - 1] == pytest.approx(expected, rel=1e-5)
    more = rates_of(trials, profile, 8, grows=True)
    assert more[:1] == best[:1] and more[-1] > best[-1], "it may have one trial more"


def test_a_narrow_trial_behind_wide_ones_is_claimed_for(tmp_path: Path) -> None:
    """A pool of two slots: the first two trials alone would make nothing on one."""
    pool = PoolFolder(tmp_path)
    pool.make()
    pool.lock.touch()
    opened = OpenPool("a", 1, platform.node(), os.getpid(), slots=2)
    pool.open(replace(opened, objective="efficiency"))
    widths = [(2, 2), (2, 2), (1, 1)]
    trials = [Trial(TrialId(f"t{i}"), 10.0, {}, pair) for i, pair in enumerate(widths)]
    state = fold(State(), [*map(Submitted, trials), Measured(trials[0].id, "kind", {"rate": 50.0})])
    with PoolMember(pool, tmp_path, None, 1, state, believe=Believer()):
        (sign,) = pool.signs()
    assert len(sign.claim.rates) == 2 and sign.claim.rates[0] == 50.0


def test_rates_are_claimed_where_the_pool_asks_and_something_was_measured(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.make()
    pool.lock.touch()
    trials = [Trial(TrialId(f"t{i}"), 10.0, {}, (1, 2)) for i in range(2)]
    new = fold(State(), [Submitted(trial) for trial in trials])
    known = fold(new, [Measured(trials[0].id, "kind", {"rate": 50.0})])
    for objective, state, wanted in (
        ("efficiency", known, 5),
        ("efficiency", new, 0),
        (None, known, 0),
    ):
        opened = OpenPool("a", 1, platform.node(), os.getpid(), slots=9)
        pool.open(replace(opened, objective=objective))
        believe = Believer()
        with PoolMember(pool, tmp_path, None, 1, state, believe=believe):
            (sign,) = pool.signs()
        assert len(sign.claim.rates) == wanted
        if wanted:
            assert sign.claim.rates[:2] == (50.0, 100.0)
            assert sign.claim.rates[2] > 100.0
        lines = summary_lines(summary(tmp_path) or {})
        assert ("divided by" in lines[0]) == (objective is not None)


def test_a_bad_objective_of_a_pool_is_one_line_before_ray_starts(tmp_path: Path) -> None:
    aims = tmp_path / "aims.py"
    aims.write_text("def cost(claim, rates):\n    return [-rate for rate in rates]\n")
    for named, why in (
        ("speed", "one of throughput, efficiency, priority, FILE.py:NAME"),
        (f"{aims}:cost", "nothing above 0"),
        (f"{aims}:other", "has no function other"),
    ):
        place = tmp_path / "pool"
        done = CliRunner().invoke(app, ["pool", str(place), "--objective", named])
        assert done.exit_code == 2 and why in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not place.exists()
