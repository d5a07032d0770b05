"""The contract of a profile."""

from collections.abc import Collection, Sequence
from itertools import combinations
from math import inf, isfinite

from shoal.core.cluster import SlotId
from shoal.core.plan import Gang, Lane
from shoal.core.profile import Profile
from shoal.core.trial import TrialId


def check_profile(profile: Profile, trials: Sequence[TrialId], slots: Sequence[SlotId]) -> None:
    """Ask the profile about these trials: alone, on several slots, and two together.

    Speeds must be positive, and costs must not be negative. The same question must have the same
    answer.
    """
    for trial in trials:
        _check_curve(profile, trial, len(slots))
        _check_cost(profile, trial)
        for width in range(1, len(slots) + 1):
            lane = Lane(trial, tuple(slots[:width]))
            _check_gang(profile, Gang((lane,)))
    for one, other in combinations(trials, 2):
        for slot in {slots[0], slots[-1]}:
            lanes = (Lane(one, (slots[0],)), Lane(other, (slot,)))
            _check_gang(profile, Gang(lanes))


def _check_curve(profile: Profile, trial: TrialId, upto: int) -> None:
    curve = list(profile.curve(trial, upto))
    assert len(curve) == upto, f"{trial}: {len(curve)} rates at widths 1..{upto}"
    _check_rates(trial, curve)
    first = list(profile.curve(trial, 1))
    assert first == curve[:1], f"{trial}: the rate at width 1 changes with `upto`"


def _check_rates(what: object, rates: Collection[float]) -> None:
    positive = all(isfinite(rate) and rate > 0 for rate in rates)
    assert positive, f"{what}: rates {rates}"


def _check_cost(profile: Profile, trial: TrialId) -> None:
    """Each part of the trial's cost is finite, and not below 0."""
    cost = profile.cost(trial)
    for part in (cost.memory, cost.build, cost.evaluate, cost.save, cost.first):
        assert 0 <= part < inf, f"{trial}: {cost}"


def _check_gang(profile: Profile, gang: Gang) -> None:
    """Check the rates and the changes of one gang."""
    rates = dict(profile.rates(gang))
    named = rates.keys()
    wanted = set(gang.trials)
    assert named == wanted, f"rates of {sorted(named)} for a gang of {gang.trials}"
    _check_rates(gang, rates.values())
    again = dict(profile.rates(gang))
    assert rates == again, f"{gang}: asked twice, it answered twice"

    _check_change(profile, None, gang)
    _check_change(profile, gang, gang)
    _check_change(profile, gang, None)
    stop = profile.switch(gang, None)
    assert stop == 0, f"stopping {gang} costs training time of a gang that is not there"


def _check_change(profile: Profile, before: Gang | None, after: Gang | None) -> None:
    seconds = profile.switch(before, after)
    assert seconds >= 0, f"a change from {before} to {after} takes less than no time"
