"""Packs on some slots and wide lanes on the others: who is wide, when, and what that is worth."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_studies import nodes, simulated

from shoal.core.event import Finished
from shoal.core.fold import fold
from shoal.core.plan import Gang
from shoal.core.state import State
from shoal.core.trial import Seconds, Trial, TrialId
from shoal.engine.journal import Line
from shoal.policy.fifo import Fifo
from shoal.policy.mixed import Mixed
from shoal.policy.pack.pack import Pack
from shoal.policy.width.waterfill import WaterFill
from shoal.profile.pack import Packing
from shoal.profile.table import Row, Table

SMALL = Row((100.0,), {"large": 0}, memory=1.0, packing=Packing.shared(0.8, 100.0, 10))
LARGE = Row((100.0, 190.0, 270.0, 350.0), {"large": 1}, memory=1.0, switch=0.5)
TABLE = Table((SMALL, LARGE))


def trial(number: int, large: bool, samples: float) -> Trial:
    name = TrialId(f"t{number:02d}")
    return Trial(name, samples, {"large": int(large), "batch_size": 10}, (1, 4))


def ensemble(small: int, large: int) -> list[tuple[Seconds, Trial]]:
    """Small trials of 10 s each alone, and large ones of 60 s."""
    trials = [trial(i, False, 1000.0) for i in range(small)]
    trials += [trial(small + i, True, 6000.0) for i in range(large)]
    return [(0.0, each) for each in trials]


def makespan(policy: Any, arrivals: Any, slots: int = 4) -> Seconds:
    lines = simulated(policy, arrivals, nodes(slots), TABLE)
    return max(line.time for line in lines if isinstance(line.entry, Finished))


def moments(lines: Sequence[Line]) -> Iterator[Sequence[Gang]]:
    """The gangs that run together, at each entry."""
    state = State()
    for line in lines:
        state = fold(state, [line.entry])
        yield [*state.gangs]


def is_mixed(gangs: Sequence[Gang]) -> bool:
    """Whether a pack and a wide lane run at one moment."""
    pack = any(len(gang.lanes) > 1 for gang in gangs)
    return pack and any(len(lane.slots) > 1 for gang in gangs for lane in gang.lanes)


def test_small_trials_share_a_slot_while_a_large_one_has_the_others() -> None:
    arrivals = ensemble(12, 1)
    lines = simulated(Mixed(), arrivals, nodes(4), TABLE)
    first = max(moments(lines), key=is_mixed)
    shapes = sorted((len(gang.slots), len(gang.lanes)) for gang in first)
    assert shapes == [(1, 6), (1, 6), (2, 1)]
    took = makespan(Mixed(), arrivals)
    # One slot for the large trial, or one trial for each slot, takes longer.
    assert 2 * took < makespan(Pack(), arrivals)
    assert 2 * took < makespan(Fifo(), arrivals)
    assert 1.3 * took < makespan(WaterFill(), arrivals)


@pytest.mark.parametrize(("small", "large", "same"), [(12, 0, Pack()), (0, 2, WaterFill())])
def test_of_one_kind_it_is_one_of_its_parts(small: int, large: int, same: Any) -> None:
    arrivals = ensemble(small, large)
    assert makespan(Mixed(), arrivals) == pytest.approx(makespan(same, arrivals), 0.01)


def test_a_wide_trial_gives_slots_to_trials_that_come_later() -> None:
    large = (0.0, trial(0, True, 60000.0))
    small = [(5.0, trial(1 + i, False, 1000.0)) for i in range(12)]
    lines = simulated(Mixed(), [large, *small], nodes(4), TABLE)
    assert any(map(is_mixed, moments(lines)))
    ends = [line.time for line in lines if isinstance(line.entry, Finished)]
    assert len(ends) == 13


def test_a_trial_leaves_its_pack_when_slots_come_free() -> None:
    """Two trials in a pack have a slot each, or more, once the others have ended."""
    long = [(0.0, trial(i, False, 9000.0)) for i in range(2)]
    short = [(0.0, trial(2 + i, False, 500.0)) for i in range(6)]
    wide = Table((Row(LARGE.rates, memory=1.0, packing=SMALL.packing),))
    lines = simulated(Mixed(), [*long, *short], nodes(2), wide)
    last = [gangs for gangs in moments(lines) if gangs][-1]
    assert max(len(gang.lanes) for gang in last) == 1
    end = max(line.time for line in lines if isinstance(line.entry, Finished))
    assert end < 110.0


def test_every_split_of_any_ensemble_finishes_and_is_never_far_from_its_parts() -> None:
    numbers = st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(1, 6))

    @settings(
        max_examples=20,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(numbers.filter(lambda n: n[0] + n[1] > 0))
    def holds(count: tuple[int, int, int]) -> None:
        small, large, slots = count
        arrivals = ensemble(small, large)
        took = makespan(Mixed(), arrivals, slots)
        others = [Pack(), WaterFill(), Fifo()]
        assert took <= 1.06 * min(makespan(each, arrivals, slots) for each in others)

    holds()


def test_wrong_values() -> None:
    with pytest.raises(ValueError, match="gain must be >= 0"):
        Mixed(gain=-1.0)
    with pytest.raises(ValueError, match="most=0"):
        Mixed(most=0)
