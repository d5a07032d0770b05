"""What an unmeasured width is believed to make where the links between nodes were measured."""

from dataclasses import replace

import pytest
from emulated_links import CLUSTERS, TEN, Cluster, worst
from hypothesis import given
from hypothesis import strategies as st
from simkit import started, trial

from shoal.core.event import Measured
from shoal.core.fold import fold
from shoal.core.trial import TrialId
from shoal.profile.all_reduce import (
    GIB,
    AllReduce,
    Link,
    binary_blocks,
    doubling_halving,
    link_of,
    quickest,
    ring,
)
from shoal.profile.measure import Belief, believe
from shoal.profile.widths import fit_speed

A, B = TrialId("a"), TrialId("b")


def believed(a: dict[str, float], b: dict[str, float] | None = None) -> Belief:
    state = started(trial("a", width=8), trial("b", width=64))
    events = [Measured(A, "of a", a)]
    if b:
        events.append(Measured(B, "of b", b))
    return believe(fold(state, events))


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("measured", [2, 4])
def test_one_measured_width_foretells_the_others(name: str, measured: int) -> None:
    """Links are measured wrong by a tenth, too."""
    cluster = CLUSTERS[name]
    for off in (0.9, 1.0, 1.1):
        belief = believed(cluster.figures(1, measured, off=off))
        assert worst(cluster, belief.curve(A, 16)) < 0.15


def test_without_links_the_same_width_foretells_less() -> None:
    cluster = CLUSTERS["1 Gbit/s"]
    figures = cluster.figures(1, 2)
    for name in ("latency", "transfer"):
        del figures[name]
    assert worst(cluster, believed(figures).curve(A, 16)) > 0.5


# Not where sums hide: those of the small model are all hidden, which tells of nothing else.
@pytest.mark.parametrize("name", [n for n in CLUSTERS if not CLUSTERS[n].hidden])
def test_a_trial_that_was_only_measured_alone_has_its_own_model_to_sum(name: str) -> None:
    """The other, of a quarter of the size, tells of links, of what hides and of fixed costs."""
    cluster = CLUSTERS[name]
    small = replace(cluster, model=cluster.model / 4)
    belief = believed(cluster.figures(1), small.figures(1, 2))
    assert worst(cluster, belief.curve(A, 16)) < 0.08


def test_a_trial_that_was_only_measured_wide_has_its_rate_alone_by_the_links() -> None:
    cluster = CLUSTERS["1 Gbit/s"]
    belief = believed(cluster.figures(4))
    assert worst(cluster, belief.curve(A, 16)) < 0.15
    assert belief.curve(A, 16)[3] == pytest.approx(cluster.rate(4))


def test_a_width_that_is_no_power_of_two_pays_for_it() -> None:
    """Capes et al., section 3.1: 9 slots are slower than 8, and 16 are not."""
    curve = believed(CLUSTERS["latency"].figures(1, 2)).curve(A, 16)
    assert curve[8] < curve[7] < curve[15]
    assert curve[4] < curve[3] < curve[7]
    blocks = Cluster(1e7, TEN, how=binary_blocks)
    assert blocks.rate(9) < blocks.rate(8), "as the emulated cluster has it"


def test_nothing_known_of_links_or_of_the_model_changes_nothing() -> None:
    before = believed({"rate": 100.0, "rate@2": 150.0}).curve(A, 8)
    of_model = {"rate": 100.0, "rate@2": 150.0, "model": 0.01, "batch": 32.0}
    assert believed(of_model).curve(A, 8) == before
    of_links = {"rate": 100.0, "rate@2": 150.0, "latency": 1e-3, "transfer": 1.0}
    assert believed(of_links).curve(A, 8) == before


