"""The contract of a profile."""

from collections.abc import Sequence
from itertools import combinations
from math import isfinite

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.ports import Profile
from shoal.core.trial import TrialId


def check_profile(profile: Profile, trials: Sequence[TrialId], slots: Sequence[SlotId]) -> None:
    """Ask the profile about these trials alone, wide and together.

    Speeds are positive, costs are not negative, and the same question has the same answer.
    """
    for trial in trials:
        curve = list(profile.curve(trial, len(slots)))
        assert len(curve) == len(slots), f"{trial}: {len(curve)} rates at widths 1..{len(slots)}"
        assert all(isfinite(rate) and rate > 0 for rate in curve), f"{trial}: rates {curve}"
        assert list(profile.curve(trial, 1)) == curve[:1], f"{trial}: the rate at width 1 changes with `upto`"
        cost = profile.cost(trial)
        parts = (cost.memory, cost.build, cost.evaluate, cost.save, cost.first)
        assert all(isfinite(part) and part >= 0 for part in parts), f"{trial}: {cost}"
        for width in range(1, len(slots) + 1):
            _check_gang(profile, Gang((Lane(trial, tuple(slots[:width])),)))
    for one, other in combinations(trials, 2):
        _check_gang(profile, Gang((Lane(one, (slots[0],)), Lane(other, (slots[0],)))))
        _check_gang(profile, Gang((Lane(one, (slots[0],)), Lane(other, (slots[-1],)))) if len(slots) > 1 else None)


def _check_gang(profile: Profile, gang: Gang | None) -> None:
    if gang is None:
        return
    rates = dict(profile.rates(gang))
    assert rates.keys() == set(gang.trials), f"rates of {sorted(rates)} for a gang of {gang.trials}"
    assert all(isfinite(rate) and rate > 0 for rate in rates.values()), f"{gang}: {rates}"
    assert rates == dict(profile.rates(gang)), f"{gang}: asked twice, it answered twice"
    for before, after in ((None, gang), (gang, None), (gang, gang)):
        assert profile.switch(before, after) >= 0, f"a change from {before} to {after} takes less than no time"
    assert profile.switch(gang, None) == 0, f"stopping {gang} costs training time of a gang that is not there"
