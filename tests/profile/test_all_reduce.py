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
    link_of,
    quickest,
    ring,
)
from shoal.profile.measure import Belief, believe

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
def test_a_trial_that_was_only_measured_alone_has_its_own_model_to_sum(
    name: str,
) -> None:
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
    model: float,
    latency: float,
    transfer: float,
    batch: int,
    alone: float,
    gains: dict[int, float],
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