@given(
    model=st.floats(1e3, 1e10),
    latency=st.floats(0, 0.1),
    transfer=st.floats(0, 1e-6),
    batch=st.integers(1, 4096),
    alone=st.floats(1.0, 1e5),
    gains=st.dictionaries(st.integers(2, 12), st.floats(0.05, 1.5), max_size=4),
)
def test_measured_widths_are_kept_and_no_other_is_above_linear(
    model: float, latency: float, transfer: float, batch: int, alone: float, gains: dict[int, float]
) -> None:
    figures = {
        "rate": alone,
        "model": model / GIB,
        "batch": float(batch),
        "latency": latency,
        "transfer": transfer * GIB,
    }
    figures |= {f"rate@{w}": alone * w * gain for w, gain in gains.items()}
    curve = believed(figures).curve(A, 16)
    for width, rate in enumerate(curve, start=1):
        if width in gains:
            assert rate == pytest.approx(alone * width * gains[width])
        else:
            assert 0 < rate <= alone * width * (1 + 1e-9)


@given(
    how=st.sampled_from([ring, quickest]),
    width=st.integers(2, 64),
    latency=st.floats(1e-6, 1e-2),
    transfer=st.floats(1e-11, 1e-7),
)
def test_two_sums_tell_the_link(
    how: AllReduce, width: int, latency: float, transfer: float
) -> None:
    """As a ring makes the large one beside the messages of a small one."""
    link = Link(latency, transfer)
    small = how(width, 0.0, link)
    large = small + ring(width, 2**20, Link(0.0, transfer))
    found = link_of(how, width, small, large, 2**20)
    assert found.latency == pytest.approx(latency)
    assert found.transfer == pytest.approx(transfer, rel=1e-3)


# -- costs of all-reduce and the speed fit (Capes et al., eq. 2-5)


CAPES = {1: 160 / 368, 2: 170 / 232, 4: 160 / 126, 8: 170 / 84}  # epochs per minute, Table 2
SLOW = Link(latency=1e-5, transfer=1e-10, add=1e-11)


def test_costs_are_those_of_the_paper() -> None:
    link = Link(latency=1.0, transfer=10.0, add=100.0)
    assert ring(4, 8.0, link) == 3 * 4 + 3 * 2 * 4 * 10 + 3 * 2 * 2 * 100
    assert doubling_halving(4, 8.0, link) == 4 * 2 + 4 * 8 * 10 + 2.5 * 8 * 100
    assert binary_blocks(5, 8.0, link) == (5 + 4 * 3) + 7 * 8 * 10 + 3 * 8 * 100
    assert binary_blocks(4, 8.0, link) == doubling_halving(4, 8.0, link)
    assert ring(1, 8.0, link) == doubling_halving(1, 8.0, link) == 0


def test_doubling_and_halving_needs_a_power_of_two() -> None:
    with pytest.raises(ValueError, match="power of two"):
        doubling_halving(6, 1.0, SLOW)


def test_the_fit_to_table_2() -> None:
    speed = fit_speed(CAPES)
    assert speed.powers == pytest.approx((2.151, 0.0, 0.0, 0.2345), abs=5e-4)
    assert all(abs(speed.rate(w) / r - 1) < 0.045 for w, r in CAPES.items())


def test_powers_of_two_and_others_have_their_own_curves() -> None:
    def seen(width: int) -> float:
        return 100 / (1.0 / width + binary_blocks(width, 1e8, SLOW))

    speed = fit_speed({w: seen(w) for w in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)})
    assert all(speed.rate(w) == pytest.approx(seen(w), rel=0.03) for w in range(1, 17))
    assert speed.rate(9) < speed.rate(8) < speed.rate(16)
    assert speed.curve(16)[8] == speed.rate(9)


def test_widths_never_measured_follow_the_powers_of_two() -> None:
    assert fit_speed(CAPES).rate(4) < fit_speed(CAPES).rate(5) < fit_speed(CAPES).rate(8)


def test_coefficients_are_never_negative() -> None:
    speed = fit_speed({1: 1.0, 2: 2.5, 4: 5.5})  # faster than linear
    assert min(speed.powers) >= 0


@pytest.mark.parametrize("rates", [{}, {3: 1.0}, {1: 0.0}, {0: 1.0}, {1: float("nan")}])
def test_wrong_speeds_are_refused(rates: dict[int, float]) -> None:
    with pytest.raises(ValueError):
        fit_speed(rates)
